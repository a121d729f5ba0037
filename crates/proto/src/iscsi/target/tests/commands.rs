//! Command order, Data-In, status and residuals.

use super::harness::{Driver, GOOD, crc32c, read, write};
use crate::services::{Attribute, Down, Ending, Up};
use crate::stream::StreamMachine;
use wire::iscsi::{DataIn, FINAL, NopIn, Opcode, RejectReason, ScsiCommand, ScsiResponse};
use wire::{Places, Sense};
use zerocopy::IntoBytes;

#[test]
fn crc32c_matches_the_standard() {
    // RFC 7143 appendix A.4: 32 bytes of zeros.
    assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
}

#[test]
fn a_read_ends_with_status_in_its_last_data_in() {
    let mut driver = Driver::new(|_| {});
    let pdu = ScsiCommand { lun: 5u64.into(), ..read(7, 0, 1500) };
    driver.send(pdu.as_bytes(), &[]);
    let command = driver.command();
    assert_eq!((command.lun, command.read_bytes, command.write_bytes), (5, 1500, 0));
    assert_eq!((command.attribute, command.unsolicited_bytes), (Attribute::Simple, 0));
    let end = Some(Ending { read_bytes: 1500, ..GOOD });
    driver.down(Down::Push { task: command.task, at: 0, from: Driver::places(100, 1500), end });
    let sent = driver.sent();
    let (first, last): (DataIn, DataIn) = (sent[0].view(), sent[1].view());
    assert_eq!((first.flags, first.data_sn.get(), first.buffer_offset.get()), (0, 0, 0));
    assert_eq!((last.flags, last.data_sn.get(), last.buffer_offset.get()), (FINAL | DataIn::STATUS, 1, 1024));
    assert_eq!((last.stat_sn.get(), last.exp_cmd_sn.get(), last.max_cmd_sn.get()), (1, 1, 4));
    assert_eq!([&sent[0].data[..], &sent[1].data[..]].concat(), driver.memory[100..1600]);
    assert_eq!(driver.done, [command.task]);
    driver.quiet();
}

/// A connection at rest is not checked again before something arrives.
#[test]
fn a_connection_rests_when_it_owes_nothing_and_the_initiator_may_send() {
    let mut driver = Driver::new(|_| {});
    assert!(driver.target.is_at_rest());
    driver.send(read(7, 0, 512).as_bytes(), &[]);
    assert!(!driver.target.is_at_rest(), "the layer above has yet to take the command");
    let task = driver.command().task;
    assert!(driver.target.is_at_rest());
    let end = Some(Ending { read_bytes: 512, ..GOOD });
    driver.down(Down::Push { task, at: 0, from: Driver::places(0, 512), end });
    assert!(!driver.target.is_at_rest(), "an answer is owed");
    driver.sent();
    assert!(driver.target.is_at_rest());
    for tag in 0..4 {
        driver.send(read(tag, 1 + tag, 512).as_bytes(), &[]);
        driver.command();
    }
    assert!(!driver.target.is_at_rest(), "the window is shut, and nothing but an answer opens it");
}

/// Memory for a few answers is allocated when the session begins, more as slots are: a core that serves it
/// allocates nothing else.
#[test]
fn there_is_room_for_the_answers_of_all_commands() {
    let mut driver = Driver::new(|_| {});
    let room = driver.target.layer.out.capacity();
    for tag in 0..4 {
        driver.send(read(tag, tag, 512).as_bytes(), &[]);
    }
    let tasks: Vec<_> = (0..4).map(|_| driver.command().task).collect();
    tasks.iter().for_each(|task| driver.end(*task, GOOD));
    assert_eq!((driver.target.layer.out.len(), driver.target.layer.out.capacity()), (4, room));
}

#[test]
fn data_in_is_cut_at_max_burst_length_and_at_the_end_of_a_push() {
    let mut driver = Driver::new(|negotiated| negotiated.max_burst = 1536);
    driver.send(read(7, 0, 4096).as_bytes(), &[]);
    let task = driver.command().task;
    driver.down(Down::Push { task, at: 0, from: Driver::places(0, 2048), end: None });
    let shape = |driver: &mut Driver| -> Vec<(u8, u32, u32)> {
        let view = |got: &super::harness::Got| {
            let pdu: DataIn = got.view();
            (pdu.flags, pdu.data_sn.get(), pdu.data_segment_length.get())
        };
        driver.sent().iter().map(view).collect()
    };
    assert_eq!(shape(&mut driver), [(0, 0, 1024), (FINAL, 1, 512), (FINAL, 2, 512)]);
    assert_eq!(driver.done, [task]);
    let end = Some(Ending { read_bytes: 2052, ..GOOD });
    driver.down(Down::Push { task, at: 2048, from: Driver::places(0, 4), end });
    let status = FINAL | DataIn::STATUS | DataIn::UNDERFLOW;
    assert_eq!(shape(&mut driver), [(status, 3, 4)]);
}

