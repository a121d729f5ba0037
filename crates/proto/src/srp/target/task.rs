//! The task table of one connection: fixed slots, and where the data of each task is.

use super::violation::Violation;
use crate::message::Advertised;
use crate::services::{Command, Ending, TaskId};
use wire::srp::{Descriptor, Direct};
use wire::{Places, Span};

/// Memory descriptors of one direction of one command (Linux's initiator never has more).
pub const DESCRIPTORS_MAX: usize = 2048;
/// Memory descriptors of all commands in flight on one channel: the longest tables of eight, or 256 of each of 128.
pub const DESCRIPTORS_TOGETHER_MAX: usize = 16 * DESCRIPTORS_MAX;
/// Memory descriptors of one direction for which a free slot keeps the memory; more only occur with large
/// data, and allocating them then costs little compared to transferring it.
const DESCRIPTORS_KEPT: usize = 32;
/// Length of a memory descriptor.
pub(super) const DESCRIPTOR_BYTES: u32 = 16;

/// The progress of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Stage {
    /// Its descriptor tables, or those of one before it, are still being read: the engine does not have it.
    #[default]
    Tables,
    /// The engine has it.
    Given,
    /// It has ended for the engine, and its response is owed.
    Ended,
    /// It has ended for the initiator as well; only posted RDMA is still in progress.
    Over,
}

/// Data being transferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub places: Places,
    pub len: u32,
    /// How much of it was posted.
    pub posted: u32,
}

impl Transfer {
    pub(super) fn new(places: Places) -> Transfer {
        Transfer { places, len: places.len(), posted: 0 }
    }

    pub(super) fn is_posted(&self) -> bool {
        self.posted >= self.len
    }
}

/// The unread rest of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub key: u32,
    pub address: u64,
    pub count: u32,
}

/// Where the data of one direction is.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffer {
    /// Kept to reuse the allocation when the slot is reused.
    descriptors: Vec<Direct>,
    pub rest: Option<Rest>,
    /// Length of the data.
    pub len: u32,
    /// The data came with the command.
    pub immediate: bool,
    /// The next descriptor to use, and how much of it was used.
    index: usize,
    used: u32,
}

impl Buffer {
    fn clear(&mut self) {
        let mut descriptors = std::mem::take(&mut self.descriptors);
        descriptors.clear();
        *self = Buffer { descriptors, ..Buffer::default() };
    }

    /// Keeps no more memory than most commands need.
    fn shrink(&mut self) {
        self.clear();
        if self.descriptors.capacity() > DESCRIPTORS_KEPT {
            self.descriptors = Vec::new();
        }
    }

    /// Descriptors that it has, including those still to be read.
    fn count(&self) -> usize {
        let missing = self.rest.map_or(0, |rest| rest.count);
        self.descriptors.len().saturating_add(usize::try_from(missing).unwrap_or(usize::MAX))
    }

    /// Handles a descriptor of a command.
    fn describe(&mut self, descriptor: &Descriptor<'_>) -> Result<(), Violation> {
        self.len = descriptor.data_bytes();
        match descriptor {
            Descriptor::None => {}
            Descriptor::Immediate { .. } => self.immediate = true,
            Descriptor::Direct(direct) => self.descriptors.push(*direct),
            Descriptor::Indirect(table) => {
                let bytes = table.table.len.get();
                let count = bytes.checked_div(DESCRIPTOR_BYTES).unwrap_or(0);
                let listed = u32::try_from(table.list.len()).unwrap_or(u32::MAX);
                if !bytes.is_multiple_of(DESCRIPTOR_BYTES) || listed > count {
                    return Err(Violation::TableLength);
                }
                let all = usize::try_from(count).ok().filter(|count| *count <= DESCRIPTORS_MAX);
                self.descriptors.reserve_exact(all.ok_or(Violation::TableTooLong)?);
                self.descriptors.extend_from_slice(table.list);
                if count > listed {
                    let start = table.table.address.get();
                    start.checked_add(u64::from(bytes)).ok_or(Violation::AddressWrap)?;
                    let first = u64::from(listed).saturating_mul(u64::from(DESCRIPTOR_BYTES));
                    let address = start.saturating_add(first);
                    let count = count.saturating_sub(listed);
                    self.rest = Some(Rest { key: table.table.key.get(), address, count });
                }
            }
        }
        Ok(())
    }

