//! WRITEs to memory whose data has come with them: they need neither task nor buffer.

use super::Core;
use super::connection::Phase;
use super::task::to_wire;
use crate::slots::Key;
use proto::verbs::{Command, Down};
use reactor::io::Io;
use scsi::Exec;
use wire::Places;

impl<I: Io> Core<I> {
    /// Writes all that a WRITE writes from where it was received, where that is all here and the store takes it at once.
    /// With a data digest nobody has looked yet whether it is what was sent.
    pub(super) fn put(&mut self, connection: Key, unit: u32, command: &Command, exec: &Exec) -> bool {
        let Some((offset, len, ending)) = exec.whole_write() else { return false };
        let Some(conn) = self.connections.get_mut(connection) else { return false };
        let is_next = command.write_bytes == len && conn.machine.unplaced(command.task) == len;
        if !is_next || conn.machine.sums_payload() || conn.phase != Phase::Serving {
            return false;
        }
        let Some(from) = conn.stream.as_ref().and_then(|stream| stream.ahead(len)) else { return false };
        let (lane, io) = self.lane(unit);
        if !lane.put(io, offset, Places::one(from)) {
            return false;
        }
        if let Some(conn) = self.connections.get_mut(connection) {
            conn.progress_at = self.io.now();
        }
        self.down(Some(connection), Down::End { task: command.task, ending: to_wire(ending) });
        self.leave_gate(unit, None);
        true
    }
}
