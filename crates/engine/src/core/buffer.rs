//! Buffers of tasks. Each connection has a share of its core's, which shrinks as less is left; tasks that
//! find none wait.
//!
//! A connection may hold half of what is left to all. So n connections that take all they can get hold a part
//! in n + 2 each, once what they hold has been returned. It may not be returned soon, or ever, and early
//! connections hold more then: so a part of all is reserved for the first [`CHUNK_BYTES`] of each connection.
//! That part can be used up as well, by as many sessions as it has pieces; but those can access only some
//! units, and a part of it is reserved for the first piece of each unit: sessions that cannot access a unit
//! cannot starve others of it. Buffers that are returned go to those that wait, in turn.

mod grant;

use crate::slots::Key;
use scsi::Step;
use scsi::storage::CHUNK_BYTES;
use std::collections::VecDeque;

/// Buffer bytes that the steps of one connection's tasks may hold: an initiator whose tasks make no progress
/// leaves enough for others. 64 of the longest pieces.
const SHARE_BYTES: u64 = 16 << 20;
/// The same for unsolicited data: one of the longest pieces for each command of a window.
const UNSOLICITED_BYTES: u64 = 32 << 20;
/// Bytes of whole large buffers that steps leave to connections for receiving and sending.
const RESERVE_BYTES: u64 = 8 << 20;
/// Those that unsolicited data leaves to steps and connections.
const STEPS_BYTES: u64 = 16 << 20;
/// As many again, for which no window is opened: connections use some of them before the data of their
/// commands has arrived.
const SLACK_BYTES: u64 = 1 << 20;
/// Those that steps leave to unsolicited data, including what it already holds: it cannot wait.
const UNSOLICITED_ROOM_BYTES: u64 = 32 << 20;
/// Those reserved for connections whose steps hold little, and for those that hold little unsolicited data.
const FIRST_STEPS_BYTES: u64 = 32 << 20;
const FIRST_UNSOLICITED_BYTES: u64 = 8 << 20;
/// Those of them reserved for units for which nothing is held: one of the longest pieces for each of 32, and
/// of 16.
const UNITS_STEPS_BYTES: u64 = 8 << 20;
const UNITS_UNSOLICITED_BYTES: u64 = 4 << 20;

/// What a task has its buffer for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Purpose {
    /// A step of its program: it runs.
    #[default]
    Step,
    /// Unsolicited data, whether its task runs or waits at its unit's gate.
    Unsolicited,
}

/// Buffer bytes that tasks hold, by purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    step: u64,
    unsolicited: u64,
}

impl Bytes {
    fn of(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Step => &mut self.step,
            Purpose::Unsolicited => &mut self.unsolicited,
        }
    }
}

/// What the tasks of one connection hold, and which of them wait for a buffer.
#[derive(Debug, Default)]
pub(super) struct Share {
    bytes: Bytes,
    /// Oldest first, each with the step that needs the buffer; `None`: its first step.
    starving: VecDeque<(Key, Option<Step>)>,
    /// The connection is in the list of those that returned buffers go to.
    is_starved: bool,
}

impl Share {
    /// How many more commands there are buffers for if all their data is unsolicited, out of this many bytes
    /// of whole buffers.
    pub(super) fn window(&self, whole_bytes: u64) -> u32 {
        let left = whole_bytes.saturating_sub(STEPS_BYTES + FIRST_UNSOLICITED_BYTES + SLACK_BYTES);
        // With this many bytes more, it still holds no more than half of what is left then.
        let share = left.saturating_sub(2 * self.bytes.unsolicited) / 3;
        let room = share.min(UNSOLICITED_BYTES.saturating_sub(self.bytes.unsolicited));
        u32::try_from(room / u64::from(CHUNK_BYTES)).unwrap_or(u32::MAX)
    }

    /// Whether none of its tasks waits for a buffer.
    pub(super) fn is_fed(&self) -> bool {
        self.starving.is_empty()
    }

    /// Whether it may hold this many more bytes for this purpose, with `left` bytes left to all.
    fn may_hold(&self, purpose: Purpose, bytes: u64, left: u64) -> bool {
        let (held, limit) = match purpose {
            Purpose::Step => (self.bytes.step, SHARE_BYTES),
            Purpose::Unsolicited => (self.bytes.unsolicited, UNSOLICITED_BYTES),
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
        self.bytes.step == 0 && self.bytes.unsolicited == 0 && self.starving == 0
    }

    /// No step of a task holds a buffer.
    fn is_idle(&self) -> bool {
        self.bytes.step == 0
    }
}

/// Bytes of whole buffers that tasks with this purpose leave to others, while this many hold unsolicited
/// data.
fn reserved_for_others(purpose: Purpose, unsolicited_bytes: u64) -> u64 {
    match purpose {
        Purpose::Step => RESERVE_BYTES + UNSOLICITED_ROOM_BYTES.saturating_sub(unsolicited_bytes),
        Purpose::Unsolicited => STEPS_BYTES,
    }
}

/// What a core's tasks hold, and which connections wait for buffers.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Bytes that tasks hold for unsolicited data.
    unsolicited_bytes: u64,
    /// Connections with tasks that wait for a buffer; the one whose turn is next is first.
    pub(super) starved: Vec<Key>,
    /// Connections whose window is closed for lack of buffers.
    pub(super) narrow: Vec<Key>,
    /// Bytes that were left at the last check.
    pub(super) room_seen: u64,
}

/// No buffer is available now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoBuffer;

#[cfg(test)]
mod tests;
