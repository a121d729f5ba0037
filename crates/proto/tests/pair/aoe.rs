//! Our two ends of an AoE session against each other, over a segment that loses, duplicates and delays
//! frames.

mod rig;

use crate::support::{GOOD, HOST, Random};
use proptest::prelude::*;
use proto::aoe::discover::{Discovery, query};
use proto::aoe::initiator::InitiatorConfig;
use proto::aoe::target::{Export, answer_query};
use proto::iscsi::initiator::{Completion, Event, Outcome, Request};
use proto::services::{Attribute, TaskId};
use rig::{Faults, INITIATOR, Rig, SECTOR};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use wire::aoe::{Address, Mac, Order, OrderKind, Query, QueryKind};
use wire::scsi::capacity::unmap_list;
use wire::scsi::command::{Read16, ReadCapacity16, SynchronizeCache16, Unmap, Verify16, Write16};
use wire::scsi::{Command as _, opcode};
use wire::{Cdb, Places, SenseKey, Span};

/// Sectors of the disk: so few that commands overlap.
const SECTORS: usize = 256;
/// The longest command in sectors, and the host's memory for each.
const COMMAND_SECTORS: usize = 40;
const ROOM: usize = COMMAND_SECTORS * SECTOR + 64;

const READ: u8 = opcode::READ_16;
const WRITE: u8 = opcode::WRITE_16;
const SYNCHRONIZE_CACHE: u8 = opcode::SYNCHRONIZE_CACHE_16;
const READ_CAPACITY: u8 = opcode::SERVICE_ACTION_IN_16;
const UNMAP: u8 = opcode::UNMAP;
const VERIFY: u8 = opcode::VERIFY_16;

/// A user who reads and writes, and knows what every sector must contain.
struct User {
    rig: Rig,
    random: Random,
    /// What each sector was last written with; each write has its own number.
    written: Vec<u64>,
    writes: u64,
    in_flight: BTreeMap<TaskId, Command>,
    completed: usize,
    /// The last range written.
    last: Option<Range<usize>>,
}

struct Command {
    opcode: u8,
    sectors: Range<usize>,
    room: usize,
    /// The content of a write.
    number: u64,
}

fn contents(number: u64, sector: usize) -> [u8; SECTOR] {
    let mut random = Random::new(number.wrapping_mul(1 << 20) + sector as u64);
    let mut bytes = [0; SECTOR];
    // Nothing was written yet: zeros.
    if number > 0 {
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()));
    }
    bytes
}

impl User {
    fn new(config: InitiatorConfig, buffers: u16, seed: u64) -> User {
        User {
            rig: Rig::new(config, buffers, SECTORS, seed),
            random: Random::new(!seed),
            written: vec![0; SECTORS],
            writes: 0,
            in_flight: BTreeMap::new(),
            completed: 0,
            last: None,
        }
    }

    fn log_in(&mut self) {
        let end = self.rig.now.after(INITIATOR.login_within);
        while self.rig.events.is_empty() {
            assert!(self.rig.step(end), "no login");
        }
        assert!(matches!(self.rig.events.pop(), Some(Event::Ready(_))));
    }

    /// Issues this many commands, and waits for all except those that were lost with the session.
    fn work(&mut self, commands: usize) {
        let end = self.rig.now.after(Duration::from_secs(600));
        let (mut given, done) = (0, self.completed + commands);
        while self.completed < done {
            for _ in 0..4 {
                given += usize::from(given < commands && self.give());
            }
            assert!(self.rig.step(end), "{} commands hang", self.in_flight.len());
            self.take();
        }
        assert!(self.in_flight.is_empty());
    }

