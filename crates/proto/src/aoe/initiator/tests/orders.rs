//! Commands other than reads and writes: ATA commands that are passed through, AoE commands that are not ATA,
//! TRIM, VERIFY and MODE SELECT.

use super::*;
use wire::aoe::{
    Directive, DirectiveCommand, MaskArgument, MaskCommand, MaskError, Order, OrderKind, Query, QueryKind,
    Refusal, ReserveArgument, ReserveCommand,
};
use wire::ata::{Command, POWER_ACTIVE_OR_IDLE, PassThrough, Registers, TRIM, status as ata_status};
use wire::scsi::command::{ModeSelect6, ReadCapacity10, Unmap, Verify10, Verify16};

const OTHER: Mac = Mac([2, 0, 0, 0, 0, 7]);

impl Rig {
    /// Puts data-out into the places of [`Rig::request`].
    fn place(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(700));
        self.memory[..head.len()].copy_from_slice(head);
        self.memory[1000..][..rest.len()].copy_from_slice(rest);
    }

    fn give(&mut self, cdb: &Cdb, read: u32, data: &[u8]) -> TaskId {
        self.place(data);
        self.submit(cdb, read, data.len() as u32)
    }

    fn order(&mut self, kind: OrderKind, read: u32, data: &[u8]) -> Vec<u8> {
        self.give(&Order { kind, argument_bytes: data.len() as u32 }.cdb(), read, data);
        let frames = self.sent();
        assert_eq!(frames.len(), 1);
        frames.into_iter().next().unwrap()
    }

    fn pass(&mut self, pass: PassThrough, read: u32, data: &[u8]) -> Vec<u8> {
        self.give(&pass.to_cdb().unwrap(), read, data);
        self.sent().pop().unwrap()
    }

    /// Answers a request with this after its header.
    fn answer(&mut self, request: &[u8], rest: &[u8]) {
        let header = Header::view(request).unwrap().answer(THEIRS, TARGET, ErrorCode::NONE);
        self.receive(&[header.as_bytes(), rest].concat());
    }

    /// An ATA command has succeeded.
    fn succeed(&mut self, request: &[u8]) {
        let section = *Section::view(&request[24..]).unwrap();
        let end = StatusReturn::good(&section.registers());
        self.answer(request, Section::response(section.flags, &end).as_bytes());
    }

    fn refuse(&mut self, request: &[u8], error: ErrorCode) {
        let header = Header::view(request).unwrap().answer(THEIRS, TARGET, error);
        self.receive(header.as_bytes());
    }

    fn refusal(&mut self) -> Option<Refusal> {
        match self.completion().outcome {
            Outcome::Status { status: 2, sense: Some(sense) } => Refusal::from_sense(&sense),
            other => panic!("{other:?}"),
        }
    }
}

fn config(command: u8, string: &[u8]) -> Vec<u8> {
    let mut argument = vec![0, 4, 0, 1, 2, 0x10 | command, 0, string.len() as u8];
    argument.extend(string);
    argument
}

#[test]
fn a_config_string_is_set_and_returned() {
    let mut rig = Rig::new();
    let frame = rig.order(OrderKind::ForceConfig, 1024, b"a disk");
    assert_eq!(Header::view(&frame).unwrap().command, AoeCommand::CONFIG);
    assert_eq!(frame[24..], *b"\0\0\0\0\0\x14\0\x06a disk");
    rig.answer(&frame, &config(4, b"a disk"));
    let done = rig.completion();
    assert_eq!((done.outcome, done.read_bytes), (GOOD, 6));
    assert_eq!((done.residual, done.read_residual), (Residual::None, Residual::Underflow(1018)));
    assert_eq!(rig.placed(6), b"a disk");
    let frame = rig.order(OrderKind::SetConfig, 1024, b"another");
    rig.refuse(&frame, ErrorCode::CONFIG_STRING_PRESENT);
    assert_eq!(rig.refusal(), Some(Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT)));
    rig.give(&Query { kind: QueryKind::Read, argument_bytes: 0 }.cdb(), 4, &[]);
    let frame = rig.sent().pop().unwrap();
    rig.answer(&frame, &config(0, b"a disk"));
    let done = rig.completion();
    assert_eq!((done.read_bytes, done.residual), (4, Residual::Overflow(2)));
}

