//! The machine against a target of a page of code.

mod abandoned;
mod orders;

use super::*;
use crate::services::Attribute;
use std::collections::{BTreeMap, BTreeSet};
use wire::aoe::{
    Command as AoeCommand, ConfigArgument, ErrorCode, Header, Order, OrderKind, Query, QueryKind,
};
use wire::ata::{Action, PassThrough, Registers, Section, StatusReturn, error};
use wire::iwarp::Layout;
use wire::scsi::command::{
    Inquiry, ModeSelect6, Read10, ReadCapacity10, SynchronizeCache16, TestUnitReady, Unmap, Verify10,
    Verify16, Write10,
};
use wire::scsi::vpd;
use wire::{BufferId, Cdb, SenseKey};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

const TARGET: Address = Address { shelf: 7, slot: 1 };
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 9]);
const LANE: u8 = 5;
const CONFIG: InitiatorConfig = InitiatorConfig {
    target: TARGET,
    ours: OURS,
    mtu: 1500,
    lane: LANE,
    first_tag: 0xfff0,
    queue_depth: 8,
    login_within: Duration::from_secs(5),
    idle: Duration::from_secs(5),
    lost_after: Duration::from_secs(10),
};
const BUFFERS: u16 = 4;
const GOOD: Outcome = Outcome::Status { status: 0, sense: None };

/// A target that does not remember its answers.
struct Disk {
    identity: IdentifyData,
    bytes: Vec<u8>,
    /// ERROR of commands from now on.
    error: u8,
    flushes: u32,
}

impl Disk {
    fn new() -> Disk {
        let bytes: Vec<u8> = (0..64 * 512).map(|at: usize| (at / 512 + at) as u8).collect();
        let identity = IdentifyData { sectors: 64, ..answer::tests::DISK };
        Disk { identity, bytes, error: 0, flushes: 0 }
    }

    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let header = Header::view(request).unwrap();
        assert!(header.address() == TARGET && header.source == OURS && !header.is_response());
        assert_eq!(header.tag.get() >> 24, u32::from(LANE));
        let answer = header.answer(THEIRS, TARGET, ErrorCode::NONE);
        if header.command == AoeCommand::CONFIG {
            let argument = ConfigArgument {
                buffer_count: U16::new(BUFFERS),
                firmware: U16::new(1),
                sector_count: 2,
                version_command: 0x10,
                len: U16::new(0),
            };
            return [answer.as_bytes(), argument.as_bytes()].concat();
        }
        if header.command != AoeCommand::ATA {
            // An empty list.
            return [answer.as_bytes(), &[0; 4]].concat();
        }
        let section = Section::view(&request[24..]).unwrap();
        let registers = section.registers();
        let mut data = Vec::new();
        let at = registers.lba as usize * 512..(registers.lba as usize + registers.sectors() as usize) * 512;
        let mut end = StatusReturn::good(&registers);
        if section.nop_tag().is_some() {
            end = StatusReturn::failed(&registers, error::ABRT);
        } else if self.error != 0 {
            end = StatusReturn::failed(&registers, self.error);
        } else {
            match registers.command().unwrap().action() {
                Action::Read => data.extend(&self.bytes[at]),
                Action::Write { .. } => {
                    assert!(section.is_write());
                    self.bytes[at].copy_from_slice(&request[36..]);
                }
                Action::Flush => self.flushes += 1,
                Action::Verify | Action::Other => data.extend(self.identity.encode()),
            }
        }
        let section = Section::response(section.flags, &end);
        [answer.as_bytes(), section.as_bytes(), &data].concat()
    }
}

struct Rig {
    machine: Initiator,
    disk: Disk,
    /// The buffers of commands.
    memory: Vec<u8>,
    now: Time,
}

impl Rig {
    /// Logged in.
    fn new() -> Rig {
        let mut rig = Rig::with(CONFIG);
        rig.log_in();
        rig
    }

    fn log_in(&mut self) {
        self.run();
        assert!(matches!(self.machine.poll(), Some(Event::Ready(_))));
    }

    fn with(config: InitiatorConfig) -> Rig {
        let machine = Initiator::new(config, Time(0));
        Rig { machine, disk: Disk::new(), memory: vec![0; 64 * 512], now: Time(0) }
    }

