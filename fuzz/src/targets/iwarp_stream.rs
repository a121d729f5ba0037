//! A byte stream for an iWARP machine. The first byte selects its role, what was agreed on, and whether the
//! stream begins after MPA start-up; the second what the layer above does.

use crate::Input;
use proto::iwarp::memory::Access;
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::iwarp::{Config, Event, QueuePair};
use proto::stream::{HEADER_BYTES_MAX, PAD_BYTES_MAX, StreamMachine, Transmit, Want};
use proto::time::Time;
use std::time::Duration;
use wire::{BufferId, Places, Span};

const RECEIVE: BufferId = BufferId(1);
const READABLE: BufferId = BufferId(2);
const WRITABLE: BufferId = BufferId(3);
const SINK: BufferId = BufferId(4);
const BUFFER_BYTES: u32 = 4096;

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, manners) = (input.byte(), input.byte());
    let mut driver = Driver::new(options, manners);
    if options & 1 == 1 {
        driver.run(&mut Input(&frame(options)));
        assert!(driver.established || manners & 0x80 != 0, "the start-up succeeds unless it is rejected");
    }
    driver.run(&mut input);
    driver.machine.closed(driver.now, None);
    driver.answer();
    assert!(driver.gone && driver.machine.finished(), "a closed connection has ended");
}

/// A driver without a socket, and a layer above that does a little of everything.
struct Driver {
    machine: QueuePair,
    now: Time,
    batch: Transmit,
    manners: u8,
    established: bool,
    gone: bool,
    /// The peer's STags, and the events seen.
    stags: [Option<u32>; 2],
    events: u64,
}

impl Driver {
    fn new(options: u8, manners: u8) -> Self {
        let config = Config {
            enhanced: options & 4 == 0,
            crc: options & 8 != 0,
            long_fpdus: options & 16 != 0,
            depths: Depths { ird: 2, ord: 2 },
            ready: (options & 32 != 0).then_some(ReadyToReceive::ANY),
            segment_bytes: 600,
            work: 8,
            receives: 4,
            registrations: 2,
            // Constants, so that the fuzzer finds valid CRCs and STags.
            crc32c: |_| 0,
            random: || 0x5a5a_5000,
        };
        let now = Time(1);
        let machine = match options & 2 {
            0 => QueuePair::responder(config, now),
            _ => QueuePair::initiator(config, b"fuzz", now).expect("private data is short"),
        };
        let batch = Transmit::default();
        Self { machine, now, batch, manners, established: false, gone: false, stags: [None; 2], events: 0 }
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
                    self.check(&place);
                    let Some(digest_ok) = skip(input, place.len(), pad, digest) else { return };
                    self.machine.body(self.now, digest_ok);
                }
                Want::Skip { len, pad, digest } => {
                    let Some(digest_ok) = skip(input, len, pad, digest) else { return };
                    self.machine.body(self.now, digest_ok);
                }
                Want::Nothing if self.machine.owes() => {}
                Want::Nothing => return,
            }
            self.now = self.now.after(Duration::from_millis(u64::from(self.manners & 15)));
            if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
                self.machine.tick(self.now);
            }
        }
    }

    /// Payload is placed only where that is allowed.
    fn check(&self, place: &Places) {
        for span in place.iter() {
            assert!(span.offset + u64::from(span.len) <= u64::from(BUFFER_BYTES));
            match span.buffer {
                RECEIVE | SINK => {}
                WRITABLE => assert!(self.stags[1].is_some(), "it is advertised"),
                other => panic!("{other:?} is not for writing"),
            }
        }
    }

    /// The layer above takes every event and acts on it.
    fn answer(&mut self) {
        while let Some(event) = self.machine.poll() {
            assert!(!self.gone, "nothing comes after the end");
            self.events += 1;
            match event {
                Event::Request { private_data, .. } => {
                    assert!(private_data.len() <= 512);
                    let answered = match self.manners & 0x80 {
                        0 => self.machine.accept(self.now, b"yes"),
                        _ => self.machine.reject(self.now, b"no"),
                    };
                    answered.expect("a request can be answered");
                }
                Event::Established { .. } => {
                    self.established = true;
                    self.begin();
                }
                Event::Received { len, invalidated, .. } => {
                    assert!(len <= BUFFER_BYTES);
                    for stag in &mut self.stags {
                        if stag.is_some() && *stag == invalidated {
                            *stag = None;
                        }
                    }
                    self.go_on();
                }
                Event::Sent { .. } | Event::Written { .. } | Event::Read { .. } => self.go_on(),
                Event::Freed { stag } => assert!(!self.stags.contains(&Some(stag))),
                Event::Rejected { .. } => {}
                Event::Gone { .. } => self.gone = true,
            }
        }
    }

    fn begin(&mut self) {
        let _ = self.machine.post_receive(0, place(RECEIVE));
        self.register();
        self.go_on();
    }

    fn register(&mut self) {
        for (n, buffer) in [READABLE, WRITABLE].into_iter().enumerate() {
            let access = Access { remote_read: n == 0, remote_write: n == 1 };
            if self.stags[n].is_none() {
                self.stags[n] = self.machine.register(place(buffer), access).ok();
            }
        }
    }

    fn go_on(&mut self) {
        let id = self.events;
        let _ = self.machine.post_receive(id, place(RECEIVE));
        match (self.manners >> 4) & 7 {
            0 => {}
            1 => drop(self.machine.send(id, b"header", place(READABLE), true, Some(7))),
            2 => drop(self.machine.write(id, place(READABLE), 7, 8)),
            3 => drop(self.machine.read(id, place(SINK).slice(0, 64), 7, 8)),
            4 => self.register(),
            5 => {
                if let Some(stag) = self.stags[(id & 1) as usize].take() {
                    assert!(self.machine.invalidate(stag));
                }
            }
            6 => drop(self.machine.read(id, Places::EMPTY, 7, 8)),
            _ if id > 6 => self.machine.close(self.now),
            _ => {}
        }
    }

    fn send(&mut self) {
        while self.machine.owes() {
            self.batch.clear();
            self.machine.transmit(self.now, &mut self.batch);
            assert!(self.batch.bytes.len() <= Transmit::BYTES_MAX);
            assert!(self.batch.segments.len() <= Transmit::SEGMENTS_MAX);
            assert!(self.batch.total_bytes > 0, "what is owed is sent");
            for task in std::mem::take(&mut self.batch.done) {
                self.machine.pushed(task);
            }
            // What was posted in answer to that waits for the next turn of the stream.
            if self.manners & 0x70 != 0 {
                break;
            }
        }
    }
}

/// The peer's frame, which the machine accepts.
fn frame(options: u8) -> Vec<u8> {
    let key = if options & 2 == 0 { b"MPA ID Req Frame" } else { b"MPA ID Rep Frame" };
    let mut frame = key.to_vec();
    let markers = if options & 64 == 0 { 0 } else { 0x80 };
    let ready = if options & 32 == 0 { 0 } else { 0xc0 };
    match options & 4 {
        0 => frame.extend([markers | 0x18, 2, 0, 4, ready, 2, ready, 2]),
        _ => frame.extend([markers, 1, 0, 0]),
    }
    frame
}

fn skip(input: &mut Input<'_>, len: u32, pad: u32, digest: Option<u32>) -> Option<bool> {
    assert!(pad <= PAD_BYTES_MAX);
    input.take(len as usize + pad as usize)?;
    if digest.is_some() { input.take(4).map(|sum| sum == [0; 4]) } else { Some(true) }
}

fn place(buffer: BufferId) -> Places {
    Places::one(Span { buffer, len: BUFFER_BYTES, offset: 0 })
}
