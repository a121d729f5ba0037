//! Two ends of an iWARP connection, or one of them and a peer played by the test.

use super::{DISK, End, HOST, Memory, Random, crc32c};
use proto::iwarp::setup::Depths;
use proto::iwarp::{Config, Event, QueuePair};
use proto::stream::StreamMachine;
use proto::time::Time;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wire::{BufferId, Places, Span};

/// Random bits for STags.
fn random() -> u32 {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    (Random::new(DRAWN.fetch_add(1, Ordering::Relaxed)).next() >> 13) as u32
}

pub(crate) const CONFIG: Config = Config {
    enhanced: true,
    crc: true,
    long_fpdus: false,
    depths: Depths { ird: 4, ord: 4 },
    ready: None,
    segment_bytes: 1448,
    work: 16,
    receives: 16,
    registrations: 16,
    crc32c,
    random,
};

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Initiator,
    Responder,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Initiator => Side::Responder,
            Side::Responder => Side::Initiator,
        }
    }

    fn region(self) -> BufferId {
        match self {
            Side::Initiator => HOST,
            Side::Responder => DISK,
        }
    }

    /// `len` bytes at `at` of this end's memory, in several spans.
    pub(crate) fn places(self, at: u32, len: u32) -> Places {
        let cut = (len / 3) | 1;
        let mut places = Places::EMPTY;
        for (from, len) in [(0, cut.min(len)), (cut, len.saturating_sub(cut))] {
            places.push(Span { buffer: self.region(), offset: u64::from(at + from), len });
        }
        places
    }
}

pub(crate) struct Link {
    pub initiator: End<QueuePair>,
    pub responder: End<QueuePair>,
    pub memory: Memory,
    pub now: Time,
    pub random: Random,
    /// The most bytes moved at once.
    pub chunk: usize,
    /// The events of each end.
    pub initiator_events: Vec<Event>,
    pub responder_events: Vec<Event>,
}

impl Link {
    pub(crate) fn new(initiator: Config, responder: Config, seed: u64, chunk: usize) -> Link {
        let now = Time(1_000_000);
        let mut random = Random::new(seed);
        Link {
            initiator: End::new(QueuePair::initiator(initiator, b"hello", now).unwrap()),
            responder: End::new(QueuePair::responder(responder, now)),
            memory: Memory::new(&mut random),
            now,
            random,
            chunk,
            initiator_events: Vec::new(),
            responder_events: Vec::new(),
        }
    }

    /// An established connection.
    pub(crate) fn established(initiator: Config, responder: Config, seed: u64, chunk: usize) -> Link {
        let mut link = Link::new(initiator, responder, seed, chunk);
        link.run();
        let Some(Event::Request { private_data, .. }) = link.responder_events.pop() else { panic!() };
        assert_eq!(private_data, b"hello");
        link.responder.machine.accept(link.now, b"welcome").unwrap();
        link.run();
        match (link.initiator_events.pop(), link.responder_events.pop()) {
            (Some(Event::Established { private_data, .. }), Some(Event::Established { .. })) => {
                assert_eq!(private_data, b"welcome");
            }
            other => panic!("{other:?}"),
        }
        link
    }

    pub(crate) fn end(&mut self, side: Side) -> &mut QueuePair {
        match side {
            Side::Initiator => &mut self.initiator.machine,
            Side::Responder => &mut self.responder.machine,
        }
    }

    pub(crate) fn events(&mut self, side: Side) -> &mut Vec<Event> {
        match side {
            Side::Initiator => &mut self.initiator_events,
            Side::Responder => &mut self.responder_events,
        }
    }

    /// Why this end has ended.
    pub(crate) fn gone(&mut self, side: Side) -> String {
        match self.events(side).last() {
            Some(Event::Gone { reason }) => reason.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Runs until nothing moves any more.
    pub(crate) fn run(&mut self) {
        while self.step() {}
    }

    /// Moves one piece in each direction and lets both ends react; `false` when nothing happened.
    pub(crate) fn step(&mut self) -> bool {
        let mut busy = self.initiator.fill(self.now, &mut self.memory);
        busy |= self.responder.fill(self.now, &mut self.memory);
        let (there, back) = (1 + self.random.below(self.chunk), 1 + self.random.below(self.chunk));
        busy |= self.initiator.carry(there, &mut self.responder);
        busy |= self.responder.carry(back, &mut self.initiator);
        for task in self.initiator.left() {
            self.initiator.machine.pushed(task);
        }
        for task in self.responder.left() {
            self.responder.machine.pushed(task);
        }
        loop {
            let mut ate = self.initiator.feed(self.now, &mut self.memory);
            ate |= self.responder.feed(self.now, &mut self.memory);
            if !(self.poll() || ate) {
                break;
            }
            busy = true;
        }
        busy | self.hang_up()
    }

    fn poll(&mut self) -> bool {
        let before = self.initiator_events.len() + self.responder_events.len();
        self.initiator_events.extend(std::iter::from_fn(|| self.initiator.machine.poll()));
        self.responder_events.extend(std::iter::from_fn(|| self.responder.machine.poll()));
        self.initiator_events.len() + self.responder_events.len() > before
    }

    /// An end that is finished closes the stream once everything has been sent.
    fn hang_up(&mut self) -> bool {
        let (initiator, responder) = (self.initiator.hung_up(), self.responder.hung_up());
        if responder && !initiator && self.initiator.is_drained() {
            self.initiator.machine.closed(self.now, None);
            return self.poll();
        }
        if initiator && !responder && self.responder.is_drained() {
            self.responder.machine.closed(self.now, None);
            return self.poll();
        }
        false
    }

    /// Lets time pass, with all deadlines in between.
    pub(crate) fn pass(&mut self, by: Duration) {
        let end = self.now.after(by);
        loop {
            self.run();
            let next = [self.initiator.machine.deadline(), self.responder.machine.deadline()];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else { break };
            self.now = next;
            self.initiator.machine.tick(next);
            self.responder.machine.tick(next);
            self.poll();
        }
        self.now = end;
    }

    /// Whether `len` bytes at these places of both ends' memories are the same.
    pub(crate) fn same(&self, host: u32, disk: u32, len: u32) -> bool {
        let (host, disk, len) = (host as usize, disk as usize, len as usize);
        let [a, b] = &self.memory.regions;
        a[host..host + len] == b[disk..disk + len]
    }
}

/// One end, and a peer whose bytes the test writes and reads.
pub(crate) struct Solo {
    pub end: End<QueuePair>,
    pub memory: Memory,
    pub now: Time,
    pub events: Vec<Event>,
}

impl Solo {
    pub(crate) fn new(machine: QueuePair) -> Solo {
        let now = Time(1_000_000);
        Solo { end: End::new(machine), memory: Memory::new(&mut Random::new(1)), now, events: Vec::new() }
    }

    pub(crate) fn responder(config: Config) -> Solo {
        Solo::new(QueuePair::responder(config, Time(1_000_000)))
    }

    /// The machine gets these bytes; returns what it answers.
    pub(crate) fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.end.inject(bytes);
        let mut answer = Vec::new();
        loop {
            let mut busy = self.end.feed(self.now, &mut self.memory);
            busy |= self.end.fill(self.now, &mut self.memory);
            answer.extend(self.end.take_outgoing());
            for task in self.end.left() {
                self.end.machine.pushed(task);
            }
            self.events.extend(std::iter::from_fn(|| self.end.machine.poll()));
            if !busy {
                return answer;
            }
        }
    }

    pub(crate) fn gone(&self) -> &str {
        match self.events.last() {
            Some(Event::Gone { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }
}
