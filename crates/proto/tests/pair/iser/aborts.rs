//! Commands that are aborted, or ended early, at every stage: posted work cannot be recalled. Until it has
//! finished the initiator is not answered, and places and slot are not released.

use super::raw::{GOOD, LINUX, Raw, disk, read, write};
use crate::support::fabric::Op;
use proto::message::{MessageMachine, WorkId};
use proto::services::{Down, Ending, Function, FunctionId, FunctionResponse, TaskId, Up};
use wire::iscsi::{
    FINAL, LogoutReason, LogoutRequest, LogoutResponse, NopOut, Opcode, ScsiCommand, ScsiResponse, TAG_NONE,
    TaskFunction, TaskManagementRequest, TaskManagementResponse,
};
use wire::iser::Header;
use zerocopy::IntoBytes;

const LEN: u32 = 100_000;
const TASK_ABORTED: Ending = Ending { status: 0x40, ..GOOD };

/// A target with a command that advertises what it needs.
fn given(pdu: ScsiCommand) -> (Raw, TaskId) {
    let (mut raw, _) = Raw::logged_in(LINUX);
    let task = give(&mut raw, pdu);
    (raw, task)
}

fn give(raw: &mut Raw, pdu: ScsiCommand) -> TaskId {
    raw.send(Header::control(Some((1, 0)), Some((2, 0))), pdu.as_bytes(), &[]);
    raw.command().task
}

/// The same with an RDMA Read in progress.
fn fetching() -> (Raw, TaskId, WorkId) {
    let (mut raw, task) = given(write(7, 1, LEN));
    raw.down(Down::Fetch { task, at: 0, into: disk(0, LEN) });
    let Op::Read { work, .. } = raw.posted() else { panic!("no read") };
    (raw, task, work)
}

/// The same with an RDMA Write in progress, of all data and without the ending.
fn pushing() -> (Raw, TaskId, WorkId) {
    let (mut raw, task) = given(read(7, 1, LEN));
    raw.down(Down::Push { task, at: 0, from: disk(0, LEN), end: None });
    let Op::Write { work, .. } = raw.posted() else { panic!("no write") };
    (raw, task, work)
}

/// The places of this task are released, and nothing else happens.
fn comes_back(raw: &mut Raw, task: TaskId) {
    assert!(matches!(raw.up(), Up::Pushed(back) if back == task));
    assert!(raw.node.machine.poll().is_none());
}

