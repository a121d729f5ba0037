//! A peer that breaks every rule: garbage, half a login and silence, commands of any kind with corrupted
//! bytes, solicited data that is never sent, and ever new connections. It has its own target; users of the
//! other one must not notice.

use crate::initiator::Protocol;
use crate::initiator::carrier::Carrier;
use crate::initiator::link::Link;
use crate::kernel::Kernel;
use crate::net::Shared;
use fastrand::Rng;
use proto::iscsi::initiator::{Event, InitiatorConfig, Request};
use proto::iscsi::login::{Offers, Plan};
use proto::services::{Attribute, TaskId};
use proto::time::Time;
use reactor::crc::crc32c;
use reactor::io::{self, Handle, Io as _, Tag, Wait};
use std::net::SocketAddr;
use std::time::Duration;
use wire::iscsi::TaskFunction;
use wire::{Cdb, Places};

/// Its target's portal.
pub(crate) const PORTAL: &str = "10.0.0.1:3261";
pub(crate) const TARGET: &str = "iqn.2026-11.io.lunette:rogue";
/// Bytes of its unit.
pub(crate) const UNIT_BYTES: u64 = 1 << 20;

/// Separates its choices from others made from the same seed.
const SALT: u64 = 0x726f_6775_6500_0000;
const CONNECT: u64 = 3;
/// Pause between its actions while others finish.
const SLOW_MICROS: u64 = 40_000;
/// Commands per connection.
const DEPTH: u16 = 64;
/// The most data of one command, in either direction.
const DATA_BYTES_MAX: u32 = 160 << 10;

/// Its behaviour: odds in 1000.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Concurrent connections.
    connections: usize,
    /// A piece that it sends is corrupted.
    lies: u32,
    /// A connection falls silent, at each of its turns.
    silences: u32,
    /// A connection is closed.
    ends: u32,
    /// The longest pause between its spontaneous actions.
    pause_micros: u64,
}

/// The rogue in this seed's world, if any.
pub(crate) fn draw(seed: u64) -> Option<Manners> {
    let mut rng = Rng::with_seed(seed ^ SALT);
    (rng.u32(0..8) == 0).then(|| Manners {
        connections: [1, 6, 48][rng.usize(0..3)],
        lies: [0, 20, 200][rng.usize(0..3)],
        silences: [1, 10, 100][rng.usize(0..3)],
        ends: [1, 10][rng.usize(0..2)],
        pause_micros: [30, 300, 3000][rng.usize(0..3)],
    })
}

/// The peer.
pub(crate) struct Rogue {
    pub(crate) kernel: Kernel,
    pub(crate) host: usize,
    net: Shared,
    manners: Manners,
    is_leaving: bool,
    /// When it next does more than receive.
    acts_at: Time,
    calls: Vec<Call>,
    numbers: u64,
    completions: Vec<io::Completion>,
}

/// One of its connections.
struct Call {
    number: u64,
    talk: Talk,
    /// It does nothing any more, and receives nothing.
    is_silent: bool,
    is_over: bool,
}

enum Talk {
    Connecting,
    /// Bytes that mean nothing, or begin to mean something; until they are sent, their place.
    Raw(Handle, Option<Places>),
    /// An initiator, and the places lent to its commands.
    Real(Box<Link>, Vec<(TaskId, Places, Places)>),
    /// It could not connect.
    Failed,
}

impl Rogue {
    pub(crate) fn new(host: usize, mut kernel: Kernel, net: Shared, manners: Manners) -> Rogue {
        kernel.lies = manners.lies;
        let (calls, completions) = (Vec::new(), Vec::new());
        let acts_at = Time(0);
        Rogue { kernel, host, net, manners, is_leaving: false, acts_at, calls, numbers: 0, completions }
    }

    /// It continues, but slowly: others may take seconds from now on.
    pub(crate) fn slow_down(&mut self) {
        self.manners.pause_micros = SLOW_MICROS;
    }

