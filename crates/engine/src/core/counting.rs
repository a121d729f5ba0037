//! Commands are counted when they end, by unit and by session: when their data has been sent, otherwise with
//! their status. A READ or WRITE of memory that is answered in the turn in which it arrived takes no time by
//! the clock, which does not advance within a turn.

#[cfg(test)]
mod tests;

use super::Core;
use super::answers::UnsentReads;
use super::connection::note_command;
use super::stall::Moving;
use super::task::Task;
use crate::counters::{Counters, Failure};
use crate::slots::Key;
use proto::services::{Command, Termination};
use proto::time::Time;
use reactor::io::Io;
use scsi::Direction;
use scsi::Ending;
use scsi::command::Status;
use wire::Sense;

fn nanos(now: Time, begun: Time) -> u64 {
    now.0.saturating_sub(begun.0)
}

/// Counts READs that were answered on arrival, for a session or a unit.
#[inline(always)]
pub(super) fn count_answers(counters: &Counters, reads: &UnsentReads, now: Time) {
    counters.read.add(reads.commands.into(), reads.bytes, nanos(now, reads.begun));
}

impl<I: Io> Core<I> {
    /// The data borrowed for READs of one unit that were answered on arrival has been sent: they have ended.
    #[inline(always)]
    pub(super) fn end_answered(&mut self, reads: UnsentReads) {
        let UnsentReads { unit, commands, .. } = reads;
        let here = &mut self.units[unit];
        count_answers(&here.counters, &reads, self.io.now());
        // None of them was ordered.
        if here.gate.end(commands) {
            self.report_held(unit);
        }
    }

    /// Data borrowed for READs will not be sent, or whether it was is unknown: their session ends.
    pub(super) fn end_unsent(&mut self, connection: Key, reads: UnsentReads) {
        let UnsentReads { unit, commands, .. } = reads;
        self.count_failure(Some(connection), unit, Failure::Aborted, commands.into());
        if self.units[unit].gate.end(commands) {
            self.report_held(unit);
        }
    }

    /// The data of a READ that had no task has been sent.
    pub(super) fn count_immediate_read(&mut self, connection: Key, unit: u32, begun: Time, moving: Moving) {
        let nanos = nanos(self.io.now(), begun);
        self.count(Some(connection), unit, Direction::Read, moving.bytes().into(), nanos);
    }

    /// A WRITE that had no task has ended.
    pub(super) fn count_written(&mut self, connection: Key, unit: u32, bytes: u32) {
        self.count(Some(connection), unit, Direction::Write, bytes.into(), 0);
    }

    /// A task has ended for its initiator: with this, or successfully with its data. One that nobody waits
    /// for any more was counted when it was answered, or never is.
    pub(super) fn count_task(&mut self, key: Key, ending: Option<&Ending>) {
        let Some(task) = self.tasks.get(key).filter(|task| task.connection.is_some()) else { return };
        let Task { connection, unit, command, begun, .. } = task;
        let (connection, unit, direction) = (*connection, *unit, Direction::of(&command.cdb));
        if let Some(ending) = ending.filter(|ending| ending.is_error()) {
            self.count_refused(connection, unit, direction, ending.status, ending.sense.as_ref());
            return;
        }
        let bytes = match direction {
            Direction::Read => task.pushed_bytes,
            Direction::Write => u64::from(task.asked_bytes),
            Direction::Other => 0,
        };
        self.count(connection, unit, direction, bytes, nanos(self.io.now(), *begun));
    }

    /// A task gets this sense data with its data, or by its transport.
    pub(super) fn count_sense(&mut self, connection: Option<Key>, unit: u32, sense: &Sense) {
        let Some(key) = sense.key() else { return };
        self.count_failure(connection, unit, Failure::Sense(key), 1);
    }

    /// A transport has ended a command that it did not pass up.
    pub(super) fn count_terminated(&mut self, connection: Key, command: &Command, how: &Termination) {
        let Some(conn) = self.connections.get_mut(connection) else { return };
        note_command(&mut conn.facts, &mut conn.load.work, command.read_bytes, command.write_bytes);
        let unit = conn.unit_of(command.lun).unwrap_or(super::lun::NO_UNIT);
        let (status, sense) = match how {
            Termination::Sense(sense) => (Status::CheckCondition, Some(&**sense)),
            Termination::TaskSetFull => (Status::TaskSetFull, None),
            Termination::Aborted => return self.count_aborted(Some(connection), unit),
        };
        self.count_refused(Some(connection), unit, Direction::of(&command.cdb), status, sense);
    }

    /// A command was aborted before it was answered: it has not ended.
    pub(super) fn count_aborted(&mut self, connection: Option<Key>, unit: u32) {
        self.count_failure(connection, unit, Failure::Aborted, 1);
    }

    /// A command has failed.
    fn count_refused(
        &mut self,
        connection: Option<Key>,
        unit: u32,
        direction: Direction,
        status: Status,
        sense: Option<&Sense>,
    ) {
        self.counters(connection, unit).for_each(|counters| counters.ended_badly(direction));
        if let Some(failure) = Failure::of(status) {
            self.count_failure(connection, unit, failure, 1);
        }
        if let Some(sense) = sense {
            self.count_sense(connection, unit, sense);
        }
    }

    fn count_failure(&self, connection: Option<Key>, unit: u32, failure: Failure, commands: u64) {
        self.counters(connection, unit).for_each(|counters| counters.failed(failure, commands));
    }

    fn count(&self, connection: Option<Key>, unit: u32, direction: Direction, bytes: u64, nanos: u64) {
        self.counters(connection, unit).for_each(|counters| counters.ended(direction, bytes, nanos));
    }

    /// The counters of a session and of a unit, where these exist.
    #[inline(always)]
    fn counters(&self, connection: Option<Key>, unit: u32) -> impl Iterator<Item = &Counters> {
        let conn = connection.and_then(|connection| self.connections.get(connection));
        let unit = self.units.get(unit).map(|unit| &*unit.counters);
        conn.map(|conn| &*conn.facts.counters).into_iter().chain(unit)
    }
}