#[test]
fn sense_follows_data_in_a_response_of_its_own() {
    for digest in [false, true] {
        let mut driver = Driver::new(|negotiated| {
            negotiated.header_digest = digest;
            negotiated.data_digest = digest;
        });
        driver.send(read(7, 0, 512).as_bytes(), &[]);
        let task = driver.command().task;
        let sense = Some(Sense::from_bytes(&[0x70, 0, 3]));
        let end = Some(Ending { status: 2, sense, read_bytes: 10, write_bytes: 0 });
        driver.down(Down::Push { task, at: 0, from: Driver::places(0, 10), end });
        let sent = driver.sent();
        let data: DataIn = sent[0].view();
        assert_eq!((data.flags, data.data_segment_length.get()), (FINAL, 10));
        let response: ScsiResponse = sent[1].view();
        assert_eq!((response.flags, response.status), (FINAL | ScsiResponse::UNDERFLOW, 2));
        assert_eq!((response.residual_count.get(), response.exp_data_sn.get()), (502, 1));
        assert_eq!(sent[1].data, [0, 3, 0x70, 0, 3]);
        assert_eq!(driver.done, [task]);
    }
}

/// The engine reuses the places of the push once it has ended the task.
#[test]
fn an_abort_ends_its_task_in_the_place_of_data_that_has_not_left() {
    for last in [false, true] {
        let mut driver = Driver::new(|_| {});
        driver.send(read(7, 0, 512).as_bytes(), &[]);
        let task = driver.command().task;
        let end = last.then_some(Ending { read_bytes: 512, ..GOOD });
        driver.down(Down::Push { task, at: 0, from: Driver::places(0, 512), end });
        driver.end(task, Ending { status: 0x40, ..GOOD });
        let (response, _) = driver.one::<ScsiResponse>();
        assert_eq!((response.status, response.exp_data_sn.get()), (0x40, 0));
        assert_eq!(driver.done, []);
        driver.quiet();
    }
}

#[test]
fn residuals_go_both_ways() {
    let mut driver = Driver::new(|_| {});
    driver.send(read(7, 0, 100).as_bytes(), &[]);
    let task = driver.command().task;
    driver.end(task, Ending { read_bytes: 512, ..GOOD });
    let (response, _) = driver.one::<ScsiResponse>();
    assert_eq!((response.flags, response.residual_count.get()), (FINAL | ScsiResponse::OVERFLOW, 412));
    driver.send(write(8, 1, 100).as_bytes(), &[]);
    let task = driver.command().task;
    driver.end(task, GOOD);
    let (response, _) = driver.one::<ScsiResponse>();
    assert_eq!((response.flags, response.residual_count.get()), (FINAL | ScsiResponse::UNDERFLOW, 100));
}

#[test]
fn a_bidirectional_command_has_two_lengths_and_two_residuals() {
    let mut driver = Driver::new(|_| {});
    let pdu = ScsiCommand {
        flags: FINAL | ScsiCommand::READ | ScsiCommand::WRITE,
        total_ahs_length: 7,
        ..read(7, 0, 100)
    };
    let mut header = pdu.as_bytes().to_vec();
    header.extend([0, 17, 1, 0]);
    header.extend(16..32);
    header.extend([0, 5, 2, 0, 0, 0, 0, 50]);
    driver.send(&header, &[]);
    let command = driver.command();
    assert_eq!((command.read_bytes, command.write_bytes, command.cdb.as_bytes().len()), (50, 100, 32));
    assert_eq!(command.cdb.as_bytes()[31], 31);
    driver.end(command.task, Ending { read_bytes: 60, write_bytes: 90, ..GOOD });
    let (response, _) = driver.one::<ScsiResponse>();
    let flags = FINAL | ScsiResponse::UNDERFLOW | ScsiResponse::BIDIRECTIONAL_READ_OVERFLOW;
    assert_eq!(response.flags, flags);
    assert_eq!(response.residual_count.get(), 10);
    assert_eq!(response.bidirectional_read_residual_count.get(), 10);
}

#[test]
fn malformed_headers_drop_the_connection() {
    let bare = ScsiCommand { flags: FINAL | 0x60, ..read(7, 0, 100) };
    let ahs = ScsiCommand { total_ahs_length: 1, ..read(7, 0, 100) };
    let bad_ahs = [ahs.as_bytes(), &[0, 1, 9, 0]].concat();
    let not_final = ScsiCommand { flags: ScsiCommand::READ, ..read(7, 0, 100) };
    let no_tag = read(u32::MAX, 0, 100);
    let gap = read(7, 1, 100);
    for (header, section) in [
        (bare.as_bytes(), "11.3.4"),
        (&bad_ahs, "11.2.2"),
        (not_final.as_bytes(), "11.3.1"),
        (no_tag.as_bytes(), "11.2.1.8"),
        (gap.as_bytes(), "4.2.2.1"),
    ] {
        let mut driver = Driver::new(|_| {});
        driver.send(header, &[]);
        let reason = driver.gone();
        assert!(reason.contains(section), "{reason}");
        assert!(!driver.target.owes());
    }
}