    /// It closes everything it has, and begins nothing.
    pub(crate) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Whether nothing of it is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.calls.is_empty()
    }

    /// Its turn.
    pub(crate) fn turn(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.kernel.turn(Wait::No, &mut completions);
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        let now = self.kernel.now();
        if now >= self.acts_at {
            self.act(now);
        }
        self.net.borrow_mut().wake(self.host, self.acts_at);
    }

    /// Its spontaneous actions. Received bytes do not cause more of them, or two would drive each other
    /// endlessly.
    fn act(&mut self, now: Time) {
        let mut calls = std::mem::take(&mut self.calls);
        calls.iter_mut().for_each(|call| self.act_on(call));
        calls.extract_if(.., |call| call.is_quiet()).for_each(|call| self.close(call));
        self.calls = calls;
        if self.calls.len() < self.manners.connections && !self.is_leaving {
            self.connect();
        }
        let pause = self.net.borrow_mut().nanos(10_000, self.manners.pause_micros * 1000);
        self.acts_at = now.after(pause);
    }

    fn connect(&mut self) {
        self.numbers += 1;
        let number = self.numbers;
        self.kernel.connect(address(), Tag(number << 2 | CONNECT));
        self.calls.push(Call { number, talk: Talk::Connecting, is_silent: false, is_over: false });
    }

    fn completed(&mut self, completion: io::Completion) {
        let (number, kind) = (completion.tag.0 >> 2, completion.tag.0 & 3);
        let Some(at) = self.calls.iter().position(|call| call.number == number) else { return };
        match &mut self.calls[at].talk {
            Talk::Connecting => {
                let talk = match completion.result {
                    Ok(socket) => self.begin(number, Handle(socket as i32)),
                    Err(_) => Talk::Failed,
                };
                self.calls[at].talk = talk;
            }
            Talk::Raw(_, place) => {
                if let Some(place) = place.take() {
                    self.kernel.arena().give(&place);
                }
            }
            Talk::Real(link, _) => link.completed(&mut self.kernel, kind, completion.result),
            Talk::Failed => {}
        }
    }

    /// What it sends on a new connection.
    fn begin(&mut self, number: u64, socket: Handle) -> Talk {
        let kind = self.net.borrow_mut().rng.u32(0..8);
        let protocol = match kind {
            0 => return Talk::Raw(socket, None),
            1 => return self.babble(number, socket),
            2 | 3 => Protocol::Iser,
            4 | 5 => Protocol::Srp,
            _ => Protocol::Iscsi,
        };
        self.note(number, protocol as u64, || {
            format!("connection {number} speaks {protocol:?} by socket {}", socket.0)
        });
        let machine = Carrier::new(protocol, config(self.host), self.host, socket, &mut self.kernel);
        Talk::Real(Box::new(Link::new(machine, number, socket)), Vec::new())
    }

    fn babble(&mut self, number: u64, socket: Handle) -> Talk {
        let bytes = {
            let rng = &mut self.net.borrow_mut().rng;
            let mut bytes = vec![0; rng.usize(1..3000)];
            rng.fill(&mut bytes);
            let begins: &[u8] = match rng.u32(0..4) {
                // A login request without its end, and one that announces a lot.
                0 => &[0x43, 0x87, 0, 0, 0, 0, 1, 0],
                1 => &[0x43, 0x87, 0, 0, 0, 0xff, 0xff, 0xff],
                2 => b"MPA ID Req Frame\x10\x02\x02\x00",
                _ => &[],
            };
            let shared = begins.len().min(bytes.len());
            bytes[..shared].copy_from_slice(&begins[..shared]);
            bytes
        };
        let place = self.kernel.arena().take(bytes.len() as u32);
        if let Some(span) = place.and_then(|place| place.iter().next()) {
            self.kernel.arena().bytes_mut(span).copy_from_slice(&bytes);
            self.kernel.send(socket, &[span], Tag(number << 2));
        }
        Talk::Raw(socket, place)
    }

    fn act_on(&mut self, call: &mut Call) {
        let (silences, ends) = (self.manners.silences, self.manners.ends);
        let ends = self.is_leaving || self.net.borrow_mut().happens(ends);
        if ends && !call.is_over {
            call.is_over = true;
            self.note(call.number, 0, || format!("connection {} is ended", call.number));
            match &mut call.talk {
                Talk::Raw(socket, _) => self.kernel.shutdown(*socket),
                Talk::Real(link, _) => link.shut_down(&mut self.kernel),
                // Once it is established.
                Talk::Connecting => call.is_over = false,
                Talk::Failed => {}
            }
        }
        call.is_silent |= self.net.borrow_mut().happens(silences);
        if let Talk::Real(link, in_flight) = &mut call.talk
            && !call.is_silent
            && !call.is_over
        {
            call.is_over = self.talk(link, in_flight);
        }
    }

    /// Whether the connection has ended.
    fn talk(&mut self, link: &mut Link, in_flight: &mut Vec<(TaskId, Places, Places)>) -> bool {
        loop {
            let is_more = link.feed(&mut self.kernel);
            while let Some(event) = link.poll() {
                match event {
                    Event::Ready(_) => link.is_ready = true,
                    Event::Gone { .. } => {
                        link.shut_down(&mut self.kernel);
                        return true;
                    }
                    Event::Completed(completion) => {
                        if let Some(at) = in_flight.iter().position(|(task, ..)| *task == completion.task) {
                            let (_, read, write) = in_flight.swap_remove(at);
                            [read, write].iter().for_each(|places| self.kernel.arena().give(places));
                        }
                    }
                    _ => {}
                }
            }
            if !is_more {
                break;
            }
        }
        let now = self.kernel.now();
        link.tick(now);
        if link.is_ready {
            self.ask(link, in_flight);
        }
        link.flush(&mut self.kernel);
        false
    }

    /// Begins something, allowed or not.
    fn ask(&mut self, link: &mut Link, in_flight: &mut Vec<(TaskId, Places, Places)>) {
        let (kind, function, lun, commands) = {
            let rng = &mut self.net.borrow_mut().rng;
            (rng.u32(0..100), rng.u8(..), rng.u64(0..3), rng.usize(0..8))
        };
        match kind {
            0 => link.machine.logout(self.kernel.now()),
            1..4 => {
                let of = in_flight.last().map(|(task, ..)| *task);
                link.machine.function(lun << 48, TaskFunction(function & 0xf), of);
                self.note(link.number, function.into(), || {
                    format!("connection {} function {} of {of:?}", link.number, function & 0xf)
                });
            }
            _ => {}
        }
        for _ in 0..commands {
            let (cdb, attribute, [reads, writes]) = command(&mut self.net.borrow_mut().rng);
            let mut take =
                |bytes| if bytes == 0 { Some(Places::EMPTY) } else { self.kernel.arena().take(bytes) };
            let (Some(read), write) = (take(reads), take(writes)) else { return };
            let Some(write) = write else { return self.kernel.arena().give(&read) };
            match link.machine.submit(Request { lun: lun << 48, attribute, cdb, read, write }) {
                Some(task) => {
                    self.note(link.number, task.slot.into(), || {
                        let cdb = cdb.as_bytes();
                        format!(
                            "connection {} command {}: {cdb:02x?}, reads {reads}, writes {writes}",
                            link.number, task.slot
                        )
                    });
                    in_flight.push((task, read, write));
                }
                None => [read, write].iter().for_each(|places| self.kernel.arena().give(places)),
            }
        }
    }

    fn note(&self, number: u64, word: u64, text: impl FnOnce() -> String) {
        let net = &mut *self.net.borrow_mut();
        net.trace.note(net.now, &[number, word], || format!("rogue {}", text()));
    }

    fn close(&mut self, call: Call) {
        match call.talk {
            Talk::Raw(socket, _) => self.kernel.close(socket),
            Talk::Real(link, in_flight) => {
                link.close(&mut self.kernel);
                for (_, read, write) in in_flight {
                    [read, write].iter().for_each(|places| self.kernel.arena().give(places));
                }
            }
            Talk::Connecting | Talk::Failed => {}
        }
    }
}

