//! How commands wait in throttles, and reach their units when they are due.

use super::{Throttle, Wait};
use crate::core::Core;
use crate::core::connection::Connection;
use crate::core::lun::LunState;
use crate::core::session::group;
use crate::core::task::{State, Task};
use crate::limits::{Limit, Share};
use crate::served::Served;
use crate::slots::{Key, Slots};
use proto::time::Time;
use reactor::io::Io;
use std::sync::Arc;

impl LunState {
    /// Sets the limit of the LUN, and the share of that of the group.
    fn limit(&mut self, of_lun: Option<Arc<Limit>>, of_group: Option<Arc<Share>>) {
        let before = self.throttle.as_ref().and_then(|throttle| throttle.shares[0].clone());
        let of_lun = of_lun
            .map(|limit| before.filter(|share| share.is_of(&limit)).unwrap_or_else(|| Share::of(limit)));
        let shares = [of_lun, of_group];
        let is_same = |throttle: &Throttle| {
            let mut each = throttle.shares.iter().zip(&shares);
            each.all(|(old, new)| old.as_ref().map(Arc::as_ptr) == new.as_ref().map(Arc::as_ptr))
        };
        match &mut self.throttle {
            Some(throttle) if is_same(throttle) => {}
            Some(throttle) => throttle.change(shares),
            None if shares.iter().any(Option::is_some) => {
                self.throttle = Some(Box::new(Throttle::new(shares)))
            }
            None => {}
        }
        self.drop_throttle();
    }

    /// Its session moves to another core: nothing waits.
    pub(in crate::core) fn leave_core(&mut self) {
        if let Some(throttle) = &mut self.throttle {
            throttle.is_listed = false;
        }
    }

    /// Drops the throttle of a LUN once it is neither limited nor needed.
    fn drop_throttle(&mut self) {
        self.throttle.take_if(|throttle| !throttle.is_limited() && throttle.waiting.is_empty());
        self.nexus.takes_turns = self.throttle.is_some() || self.nexus.mac.is_some();
    }
}

fn throttle(connections: &mut Slots<Connection>, origin: Key, lun: usize) -> Option<&mut Throttle> {
    connections.get_mut(origin)?.luns.get_mut(lun)?.throttle.as_deref_mut()
}

impl<I: Io> Core<I> {
    /// Sets the limits of a session's LUNs to those in force now.
    pub(in crate::core) fn set_limits(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        let Served { config, limits, .. } = &*self.served;
        let target = conn.facts.target_number().and_then(|number| self.served.target(number));
        let of_group = target.zip(group(&self.served, &conn.facts));
        let of_group = of_group.and_then(|(target, group)| limits.of_group(config, target, group));
        let of_group = of_group.map(|limit| {
            let mut shares = conn.luns.iter().filter_map(|lun| lun.throttle.as_ref()?.shares[1].as_ref());
            shares.find(|share| share.is_of(&limit)).cloned().unwrap_or_else(|| Share::of(limit))
        });
        for lun in &mut conn.luns {
            let index = self.served.units.iter().position(|unit| *unit == lun.unit);
            // Nothing has to wait any more for a unit that is being removed.
            let of_lun = index.and_then(|index| self.served.limits.of_lun(index));
            lun.limit(of_lun, of_group.clone().filter(|_| index.is_some()));
        }
        self.throttles.due = Time(0);
    }

    /// A command waits in its throttle.
    pub(in crate::core) fn throttle_task(&mut self, mut task: Task, lun: usize, wait: Wait) {
        task.state = State::Throttled;
        let (origin, attribute) = (task.origin, task.attribute);
        let key = self.insert(task);
        self.take_unsolicited(key);
        let now = self.io.now();
        let is_there = self.tasks.get(key).is_some();
        let Some(throttle) = throttle(&mut self.connections, origin, lun) else { return };
        if !is_there {
            // There was no buffer for its data.
            wait.due.iter().for_each(|_| throttle.release(wait.bytes));
            return;
        }
        throttle.push(key, attribute, wait);
        // One queued behind another LUN is checked when that one's command goes.
        let due = throttle.first_due(now);
        if self.throttles.listed.is_empty() {
            self.throttles.due = due.unwrap_or_default();
        } else {
            self.throttles.due = due.unwrap_or(self.throttles.due).min(self.throttles.due);
        }
        if !std::mem::replace(&mut throttle.is_listed, true) {
            self.throttles.listed.push((origin, lun));
        }
        self.count_throttled(key, true);
    }

    /// A task that waits in a throttle has ended.
    pub(in crate::core) fn leave_throttle(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == State::Throttled) else { return };
        if let Some(throttle) = throttle(&mut self.connections, task.origin, task.lun) {
            self.throttles.due = Time(0);
            if throttle.forget(key) {
                self.count_throttled(key, false);
            }
        }
    }

    /// Lets in what is due, one command of each throttle in turn. Returns whether there was any. Called in each
    /// turn, and mostly there are no throttles.
    #[inline]
    pub(in crate::core) fn run_throttles(&mut self) -> bool {
        !self.throttles.listed.is_empty() && self.throttles.due <= self.io.now() && self.run_due()
    }

    #[inline(never)]
    fn run_due(&mut self) -> bool {
        let now = self.io.now();
        let mut has_run = false;
        loop {
            let mut has_gone = false;
            for index in 0..self.throttles.listed.len() {
                let (origin, lun) = self.throttles.listed[index];
                if let Some(key) =
                    throttle(&mut self.connections, origin, lun).and_then(|throttle| throttle.next(now))
                {
                    has_gone = true;
                    self.forward_to_unit(key);
                }
            }
            if !has_gone {
                break;
            }
            has_run = true;
        }
        self.prune_throttles(now);
        has_run
    }

    /// Removes empty throttles; the deadline becomes that of the rest.
    fn prune_throttles(&mut self, now: Time) {
        let (connections, mut next) = (&mut self.connections, None::<Time>);
        self.throttles.listed.retain(|(origin, lun)| {
            let Some(state) = connections.get_mut(*origin).and_then(|conn| conn.luns.get_mut(*lun)) else {
                return false;
            };
            let due = state.throttle.as_mut().and_then(|throttle| throttle.first_due(now));
            next = next.into_iter().chain(due).min();
            let holds_any = state.throttle.as_ref().is_some_and(|throttle| throttle.holds_any());
            if let (false, Some(throttle)) = (holds_any, &mut state.throttle) {
                throttle.is_listed = false;
                state.drop_throttle();
            }
            holds_any
        });
        // The throttle that was first is last next time.
        if !self.throttles.listed.is_empty() {
            self.throttles.listed.rotate_left(1);
        }
        self.throttles.due = next.unwrap_or_default();
    }

    /// The command reaches its unit.
    fn forward_to_unit(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == State::Throttled) else { return };
        let (unit, attribute) = (task.unit, task.attribute);
        self.count_throttled(key, false);
        if self.units[unit].gate.must_wait(attribute) {
            self.set_state(key, State::Waiting);
            self.units[unit].gate.wait(key);
            self.open_gate(unit);
        } else {
            self.start(key);
        }
    }
}
