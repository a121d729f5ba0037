//! A byte stream into the target machine. The first byte says whether it begins after a login, and with digests; the
//! second how the layer above answers.
#![no_main]

use lunette_fuzz::{Door, Input, TARGET, address};
use proto::iscsi::login::Offers;
use proto::iscsi::target::{Target, TargetConfig};
use proto::stream::{HEADER_BYTES_MAX, StreamMachine, Transmit, Want};
use proto::time::Time;
use proto::verbs::{Command, Down, Ending, FunctionResponse, TaskId, Up};
use std::sync::Arc;
use std::time::Duration;
use wire::{BufferId, Places, Span};

/// Bytes that the layer above brings in at once.
const FETCH_BYTES_MAX: u32 = 256 * 1024;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (options, manners) = (input.byte(), input.byte());
    let mut driver = Driver::new(manners);
    if options & 1 == 1 {
        driver.run(&mut Input(&login(options & 2 == 2)));
        assert!(driver.ready, "the login succeeds");
    }
    driver.run(&mut input);
    driver.machine.closed(driver.now, None);
    driver.answer();
    assert!(driver.gone && driver.machine.finished(), "a closed connection is over");
});

/// A driver without a socket, and a layer above without a unit.
struct Driver {
    machine: Target,
    now: Time,
    batch: Transmit,
    manners: u8,
    ready: bool,
    gone: bool,
    /// Commands in flight.
    commands: Vec<Command>,
    /// Data-out that has arrived.
    fetched: Vec<(TaskId, u32)>,
}

impl Driver {
    fn new(manners: u8) -> Self {
        let config = TargetConfig {
            offers: Offers::default(),
            queue_depth: 8,
            login_within: Duration::from_secs(15),
            idle: Duration::from_secs(30),
            // A constant, so that the fuzzer finds right digests.
            crc32c: |_| 0,
        };
        let now = Time(1);
        Self {
            machine: Target::new(config, Arc::new(Door::default()), address(), address(), now),
            now,
            batch: Transmit::default(),
            manners,
            ready: false,
            gone: false,
            commands: Vec::new(),
            fetched: Vec::new(),
        }
    }