    /// All frames that the machine sends.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(places) = self.machine.wants() {
            let list = self.gather(&places);
            self.machine.bring(&list);
        }
        while let Some(Outgoing { frame, made }) = self.machine.transmit(self.now) {
            let (header, made) = (frame.header().to_vec(), made.to_vec());
            frames.push([header, self.gather(&frame.payload), made].concat());
        }
        assert!(!self.machine.owes() || self.machine.is_over());
        frames
    }

    fn gather(&self, places: &Places) -> Vec<u8> {
        places
            .iter()
            .flat_map(|span| &self.memory[span.offset as usize..][..span.len as usize])
            .copied()
            .collect()
    }

    fn receive(&mut self, frame: &[u8]) {
        let place = Span { buffer: BufferId(9), len: frame.len() as u32, offset: 0 };
        let Some(put) = self.machine.receive(self.now, frame, place) else { return };
        let mut bytes = match put.from {
            Source::Frame(span) => &frame[span.offset as usize..][..span.len as usize],
            Source::Made(bytes) => bytes,
        };
        for span in put.to.iter() {
            let (head, rest) = bytes.split_at(span.len as usize);
            self.memory[span.offset as usize..][..span.len as usize].copy_from_slice(head);
            bytes = rest;
        }
        assert!(bytes.is_empty());
    }

    /// Sends and answers until nothing is left to do.
    fn run(&mut self) {
        loop {
            let frames = self.sent();
            if frames.is_empty() {
                return;
            }
            assert!(frames.len() <= usize::from(BUFFERS));
            for frame in frames {
                let answer = self.disk.answer(&frame);
                self.receive(&answer);
            }
        }
    }

    fn request(&self, cdb: impl Into<Cdb>, read: u32, write: u32) -> Request {
        // In two pieces, the first of which is not a whole number of sectors.
        let places = |len: u32| {
            let mut places = Places::EMPTY;
            places.push(Span { buffer: BufferId(0), len: len.min(700), offset: 0 });
            places.push(Span { buffer: BufferId(0), len: len.saturating_sub(700), offset: 1000 });
            places
        };
        let (read, write, cdb) = (places(read), places(write), cdb.into());
        Request { lun: 0, attribute: Attribute::Simple, cdb, read, write }
    }

    fn submit(&mut self, cdb: impl Into<Cdb>, read: u32, write: u32) -> TaskId {
        let request = self.request(cdb, read, write);
        self.machine.submit(request).unwrap()
    }

    fn completion(&mut self) -> Completion {
        match self.machine.poll() {
            Some(Event::Completed(completion)) => completion,
            other => panic!("{other:?}"),
        }
    }

    fn sense(&mut self) -> (SenseKey, u16) {
        match self.completion().outcome {
            Outcome::Status { status: 2, sense: Some(sense) } => (sense.key().unwrap(), sense.code()),
            other => panic!("{other:?}"),
        }
    }

    /// The data in the places of [`Rig::request`].
    fn placed(&self, len: usize) -> Vec<u8> {
        let first = len.min(700);
        [&self.memory[..first], &self.memory[1000..][..len - first]].concat()
    }

    fn later(&mut self) {
        let deadline = self.machine.deadline().unwrap();
        assert!(deadline > self.now);
        self.now = deadline;
        self.machine.tick(self.now);
    }
}

fn tag(frame: &[u8]) -> u32 {
    Header::view(frame).unwrap().tag.get()
}

fn read_10(lba: u8, sectors: u8) -> Read10 {
    Read10::new(lba.into(), sectors.into())
}

fn write_10(lba: u8, sectors: u8) -> Write10 {
    Write10::new(lba.into(), sectors.into())
}

#[test]
fn a_login_finds_the_target_and_what_it_is() {
    let mut rig = Rig::with(CONFIG);
    assert!(rig.machine.submit(rig.request(read_10(0, 1), 512, 0)).is_none());
    let query = rig.sent();
    assert_eq!((query.len(), &query[0][..6]), (1, &Mac::BROADCAST.0[..]));
    rig.later();
    let again = rig.sent();
    assert_eq!(again, query, "with the same tag");
    let answer = rig.disk.answer(&again[0]);
    rig.receive(&answer);
    rig.receive(&answer);
    rig.run();
    let Some(Event::Ready(session)) = rig.machine.poll() else { panic!() };
    assert_eq!(session.initiator, "02:00:00:00:00:01");
    assert_eq!(session.target.as_deref(), Some("7.1"));
    assert_eq!(session.negotiated[1], ("BufferCount", "4".to_string()));
}

