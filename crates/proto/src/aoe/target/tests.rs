//! One session against an engine played by hand.

mod copies;
mod limits;
mod orders;

use super::*;
use crate::services::{Command as UpCommand, Ending};
use proptest::prelude::*;
use wire::aoe::{
    Command, ConfigCommand, ErrorCode, Header, MaskError, Order, OrderKind, Refusal, ReserveCommand,
};
use wire::ata::{PassThrough, Registers, Section, StatusReturn, status};
use wire::iwarp::Layout;
use wire::{BufferId, Places, Sense, SenseData, SenseKey};
use zerocopy::IntoBytes;

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const E1_2: Address = Address { shelf: 1, slot: 2 };
const NOW: Time = Time(1_000_000_000);
/// Buffers of the ring of received frames, and of the engine.
const RING: BufferId = BufferId(7);
const BUFFERS: BufferId = BufferId(8);

/// GOOD, CHECK CONDITION, BUSY, RESERVATION CONFLICT, TASK SET FULL, TASK ABORTED.
const STATUSES: [u8; 6] = [0, 2, 8, 0x18, 0x28, 0x40];

/// A session and the frames of its ring.
struct Session {
    target: Target,
    frames: u64,
    held: Vec<Span>,
}

impl Session {
    fn new(buffers: u16) -> Session {
        let config = Config {
            address: E1_2,
            ours: OURS,
            peer: PEER,
            buffers,
            sectors_max: 2,
            firmware: 0x4016,
            // Good enough to distinguish data.
            crc32c: |bytes| bytes.iter().fold(1, |sum, byte| sum.wrapping_mul(31) ^ u32::from(*byte)),
        };
        Session { target: Target::new(config), frames: 0, held: Vec::new() }
    }

    /// A frame arrives. Frames that are free again are returned first.
    fn receive_at(&mut self, now: Time, frame: &[u8]) -> bool {
        self.reclaim();
        self.frames += 1;
        let place =
            Span { buffer: RING, len: u32::try_from(frame.len()).unwrap(), offset: self.frames << 16 };
        let keeps = self.target.receive(now, Stamp(now.0), frame, place);
        self.held.extend(keeps.then_some(place));
        keeps
    }

    fn receive(&mut self, frame: &[u8]) -> bool {
        self.receive_at(NOW, frame)
    }

    fn reclaim(&mut self) {
        while let Some(place) = self.target.freed() {
            let at = self.held.iter().position(|held| *held == place).expect("it was held");
            self.held.swap_remove(at);
        }
    }

    /// The command that resulted from the last frame.
    fn command(&mut self) -> UpCommand {
        let Some(Up::Command(command)) = self.target.poll() else { panic!("a command") };
        assert!(self.target.poll().is_none());
        command
    }

    fn end(&mut self, task: TaskId, status: u8, sense: Option<Sense>) {
        let ending = Ending { status, sense, read_bytes: 0, write_bytes: 0 };
        self.target.down(NOW, Down::End { task, ending });
    }

    fn push(&mut self, task: TaskId, len: u32) {
        let end = Some(Ending { status: 0, sense: None, read_bytes: u64::from(len), write_bytes: 0 });
        self.target.down(NOW, Down::Push { task, at: 0, from: buffer(len), end });
    }

    /// The headers of the next frame sent, which has no payload.
    fn answer(&mut self) -> Option<Vec<u8>> {
        let frame = self.target.transmit()?;
        assert!(frame.payload.is_empty() && frame.task.is_none());
        Some(frame.header().to_vec())
    }

    /// Checks that nothing is left behind.
    fn finish(mut self) {
        self.reclaim();
        assert!(self.held.is_empty() && self.target.is_idle() && !self.target.owes());
        assert!(self.target.poll().is_none());
    }
}

fn buffer(len: u32) -> Places {
    Places::one(Span { buffer: BUFFERS, len, offset: 0 })
}