    /// Feeds the stream until it ends or the machine wants no more.
    fn run(&mut self, input: &mut Input<'_>) {
        while !self.machine.finished() {
            self.answer();
            self.send();
            match self.machine.want() {
                Want::Header { len } => {
                    assert!((1..=HEADER_BYTES_MAX).contains(&len));
                    let Some(bytes) = input.take(len as usize) else { return };
                    self.machine.header(self.now, bytes);
                }
                Want::Body { place, pad, digest } => {
                    let Some(digest_ok) = skip(input, place.len(), pad, digest) else { return };
                    self.machine.body(self.now, digest_ok);
                }
                Want::Skip { len, pad, digest } => {
                    let Some(digest_ok) = skip(input, len, pad, digest) else { return };
                    self.machine.body(self.now, digest_ok);
                }
                Want::Nothing if self.machine.owes() => {}
                // The layer above owes an answer, which it gives in its own time.
                Want::Nothing if !self.commands.is_empty() => self.end_oldest(),
                Want::Nothing => return,
            }
            self.now = self.now.after(Duration::from_millis(u64::from(self.manners)));
            if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
                self.machine.tick(self.now);
            }
        }
    }

    /// The layer above takes every event and answers it.
    fn answer(&mut self) {
        while let Some(event) = self.machine.poll() {
            assert!(!self.gone, "nothing comes after the end");
            match event {
                Up::Ready(_) => self.ready = true,
                Up::Command(command) => self.begin(command),
                Up::Fetched(task) => self.fetched(task),
                Up::FetchFailed(task) | Up::Pushed(task) => {
                    self.commands.retain(|command| command.task != task);
                }
                Up::Function { id, .. } => {
                    for command in std::mem::take(&mut self.commands) {
                        self.machine.down(self.now, Down::Abort { task: command.task });
                    }
                    let response = FunctionResponse::Complete;
                    self.machine.down(self.now, Down::FunctionDone { id, response });
                }
                Up::Refused { .. } => {}
                Up::Gone { .. } => self.gone = true,
            }
        }
    }

    fn begin(&mut self, command: Command) {
        assert!(self.ready, "commands follow the login");
        assert!(command.unsolicited_bytes <= command.write_bytes);
        self.commands.push(command);
        let refuses = self.manners & 3 == 3;
        if command.write_bytes > 0 && !refuses {
            self.fetch(&command, 0);
        } else if command.read_bytes > 0 && !refuses {
            let len = command.read_bytes.min(FETCH_BYTES_MAX);
            let end = Some(ending(&command));
            self.machine.down(self.now, Down::Push { task: command.task, at: 0, from: place(len), end });
        } else if command.unsolicited_bytes > 0 || self.manners & 4 == 0 {
            self.end(&command);
        }
    }

    fn fetch(&mut self, command: &Command, at: u32) {
        let left = command.write_bytes - at;
        let least = command.unsolicited_bytes.saturating_sub(at);
        let into = place(left.min(FETCH_BYTES_MAX).max(least));
        self.fetched.retain(|(task, _)| *task != command.task);
        self.fetched.push((command.task, at + into.len()));
        self.machine.down(self.now, Down::Fetch { task: command.task, at, into });
    }

    fn fetched(&mut self, task: TaskId) {
        let command = self.commands.iter().find(|command| command.task == task).copied();
        let command = command.expect("only data of live tasks is reported");
        let at = self.fetched.iter().find(|(other, _)| *other == task).expect("it was fetched").1;
        if at < command.write_bytes { self.fetch(&command, at) } else { self.end(&command) }
    }

    fn end_oldest(&mut self) {
        let command = self.commands[0];
        self.end(&command);
    }

    fn end(&mut self, command: &Command) {
        self.commands.retain(|other| other.task != command.task);
        self.machine.down(self.now, Down::End { task: command.task, ending: ending(command) });
    }

    /// Everything owed leaves at once.
    fn send(&mut self) {
        while self.machine.owes() {
            self.batch.clear();
            self.machine.transmit(self.now, &mut self.batch);
            assert!(self.batch.bytes.len() <= Transmit::BYTES_MAX, "a batch keeps its limits");
            assert!(self.batch.segments.len() <= Transmit::SEGMENTS_MAX, "a batch keeps its limits");
            for task in self.batch.done.drain(..) {
                self.commands.retain(|command| command.task != task);
            }
            self.answer();
        }
    }
}

/// Throws payload away, with what follows it. Says whether the digest is right.
fn skip(input: &mut Input<'_>, len: u32, pad: u32, digest: Option<u32>) -> Option<bool> {
    input.take(len as usize + pad as usize)?;
    if digest.is_some() { input.take(4).map(|sum| sum == [0; 4]) } else { Some(true) }
}

fn place(len: u32) -> Places {
    Places::one(Span { buffer: BufferId(1), len, offset: 0 })
}

fn ending(command: &Command) -> Ending {
    Ending {
        status: 0,
        sense: None,
        read_bytes: u64::from(command.read_bytes),
        write_bytes: u64::from(command.write_bytes),
    }
}

/// A login request that goes straight to the full feature phase.
fn login(digests: bool) -> Vec<u8> {
    let digest = if digests { "CRC32C" } else { "None" };
    let text = format!(
        "InitiatorName=iqn.2026-11.io.lunette:fuzz\0TargetName={TARGET}\0SessionType=Normal\0\
         HeaderDigest={digest}\0DataDigest={digest}\0InitialR2T=No\0ImmediateData=Yes\0"
    );
    let mut pdu = vec![0; 48];
    pdu[..2].copy_from_slice(&[0x43, 0x87]);
    pdu[7] = u8::try_from(text.len()).expect("a short text");
    pdu[8] = 0x80;
    pdu.extend_from_slice(text.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}