#[test]
fn a_login_without_an_answer_ends() {
    let mut rig = Rig::with(CONFIG);
    let mut frames = 0;
    while !rig.machine.is_over() {
        frames += rig.sent().len();
        rig.later();
    }
    assert!((6..12).contains(&frames), "{frames}");
    assert!(rig.now >= Time(0).after(CONFIG.login_within));
    let Some(Event::Gone { reason }) = rig.machine.poll() else { panic!() };
    assert_eq!(reason, "no answer from the AoE target 7.1");
    assert!(rig.machine.deadline().is_none());
}

#[test]
fn a_target_that_cannot_be_used_is_named() {
    for (identity, words) in [
        (IdentifyData { sector_bytes: 4096, ..answer::tests::DISK }, "sectors of 4096 bytes"),
        (IdentifyData { model: [0xff; 40], ..answer::tests::DISK }, "valid"),
    ] {
        let mut rig = Rig::with(CONFIG);
        rig.disk.identity = identity;
        while let Some(frame) = rig.sent().pop() {
            let mut answer = rig.disk.answer(&frame);
            if answer.len() > 100 && identity.sector_bytes == 512 {
                answer[100] ^= 1;
            }
            rig.receive(&answer);
        }
        let Some(Event::Gone { reason }) = rig.machine.poll() else { panic!() };
        assert!(reason.contains(words), "{reason}");
    }
}

#[test]
fn a_transfer_is_cut_into_frames_that_the_target_has_room_for() {
    let mut rig = Rig::new();
    let task = rig.submit(read_10(3, 15), 15 * 512, 0);
    let first = rig.sent();
    assert_eq!(first.len(), usize::from(BUFFERS));
    assert!(first.iter().all(|frame| frame[..6] == THEIRS.0), "not to all stations");
    let counts = first.iter().map(|frame| frame[26]);
    assert!(counts.eq([2; 4]), "two sectors fit into 1500 bytes");
    for frame in first.iter().rev() {
        let answer = rig.disk.answer(frame);
        rig.receive(&answer);
    }
    rig.run();
    let done = rig.completion();
    assert_eq!((done.task, done.outcome, done.read_bytes), (task, GOOD, 15 * 512));
    assert_eq!(done.residual, Residual::None);
    assert_eq!(rig.placed(15 * 512), rig.disk.bytes[3 * 512..18 * 512]);
}

/// VERIFY with BYTCHK ends at once: ATA cannot compare.
#[test]
fn the_name_of_a_command_is_free_when_its_end_was_taken() {
    let mut rig = Rig::new();
    let ended = rig.submit(Verify16 { byte_check: 1, ..Verify16::new(0, 1) }, 0, 512);
    let write = rig.request(write_10(0, 1), 0, 512);
    assert_eq!(rig.machine.submit(write), None);
    assert_eq!(rig.completion().task, ended);
    let next = rig.machine.submit(write).unwrap();
    assert_ne!(next, ended);
    rig.run();
    assert_eq!(rig.completion().task, next);
}

#[test]
fn what_is_written_is_read_back() {
    let mut rig = Rig::new();
    (0..9000).for_each(|at| rig.memory[at] = (at * 7 / 3) as u8);
    rig.submit(write_10(10, 5), 0, 5 * 512);
    rig.run();
    let done = rig.completion();
    assert_eq!((done.outcome, done.read_bytes, done.residual), (GOOD, 0, Residual::None));
    assert_eq!(rig.placed(5 * 512), rig.disk.bytes[10 * 512..15 * 512]);
    assert_eq!(rig.disk.flushes, 0);
}

#[test]
fn fua_flushes_once_after_all_was_written() {
    let mut rig = Rig::new();
    rig.submit(Write10 { fua: true, ..write_10(0, 5) }, 0, 5 * 512);
    let frames = rig.sent();
    assert_eq!(frames.len(), 3);
    let answers: Vec<_> = frames.iter().map(|frame| rig.disk.answer(frame)).collect();
    answers[1..].iter().for_each(|answer| rig.receive(answer));
    assert!(rig.sent().is_empty() && rig.machine.poll().is_none());
    rig.receive(&answers[0]);
    let flush = rig.sent();
    assert_eq!((flush.len(), flush[0][27]), (1, 0xea));
    let answer = rig.disk.answer(&flush[0]);
    rig.receive(&answer);
    assert_eq!((rig.completion().outcome, rig.disk.flushes), (GOOD, 1));
    rig.submit(SynchronizeCache16::ZERO, 0, 0);
    rig.run();
    assert_eq!((rig.completion().outcome, rig.disk.flushes), (GOOD, 2));
}

