//! The log of single commands and task management: at debug what ends with CHECK CONDITION and what is rare,
//! at trace every command. While these levels are off, each costs one check of the level.

use super::Core;
use super::stall::Moving;
use crate::slots::Key;
use proto::services::{Command, Function, FunctionResponse, TaskId, Termination};
use reactor::io::Io;
use scsi::Ending;
use scsi::command::Status;
use scsi::home::Aborted;
use tracing::Level;
use wire::Sense;

impl<I: Io> Core<I> {
    /// A command has arrived.
    pub(super) fn trace_command(&self, connection: Key, command: &Command) {
        if tracing::enabled!(Level::TRACE) {
            self.log_command(connection, command);
        }
    }

    /// A command that needed no task ends.
    pub(super) fn trace_end(&self, connection: Key, command: &Command, ending: &Ending) {
        if tracing::enabled!(Level::DEBUG) {
            self.log_end(connection, command, ending);
        }
    }

    /// A task ends.
    pub(super) fn trace_task_end(&self, key: Key, ending: &Ending) {
        if tracing::enabled!(Level::DEBUG)
            && let Some(task) = self.tasks.get(key)
        {
            match task.connection {
                Some(connection) => self.log_end(connection, &task.command, ending),
                None => log_background_end(&task.command, ending),
            }
        }
    }

    /// The data of a READ that needed no task has been sent.
    pub(super) fn trace_immediate_read_end(&self, connection: Key, task: TaskId, moving: Moving) {
        if tracing::enabled!(Level::TRACE) {
            self.log_status(connection, task, &Ending { read_bytes: moving.bytes().into(), ..Ending::GOOD });
        }
    }

    /// A transport ends a task because of its initiator's error.
    pub(super) fn trace_fetch_failed(&self, key: Key, sense: &Sense) {
        if is_traced() {
            self.trace_task_end(key, &by_transport(sense));
        }
    }

    /// A transport ends a command that it does not pass up.
    pub(super) fn trace_terminated(&self, connection: Key, command: &Command, how: &Termination) {
        let ending = match how {
            Termination::Sense(sense) => by_transport(sense),
            Termination::TaskSetFull => Ending::of(Status::TaskSetFull),
            Termination::Aborted => {
                return self.trace_abort(Some(connection), command.task, Aborted::Silently);
            }
        };
        self.trace_end(connection, command, &ending);
    }

    /// A command is aborted.
    pub(super) fn trace_abort(&self, connection: Option<Key>, task: TaskId, how: Aborted) {
        let (session, initiator) = self.session_of(connection);
        tracing::trace!(session, initiator, task = %named(task), ?how, "command aborted");
    }

    /// A task management request has arrived.
    pub(super) fn trace_function(&self, connection: Key, lun: u64, function: Function) {
        if tracing::enabled!(Level::DEBUG) {
            let (session, initiator) = self.session_of(Some(connection));
            let task = task_of(function).map(named).map(tracing::field::display);
            tracing::debug!(session, initiator, lun = %shown_lun(lun), task, "{}", name(function));
        }
    }

    /// It is answered.
    pub(super) fn trace_response(&self, connection: Key, response: FunctionResponse) {
        let (session, initiator) = self.session_of(Some(connection));
        tracing::debug!(session, initiator, ?response, "task management answered");
    }

    #[cold]
    fn log_command(&self, connection: Key, command: &Command) {
        let (session, initiator) = self.session_of(Some(connection));
        let Command { task, lun, attribute, cdb, read_bytes, write_bytes, unsolicited_bytes } = command;
        tracing::trace!(
            session, initiator, task = %named(*task), lun = %shown_lun(*lun), cdb = %hex(cdb.as_bytes()),
            ?attribute, read_bytes, write_bytes, unsolicited_bytes,
            "command"
        );
    }

    #[cold]
    fn log_end(&self, connection: Key, command: &Command, ending: &Ending) {
        let sense = ending.sense.filter(|_| ending.is_error());
        let (session, initiator) = self.session_of(Some(connection));
        match sense.filter(|_| ending.status == Status::CheckCondition) {
            Some(sense) => tracing::debug!(
                session, initiator, task = %named(command.task), lun = %shown_lun(command.lun), cdb = %hex(command.cdb.as_bytes()),
                sense = %hex(sense.as_bytes()),
                "CHECK CONDITION: {sense}"
            ),
            None => self.log_status(connection, command.task, ending),
        }
    }

    #[cold]
    fn log_status(&self, connection: Key, task: TaskId, ending: &Ending) {
        let (session, initiator) = self.session_of(Some(connection));
        let Ending { status, read_bytes, write_bytes, .. } = ending;
        tracing::trace!(session, initiator, task = %named(task), ?status, read_bytes, write_bytes, "command ended");
    }

    fn session_of(&self, connection: Option<Key>) -> (Option<u64>, Option<&str>) {
        let facts = connection.and_then(|key| self.connections.get(key)).map(|conn| &conn.facts);
        let session = facts.and_then(|facts| facts.session.as_deref());
        (facts.map(|facts| facts.serial), session.map(|session| session.initiator.as_str()))
    }
}

/// Whether a status has to be kept until it is logged.
pub(super) fn is_traced() -> bool {
    tracing::enabled!(Level::DEBUG)
}

/// A transport ends a command with this sense data.
fn by_transport(sense: &Sense) -> Ending {
    Ending { sense: Some(*sense), ..Ending::of(Status::CheckCondition) }
}

/// The end of a command that was answered when it began (IMMED): this status is sent to nobody.
#[cold]
fn log_background_end(command: &Command, ending: &Ending) {
    let Ending { status, sense, .. } = ending;
    let sense = sense.map(|sense| sense.to_string()).map(tracing::field::display);
    tracing::debug!(
        task = %named(command.task), lun = %shown_lun(command.lun), cdb = %hex(command.cdb.as_bytes()), ?status, sense,
        "background operation ended"
    );
}

/// The transport's handle of a task, the same where it arrives and where it ends.
fn named(task: TaskId) -> String {
    format!("{}.{}", task.slot, task.generation)
}

fn shown_lun(lun: u64) -> String {
    wire::scsi::lun::number(lun).map_or_else(|| format!("{lun:#018x}"), |number| number.to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn task_of(function: Function) -> Option<TaskId> {
    match function {
        Function::AbortTask(task) => task,
        Function::AbortTaskSet
        | Function::ClearTaskSet
        | Function::LogicalUnitReset
        | Function::TargetWarmReset
        | Function::TargetColdReset
        | Function::ClearAca => None,
    }
}

/// Names from SAM-5 section 7.
fn name(function: Function) -> &'static str {
    match function {
        Function::AbortTask(_) => "ABORT TASK",
        Function::AbortTaskSet => "ABORT TASK SET",
        Function::ClearTaskSet => "CLEAR TASK SET",
        Function::LogicalUnitReset => "LOGICAL UNIT RESET",
        Function::TargetWarmReset => "TARGET WARM RESET",
        Function::TargetColdReset => "TARGET COLD RESET",
        Function::ClearAca => "CLEAR ACA",
    }
}