#[test]
fn commands_outside_the_window_are_ignored() {
    let mut driver = Driver::new(|_| {});
    for cmd_sn in [4, u32::MAX] {
        let pdu = ScsiCommand { flags: ScsiCommand::WRITE, ..write(9, cmd_sn, 2048) };
        driver.send(pdu.as_bytes(), &[1; 512]);
        driver.send(super::harness::unsolicited(9, 0, 512, true).as_bytes(), &[1; 1536]);
        driver.quiet();
    }
    driver.send(read(7, 0, 0).as_bytes(), &[]);
    driver.command();
}

#[test]
fn the_window_closes_with_the_last_slot_and_opens_with_an_answer() {
    let mut driver = Driver::new(|_| {});
    let mut tasks = Vec::new();
    for n in 0..4 {
        driver.send(read(n, n, 0).as_bytes(), &[]);
        tasks.push(driver.command().task);
    }
    driver.send(read(4, 4, 0).as_bytes(), &[]);
    assert!(driver.up().is_none(), "the window is closed");
    driver.end(tasks[0], GOOD);
    let (response, _) = driver.one::<ScsiResponse>();
    assert_eq!((response.exp_cmd_sn.get(), response.max_cmd_sn.get()), (4, 4));
    driver.send(read(4, 4, 0).as_bytes(), &[]);
    driver.command();
    driver.down(Down::Abort { task: tasks[1] });
    let (nop, _) = driver.one::<NopIn>();
    assert_eq!((nop.max_cmd_sn.get(), nop.stat_sn.get()), (5, 2));
}

#[test]
fn immediate_commands_have_slots_of_their_own() {
    let mut driver = Driver::new(|_| {});
    let immediate = |tag| ScsiCommand { opcode: 0x41, ..read(tag, 0, 0) };
    for tag in 0..16 {
        driver.send(immediate(tag).as_bytes(), &[]);
        driver.command();
    }
    driver.send(immediate(16).as_bytes(), &[]);
    driver.rejected(RejectReason::TOO_MANY_IMMEDIATE, Opcode::SCSI_COMMAND);
    driver.send(read(17, 0, 0).as_bytes(), &[]);
    driver.command();
    driver.send(read(17, 1, 0).as_bytes(), &[]);
    driver.rejected(RejectReason::TASK_IN_PROGRESS, Opcode::SCSI_COMMAND);
}

#[test]
fn a_wrong_header_digest_drops_the_connection() {
    let mut driver = Driver::new(|negotiated| negotiated.header_digest = true);
    driver.send(read(7, 0, 0).as_bytes(), &[]);
    driver.command();
    driver.pending.extend(read(8, 1, 0).as_bytes());
    driver.pending.extend([0; 4]);
    driver.run();
    assert!(driver.gone().contains("header digest"));
}

#[test]
fn a_big_push_is_split_over_batches() {
    let mut driver = Driver::new(|negotiated| negotiated.max_recv_initiator = 512);
    let mut places = Places::EMPTY;
    for _ in 0..4 {
        places.push(wire::Span { buffer: wire::BufferId(1), len: 16384, offset: 0 });
    }
    let rounds = 6;
    driver.send(read(7, 0, 65536 * rounds).as_bytes(), &[]);
    let task = driver.command().task;
    for round in 0..rounds {
        let end = (round + 1 == rounds).then_some(Ending { read_bytes: u64::from(65536 * rounds), ..GOOD });
        driver.down(Down::Push { task, at: 65536 * round, from: places, end });
        let sent = driver.sent();
        assert_eq!(sent.len(), 128);
        assert!(sent.iter().all(|got| got.data.len() == 512));
    }
    assert_eq!(driver.done.len(), 6);
    assert!(driver.up().is_none());
}

#[test]
fn late_verbs_about_a_task_that_is_over_are_ignored() {
    let mut driver = Driver::new(|_| {});
    driver.send(read(7, 0, 512).as_bytes(), &[]);
    let task = driver.command().task;
    driver.down(Down::Push { task, at: 0, from: Driver::places(0, 512), end: None });
    driver.down(Down::Abort { task });
    driver.end(task, GOOD);
    driver.quiet();
    assert!(driver.done.is_empty());
    driver.target.closed(driver.now, None);
    assert!(matches!(driver.up(), Some(Up::Gone { .. })));
}

#[test]
fn data_that_goes_the_other_way_is_no_part_of_what_was_expected() {
    let mut driver = Driver::new(|_| {});
    // Each command transfers 512 bytes in the direction that it did not announce.
    let (reads, writes) = (read(7, 0, 4096), write(8, 1, 4096));
    let both = [(reads, Ending { write_bytes: 512, ..GOOD }), (writes, Ending { read_bytes: 512, ..GOOD })];
    for (pdu, ending) in both {
        driver.send(pdu.as_bytes(), &[]);
        let task = driver.command().task;
        driver.end(task, ending);
        let (response, _) = driver.one::<ScsiResponse>();
        assert_eq!((response.flags & 6, response.residual_count.get()), (ScsiResponse::UNDERFLOW, 4096));
    }
}