#[test]
fn questions_are_answered_by_what_the_device_says_now() {
    let mut rig = Rig::new();
    rig.submit(read_10(70, 1), 512, 0);
    rig.run();
    assert_eq!(rig.sense(), (SenseKey::IllegalRequest, 0x2100));
    rig.disk.identity.sectors = 80;
    rig.disk.bytes.resize(80 * 512, 0xcc);
    rig.submit(read_10(70, 1), 512, 0);
    rig.run();
    assert_eq!((rig.completion().outcome, rig.memory[0]), (GOOD, 0xcc));
    rig.disk.identity.sectors = 90;
    rig.submit(ReadCapacity10::new(), 20, 0);
    rig.run();
    let done = rig.completion();
    assert_eq!((done.read_bytes, done.residual), (8, Residual::Underflow(12)));
    assert_eq!(rig.memory[..8], [0, 0, 0, 89, 0, 0, 2, 0]);
    rig.submit(Inquiry::new(96), 36, 0);
    rig.run();
    let done = rig.completion();
    assert_eq!((done.outcome, done.read_bytes, done.residual), (GOOD, 36, Residual::Overflow(60)));
    assert_eq!(&rig.memory[8..11], b"ATA");
    rig.submit(TestUnitReady {}, 0, 0);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
}

#[test]
fn errors_are_reported_as_scsi_has_them() {
    let mut rig = Rig::new();
    for (bits, key, code) in [
        (error::UNC, SenseKey::MediumError, 0x1100),
        (error::IDNF, SenseKey::IllegalRequest, 0x2100),
        (error::ABRT, SenseKey::AbortedCommand, 0),
    ] {
        rig.disk.error = bits;
        rig.submit(read_10(6, 5), 5 * 512, 0);
        rig.run();
        assert_eq!(rig.sense(), (key, code));
    }
    rig.disk.error = 0;
    rig.submit(read_10(6, 5), 5 * 512, 0);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD, "nothing is left of it");
}

#[test]
fn a_refusal_by_aoe_ends_a_command() {
    let mut rig = Rig::new();
    for (error, status) in [(ErrorCode::TARGET_IS_RESERVED, 0x18), (ErrorCode::BAD_ARGUMENT, 2)] {
        rig.submit(write_10(0, 1), 0, 512);
        let frame = rig.sent().pop().unwrap();
        let header = Header::view(&frame).unwrap().answer(THEIRS, TARGET, error);
        rig.receive(header.as_bytes());
        let Outcome::Status { status: ended, .. } = rig.completion().outcome else { panic!() };
        assert_eq!(ended, status);
    }
}

#[test]
fn a_failed_piece_ends_the_command_when_nothing_of_it_is_on_its_way() {
    let mut rig = Rig::new();
    rig.submit(write_10(0, 20), 0, 20 * 512);
    let frames = rig.sent();
    rig.disk.error = error::UNC;
    let bad = rig.disk.answer(&frames[1]);
    rig.receive(&bad);
    assert!(rig.sent().is_empty(), "there is no use in more");
    rig.disk.error = 0;
    for at in [0, 2, 3] {
        assert!(rig.machine.poll().is_none(), "its data may still be read");
        let answer = rig.disk.answer(&frames[at]);
        rig.receive(&answer);
    }
    assert_eq!(rig.sense(), (SenseKey::MediumError, 0x0c00));
}

#[test]
fn lost_requests_are_retransmitted_with_their_tag_and_a_smaller_window() {
    let mut rig = Rig::new();
    rig.submit(read_10(0, 12), 12 * 512, 0);
    let first = rig.sent();
    let answer = rig.disk.answer(&first[2]);
    rig.receive(&answer);
    let more = rig.sent();
    assert_eq!(more.len(), 1);
    rig.later();
    let again = rig.sent();
    assert_eq!(again.len(), 2, "half of the window");
    assert_eq!(again, [first[0].clone(), first[1].clone()]);
    for frame in &again {
        let answer = rig.disk.answer(frame);
        rig.receive(&answer);
        rig.receive(&answer);
    }
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
    assert_eq!(rig.placed(12 * 512), rig.disk.bytes[..12 * 512]);
    assert!(rig.machine.poll().is_none(), "it ends once");
}

