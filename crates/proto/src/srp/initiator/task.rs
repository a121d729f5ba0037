//! Commands in flight.

use crate::iscsi::initiator::{Completion, Request};
use crate::message::{Access, Advertised, Full, Post};
use crate::verbs::TaskId;
use wire::Places;

/// The buffers of one direction, each for itself: nobody has to make one of what lies apart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lent {
    buffers: [Option<Advertised>; Places::MAX],
}

impl Lent {
    /// Lets the target touch what it may not yet.
    pub(super) fn advertise(
        &mut self,
        places: &Places,
        access: Access,
        to: &mut dyn Post,
    ) -> Result<(), Full> {
        for (buffer, span) in self.buffers.iter_mut().zip(places.iter()) {
            if buffer.is_none() {
                *buffer = Some(to.advertise(Places::one(span), access)?);
            }
        }
        Ok(())
    }

    /// The target may touch them no more. What it has read of them, and what has not left, is lent until it has.
    pub(super) fn take_back(&mut self, to: &mut dyn Post) {
        for buffer in &mut self.buffers {
            buffer.take_if(|buffer| to.invalidate(buffer.stag));
        }
    }

    /// What was read of this buffer has left; `false`: it is not among these.
    pub(super) fn freed(&mut self, stag: u32) -> bool {
        let mut buffers = self.buffers.iter_mut();
        buffers.any(|buffer| buffer.take_if(|buffer| buffer.stag == stag).is_some())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffers.iter().all(Option::is_none)
    }

    /// The buffers, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Advertised> {
        self.buffers.iter().flatten().copied()
    }
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub request: Request,
    /// Counts the commands: which one this is.
    pub order: u64,
    /// It was posted.
    pub is_sent: bool,
    /// Its message, which may carry its data-out, has not left yet.
    pub is_leaving: bool,
    /// Where the target may write to, and read from.
    pub read: Lent,
    pub write: Lent,
    /// It has ended, but is not reported yet.
    pub ended: Option<Completion>,
}

impl Task {
    /// The tag of a task.
    pub(super) fn tag(id: TaskId) -> u64 {
        (u64::from(id.generation) << 16) | u64::from(id.slot)
    }

    /// The task of a tag.
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

/// All slots, and which are free.
#[derive(Debug)]
pub(super) struct TaskTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
    taken: u64,
}

impl TaskTable {
    pub(super) fn new(depth: u16) -> TaskTable {
        let slots = vec![Slot::default(); usize::from(depth)];
        TaskTable { slots, free: (0..depth).rev().collect(), taken: 0 }
    }

    /// How many commands there were.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes a slot for a command; `None` when all are taken.
    pub(super) fn take(&mut self, request: Request) -> Option<TaskId> {
        let number = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(number))?;
        slot.generation = slot.generation.wrapping_add(1);
        let order = self.taken;
        self.taken = order.wrapping_add(1);
        slot.task = Some(Task {
            request,
            order,
            is_sent: false,
            is_leaving: false,
            read: Lent::default(),
            write: Lent::default(),
            ended: None,
        });
        Some(TaskId { slot: number, generation: slot.generation })
    }

    pub(super) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let slot = self.slots.get_mut(usize::from(id.slot))?;
        slot.task.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// The tasks that have not ended.
    pub(super) fn live(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        (0u16..).zip(&self.slots).filter_map(|(number, slot)| {
            let task = slot.task.as_ref().filter(|task| task.ended.is_none())?;
            Some((TaskId { slot: number, generation: slot.generation }, task))
        })
    }

    /// Whether there is one that has ended and is not reported yet.
    pub(super) fn has_ended(&self) -> bool {
        self.slots.iter().any(|slot| slot.task.is_some_and(|task| task.ended.is_some()))
    }

    /// The task that has lent this buffer, which is free now.
    pub(super) fn freed(&mut self, stag: u32) -> Option<TaskId> {
        (0u16..).zip(&mut self.slots).find_map(|(number, slot)| {
            let task = slot.task.as_mut()?;
            let is_its_own = task.write.freed(stag) || task.read.freed(stag);
            is_its_own.then_some(TaskId { slot: number, generation: slot.generation })
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