impl Call {
    /// Whether it has ended, with nothing in flight.
    fn is_quiet(&self) -> bool {
        match &self.talk {
            Talk::Connecting => false,
            Talk::Raw(_, place) => self.is_over && place.is_none(),
            Talk::Real(link, _) => self.is_over && link.is_quiet(),
            Talk::Failed => true,
        }
    }
}

/// A CDB, and how much to read and write, matching the CDB or not.
fn command(rng: &mut Rng) -> (Cdb, Attribute, [u32; 2]) {
    const OPCODES: [u8; 32] = [
        0x00, 0x03, 0x04, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x25, 0x28, 0x28, 0x2a, 0x2a, 0x2a, 0x2e, 0x2f,
        0x35, 0x41, 0x42, 0x48, 0x55, 0x5e, 0x5f, 0x83, 0x88, 0x89, 0x8a, 0x8b, 0x93, 0x9e, 0xa0,
    ];
    let mut bytes = [0; 32];
    // Valid commands consist mostly of zero bytes.
    bytes.iter_mut().for_each(|byte| *byte = if rng.u32(0..4) == 0 { rng.u8(..) } else { 0 });
    bytes[0] = if rng.u32(0..16) == 0 { rng.u8(..) } else { OPCODES[rng.usize(0..OPCODES.len())] };
    let len = [6, 10, 12, 16, 16, 32][rng.usize(0..6)];
    let attribute = match rng.u32(0..20) {
        0 => Attribute::Ordered,
        1 => Attribute::HeadOfQueue,
        2 => Attribute::Aca,
        3 => Attribute::Unknown(rng.u8(5..8)),
        _ => Attribute::Simple,
    };
    let mut bytes_of =
        |way: bool| if way { [0, 512, 4096, rng.u32(0..DATA_BYTES_MAX)][rng.usize(0..4)] } else { 0 };
    let moved = [bytes_of(bytes[0] & 2 == 0), bytes_of(bytes[0] & 2 != 0)];
    (Cdb::from_bytes(&bytes[..len]).expect("it is short"), attribute, moved)
}

