//! Ordered tasks (SAM-5 section 8.9.3): one runs when everything older on the unit has ended, on every core, and
//! before anything younger begins.
//!
//! Each core has a [`Gate`] for each unit. A core whose oldest waiting task is ordered asks the unit's home
//! for its turn; the home has all cores hold ([`crate::message::GateMessage`]), lets the task run, and
//! releases them.
//!
//! The unit would deadlock if a waiting task held anything that the ordered task needs, or one that runs
//! before it. It does not:
//! - Buffers. A waiting task has one for unsolicited data, or none: it requests nothing from the initiator.
//!   That buffer is counted separately from those of steps ([`super::buffer::Purpose`]), by connection and by
//!   core, and is never waited for: where there is none, the task ends with TASK SET FULL. A running task
//!   returns its buffer before it waits for another, so it waits only for the ends of other steps, and none
//!   of these waits for a gate. Once all other steps have ended, the first task of each unit that waits may
//!   have what it needs; and a task whose data moves too slowly is ended ([`super::stall`]).
//! - Tasks. The ordered one, and all before it, have had their slots here and in their transport's table
//!   since they arrived, and used up their part of the window (MaxCmdSN, SRP's request limit) then. Whatever
//!   aborts tasks arrives as an immediate request, or with a credit that the initiator has reserved.
//! - The stream. Data of a waiting task is stored or discarded as it arrives, so that requested data can
//!   follow it. A peer that does not send what it has announced is disconnected ([`super::stall`]).
//! - Receives. iSER's are free again when the data was copied to the buffer. A command of SRP may keep the
//!   one that it arrived in, which was posted for it alone; RDMA Reads of data need none, and those of
//!   descriptor tables go to the command's own.
//! - Frames of AoE. A WRITE keeps the one that it arrived in; responses use slots that only tasks that have
//!   run can hold. A frame that finds no slot is lost, and retransmitted.
//! - Blocks that AoE commands change ([`super::aoe`]). They are claimed behind the gate, while a task runs; a
//!   task that waits for them has claimed none.
//! - Lanes and homes. A waiting task has never been in a store, and has requested nothing of its home.

mod pass;

use crate::slots::Key;
use scsi::Attribute;
use std::collections::VecDeque;

/// One unit's gate on one core.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The home has asked this core to hold.
    held: bool,
    /// The home was notified that nothing runs here.
    reported: bool,
    /// Tasks that run on this unit, on this core.
    running: u32,
    /// Tasks that wait, oldest first.
    waiting: VecDeque<Key>,
    /// The state of a turn that this core has requested.
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
    /// Cores that requested a turn, oldest first; it is the first one's turn.
    asking: VecDeque<usize>,
    /// How many cores have yet to report that they hold.
    awaited: usize,
}

impl GateHome {
    /// Whether no core has requested a turn.
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

    /// This many tasks have ended. Returns whether the home may have to be notified that nothing runs here.
    #[inline(always)]
    pub(super) fn end(&mut self, tasks: u32) -> bool {
        self.running -= tasks;
        self.held && self.running == 0
    }
}
