//! The order of AoE commands that change the same blocks, from whatever address, interface or core: see
//! [`crate::ledger`].
//!
//! A command that comes too late gets no answer: either its copy was answered, or the initiator retransmits
//! it. Commands that wait hold no claim, so none waits for another that waits.

use crate::core::task::{State, Task};
use crate::core::{Core, Key};
use crate::ledger::{Claim, Held};
use crate::message::Message;
use proto::aoe::target::Change;
use proto::services::TaskId;
use reactor::io::Io;
use scsi::home::Aborted;

impl<I: Io> Core<I> {
    /// What a task of the transport changes, if others might change it at the same time, or already have
    /// although they came later.
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

    /// Whether an admitted task may begin; otherwise it waits, or has ended.
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
            // A list of ranges does not know what is written to them while it waits.
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
        // No command has failed: if it is a duplicate, the other copy is answered; if there was no room, it
        // is retransmitted.
        self.report_aborted(connection, wire, Aborted::Silently);
        self.abort(key, None);
        false
    }

    /// A change has ended that others wait for.
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
