//! One session against a layer above that is played by hand.

use super::*;
use crate::verbs::{Command as UpCommand, Ending};
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
/// Of the ring of received frames, and of the layer above.
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
            // Good enough to tell data from other data.
            crc32c: |bytes| bytes.iter().fold(1, |sum, byte| sum.wrapping_mul(31) ^ u32::from(*byte)),
        };
        Session { target: Target::new(config), frames: 0, held: Vec::new() }
    }

    /// A frame comes in. Frames that are free again are taken back before.
    fn receive_at(&mut self, now: Time, frame: &[u8]) -> bool {
        self.take_back();
        self.frames += 1;
        let place =
            Span { buffer: RING, len: u32::try_from(frame.len()).unwrap(), offset: self.frames << 16 };
        let keeps = self.target.receive(now, frame, place);
        self.held.extend(keeps.then_some(place));
        keeps
    }

    fn receive(&mut self, frame: &[u8]) -> bool {
        self.receive_at(NOW, frame)
    }

    fn take_back(&mut self) {
        while let Some(place) = self.target.freed() {
            let at = self.held.iter().position(|held| *held == place).expect("it was held");
            self.held.swap_remove(at);
        }
    }

    /// The command that came of the last frame.
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

    /// The headers of the next frame that is sent, which has no payload.
    fn answer(&mut self) -> Option<Vec<u8>> {
        let frame = self.target.transmit()?;
        assert!(frame.payload.is_empty() && frame.task.is_none());
        Some(frame.header().to_vec())
    }

    /// Nothing is left behind.
    fn finish(mut self) {
        self.take_back();
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

/// A write of one sector that is full of this byte.
fn write(tag: u32, lba: u64, byte: u8) -> Vec<u8> {
    ata(tag, &Registers::new(wire::ata::Command::WriteSectorsExt, lba, 1), &[byte; 512])
}

fn registers(command: &UpCommand) -> Registers {
    PassThrough::from_cdb(&command.cdb).unwrap().registers
}

/// The tag, the ATA section, and the error of an answer.
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
    session.take_back();
    assert!(session.held.is_empty());
    session.end(task, 0, None);
    let (tag, section, error) = ata_answer(&session.answer().unwrap());
    assert_eq!((tag, section.command, error), (7, status::DRDY, ErrorCode::NONE));
    session.finish();
}

#[test]
fn a_borrowed_frame_stays_until_it_is_given_back() {
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
    session.take_back();
    assert_eq!(session.held.len(), 2, "its answer has left, but a store still reads it");
    session.target.give_back(tasks[0]);
    session.target.give_back(tasks[0]);
    session.target.give_back(tasks[1]);
    session.take_back();
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
        session.take_back();
        assert_eq!(session.held.len(), usize::from(stage == 2));
        session.target.give_back(task);
        session.end(task, 0, None);
        assert_eq!(session.answer(), None, "it is no more");
    }
    session.receive(&read(9, 1, 1));
    let task = session.command().task;
    session.push(task, 512);
    session.target.down(NOW, Down::Abort { task });
    assert!(session.target.transmit().is_none() && session.target.poll().is_none());
    session.finish();
}

#[test]
fn a_copy_of_a_request_in_flight_is_dropped() {
    let mut session = Session::new(4);
    for frame in [write(1, 5, 1), read(2, 5, 1)] {
        session.receive(&frame);
        let task = session.command().task;
        for _ in 0..100 {
            assert!(!session.receive(&frame));
        }
        assert!(session.target.poll().is_none());
        session.end(task, 0, None);
        assert!(!session.receive(&frame), "its answer has not left yet");
        assert!(session.target.poll().is_none());
        assert!(session.answer().is_some());
        assert_eq!(session.answer(), None);
    }
    assert_eq!(session.target.counts().copies, 202);
    assert!(!session.receive(&read(2, 5, 1)), "a read that was answered is read again");
    let task = session.command().task;
    session.end(task, 0, None);
    assert!(session.answer().is_some());
    session.finish();
}

#[test]
fn one_tag_may_name_other_requests_in_flight() {
    let mut session = Session::new(8);
    for frame in [write(1, 5, 1), write(1, 5, 2), write(1, 6, 1), read(1, 5, 1), read(1, 5, 2)] {
        session.receive(&frame);
        session.command();
    }
    assert_eq!(session.target.counts().copies, 0);
}