#[test]
fn lists_are_edited_and_returned() {
    let mut rig = Rig::new();
    let add = Directive { reserved: 0, command: DirectiveCommand::ADD, mac: OTHER };
    let frame = rig.order(OrderKind::EditMask, 1024, add.as_bytes());
    assert_eq!(frame[24..], [&[0, 1, 0, 1][..], add.as_bytes()].concat());
    let argument = MaskArgument { reserved: 0, command: MaskCommand::EDIT, error: MaskError::NONE, count: 1 };
    let entry = Directive { command: DirectiveCommand::NONE, ..add };
    let answer = [argument.as_bytes(), entry.as_bytes()].concat();
    rig.answer(&frame, &answer);
    assert_eq!((rig.completion().read_bytes, rig.placed(8)), (8, entry.as_bytes().to_vec()));
    let frame = rig.order(OrderKind::EditMask, 1024, add.as_bytes());
    let full = MaskArgument { error: MaskError::LIST_FULL, count: 3, ..argument };
    rig.answer(&frame, full.as_bytes());
    assert_eq!(rig.refusal(), Some(Refusal::Mask { error: MaskError::LIST_FULL, done: 3 }));

    let list = [OURS, OTHER];
    let frame = rig.order(OrderKind::SetReserve, 768, list.as_bytes());
    assert_eq!(frame[24..], [&[1, 2][..], list.as_bytes()].concat());
    rig.refuse(&frame, ErrorCode::TARGET_IS_RESERVED);
    assert_eq!(rig.completion().outcome, Outcome::Status { status: 0x18, sense: None });
    let frame = rig.order(OrderKind::ReadReserve, 768, &[]);
    assert_eq!(frame[24..], [0, 0]);
    let argument = ReserveArgument { command: ReserveCommand::READ, count: 2 };
    rig.answer(&frame, &[argument.as_bytes(), list.as_bytes()].concat());
    assert_eq!((rig.completion().read_bytes, rig.placed(12)), (12, list.as_bytes().to_vec()));
}

