//! Commands in flight.

use crate::iscsi::initiator::{Completion, Request};
use crate::message::Advertised;
use crate::services::TaskId;

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub request: Request,
    /// Its position among all commands posted, once it was.
    pub sent: Option<u64>,
    /// Its message, which may carry its data-out, has not been sent in full.
    pub is_leaving: bool,
    /// Buffers that the target may write to, and read from.
    pub read: Option<Advertised>,
    pub write: Option<Advertised>,
    /// It has ended, but is not reported yet.
    pub ended: Option<Completion>,
}

impl Task {
    /// The tag of a task.
    pub(super) fn tag(id: TaskId) -> u64 {
        (u64::from(id.generation) << 16) | u64::from(id.slot)
    }

    /// The task with a tag.
    pub(super) fn of_tag(tag: u64) -> Option<TaskId> {
        let [0, 0, 0, 0, a, b, c, d] = tag.to_be_bytes() else { return None };
        Some(TaskId { slot: u16::from_be_bytes([c, d]), generation: u16::from_be_bytes([a, b]) })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    generation: u16,
    task: Option<Task>,
}

/// All slots, and which of them are free.
#[derive(Debug)]
pub(super) struct TaskTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
    sent: u64,
}

impl TaskTable {
    pub(super) fn new(depth: u16) -> TaskTable {
        let slots = vec![Slot::default(); usize::from(depth)];
        TaskTable { slots, free: (0..depth).rev().collect(), sent: 0 }
    }

    /// How many commands were posted.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// A command was posted.
    pub(super) fn post(&mut self, id: TaskId) {
        let number = self.sent;
        if let Some(task) = self.get(id) {
            (task.sent, task.is_leaving) = (Some(number), true);
            self.sent = number.wrapping_add(1);
        }
    }

    /// Takes a slot for a command; `None` when all are taken.
    pub(super) fn take(&mut self, request: Request) -> Option<TaskId> {
        let number = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(number))?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.task =
            Some(Task { request, sent: None, is_leaving: false, read: None, write: None, ended: None });
        Some(TaskId { slot: number, generation: slot.generation })
    }

    pub(super) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        slot.task.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// The tasks that have not ended.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        (0u16..).zip(&self.slots).filter_map(|(number, slot)| {
            let task = slot.task.as_ref().filter(|task| task.ended.is_none())?;
            Some((TaskId { slot: number, generation: slot.generation }, task))
        })
    }

    /// Whether there is one that has ended and is not reported yet.
    pub(super) fn has_unreported(&self) -> bool {
        self.slots.iter().any(|slot| slot.task.is_some_and(|task| task.ended.is_some()))
    }

    /// The task that has lent this buffer, which is free now.
    pub(super) fn freed(&mut self, stag: u32) -> Option<TaskId> {
        (0u16..).zip(&mut self.slots).find_map(|(number, slot)| {
            let task = slot.task.as_mut()?;
            let mut buffers = [&mut task.write, &mut task.read].into_iter();
            buffers.find_map(|buffer| buffer.take_if(|buffer| buffer.stag == stag))?;
            Some(TaskId { slot: number, generation: slot.generation })
        })
    }

    pub(super) fn release(&mut self, id: TaskId) {
        if self.get(id).is_none() {
            return;
        }
        if let Some(slot) = self.slots.get_mut(usize::from(id.slot)) {
            slot.task = None;
            self.free.push(id.slot);
        }
    }
}
