//! Commands that have begun and lose their right by a change. New commands, and those that wait to begin, are
//! admitted by the new rights; a change only waits for what has begun.

use crate::core::Core;
use crate::core::session::group;
use crate::core::task::Task;
use crate::message::Way;
use crate::served::Served;
use crate::slots::Key;
use reactor::io::Io;

/// What a session may do with a served unit. A change may remove each right separately.
#[derive(Clone, Copy)]
struct Rights {
    is_admitted: bool,
    is_shown: bool,
    /// Its group is not `read_only`.
    may_write: bool,
}

const ALL: Rights = Rights { is_admitted: true, is_shown: true, may_write: true };

impl<I: Io> Core<I> {
    /// Tasks that have begun and use units in a way that their sessions, ended or not, were entitled to in
    /// `before` and no longer are; including those that an earlier change, which removed another right, still
    /// waits for.
    pub(super) fn unentitled(&self, before: &Served) -> Vec<Key> {
        let delta = &self.served.delta;
        if delta.protected.is_empty() && !delta.concerns_sessions() {
            return Vec::new();
        }
        let is_meant = |task: &Task| {
            // A LUN that is `read_only` refuses to change its medium for anyone, but accepts orders such as
            // MODE SELECT.
            let is_protected = |unit| delta.protected.contains(&unit);
            task.has_begun()
                && (task.writes(&is_protected)
                    || (self.is_concerned(task.origin) && self.loses_its_right(before, task)))
        };
        self.tasks.iter().filter(|(_, task)| is_meant(task)).map(|(key, _)| key).collect()
    }

    /// Whether a session may have other rights than in the previous snapshot. A session that has ended keeps
    /// its rights.
    fn is_concerned(&self, session: Key) -> bool {
        let delta = &self.served.delta;
        let facts = self.connections.get(session).map(|conn| &conn.facts);
        facts.is_some_and(|facts| match facts.way {
            Way::Interface { .. } => delta.interfaces_changed || delta.exports_changed,
            Way::Portal { .. } => {
                facts.target_number().is_some_and(|number| !delta.unchanged.contains(&number))
            }
        })
    }

    fn loses_its_right(&self, before: &Served, task: &Task) -> bool {
        let loses = |unit, of: fn(Rights) -> bool| {
            of(self.rights(before, task.origin, unit)) && !of(self.rights(&self.served, task.origin, unit))
        };
        // A group that is `read_only` may not give orders either.
        task.units()
            .any(|unit| loses(unit, |rights| rights.is_admitted) || loses(unit, |rights| rights.is_shown))
            || task.changes(&|unit| loses(unit, |rights| rights.may_write))
    }

    /// What a session may do with a unit according to this snapshot. A removed unit is not served, and what
    /// had begun there ends before its release.
    fn rights(&self, served: &Served, session: Key, unit: u32) -> Rights {
        let Some(index) = served.units.iter().position(|other| *other == unit) else { return ALL };
        // A session admitted by a future change is not served here yet.
        let conn = self.connections.get(session);
        let Some(conn) = conn.filter(|conn| conn.facts.epoch <= served.epoch) else { return ALL };
        if let Way::Interface { opening_number, .. } = conn.facts.way {
            return Rights {
                is_shown: self.ethernet.still_exports(served, opening_number, session, unit),
                ..ALL
            };
        }
        let target = conn.facts.target_number().and_then(|number| served.target(number));
        let Some(target) = target.map(|index| &served.config.targets[index]) else {
            return Rights { is_admitted: false, ..ALL };
        };
        let group = group(served, &conn.facts);
        let luns = group.and_then(|group| group.luns.as_ref()).unwrap_or(&target.luns);
        Rights {
            is_admitted: conn.revocation_reason(served).is_none(),
            is_shown: luns.iter().any(|(_, shown)| *shown == index),
            may_write: group.is_none_or(|group| !group.read_only),
        }
    }
}

#[cfg(test)]
mod tests;
