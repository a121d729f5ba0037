//! Buffers of tasks. Each connection has a share of its core's, which is the smaller the less is left, and who finds none
//! waits.
//!
//! A connection may hold half of what is left to all. So n connections that want all they can get have a part in n + 2 each,
//! once what they hold has come back. It may not come back, or not soon, and early comers hold more then: so a part of all is
//! left to the first [`CHUNK_BYTES`] of each connection. That part can be used up as well, by as many sessions as it has
//! pieces; but those see some units only, and a part of it is left to the first piece of each unit: who cannot see a unit
//! cannot keep others from it. What comes back goes to those that wait by turns.

mod grant;

use crate::slots::Key;
use scsi::Step;
use scsi::storage::CHUNK_BYTES;
use std::collections::VecDeque;

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
    /// Connections whose initiators may send nothing for lack of space.
    pub(super) narrow: Vec<Key>,
    /// Bytes that were left when they were looked at.
    pub(super) room_seen: u64,
}

/// There is no buffer now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Short;

#[cfg(test)]
mod tests;
