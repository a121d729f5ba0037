//! Buffers of tasks. Each connection has a share of its core's, which is the smaller the less is left, and who finds none
//! waits.
//!
//! A connection may hold half of what is left to all. So n connections that want all they can get have a part in n + 2 each,
//! once what they hold has come back. It may not come back, or not soon, and early comers hold more then: so a part of all is
//! left to the first [`CHUNK_BYTES`] of each connection. That part can be used up as well, by as many sessions as it has
//! pieces; but those see some units only, and a part of it is left to the first piece of each unit: who cannot see a unit
//! cannot keep others from it. What comes back goes to those that wait by turns.

use super::Core;
use super::task::State;
use crate::slots::Key;
use reactor::io::Io;
use reactor::memory::Arena;
use scsi::storage::CHUNK_BYTES;
use scsi::{Event, Exec, Step};
use std::collections::VecDeque;
use wire::Places;

/// Buffer bytes that the steps of one connection's tasks may hold: an initiator whose tasks make no progress leaves
/// enough for others. 64 of the longest pieces.
const SHARE_BYTES: u64 = 16 << 20;
/// The same for data that comes unasked: one of the longest pieces for each command of a window.
const UNASKED_BYTES: u64 = 32 << 20;
/// Bytes of whole large buffers that steps leave to connections, which receive and send with them.
const RESERVE_BYTES: u64 = 8 << 20;
/// Those that data which comes unasked leaves to steps, and to connections.
const STEPS_BYTES: u64 = 16 << 20;
/// As many again for which no window is opened: connections take of them before the data of its commands has come.
const SLACK_BYTES: u64 = 1 << 20;
/// Those that steps leave to data which comes unasked, what it has counted in: it cannot wait.
const UNASKED_ROOM_BYTES: u64 = 32 << 20;
/// Those that are left to connections whose steps hold little, and to those that hold little data which came unasked.
const FIRST_STEPS_BYTES: u64 = 32 << 20;
const FIRST_UNASKED_BYTES: u64 = 8 << 20;
/// Those of them that are left to units for which nothing is held: one of the longest pieces for each of 32, and of 16.
const UNITS_STEPS_BYTES: u64 = 8 << 20;
const UNITS_UNASKED_BYTES: u64 = 4 << 20;

/// What a task has its buffer for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Purpose {
    /// A step of its program: it runs.
    #[default]
    Step,
    /// Data that comes unasked, whether it runs or waits at its unit's gate.
    Unasked,
}

/// Buffer bytes that tasks hold, by purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    step: u64,
    unasked: u64,
}

impl Bytes {
    fn of(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Step => &mut self.step,
            Purpose::Unasked => &mut self.unasked,
        }
    }
}

/// What tasks of one connection hold, and those that wait for a buffer.
#[derive(Debug, Default)]
pub(super) struct Share {
    bytes: Bytes,
    /// Oldest first, each with the step that needs it; without one, its first.
    starving: VecDeque<(Key, Option<Step>)>,
    /// The connection is among those that buffers which come back go to.
    is_starved: bool,
}

impl Share {
    /// How many more commands there is room for, if all their data comes unasked, in so many bytes of whole buffers.
    pub(super) fn window(&self, whole_bytes: u64) -> u32 {
        let left = whole_bytes.saturating_sub(STEPS_BYTES + FIRST_UNASKED_BYTES + SLACK_BYTES);
        // With so many bytes more, it still holds no more than half of what is left then.
        let share = left.saturating_sub(2 * self.bytes.unasked) / 3;
        let room = share.min(UNASKED_BYTES.saturating_sub(self.bytes.unasked));
        u32::try_from(room / u64::from(CHUNK_BYTES)).unwrap_or(u32::MAX)
    }

    /// Whether none of its tasks waits for a buffer.
    pub(super) fn is_fed(&self) -> bool {
        self.starving.is_empty()
    }

    /// Whether it may hold so many more bytes for this purpose, where so many are left to all.
    fn may_hold(&self, purpose: Purpose, bytes: u64, left: u64) -> bool {
        let (held, limit) = match purpose {
            Purpose::Step => (self.bytes.step, SHARE_BYTES),
            Purpose::Unasked => (self.bytes.unasked, UNASKED_BYTES),
        };
        held + bytes <= limit.min(left / 2).max(u64::from(CHUNK_BYTES))
    }
}

/// What tasks for one unit hold, and how many of them wait for a buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    bytes: Bytes,
    starving: u32,
}

impl Held {
    /// Nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.step == 0 && self.bytes.unasked == 0 && self.starving == 0
    }

    /// No step of a task has one.
    fn is_idle(&self) -> bool {
        self.bytes.step == 0
    }
}

