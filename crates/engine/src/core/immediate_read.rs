//! READs that need no task: zero-copy from the store's own memory, or read from memory at once.

use super::Core;
use super::buffer::Purpose;
use super::connection::{Connection, Occupant};
use super::task::to_wire;
use crate::slots::Key;
use proto::services::{Command, Down};
use reactor::io::Io;
use reactor::memory::LARGE_BYTES;
use scsi::home::Aborted;
use scsi::{Exec, NexusId, NexusUnit};
use wire::{Places, Span};

impl<I: Io> Core<I> {
    /// Sends all data of a READ, from the store's own memory if it lends it, otherwise from the buffer that
    /// it was read to at once. All that is left then is to leave the gate when the data has been sent, which
    /// the transport reports.
    pub(super) fn read_immediate(
        &mut self,
        connection: Key,
        unit: u32,
        command: &Command,
        exec: &Exec,
    ) -> bool {
        let Some((offset, len, ending)) = exec.whole_read() else { return false };
        let bytes = command.read_bytes.min(len);
        let (now, stall_nanos) = (self.io.now(), self.stall_nanos);
        let Some(conn) = self.connections.get_mut(connection) else { return false };
        if bytes == 0 || command.unsolicited_bytes > 0 {
            return false;
        }
        let lane = &mut self.units[unit].lane;
        let borrowed = if conn.copies_reads() { None } else { lane.borrow(offset, len) };
        let (from, buffer) = match borrowed {
            Some(from) => (from, None),
            None => match self.read_at_once(connection, unit, offset, len) {
                Some(buffer) => (buffer, Some(buffer)),
                None => return false,
            },
        };
        let Some(conn) = self.connections.get_mut(connection) else { return false };
        let moving = conn.pace.begin(now, stall_nanos, bytes);
        conn.occupy(command.task, Occupant::ImmediateRead { unit, begun: now, moving, buffer });
        conn.answers.expect(buffer.is_none());
        let (from, end) = (Places::one(from.slice(0, bytes)), Some(to_wire(ending)));
        conn.machine.down(now, Down::Push { task: command.task, at: 0, from, end });
        conn.mark_dirty(connection, &mut self.agenda);
        true
    }

    /// Reads to a buffer, if the store is memory, the turn has time for it, and no task is waiting for that
    /// buffer. Whatever cannot be read in this way is left to a task, which can wait and report errors.
    fn read_at_once(&mut self, connection: Key, unit: u32, offset: u64, len: u32) -> Option<Span> {
        if len > LARGE_BYTES || self.budget.left() == 0 || !self.units[unit].lane.works_at_once() {
            return None;
        }
        if !self.connections.get(connection)?.share.is_fed() {
            return None;
        }
        let buffer = self.grant(connection, unit, len, Purpose::Step).ok()?;
        if !self.units[unit].lane.read_now(&mut self.io, offset, &buffer) {
            self.return_buffer(connection, unit, &buffer, Purpose::Step);
            return None;
        }
        self.budget.charge(len.into());
        buffer.iter().next()
    }

    /// The data of a READ that has no task has been sent, or will not be sent any more.
    pub(super) fn end_immediate_read(&mut self, connection: Key, unit: u32, buffer: Option<Span>) {
        if let Some(buffer) = buffer {
            self.return_buffer(connection, unit, &Places::one(buffer), Purpose::Step);
        }
        self.leave_gate(unit, None);
    }

    /// Aborts the READs of a connection that have borrowed data from this unit, or from any unit. Nothing of
    /// them can linger.
    pub(super) fn abort_immediate_reads(&mut self, connection: Key, unit: Option<u32>, how: Aborted) {
        let reads: Vec<_> = self
            .connections
            .get(connection)
            .into_iter()
            .flat_map(|conn| conn.immediate_reads(unit))
            .collect();
        for (wire, unit, buffer) in reads {
            let is_borrowed = buffer.is_none();
            let buffer = self.quiesce_transfer(connection, wire, unit, buffer);
            self.report_aborted(Some(connection), wire, how);
            self.count_aborted(Some(connection), unit);
            if let Some(conn) = self.connections.get_mut(connection) {
                conn.vacate(wire);
            }
            if is_borrowed {
                self.note_unsent(unit, connection);
            }
            self.end_immediate_read(connection, unit, buffer);
        }
    }

    /// Data that a connection borrowed from this unit may still be in transit when the unit is released, but
    /// only while the connection exists.
    pub(super) fn note_unsent(&mut self, unit: u32, connection: Key) {
        let stream = self.connections.get(connection).and_then(|conn| conn.stream.as_ref());
        let (Some(stream), Some(unit)) = (stream, self.units.get_mut(unit)) else { return };
        let given = stream.given();
        match unit.unsent.iter_mut().find(|(key, _)| *key == connection) {
            Some((_, batches)) => *batches = given,
            None => unit.unsent.push((connection, given)),
        }
    }

    /// The connections with such a nexus that have borrowed data from this unit.
    pub(super) fn lending(&self, unit: u32, ours: impl Fn(&NexusUnit) -> bool) -> Vec<(Key, NexusId)> {
        let of = |conn: &Connection| {
            conn.immediate_reads(Some(unit)).next()?;
            let lun = conn.luns.iter().find(|lun| lun.unit == unit && ours(&lun.nexus))?;
            Some(lun.nexus.id)
        };
        self.connections.iter().filter_map(|(key, conn)| Some((key, of(conn)?))).collect()
    }
}
