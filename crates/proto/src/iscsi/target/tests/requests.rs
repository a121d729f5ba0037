//! NOP, text, task management, SNACK, logout, keep-alive, and noise.

use super::harness::{Driver, GOOD, read, unsolicited, write};
use crate::services::{Down, Function, FunctionId, FunctionResponse, Up};
use crate::stream::{StreamMachine, Want};
use crate::time::Time;
use proptest::prelude::*;
use wire::iscsi::{
    AsyncEvent, AsyncMessage, CONTINUE, FINAL, FunctionResponse as Response, LogoutOutcome, LogoutReason,
    LogoutRequest, LogoutResponse, NopIn, NopOut, Opcode, RejectReason, ScsiCommand, ScsiResponse, Snack,
    TAG_NONE, TaskFunction, TaskManagementRequest, TaskManagementResponse, TextRequest, TextResponse,
};
use zerocopy::IntoBytes;

fn nop(tag: u32, transfer: u32) -> NopOut {
    NopOut {
        opcode: 0x40,
        flags: FINAL,
        initiator_task_tag: tag.into(),
        target_transfer_tag: transfer.into(),
        ..NopOut::default()
    }
}

fn text(transfer: u32, flags: u8) -> TextRequest {
    TextRequest {
        opcode: 0x44,
        flags,
        initiator_task_tag: 9.into(),
        target_transfer_tag: transfer.into(),
        ..TextRequest::default()
    }
}

fn manage(function: TaskFunction, referenced: u32, ref_cmd_sn: u32) -> TaskManagementRequest {
    TaskManagementRequest {
        opcode: 0x42,
        flags: FINAL | function.0,
        initiator_task_tag: 99.into(),
        referenced_task_tag: referenced.into(),
        ref_cmd_sn: ref_cmd_sn.into(),
        cmd_sn: 3.into(),
        ..TaskManagementRequest::default()
    }
}

fn logout(reason: LogoutReason, cid: u16) -> LogoutRequest {
    LogoutRequest {
        opcode: 0x46,
        flags: FINAL | reason.0,
        initiator_task_tag: 9.into(),
        cid: cid.into(),
        ..LogoutRequest::default()
    }
}

fn function(driver: &mut Driver) -> (FunctionId, Function) {
    match driver.up() {
        Some(Up::Function { id, function, .. }) => (id, function),
        other => panic!("no function but {other:?}"),
    }
}

fn answer(driver: &mut Driver) -> Response {
    let (pdu, _) = driver.one::<TaskManagementResponse>();
    assert_eq!(pdu.initiator_task_tag.get(), 99);
    pdu.response
}