/// The initiator aborts task 7.
fn abort(raw: &mut Raw, task: TaskId) -> FunctionId {
    let pdu = TaskManagementRequest {
        opcode: Opcode::TASK_MANAGEMENT_REQUEST.0 | Opcode::IMMEDIATE,
        flags: FINAL | TaskFunction::ABORT_TASK.0,
        initiator_task_tag: 8.into(),
        referenced_task_tag: 7.into(),
        cmd_sn: 2.into(),
        ..TaskManagementRequest::default()
    };
    raw.send(Header::control(None, None), pdu.as_bytes(), &[]);
    match raw.up() {
        Up::Function { id, function: Function::AbortTask(Some(aborted)), .. } => {
            assert_eq!(aborted, task);
            id
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_abort_is_answered_after_the_reads() {
    let (mut raw, task, work) = fetching();
    let id = abort(&mut raw, task);
    raw.down(Down::Abort { task });
    raw.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
    raw.quiet();
    raw.finished(work);
    comes_back(&mut raw, task);
    raw.sent::<TaskManagementResponse>();
    raw.quiet();
}

/// Nothing that is sent behind an RDMA Write arrives before it.
#[test]
fn an_abort_is_answered_behind_the_writes() {
    let (mut raw, task, work) = pushing();
    let id = abort(&mut raw, task);
    raw.down(Down::Abort { task });
    raw.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
    raw.sent::<TaskManagementResponse>();
    raw.quiet();
    raw.finished(work);
    comes_back(&mut raw, task);
    raw.quiet();
}

/// A status that does not wait for the data-out is sent once the reads have ended.
#[test]
fn a_response_waits_for_the_reads() {
    let (mut raw, task, work) = fetching();
    raw.down(Down::End { task, ending: TASK_ABORTED });
    raw.quiet();
    raw.finished(work);
    comes_back(&mut raw, task);
    let (response, _, invalidate) = raw.sent::<ScsiResponse>();
    assert_eq!((response.status, invalidate), (0x40, Some(2)));
    raw.quiet();
}

#[test]
fn a_response_waits_for_the_writes_of_an_earlier_push() {
    let (mut raw, task, work) = pushing();
    raw.down(Down::End { task, ending: TASK_ABORTED });
    raw.quiet();
    raw.finished(work);
    comes_back(&mut raw, task);
    assert_eq!(raw.sent::<ScsiResponse>().0.status, 0x40);
    raw.quiet();
}

/// A push with the ending releases its places once, aborted or not.
#[test]
fn a_last_push_returns_its_buffer_once() {
    for aborted in [false, true] {
        let (mut raw, task) = given(read(7, 1, LEN));
        raw.down(Down::Push { task, at: 0, from: disk(0, LEN), end: Some(GOOD) });
        let Op::Write { work, .. } = raw.posted() else { panic!("no write") };
        if aborted {
            raw.down(Down::Abort { task });
        }
        assert!(raw.node.machine.poll().is_none());
        raw.finished(work);
        raw.sent::<ScsiResponse>();
        comes_back(&mut raw, task);
        raw.down(Down::Abort { task });
        raw.quiet();
    }
}

/// What was not posted is not waited for.
#[test]
fn what_was_not_posted_is_returned_at_once() {
    let end = |task| Down::End { task, ending: TASK_ABORTED };
    for (pdu, ends) in [(write(7, 1, LEN), false), (write(7, 1, LEN), true), (read(7, 1, LEN), false)] {
        let (mut raw, task) = given(pdu);
        raw.node.port.room = 0;
        if pdu.reads() {
            raw.down(Down::Push { task, at: 0, from: disk(0, LEN), end: None });
        } else {
            raw.down(Down::Fetch { task, at: 0, into: disk(0, LEN) });
        }
        raw.quiet();
        raw.down(if ends { end(task) } else { Down::Abort { task } });
        comes_back(&mut raw, task);
        raw.node.port.room = usize::MAX;
        raw.post();
        if ends {
            raw.sent::<ScsiResponse>();
        }
        raw.quiet();
    }
}

/// Data-Out that the initiator owes is not waited for either: it is discarded.
#[test]
fn places_of_unsolicited_data_come_back_at_once() {
    let pdu = ScsiCommand { flags: ScsiCommand::WRITE, ..write(7, 1, 8192) };
    for down in [|task| Down::Abort { task }, |task| Down::End { task, ending: TASK_ABORTED }] {
        let (mut raw, task) = given(pdu);
        raw.down(Down::Fetch { task, at: 0, into: disk(0, 8192) });
        raw.down(down(task));
        comes_back(&mut raw, task);
        raw.quiet();
    }
}

/// Tasks that have borrowed nothing release nothing.
#[test]
fn a_buffer_that_was_not_lent_is_not_returned() {
    let (mut raw, task) = given(write(7, 1, LEN));
    raw.down(Down::Abort { task });
    raw.quiet();
    let (mut raw, task, work) = fetching();
    raw.finished(work);
    // The engine was notified of the data before it aborted the task.
    raw.down(Down::Abort { task });
    assert!(matches!(raw.up(), Up::Fetched(fetched) if fetched == task));
    raw.quiet();
}

/// With transfers in both directions, the places are released together, when everything has finished.
#[test]
fn places_of_both_ways_come_back_together() {
    for reads_first in [false, true] {
        let pdu = ScsiCommand { total_ahs_length: 2, ..write(7, 1, 512) };
        let pdu = ScsiCommand { flags: pdu.flags | ScsiCommand::READ, ..pdu };
        let (mut raw, _) = Raw::logged_in(LINUX);
        let header = Header::control(Some((1, 0)), Some((2, 0)));
        raw.send(header, &[pdu.as_bytes(), &[0, 5, 2, 0, 0, 0, 4, 0]].concat(), &[]);
        let task = raw.command().task;
        raw.down(Down::Fetch { task, at: 0, into: disk(0, 512) });
        raw.down(Down::Push { task, at: 0, from: disk(0, 1024), end: None });
        let Op::Read { work: reads, .. } = raw.posted() else { panic!("no read") };
        let Op::Write { work: writes, .. } = raw.posted() else { panic!("no write") };
        raw.down(Down::Abort { task });
        let (first, last) = if reads_first { (reads, writes) } else { (writes, reads) };
        raw.finished(first);
        raw.quiet();
        raw.finished(last);
        comes_back(&mut raw, task);
        raw.quiet();
    }
}

/// A slot is not reused before all work of its last task has finished.
#[test]
fn slots_are_kept_as_long_as_their_places() {
    let (mut raw, task, work) = fetching();
    raw.down(Down::Abort { task });
    let mut numbers = 2..;
    for _ in 0..40 {
        let number = numbers.next().unwrap();
        let other = give(&mut raw, write(number + 100, number, 512));
        assert_ne!(other.slot, task.slot);
        raw.down(Down::End { task: other, ending: GOOD });
        raw.sent::<ScsiResponse>();
    }
    raw.finished(work);
    comes_back(&mut raw, task);
    let slots = (0..40).map(|_| {
        let number = numbers.next().unwrap();
        let other = give(&mut raw, write(number + 100, number, 512));
        raw.down(Down::End { task: other, ending: GOOD });
        raw.sent::<ScsiResponse>();
        other.slot
    });
    assert!(slots.collect::<Vec<_>>().contains(&task.slot), "it is free again");
}

/// After a logout nothing is released separately: the end of the connection releases it, once that is closed.
#[test]
fn the_end_is_reported_when_nothing_is_under_way() {
    let (mut raw, _, work) = fetching();
    let pdu = LogoutRequest {
        opcode: Opcode::LOGOUT_REQUEST.0 | Opcode::IMMEDIATE,
        flags: FINAL | LogoutReason::CLOSE_SESSION.0,
        initiator_task_tag: 9.into(),
        cmd_sn: 2.into(),
        ..LogoutRequest::default()
    };
    raw.send(Header::control(None, None), pdu.as_bytes(), &[]);
    assert!(matches!(raw.up(), Up::Leaving));
    raw.down(Down::Close);
    raw.quiet();
    raw.finished(work);
    raw.sent::<LogoutResponse>();
    raw.quiet();
    assert_eq!(raw.gone(), "logged out");
    // The same when a violation of the standard ends it at once.
    let (mut raw, ..) = fetching();
    let pdu = NopOut { initiator_task_tag: TAG_NONE.into(), ..NopOut::default() };
    raw.send(Header { flags: 0x20, ..Header::control(None, None) }, pdu.as_bytes(), &[]);
    assert!(raw.node.machine.is_over());
    raw.quiet();
    assert!(raw.gone().contains("Hello"));
}
