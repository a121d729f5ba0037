//! Commands in flight.

use super::failure::Failure;
use super::plan::Plan;
use super::trim::Extent;
use crate::iscsi::initiator::Request;
use crate::services::TaskId;

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub request: Request,
    pub plan: Plan,
    /// Sectors, or ranges of a TRIM, that were sent or are done.
    pub handed: u32,
    /// Requests that were sent for it and are unanswered.
    pub unanswered: u16,
    /// Its IDENTIFY DEVICE, its flush, or its only command was sent.
    pub has_asked: bool,
    /// It has failed, and ends like this when nothing of it is in flight any more.
    pub failure: Option<Failure>,
}

impl Task {
    fn new(request: Request, plan: Plan) -> Task {
        Task { request, plan, handed: 0, unanswered: 0, has_asked: false, failure: None }
    }

    /// Continues with another plan.
    pub(super) fn replan(&mut self, plan: Plan) {
        *self = Task::new(self.request, plan);
    }
}

#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u16,
    task: Option<Task>,
    /// What the task trims; kept to reuse the allocation.
    extents: Vec<Extent>,
}

/// All slots, and which are free.
#[derive(Debug)]
pub(super) struct TaskTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl TaskTable {
    pub(super) fn new(depth: u16) -> TaskTable {
        let slots = vec![Slot::default(); usize::from(depth)];
        TaskTable { slots, free: (0..depth).rev().collect() }
    }

    /// Takes a slot for a command; `None` when all are taken.
    pub(super) fn take(&mut self, request: Request, plan: Plan) -> Option<TaskId> {
        let number = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(number))?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.task = Some(Task::new(request, plan));
        Some(TaskId { slot: number, generation: slot.generation })
    }

    pub(super) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        slot.task.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// What a task trims, for reading or filling in.
    pub(super) fn extents(&mut self, id: TaskId) -> Option<&mut Vec<Extent>> {
        self.get(id)?;
        self.slots.get_mut(usize::from(id.slot)).map(|slot| &mut slot.extents)
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
