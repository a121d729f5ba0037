//! Commands that have begun, and do what a change takes the right to. Of those that come, or wait to begin, none does: each is
//! admitted by the rights of then. So a change waits for what has begun.

use crate::core::Core;
use crate::core::session::group;
use crate::core::task::Task;
use crate::message::Way;
use crate::served::Served;
use crate::slots::Key;
use reactor::io::Io;

/// What a session may do with a unit. Each right may go on its own.
#[derive(Clone, Copy)]
struct Rights {
    is_let_in: bool,
    is_shown: bool,
    /// The LUN is not `read_only`.
    is_writable: bool,
    /// Nor is its group.
    may_write: bool,
}

const ALL: Rights = Rights { is_let_in: true, is_shown: true, is_writable: true, may_write: true };

impl<I: Io> Core<I> {
    /// Tasks that have begun, and use units in a way that was served `before` and is not served to their sessions any more, whether
    /// these have ended or not: also those that an earlier change waits for, which took another right.
    pub(super) fn unentitled(&self, before: &Served) -> Vec<Key> {
        let loses = |session, unit, of: fn(Rights) -> [bool; 2]| {
            let (had, has) =
                (of(self.rights(before, session, unit)), of(self.rights(&self.served, session, unit)));
            had.iter().zip(has).any(|(had, has)| *had && !has)
        };
        let sight = |rights: Rights| [rights.is_let_in, rights.is_shown];
        // A LUN that is `read_only` refuses what would change its medium, and takes orders such as MODE SELECT; a group that is
        // refuses both.
        let writing = |rights: Rights| [rights.is_writable, rights.may_write];
        let ordering = |rights: Rights| [true, rights.may_write];
        let is_meant = |task: &Task| {
            task.has_begun()
                && (task.units().any(|unit| loses(task.origin, unit, sight))
                    || task.writes(&|unit| loses(task.origin, unit, writing))
                    || task.changes(&|unit| loses(task.origin, unit, ordering)))
        };
        self.tasks.iter().filter(|(_, task)| is_meant(task)).map(|(key, _)| key).collect()
    }

    /// What a session may do with a unit by what is served. One that goes is not served, and what was begun there ends before it has
    /// gone.
    fn rights(&self, served: &Served, session: Key, unit: u32) -> Rights {
        let Some(index) = served.units.iter().position(|other| *other == unit) else { return ALL };
        let is_writable = !served.config.luns[index].read_only;
        // A SANITIZE may have outlived its session; and one that was let in by a change to come is not served here yet.
        let conn = self.connections.get(session);
        let Some(conn) = conn.filter(|conn| conn.facts.epoch <= served.epoch) else {
            return Rights { is_writable, ..ALL };
        };
        if let Way::Interface { opening, .. } = conn.facts.way {
            let is_shown = self.ethernet.lets_in(served, opening, session, unit);
            return Rights { is_shown, is_writable, ..ALL };
        }
        let target = conn.facts.target_number().and_then(|number| served.target(number));
        let Some(target) = target.map(|index| &served.config.targets[index]) else {
            return Rights { is_let_in: false, is_writable, ..ALL };
        };
        let group = group(served, &conn.facts);
        let luns = group.and_then(|group| group.luns.as_ref()).unwrap_or(&target.luns);
        Rights {
            is_let_in: conn.why_not(served).is_none(),
            is_shown: luns.iter().any(|(_, shown)| *shown == index),
            is_writable,
            may_write: group.is_none_or(|group| !group.read_only),
        }
    }
}

#[cfg(test)]
mod tests;
