//! Aborts and resets.

use super::{Asked, Initiator, Kind, Task};
use crate::attention::{Act, COMMANDS_CLEARED, RESET};
use crate::reservations::{Action, Verdict};
use proto::services::{FunctionId, TaskId};
use proto::time::Time;
use reactor::io::Io as _;
use wire::iscsi::{FunctionResponse, TaskFunction};

impl Initiator {
    /// What of this is known to have arrived.
    pub(super) fn look_at_arrivals(&mut self, now: Time) {
        let Some(link) = &mut self.link else { return };
        for task in self.tasks.iter_mut().filter(|task| !task.has_arrived) {
            if !link.machine.has_arrived(task.id) {
                continue;
            }
            task.has_arrived = true;
            match task.kind {
                Kind::Write(_, id) | Kind::Durable(_, id) => self.registers.borrow_mut().arrives(now, id),
                Kind::Order(id) => self.reservations.borrow_mut()[task.unit].arrives(now, id),
                Kind::Read(_)
                | Kind::Flush
                | Kind::Allocation(_)
                | Kind::Modes
                | Kind::Move
                | Kind::Groups => {}
            }
        }
    }

    /// A function has ended.
    ///
    /// # Errors
    /// When it must not end so.
    pub(super) fn function_ended(
        &mut self,
        now: Time,
        id: FunctionId,
        response: FunctionResponse,
    ) -> Result<(), String> {
        self.note(&[2, u64::from(response.0)], || format!("function {} ends: {response:?}", id.0));
        let at = self.functions.iter().position(|asked| asked.id == id);
        let asked = at.map(|at| self.functions.swap_remove(at));
        match response {
            FunctionResponse::COMPLETE | FunctionResponse::NO_TASK => {
                asked.map_or(Ok(()), |asked| self.answered(now, &asked))
            }
            // A gateway may not know whether another one has reset the unit.
            FunctionResponse::REJECTED if self.has_paths() => {
                self.attentions.borrow_mut().loses(self.index, Act::Function(id));
                for (unit, lost) in asked.into_iter().flat_map(|asked| asked.loses) {
                    self.reservations.borrow_mut()[unit].forget(lost);
                }
                Ok(())
            }
            _ => Err(format!("a function was answered with {response:?}")),
        }
    }

    /// A function was answered with success.
    fn answered(&self, now: Time, asked: &Asked) -> Result<(), String> {
        self.attentions.borrow_mut().over(now, self.index, Act::Function(asked.id));
        for (unit, lost) in &asked.loses {
            self.reservations.borrow_mut()[*unit].ordered(*lost, Verdict::Good)?;
        }
        let units = match asked.function {
            TaskFunction::LOGICAL_UNIT_RESET => asked.unit..asked.unit + 1,
            TaskFunction::TARGET_WARM_RESET => 0..self.place.units,
            TaskFunction::ABORT_TASK_SET | TaskFunction::CLEAR_TASK_SET => {
                let is_ended = |by: usize| self.clears(asked.function, by);
                self.registers.borrow_mut().clear(now, asked.began, asked.unit, is_ended);
                self.reservations.borrow_mut()[asked.unit].clear(asked.began, is_ended);
                return Ok(());
            }
            _ => return Ok(()),
        };
        for unit in units {
            self.attentions.borrow_mut().reset(now, asked.began, self.index, unit);
            self.registers.borrow_mut().clear(now, asked.began, unit, |_| true);
            self.reservations.borrow_mut()[unit].clear(asked.began, |_| true);
        }
        Ok(())
    }

    /// Whether one of these functions ends commands of that nexus: CLEAR TASK SET those of all that came through the same gateway,
    /// unless all gateways are active, where each nexus has a task set of its own (SAM-5 section 7.5).
    fn clears(&self, function: TaskFunction, by: usize) -> bool {
        let has_own_set = self.place.gives_up.is_some();
        let is_of_all = function == TaskFunction::CLEAR_TASK_SET && !has_own_set;
        by == self.index || is_of_all && by / self.paths.initiators == self.index / self.paths.initiators
    }

    /// Aborts the first command that takes too long.
    pub(super) fn abort_late(&mut self, now: Time) {
        if now <= self.late_at {
            return;
        }
        let patience = self.habits.patience;
        let is_late = |task: &Task| now.since(task.began) > patience && !task.is_aborting;
        if let Some(late) = self.tasks.iter().position(is_late) {
            return self.abort(late);
        }
        let waits = self.tasks.iter().filter(|task| !task.is_aborting);
        // Those begun later have more time.
        self.late_at = waits.map(|task| task.began).min().unwrap_or(now).after(patience);
    }

    pub(super) fn abort(&mut self, task: usize) {
        let Some(task) = self.tasks.get(task).filter(|task| !task.is_aborting) else { return };
        let (id, mut unit) = (task.id, task.unit);
        {
            // A tag identifies a task within the session, whatever unit is given with it.
            let rng = &mut self.net.borrow_mut().rng;
            if rng.u32(0..8) == 0 {
                unit = rng.usize(0..self.place.units);
            }
        }
        let is_asked = self.function(unit, TaskFunction::ABORT_TASK, Some(id));
        if let Some(task) = self.tasks.iter_mut().find(|task| task.id == id) {
            task.is_aborting = is_asked;
        }
    }

    /// Sends a function; returns whether that was possible.
    pub(super) fn function(&mut self, unit: usize, function: TaskFunction, of: Option<TaskId>) -> bool {
        let now = self.kernel.now();
        let is_reset = matches!(function, TaskFunction::LOGICAL_UNIT_RESET | TaskFunction::TARGET_WARM_RESET);
        if is_reset && self.has_paths() && !self.reservations.borrow()[unit].has_room() {
            return false;
        }
        let Some(link) = &mut self.link else { return false };
        let function = link.machine.nearest(function);
        let Some(id) = link.machine.function((unit as u64) << 48, function, of) else { return false };
        let loses = match function {
            TaskFunction::LOGICAL_UNIT_RESET => self.lose(unit..unit + 1, true),
            TaskFunction::TARGET_WARM_RESET => self.lose(0..self.place.units, true),
            _ => Vec::new(),
        };
        self.functions.push(Asked { id, function, unit, began: now, loses });
        let (units, code) = match function {
            TaskFunction::LOGICAL_UNIT_RESET => (unit..unit + 1, RESET),
            TaskFunction::TARGET_WARM_RESET => (0..self.place.units, RESET),
            TaskFunction::CLEAR_TASK_SET => (unit..unit + 1, COMMANDS_CLEARED),
            _ => (0..0, 0),
        };
        let act = Act::Function(id);
        units.for_each(|unit| self.attentions.borrow_mut().may_cause(self.index, act, unit, code));
        self.note(&[6, u64::from(function.0)], || format!("function {}: {function:?} {of:?}", id.0));
        true
    }

    /// Its session ends, and with it what it holds by RESERVE.
    pub(super) fn lose_all(&mut self) {
        if self.loses.is_empty() {
            self.loses = self.lose(0..self.place.units, false);
        }
    }

    /// Records this effect on the RESERVE of units: `all`, or its own.
    pub(super) fn lose(&self, units: std::ops::Range<usize>, all: bool) -> Vec<(usize, u64)> {
        let begin = |unit: usize| {
            let is_classic = self.reservations.borrow()[unit].is_classic();
            let counts = is_classic || all && self.has_paths();
            counts.then(|| (unit, self.order(unit, 0, Action::Lose { all })))
        };
        units.filter_map(begin).collect()
    }
}
