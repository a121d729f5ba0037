//! How tasks get and return buffers.

use super::{
    FIRST_STEPS_BYTES, FIRST_UNSOLICITED_BYTES, NoBuffer, Purpose, UNITS_STEPS_BYTES,
    UNITS_UNSOLICITED_BYTES, reserved_for_others,
};
use crate::core::Core;
use crate::core::task::State;
use crate::slots::Key;
use reactor::io::Io;
use reactor::memory::Arena;
use scsi::storage::CHUNK_BYTES;
use scsi::{Event, Exec, Step};
use wire::Places;

impl<I: Io> Core<I> {
    /// Gives the task a buffer of `len` bytes (not 0), replacing the one it has.
    pub(in crate::core) fn take_buffer(
        &mut self,
        key: Key,
        len: u32,
        purpose: Purpose,
    ) -> Result<(), NoBuffer> {
        self.release_buffer(key);
        let task = self.tasks.get(key).ok_or(NoBuffer)?;
        let (origin, unit) = (task.origin, task.unit);
        let buffer = self.grant(origin, unit, len, purpose)?;
        if let Some(task) = self.tasks.get_mut(key) {
            (task.buffer, task.purpose) = (buffer, purpose);
        }
        Ok(())
    }

    /// Allocates a buffer of `len` bytes (not 0) for a command on this connection and for this unit.
    pub(in crate::core) fn grant(
        &mut self,
        origin: Key,
        unit: u32,
        len: u32,
        purpose: Purpose,
    ) -> Result<Places, NoBuffer> {
        let (bytes, arena) = (Arena::taken_bytes(len), self.io.arena());
        let room =
            arena.whole_bytes().saturating_sub(reserved_for_others(purpose, self.buffers.unsolicited_bytes));
        let (of_units, of_first) = match purpose {
            Purpose::Step => (UNITS_STEPS_BYTES, FIRST_STEPS_BYTES),
            Purpose::Unsolicited => (UNITS_UNSOLICITED_BYTES, FIRST_UNSOLICITED_BYTES),
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
            return Err(NoBuffer);
        }
        let buffer = arena.take(len).ok_or(NoBuffer)?;
        *held.bytes.of(purpose) += bytes;
        if purpose == Purpose::Unsolicited {
            self.buffers.unsolicited_bytes += bytes;
        }
        if let Some(conn) = conn {
            *conn.share.bytes.of(purpose) += bytes;
        }
        Ok(buffer)
    }

    /// The same for a step; false: the task continues, with this step or its first, when there is a buffer.
    /// It waits behind those of its connection that already wait.
    pub(in crate::core) fn take_or_wait(&mut self, key: Key, len: u32, step: Option<Step>) -> bool {
        // A task that waits holds no buffer that others wait for.
        self.release_buffer(key);
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

    /// Returns the task's buffer.
    pub(in crate::core) fn release_buffer(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.buffer.is_empty() {
            return;
        }
        let (origin, unit, purpose) = (task.origin, task.unit, task.purpose);
        let buffer = std::mem::replace(&mut task.buffer, Places::EMPTY);
        if std::mem::take(&mut task.borrowed) {
            if let Some(conn) = self.connections.get_mut(origin) {
                conn.machine.end_borrow(task.wire);
                self.mark_dirty(origin);
            }
            return;
        }
        self.return_buffer(origin, unit, &buffer, purpose);
    }

    pub(in crate::core) fn return_buffer(
        &mut self,
        origin: Key,
        unit: u32,
        buffer: &Places,
        purpose: Purpose,
    ) {
        self.io.arena().give(buffer);
        let bytes = Arena::taken_bytes(buffer.len());
        *self.units.held_mut(unit).bytes.of(purpose) -= bytes;
        if purpose == Purpose::Unsolicited {
            self.buffers.unsolicited_bytes -= bytes;
        }
        if let Some(conn) = self.connections.get_mut(origin) {
            *conn.share.bytes.of(purpose) -= bytes;
        }
    }

    /// Rechecks windows that are closed for lack of buffers.
    pub(in crate::core) fn recheck_windows(&mut self) {
        self.buffers.room_seen = self.io.arena().whole_bytes();
        if self.buffers.narrow.is_empty() {
            return;
        }
        for key in std::mem::take(&mut self.buffers.narrow) {
            if let Some(conn) = self.connections.get_mut(key) {
                conn.listed.is_narrow = false;
            }
            self.mark_dirty(key);
        }
    }

    /// Whether a closed window may be opened: more is left than at the last check.
    pub(in crate::core) fn may_widen(&mut self) -> bool {
        !self.buffers.narrow.is_empty() && self.io.arena().whole_bytes() > self.buffers.room_seen
    }

    /// The task, which waits for a buffer, has ended.
    pub(in crate::core) fn forget_starving(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == State::Starved) else { return };
        let Some(conn) = self.connections.get_mut(task.origin) else { return };
        if let Some(index) = conn.share.starving.iter().position(|(other, _)| *other == key) {
            conn.share.starving.remove(index);
            self.units.held_mut(task.unit).starving -= 1;
        }
    }

    /// Gives returned buffers to the tasks that wait for one. A connection that gets some has its next turn
    /// after all others.
    pub(in crate::core) fn feed_starved(&mut self) {
        let mut index = 0;
        let is_reserved_for_others =
            self.units.iter().any(|unit| unit.held.is_idle() && unit.held.starving > 0);
        for _ in 0..self.buffers.starved.len() {
            let Some(origin) = self.buffers.starved.get(index).copied() else { return };
            let mut is_fed = false;
            while self.feed(origin, is_reserved_for_others) {
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

    /// Gives the oldest task of the connection that waits for a buffer one, if it may have it; otherwise the
    /// oldest whose unit has none: a connection that is over its share must not block its tasks for units
    /// that others share. `is_reserved_for_others`: one such task waits on some connection.
    fn feed(&mut self, origin: Key, is_reserved_for_others: bool) -> bool {
        if self.feed_at(origin, 0) {
            return true;
        }
        // The whole queue is searched only if there is such a task and a buffer to give it.
        if !is_reserved_for_others
            || self.io.arena().whole_bytes()
                <= reserved_for_others(Purpose::Step, self.buffers.unsolicited_bytes)
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
