//! How tasks pass the gates of units, and how ordered ones have all cores hold.

use super::Turn;
use crate::core::Core;
use crate::core::homes::HomeUnit;
use crate::core::task::State;
use crate::message::{GateMessage, Message};
use crate::slots::Key;
use reactor::io::Io;
use scsi::Attribute;

impl<I: Io> Core<I> {
    /// Starts what may start on the unit, up to the next ordered task.
    pub(in crate::core) fn open_gate(&mut self, unit: u32) {
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
    pub(in crate::core) fn leave_gate(&mut self, unit: u32, task: Option<Key>) {
        let gate = &mut self.units[unit].gate;
        if task.is_some_and(|task| gate.turn == Turn::Running(task)) {
            gate.turn = Turn::None;
            self.post(self.units[unit].home_core, Message::Gate { unit, gate: GateMessage::Leave });
        }
        if self.units[unit].gate.end(1) {
            self.report_held(unit);
        }
    }

    pub(in crate::core) fn gate_message(&mut self, unit: u32, message: GateMessage) {
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

    pub(in crate::core) fn report_held(&mut self, unit: u32) {
        let gate = &mut self.units[unit].gate;
        if gate.held && !gate.reported && gate.running == 0 {
            gate.reported = true;
            self.post(self.units[unit].home_core, Message::Gate { unit, gate: GateMessage::Held });
        }
    }

    /// All cores hold for this one: runs the ordered task, unless it has been aborted meanwhile.
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