#[test]
fn a_ping_comes_back_as_far_as_it_is_taken() {
    let data: Vec<u8> = (0..6001u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    for digest in [false, true] {
        let mut driver = Driver::new(|negotiated| {
            negotiated.header_digest = digest;
            negotiated.data_digest = digest;
            negotiated.max_recv_initiator = 5003;
        });
        driver.send(nop(7, TAG_NONE).as_bytes(), &data);
        let (pdu, back) = driver.one::<NopIn>();
        assert_eq!((pdu.initiator_task_tag.get(), pdu.target_transfer_tag.get()), (7, TAG_NONE));
        assert_eq!(back, data[..5003]);
        driver.send(NopOut { opcode: 0, ..nop(8, TAG_NONE) }.as_bytes(), &[]);
        let (pdu, _) = driver.one::<NopIn>();
        assert_eq!((pdu.stat_sn.get(), pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get()), (2, 1, 4));
        driver.send(nop(TAG_NONE, TAG_NONE).as_bytes(), &[1, 2, 3]);
        driver.quiet();
    }
}

#[test]
fn pings_that_are_not_fetched_stop_the_reading() {
    let mut driver = Driver::new(|negotiated| negotiated.max_recv_initiator = 8192);
    for tag in 0..20 {
        driver.send(nop(tag, TAG_NONE).as_bytes(), &[7; 8192]);
    }
    assert_eq!(driver.target.want(), Want::Nothing);
    let mut back = driver.sent();
    while driver.target.owes() {
        back.extend(driver.sent());
    }
    assert_eq!(back.len(), 20);
    assert!(back.iter().all(|got| got.data.len() == 8192));
}

#[test]
fn silence_is_met_with_a_ping_then_with_the_end() {
    let mut driver = Driver::new(|_| {});
    let second = 1_000_000_000;
    assert_eq!(driver.target.deadline(), Some(Time(5 * second)));
    driver.target.tick(Time(5 * second));
    let (ping, _) = driver.one::<NopIn>();
    assert_eq!((ping.initiator_task_tag.get(), ping.stat_sn.get()), (TAG_NONE, 1));
    driver.now = Time(6 * second);
    driver.send(nop(TAG_NONE, ping.target_transfer_tag.get()).as_bytes(), &[]);
    assert_eq!(driver.target.deadline(), Some(Time(11 * second)));
    driver.target.tick(Time(11 * second));
    driver.one::<NopIn>();
    driver.target.tick(Time(16 * second));
    assert_eq!(driver.gone(), "no answer to keep-alive");
}

#[test]
fn our_own_delay_is_not_taken_for_silence() {
    let mut driver = Driver::new(|_| {});
    driver.send(write(7, 0, 512).as_bytes(), &[1; 512]);
    driver.command();
    driver.target.tick(Time(5_000_000_000));
    driver.target.tick(Time(10_000_000_000));
    driver.quiet();
}

#[test]
fn abort_task_names_the_task_or_reports_its_outcome() {
    let mut driver = Driver::new(|_| {});
    for tag in 0..3 {
        driver.send(read(tag, tag, 0).as_bytes(), &[]);
    }
    let task = driver.command().task;
    driver.command();
    let answered = driver.command().task;
    driver.send(manage(TaskFunction::ABORT_TASK, 0, 0).as_bytes(), &[]);
    let (id, asked) = function(&mut driver);
    assert_eq!(asked, Function::AbortTask(Some(task)));
    driver.send(
        TaskManagementRequest { initiator_task_tag: 98.into(), ..manage(TaskFunction::ABORT_TASK, 99, 3) }
            .as_bytes(),
        &[],
    );
    let (pdu, _) = driver.one::<TaskManagementResponse>();
    assert_eq!(pdu.response, Response::REJECTED, "a task management request is not aborted");
    driver.down(Down::Abort { task });
    driver.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
    assert_eq!(answer(&mut driver), Response::COMPLETE);
    driver.end(answered, GOOD);
    driver.send(manage(TaskFunction::ABORT_TASK, 2, 2).as_bytes(), &[]);
    let sent = driver.sent();
    sent[0].view::<ScsiResponse>();
    assert_eq!(sent[1].view::<TaskManagementResponse>().response, Response::NO_TASK);
    driver.send(manage(TaskFunction::ABORT_TASK, 77, 0).as_bytes(), &[]);
    let (id, asked) = function(&mut driver);
    assert_eq!(asked, Function::AbortTask(None), "before the window");
    driver.down(Down::FunctionDone { id, response: FunctionResponse::NoTask });
    assert_eq!(answer(&mut driver), Response::NO_TASK);
}

#[test]
fn an_abort_takes_the_place_of_a_command_that_got_lost() {
    let mut driver = Driver::new(|_| {});
    driver.send(
        TaskManagementRequest { cmd_sn: 1.into(), ..manage(TaskFunction::ABORT_TASK, 7, 0) }.as_bytes(),
        &[],
    );
    let (pdu, _) = driver.one::<TaskManagementResponse>();
    assert_eq!((pdu.response, pdu.exp_cmd_sn.get()), (Response::COMPLETE, 1));
    driver.send(read(8, 1, 0).as_bytes(), &[]);
    driver.command();
}

#[test]
fn a_numbered_abort_takes_no_place_but_its_own() {
    let mut driver = Driver::new(|_| {});
    let abort =
        TaskManagementRequest { opcode: 0x02, cmd_sn: 0.into(), ..manage(TaskFunction::ABORT_TASK, 77, 1) };
    driver.send(abort.as_bytes(), &[]);
    let (id, asked) = function(&mut driver);
    assert_eq!(asked, Function::AbortTask(None));
    driver.down(Down::FunctionDone { id, response: FunctionResponse::NoTask });
    assert_eq!(answer(&mut driver), Response::NO_TASK);
    driver.send(read(8, 1, 0).as_bytes(), &[]);
    driver.command();
}

#[test]
fn an_abort_ahead_of_a_lost_command_is_remembered() {
    let mut driver = Driver::new(|_| {});
    // Commands 0 and 1 were lost; both are aborted, the later one first.
    for (tag, cmd_sn, next) in [(8, 1, 0), (7, 0, 2)] {
        let abort = manage(TaskFunction::ABORT_TASK, tag, cmd_sn);
        driver.send(TaskManagementRequest { cmd_sn: 2.into(), ..abort }.as_bytes(), &[]);
        let (pdu, _) = driver.one::<TaskManagementResponse>();
        assert_eq!((pdu.response, pdu.exp_cmd_sn.get()), (Response::COMPLETE, next));
    }
    driver.send(read(9, 2, 0).as_bytes(), &[]);
    driver.command();
}

#[test]
fn a_rejected_request_may_be_sent_again() {
    let mut driver = behind_rejected();
    // Only the first is retransmitted before a new one arrives: the others are missing because of us as well.
    driver.send(read(6, 1, 0).as_bytes(), &[]);
    driver.command();
    driver.send(read(5, 3, 0).as_bytes(), &[]);
    driver.rejected(RejectReason::LONG_OPERATION, Opcode::SCSI_COMMAND);
    for (tag, cmd_sn) in [(8, 2), (5, 3)] {
        driver.send(read(tag, cmd_sn, 0).as_bytes(), &[]);
        driver.command();
    }
}

#[test]
fn rejected_requests_may_be_aborted() {
    let mut driver = behind_rejected();
    // The later one first. The tag of the other names a task, so its abort has to name none.
    for (tag, cmd_sn, next) in [(8, 2, 1), (6, 1, 3)] {
        let abort = manage(TaskFunction::ABORT_TASK, tag, cmd_sn);
        driver.send(abort.as_bytes(), &[]);
        let (pdu, _) = driver.one::<TaskManagementResponse>();
        assert_eq!((pdu.response, pdu.exp_cmd_sn.get()), (Response::COMPLETE, next));
        // An aborted command that arrives after all is a duplicate.
        driver.send(read(8, 2, 0).as_bytes(), &[]);
        driver.quiet();
    }
    driver.send(read(9, 3, 0).as_bytes(), &[]);
    driver.command();
}

#[test]
fn data_of_a_rejected_command_is_thrown_away_in_silence() {
    let mut driver = behind_rejected();
    let pdu = ScsiCommand { flags: ScsiCommand::WRITE, ..write(9, 3, 2048) };
    driver.send(pdu.as_bytes(), &[]);
    driver.rejected(RejectReason::LONG_OPERATION, Opcode::SCSI_COMMAND);
    driver.send(unsolicited(9, 0, 0, true).as_bytes(), &[1; 2048]);
    driver.quiet();
}

/// A task with tag 7, a rejected request with CmdSN 1, and one that was in transit behind it.
fn behind_rejected() -> Driver {
    let mut driver = Driver::new(|_| {});
    driver.send(read(7, 0, 0).as_bytes(), &[]);
    driver.command();
    driver.send(read(7, 1, 0).as_bytes(), &[]);
    driver.rejected(RejectReason::TASK_IN_PROGRESS, Opcode::SCSI_COMMAND);
    driver.send(read(8, 2, 0).as_bytes(), &[]);
    driver.rejected(RejectReason::LONG_OPERATION, Opcode::SCSI_COMMAND);
    driver
}

#[test]
fn an_abort_takes_no_place_of_its_own_number_or_behind() {
    let mut driver = Driver::new(|_| {});
    // CmdSN 0xffffffff is before the window, and RefCmdSN 1 after it.
    for (cmd_sn, referenced) in [(u32::MAX, 1), (1, 1), (1, 2)] {
        let abort = manage(TaskFunction::ABORT_TASK, 77, referenced);
        driver.send(TaskManagementRequest { cmd_sn: cmd_sn.into(), ..abort }.as_bytes(), &[]);
        let (id, asked) = function(&mut driver);
        assert_eq!(asked, Function::AbortTask(None));
        driver.down(Down::FunctionDone { id, response: FunctionResponse::NoTask });
        assert_eq!(answer(&mut driver), Response::NO_TASK);
    }
}

#[test]
fn a_window_that_aborts_have_opened_is_advertised() {
    let mut driver = Driver::new(|_| {});
    let tasks: Vec<_> = (0..4)
        .map(|n| {
            driver.send(write(n, n, 0x1_0000).as_bytes(), &[]);
            driver.command().task
        })
        .collect();
    // The queue contains an R2T, and no other PDU.
    driver.sent();
    driver.down(Down::Fetch { task: tasks[0], at: 0, into: Driver::places(0, 4096) });
    for task in tasks {
        driver.down(Down::Abort { task });
    }
    let (nop, _) = driver.one::<NopIn>();
    assert!(nop.max_cmd_sn.get() >= 4, "{}", nop.max_cmd_sn.get());
}

#[test]
fn a_window_that_was_closed_for_want_of_room_opens_by_itself() {
    let mut driver = Driver::new(|negotiated| negotiated.initial_r2t = false);
    driver.target.limit_window(1);
    driver.send(read(0, 0, 0).as_bytes(), &[]);
    let first = driver.command().task;
    driver.end(first, GOOD);
    let (response, _) = driver.one::<ScsiResponse>();
    assert_eq!((response.exp_cmd_sn.get(), response.max_cmd_sn.get()), (1, 1), "there is room for one");
    driver.send(read(1, 1, 0).as_bytes(), &[]);
    driver.command();
    assert!(driver.target.limit_window(0), "it waits for room");
    driver.quiet();
    assert!(!driver.target.limit_window(2));
    let (nop, _) = driver.one::<NopIn>();
    assert_eq!((nop.exp_cmd_sn.get(), nop.max_cmd_sn.get()), (2, 3));
    assert!(!driver.target.limit_window(1), "what was sent stands");
    driver.quiet();
}

#[test]
fn if_all_data_is_requested_the_window_needs_no_room() {
    let mut driver = Driver::new(|negotiated| {
        (negotiated.initial_r2t, negotiated.immediate_data) = (true, false);
    });
    driver.target.limit_window(0);
    driver.send(read(0, 0, 0).as_bytes(), &[]);
    let task = driver.command().task;
    driver.end(task, GOOD);
    let (response, _) = driver.one::<ScsiResponse>();
    assert_eq!((response.exp_cmd_sn.get(), response.max_cmd_sn.get()), (1, 4));
}

#[test]
fn a_task_that_waits_for_its_data_is_aborted_at_once() {
    for set in [false, true] {
        let mut driver = Driver::new(|_| {});
        let pdu = ScsiCommand { flags: ScsiCommand::WRITE, ..write(7, 0, 2048) };
        driver.send(pdu.as_bytes(), &[]);
        let task = driver.command().task;
        driver.end(task, GOOD);
        driver.quiet();
        if set {
            driver.send(manage(TaskFunction::ABORT_TASK_SET, TAG_NONE, 0).as_bytes(), &[]);
            let (id, asked) = function(&mut driver);
            assert_eq!(asked, Function::AbortTaskSet);
            driver.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
        } else {
            driver.send(manage(TaskFunction::ABORT_TASK, 7, 0).as_bytes(), &[]);
        }
        assert_eq!(answer(&mut driver), Response::COMPLETE);
        driver.send(unsolicited(7, 0, 0, true).as_bytes(), &[1; 2048]);
        driver.quiet();
    }
}

#[test]
fn functions_that_are_not_there_are_refused() {
    let mut driver = Driver::new(|_| {});
    for (asked, expected) in [
        (TaskFunction::TASK_REASSIGN, Response::REASSIGN_NOT_SUPPORTED),
        (TaskFunction::QUERY_TASK, Response::NOT_SUPPORTED),
        (TaskFunction(0x55), Response::NOT_SUPPORTED),
    ] {
        driver.send(manage(asked, 7, 0).as_bytes(), &[]);
        assert_eq!(answer(&mut driver), expected);
    }
    driver.quiet();
}

#[test]
fn the_reason_of_a_failed_text_negotiation_is_reported() {
    for (keys, why) in [
        ("HeaderDigest=None\0", "HeaderDigest in the full feature phase"),
        ("InitiatorAlias=a\0InitiatorAlias=b\0", "InitiatorAlias was sent twice"),
        ("MaxRecvDataSegmentLength=1\0", "MaxRecvDataSegmentLength is out of bounds"),
    ] {
        let mut driver = Driver::new(|_| {});
        driver.send(text(TAG_NONE, FINAL).as_bytes(), keys.as_bytes());
        driver.refused(why);
        assert_eq!(driver.one::<wire::iscsi::Reject>().0.reason, RejectReason::PROTOCOL_ERROR);
    }
}

#[test]
fn snack_and_unknown_opcodes_are_rejected() {
    let mut driver = Driver::new(|_| {});
    driver.send(Snack { flags: FINAL, ..Snack::default() }.as_bytes(), &[]);
    driver.rejected(RejectReason::PROTOCOL_ERROR, Opcode::SNACK);
    driver.send(NopOut { opcode: 0x1d, ..nop(7, TAG_NONE) }.as_bytes(), &[1; 100]);
    driver.rejected(RejectReason::NOT_SUPPORTED, Opcode(0x1d));
    driver.send(text(5, FINAL).as_bytes(), &[]);
    driver.rejected(RejectReason::INVALID_FIELD, Opcode::TEXT_REQUEST);
    driver.send(logout(LogoutReason(9), 0).as_bytes(), &[]);
    driver.rejected(RejectReason::INVALID_FIELD, Opcode::LOGOUT_REQUEST);
}

#[test]
fn logout_ends_all_tasks_and_is_answered_when_none_takes_effect_any_more() {
    for reason in [LogoutReason::CLOSE_SESSION, LogoutReason::CLOSE_CONNECTION] {
        let mut driver = Driver::new(|_| {});
        driver.send(read(7, 0, 512).as_bytes(), &[]);
        let task = driver.command().task;
        driver.down(Down::Push { task, at: 0, from: Driver::places(0, 512), end: Some(GOOD) });
        driver.send(logout(reason, 0).as_bytes(), &[]);
        driver.leaving();
        driver.end(task, GOOD);
        assert_eq!(driver.target.want(), Want::Nothing);
        driver.quiet();
        driver.down(Down::Close);
        assert!(!driver.target.finished());
        let (pdu, _) = driver.one::<LogoutResponse>();
        assert_eq!(pdu.response, LogoutOutcome::CLOSED);
        assert_eq!(driver.gone(), "logged out");
    }
}

#[test]
fn logouts_that_close_nothing_are_answered() {
    let mut driver = Driver::new(|_| {});
    for (reason, cid, expected) in [
        (LogoutReason::CLOSE_CONNECTION, 5, LogoutOutcome::CID_NOT_FOUND),
        (LogoutReason::RECOVERY, 0, LogoutOutcome::RECOVERY_NOT_SUPPORTED),
    ] {
        driver.send(logout(reason, cid).as_bytes(), &[]);
        let (pdu, _) = driver.one::<LogoutResponse>();
        assert_eq!(pdu.response, expected);
    }
    driver.quiet();
}

#[test]
fn a_requested_logout_is_waited_for_before_the_connection_closes() {
    let mut driver = Driver::new(|_| {});
    driver.down(Down::RequestLogout { within_seconds: 3 });
    let (pdu, _) = driver.one::<AsyncMessage>();
    assert_eq!((pdu.event, pdu.parameter3.get()), (AsyncEvent::LOGOUT_REQUEST, 3));
    driver.target.tick(Time(3_000_000_000));
    driver.leaving();
    driver.quiet();
    driver.down(Down::Close);
    let (pdu, _) = driver.one::<AsyncMessage>();
    assert_eq!((pdu.event, pdu.parameter1.get()), (AsyncEvent::CONNECTION_DROP, 0));
    assert_eq!(driver.gone(), "did not log out when requested");
}

#[test]
fn a_session_is_notified_that_this_side_closes_it() {
    let mut driver = Driver::new(|_| {});
    driver.send(read(7, 0, 512).as_bytes(), &[]);
    let task = driver.command().task;
    driver.down(Down::Push { task, at: 0, from: Driver::places(0, 512), end: Some(GOOD) });
    driver.down(Down::Close);
    assert_eq!(driver.target.want(), Want::Nothing);
    let (pdu, data) = driver.one::<AsyncMessage>();
    assert_eq!((pdu.event, pdu.parameter2.get(), pdu.parameter3.get()), (AsyncEvent::SESSION_DROP, 0, 0));
    assert_eq!((pdu.initiator_task_tag.get(), data.len()), (TAG_NONE, 0));
    assert_eq!(driver.gone(), "closed by this side");
    // A discovery session is just closed.
    let mut driver = Driver::new(|negotiated| negotiated.discovery = true);
    driver.down(Down::Close);
    assert_eq!(driver.gone(), "closed by this side");
}

#[test]
fn a_session_whose_peer_takes_nothing_is_closed_all_the_same() {
    let mut driver = Driver::new(|_| {});
    driver.down(Down::Close);
    driver.target.tick(Time(5_000_000_000));
    assert_eq!(driver.gone(), "closed by this side");
}

#[test]
fn a_logout_that_waits_for_a_task_for_too_long_is_not_answered() {
    let mut driver = Driver::new(|_| {});
    driver.send(logout(LogoutReason::CLOSE_SESSION, 0).as_bytes(), &[]);
    driver.leaving();
    let deadline = driver.target.deadline().unwrap();
    assert_eq!(deadline, Time(5_000_000_000));
    driver.target.tick(deadline);
    assert_eq!(driver.gone(), "logged out");
    driver.down(Down::Close);
    driver.quiet();
}

#[test]
fn a_discovery_session_has_no_commands() {
    let discovery = || Driver::new(|negotiated| negotiated.discovery = true);
    for header in [
        read(7, 0, 0).as_bytes(),
        unsolicited(7, 0, 0, true).as_bytes(),
        manage(TaskFunction::ABORT_TASK_SET, TAG_NONE, 0).as_bytes(),
    ] {
        let mut driver = discovery();
        driver.send(header, &[]);
        assert!(driver.gone().contains("discovery"));
    }
    let mut driver = discovery();
    driver.target.tick(Time(5_000_000_000));
    assert!(driver.gone().contains("discovery"));
    let mut driver = discovery();
    driver.down(Down::RequestLogout { within_seconds: 3 });
    assert!(driver.gone().contains("discovery"));
}

proptest! {
    /// Whatever arrives after login, nothing panics, and tasks are answered or refused.
    #[test]
    fn noise_is_survived(
        headers in prop::collection::vec((0u8..0x80, any::<u8>(), 0u8..3, 0u16..600, 0u32..6, 0u32..8), 1..40),
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        digests in any::<(bool, bool)>(),
        act in prop::collection::vec(0u8..4, 40),
    ) {
        let mut driver = Driver::new(|negotiated| {
            negotiated.header_digest = digests.0;
            negotiated.data_digest = digests.1;
            negotiated.max_outstanding_r2t = 3;
        });
        for ((opcode, flags, ahs, len, tag, number), act) in headers.into_iter().zip(act) {
            let mut pdu = ScsiCommand { opcode, flags, total_ahs_length: ahs / 2, ..read(tag, number, u32::from(len)) };
            pdu.exp_stat_sn = number.into();
            let mut header = pdu.as_bytes().to_vec();
            header.resize(header.len() + usize::from(pdu.total_ahs_length) * 4, 1);
            driver.send(&header, &vec![opcode; usize::from(len)]);
            while let Some(up) = driver.up() {
                if let Up::Command(command) = up {
                    let task = command.task;
                    match act {
                        0 if command.write_bytes > 0 => {
                            let into = Driver::places(0, command.write_bytes);
                            driver.down(Down::Fetch { task, at: 0, into });
                        }
                        1 => {
                            let from = Driver::places(0, command.read_bytes);
                            driver.down(Down::Push { task, at: 0, from, end: Some(GOOD) });
                        }
                        2 => driver.down(Down::Abort { task }),
                        _ => driver.end(task, GOOD),
                    }
                }
            }
            driver.sent();
        }
        driver.pending.extend(noise);
        driver.run();
        driver.sent();
        driver.target.tick(Time(u64::MAX));
        driver.target.closed(Time(u64::MAX), None);
        prop_assert!(driver.target.finished());
    }
}

#[test]
fn text_is_gathered_and_answered_in_pieces() {
    let mut driver = Driver::new(|negotiated| negotiated.max_recv_initiator = 512);
    let unknown: String = (10..50).map(|n| format!("X-{n}=some\0")).collect();
    let (head, tail) = unknown.as_bytes().split_at(303);
    driver.send(text(TAG_NONE, CONTINUE).as_bytes(), head);
    let (pdu, data) = driver.one::<TextResponse>();
    assert_eq!((pdu.flags, data.len()), (0, 0));
    let tag = pdu.target_transfer_tag.get();
    assert_ne!(tag, TAG_NONE);
    driver.send(text(tag, FINAL).as_bytes(), tail);
    let (pdu, first) = driver.one::<TextResponse>();
    assert_eq!((pdu.flags, pdu.target_transfer_tag.get()), (CONTINUE, tag));
    driver.send(text(tag, FINAL).as_bytes(), &[]);
    let (pdu, second) = driver.one::<TextResponse>();
    assert_eq!((pdu.flags, pdu.target_transfer_tag.get()), (FINAL, TAG_NONE));
    let answer: String = (10..50).map(|n| format!("X-{n}=NotUnderstood\0")).collect();
    assert_eq!((first.len(), [first, second].concat()), (512, answer.into_bytes()));
}