#[test]
fn a_silent_target_is_queried_less_and_less_often_and_then_lost() {
    let mut rig = Rig::new();
    rig.submit(read_10(0, 1), 512, 0);
    let start = rig.now;
    let mut frames = Vec::new();
    while !rig.machine.is_over() {
        let is_query = |frame: &Vec<u8>| Header::view(frame).unwrap().command == AoeCommand::CONFIG;
        frames.extend(rig.sent().into_iter().filter(|frame| !is_query(frame)));
        rig.later();
    }
    assert!(rig.now.since(start) >= CONFIG.lost_after);
    assert!(frames.iter().all(|frame| tag(frame) == tag(&frames[0])));
    assert!((10..30).contains(&frames.len()), "{}", frames.len());
    let Some(Event::Gone { reason }) = rig.machine.poll() else { panic!() };
    assert_eq!(reason, "no answer from the AoE target 7.1 within 10000 ms");
    assert!(rig.machine.poll().is_none());
}

#[test]
fn an_idle_target_is_sent_a_ping() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        let frame = loop {
            rig.later();
            if let Some(frame) = rig.sent().pop() {
                break frame;
            }
        };
        assert_eq!(Header::view(&frame).unwrap().command, AoeCommand::CONFIG);
        assert_eq!(&frame[..6], &THEIRS.0, "not all stations");
        let answer = rig.disk.answer(&frame);
        rig.receive(&answer);
    }
    assert!(rig.sent().is_empty() && !rig.machine.is_over());
    let since = rig.now;
    while !rig.machine.is_over() {
        rig.sent();
        rig.later();
    }
    let took = rig.now.since(since);
    assert!(took >= CONFIG.lost_after && took <= 2 * CONFIG.lost_after + CONFIG.idle, "{took:?}");
}

#[test]
fn a_target_that_is_slow_is_not_lost() {
    let mut rig = Rig::new();
    // As many as the target can queue: the ping needs no room.
    let tasks: Vec<_> = (0..BUFFERS).map(|_| rig.submit(read_10(0, 1), 512, 0)).collect();
    let (since, mut frames) = (rig.now, BTreeMap::new());
    while rig.now.since(since) < 10 * CONFIG.lost_after {
        for frame in rig.sent() {
            match Header::view(&frame).unwrap().command {
                AoeCommand::CONFIG => {
                    let answer = rig.disk.answer(&frame);
                    rig.receive(&answer);
                }
                _ => drop(frames.insert(tag(&frame), frame)),
            }
        }
        rig.later();
    }
    assert_eq!((frames.len(), rig.machine.poll()), (tasks.len(), None));
    for frame in frames.values() {
        let answer = rig.disk.answer(frame);
        rig.receive(&answer);
    }
    tasks.iter().for_each(|_| assert_eq!(rig.completion().outcome, GOOD));
}

#[test]
fn an_initiator_that_slept_does_not_declare_the_target_lost() {
    let mut rig = Rig::new();
    rig.submit(read_10(0, 1), 512, 0);
    rig.sent();
    rig.now = rig.now.after(100 * CONFIG.lost_after);
    rig.machine.tick(rig.now);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
}

