//! Queues of commands that exceed a limit of their LUN or group.
//!
//! A session has a throttle for each of its LUNs that is limited. A command that waits there has not reached the
//! unit yet: it is, as it were, still in the service delivery subsystem. It has no place at the unit's gate,
//! no claim, and no buffer except for unsolicited data, as at a gate ([`super::gate`] proves that nothing
//! waits for what that holds), and its window or request limit closes behind it. So it delays nothing else,
//! on its unit or on another. What the session sends to the unit later keeps its order: an ordered command
//! queues behind everything that waits, and everything behind an ordered one that waits.
//!
//! The first command in a throttle takes a place at once, which determines when it is due; the next takes one
//! when it has gone. So the throttles of all cores take turns, however many commands each has. A session has one
//! place at a time in its group's limit: its throttles take turns there, one command each, however many LUNs it
//! has. A core has one deadline for all its throttles.

mod run;

use crate::limits::{Share, Waits};
use crate::slots::Key;
use proto::services::Command;
use proto::time::Time;
use scsi::{Attribute, View};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The shortest sleep before a command in a throttle is due.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// The limits of a session's LUN, and what waits for them.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// Its shares of the limit of the LUN and, with the session's other LUNs, of that of the group.
    shares: [Option<Arc<Share>>; 2],
    /// Oldest first.
    waiting: VecDeque<Waiting>,
    /// When the first is due, once it has its place. All before it have gone, so none overtakes another.
    due: Option<Due>,
    /// Ordered commands among them.
    ordered: usize,
    /// It is in the core's list of throttles.
    is_listed: bool,
}

/// When a command is due, and whether it has a place in the group's limit until then: not while the LUN's
/// limit is the slower one, since others of its LUNs would be behind it.
#[derive(Debug)]
pub(super) struct Due {
    at: Time,
    _waits: [Option<Waits>; 2],
}

#[derive(Debug)]
struct Waiting {
    task: Key,
    /// How many bytes it moves; `None`: limits do not apply to it, and it only keeps its order.
    bytes: Option<u32>,
    attribute: Attribute,
}

/// How a command waits: the first already has its place.
pub(super) struct Wait {
    bytes: Option<u32>,
    due: Option<Due>,
}

/// A core's throttles that are not empty.
#[derive(Debug, Default)]
pub(super) struct Throttles {
    /// By connection, and index of its LUN.
    listed: Vec<(Key, usize)>,
    /// Nothing is due before then.
    due: Time,
}

impl Throttles {
    /// When something is due, if anything waits.
    pub(super) fn due(&self) -> Option<Time> {
        (!self.listed.is_empty()).then_some(self.due)
    }
}

impl Throttle {
    fn new(shares: [Option<Arc<Share>>; 2]) -> Throttle {
        Throttle { shares, waiting: VecDeque::new(), due: None, ordered: 0, is_listed: false }
    }

    /// Whether a command that has arrived has to wait, and how. If not, it has been counted.
    pub(super) fn bars(
        &mut self,
        view: &View,
        command: &Command,
        attribute: Attribute,
        now: Time,
    ) -> Option<Wait> {
        let Command { cdb, read_bytes, write_bytes, .. } = command;
        let (read_bytes, write_bytes) = (*read_bytes, *write_bytes);
        self.bar(view.metered(&scsi::Request { cdb, attribute, read_bytes, write_bytes }), attribute, now)
    }

    fn bar(&mut self, bytes: Option<u32>, attribute: Attribute, now: Time) -> Option<Wait> {
        let is_empty = self.waiting.is_empty();
        match bytes {
            None if self.ordered == 0 && (is_empty || attribute != Attribute::Ordered) => None,
            Some(bytes) if is_empty && !self.is_behind_another() => {
                let due = self.take(now, Some(bytes));
                (due.at > now).then_some(Wait { bytes: Some(bytes), due: Some(due) })
            }
            bytes => Some(Wait { bytes, due: None }),
        }
    }

    /// Whether another of the session's LUNs waits for the group's limit. Called only while this one has no
    /// place.
    fn is_behind_another(&self) -> bool {
        self.shares[1].as_ref().is_some_and(|share| share.is_waiting())
    }

    /// Takes a place.
    fn take(&self, now: Time, bytes: Option<u32>) -> Due {
        let [of_lun, of_group] = self.shares.each_ref().map(|share| share.as_ref().zip(bytes));
        let due =
            |share: Option<(&Arc<Share>, u32)>| share.map_or(now, |(share, bytes)| share.take(now, bytes));
        let (by_lun, by_group) = (due(of_lun), due(of_group));
        let at = by_lun.max(by_group);
        let waits = |share: Option<(&Arc<Share>, u32)>| share.map(|(share, _)| Waits::at(share));
        let at_group = of_group.filter(|_| at > now && by_group == at);
        Due { at, _waits: [waits(of_lun.filter(|_| at > now)), waits(at_group)] }
    }

    fn release(&self, bytes: Option<u32>) {
        bytes.iter().for_each(|bytes| self.shares.iter().flatten().for_each(|share| share.release(*bytes)));
    }

    fn push(&mut self, task: Key, attribute: Attribute, wait: Wait) {
        let Wait { bytes, due } = wait;
        if self.due.is_none() {
            self.due = due;
        }
        self.ordered += usize::from(attribute == Attribute::Ordered);
        self.waiting.push_back(Waiting { task, bytes, attribute });
    }

    /// When the first is due, if there is one and it is not queued behind one of another LUN.
    fn first_due(&mut self, now: Time) -> Option<Time> {
        if self.due.is_none() {
            let bytes = self.waiting.front()?.bytes;
            if bytes.is_some() && self.is_behind_another() {
                return None;
            }
            self.due = Some(self.take(now, bytes));
        }
        self.due.as_ref().map(|due| due.at)
    }

    /// Lets the first proceed, if it is due.
    fn next(&mut self, now: Time) -> Option<Key> {
        self.first_due(now).filter(|due| *due <= now)?;
        self.due = None;
        self.remove(0).map(|first| first.task)
    }

    fn remove(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.waiting.remove(at)?;
        self.ordered -= usize::from(waiting.attribute == Attribute::Ordered);
        Some(waiting)
    }

    /// The task has ended: what it had taken of the limit is free for others. Returns whether it waited here.
    fn forget(&mut self, task: Key) -> bool {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.task == task) else { return false };
        let has_place = at == 0 && self.due.take().is_some();
        if let Some(waiting) = self.remove(at).filter(|_| has_place) {
            self.release(waiting.bytes);
        }
        true
    }

    /// Other limits apply from now on, also to what waits.
    fn change(&mut self, shares: [Option<Arc<Share>>; 2]) {
        if self.due.take().is_some()
            && let Some(first) = self.waiting.front()
        {
            self.release(first.bytes);
        }
        self.shares = shares;
    }

    /// Whether any command waits.
    pub(super) fn holds_any(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn is_limited(&self) -> bool {
        self.shares.iter().any(Option::is_some)
    }
}

#[cfg(test)]
mod tests;
