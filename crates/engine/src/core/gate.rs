//! Ordered tasks (SAM-5 section 8.9.3): one runs when everything older on the unit has ended, on every core, and
//! before anything younger begins.
//!
//! Each core has a [`Gate`] for each unit. A core whose oldest waiting task is ordered asks the unit's home, which has
//! all cores hold ([`GateMessage`]), lets the task run, and releases them.
//!
//! A unit would stop for everybody if what waits held anything that the ordered task needs, or one that runs before it.
//! It does not:
//! - Buffers. What waits has one for data that comes unasked, or none: it asks the initiator for nothing. That buffer
//!   counts apart from those of steps ([`super::buffer::Purpose`]), by connection and by core, and is never waited for:
//!   where there is none, the task ends with TASK SET FULL. What runs gives its buffer back before it waits for another,
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
//!   that finds no slot is lost, and sent again.
//! - Blocks that AoE's commands change ([`super::aoe`]). They are claimed behind the gate, for as long as a task runs; who
//!   waits for them has claimed none.
//! - Lanes and homes. What waits was never in a store, nor asked its home for anything.

use super::Core;
use super::home::HomeUnit;
use super::task::State;
use crate::message::{GateMessage, Message};
use crate::slots::Key;
use reactor::io::Io;
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
    /// This core has asked for a turn of its own, and what became of it.
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
}

impl<I: Io> Core<I> {
    /// Starts what may start on the unit, up to the next ordered task.
    pub(super) fn open_gate(&mut self, unit: u32) {
        loop {
            let gate = &mut self.units[unit].gate;
            if gate.held || gate.turn != Turn::None {
                return;
            }
            let Some(key) = gate.waiting.front().copied() else { return };
            let Some(task) = self.tasks.get(key).filter(|task| task.is_waiting()) else {
                gate.waiting.pop_front();
                continue;
            };
            if task.attribute == Attribute::Ordered {
                gate.turn = Turn::Asked;
                let message = GateMessage::Ask { core: self.me };
                return self.post(self.units[unit].home_core, Message::Gate { unit, gate: message });
            }
            gate.waiting.pop_front();
            self.start(key);
        }
    }

    /// A task that ran on the unit has ended.
    pub(super) fn leave_gate(&mut self, unit: u32, task: Option<Key>) {
        let gate = &mut self.units[unit].gate;
        if task.is_some_and(|task| gate.turn == Turn::Running(task)) {
            gate.turn = Turn::None;
            self.post(self.units[unit].home_core, Message::Gate { unit, gate: GateMessage::Leave });
        }
        self.leave_gate_by(unit, 1);
    }

    /// So many commands that ran on the unit have ended, none of which was ordered.
    pub(super) fn leave_gate_by(&mut self, unit: u32, commands: u32) {
        self.units[unit].gate.running -= commands;
        self.report_held(unit);
    }

    pub(super) fn gate_message(&mut self, unit: u32, message: GateMessage) {
        match message {
            GateMessage::Ask { core } => {
                let Some(home) = self.units.home_mut(unit) else { return };
                home.gates.asking.push_back(core);
                if home.gates.asking.len() == 1 {
                    self.hold_all(unit);
                }
            }
            GateMessage::Hold => {
                let gate = &mut self.units[unit].gate;
                gate.held = true;
                gate.reported = false;
                self.report_held(unit);
            }
            GateMessage::Held => {
                let Some(HomeUnit { gates, .. }) = self.units.home_mut(unit) else { return };
                gates.awaited -= 1;
                if let (0, Some(&core)) = (gates.awaited, gates.asking.front()) {
                    self.post(core, Message::Gate { unit, gate: GateMessage::Go });
                }
            }
            GateMessage::Go => self.run_ordered(unit),
            GateMessage::Leave => {
                let Some(HomeUnit { gates, .. }) = self.units.home_mut(unit) else { return };
                gates.asking.pop_front();
                let is_next = !gates.asking.is_empty();
                for core in 0..self.cores() {
                    self.post(core, Message::Gate { unit, gate: GateMessage::Release });
                }
                if is_next {
                    self.hold_all(unit);
                }
            }
            GateMessage::Release => {
                self.units[unit].gate.held = false;
                self.open_gate(unit);
            }
        }
    }

    fn hold_all(&mut self, unit: u32) {
        let cores = self.cores();
        let Some(home) = self.units.home_mut(unit) else { return };
        home.gates.awaited = cores;
        for core in 0..cores {
            self.post(core, Message::Gate { unit, gate: GateMessage::Hold });
        }
    }

    fn report_held(&mut self, unit: u32) {
        let gate = &mut self.units[unit].gate;
        if gate.held && !gate.reported && gate.running == 0 {
            gate.reported = true;
            self.post(self.units[unit].home_core, Message::Gate { unit, gate: GateMessage::Held });
        }
    }

    /// All cores hold for this one: run the ordered task, if it has not been aborted meanwhile.
    fn run_ordered(&mut self, unit: u32) {
        let ordered = self.units[unit].gate.waiting.front().copied().filter(|key| {
            self.tasks
                .get(*key)
                .is_some_and(|task| task.state == State::Waiting && task.attribute == Attribute::Ordered)
        });
        let gate = &mut self.units[unit].gate;
        match ordered {
            Some(key) => {
                gate.waiting.pop_front();
                gate.turn = Turn::Running(key);
                self.start(key);
            }
            None => {
                gate.turn = Turn::None;
                self.post(self.units[unit].home_core, Message::Gate { unit, gate: GateMessage::Leave });
            }
        }
    }
}