#[test]
fn an_order_that_makes_no_frame_is_refused() {
    let mut rig = Rig::new();
    let bad = Some(Refusal::Error(ErrorCode::BAD_ARGUMENT));
    let long = vec![7; 255 * 8];
    for (kind, bytes) in [
        (OrderKind::EditMask, 7),
        (OrderKind::SetReserve, 8),
        (OrderKind::SetConfig, 1025),
        (OrderKind::EditMask, 255 * 8),
    ] {
        rig.give(&Order { kind, argument_bytes: bytes }.cdb(), 0, &long[..bytes as usize]);
        assert_eq!((rig.sent().len(), rig.refusal()), (0, bad), "{kind:?} of {bytes} bytes");
    }
    rig.give(&Order { kind: OrderKind::SetConfig, argument_bytes: 9 }.cdb(), 0, b"12345678");
    assert_eq!((rig.sent().len(), rig.refusal()), (0, bad));
    let unknown = [Order::OPCODE, wire::aoe::Command::CONFIG.0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rig.submit(&unknown, 8, 0);
    assert_eq!(rig.refusal(), bad);
}

/// Losses are retransmitted; a target that is alive, but silent about only this, has answered.
#[test]
fn a_test_that_does_not_hold_ends_and_the_session_continues() {
    let mut rig = Rig::new();
    let test = |kind| Query { kind, argument_bytes: 4 }.cdb();
    rig.give(&test(QueryKind::Test), 1024, b"disk");
    let (since, mut tests) = (rig.now, Vec::new());
    let end = loop {
        for frame in rig.sent() {
            if frame[29] == 0x10 {
                let answer = rig.disk.answer(&frame);
                rig.receive(&answer);
            } else {
                tests.push(frame);
            }
        }
        if let Some(Event::Completed(done)) = rig.machine.poll() {
            break done.outcome;
        }
        rig.later();
    };
    let Outcome::Status { status: 2, sense: Some(sense) } = end else { panic!("{end:?}") };
    assert_eq!((sense.key(), sense.code()), (Some(SenseKey::Miscompare), 0x1d00));
    assert_eq!(tests.len(), usize::from(TESTS));
    assert!(tests.iter().all(|frame| *frame == tests[0]), "with the same tag");
    assert!(rig.now.since(since) >= Duration::from_millis(400));
    rig.give(&test(QueryKind::TestPrefix), 1024, b"disk");
    let frame = rig.sent().pop().unwrap();
    assert_eq!(frame[24..], *b"\0\0\0\0\0\x12\0\x04disk");
    rig.answer(&frame, &config(2, b"disk 7"));
    assert_eq!((rig.completion().outcome, rig.placed(6)), (GOOD, b"disk 7".to_vec()));
    rig.submit(read_10(0, 1), 512, 0);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
}

#[test]
fn a_test_of_a_target_that_is_gone_does_not_end_as_one_that_does_not_hold() {
    let mut rig = Rig::new();
    rig.give(&Query { kind: QueryKind::Test, argument_bytes: 4 }.cdb(), 1024, b"disk");
    while !rig.machine.is_over() {
        rig.sent();
        rig.later();
    }
    assert!(matches!(rig.machine.poll(), Some(Event::Gone { .. })));
}

#[test]
fn an_ata_command_goes_and_comes_with_its_registers() {
    let mut rig = Rig::new();
    let identify = PassThrough::new(Registers::new(Command::IdentifyDevice, 0, 1));
    rig.give(&identify.to_cdb().unwrap(), 512, &[]);
    rig.run();
    let done = rig.completion();
    assert_eq!((done.outcome, done.read_bytes), (GOOD, 512));
    assert_eq!(rig.placed(512), rig.disk.identity.encode());

    let write = PassThrough::new(Registers::new(Command::WriteDmaExt, 9, 2));
    rig.give(&write.to_cdb().unwrap(), 0, &[5; 1024]);
    rig.run();
    let done = rig.completion();
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
    assert_eq!(rig.disk.bytes[9 * 512..11 * 512], [5; 1024]);

    let check = PassThrough {
        check_condition: true,
        ..PassThrough::new(Registers::new(Command::CheckPowerMode, 0, 0))
    };
    let frame = rig.pass(check, 0, &[]);
    let registers = Section::view(&frame[24..]).unwrap().registers();
    let end = StatusReturn { count: POWER_ACTIVE_OR_IDLE, ..StatusReturn::good(&registers) };
    rig.answer(&frame, Section::response(0, &end).as_bytes());
    let Outcome::Status { status: 2, sense: Some(sense) } = rig.completion().outcome else { panic!() };
    assert_eq!((sense.key(), sense.code()), (Some(SenseKey::RecoveredError), StatusReturn::AVAILABLE));
    assert_eq!(StatusReturn::from_sense(&sense), Some(end));
}

#[test]
fn an_ata_command_that_fails_returns_its_registers() {
    let mut rig = Rig::new();
    for (bits, status, key, code) in [
        (error::UNC, 0, SenseKey::MediumError, 0x1100),
        (error::IDNF, 0, SenseKey::IllegalRequest, 0x2100),
        (error::ABRT, 0, SenseKey::AbortedCommand, 0),
        (error::ABRT, ata_status::DF, SenseKey::HardwareError, 0x4400),
    ] {
        let read = PassThrough::new(Registers::new(Command::ReadSectorsExt, 9, 1));
        let frame = rig.pass(read, 512, &[]);
        let end = StatusReturn::failed(&read.registers, bits);
        let end = StatusReturn { lba: 10, status: end.status | status, ..end };
        rig.answer(&frame, Section::response(Section::EXTEND, &end).as_bytes());
        let done = rig.completion();
        let Outcome::Status { status: 2, sense: Some(sense) } = done.outcome else { panic!("{done:?}") };
        assert_eq!((sense.key(), sense.code(), done.read_bytes), (Some(key), code, 0));
        assert_eq!(StatusReturn::from_sense(&sense), Some(end));
    }
    let frame = rig.pass(PassThrough::new(Registers::new(Command::FlushCache, 0, 0)), 0, &[]);
    rig.refuse(&frame, ErrorCode::TARGET_IS_RESERVED);
    assert_eq!(rig.completion().outcome, Outcome::Status { status: 0x18, sense: None });
}

/// The ranges of TRIM frames, and how many sectors each frame has.
fn trimmed(frames: &[Vec<u8>]) -> (Vec<(u64, u64)>, Vec<u8>) {
    let mut ranges = Vec::new();
    for frame in frames {
        assert_eq!((frame[25], frame[27]), (1, 0x06), "TRIM");
        assert_eq!(frame.len(), 36 + usize::from(frame[26]) * 512);
        let words = frame[36..].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        ranges.extend(words.filter(|word| *word != 0).map(|word| (word & 0xffff_ffff_ffff, word >> 48)));
    }
    (ranges, frames.iter().map(|frame| frame[26]).collect())
}

#[test]
fn unmap_trims_in_as_many_frames_as_it_needs() {
    let mut rig = Rig::new();
    rig.disk.identity = IdentifyData { trim_sectors: 8, sectors: 1 << 30, ..rig.disk.identity };
    rig.submit(ReadCapacity10::new(), 8, 0);
    rig.run();
    rig.completion();
    // 150 ranges: two sectors of them fit into a frame of 1500 bytes.
    let mut list = vec![0, 38, 0, 32, 0, 0, 0, 0];
    for (lba, sectors) in [(5u64, 149 * 0xffff - 3u32), (1 << 29, 7)] {
        list.extend(lba.to_be_bytes());
        list.extend(sectors.to_be_bytes());
        list.extend([0; 4]);
    }
    let unmap = |len: u8| Cdb::from(Unmap::new(len.into()));
    rig.give(&unmap(40), 0, &list);
    assert_eq!(rig.sense_of_end(), Some(0x2600), "more than one command may have");
    list[16..20].copy_from_slice(&(120 * 0xffff - 3u32).to_be_bytes());
    let mut more = list[24..].to_vec();
    list.truncate(24);
    // And many short ones.
    for at in 0..20u64 {
        more.extend((1000 * at).to_be_bytes());
        more.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    }
    list.extend(more);
    (list[2], list[3]) = (1, (22 * 16 - 256) as u8);
    rig.give(&Cdb::from(Unmap::new(360)), 0, &list);
    let frames = rig.sent();
    let (ranges, sectors) = trimmed(&frames);
    assert_eq!((ranges.len(), sectors), (141, vec![2, 1]));
    assert_eq!((ranges[0], ranges[119]), ((5, 0xffff), (5 + 119 * 0xffff, 0xffff - 3)));
    assert_eq!(ranges[120..122], [(1 << 29, 7), (0, 1)]);
    let again = loop {
        rig.later();
        let again = rig.sent();
        if !again.is_empty() {
            break again;
        }
    };
    assert!(again.iter().all(|frame| frames.contains(frame)));
    for frame in &frames {
        rig.succeed(frame);
    }
    let done = rig.completion();
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
}

#[test]
fn an_answer_that_is_cut_ends_a_command() {
    let mut rig = Rig::new();
    for len in [0, 4, 11] {
        let frame = rig.order(OrderKind::ReadMask, 1024, &[]);
        let list = [0, 0, 0, 1, 0, 1, 2, 0, 0, 0, 0, 9];
        rig.answer(&frame, &list[..len]);
        assert_eq!(rig.sense(), (SenseKey::HardwareError, 0x4400));
    }
    let read = PassThrough::new(Registers::new(Command::ReadSectorsExt, 9, 2));
    let frame = rig.pass(read, 1024, &[]);
    let answer = rig.disk.answer(&frame);
    rig.receive(&answer[..answer.len() - 1]);
    assert_eq!(rig.sense(), (SenseKey::HardwareError, 0x4400));
    rig.receive(&answer);
    assert!(rig.sent().is_empty() && rig.machine.poll().is_none());
}

#[test]
fn a_request_that_no_longer_fits_makes_the_initiator_rediscover_the_target() {
    let trim_of = |sectors: u16| {
        let registers = Registers::new(Command::DataSetManagement, 0, sectors);
        PassThrough::new(Registers { feature: TRIM, ..registers }).to_cdb().unwrap()
    };
    let read_of = |sectors| PassThrough::new(Registers::new(Command::ReadSectorsExt, 0, sectors)).to_cdb();
    let unmap = |ranges: u32| {
        let mut list = vec![0; 24];
        (list[1], list[3]) = (22, 16);
        list[16..20].copy_from_slice(&(ranges * 0xffff).to_be_bytes());
        (Cdb::from(Unmap::new(24)), list)
    };
    for (cdb, data, is_met_again) in [
        (trim_of(2), vec![0; 1024], true),
        (trim_of(1), vec![0; 512], false),
        (read_of(2).unwrap(), vec![], true),
        (read_of(1).unwrap(), vec![], false),
        (unmap(65).0, unmap(65).1, true),
        (unmap(64).0, unmap(64).1, false),
    ] {
        let mut rig = Rig::with(CONFIG);
        rig.disk.identity = IdentifyData { trim_sectors: 8, sectors: 1 << 30, ..rig.disk.identity };
        rig.log_in();
        rig.give(&cdb, 1024, &data);
        let frame = rig.sent().pop().unwrap();
        rig.refuse(&frame, ErrorCode::BAD_ARGUMENT);
        assert_eq!(rig.machine.is_over(), is_met_again);
        if !is_met_again {
            assert_eq!(rig.sense(), (SenseKey::IllegalRequest, 0x2400));
        }
    }
}

#[test]
fn a_list_that_wants_nothing_is_taken_all_the_same() {
    let mut rig = Rig::with(CONFIG);
    rig.disk.identity.trim_sectors = 1;
    rig.log_in();
    rig.give(&Cdb::from(Unmap::new(8)), 0, &[0, 6, 0, 0, 0, 0, 0, 0]);
    assert!(rig.sent().is_empty());
    let done = rig.completion();
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
}

#[test]
fn a_device_that_trims_no_more_is_sent_the_rest_of_an_unmap() {
    let mut rig = Rig::with(CONFIG);
    rig.disk.identity = IdentifyData { trim_sectors: 1, sectors: 1 << 30, ..rig.disk.identity };
    rig.log_in();
    let mut list = vec![0; 24];
    (list[1], list[3]) = (22, 16);
    list[16..20].copy_from_slice(&(100 * 0xffff_u32).to_be_bytes());
    rig.place(&list);
    rig.submit(read_10(0, 4), 2048, 0);
    rig.submit(ReadCapacity10::new(), 8, 0);
    rig.submit(Unmap::new(24), 0, 24);
    let mut frames = rig.sent();
    assert_eq!(trimmed(&frames.split_off(3)).0.len(), 64);
    rig.disk.identity.trim_sectors = 0;
    for frame in &frames {
        let answer = rig.disk.answer(frame);
        rig.receive(&answer);
    }
    let rest = rig.sent();
    assert_eq!((rest.len(), trimmed(&rest).0.len()), (1, 36));
    assert!(rig.sent().is_empty());
    (0..2).for_each(|_| assert_eq!(rig.completion().outcome, GOOD));
    rig.submit(Unmap::new(24), 0, 24);
    rig.run();
    assert_eq!(rig.sense(), (SenseKey::IllegalRequest, 0x2000));
}

impl Rig {
    /// The additional sense code of a command that ends when everything was sent and answered.
    fn sense_of_end(&mut self) -> Option<u16> {
        self.run();
        match self.completion().outcome {
            Outcome::Status { sense, .. } => sense.map(|sense| sense.code()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn verify_moves_nothing_and_reports_the_sector() {
    let mut rig = Rig::new();
    rig.submit(Verify10::new(0, 10), 0, 0);
    let frame = rig.sent().pop().unwrap();
    assert_eq!((frame.len(), frame[26], frame[27]), (36, 10, 0x42));
    rig.succeed(&frame);
    let done = rig.completion();
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
    let verify = Verify16::new(8, 512);
    rig.submit(verify, 0, 0);
    assert_eq!(rig.sense_of_end(), Some(0x2100), "it ends before that");
    rig.disk.identity.sectors = 1 << 20;
    rig.submit(verify, 0, 0);
    let question = rig.sent().pop().unwrap();
    let answer = rig.disk.answer(&question);
    rig.receive(&answer);
    let frames: Vec<_> = rig.sent();
    assert_eq!(
        frames.iter().map(|frame| (frame[28], frame[29], frame[26])).collect::<Vec<_>>(),
        [(8, 0, 255), (7, 1, 255), (6, 2, 2)]
    );
    for frame in &frames {
        let registers = Section::view(&frame[24..]).unwrap().registers();
        let end = StatusReturn { lba: registers.lba + 1, ..StatusReturn::failed(&registers, error::UNC) };
        rig.answer(frame, Section::response(Section::EXTEND, &end).as_bytes());
    }
    let Outcome::Status { sense: Some(sense), .. } = rig.completion().outcome else { panic!() };
    assert_eq!((sense.key(), sense.information()), (Some(SenseKey::MediumError), Some(9)));
}

#[test]
fn mode_select_switches_the_write_cache() {
    let mut rig = Rig::new();
    let mut list = vec![0; 24];
    (list[4], list[5], list[6], list[16]) = (8, 18, 0, 0x20);
    let select = Cdb::from(ModeSelect6::new(24));
    rig.give(&select, 0, &list);
    let frame = rig.sent().pop().unwrap();
    assert_eq!((frame[25], frame[27]), (0x82, 0xef), "SET FEATURES");
    rig.succeed(&frame);
    let done = rig.completion();
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
    list[10] = 1;
    rig.give(&select, 0, &list);
    assert_eq!(rig.sense_of_end(), Some(0x2600));
}