/// A newer write may have gone over it.
#[test]
fn a_late_copy_of_a_write_is_answered_and_not_executed() {
    let mut session = Session::new(4);
    let execute = |session: &mut Session, frame: &[u8]| {
        assert!(session.receive(frame));
        let task = session.command().task;
        session.end(task, 0, None);
        session.answer().unwrap()
    };
    let first = execute(&mut session, &write(1, 5, 0xaa));
    execute(&mut session, &write(2, 5, 0xbb));
    for _ in 0..3 {
        assert!(!session.receive(&write(1, 5, 0xaa)));
        assert!(session.target.poll().is_none(), "the newer data stays");
        assert_eq!(session.answer(), Some(first.clone()));
    }
    execute(&mut session, &write(1, 5, 0xcc));
    execute(&mut session, &write(1, 5, 0xaa));
    session.receive_at(NOW.after(Duration::from_secs(6)), &write(1, 5, 0xaa));
    session.command();
}

#[test]
fn a_write_that_failed_is_not_tried_again_by_a_copy() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    session.end(task, 0x18, None);
    let answer = session.answer();
    assert!(!session.receive(&write(1, 5, 1)));
    assert_eq!(session.answer(), answer);
    session.finish();
}

/// Linux gives each copy a tag of its own, and listens to the last. Executed on its own, the first could be done after a
/// newer write that followed the answer to the second.
#[test]
fn copies_of_a_write_under_other_tags_are_one_write() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    for tag in 2..=6 {
        assert!(!session.receive(&write(tag, 5, 1)));
        assert!(!session.receive(&write(tag, 5, 1)));
    }
    assert!(session.target.poll().is_none());
    session.end(task, 0, None);
    let mut tags = Vec::new();
    while let Some(headers) = session.answer() {
        tags.push(ata_answer(&headers).0);
    }
    assert_eq!(tags, [1, 2, 3, 6], "the newest is among them");
    for tag in [1, 6] {
        assert!(!session.receive(&write(tag, 5, 1)), "each is remembered");
        assert_eq!(ata_answer(&session.answer().unwrap()).0, tag);
    }
    session.finish();
}

#[test]
fn a_copy_that_came_before_the_answer_left_is_not_executed_when_it_comes_again() {
    let mut session = Session::new(4);
    assert!(session.receive(&write(7, 1, 0xaa)));
    let UpCommand { task, .. } = session.command();
    session.end(task, 0, None);
    assert!(!session.receive(&write(8, 1, 0xaa)));
    for tag in [7, 8] {
        assert_eq!(ata_answer(&session.answer().unwrap()).0, tag);
    }
    for tag in [7, 8] {
        assert!(!session.receive(&write(tag, 1, 0xaa)), "{tag}");
        assert_eq!(ata_answer(&session.answer().unwrap()).0, tag);
    }
    session.finish();
}

#[test]
fn a_write_is_executed_when_an_answer_to_its_like_has_left() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    session.receive(&write(2, 5, 1));
    session.end(task, 0, None);
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 1);
    session.receive(&write(3, 5, 1));
    let task = session.command().task;
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 2);
    session.end(task, 0, None);
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 3);
    session.finish();
}

#[test]
fn requests_without_a_slot_are_dropped() {
    let mut session = Session::new(2);
    assert_eq!(session.target.config.slots(), 4);
    let frames: Vec<_> = (0..10).map(|tag| write(tag, u64::from(tag), 1)).collect();
    let kept = frames.iter().filter(|frame| session.receive(frame)).count();
    assert_eq!((kept, session.target.counts().crowded), (4, 6));
    for _ in 0..4 {
        let Some(Up::Command(command)) = session.target.poll() else { panic!("a command") };
        assert!(command.task.slot < 4);
        session.end(command.task, 0, None);
        assert!(session.answer().is_some());
    }
    assert!(session.receive(&frames[9]), "it comes again");
    let task = session.command().task;
    session.end(task, 0, None);
    assert!(session.answer().is_some());
    session.finish();
}

#[test]
fn lengths_are_judged() {
    let mut session = Session::new(4);
    let long = Registers::new(wire::ata::Command::ReadSectorsExt, 0, 3);
    let zero = Registers::new(wire::ata::Command::ReadSectors, 0, 0);
    let two = Registers::new(wire::ata::Command::WriteSectorsExt, 0, 2);
    let short = ata(9, &two, &[1; 1023]);
    for frame in [ata(9, &long, &[]), ata(9, &zero, &[]), short.clone(), ata(9, &long, &[1; 1536])] {
        assert!(!session.receive(&frame));
        let headers = session.answer().unwrap();
        let (tag, section, error) = ata_answer(&headers);
        assert_eq!((tag, error), (9, ErrorCode::BAD_ARGUMENT));
        assert_eq!(section.as_bytes(), &frame[24..36]);
    }
    let mut padded = ata(9, &two, &[1; 1024]);
    padded.extend([0; 40]);
    assert!(session.receive(&padded));
    assert!(matches!(session.target.poll(), Some(Up::Refused { .. })));
    let task = session.command().task;
    assert_eq!(session.target.immediate(task).unwrap().len, 1024);
    assert_eq!(session.target.counts().refused, 4);
}

