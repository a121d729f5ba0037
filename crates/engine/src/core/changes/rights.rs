//! Commands that have begun, and change what their initiators may not change any more. Of those that come, or wait to begin, none
//! does: each is admitted by the rights of then. So whoever takes the right to write waits for what has begun.

use crate::core::Core;
use crate::core::session::group;
use crate::core::task::Task;
use crate::message::Way;
use crate::slots::Key;
use reactor::io::Io;

impl<I: Io> Core<I> {
    /// Tasks that have begun, and may change units that what is served does not let their sessions change, whether these have ended or
    /// not. Without those that a change before this one waits for.
    pub(super) fn unentitled(&self) -> Vec<Key> {
        let is_awaited = |key: &Key| self.changes.under_way.iter().any(|change| change.tasks.contains(key));
        let is_meant =
            |task: &Task| task.has_begun() && task.changes(&|unit| !self.may_change(task.origin, unit));
        let meant = self.tasks.iter().filter(|(_, task)| is_meant(task));
        meant.map(|(key, _)| key).filter(|key| !is_awaited(key)).collect()
    }

    /// Whether what is served lets a session change a unit. One that goes is not served, and what was begun there ends before it has
    /// gone.
    fn may_change(&self, session: Key, unit: u32) -> bool {
        let served = &self.served;
        let Some(index) = served.units.iter().position(|other| *other == unit) else { return true };
        if served.config.luns[index].read_only {
            return false;
        }
        // A SANITIZE may have outlived its session; and one that was let in by a change to come is not served here yet.
        let conn = self.connections.get(session);
        let Some(facts) = conn.map(|conn| &conn.facts).filter(|facts| facts.epoch <= served.epoch) else {
            return true;
        };
        if let Way::Interface { opening, .. } = facts.way {
            return self.ethernet.lets_in(served, opening, session, unit);
        }
        let target = facts.target_number().and_then(|number| served.target(number));
        let Some(target) = target.map(|index| &served.config.targets[index]) else { return false };
        let group = group(served, facts);
        let is_let_in = group.map_or(target.groups.is_empty(), |group| !group.deny && !group.read_only);
        let luns = group.and_then(|group| group.luns.as_ref()).unwrap_or(&target.luns);
        is_let_in && luns.iter().any(|(_, shown)| *shown == index)
    }
}
