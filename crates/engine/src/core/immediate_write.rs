//! WRITEs with immediate data: they need no buffer, and, to memory, no task.

use super::Core;
use super::budget::Budget;
use super::connection::Phase;
use super::task::to_wire;
use crate::slots::Key;
use proto::services::{Command, Down};
use reactor::io::Io;
use scsi::Exec;
use store::lane::Lane;
use wire::{Places, Span};

/// Writes what was received, if the store accepts it at once. So a turn is bounded by what it receives, but
/// not by what the system has to clear first.
pub(super) fn write_immediately<I: Io>(
    lane: &mut dyn Lane<I>,
    io: &mut I,
    budget: &mut Budget,
    offset: u64,
    from: Span,
) -> bool {
    let may_clear = budget.left() > 0;
    let cleared = lane.write_now(io, offset, Places::one(from), may_clear);
    if let Some(cleared) = cleared {
        budget.charge(u64::from(from.len) + cleared);
    }
    cleared.is_some()
}

impl<I: Io> Core<I> {
    /// Writes all data of a WRITE from where it was received, if it is all here and the store accepts it at
    /// once. Data in a message has been verified; with a data digest in a stream it has not.
    pub(super) fn write_immediate(
        &mut self,
        connection: Key,
        unit: u32,
        command: &Command,
        exec: &Exec,
    ) -> bool {
        let Some((offset, len, ending)) = exec.whole_write() else { return false };
        let Some(conn) = self.connections.get_mut(connection) else { return false };
        if command.write_bytes != len || conn.phase != Phase::Serving {
            return false;
        }
        let from = match conn.machine.immediate(command.task) {
            Some(data) => Some(data),
            None if conn.machine.sums_payload() || conn.machine.unplaced(command.task) != len => None,
            None => conn.stream.as_ref().and_then(|stream| stream.ahead(len)),
        };
        let Some(from) = from else { return false };
        if !write_immediately(self.units.lane(unit), &mut self.io, &mut self.budget, offset, from) {
            return false;
        }
        conn.answers.expect(true);
        self.trace_end(connection, command, &ending);
        self.count_written(connection, unit, len);
        self.down(Some(connection), Down::End { task: command.task, ending: to_wire(ending) });
        self.leave_gate(unit, None);
        true
    }

    /// Has a WRITE use its data where it was received, if all of it is there.
    pub(super) fn borrow(&mut self, key: Key, buffer_bytes: u32) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return false };
        let is_whole =
            task.exec.as_ref().is_some_and(Exec::is_write) && buffer_bytes == task.command.write_bytes;
        let Some(conn) = self.connections.get_mut(task.origin).filter(|_| is_whole) else { return false };
        let Some(data) = conn.machine.borrow(task.wire) else { return false };
        task.buffer = Places::one(data);
        task.borrowed = true;
        task.asked_bytes = data.len;
        true
    }
}