fn config(host: usize) -> InitiatorConfig {
    let plan = Plan {
        initiator: format!("iqn.2026-11.io.lunette:rogue-{host}"),
        alias: None,
        target: Some(TARGET.into()),
        isid: [0x80, 0, 0, 0, 0, 1],
        chap: None,
        offers: Offers::default(),
        text_bytes: 8192,
    };
    let (login_within, idle) = (Duration::from_secs(6), Duration::from_secs(5));
    InitiatorConfig { plan, queue_depth: DEPTH, login_within, idle, crc32c }
}

/// The configuration of its target.
pub(crate) fn config_text() -> String {
    format!(
        "\n[[portal]]\nlisten = \"{PORTAL}\"\nname = \"rogue\"\ntransports = [\"iscsi\", \"iser\", \"srp\"]\n\
         \n[[lun]]\nname = \"rogue\"\nram = \"{UNIT_BYTES}\"\nserial = \"ROGUE\"\n\
         \n[[target]]\nname = \"{TARGET}\"\nluns = [\"rogue\"]\nportals = [\"rogue\"]\n"
    )
}

/// The address of [`PORTAL`].
pub(crate) fn address() -> SocketAddr {
    PORTAL.parse().expect("an address")
}

/// Corrupts bytes in flight.
pub(crate) fn garble(rng: &mut Rng, bytes: &mut Vec<u8>) {
    match rng.u32(0..8) {
        0 => bytes.truncate(rng.usize(0..=bytes.len())),
        1 => bytes.extend_from_within(..),
        2 => rng.fill(bytes),
        _ => {
            for _ in 0..rng.u32(1..4) {
                // Mostly in headers.
                let most = if rng.bool() { bytes.len() } else { bytes.len().min(64) };
                let at = rng.usize(0..most);
                bytes[at] ^= 1 << rng.u32(0..8);
            }
        }
    }
}
