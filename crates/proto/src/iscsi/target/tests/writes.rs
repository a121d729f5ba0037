//! Data-out: immediate, unsolicited, solicited, and everything that may be wrong with it.

use super::harness::{Driver, GOOD, data_out, unsolicited, write};
use crate::iscsi::login::Negotiated;
use crate::services::{Down, Ending, TaskId, Termination, Up};
use crate::stream::{StreamMachine, Want};
use wire::iscsi::{DataOut, Opcode, ReadyToTransfer, RejectReason, ScsiCommand, ScsiResponse};
use zerocopy::IntoBytes;

/// A command that is followed by unsolicited data.
fn open_write(tag: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand { flags: ScsiCommand::WRITE, ..write(tag, cmd_sn, len) }
}

fn fetch(driver: &mut Driver, task: TaskId, at: u32, len: u32) {
    driver.down(Down::Fetch { task, at, into: Driver::places(at, len) });
}

fn fetched(driver: &mut Driver, task: TaskId) {
    assert!(matches!(driver.up(), Some(Up::Fetched(id)) if id == task));
}

/// Bytes that differ from the memory's previous content.
fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from(n % 241).unwrap() ^ 0xff).collect()
}

/// The sense data's additional sense code and qualifier, of the one response owed.
fn sense(driver: &mut Driver) -> (u8, u8) {
    let (response, data) = driver.one::<ScsiResponse>();
    assert_eq!((response.status, data[2], data[4]), (2, 0x70, 0x0b));
    (data[14], data[15])
}

#[test]
fn immediate_data_waits_for_its_place() {
    for digest in [false, true] {
        let mut driver = Driver::new(|negotiated| {
            negotiated.header_digest = digest;
            negotiated.data_digest = digest;
        });
        let data = payload(1001);
        driver.send(write(7, 0, 1001).as_bytes(), &data);
        let command = driver.command();
        assert_eq!((command.write_bytes, command.unsolicited_bytes), (1001, 1001));
        assert_eq!(driver.target.want(), Want::Nothing);
        fetch(&mut driver, command.task, 0, 1001);
        fetched(&mut driver, command.task);
        assert_eq!(driver.memory[..1001], data);
        driver.end(command.task, Ending { write_bytes: 1001, ..GOOD });
        let (response, _) = driver.one::<ScsiResponse>();
        assert_eq!((response.flags, response.status, response.stat_sn.get()), (0x80, 0, 1));
    }
}

#[test]
fn unsolicited_data_continues_where_immediate_data_ended() {
    let mut driver = Driver::new(|_| {});
    let data = payload(2048);
    driver.send(open_write(7, 0, 2048).as_bytes(), &data[..512]);
    let command = driver.command();
    assert_eq!(command.unsolicited_bytes, 2048);
    fetch(&mut driver, command.task, 0, 2048);
    driver.send(unsolicited(7, 0, 512, false).as_bytes(), &data[512..1024]);
    assert!(driver.up().is_none());
    driver.send(unsolicited(7, 1, 1024, true).as_bytes(), &data[1024..]);
    fetched(&mut driver, command.task);
    assert_eq!(driver.memory[..2048], data);
    driver.quiet();
}