#[test]
fn frames_of_every_length_are_judged() {
    let set = frame(Command::CONFIG, 3, b"\0\0\0\0\0\x13\0\x40", &[b'x'; 64]);
    for whole in [write(1, 5, 1), read(2, 5, 1), set] {
        let mut session = Session::new(4);
        let mut commands = 0;
        for len in 0..whole.len() {
            session.receive(&whole[..len]);
            while let Some(event) = session.target.poll() {
                commands += usize::from(matches!(event, Up::Command(_)));
            }
            while let Some(headers) = session.answer() {
                assert_eq!(headers[15], 2, "the data is too short");
            }
        }
        let is_read = usize::from(whole.len() == 60);
        assert_eq!(commands, is_read);
    }
}

#[test]
fn what_is_wrong_is_refused_or_dropped_and_told_now_and_then() {
    let mut session = Session::new(4);
    let with = |at: usize, byte: u8| {
        let mut frame = read(1, 5, 1);
        frame[at] = byte;
        frame
    };
    for (frame, error) in [(with(14, 0x20), 5), (with(19, 77), 1)] {
        session.receive(&frame);
        let headers = session.answer().unwrap();
        assert_eq!(
            (headers[14], headers[15], headers.len()),
            (0x1c, error, if error == 1 { 24 } else { 36 })
        );
    }
    for (frame, error) in [
        (frame(Command::MASK, 1, &[0, 2, 0, 0], &[]), 2),
        (frame(Command::RESERVE, 1, &[3, 0], &[]), 2),
        (frame(Command::RESERVE, 1, &[1, 129], &[0; 774]), 2),
        (frame(Command::MASK, 1, &[0, 1, 0, 40], &[0; 319]), 2),
        (frame(Command::CONFIG, 1, b"\0\0\0\0\0\x14\x04\x01", &[0; 1025]), 2),
    ] {
        session.receive(&frame);
        assert_eq!(session.answer().unwrap()[15], error);
    }
    let query = frame(Command::CONFIG, 1, b"\0\0\0\0\0\x10\0\0", &[]);
    let dropped = [with(14, 0x18), with(12, 8), with(11, 8), with(17, 9), with(16, 0xff), with(6, 3), query];
    for frame in &dropped {
        session.receive(frame);
        assert_eq!(session.answer(), None);
    }
    assert_eq!(session.target.counts().refused, 14);
    assert!(matches!(session.target.poll(), Some(Up::Refused { .. })));
    assert!(session.target.poll().is_none(), "once a second");
    session.receive_at(NOW.after(Duration::from_secs(1)), &dropped[0]);
    let Some(Up::Refused { reason }) = session.target.poll() else { panic!("it is told again") };
    assert_eq!(reason, "answer to no request (AoEr11 section 2.3)");
    session.finish();
}

#[test]
fn a_flood_takes_no_memory() {
    let mut session = Session::new(2);
    let bad = frame(Command::RESERVE, 1, &[3, 0], &[]);
    for tag in 0..10_000 {
        session.receive(&bad);
        session.receive(&read(tag, 5, 1));
        session.receive(&write(tag, 5, 1));
    }
    let target = &session.target;
    assert_eq!(target.replies.len(), REPLIES_MAX);
    assert_eq!(target.up.len(), 4 + 1);
    assert!(session.held.len() <= 4);
}

