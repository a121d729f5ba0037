//! What a core does in a turn for tasks that were deferred in earlier ones.

use super::{OPERATION_BYTES, Rest, SHARE_BYTES};
use crate::core::Core;
use crate::core::task::State;
use crate::slots::Key;
use reactor::io::Io;

impl<I: Io> Core<I> {
    /// Whether an operation on this unit has to wait for the next turn.
    pub(in crate::core) fn is_spent(&self, unit: u32) -> bool {
        self.budget.left == 0 && self.units[unit].lane.works_at_once()
    }

    /// The task continues when its turn comes.
    pub(in crate::core) fn defer(&mut self, key: Key, rest: Rest) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        // Its last operation has ended: an abort meanwhile need not wait for one.
        task.state = State::Running;
        self.budget.defer(task.origin, key, rest);
    }

    /// The task is aborted while it waits for its turn.
    pub(in crate::core) fn forget(&mut self, key: Key) {
        if let Some(task) = self.tasks.get(key) {
            self.budget.forget(task.origin, key);
        }
    }

    /// Lanes take turns at long operations. Together they get half of the budget while tasks wait as well.
    fn work(&mut self) {
        if !self.budget.may_work() {
            return;
        }
        self.budget.has_work = false;
        let mut idle = 0;
        while self.budget.left > self.budget.floor() && idle < self.units.used.len() {
            self.units.used.rotate_left(1);
            let Some(unit) = self.units.used.last().copied() else { return };
            let mut done = std::mem::take(&mut self.agenda.done);
            let bytes = self.units[unit].lane.work(&mut self.io, SHARE_BYTES, &mut done);
            self.finish_ops(unit, &mut done);
            self.agenda.done = done;
            if bytes == 0 {
                idle += 1;
            } else {
                idle = 0;
                self.budget.has_work = true;
                self.budget.charge_work(bytes + OPERATION_BYTES);
            }
        }
    }

    /// A turn begins: continues what was deferred in earlier ones. Returns whether there was any.
    pub(in crate::core) fn run_all(&mut self) -> bool {
        self.budget.refill();
        if self.budget.is_idle() && self.budget.debt == 0 && self.units.used.is_empty() {
            return false;
        }
        let continues = !self.budget.is_idle();
        self.work();
        while self.budget.left > 0
            && let Some((key, rest)) = self.budget.next()
        {
            // Every task has a cost, or one that moves nothing would run forever.
            self.budget.charge(0);
            match rest {
                Rest::Event(event) => self.run_task(key, event),
                Rest::Step(step) => {
                    if let Some(event) = self.perform(key, step) {
                        self.run_task(key, event);
                    }
                }
            }
        }
        continues
    }
}
