//! Commands that are answered on arrival.

use super::harness::{Driver, GOOD, Got, read, unsolicited, write};
use crate::iscsi::login::Negotiated;
use crate::iscsi::target::Plain;
use crate::services::{Down, Ending};
use crate::stream::{StreamMachine, Transmit};
use wire::iscsi::{DataIn, NopOut, Opcode, ScsiCommand, TAG_NONE};
use zerocopy::IntoBytes;

/// The command, if it may be answered on arrival.
fn plain(driver: &Driver, pdu: &ScsiCommand, data: u32) -> Option<Plain> {
    let pdu = ScsiCommand { data_segment_length: wire::iscsi::U24::new(data), ..*pdu };
    driver.target.plain(pdu.as_bytes())
}

/// The responses to a READ and a WRITE of 512 bytes, and another READ, on arrival.
fn at_once(driver: &mut Driver) -> Vec<Got> {
    let mut batch = Transmit::default();
    assert!(driver.target.answers_at_once());
    for (tag, at) in [(7, 100), (9, 200)] {
        let first = plain(driver, &read(tag, tag - 7, 512), 0).unwrap();
        assert_eq!((first.read_bytes, first.write_bytes), (512, 0));
        driver.target.answer_read(driver.now, &first, Driver::span(at, 512), &mut batch);
        if tag == 7 {
            let second = plain(driver, &write(8, 1, 512), 512).unwrap();
            assert_eq!((second.read_bytes, second.write_bytes), (0, 512));
            driver.target.answer_write(driver.now, &second, &mut batch);
        }
    }
    driver.target.transmit(driver.now, &mut batch);
    assert!(batch.done.is_empty(), "nobody has to hear of it");
    driver.sent_in(&batch)
}

/// The same through the engine.
fn by_the_layer_above(driver: &mut Driver) -> Vec<Got> {
    let mut all = Vec::new();
    for (tag, at) in [(7, 100), (8, 0), (9, 200)] {
        let is_read = tag != 8;
        match is_read {
            true => driver.send(read(tag, tag - 7, 512).as_bytes(), &[]),
            false => driver.send(write(tag, tag - 7, 512).as_bytes(), &[0; 512]),
        }
        let task = driver.command().task;
        let down = match is_read {
            true => {
                let end = Some(Ending { read_bytes: 512, ..GOOD });
                Down::Push { task, at: 0, from: Driver::places(at, 512), end }
            }
            false => Down::End { task, ending: Ending { write_bytes: 512, ..GOOD } },
        };
        driver.down(down);
        all.extend(driver.sent());
    }
    all
}

#[test]
fn an_answer_at_once_is_the_same_answer() {
    let (mut one, mut other) = (Driver::new(|_| {}), Driver::new(|_| {}));
    let (at_once, usual) = (at_once(&mut one), by_the_layer_above(&mut other));
    assert_eq!(at_once.len(), 3);
    for (at_once, usual) in at_once.iter().zip(&usual) {
        assert_eq!(at_once.header, usual.header);
        assert_eq!(at_once.data, usual.data);
    }
    for driver in [&mut one, &mut other] {
        driver.send(read(10, 3, 512).as_bytes(), &[]);
        assert_eq!(driver.command().read_bytes, 512);
        driver.quiet();
    }
}

#[test]
fn the_window_stays_open_for_what_takes_no_slot() {
    let mut driver = Driver::new(|_| {});
    let mut batch = Transmit::default();
    for tag in 0..100 {
        let command = plain(&driver, &read(tag, tag, 512), 0).unwrap();
        driver.target.answer_read(driver.now, &command, Driver::span(0, 512), &mut batch);
        batch.clear();
    }
    driver.send(read(100, 100, 512).as_bytes(), &[]);
    let task = driver.command().task;
    driver.down(Down::Push { task, at: 0, from: Driver::places(0, 512), end: Some(GOOD) });
    assert_eq!(driver.one::<DataIn>().0.max_cmd_sn.get(), 104);
}

#[test]
fn what_says_more_than_read_or_write_comes_the_usual_way() {
    let driver = Driver::new(|_| {});
    assert!(plain(&driver, &read(7, 0, 1024), 0).is_some());
    assert!(plain(&driver, &read(7, 0, 1028), 0).is_none(), "longer than a data segment");
    assert!(plain(&driver, &read(7, 1, 512), 0).is_none(), "not the next command");
    assert!(plain(&driver, &read(TAG_NONE, 0, 512), 0).is_none(), "a reserved tag");
    assert!(plain(&driver, &read(7, 0, 512), 4).is_none(), "data that nobody expects");
    let ordered = ScsiCommand { flags: 0x80 | ScsiCommand::READ | ScsiCommand::ORDERED, ..read(7, 0, 512) };
    assert!(plain(&driver, &ordered, 0).is_none());
    let immediate = ScsiCommand { opcode: Opcode::SCSI_COMMAND.0 | Opcode::IMMEDIATE, ..read(7, 0, 512) };
    assert!(plain(&driver, &immediate, 0).is_none());
    let with_segments = ScsiCommand { total_ahs_length: 1, ..read(7, 0, 512) };
    assert!(plain(&driver, &with_segments, 0).is_none());
    assert!(plain(&driver, &write(7, 0, 2048), 2048).is_some());
    assert!(plain(&driver, &write(7, 0, 2048), 1024).is_none(), "the rest is to be asked for");
    assert!(plain(&driver, &write(7, 0, 4096), 4096).is_none(), "longer than FirstBurstLength");
    let open = ScsiCommand { flags: ScsiCommand::WRITE | ScsiCommand::SIMPLE, ..write(7, 0, 512) };
    assert!(plain(&driver, &open, 512).is_none(), "more data is announced");
    assert!(driver.target.plain(NopOut::default().as_bytes()).is_none());
}

#[test]
fn a_tag_in_use_comes_the_usual_way() {
    let mut driver = Driver::new(|_| {});
    driver.send(read(7, 0, 512).as_bytes(), &[]);
    driver.command();
    assert!(plain(&driver, &read(7, 1, 512), 0).is_none());
    assert!(plain(&driver, &read(8, 1, 512), 0).is_some());
}

#[test]
fn nothing_is_answered_ahead_of_what_waits() {
    let mut driver = Driver::new(|_| {});
    driver.send(read(7, 0, 512).as_bytes(), &[]);
    assert!(!driver.target.answers_at_once(), "a command is to be taken first");
    let task = driver.command().task;
    assert!(driver.target.answers_at_once());
    driver.end(task, GOOD);
    assert!(!driver.target.answers_at_once(), "an answer is owed");
    driver.sent();
    assert!(driver.target.answers_at_once());
    let open = ScsiCommand { flags: ScsiCommand::WRITE | ScsiCommand::SIMPLE, ..write(8, 1, 512) };
    driver.send(open.as_bytes(), &[]);
    driver.command();
    driver.send(unsolicited(8, 0, 0, true).as_bytes(), &[0; 512]);
    assert!(!driver.target.answers_at_once(), "data has no place yet");
}

#[test]
fn what_is_summed_is_not_answered_at_once() {
    let header = |negotiated: &mut Negotiated| negotiated.header_digest = true;
    let data = |negotiated: &mut Negotiated| negotiated.data_digest = true;
    let discovery = |negotiated: &mut Negotiated| negotiated.discovery = true;
    assert!(!Driver::new(header).target.answers_at_once());
    assert!(!Driver::new(data).target.answers_at_once());
    assert!(!Driver::new(discovery).target.answers_at_once());
    assert!(!Driver::at_open_login().target.answers_at_once());
}
