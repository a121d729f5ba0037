//! Ordered tasks (SAM-5 section 8.9.3): one runs when everything older on the unit has ended, on every core, and
//! before anything younger begins.
//!
//! Each core has a [`Gate`] for each unit. A core whose oldest waiting task is ordered asks the unit's home, which has
//! all cores hold ([`crate::message::GateMessage`]), lets the task run, and releases them.
//!
//! A unit would stop for everybody if what waits held anything that the ordered task needs, or one that runs before it.
//! It does not:
//! - Buffers. What waits has one for data that comes unasked, or none: it asks the initiator for nothing. That buffer
//!   counts apart from those of steps ([`super::buffer::Purpose`]), by connection and by core, and is never waited for:
//!   where there is none, the task ends with TASK SET FULL. What runs returns its buffer before it waits for another,
//!   so it waits for the ends of other steps only, and none of these waits for a gate. With all other steps
//!   over, the first of each unit that waits may have what it needs; and whose data moves too slowly is ended ([`super::stall`]).
//! - Tasks. The ordered one, and all before it, have their places here and in their transport's table since they came,
//!   and used up their part of the window (MaxCmdSN, SRP's request limit) then. What ends tasks comes as immediate
//!   request, or by a credit that the initiator has kept.
//! - The stream. Data of what waits goes to its place or is thrown away as it comes, so that data which was asked for
//!   can follow it. A peer that does not send what it has announced is ended ([`super::stall`]).
//! - Receives. iSER's are free again when the data was copied to the buffer. A command of SRP may keep the one that it
//!   came in, and that was there for it alone; RDMA Reads of data need none, and those of descriptor tables go to the
//!   command's own.
//! - Frames of AoE. A WRITE keeps the one that it came in; answers take slots that only what has run can hold. A frame
//!   that finds no slot is lost, and resent.
//! - Blocks that AoE's commands change ([`super::aoe`]). They are claimed behind the gate, for as long as a task runs; who
//!   waits for them has claimed none.
//! - Lanes and homes. What waits was never in a store, nor asked its home for anything.

mod pass;

use crate::slots::Key;
use scsi::Attribute;
use std::collections::VecDeque;

/// One unit's gate on one core.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The home asked to hold.
    held: bool,
    /// The home was notified that nothing runs here.
    reported: bool,
    /// Tasks that run on this unit, on this core.
    running: u32,
    /// Tasks that wait, oldest first.
    waiting: VecDeque<Key>,
    /// How far this core is with a turn that it asked for.
    turn: Turn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Turn {
    #[default]
    None,
    Asked,
    Running(Key),
}

/// The home's side of a unit's gates.
#[derive(Debug, Default)]
pub(super) struct GateHome {
    /// Cores that asked, oldest first; the first one has its turn.
    asking: VecDeque<usize>,
    /// Cores that have not yet said that they hold.
    awaited: usize,
}

impl GateHome {
    /// Whether no core asks for anything.
    pub(super) fn is_idle(&self) -> bool {
        self.asking.is_empty()
    }
}

impl Gate {
    /// Whether a task that arrives now must wait.
    pub(super) fn must_wait(&self, attribute: Attribute) -> bool {
        attribute != Attribute::HeadOfQueue
            && (self.held || !self.waiting.is_empty() || attribute == Attribute::Ordered)
    }

    /// A task waits.
    pub(super) fn wait(&mut self, task: Key) {
        self.waiting.push_back(task);
    }

    /// Whether no task runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty() && self.turn == Turn::None
    }

    /// A task begins to run.
    pub(super) fn begin(&mut self) {
        self.running += 1;
    }

    /// So many tasks have ended. Whether the home may have to be notified that nothing runs here.
    #[inline(always)]
    pub(super) fn end(&mut self, tasks: u32) -> bool {
        self.running -= tasks;
        self.held && self.running == 0
    }
}