#[test]
fn config_strings_are_set_by_an_order() {
    let mut session = Session::new(4);
    assert!(session.receive(&frame(Command::CONFIG, 3, b"\0\0\0\0\0\x13\0\x04", b"disk")));
    let place = session.held[0];
    let command = session.command();
    let order = Order { kind: OrderKind::SetConfig, argument_bytes: 4 };
    assert_eq!(Order::from_cdb(&command.cdb), Some(order));
    assert_eq!((command.read_bytes, command.write_bytes), (1024, 4));
    assert_eq!(session.target.immediate(command.task), Some(place.slice(32, 4)));
    session.push(command.task, 4);
    let answer = session.target.transmit().unwrap();
    assert_eq!(answer.header()[24..], *b"\x00\x04\x40\x16\x02\x13\x00\x04");
    assert_eq!((answer.payload, answer.header()[14]), (buffer(4), 0x18));
    assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));

    session.receive(&frame(Command::CONFIG, 4, b"\0\0\0\0\0\x14\0\0", &[]));
    let command = session.command();
    let present = Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT).sense();
    session.end(command.task, 2, Some(present));
    let headers = session.answer().unwrap();
    assert_eq!((headers[14], headers[15], headers.len()), (0x1c, 4, 32));
    assert_eq!(headers[29], 0x10 | ConfigCommand::FORCE_SET.0);
    session.finish();
}

#[test]
fn masks_are_edited_by_an_order() {
    let mut session = Session::new(4);
    let directives = [[0, 1, 2, 0, 0, 0, 0, 9], [0, 2, 2, 0, 0, 0, 0, 8]].concat();
    session.receive(&frame(Command::MASK, 3, &[0, 1, 0, 2], &directives));
    let command = session.command();
    assert_eq!(Order::from_cdb(&command.cdb), Some(Order { kind: OrderKind::EditMask, argument_bytes: 16 }));
    session.push(command.task, 24);
    let answer = session.target.transmit().unwrap();
    assert_eq!((&answer.header()[24..], answer.payload.len()), (&[0, 1, 0, 3][..], 24));
    assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));

    session.receive(&frame(Command::MASK, 4, &[0, 1, 0, 2], &directives));
    let command = session.command();
    let full = Refusal::Mask { error: MaskError::LIST_FULL, done: 1 };
    session.end(command.task, 2, Some(full.sense()));
    let headers = session.answer().unwrap();
    assert_eq!((headers[14], &headers[24..]), (0x18, &[0, 1, 3, 1][..]));

    session.receive(&frame(Command::MASK, 5, &[0, 0, 0, 200], &[]));
    let command = session.command();
    assert_eq!((command.read_bytes, command.write_bytes), (1024, 0));
    session.end(command.task, 0, None);
    assert_eq!(session.answer().unwrap()[24..], [0, 0, 0, 0], "an empty list");
    session.finish();
}

#[test]
fn targets_are_reserved_by_an_order() {
    let mut session = Session::new(4);
    session.receive(&frame(Command::RESERVE, 3, &[1, 1], &PEER.0));
    let command = session.command();
    assert_eq!(session.target.immediate(command.task).map(|data| data.len), Some(6));
    session.end(command.task, 0x18, None);
    let headers = session.answer().unwrap();
    assert_eq!((headers[14], headers[15], &headers[24..]), (0x1c, 6, &[1, 0][..]));

    session.receive(&frame(Command::RESERVE, 4, &[2, 1], &PEER.0));
    let command = session.command();
    session.push(command.task, 6);
    let answer = session.target.transmit().unwrap();
    assert_eq!(answer.header()[24..], [ReserveCommand::FORCE_SET.0, 1]);
    assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));

    session.receive(&frame(Command::RESERVE, 5, &[0, 0], &[]));
    let command = session.command();
    session.end(command.task, 2, None);
    assert_eq!(session.answer().unwrap()[15], 3, "it could not be done");
    session.finish();
}

/// The lists may be others' by now.
#[test]
fn a_late_copy_of_an_order_changes_nothing() {
    let mut session = Session::new(4);
    let directives = [0, 1, 2, 0, 0, 0, 0, 9];
    for (done, asked) in [
        (frame(Command::RESERVE, 3, &[1, 1], &PEER.0), OrderKind::ReadReserve),
        (frame(Command::RESERVE, 4, &[2, 1], &PEER.0), OrderKind::ReadReserve),
        (frame(Command::MASK, 5, &[0, 1, 0, 1], &directives), OrderKind::ReadMask),
        (frame(Command::CONFIG, 6, b"\0\0\0\0\0\x14\0\x04", b"disk"), OrderKind::SetConfig),
    ] {
        assert!(session.receive(&done));
        let followed = session.command();
        session.push(followed.task, 16);
        let answer = session.target.transmit().unwrap();
        assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));
        session.receive(&done);
        let given_up = session.command().task;
        session.target.down(NOW, Down::Abort { task: given_up });
        for _ in 0..2 {
            session.receive(&done);
            let command = session.command();
            assert!(!session.receive(&done) && session.target.poll().is_none());
            assert_eq!(Order::from_cdb(&command.cdb).unwrap().kind, asked);
            assert_eq!((command.read_bytes, command.lun), (followed.read_bytes, 0));
            session.push(command.task, 16);
            let again = session.target.transmit().unwrap();
            assert_eq!((again.header(), again.payload), (answer.header(), answer.payload));
            assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));
        }
    }
    let release = frame(Command::RESERVE, 7, &[1, 0], &[]);
    session.receive(&release);
    let task = session.command().task;
    session.end(task, 0, None);
    let answer = session.answer();
    session.receive(&release);
    assert!(session.target.poll().is_none());
    assert_eq!(session.answer(), answer);
    session.finish();
}