    fn take(&mut self) {
        for event in std::mem::take(&mut self.rig.events) {
            match event {
                Event::Completed(completion) => self.ended(&completion),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Issues a random command, unless it would overlap another one.
    fn give(&mut self) -> bool {
        let scale = self.random.below(6);
        let len = COMMAND_SECTORS.min(1 + self.random.below(2 << scale));
        let first = self.random.below(SECTORS - len);
        // A late duplicate would spoil what is overwritten at once.
        let again = self.last.clone().filter(|_| self.random.below(2) == 0);
        let sectors = again.unwrap_or(first..first + len);
        let opcodes =
            [READ, READ, READ, WRITE, WRITE, WRITE, WRITE, SYNCHRONIZE_CACHE, READ_CAPACITY, UNMAP, VERIFY];
        let opcode = opcodes[self.random.below(opcodes.len())];
        let meets = |other: &Command| {
            let is_write = [opcode, other.opcode].iter().any(|one| [WRITE, UNMAP].contains(one));
            is_write && other.sectors.start < sectors.end && sectors.start < other.sectors.end
        };
        if self.in_flight.values().any(meets) {
            return false;
        }
        self.submit(opcode, sectors).is_some()
    }

    fn submit(&mut self, opcode: u8, sectors: Range<usize>) -> Option<TaskId> {
        let room = (0..64).find(|room| self.in_flight.values().all(|other| other.room != *room))?;
        let (lba, blocks) = (sectors.start as u64, sectors.len() as u32);
        let (mut read, mut write) = (Places::EMPTY, Places::EMPTY);
        let number = self.writes + 1;
        let cdb = match opcode {
            READ => {
                read = places(room, sectors.len() * SECTOR);
                Read16::new(lba, blocks).to_cdb()
            }
            WRITE => {
                write = places(room, sectors.len() * SECTOR);
                let fua = self.random.below(4) == 0;
                let bytes =
                    sectors.clone().map(|sector| contents(number, sector)).collect::<Vec<_>>().concat();
                let half = write.iter().next()?.len as usize;
                self.rig.host(room * ROOM, half).copy_from_slice(&bytes[..half]);
                let rest = bytes.len() - half;
                self.rig.host(room * ROOM + half + 64, rest).copy_from_slice(&bytes[half..]);
                Write16 { fua, ..Write16::new(lba, blocks) }.to_cdb()
            }
            UNMAP => {
                let list = unmap_list(lba, blocks);
                self.rig.host(room * ROOM, 24).copy_from_slice(&list);
                write = Places::one(Span { buffer: HOST, offset: (room * ROOM) as u64, len: 24 });
                Unmap::new(24).to_cdb()
            }
            READ_CAPACITY => {
                read = places(room, 32);
                ReadCapacity16::new(32).to_cdb()
            }
            SYNCHRONIZE_CACHE => SynchronizeCache16::new(lba, blocks).to_cdb(),
            VERIFY => Verify16::new(lba, blocks).to_cdb(),
            other => panic!("{other:#x}"),
        };
        let request = Request { lun: 0, attribute: Attribute::Simple, cdb, read, write };
        let task = self.rig.initiator.submit(request)?;
        self.writes += u64::from(opcode == WRITE);
        let sectors = if [READ, WRITE, UNMAP].contains(&opcode) { sectors } else { 0..0 };
        let before = self.in_flight.insert(task, Command { opcode, sectors, room, number });
        assert!(before.is_none(), "a task is one command");
        Some(task)
    }

    fn ended(&mut self, completion: &Completion) {
        let Completion { task, outcome, read_bytes, .. } = completion;
        assert_eq!(*outcome, GOOD);
        self.completed += 1;
        let Command { opcode, sectors, room, number } =
            self.in_flight.remove(task).expect("a command ends once");
        match opcode {
            READ => {
                let found = self.placed(room, sectors.len() * SECTOR);
                assert_eq!(*read_bytes as usize, found.len());
                for (sector, found) in sectors.zip(found.chunks(SECTOR)) {
                    assert!(found == contents(self.written[sector], sector), "sector {sector} is an old one");
                }
            }
            WRITE => {
                self.last = Some(sectors.clone());
                sectors.for_each(|sector| self.written[sector] = number);
            }
            UNMAP => sectors.for_each(|sector| self.written[sector] = 0),
            READ_CAPACITY => {
                assert_eq!(self.placed(room, 32)[..8], (SECTORS as u64 - 1).to_be_bytes());
            }
            _ => {}
        }
    }

    /// The data in the places of a command.
    fn placed(&mut self, room: usize, len: usize) -> Vec<u8> {
        let spans: Vec<Span> = places(room, len).iter().collect();
        let bytes = spans.iter().map(|span| self.rig.host(span.offset as usize, span.len as usize).to_vec());
        bytes.collect::<Vec<_>>().concat()
    }

    /// Nothing is lost any more: what was in transit arrives, and then the disk has what was written last.
    fn check(&mut self) {
        self.rig.faults = Faults::default();
        let end = self.rig.now.after(Duration::from_secs(4));
        while self.rig.step(end) {}
        assert!(self.rig.is_at_rest());
        for (sector, (found, number)) in self.rig.disk.chunks(SECTOR).zip(&self.written).enumerate() {
            assert!(found == contents(*number, sector), "sector {sector} has been overwritten");
        }
    }
}

/// Two places in the host's memory, split anywhere in a sector.
fn places(room: usize, len: usize) -> Places {
    let half = (len / 3) | 1;
    let (at, mut places) = (room * ROOM, Places::EMPTY);
    for (from, len) in [(at, half), (at + half + 64, len - half)] {
        places.push(Span { buffer: HOST, offset: from as u64, len: len as u32 });
    }
    places
}

#[test]
fn commands_fill_the_window_and_no_more() {
    for (mtu, buffers) in [(1500, 1), (1500, 16), (9000, 4), (9000, 64)] {
        let mut user = User::new(InitiatorConfig { mtu, ..INITIATOR }, buffers, u64::from(mtu));
        user.log_in();
        user.work(300);
        user.check();
        if buffers < 64 {
            assert_eq!(user.rig.tags_most, usize::from(buffers));
        }
        assert!(user.rig.flushes > 0 && user.rig.verified > 0);
    }
}

#[test]
fn nothing_is_lost_and_hardly_anything_sent_twice() {
    // Without delay, and over 100 Mbit/s, where a window of frames takes much longer than one of them.
    for (mtu, per_frame, byte) in [(1500, 2, 0), (9000, 17, 0), (1500, 2, 80), (9000, 17, 80)] {
        let mut user = User::new(InitiatorConfig { mtu, ..INITIATOR }, 64, 3);
        user.log_in();
        user.rig.byte = Duration::from_nanos(byte);
        let (before, mut frames) = (user.rig.sent, 0);
        for _ in 0..40 {
            for first in (0..SECTORS - 34).step_by(34) {
                user.submit(WRITE, first..first + 34).unwrap();
                frames += 34usize.div_ceil(per_frame);
            }
            let end = user.rig.now.after(Duration::from_secs(1));
            while !user.in_flight.is_empty() {
                assert!(user.rig.step(end));
                user.take();
            }
        }
        // A request and an answer each; over a slow link, more until the timer has adapted.
        let needed = 2 * (frames + user.rig.flushes);
        let extra = (user.rig.sent - before).checked_sub(needed).unwrap();
        assert!(extra <= if byte == 0 { 0 } else { needed / 100 }, "{extra} of {needed}, {mtu}");
    }
}

#[test]
fn a_bad_start_is_soon_forgotten() {
    forget_bad_starts(0..40);
}

mod soak {
    #[test]
    fn a_bad_start_is_soon_forgotten() {
        super::forget_bad_starts(40..400);
    }
}

/// However badly the pace begins: after as many requests as the target can queue, it is normal.
fn forget_bad_starts(seeds: Range<u64>) {
    const BUFFERS: u16 = 16;
    const COMMANDS: usize = 200;
    /// The time of a request, its execution, and the answer.
    const ROUND_TRIP: Duration = Duration::from_micros(2100);
    /// The longest time before a retransmission.
    const TIMEOUT_MAX: Duration = Duration::from_secs(1);
    for seed in seeds {
        let mut user = User::new(INITIATOR, BUFFERS, seed);
        let [lost, delay] = [user.random.below(500), user.random.below(200)];
        user.rig.faults = Faults { lost, delay: Duration::from_millis(delay as u64), ..Faults::default() };
        user.log_in();
        let commands = user.random.below(20);
        user.work(commands);
        user.rig.faults = Faults::default();
        let begin = user.rig.now;
        user.work(COMMANDS);
        let took = user.rig.now.since(begin);
        assert!(took < ROUND_TRIP * 100, "{took:?} with seed {seed}");
        user.check();

        // The same after the line was cut with requests in transit.
        while user.in_flight.len() < 4 {
            user.give();
        }
        user.rig.is_cut = true;
        let cut = Duration::from_millis(user.random.below(3000) as u64);
        let end = user.rig.now.after(cut);
        while user.rig.step(end) {}
        user.rig.is_cut = false;
        let end = user.rig.now.after(TIMEOUT_MAX + ROUND_TRIP * 100);
        while !user.in_flight.is_empty() {
            assert!(user.rig.step(end), "seed {seed}");
            user.take();
        }
        let begin = user.rig.now;
        user.work(COMMANDS);
        let took = user.rig.now.since(begin);
        assert!(took < ROUND_TRIP * 100, "{took:?} with seed {seed}");
    }
}

#[test]
fn a_session_is_lost_when_nobody_answers_and_another_one_continues() {
    for seed in 0..20 {
        let mut user = User::new(INITIATOR, 16, seed);
        user.log_in();
        user.work(20);
        for _ in 0..20 {
            user.give();
        }
        let end = user.rig.now.after(Duration::from_secs(1));
        for _ in 0..user.random.below(60) {
            user.rig.step(end);
        }
        user.rig.is_cut = true;
        let since = user.rig.now;
        let end = since.after(INITIATOR.lost_after * 3);
        while user.rig.step(end) {}
        let Some(Event::Gone { reason }) = user.rig.events.pop() else { panic!("it is not lost") };
        assert!(reason.contains("3.4") && user.rig.initiator.is_over(), "{reason}");
        user.take();
        assert!(user.rig.events.is_empty());
        // The outcome of the others is unknown: they are issued again.
        let lost = std::mem::take(&mut user.in_flight);
        user.rig.is_cut = false;
        user.rig.reopen(InitiatorConfig { first_tag: 0x8000, ..INITIATOR });
        user.log_in();
        for command in lost.values().filter(|command| [WRITE, UNMAP].contains(&command.opcode)) {
            user.submit(command.opcode, command.sectors.clone()).unwrap();
        }
        let end = user.rig.now.after(Duration::from_secs(10));
        while !user.in_flight.is_empty() {
            assert!(user.rig.step(end));
            user.take();
        }
        user.work(50);
        user.check();
    }
}

/// Issues a command about the config string; returns how it ended, and the string.
fn order(user: &mut User, cdb: Cdb, argument: &[u8]) -> (Outcome, Vec<u8>) {
    user.rig.host(0, argument.len()).copy_from_slice(argument);
    let place = |offset, len| Places::one(Span { buffer: HOST, offset, len });
    let (read, write) = (place(2048, 1024), place(0, argument.len() as u32));
    let request = Request { lun: 0, attribute: Attribute::Simple, cdb, read, write };
    user.rig.initiator.submit(request).expect("there is room");
    let end = user.rig.now.after(Duration::from_secs(50));
    loop {
        assert!(user.rig.step(end), "it hangs");
        match user.rig.events.pop() {
            Some(Event::Completed(done)) => {
                return (done.outcome, user.rig.host(2048, done.read_bytes as usize).to_vec());
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}

#[test]
fn orders_are_followed_once_and_tests_end_whatever_the_segment_does() {
    for seed in 0..30 {
        let mut user = User::new(INITIATOR, 4, seed);
        user.rig.faults =
            Faults { lost: 150, doubled: 200, delay: Duration::from_millis(3), unanswered: 100 };
        user.log_in();
        for number in 0..20 {
            let string = format!("string {number}").into_bytes();
            let force = Order { kind: OrderKind::ForceConfig, argument_bytes: string.len() as u32 };
            assert_eq!(order(&mut user, force.cdb(), &string), (GOOD, string.clone()));
            let query = |kind, argument: &[u8]| Query { kind, argument_bytes: argument.len() as u32 }.cdb();
            for (kind, argument) in
                [(QueryKind::Read, &b""[..]), (QueryKind::Test, &string), (QueryKind::TestPrefix, b"str")]
            {
                let answer = order(&mut user, query(kind, argument), argument);
                assert_eq!(answer, (GOOD, string.clone()), "{kind:?}");
            }
            if number % 10 == 0 {
                let (outcome, _) = order(&mut user, query(QueryKind::Test, b"string"), b"string");
                let Outcome::Status { sense: Some(sense), .. } = outcome else { panic!("{outcome:?}") };
                assert_eq!(sense.key(), Some(SenseKey::Miscompare));
            }
        }
        user.work(20);
        user.check();
        assert_eq!(user.rig.config, b"string 19", "no late copy has set an older one");
    }
}

#[test]
fn a_discovery_finds_our_targets() {
    let ours = Mac([2, 0, 0, 0, 0, 1]);
    let mut discovery = Discovery::default();
    for (shelf, slot) in [(2, 1), (1, 7), (1, 3)] {
        let export = Export {
            address: Address { shelf, slot },
            ours: Mac([2, 0, 0, 0, 1, slot]),
            config: b"which one",
            buffers: 32,
            sectors_max: 17,
            firmware: 5,
        };
        let mut out = [0; 2000];
        for to in [Address::BROADCAST, Address { shelf: 1, slot: Address::ALL_SLOTS }] {
            let frame = query(ours, Mac::BROADCAST, to, 9);
            let len = answer_query(frame.header(), &export, &mut out).unwrap_or(0);
            discovery.take(&out[..len]);
        }
    }
    let found: Vec<_> = discovery.targets().iter().map(|one| one.address.to_string()).collect();
    assert_eq!(found, ["1.3", "1.7", "2.1"]);
    let first = &discovery.targets()[0];
    assert_eq!((first.buffer_count, first.sectors, &first.config[..]), (32, 17, &b"which one"[..]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acknowledged_is_read_back_whatever_the_segment_does(
        seed: u64,
        lost in 0..250usize,
        doubled in 0..300usize,
        delay in 0..8000u64,
        unanswered in prop_oneof![Just(0usize), 0..200usize],
        mtu in prop_oneof![Just(1500u32), Just(9000)],
        buffers in prop_oneof![Just(1u16), 2..8u16, Just(64)],
    ) {
        let mut user = User::new(InitiatorConfig { mtu, ..INITIATOR }, buffers, seed);
        user.rig.faults = Faults { lost, doubled, delay: Duration::from_micros(delay), unanswered };
        user.log_in();
        user.work(120);
        user.check();
    }
}