/// Whatever a target answers, a command ends at most once, and no copy is out of bounds.
#[test]
fn a_wild_target_breaks_nothing() {
    let mut ended = 0;
    for seed in 1..400u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % limit
        };
        let mut rig = Rig::with(CONFIG);
        rig.disk.identity.trim_sectors = 2;
        if seed % 4 != 0 {
            rig.log_in();
        }
        let mut in_flight = BTreeSet::new();
        for _ in 0..40 {
            let identify = PassThrough::new(Registers::new(wire::ata::Command::IdentifyDevice, 0, 1));
            let identify = PassThrough { check_condition: true, ..identify };
            let commands: [(Cdb, u32, u32); 11] = [
                (read_10(1, 5).into(), 2560, 0),
                (Write10 { fua: true, ..write_10(3, 9) }.into(), 0, 4608),
                (ReadCapacity10::new().into(), 8, 0),
                (Inquiry::page(vpd::page::IDENTIFICATION, 252).into(), 252, 0),
                (Verify10::new(3, 60).into(), 0, 0),
                (Unmap::new(40).into(), 0, 40),
                (ModeSelect6::new(24).into(), 0, 24),
                (identify.to_cdb().unwrap(), 512, 0),
                (Order { kind: OrderKind::SetConfig, argument_bytes: 9 }.cdb(), 1024, 9),
                (Query { kind: QueryKind::Test, argument_bytes: 9 }.cdb(), 1024, 9),
                (Order { kind: OrderKind::ReadMask, argument_bytes: 0 }.cdb(), 1024, 0),
            ];
            let (cdb, read, write) = commands[below(commands.len())];
            if below(3) == 0 {
                // A list for UNMAP that is partly invalid.
                rig.memory[..24].copy_from_slice(&[0; 24]);
                (rig.memory[3], rig.memory[15], rig.memory[19]) = (16 * below(3) as u8, below(70) as u8, 3);
            }
            in_flight.extend(rig.machine.submit(rig.request(cdb, read, write)));
            for frame in rig.sent() {
                let mut answer = rig.disk.answer(&frame);
                for _ in 0..below(4) {
                    // Mostly in the headers, from version and flags on.
                    let at = if below(3) == 0 { below(answer.len()) } else { 14 + below(22) };
                    if let Some(byte) = answer.get_mut(at) {
                        *byte ^= 1 << below(8);
                    }
                }
                if below(4) == 0 {
                    answer.truncate(below(answer.len() + 1));
                }
                rig.receive(&answer);
            }
            while let Some(event) = rig.machine.poll() {
                if let Event::Completed(done) = event {
                    assert!(in_flight.remove(&done.task), "a command ends once");
                    ended += 1;
                }
            }
            if !rig.machine.is_over() && below(3) == 0 {
                rig.later();
            }
        }
    }
    assert!(ended > 1000, "{ended}");
}

#[test]
fn frames_that_are_no_answer_are_ignored() {
    let mut rig = Rig::new();
    rig.submit(read_10(0, 2), 1024, 0);
    let request = rig.sent().pop().unwrap();
    let good = rig.disk.answer(&request);
    for len in 0..good.len() {
        rig.receive(&good[..len]);
    }
    // Version, response, shelf, slot, command, lane, generation, slot of the tag; the sender.
    for at in [14, 16, 18, 19, 20, 22, 23, 11] {
        let mut other = good.clone();
        other[at] ^= 0x19;
        rig.receive(&other);
    }
    rig.receive(&request);
    assert!(rig.machine.poll().is_none());
    rig.receive(&good);
    assert_eq!(rig.completion().outcome, GOOD);
}

#[test]
fn a_session_that_is_over_takes_and_sends_nothing() {
    let mut rig = Rig::new();
    rig.submit(read_10(0, 2), 1024, 0);
    let request = rig.sent().pop().unwrap();
    rig.machine.logout();
    rig.machine.closed("the interface is gone");
    let answer = rig.disk.answer(&request);
    rig.receive(&answer);
    assert!(rig.machine.transmit(rig.now).is_none() && !rig.machine.owes());
    assert!(rig.machine.submit(rig.request(read_10(0, 1), 512, 0)).is_none());
    assert_eq!(rig.machine.poll(), Some(Event::Gone { reason: "logged out".into() }));
    assert!(rig.machine.poll().is_none());
}

#[test]
fn a_target_whose_frames_have_shrunk_is_rediscovered() {
    let reason = |rig: &mut Rig| match rig.machine.poll() {
        Some(Event::Gone { reason }) => reason,
        other => panic!("{other:?}"),
    };
    // It reports that when it is pinged: writes that are too long never reach it.
    let mut rig = Rig::new();
    rig.submit(write_10(0, 2), 0, 1024);
    while !rig.machine.is_over() {
        for frame in rig.sent() {
            let header = Header::view(&frame).unwrap();
            if header.command == AoeCommand::CONFIG {
                let mut answer = rig.disk.answer(&frame);
                answer[28] = 1;
                rig.receive(&answer);
            }
        }
        if !rig.machine.is_over() {
            rig.later();
        }
    }
    assert!(rig.now.since(Time(0)) < 2 * CONFIG.idle);
    assert!(reason(&mut rig).contains("smaller"));

    // Or it refuses a read.
    let mut rig = Rig::new();
    rig.submit(read_10(0, 2), 1024, 0);
    let request = rig.sent().pop().unwrap();
    let header = Header::view(&request).unwrap();
    let refusal = header.answer(THEIRS, TARGET, ErrorCode::BAD_ARGUMENT);
    rig.receive(&[refusal.as_bytes(), &request[24..36]].concat());
    assert!(reason(&mut rig).contains("size"));
}