#[test]
fn a_session_ends_when_nothing_is_in_flight() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    session.target.down(NOW, Down::Goodbye { within_seconds: 3 });
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
            session.target.down(NOW, Down::Goodbye { within_seconds: 3 });
            session.target.tick(NOW);
            assert!(!session.target.is_over());
            session.target.tick(NOW.after(Duration::from_secs(3)));
        }
        assert!(matches!(session.target.poll(), Some(Up::Gone { .. })));
        assert!(session.target.is_over() && session.target.deadline().is_none());
        session.take_back();
        assert!(session.held.len() == 1 && !session.target.is_idle());
        session.target.give_back(task);
        session.finish();
    }
}

/// An initiator as Linux is: one write of a sector at a time, each copy with a new tag, and an ear for the newest only.
/// The segment loses frames and keeps their order; the store takes its time with each write.
struct Linux {
    session: Session,
    /// What each sector holds, and what it must hold after the write that was answered last.
    store: [u8; 3],
    expected: [u8; 3],
    /// The writes that were not answered, and their newest tags.
    waiting: [Option<(u8, u32)>; 3],
    tag: u32,
    value: u8,
    requests: VecDeque<(u32, usize, u8)>,
    answers: VecDeque<u32>,
    running: Vec<(TaskId, usize, u8)>,
}

impl Linux {
    fn new() -> Linux {
        Linux {
            session: Session::new(2),
            store: [0; 3],
            expected: [0; 3],
            waiting: [None; 3],
            tag: 0,
            value: 0,
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            running: Vec::new(),
        }
    }

    fn step(&mut self, what: u8, which: usize) {
        let sector = which % self.store.len();
        match what {
            0 => {
                if self.waiting[sector].is_none() {
                    self.value = self.value.wrapping_add(1);
                }
                let value = self.waiting[sector].map_or(self.value, |(value, _)| value);
                self.tag += 1;
                self.waiting[sector] = Some((value, self.tag));
                self.requests.push_back((self.tag, sector, value));
            }
            1 => self.request(),
            2 if !self.running.is_empty() => {
                let (task, sector, value) = self.running.swap_remove(which % self.running.len());
                self.store[sector] = value;
                self.session.end(task, 0, None);
            }
            3 => self.answers.extend(self.session.answer().map(|headers| ata_answer(&headers).0)),
            4 => self.answer(),
            5 if which == 0 => drop(self.requests.pop_front()),
            6 if which == 0 => drop(self.answers.pop_front()),
            _ => {}
        }
    }

    fn request(&mut self) {
        let Some((tag, sector, value)) = self.requests.pop_front() else { return };
        self.session.receive(&write(tag, sector as u64, value));
        if let Some(Up::Command(command)) = self.session.target.poll() {
            self.running.push((command.task, sector, value));
        }
    }

    fn answer(&mut self) {
        let Some(tag) = self.answers.pop_front() else { return };
        let is_it = |waiting: &Option<(u8, u32)>| waiting.is_some_and(|(_, newest)| newest == tag);
        let Some(sector) = self.waiting.iter().position(is_it) else { return };
        self.expected[sector] = self.waiting[sector].take().unwrap().0;
        assert_eq!(self.store[sector], self.expected[sector]);
        assert!(self.running.iter().all(|(_, other, _)| *other != sector), "nothing may go over it");
    }
}

proptest! {
    #[test]
    fn an_answered_write_stays_however_it_was_sent(steps in prop::collection::vec((0u8..7, 0usize..12), 0..600)) {
        let mut linux = Linux::new();
        for (what, which) in steps {
            linux.step(what, which);
        }
        while linux.waiting.iter().any(Option::is_some) {
            for sector in 0..3 {
                if linux.waiting[sector].is_some() {
                    linux.step(0, sector);
                }
            }
            (0..40).for_each(|n| linux.step(1 + n % 4, 1));
        }
        prop_assert_eq!(linux.store, linux.expected);
    }
}