    /// Adds descriptors that were read from the table.
    pub(super) fn extend(&mut self, list: &[Direct]) {
        self.descriptors.extend_from_slice(list);
        let Some(rest) = &mut self.rest else { return };
        let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
        let bytes = u64::from(count).saturating_mul(u64::from(DESCRIPTOR_BYTES));
        rest.address = rest.address.saturating_add(bytes);
        rest.count = rest.count.saturating_sub(count);
        if rest.count == 0 {
            self.rest = None;
        }
    }

    /// Whether the descriptors cover the data.
    pub(super) fn validate(&self) -> Result<(), Violation> {
        let mut described = 0u64;
        for descriptor in &self.descriptors {
            let len = u64::from(descriptor.len.get());
            descriptor.address.get().checked_add(len).ok_or(Violation::AddressWrap)?;
            described = described.saturating_add(len);
        }
        if !self.immediate && described < u64::from(self.len) {
            return Err(Violation::DescriptorsTooShort);
        }
        Ok(())
    }

    /// The next contiguous part of the peer's buffers, at most `limit` bytes.
    pub(super) fn next(&mut self, limit: u32) -> Option<(Advertised, u32)> {
        loop {
            let descriptor = self.descriptors.get(self.index)?;
            let left = descriptor.len.get().saturating_sub(self.used);
            if left > 0 {
                let offset = descriptor.address.get().saturating_add(u64::from(self.used));
                return Some((Advertised { stag: descriptor.key.get(), offset }, left.min(limit)));
            }
            self.index = self.index.saturating_add(1);
            self.used = 0;
        }
    }

    /// This much of what [`Buffer::next`] returned was used.
    pub(super) fn advance(&mut self, len: u32) {
        self.used = self.used.saturating_add(len);
    }
}

/// One command in flight: a slot of a fixed table, with the command's two buffers and the progress of each.
/// Its fields belong to one command, from its information unit to its response.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    pub generation: u16,
    pub used: bool,
    pub tag: u64,
    /// The requested solicited notification.
    pub sol_not: u8,
    /// As it is passed to the engine.
    pub command: Option<Command>,
    pub stage: Stage,
    pub data_out: Buffer,
    pub data_in: Buffer,
    /// Descriptors of both, counted towards the limit of the channel.
    described: usize,
    /// The message with its immediate data, or where its tables are read to.
    pub message: Option<Span>,
    /// Data-out bytes that were requested.
    pub fetched: u32,
    pub fetch: Option<Transfer>,
    pub push: Option<Transfer>,
    /// RDMA Reads and RDMA Writes of its data in progress.
    pub reading: u32,
    pub writing: u32,
    /// Bytes of a table being read, and whether they have arrived.
    pub table: Option<(u32, bool)>,
    pub ending: Option<Ending>,
    /// The engine waits for its places.
    pub lends: bool,
    /// The engine uses its immediate data where it is.
    pub borrowed: bool,
}

impl Task {
    /// Takes the descriptors of a command.
    pub(super) fn describe(
        &mut self,
        data_out: &Descriptor<'_>,
        data_in: &Descriptor<'_>,
    ) -> Result<(), Violation> {
        self.data_out.describe(data_out)?;
        self.data_in.describe(data_in)
    }

    /// The buffer whose table is not read yet.
    pub(super) fn unread(&mut self) -> Option<&mut Buffer> {
        [&mut self.data_out, &mut self.data_in].into_iter().find(|buffer| buffer.rest.is_some())
    }