#[test]
fn the_rest_is_requested_by_r2t() {
    let mut driver = Driver::new(|negotiated| negotiated.max_outstanding_r2t = 2);
    let data = payload(16000);
    driver.send(ScsiCommand { lun: 3u64.into(), ..write(7, 0, 16000) }.as_bytes(), &data[..1000]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 16000);
    let mut tags = Vec::new();
    let mut expect = |driver: &mut Driver, wanted: &[(u32, u32, u32)]| {
        let sent = driver.sent();
        let view = |pdu: &ReadyToTransfer| {
            (pdu.r2t_sn.get(), pdu.buffer_offset.get(), pdu.desired_data_transfer_length.get())
        };
        let pdus: Vec<ReadyToTransfer> = sent.iter().map(|got| got.view()).collect();
        assert_eq!(pdus.iter().map(view).collect::<Vec<_>>(), wanted);
        assert!(pdus.iter().all(|pdu| pdu.lun.get() == 3 && pdu.stat_sn.get() == 1));
        tags.extend(pdus.iter().map(|pdu| pdu.target_transfer_tag.get()));
        tags.clone()
    };
    let tags = {
        expect(&mut driver, &[(0, 1000, 4096), (1, 5096, 4096)]);
        expect(&mut driver, &[])
    };
    driver.send(data_out(7, tags[0], 0, 1000, false).as_bytes(), &data[1000..2000]);
    driver.send(data_out(7, tags[0], 1, 2000, true).as_bytes(), &data[2000..5096]);
    let tags = expect(&mut driver, &[(2, 9192, 4096)]);
    driver.send(data_out(7, tags[1], 0, 5096, true).as_bytes(), &data[5096..9192]);
    let tags = expect(&mut driver, &[(3, 13288, 2712)]);
    driver.send(data_out(7, tags[2], 0, 9192, true).as_bytes(), &data[9192..13288]);
    assert!(driver.up().is_none());
    driver.send(data_out(7, tags[3], 0, 13288, true).as_bytes(), &data[13288..]);
    fetched(&mut driver, task);
    assert_eq!(driver.memory[..16000], data);
}

#[test]
fn several_fetches_follow_one_another() {
    let mut driver = Driver::new(|_| {});
    driver.send(write(7, 0, 1024).as_bytes(), &[]);
    let task = driver.command().task;
    for at in [0, 512] {
        fetch(&mut driver, task, at, 512);
        let (r2t, _) = driver.one::<ReadyToTransfer>();
        assert_eq!((r2t.buffer_offset.get(), r2t.desired_data_transfer_length.get()), (at, 512));
        driver.send(data_out(7, r2t.target_transfer_tag.get(), 0, at, true).as_bytes(), &payload(512));
        fetched(&mut driver, task);
    }
}

#[test]
fn short_unsolicited_data_is_completed_by_r2t_only_below_first_burst() {
    let mut driver = Driver::new(|_| {});
    driver.send(open_write(7, 0, 1024).as_bytes(), &[]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 1024);
    driver.send(unsolicited(7, 0, 0, true).as_bytes(), &[1; 100]);
    let (r2t, _) = driver.one::<ReadyToTransfer>();
    assert_eq!((r2t.buffer_offset.get(), r2t.desired_data_transfer_length.get()), (100, 924));
    driver.send(open_write(8, 1, 4096).as_bytes(), &[]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 4096);
    driver.send(unsolicited(8, 0, 0, true).as_bytes(), &[1; 100]);
    assert!(matches!(driver.up(), Some(Up::FetchFailed { task: id, .. }) if id == task));
    driver.refused("RFC 7143");
    assert_eq!(sense(&mut driver), (0x0c, 0x0d));
}

/// An unsolicited write of 2048 bytes whose first Data-Out of 512 bytes is this one; `last` ends it.
fn faulty(pdu: DataOut, change: impl FnOnce(&mut Negotiated)) -> Driver {
    let mut driver = Driver::new(change);
    driver.send(open_write(7, 0, 2048).as_bytes(), &[]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 2048);
    driver.send(pdu.as_bytes(), &[1; 512]);
    driver
}

#[test]
fn a_data_out_out_of_order_ends_the_task_after_the_f_bit() {
    for (pdu, expected) in
        [(unsolicited(7, 27, 0, false), (0x47, 0x05)), (unsolicited(7, 0, 4, false), (0x0c, 0x0d))]
    {
        let mut driver = faulty(pdu, |_| {});
        assert!(matches!(driver.up(), Some(Up::FetchFailed { .. })));
        driver.refused("RFC 7143");
        driver.quiet();
        driver.send(unsolicited(7, 1, 512, true).as_bytes(), &[1; 1536]);
        assert_eq!(sense(&mut driver), expected);
        driver.send(write(7, 1, 0).as_bytes(), &[]);
        driver.command();
    }
}

