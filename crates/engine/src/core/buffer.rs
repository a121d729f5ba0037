//! Buffers of tasks: each connection has a share of its core's, and who finds none waits.

use super::Core;
use super::task::State;
use crate::slots::Key;
use reactor::io::Io;
use scsi::exec::CHUNK_BYTES;
use scsi::{Event, Exec, Step};
use std::collections::VecDeque;
use wire::Places;

/// Buffer bytes that the steps of one connection's tasks may hold: an initiator whose tasks make no progress leaves
/// enough for others. 64 of the longest pieces.
const SHARE_BYTES: u64 = 16 << 20;
/// The same for data that comes unasked: one of the longest pieces for each command of a window.
const UNASKED_BYTES: u64 = 32 << 20;
/// Buffer bytes of a core that steps leave to connections, which receive and send with them.
const RESERVE_BYTES: u64 = 8 << 20;
/// Bytes of whole large buffers that data which comes unasked leaves to steps, and to connections.
const STEPS_BYTES: u64 = 16 << 20;
/// As many again for which no window is opened: connections take of them before the data of its commands has come.
const SLACK_BYTES: u64 = 1 << 20;

/// What a task has its buffer for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Purpose {
    /// A step of its program: it runs.
    #[default]
    Step,
    /// Data that comes unasked, whether it runs or waits at its unit's gate.
    Unasked,
}

/// Buffer bytes that tasks of one connection hold, by purpose, and those that wait because it has its share.
#[derive(Debug, Default)]
pub(super) struct Share {
    step_bytes: u64,
    unasked_bytes: u64,
    held: VecDeque<Starving>,
}

impl Share {
    /// How many more commands there is room for, if all their data comes unasked, in so many bytes of whole buffers.
    pub(super) fn window(&self, whole_bytes: u64) -> u32 {
        let share = UNASKED_BYTES.saturating_sub(self.unasked_bytes);
        let room = whole_bytes.saturating_sub(STEPS_BYTES + SLACK_BYTES).min(share);
        u32::try_from(room / u64::from(CHUNK_BYTES)).unwrap_or(u32::MAX)
    }

    /// What is held for this purpose, and how much that may be.
    fn of(&mut self, purpose: Purpose) -> (&mut u64, u64) {
        match purpose {
            Purpose::Step => (&mut self.step_bytes, SHARE_BYTES),
            Purpose::Unasked => (&mut self.unasked_bytes, UNASKED_BYTES),
        }
    }
}

/// A task that waits for a buffer, and the step that needs it; without one, its first.
pub(super) type Starving = (Key, Option<Step>);

/// Why there is no buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Short {
    /// The connection has its share.
    Share,
    /// The core has no more.
    Core,
}

impl<I: Io> Core<I> {
    /// Gives the task a buffer of `len` bytes, which is not 0, in place of the one that it has.
    pub(super) fn take_buffer(&mut self, key: Key, len: u32, purpose: Purpose) -> Result<(), Short> {
        self.give_buffer(key);
        let Some(task) = self.tasks.get_mut(key) else { return Err(Short::Core) };
        let share = self.connections.get_mut(task.origin).map(|conn| conn.share.of(purpose));
        if share.as_ref().is_some_and(|(held, limit)| **held + u64::from(len) > *limit) {
            return Err(Short::Share);
        }
        let arena = self.io.arena();
        let (free, left) = match purpose {
            Purpose::Step => (arena.free_bytes(), RESERVE_BYTES),
            Purpose::Unasked => (arena.whole_bytes(), STEPS_BYTES),
        };
        if free < left + u64::from(len) {
            return Err(Short::Core);
        }
        (task.buffer, task.purpose) = (arena.take(len).ok_or(Short::Core)?, purpose);
        if let Some((held, _)) = share {
            *held += u64::from(len);
        }
        Ok(())
    }

    /// Takes the task's buffer back.
    pub(super) fn give_buffer(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.buffer.is_empty() {
            return;
        }
        let (origin, purpose) = (task.origin, task.purpose);
        let buffer = std::mem::replace(&mut task.buffer, Places::EMPTY);
        if std::mem::take(&mut task.borrowed) {
            if let Some(conn) = self.connections.get_mut(origin) {
                conn.machine.give_back(task.wire);
                self.soil(origin);
            }
            return;
        }
        self.return_buffer(origin, &buffer, purpose);
    }

    pub(super) fn return_buffer(&mut self, origin: Key, buffer: &Places, purpose: Purpose) {
        self.io.arena().give(buffer);
        if let Some(conn) = self.connections.get_mut(origin) {
            *conn.share.of(purpose).0 -= u64::from(buffer.len());
            if conn.share.step_bytes <= SHARE_BYTES / 2 {
                self.starved.extend(conn.share.held.drain(..));
            }
        }
    }

    /// Windows that are closed for want of room are looked at again.
    pub(super) fn look_at_windows(&mut self) {
        for key in std::mem::take(&mut self.narrow) {
            if let Some(conn) = self.connections.get_mut(key) {
                conn.is_narrow = false;
            }
            self.soil(key);
        }
    }

    /// The task goes on, with this step or its first, when there is a buffer.
    pub(super) fn starve(&mut self, key: Key, step: Option<Step>, why: Short) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.state = State::Starved;
        match (why, self.connections.get_mut(task.origin)) {
            (Short::Share, Some(conn)) => conn.share.held.push_back((key, step)),
            (Short::Share | Short::Core, _) => self.starved.push_back((key, step)),
        }
    }

    /// Gives buffers that came back to the tasks that wait for one, oldest first.
    pub(super) fn feed_starved(&mut self) {
        for _ in 0..self.starved.len() {
            let Some((key, step)) = self.starved.pop_front() else { return };
            let Some(task) = self.tasks.get(key).filter(|task| task.state == State::Starved) else {
                continue;
            };
            match step {
                Some(step) => {
                    if let Some(event) = self.perform(key, step) {
                        self.run_task(key, event);
                    }
                }
                None => {
                    let wanted = task.exec.as_ref().map_or(0, Exec::buffer_bytes);
                    match self.take_buffer(key, wanted, Purpose::Step) {
                        Ok(()) => self.run_task(key, Event::Start),
                        Err(why) => self.starve(key, None, why),
                    }
                }
            }
            // Still without a buffer of the core: it goes on first next time, and so do those behind it.
            if self.starved.back().is_some_and(|(last, _)| *last == key) {
                self.starved.rotate_right(1);
                return;
            }
        }
    }
}
