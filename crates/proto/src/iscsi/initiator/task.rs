//! Commands in flight.

use super::{Completion, Request};
use crate::services::TaskId;

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub request: Request,
    /// It was sent, with this CmdSN.
    pub sent: bool,
    pub cmd_sn: u32,
    /// Bytes of data-in received: Data-In arrives in order, as negotiated.
    pub received: u32,
    /// Bytes of data-out that were sent, from the first on without a gap.
    pub taken: u32,
    /// DataSN or R2TSN of the next PDU: they share one sequence (section 11.8.3).
    pub input_sn: u32,
    /// R2Ts that have not been answered.
    pub solicited: u16,
    /// Batches being sent that carry its payload.
    pub batches: u32,
    /// It has ended, but was not reported yet.
    pub ended: Option<Completion>,
}

impl Task {
    /// The initiator task tag of a task.
    pub(crate) fn tag(id: TaskId) -> u32 {
        (u32::from(id.generation) << 16) | u32::from(id.slot)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    generation: u16,
    task: Option<Task>,
}

/// All slots, and which of them are free.
#[derive(Debug)]
pub(crate) struct TaskTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl TaskTable {
    pub(crate) fn new(depth: u16) -> TaskTable {
        let slots = vec![Slot::default(); usize::from(depth)];
        TaskTable { slots, free: (0..depth).rev().collect() }
    }

    pub(crate) fn slots(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    /// Takes a slot for a command; `None` when all are taken.
    pub(crate) fn take(&mut self, request: Request) -> Option<TaskId> {
        let number = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(number))?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.task = Some(Task {
            request,
            sent: false,
            cmd_sn: 0,
            received: 0,
            taken: 0,
            input_sn: 0,
            solicited: 0,
            batches: 0,
            ended: None,
        });
        Some(TaskId { slot: number, generation: slot.generation })
    }

    pub(crate) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        slot.task.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// The task with this initiator task tag, unless it has ended.
    pub(crate) fn find(&mut self, tag: u32) -> Option<(TaskId, &mut Task)> {
        let [a, b, c, d] = tag.to_be_bytes();
        let id = TaskId { slot: u16::from_be_bytes([c, d]), generation: u16::from_be_bytes([a, b]) };
        self.get(id).filter(|task| task.ended.is_none() && task.sent).map(|task| (id, task))
    }

    /// The task in this slot.
    pub(crate) fn at(&self, number: u16) -> Option<(TaskId, &Task)> {
        let slot = self.slots.get(usize::from(number))?;
        slot.task.as_ref().map(|task| (TaskId { slot: number, generation: slot.generation }, task))
    }

    pub(crate) fn release(&mut self, id: TaskId) {
        if self.get(id).is_none() {
            return;
        }
        if let Some(slot) = self.slots.get_mut(usize::from(id.slot)) {
            slot.task = None;
            self.free.push(id.slot);
        }
    }
}
