//! READs whose data is the store's own memory: they need no task.

use super::Core;
use super::connection::Connection;
use super::stall::Moving;
use super::task::to_wire;
use crate::slots::Key;
use proto::verbs::{Command, Down};
use reactor::io::Io;
use scsi::home::Aborted;
use scsi::{Exec, NexusId, NexusUnit};

/// What the core knows of a task of the transport.
#[derive(Clone, Copy, Debug)]
pub(super) enum Occupant {
    /// A task of this core.
    Task(Key),
    /// A READ whose data, lent by the store, is on its way with the ending behind it.
    Lent {
        /// Of this unit.
        unit: u32,
        /// How much it is, and until when the initiator has time to take it.
        moving: Moving,
    },
}

impl Occupant {
    /// The task, if it is one of this core.
    pub(super) fn task(&self) -> Option<Key> {
        match self {
            Occupant::Task(key) => Some(*key),
            Occupant::Lent { .. } => None,
        }
    }
}

impl<I: Io> Core<I> {
    /// Sends all that a READ reads from the store's own memory, where it lends it. Nothing is left to be done then but
    /// to leave the gate when the data has left, and to end it nobody needs more than the transport.
    pub(super) fn lend(&mut self, connection: Key, unit: u32, command: &Command, exec: &Exec) -> bool {
        let Some((offset, len, ending)) = exec.whole_read() else { return false };
        let bytes = command.read_bytes.min(len);
        let (now, stall_nanos) = (self.io.now(), self.stall_nanos);
        let Some(conn) = self.connections.get_mut(connection) else { return false };
        if conn.copies_reads() || bytes == 0 || command.unsolicited_bytes > 0 {
            return false;
        }
        let Some(from) = self.units[unit].lane.borrow(offset, len) else { return false };
        let moving = conn.pace.begin(now, stall_nanos, bytes);
        conn.occupy(command.task, Occupant::Lent { unit, moving });
        let (from, end) = (from.slice(0, bytes), Some(to_wire(ending)));
        conn.machine.down(now, Down::Push { task: command.task, at: 0, from, end });
        conn.soil(connection, &mut self.to_serve, &mut self.to_flush);
        true
    }

    /// Aborts the READs of a connection whose data was lent by this unit, or by any. Nothing of them can linger.
    pub(super) fn abort_lent(&mut self, connection: Key, unit: Option<u32>, how: Aborted) {
        let lent: Vec<_> =
            self.connections.get(connection).into_iter().flat_map(|conn| conn.lent(unit)).collect();
        for (wire, unit) in lent {
            self.keep_lent(connection, wire);
            self.tell_aborted(Some(connection), wire, how);
            if let Some(conn) = self.connections.get_mut(connection) {
                conn.vacate(wire);
            }
            let unsent = &mut self.units[unit].unsent;
            if !unsent.contains(&connection) {
                unsent.push(connection);
            }
            self.leave_gate(unit, None);
        }
    }

    /// The connections with such a nexus for which this unit has lent data.
    pub(super) fn lending(&self, unit: u32, ours: impl Fn(&NexusUnit) -> bool) -> Vec<(Key, NexusId)> {
        let of = |conn: &Connection| {
            conn.lent(Some(unit)).next()?;
            let lun = conn.luns.iter().find(|lun| lun.unit == unit && ours(&lun.nexus))?;
            Some(lun.nexus.id)
        };
        self.connections.iter().filter_map(|(key, conn)| Some((key, of(conn)?))).collect()
    }
}