    /// Whether RDMA that was posted for it is still in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.reading > 0 || self.writing > 0 || matches!(self.table, Some((_, false)))
    }

    /// Where its data-out is, if all of it came with the command at this offset and none was fetched.
    pub(super) fn immediate(&self, offset: u16) -> Option<Span> {
        let is_whole = self.stage == Stage::Given && self.data_out.immediate && self.fetched == 0;
        let place = self.message.filter(|_| is_whole && self.fetch.is_none())?;
        Some(place.slice(u32::from(offset), self.data_out.len))
    }

    /// Whether the initiator still waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.used && self.stage != Stage::Over
    }

    pub(super) fn lun(&self) -> u64 {
        self.command.map_or(0, |command| command.lun)
    }
}

/// The slots of one connection, found by slot or by tag.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    slots: Vec<Task>,
    free: Vec<u16>,
    /// Tags of the live tasks, beside their slots: few and close together, so that a scan is cheap.
    tags: Vec<(u64, u16)>,
    /// Descriptors of all tasks.
    described: usize,
}

impl TaskTable {
    pub(super) fn new(slots: u16) -> TaskTable {
        TaskTable {
            slots: vec![Task::default(); usize::from(slots)],
            free: (0..slots).rev().collect(),
            tags: Vec::with_capacity(usize::from(slots)),
            described: 0,
        }
    }

    /// How many slots are free.
    pub(super) fn free(&self) -> u16 {
        u16::try_from(self.free.len()).unwrap_or(u16::MAX)
    }

    /// Takes a slot; `None` when all are in use.
    pub(super) fn take(&mut self, tag: u64, sol_not: u8) -> Option<(TaskId, &mut Task)> {
        let slot = self.free.pop()?;
        let task = self.slots.get_mut(usize::from(slot))?;
        let generation = task.generation.wrapping_add(1);
        let (mut data_out, mut data_in) =
            (std::mem::take(&mut task.data_out), std::mem::take(&mut task.data_in));
        data_out.clear();
        data_in.clear();
        *task = Task { generation, used: true, tag, sol_not, data_out, data_in, ..Task::default() };
        self.tags.push((tag, slot));
        Some((TaskId { slot, generation }, task))
    }

    /// Counts the descriptors of a new task. `false`: together with those of the others they are too many,
    /// and it has none any more.
    pub(super) fn count_descriptors(&mut self, id: TaskId) -> bool {
        let room = DESCRIPTORS_TOGETHER_MAX.saturating_sub(self.described);
        let Some(task) = self.get(id) else { return true };
        let count = task.data_out.count().saturating_add(task.data_in.count());
        if count > room {
            task.data_out.shrink();
            task.data_in.shrink();
            return false;
        }
        task.described = count;
        self.described = self.described.saturating_add(count);
        true
    }