fn frame(command: Command, tag: u32, argument: &[u8], data: &[u8]) -> Vec<u8> {
    let header = Header::request(PEER, OURS, E1_2, command, tag);
    let mut frame = [header.as_bytes(), argument, data].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ata(tag: u32, registers: &Registers, data: &[u8]) -> Vec<u8> {
    frame(Command::ATA, tag, Section::request(registers, !data.is_empty()).as_bytes(), data)
}

fn read(tag: u32, lba: u64, sectors: u16) -> Vec<u8> {
    ata(tag, &Registers::new(wire::ata::Command::ReadSectorsExt, lba, sectors), &[])
}

/// A write of one sector filled with this byte.
fn write(tag: u32, lba: u64, byte: u8) -> Vec<u8> {
    ata(tag, &Registers::new(wire::ata::Command::WriteSectorsExt, lba, 1), &[byte; 512])
}

fn registers(command: &UpCommand) -> Registers {
    PassThrough::from_cdb(&command.cdb).unwrap().registers
}

/// The tag, the ATA section and the error of an answer.
fn ata_answer(headers: &[u8]) -> (u32, Section, ErrorCode) {
    assert_eq!(headers.len(), 36);
    let header = Header::view(headers).unwrap();
    assert_eq!((header.destination, header.source, header.address()), (PEER, OURS, E1_2));
    assert!(header.is_response() && header.version() == 1 && header.command == Command::ATA);
    assert_eq!(header.refusal().is_some(), header.error != ErrorCode::NONE);
    (header.tag.get(), *Section::view(&headers[24..]).unwrap(), header.error)
}

#[test]
fn a_read_is_answered_with_its_data() {
    let mut session = Session::new(4);
    assert!(!session.receive(&read(7, 0x1234, 2)), "nothing of the frame is needed");
    let command = session.command();
    assert_eq!((command.lun, command.read_bytes, command.write_bytes), (0, 1024, 0));
    assert_eq!(command.cdb.opcode(), PassThrough::OPCODE);
    assert_eq!((registers(&command).lba, registers(&command).count), (0x1234, 2));
    assert_eq!(session.target.immediate(command.task), None);
    session.push(command.task, 1024);
    assert!(session.target.owes() && session.target.poll().is_none());
    let frame = session.target.transmit().unwrap();
    assert_eq!((frame.payload, frame.task), (buffer(1024), Some(command.task)));
    assert_eq!(frame.size_bytes(), 36 + 1024);
    let (tag, section, error) = ata_answer(frame.header());
    assert_eq!((tag, error, section.command, section.feature), (7, ErrorCode::NONE, status::DRDY, 0));
    assert_eq!((section.status_return().lba, section.count), (0x1234, 2));
    assert!(matches!(session.target.poll(), Some(Up::Pushed(task)) if task == command.task));
    session.finish();
}

#[test]
fn a_write_is_fetched_from_its_frame() {
    let mut session = Session::new(4);
    assert!(session.receive(&write(7, 1, 0xaa)));
    let place = session.held[0];
    let UpCommand { task, write_bytes, unsolicited_bytes, .. } = session.command();
    assert_eq!((write_bytes, unsolicited_bytes), (512, 0));
    assert_eq!(session.target.immediate(task), Some(place.slice(36, 512)));
    session.target.down(NOW, Down::Fetch { task, at: 0, into: buffer(500) });
    assert_eq!(session.target.immediate(task), None);
    assert_eq!(session.target.copy(), Some((place.slice(36, 500), buffer(500))));
    assert!(matches!(session.target.poll(), Some(Up::Fetched(id)) if id == task));
    assert!(session.target.freed().is_none(), "there is more in it");
    session.target.down(NOW, Down::Fetch { task, at: 500, into: buffer(12) });
    assert_eq!(session.target.copy(), Some((place.slice(536, 12), buffer(12))));
    assert!(matches!(session.target.poll(), Some(Up::Fetched(_))));
    session.reclaim();
    assert!(session.held.is_empty());
    session.end(task, 0, None);
    let (tag, section, error) = ata_answer(&session.answer().unwrap());
    assert_eq!((tag, section.command, error), (7, status::DRDY, ErrorCode::NONE));
    session.finish();
}

#[test]
fn what_a_task_changes_is_known_until_it_has_ended() {
    let mut session = Session::new(4);
    let trim = |tag: u32, byte: u8| {
        let registers = Registers::new(wire::ata::Command::DataSetManagement, 0, 1);
        ata(tag, &registers, &[byte; 512])
    };
    let order = frame(Command::RESERVE, 5, &[0, 0], &[]);
    let mut changes = Vec::new();
    for request in [write(1, 77, 1), read(2, 77, 1), trim(3, 1), trim(4, 2), order] {
        session.receive(&request);
        let task = session.command().task;
        changes.push(session.target.change(task).map(|change| {
            assert_eq!(change.received_at, Stamp(NOW.0));
            change.blocks
        }));
        session.end(task, 0, None);
        assert_eq!(session.target.change(task), None);
        assert!(session.answer().is_some());
    }
    assert_eq!((&changes[0], &changes[1], &changes[4]), (&Some(77..78), &None, &None));
    let lists = [&changes[2], &changes[3]].map(|list| list.clone().expect("it changes something"));
    assert!(lists.iter().all(|list| list.start >= 1 << 48) && lists[0] != lists[1], "{lists:?}");
    session.finish();
}

#[test]
fn a_borrowed_frame_stays_until_it_is_released() {
    let mut session = Session::new(4);
    session.receive(&write(1, 1, 1));
    session.receive(&write(2, 2, 2));
    let tasks: Vec<_> = std::iter::from_fn(|| match session.target.poll() {
        Some(Up::Command(command)) => Some(command.task),
        _ => None,
    })
    .collect();
    for (task, place) in tasks.iter().zip(session.held.clone()) {
        assert_eq!(session.target.borrow(*task), Some(place.slice(36, 512)));
        assert_eq!(session.target.borrow(*task), None);
    }
    session.end(tasks[0], 0, None);
    assert!(session.answer().is_some());
    session.reclaim();
    assert_eq!(session.held.len(), 2, "its answer has left, but a store still reads it");
    session.target.end_borrow(tasks[0]);
    session.target.end_borrow(tasks[0]);
    session.target.end_borrow(tasks[1]);
    session.reclaim();
    assert!(session.held.is_empty());
    session.end(tasks[1], 0, None);
    assert!(session.answer().is_some());
    session.finish();
}

#[test]
fn registers_come_back_from_sense_data() {
    let mut session = Session::new(4);
    let check = Registers::new(wire::ata::Command::CheckPowerMode, 0, 0);
    session.receive(&ata(1, &check, &[]));
    let task = session.command().task;
    let returned = StatusReturn { count: 0xff, ..StatusReturn::good(&check) };
    session.end(task, 2, Some(returned.available()));
    let (_, section, _) = ata_answer(&session.answer().unwrap());
    assert_eq!((section.count, section.command), (0xff, status::DRDY));

    session.receive(&read(2, 99, 1));
    let UpCommand { task, cdb, .. } = session.command();
    let registers = PassThrough::from_cdb(&cdb).unwrap().registers;
    let failed = StatusReturn::failed(&registers, wire::ata::error::IDNF);
    let data = SenseData {
        key: SenseKey::IllegalRequest,
        code: 0x2100,
        information: None,
        command_specific: None,
        specific: None,
    };
    session.end(task, 2, Some(failed.sense(&data)));
    let (_, section, error) = ata_answer(&session.answer().unwrap());
    assert_eq!((section.feature, section.command, error), (0x10, 0x41, ErrorCode::NONE));

    session.receive(&read(3, 99, 1));
    let task = session.command().task;
    session.end(task, 2, Some(Sense::fixed(&data)));
    let (_, section, _) = ata_answer(&session.answer().unwrap());
    assert_eq!((section.feature, section.command), (wire::ata::error::ABRT, 0x41), "no registers in it");
    session.finish();
}

#[test]
fn endings_that_ask_for_patience_have_no_answer() {
    for (tag, status) in (1u32..).zip(STATUSES) {
        let mut session = Session::new(4);
        session.receive(&write(tag, 1, 1));
        let task = session.command().task;
        session.end(task, status, None);
        let answer = session.answer().map(|headers| ata_answer(&headers));
        let expected = match status {
            0 => Some((status::DRDY, ErrorCode::NONE)),
            2 => Some((status::DRDY | status::ERR, ErrorCode::NONE)),
            0x18 => Some((wire::ata::Command::WriteSectorsExt.code(), ErrorCode::TARGET_IS_RESERVED)),
            _ => None,
        };
        assert_eq!(answer.map(|(_, section, error)| (section.command, error)), expected);
        if expected.is_none() {
            assert!(session.receive(&write(tag, 1, 1)), "it is executed when it comes again");
            let task = session.command().task;
            session.end(task, 0, None);
            assert!(session.answer().is_some());
        }
        session.finish();
    }
}

#[test]
fn an_aborted_task_has_no_answer_and_leaves_nothing() {
    let mut session = Session::new(4);
    for stage in 0..4 {
        session.receive(&write(stage, 1, 1));
        let task = session.command().task;
        match stage {
            0 => {}
            1 => session.target.down(NOW, Down::Fetch { task, at: 0, into: buffer(512) }),
            2 => assert!(session.target.borrow(task).is_some()),
            _ => session.end(task, 0, None),
        }
        session.target.down(NOW, Down::Abort { task });
        assert_eq!(session.target.copy(), None);
        assert_eq!(session.answer(), None);
        session.reclaim();
        assert_eq!(session.held.len(), usize::from(stage == 2));
        session.target.end_borrow(task);
        session.end(task, 0, None);
        assert_eq!(session.answer(), None, "it is no more");
    }
    session.receive(&read(9, 1, 1));
    let task = session.command().task;
    session.push(task, 512);
    session.target.down(NOW, Down::Abort { task });
    assert!(session.target.transmit().is_none() && session.target.poll().is_none());
    // The same when the engine reports that another has aborted it.
    session.receive(&read(10, 1, 1));
    let task = session.command().task;
    session.push(task, 512);
    session.end(task, 0x40, None);
    assert!(session.target.transmit().is_none() && session.target.poll().is_none());
    session.finish();
}

#[test]
fn a_session_ends_when_nothing_is_in_flight() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    session.target.down(NOW, Down::RequestLogout { within_seconds: 3 });
    assert!(!session.receive(&write(2, 5, 1)), "nothing is begun any more");
    assert_eq!(session.target.deadline(), Some(NOW.after(Duration::from_secs(3))));
    session.end(task, 0, None);
    assert!(session.target.poll().is_none());
    assert!(session.answer().is_some());
    assert!(matches!(session.target.poll(), Some(Up::Gone { .. })) && session.target.is_over());
    session.finish();
}

#[test]
fn frames_come_back_after_the_end() {
    for is_closed in [true, false] {
        let mut session = Session::new(4);
        session.receive(&write(1, 5, 1));
        let task = session.command().task;
        session.receive(&write(2, 5, 2));
        session.command();
        session.target.borrow(task).unwrap();
        if is_closed {
            session.target.down(NOW, Down::Close);
        } else {
            session.target.down(NOW, Down::RequestLogout { within_seconds: 3 });
            session.target.tick(NOW);
            assert!(!session.target.is_over());
            session.target.tick(NOW.after(Duration::from_secs(3)));
        }
        assert!(matches!(session.target.poll(), Some(Up::Gone { .. })));
        assert!(session.target.is_over() && session.target.deadline().is_none());
        session.reclaim();
        assert!(session.held.len() == 1 && !session.target.is_idle());
        session.target.end_borrow(task);
        session.finish();
    }
}
