//! The order of AoE's commands that change the same, from whatever address, interface or core: see [`crate::ledger`].
//!
//! An initiator is in no hurry for a command that is late, since its copy was answered or it will come again: it gets no
//! answer. Commands that wait hold no claim, so none waits for another that waits.

use crate::core::task::{State, Task};
use crate::core::{Core, Key};
use crate::ledger::{Claim, Held};
use crate::message::Message;
use proto::aoe::target::Change;
use proto::services::TaskId;
use reactor::io::Io;
use scsi::home::Aborted;

impl<I: Io> Core<I> {
    /// What a task of the transport changes, if somebody might change it at the same time, or before it though later.
    pub(in crate::core) fn change(&mut self, connection: Key, task: TaskId) -> Option<Change> {
        self.connections.get_mut(connection)?.machine.aoe_mut()?.change(task)
    }

    /// Begins a change.
    pub(in crate::core) fn begin_change(&self, unit: u32, change: &Change) -> Result<Claim, Held> {
        self.units[unit].ledger().begin(&change.blocks, change.received_at, || self.io.stamp())
    }

    /// A change has ended.
    pub(in crate::core) fn end_change(&mut self, unit: u32, claim: &Claim) {
        if self.units[unit].ledger().end(claim) {
            (0..self.cores()).for_each(|core| self.post(core, Message::ChangeEnded));
        }
    }

    /// Whether a task that was admitted may begin; otherwise it waits, or has ended.
    pub(in crate::core) fn is_in_order(&mut self, key: Key) -> bool {
        let Some(task) = self.tasks.get(key).filter(|task| task.claim.is_none()) else { return true };
        let (origin, connection, unit, wire) = (task.origin, task.connection, task.unit, task.wire);
        let Some(change) = self.change(origin, wire) else { return true };
        let held = match self.begin_change(unit, &change) {
            Ok(claim) => {
                self.set_claim(key, claim);
                return true;
            }
            Err(held) => held,
        };
        let target = self.connections.get_mut(origin).and_then(|conn| conn.machine.aoe_mut());
        match (held, target) {
            // It knows nothing of what is written to its ranges while it waits.
            (Held::Busy, Some(target)) if change.is_list() => target.count_late(),
            (Held::Busy, _) => {
                self.set_state(key, State::Overlapping);
                self.ethernet.overlapping.push(key);
                return false;
            }
            (Held::Late, Some(target)) => target.count_late(),
            (Held::Crowded, Some(target)) => target.count_crowded(),
            (Held::Late | Held::Crowded, None) => {}
        }
        // No command has failed: of a copy the other is answered, and what had no room comes again.
        self.report_aborted(connection, wire, Aborted::Silently);
        self.abort(key, None);
        false
    }

    /// A change has ended that somebody waits for.
    pub(in crate::core) fn change_ended(&mut self) {
        let waits = |task: &Task| task.state == State::Overlapping;
        for key in std::mem::take(&mut self.ethernet.overlapping) {
            if self.tasks.get(key).is_some_and(waits) {
                self.begin_admitted(key);
            }
        }
    }

    fn set_claim(&mut self, key: Key, claim: Claim) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.claim = Some(claim);
        }
    }
}