/// Those of whole buffers that are left to others than tasks with this purpose, where so many hold data that came unasked.
fn left_alone(purpose: Purpose, unasked_bytes: u64) -> u64 {
    match purpose {
        Purpose::Step => RESERVE_BYTES + UNASKED_ROOM_BYTES.saturating_sub(unasked_bytes),
        Purpose::Unasked => STEPS_BYTES,
    }
}

/// What a core's tasks hold, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Bytes that tasks hold for data that comes unasked.
    unasked_bytes: u64,
    /// Connections with tasks that wait for a buffer, whose turn is next first.
    pub(super) starved: Vec<Key>,
    /// Connections whose initiators may send nothing for want of room.
    pub(super) narrow: Vec<Key>,
    /// Bytes that were left when they were looked at.
    pub(super) room_seen: u64,
}

/// There is no buffer now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Short;

impl<I: Io> Core<I> {
    /// Gives the task a buffer of `len` bytes, which is not 0, in place of the one that it has.
    pub(super) fn take_buffer(&mut self, key: Key, len: u32, purpose: Purpose) -> Result<(), Short> {
        self.give_buffer(key);
        let task = self.tasks.get(key).ok_or(Short)?;
        let (origin, unit) = (task.origin, task.unit);
        let buffer = self.grant(origin, unit, len, purpose)?;
        if let Some(task) = self.tasks.get_mut(key) {
            (task.buffer, task.purpose) = (buffer, purpose);
        }
        Ok(())
    }

    /// Takes a buffer of `len` bytes, which is not 0, for a command on this connection, for this unit.
    pub(super) fn grant(
        &mut self,
        origin: Key,
        unit: u32,
        len: u32,
        purpose: Purpose,
    ) -> Result<Places, Short> {
        let (bytes, arena) = (Arena::taken_bytes(len), self.io.arena());
        let room = arena.whole_bytes().saturating_sub(left_alone(purpose, self.buffers.unasked_bytes));
        let (of_units, of_first) = match purpose {
            Purpose::Step => (UNITS_STEPS_BYTES, FIRST_STEPS_BYTES),
            Purpose::Unasked => (UNITS_UNASKED_BYTES, FIRST_UNASKED_BYTES),
        };
        let conn = self.connections.get_mut(origin);
        let held = self.units.held_mut(unit);
        let is_first_of_unit = bytes <= u64::from(CHUNK_BYTES) && *held.bytes.of(purpose) == 0;
        let may_hold = is_first_of_unit && room >= bytes
            || room >= bytes + of_units
                && conn
                    .as_ref()
                    .is_none_or(|conn| conn.share.may_hold(purpose, bytes, room.saturating_sub(of_first)));
        if !may_hold {
            return Err(Short);
        }
        let buffer = arena.take(len).ok_or(Short)?;
        *held.bytes.of(purpose) += bytes;
        if purpose == Purpose::Unasked {
            self.buffers.unasked_bytes += bytes;
        }
        if let Some(conn) = conn {
            *conn.share.bytes.of(purpose) += bytes;
        }
        Ok(buffer)
    }

    /// The same for a step; false: the task continues, with this step or its first, when there is a buffer. It waits behind those
    /// of its connection that wait already.
    pub(super) fn take_or_wait(&mut self, key: Key, len: u32, step: Option<Step>) -> bool {
        // Who waits holds none that others wait for.
        self.give_buffer(key);
        let Some(task) = self.tasks.get(key) else { return false };
        let (origin, unit) = (task.origin, task.unit);
        let is_first = self.connections.get(origin).is_none_or(|conn| conn.share.starving.is_empty());
        if is_first && self.take_buffer(key, len, Purpose::Step).is_ok() {
            return true;
        }
        self.set_state(key, State::Starved);
        let Some(conn) = self.connections.get_mut(origin) else { return false };
        conn.share.starving.push_back((key, step));
        self.units.held_mut(unit).starving += 1;
        if !std::mem::replace(&mut conn.share.is_starved, true) {
            self.buffers.starved.push(origin);
        }
        false
    }

    /// Takes the task's buffer back.
    pub(super) fn give_buffer(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.buffer.is_empty() {
            return;
        }
        let (origin, unit, purpose) = (task.origin, task.unit, task.purpose);
        let buffer = std::mem::replace(&mut task.buffer, Places::EMPTY);
        if std::mem::take(&mut task.borrowed) {
            if let Some(conn) = self.connections.get_mut(origin) {
                conn.machine.give_back(task.wire);
                self.mark_dirty(origin);
            }
            return;
        }
        self.return_buffer(origin, unit, &buffer, purpose);
    }

