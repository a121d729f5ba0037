//! Lines in which commands wait that exceed a limit of their LUN or group.
//!
//! A session has a line for each of its LUNs that is limited. What waits there has not come to the unit yet: it is behind the
//! service delivery subsystem, so to speak, holds no place at the unit's gate, no claim and no buffer but that for data which
//! comes unasked, as at a gate ([`super::gate`] has the proof that nobody waits for what that holds), and its window or request
//! limit closes behind it. So it holds up nobody else, on its unit or on another; what the session sends to the unit later keeps
//! its order: an ordered command goes behind all that waits, and everything behind an ordered one that waits.
//!
//! The first in a line takes a [`Place`] at once, which says when it is due, and others only as long as those that wait with one
//! take no more than the largest command of anybody. So lines of all cores take turns, whoever has how many commands. A core that
//! sleeps a little too long has not lost its turn: all lines of a limit take ahead twice what any core was late lately, as where
//! other programs have the processor. A core has one deadline for all its lines.

mod run;

use crate::limits::{Limit, Place};
use crate::slots::Key;
use proto::services::Command;
use proto::time::Time;
use scsi::{Attribute, View};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What a line may take ahead at least: about what the sleep and the wake-up of a core cost.
const AHEAD: Duration = Duration::from_micros(200);

/// The shortest sleep before something in a line is due.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// Limits of a LUN of a session, and what waits for them.
#[derive(Debug)]
pub(crate) struct Line {
    /// That of the LUN, and that of the group.
    limits: [Option<Arc<Limit>>; 2],
    /// Oldest first.
    waiting: VecDeque<Waiting>,
    /// How many of the first have their place.
    placed: usize,
    /// What these take.
    ahead: Duration,
    /// Ordered commands among them.
    ordered: usize,
    /// The core has it among its lines.
    is_listed: bool,
}

#[derive(Debug)]
struct Waiting {
    task: Key,
    /// What it moves; `None`: limits are not for such commands, and it keeps its order.
    bytes: Option<u32>,
    attribute: Attribute,
    place: Place,
}

impl Place {
    /// What its line may take ahead.
    fn ahead(self) -> Duration {
        self.largest.max(AHEAD + 2 * self.late)
    }
}

/// How a command waits: with its place, if it is the first.
pub(super) struct Wait {
    bytes: Option<u32>,
    place: Option<Place>,
}

/// A core's lines in which something waits.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By connection, and index of its LUN.
    listed: Vec<(Key, usize)>,
    /// Before then nothing is due.
    due: Time,
}

impl Lines {
    /// When something is due, if anything waits.
    pub(super) fn due(&self) -> Option<Time> {
        (!self.listed.is_empty()).then_some(self.due)
    }
}

impl Line {
    fn new(limits: [Option<Arc<Limit>>; 2]) -> Line {
        let waiting = VecDeque::new();
        Line { limits, waiting, placed: 0, ahead: Duration::ZERO, ordered: 0, is_listed: false }
    }

    /// Whether a command that has come has to wait, and how. If not, it has been counted.
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
            Some(bytes) if is_empty => {
                let place = self.take(now, Some(bytes));
                (place.due > now).then_some(Wait { bytes: Some(bytes), place: Some(place) })
            }
            bytes => Some(Wait { bytes, place: None }),
        }
    }

    fn take(&self, now: Time, bytes: Option<u32>) -> Place {
        let each = |bytes| self.limits.iter().flatten().map(move |limit| limit.take(now, bytes));
        bytes.map_or(Place::default(), |bytes| each(bytes).fold(Place::default(), Place::and))
    }

    fn release(&self, bytes: Option<u32>) {
        bytes.iter().for_each(|bytes| self.limits.iter().flatten().for_each(|limit| limit.release(*bytes)));
    }

    fn push(&mut self, task: Key, attribute: Attribute, wait: Wait, now: Time) {
        let Wait { bytes, place } = wait;
        if let Some(place) = place {
            (self.placed, self.ahead) = (1, place.takes);
        }
        self.ordered += usize::from(attribute == Attribute::Ordered);
        self.waiting.push_back(Waiting { task, bytes, attribute, place: place.unwrap_or_default() });
        self.take_ahead(now);
    }

    /// Takes places for those that come next.
    fn take_ahead(&mut self, now: Time) {
        let mut ahead = self.waiting.front().map_or(Duration::ZERO, |first| first.place.ahead());
        while self.placed == 0 || self.ahead < ahead {
            let Some(next) = self.waiting.get(self.placed) else { return };
            let place = self.take(now, next.bytes);
            ahead = ahead.max(place.ahead());
            self.ahead += place.takes;
            self.waiting[self.placed].place = place;
            self.placed += 1;
        }
    }

    /// When the first is due, if there is one. All before it have gone, so none overtakes another.
    fn due(&self) -> Option<Time> {
        self.waiting.front().map(|first| first.place.due)
    }

    /// Lets the first go, if it is due.
    fn next(&mut self, now: Time) -> Option<Key> {
        self.take_ahead(now);
        let due = self.due().filter(|due| *due <= now)?;
        let first = self.remove(0)?;
        if first.bytes.is_some() {
            let late = now.since(due);
            self.limits.iter().flatten().for_each(|limit| limit.let_in(late));
        }
        Some(first.task)
    }

    fn remove(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.waiting.remove(at)?;
        self.ordered -= usize::from(waiting.attribute == Attribute::Ordered);
        if at < self.placed {
            self.placed -= 1;
            self.ahead = self.ahead.saturating_sub(waiting.place.takes);
        }
        Some(waiting)
    }

    /// The task is over: what it has taken others have. Whether it waited here.
    fn forget(&mut self, task: Key) -> bool {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.task == task) else { return false };
        let is_placed = at < self.placed;
        if let Some(waiting) = self.remove(at).filter(|_| is_placed) {
            self.release(waiting.bytes);
        }
        true
    }

    /// Other limits hold from now on, for what waits as well.
    fn change(&mut self, limits: [Option<Arc<Limit>>; 2]) {
        for waiting in self.waiting.iter().take(self.placed) {
            self.release(waiting.bytes);
        }
        (self.placed, self.ahead, self.limits) = (0, Duration::ZERO, limits);
    }

    /// Whether something waits.
    pub(super) fn holds_any(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn is_limited(&self) -> bool {
        self.limits.iter().any(Option::is_some)
    }
}

#[cfg(test)]
mod tests;