    /// The task, if it still is the one with this id.
    pub(super) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(usize::from(id.slot)).filter(|task| task.used && task.generation == id.generation)
    }

    /// The live task with this tag.
    pub(super) fn find(&self, tag: u64) -> Option<TaskId> {
        let (_, slot) = self.tags.iter().find(|(other, _)| *other == tag)?;
        let task = self.slots.get(usize::from(*slot))?;
        Some(TaskId { slot: *slot, generation: task.generation })
    }

    /// Its tag may be reused by another task from now on.
    pub(super) fn forget(&mut self, id: TaskId) {
        if let Some(at) = self.tags.iter().position(|(_, slot)| *slot == id.slot) {
            self.tags.swap_remove(at);
        }
    }

    /// Releases the slot.
    pub(super) fn release(&mut self, id: TaskId) {
        let Some(task) = self.get(id) else { return };
        task.used = false;
        task.data_out.shrink();
        task.data_in.shrink();
        let described = std::mem::take(&mut task.described);
        self.described = self.described.saturating_sub(described);
        self.free.push(id.slot);
    }

    /// The tasks of all slots in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        let used = (0u16..).zip(&self.slots).filter(|(_, task)| task.used);
        used.map(|(slot, task)| (TaskId { slot, generation: task.generation }, task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::srp::Table;

    #[test]
    fn buffers_are_used_piece_by_piece() {
        let mut buffer = Buffer::default();
        let list = [Direct::new(100, 1, 10), Direct::new(0, 2, 0), Direct::new(500, 3, 20)];
        let table = Table { table: Direct::new(0, 0, 48), len: 30, list: &list };
        buffer.describe(&Descriptor::Indirect(table)).unwrap();
        buffer.validate().unwrap();
        assert!(buffer.rest.is_none());
        assert_eq!(buffer.next(7), Some((Advertised { stag: 1, offset: 100 }, 7)));
        buffer.advance(7);
        assert_eq!(buffer.next(7), Some((Advertised { stag: 1, offset: 107 }, 3)));
        buffer.advance(3);
        assert_eq!(buffer.next(99), Some((Advertised { stag: 3, offset: 500 }, 20)));
        buffer.advance(20);
        assert_eq!(buffer.next(1), None);
    }

    /// A slot does not keep its memory forever: the longest tables in all slots would be many megabytes.
    #[test]
    fn free_slots_keep_little_memory() {
        let mut tasks = TaskTable::new(40);
        let list = [Direct::new(0, 1, 8); 255];
        let table = |count: u32| {
            let table = Direct::new(0, 0, count * DESCRIPTOR_BYTES);
            Descriptor::Indirect(Table { table, len: 8, list: &list[..list.len().min(count as usize)] })
        };
        let come = |tasks: &mut TaskTable, count: u32| {
            let (id, task) = tasks.take(0, 0).unwrap();
            task.describe(&table(count), &table(count)).unwrap();
            (id, tasks.count_descriptors(id))
        };
        let longest: Vec<_> = (0..8).map(|_| come(&mut tasks, 2048)).collect();
        assert!(longest.iter().all(|(_, fits)| *fits));
        let (refused, fits) = come(&mut tasks, 1);
        assert!(!fits, "there are {DESCRIPTORS_TOGETHER_MAX} already");
        tasks.release(refused);
        tasks.release(longest[3].0);
        let again: Vec<_> = (0..9).map(|_| come(&mut tasks, 227)).collect();
        assert!(again.iter().all(|(_, fits)| *fits));
        assert!(!come(&mut tasks, 6).1 && come(&mut tasks, 5).1);
        for id in longest.into_iter().chain(again).map(|(id, _)| id) {
            tasks.release(id);
        }
        assert_eq!(tasks.described, 10);
        let keeps_little = |buffer: &Buffer| buffer.descriptors.capacity() <= DESCRIPTORS_KEPT;
        let all_keep_little = |task: &Task| keeps_little(&task.data_out) && keeps_little(&task.data_in);
        assert!(tasks.slots.iter().all(|task| task.used || all_keep_little(task)));
        let (id, _) = come(&mut tasks, 12);
        tasks.release(id);
        assert_eq!(tasks.slots[usize::from(id.slot)].data_in.descriptors.capacity(), 12, "that is kept");
    }

    #[test]
    fn wrong_tables_are_distinguished() {
        let list = [Direct::new(u64::MAX, 1, 1), Direct::new(0, 2, 8)];
        let validate = |bytes, address, len, listed: usize| {
            let mut buffer = Buffer::default();
            let table = Table { table: Direct::new(address, 0, bytes), len, list: &list[listed..] };
            buffer.describe(&Descriptor::Indirect(table)).and_then(|()| buffer.validate())
        };
        assert_eq!(validate(31, 0, 1, 0), Err(Violation::TableLength));
        assert_eq!(validate(16, 0, 1, 0), Err(Violation::TableLength));
        assert_eq!(validate(16 * 2049, 0, 1, 0), Err(Violation::TableTooLong));
        assert_eq!(validate(u32::MAX - 15, 0, 1, 0), Err(Violation::TableTooLong));
        assert_eq!(validate(48, u64::MAX, 1, 1), Err(Violation::AddressWrap));
        assert_eq!(validate(48, u64::MAX - 40, 1, 1), Err(Violation::AddressWrap));
        assert_eq!(validate(32, 0, 1, 0), Err(Violation::AddressWrap));
        assert_eq!(validate(16, 0, 9, 1), Err(Violation::DescriptorsTooShort));
        assert_eq!(validate(16, 0, 8, 1), Ok(()));
    }
}