    pub(super) fn return_buffer(&mut self, origin: Key, unit: u32, buffer: &Places, purpose: Purpose) {
        self.io.arena().give(buffer);
        let bytes = Arena::taken_bytes(buffer.len());
        *self.units.held_mut(unit).bytes.of(purpose) -= bytes;
        if purpose == Purpose::Unasked {
            self.buffers.unasked_bytes -= bytes;
        }
        if let Some(conn) = self.connections.get_mut(origin) {
            *conn.share.bytes.of(purpose) -= bytes;
        }
    }

    /// Windows that are closed for want of room are looked at again.
    pub(super) fn look_at_windows(&mut self) {
        self.buffers.room_seen = self.io.arena().whole_bytes();
        if self.buffers.narrow.is_empty() {
            return;
        }
        for key in std::mem::take(&mut self.buffers.narrow) {
            if let Some(conn) = self.connections.get_mut(key) {
                conn.is_narrow = false;
            }
            self.mark_dirty(key);
        }
    }

    /// Whether a window that is closed may be opened: more is left than when it was looked at.
    pub(super) fn may_widen(&mut self) -> bool {
        !self.buffers.narrow.is_empty() && self.io.arena().whole_bytes() > self.buffers.room_seen
    }

    /// The task, which waits for a buffer, has ended.
    pub(super) fn forget_starving(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == State::Starved) else { return };
        let Some(conn) = self.connections.get_mut(task.origin) else { return };
        if let Some(index) = conn.share.starving.iter().position(|(other, _)| *other == key) {
            conn.share.starving.remove(index);
            self.units.held_mut(task.unit).starving -= 1;
        }
    }

    /// Gives buffers that came back to the tasks that wait for one. Who gets some has the next turn after all others.
    pub(super) fn feed_starved(&mut self) {
        let mut index = 0;
        let is_kept_out = self.units.iter().any(|unit| unit.held.is_idle() && unit.held.starving > 0);
        for _ in 0..self.buffers.starved.len() {
            let Some(origin) = self.buffers.starved.get(index).copied() else { return };
            let mut is_fed = false;
            while self.feed(origin, is_kept_out) {
                is_fed = true;
            }
            let Some(conn) = self.connections.get_mut(origin) else {
                self.buffers.starved.remove(index);
                continue;
            };
            conn.share.is_starved = !conn.share.starving.is_empty();
            match (conn.share.is_starved, is_fed) {
                (true, false) => index += 1,
                (true, true) => self.buffers.starved[index..].rotate_left(1),
                (false, _) => {
                    self.buffers.starved.remove(index);
                }
            }
        }
    }

    /// Gives the oldest task of the connection that waits for a buffer one, if it may have it; else the oldest whose unit has
    /// none: nobody may be kept from a unit by who keeps its connection from another. `is_kept_out`: one such task waits on some
    /// connection.
    fn feed(&mut self, origin: Key, is_kept_out: bool) -> bool {
        if self.feed_at(origin, 0) {
            return true;
        }
        // All that wait are gone through only where such a task is there, and there is something to give it.
        if !is_kept_out
            || self.io.arena().whole_bytes() <= left_alone(Purpose::Step, self.buffers.unasked_bytes)
        {
            return false;
        }
        let Some(conn) = self.connections.get(origin) else { return false };
        let is_idle = |(key, _): &(Key, Option<Step>)| {
            self.tasks
                .get(*key)
                .and_then(|task| self.units.get(task.unit))
                .is_some_and(|unit| unit.held.is_idle())
        };
        let idle = conn.share.starving.iter().position(is_idle);
        idle.is_some_and(|index| index > 0 && self.feed_at(origin, index))
    }

    fn feed_at(&mut self, origin: Key, index: usize) -> bool {
        let Some(conn) = self.connections.get(origin) else { return false };
        let Some((key, step)) = conn.share.starving.get(index) else { return false };
        let (key, task) = (*key, self.tasks.get(*key));
        let unit = task.map_or(u32::MAX, |task| task.unit);
        let first = task.and_then(|task| task.exec.as_ref());
        let wanted = match step {
            Some(Step::ReadPush { len, .. }) => *len,
            Some(_) | None => first.map_or(0, Exec::buffer_bytes),
        };
        if self.take_buffer(key, wanted, Purpose::Step).is_err() {
            return false;
        }
        let conn = self.connections.get_mut(origin);
        let Some((key, step)) = conn.and_then(|conn| conn.share.starving.remove(index)) else { return true };
        self.units.held_mut(unit).starving -= 1;
        let event = match step {
            Some(step) => self.perform(key, step),
            None => Some(Event::Start),
        };
        if let Some(event) = event {
            self.run_task(key, event);
        }
        true
    }
}

#[cfg(test)]
mod tests;
