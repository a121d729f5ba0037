//! Lines in which commands wait that exceed a limit of their LUN or group.
//!
//! A session has a line for each of its LUNs that is limited. What waits there has not come to the unit yet: it is behind the
//! service delivery subsystem, so to speak, holds no place at the unit's gate, no claim and no buffer but that for data which
//! comes unasked, as at a gate ([`super::gate`] has the proof that nobody waits for what that holds), and its window or request
//! limit closes behind it. So it holds up nobody else, on its unit or on another; what the session sends to the unit later keeps
//! its order: an ordered command goes behind all that waits, and everything behind an ordered one that waits.
//!
//! The first in a line takes a [`Place`] at once, which says when it is due, and others only as long as those that wait with one
//! take no more than the largest command of anybody. So lines of all cores take turns, whoever has how many commands, and a core
//! that sleeps a little too long has not lost its turn. A core has one deadline for all its lines.

use super::Core;
use super::connection::Connection;
use super::session::LunState;
use super::task::{State, Task};
use crate::limits::{Limit, Place};
use crate::slots::{Key, Slots};
use proto::services::Command;
use proto::time::Time;
use reactor::io::Io;
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
        let mut largest = self.waiting.front().map_or(Duration::ZERO, |first| first.place.largest);
        while self.placed == 0 || self.ahead < largest.max(AHEAD) {
            let Some(next) = self.waiting.get(self.placed) else { return };
            let place = self.take(now, next.bytes);
            largest = largest.max(place.largest);
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
        self.due().filter(|due| *due <= now)?;
        self.remove(0).map(|first| first.task)
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

    /// The task is over: what it has taken others have.
    fn forget(&mut self, task: Key) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.task == task) else { return };
        let is_placed = at < self.placed;
        if let Some(waiting) = self.remove(at).filter(|_| is_placed) {
            self.release(waiting.bytes);
        }
    }

    /// Other limits hold from now on, for what waits as well.
    fn change(&mut self, limits: [Option<Arc<Limit>>; 2]) {
        for waiting in self.waiting.iter().take(self.placed) {
            self.release(waiting.bytes);
        }
        (self.placed, self.ahead, self.limits) = (0, Duration::ZERO, limits);
    }

    fn is_limited(&self) -> bool {
        self.limits.iter().any(Option::is_some)
    }
}

impl LunState {
    /// These limits hold for it from now on.
    fn limit(&mut self, limits: [Option<Arc<Limit>>; 2]) {
        let is_same = |line: &Line| {
            let mut each = line.limits.iter().zip(&limits);
            each.all(|(old, new)| old.as_ref().map(Arc::as_ptr) == new.as_ref().map(Arc::as_ptr))
        };
        match &mut self.line {
            Some(line) if is_same(line) => {}
            Some(line) => line.change(limits),
            None if limits.iter().any(Option::is_some) => self.line = Some(Box::new(Line::new(limits))),
            None => {}
        }
        self.drop_line();
    }

    /// Its session moves to another core: nothing waits.
    pub(super) fn leave_core(&mut self) {
        if let Some(line) = &mut self.line {
            line.is_listed = false;
        }
    }

    /// Its line goes once it is neither limited nor needed.
    fn drop_line(&mut self) {
        self.line.take_if(|line| !line.is_limited() && line.waiting.is_empty());
        self.nexus.takes_turns = self.line.is_some() || self.nexus.mac.is_some();
    }
}

fn line(connections: &mut Slots<Connection>, origin: Key, lun: usize) -> Option<&mut Line> {
    connections.get_mut(origin)?.luns.get_mut(lun)?.line.as_deref_mut()
}

impl<I: Io> Core<I> {
    /// Limits that hold for the LUNs of a session, by what is served now.
    pub(super) fn set_limits(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        let of_group = self.served.limits.of_session(&self.served.config, &conn.facts);
        for lun in &mut conn.luns {
            let index = self.served.units.iter().position(|unit| *unit == lun.unit);
            // Of a unit that goes nothing has to wait any more.
            let of_lun = index.and_then(|index| self.served.limits.of_lun(index));
            lun.limit([of_lun, of_group.clone().filter(|_| index.is_some())]);
        }
        self.lines.due = Time(0);
    }

    /// A command waits in its line.
    pub(super) fn wait_in_line(&mut self, mut task: Task, lun: usize, wait: Wait) {
        task.state = State::InLine;
        let (origin, attribute) = (task.origin, task.attribute);
        let key = self.insert(task);
        self.take_unsolicited(key);
        let now = self.io.now();
        let is_there = self.tasks.get(key).is_some();
        let Some(line) = line(&mut self.connections, origin, lun) else { return };
        if !is_there {
            // There was no buffer for its data.
            wait.place.iter().for_each(|_| line.release(wait.bytes));
            return;
        }
        line.push(key, attribute, wait, now);
        let due = line.due().unwrap_or_default();
        self.lines.due = if self.lines.listed.is_empty() { due } else { self.lines.due.min(due) };
        if !std::mem::replace(&mut line.is_listed, true) {
            self.lines.listed.push((origin, lun));
        }
    }

    /// The task is over that waits in a line.
    pub(super) fn leave_line(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == State::InLine) else { return };
        if let Some(line) = line(&mut self.connections, task.origin, task.lun) {
            line.forget(key);
            self.lines.due = Time(0);
        }
    }

    /// Lets in what is due, one command of each line after the other. Whether there was any.
    pub(super) fn run_lines(&mut self) -> bool {
        if self.lines.listed.is_empty() || self.lines.due > self.io.now() {
            return false;
        }
        let now = self.io.now();
        let mut has_run = false;
        loop {
            let mut has_gone = false;
            for index in 0..self.lines.listed.len() {
                let (origin, lun) = self.lines.listed[index];
                if let Some(key) = line(&mut self.connections, origin, lun).and_then(|line| line.next(now)) {
                    has_gone = true;
                    self.let_on(key);
                }
            }
            if !has_gone {
                break;
            }
            has_run = true;
        }
        self.look_at_lines();
        has_run
    }

    /// Those in which nothing waits are forgotten, and the deadline is that of the others.
    fn look_at_lines(&mut self) {
        let (connections, mut next) = (&mut self.connections, None::<Time>);
        self.lines.listed.retain(|(origin, lun)| {
            let Some(state) = connections.get_mut(*origin).and_then(|conn| conn.luns.get_mut(*lun)) else {
                return false;
            };
            let due = state.line.as_ref().and_then(|line| line.due());
            next = next.into_iter().chain(due).min();
            if let (None, Some(line)) = (due, &mut state.line) {
                line.is_listed = false;
                state.drop_line();
            }
            due.is_some()
        });
        // Who has had the first turn has the last one next time.
        if !self.lines.listed.is_empty() {
            self.lines.listed.rotate_left(1);
        }
        self.lines.due = next.unwrap_or_default();
    }

    /// The command comes to its unit.
    fn let_on(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == State::InLine) else { return };
        let (unit, attribute) = (task.unit, task.attribute);
        if self.units[unit].gate.must_wait(attribute) {
            self.set_state(key, State::Waiting);
            self.units[unit].gate.wait(key);
            self.open_gate(unit);
        } else {
            self.start(key);
        }
    }
}

#[cfg(test)]
mod tests;