#[test]
fn more_than_first_burst_ends_the_task() {
    let mut driver = Driver::new(|_| {});
    driver.send(open_write(7, 0, 4096).as_bytes(), &[1; 512]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 4096);
    driver.send(unsolicited(7, 0, 512, true).as_bytes(), &[1; 1540]);
    assert!(matches!(driver.up(), Some(Up::FetchFailed { .. })));
    driver.refused("RFC 7143");
    assert_eq!(sense(&mut driver), (0x0c, 0x0c));
}

/// The log can report which command it was.
fn terminated(driver: &mut Driver) {
    let Some(Up::Terminated { command, how: Termination::Sense(sense) }) = driver.up() else {
        panic!("for the log")
    };
    assert_eq!((command.write_bytes, &sense.as_bytes()[12..14]), (512, &[0x0c, 0x0c][..]));
}

#[test]
fn data_that_was_not_agreed_on_never_reaches_the_layer_above() {
    let mut driver = Driver::new(|negotiated| negotiated.immediate_data = false);
    driver.send(write(7, 0, 512).as_bytes(), &[1; 512]);
    driver.refused("unexpected unsolicited data");
    terminated(&mut driver);
    assert!(driver.up().is_none());
    assert_eq!(sense(&mut driver), (0x0c, 0x0c));
    let mut driver = Driver::new(|negotiated| negotiated.initial_r2t = true);
    driver.send(open_write(7, 0, 512).as_bytes(), &[]);
    driver.refused("unexpected unsolicited data");
    terminated(&mut driver);
    driver.quiet();
    driver.send(unsolicited(7, 0, 0, true).as_bytes(), &[1; 512]);
    assert!(driver.up().is_none());
    assert_eq!(sense(&mut driver), (0x0c, 0x0c));
}

#[test]
fn a_wrong_data_digest_ends_the_task() {
    let mut driver = Driver::new(|negotiated| negotiated.data_digest = true);
    driver.send(open_write(7, 0, 512).as_bytes(), &[]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 512);
    let mut pdu = unsolicited(7, 0, 0, true);
    pdu.data_segment_length = wire::iscsi::U24::new(512);
    driver.pending.extend(pdu.as_bytes());
    driver.pending.extend([0; 516]);
    driver.pending[48 + 515] = 9;
    driver.run();
    assert!(matches!(driver.up(), Some(Up::FetchFailed { task: id, .. }) if id == task));
    driver.refused("RFC 7143");
    let sent = driver.sent();
    assert_eq!(sent[0].view::<wire::iscsi::Reject>().reason, RejectReason::DATA_DIGEST);
    assert_eq!(sent[0].data, pdu.as_bytes(), "the Reject quotes the PDU");
    assert_eq!((sent[1].view::<ScsiResponse>().status, &sent[1].data[14..16]), (2, &[0x47, 0x05][..]));
}

#[test]
fn data_for_no_task_or_no_r2t_is_rejected() {
    let mut driver = Driver::new(|_| {});
    driver.send(unsolicited(9, 0, 0, true).as_bytes(), &[1; 512]);
    driver.rejected(RejectReason::INVALID_FIELD, Opcode::DATA_OUT);
    driver.send(write(7, 0, 1024).as_bytes(), &[]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 1024);
    let (r2t, _) = driver.one::<ReadyToTransfer>();
    let tag = r2t.target_transfer_tag.get();
    driver.send(data_out(7, tag ^ 0x10000, 0, 0, true).as_bytes(), &[1; 512]);
    driver.rejected(RejectReason::INVALID_FIELD, Opcode::DATA_OUT);
    driver.send(data_out(7, tag, 0, 0, true).as_bytes(), &[1; 512]);
    assert!(matches!(driver.up(), Some(Up::FetchFailed { .. })), "F before all of the R2T came");
    driver.refused("RFC 7143");
    assert_eq!(sense(&mut driver), (0x0c, 0x0d));
}

#[test]
fn a_data_segment_that_is_too_long_drops_the_connection() {
    let mut driver = Driver::new(|negotiated| negotiated.max_recv_target = 512);
    driver.send(write(7, 0, 1024).as_bytes(), &[1; 516]);
    assert!(driver.gone().contains("13.12"));
}

#[test]
fn an_early_end_is_held_until_the_f_bit() {
    let mut driver = Driver::new(|_| {});
    driver.send(open_write(7, 0, 2048).as_bytes(), &[1; 512]);
    let task = driver.command().task;
    assert_eq!(driver.target.want(), Want::Nothing);
    driver.end(task, Ending { status: 0x18, ..GOOD });
    driver.quiet();
    driver.send(unsolicited(7, 0, 512, false).as_bytes(), &[1; 512]);
    driver.quiet();
    driver.send(unsolicited(7, 1, 1024, true).as_bytes(), &[1; 1024]);
    let (response, _) = driver.one::<ScsiResponse>();
    assert_eq!(response.status, 0x18);
}

#[test]
fn data_for_an_aborted_task_is_thrown_away_in_silence() {
    let mut driver = Driver::new(|_| {});
    driver.send(write(7, 0, 1024).as_bytes(), &[]);
    let task = driver.command().task;
    fetch(&mut driver, task, 0, 1024);
    let (r2t, _) = driver.one::<ReadyToTransfer>();
    let pdu = data_out(7, r2t.target_transfer_tag.get(), 0, 0, false);
    driver.send(pdu.as_bytes(), &[1; 512]);
    // Half of the next one has arrived when the abort does.
    let mut next = data_out(7, r2t.target_transfer_tag.get(), 1, 512, true);
    next.data_segment_length = wire::iscsi::U24::new(512);
    driver.pending.extend(next.as_bytes());
    driver.run();
    assert!(matches!(driver.target.want(), Want::Body { .. }));
    driver.down(Down::Abort { task });
    assert_eq!(driver.target.want(), Want::Skip { len: 512, pad: 0, digest: None });
    driver.pending.extend([1; 512]);
    driver.run();
    driver.send(next.as_bytes(), &[1; 512]);
    driver.quiet();
    assert!(matches!(driver.target.want(), Want::Header { len: 48 }));
}

/// The engine violates its contract: the connection ends, the daemon does not.
#[test]
fn a_transfer_that_cannot_be_ends_its_connection_alone() {
    let into =
        |at: u32, len: u32| move |task: TaskId| Down::Fetch { task, at, into: Driver::places(at, len) };
    let push = |at: u32, len: u32| {
        move |task: TaskId| Down::Push { task, at, from: Driver::places(at, len), end: None }
    };
    type Verb = Box<dyn Fn(TaskId) -> Down>;
    let wrong: [(Verb, &str); 4] = [
        (Box::new(into(4, 100)), "continue where the last one ended"),
        (Box::new(into(0, 3001)), "past the command's data-out"),
        (Box::new(into(0, 1000)), "without a buffer for unsolicited data"),
        (Box::new(push(0, 1)), "past the command's data-in"),
    ];
    for (verb, words) in wrong {
        let mut driver = Driver::new(|_| {});
        driver.send(open_write(7, 0, 3000).as_bytes(), &payload(512));
        let task = driver.command().task;
        driver.down(verb(task));
        match driver.up() {
            Some(Up::Fault { what }) => assert!(what.contains(words), "{what}"),
            other => panic!("{words}: {other:?}"),
        }
        assert!(matches!(driver.up(), Some(Up::Gone { reason }) if reason == "a bug in Lunette"));
        assert!(driver.up().is_none());
        // Calls that were still on their way down have no effect any more.
        driver.down(Down::Abort { task });
        assert!(driver.up().is_none());
    }
}
