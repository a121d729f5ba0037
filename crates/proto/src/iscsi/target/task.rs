//! The task table of one connection: fixed slots, taken and returned in turn.

use crate::services::{Ending, TaskId};
use wire::Places;

/// R2Ts that one task may have outstanding, whatever was negotiated.
pub(crate) const READY_TO_TRANSFER_MAX: usize = 8;

/// Slots of a new connection.
pub(super) const SLOTS_AT_START: u16 = 8;

/// One R2T that is waiting for its Data-Out sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Solicited {
    pub tag: u32,
    /// The end of the requested data, as an offset in the data-out.
    pub end: u32,
}

/// Data being fetched from the initiator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub at: u32,
    pub into: Places,
    /// `at` and the length of `into`.
    pub end: u32,
}

/// Data being sent to the initiator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Push {
    pub at: u32,
    pub from: Places,
    pub len: u32,
    /// Bytes of `from` that are in a batch.
    pub sent: u32,
    /// Bytes since the last Data-In with the F bit.
    pub burst: u32,
}

impl Push {
    /// Whether some of it has not been sent yet. What was posted to an RDMA device cannot be recalled.
    pub(crate) fn is_unsent(&self) -> bool {
        self.sent < self.len
    }
}

/// One command in flight: a slot of a fixed table, copied as a whole.
/// Its fields are RFC 7143's counters for a command in both directions, flat to keep slots as small as possible.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Task {
    pub generation: u16,
    pub used: bool,
    pub immediate: bool,
    pub bidirectional: bool,
    /// The engine knows about it.
    pub given: bool,
    pub initiator_task_tag: u32,
    pub lun: u64,
    /// Expected Data Transfer Length.
    pub expected: u32,
    pub read_bytes: u32,
    pub write_bytes: u32,
    /// Data-out bytes received or discarded, from offset 0 without a gap.
    pub received: u32,
    /// The end of the data that may be unsolicited.
    pub unsolicited_end: u32,
    /// Unsolicited Data-Out is still to come: its F bit has not been received.
    pub unsolicited_open: bool,
    /// Data segments that were received, and wait in their messages to be copied.
    pub held: u16,
    /// DataSN of the next Data-Out of the current sequence.
    pub data_out_sn: u32,
    /// Outstanding R2Ts, the oldest first.
    pub solicited: [Solicited; READY_TO_TRANSFER_MAX],
    pub solicited_count: u8,
    /// The end of the data requested by R2T.
    pub solicited_end: u32,
    /// The task is in the queue for sending R2Ts.
    pub solicit_queued: bool,
    /// DataSN of the next Data-In and R2TSN of the next R2T: one numbering (section 4.2.2.4).
    pub data_in_sn: u32,
    /// How many Data-In PDUs were sent.
    pub data_in_count: u32,
    pub fetch: Option<Fetch>,
    pub push: Option<Push>,
    /// Set when the task has ended for the engine.
    pub ending: Option<Ending>,
    /// It has ended for the engine, whose places were still in use.
    pub lends: bool,
    /// Where work is posted: how many operations on its data and its response are in progress.
    pub posted: u16,
}

/// A command's properties for its task.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    pub immediate: bool,
    pub bidirectional: bool,
    pub given: bool,
    pub initiator_task_tag: u32,
    pub lun: u64,
    pub expected: u32,
    pub read_bytes: u32,
    pub write_bytes: u32,
    pub unsolicited_end: u32,
    pub unsolicited_open: bool,
}

impl Task {
    /// Begins where another one was. It is large, and most of it is behind a count or an option, which is not
    /// copied.
    fn begin(&mut self, new: Arrival) {
        let Task {
            generation,
            used,
            immediate,
            bidirectional,
            given,
            initiator_task_tag,
            lun,
            expected,
            read_bytes,
            write_bytes,
            received,
            unsolicited_end,
            unsolicited_open,
            held,
            data_out_sn,
            solicited: _,
            solicited_count,
            solicited_end,
            solicit_queued,
            data_in_sn,
            data_in_count,
            fetch,
            push,
            ending,
            lends,
            posted,
        } = self;
        *generation = generation.wrapping_add(1);
        (*used, *lends, *solicit_queued) = (true, false, false);
        (*immediate, *bidirectional, *given) = (new.immediate, new.bidirectional, new.given);
        (*initiator_task_tag, *lun, *expected) = (new.initiator_task_tag, new.lun, new.expected);
        (*read_bytes, *write_bytes) = (new.read_bytes, new.write_bytes);
        (*unsolicited_end, *unsolicited_open) = (new.unsolicited_end, new.unsolicited_open);
        (*received, *held, *posted, *solicited_count, *solicited_end) = (0, 0, 0, 0, 0);
        (*data_out_sn, *data_in_sn, *data_in_count) = (0, 0, 0);
        (*fetch, *push, *ending) = (None, None, None);
    }

    /// Whether requested or announced data is still to arrive, or to be moved to its place.
    pub(crate) fn owed_data(&self) -> bool {
        self.unsolicited_open || self.solicited_count > 0 || self.held > 0
    }

    /// The oldest outstanding R2T.
    pub(crate) fn oldest_solicited(&self) -> Option<Solicited> {
        if self.solicited_count == 0 { None } else { self.solicited.first().copied() }
    }

    /// Forgets the oldest outstanding R2T.
    pub(crate) fn pop_solicited(&mut self) {
        self.solicited.rotate_left(1);
        self.solicited_count = self.solicited_count.saturating_sub(1);
    }

    /// Records one more outstanding R2T.
    pub(crate) fn push_solicited(&mut self, new: Solicited) {
        if let Some(slot) = self.solicited.get_mut(usize::from(self.solicited_count)) {
            *slot = new;
            self.solicited_count = self.solicited_count.saturating_add(1);
            self.solicited_end = new.end;
        }
    }
}

/// The slots of one connection, found by slot or by initiator task tag. There are as many as were ever needed
/// at once: most sessions have far fewer commands in flight than they may.
///
/// A slot is not reused before the batch that ended its last task has been sent (one batch is sent at a
/// time), or, where work is posted, before all of it has finished.
#[derive(Debug)]
pub(crate) struct TaskTable {
    slots: Vec<Task>,
    slots_max: u16,
    /// Free slots, the next one last: it is the warmest in the cache.
    free: Vec<u16>,
    /// Slots that were returned since the last batch was begun, the oldest first.
    resting: Vec<u16>,
    index: TagIndex,
    /// RDMA Reads in progress whose tasks have ended.
    pub stray_reads: u32,
}

impl TaskTable {
    /// A table of up to `slots_max` slots.
    pub(crate) fn new(slots_max: u16) -> TaskTable {
        let slots = slots_max.min(SLOTS_AT_START);
        TaskTable {
            slots: vec![Task::default(); usize::from(slots)],
            slots_max,
            free: (0..slots).rev().collect(),
            resting: Vec::with_capacity(usize::from(slots)),
            index: TagIndex::new(slots),
            stray_reads: 0,
        }
    }

    /// Takes a slot for this task; `None` when all are taken.
    pub(crate) fn take(&mut self, new: Arrival) -> Option<TaskId> {
        let slot = self.free.pop().or_else(|| self.grow())?;
        let place = self.slots.get_mut(usize::from(slot))?;
        place.begin(new);
        let generation = place.generation;
        self.index.insert(new.initiator_task_tag, slot);
        Some(TaskId { slot, generation })
    }

    /// Doubles the number of slots, and takes one of the new ones.
    #[cold]
    fn grow(&mut self) -> Option<u16> {
        let old = u16::try_from(self.slots.len()).ok()?;
        let new = old.saturating_mul(2).min(self.slots_max);
        self.slots.resize(usize::from(new), Task::default());
        self.free.reserve(usize::from(new));
        self.resting.reserve(usize::from(new));
        self.free.extend((old..new).rev());
        self.index = TagIndex::new(new);
        for (slot, task) in (0u16..).zip(&self.slots).filter(|(_, task)| task.used) {
            self.index.insert(task.initiator_task_tag, slot);
        }
        self.free.pop()
    }

    /// A batch begins, so the last one has been sent, and with it everything about tasks that have ended.
    pub(crate) fn batch_begins(&mut self) {
        while let Some(slot) = self.resting.pop() {
            self.free.push(slot);
        }
    }

    /// The task, if it still is the one with this id.
    pub(crate) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(usize::from(id.slot)).filter(|task| task.used && task.generation == id.generation)
    }

    /// The same, for reading.
    pub(crate) fn peek(&self, id: TaskId) -> Option<&Task> {
        self.slots.get(usize::from(id.slot)).filter(|task| task.used && task.generation == id.generation)
    }

    /// The task with this initiator task tag.
    #[inline]
    pub(crate) fn find(&self, initiator_task_tag: u32) -> Option<TaskId> {
        let slot = self.index.find(initiator_task_tag, &self.slots)?;
        let task = self.slots.get(usize::from(slot))?;
        Some(TaskId { slot, generation: task.generation })
    }

    /// Releases the slot.
    pub(crate) fn release(&mut self, id: TaskId) {
        let Some(task) = self.get(id) else { return };
        task.used = false;
        let (tag, posted, reads) = (task.initiator_task_tag, task.posted, u32::from(task.solicited_count));
        if posted == 0 {
            self.resting.push(id.slot);
        } else {
            // Data requested by posted work is RDMA Reads.
            self.stray_reads = self.stray_reads.saturating_add(reads);
        }
        self.index.remove(tag, &self.slots);
    }

    /// Work for this task was posted.
    pub(crate) fn posted(&mut self, id: TaskId) {
        if let Some(task) = self.get(id) {
            task.posted = task.posted.saturating_add(1);
        }
    }

    /// Posted work has finished; `read`: it was an RDMA Read. Its task may have ended.
    pub(crate) fn finished(&mut self, id: TaskId, read: bool) {
        let Some(task) = self.last(id).filter(|task| task.posted > 0) else { return };
        task.posted = task.posted.saturating_sub(1);
        let (used, rests) = (task.used, task.posted == 0);
        if !used && read {
            self.stray_reads = self.stray_reads.saturating_sub(1);
        }
        if !used && rests {
            self.free.push(id.slot);
        }
    }

    /// Whether places that the engine has lent to this task are free now: it has ended for the engine, and no
    /// work for it has to be posted or is in progress. True once.
    pub(crate) fn take_released(&mut self, id: TaskId) -> bool {
        let idle = |task: &&mut Task| task.posted == 0 && task.push.is_none();
        self.last(id).filter(idle).is_some_and(|task| std::mem::take(&mut task.lends))
    }

    /// The task of this id, which may have ended.
    fn last(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(usize::from(id.slot)).filter(|task| task.generation == id.generation)
    }

    /// The tasks in flight.
    pub(crate) fn ids(&self) -> impl Iterator<Item = TaskId> + '_ {
        (0u16..)
            .zip(&self.slots)
            .filter(|(_, task)| task.used)
            .map(|(slot, task)| TaskId { slot, generation: task.generation })
    }
}

/// Maps initiator task tags to slots: open addressing with linear probing, at most a quarter full.
#[derive(Debug)]
struct TagIndex {
    /// Slot, or [`TagIndex::EMPTY`].
    cells: Vec<u16>,
    mask: usize,
}

impl TagIndex {
    const EMPTY: u16 = u16::MAX;

    fn new(slots: u16) -> TagIndex {
        let cells = usize::from(slots).saturating_mul(4).next_power_of_two();
        TagIndex { cells: vec![TagIndex::EMPTY; cells], mask: cells.saturating_sub(1) }
    }

    /// Where the search for a tag begins.
    fn home(&self, tag: u32) -> usize {
        // Multiplicative hashing (Knuth 6.4): the high half of the product is well mixed.
        let mixed = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from(mixed).unwrap_or(0) & self.mask
    }

    fn next(&self, cell: usize) -> usize {
        cell.wrapping_add(1) & self.mask
    }

    fn cell(&self, cell: usize) -> u16 {
        self.cells.get(cell).copied().unwrap_or(TagIndex::EMPTY)
    }

    fn set(&mut self, cell: usize, slot: u16) {
        if let Some(place) = self.cells.get_mut(cell) {
            *place = slot;
        }
    }

    fn insert(&mut self, tag: u32, slot: u16) {
        let mut cell = self.home(tag);
        while self.cell(cell) != TagIndex::EMPTY {
            cell = self.next(cell);
        }
        self.set(cell, slot);
    }

    #[inline]
    fn find(&self, tag: u32, slots: &[Task]) -> Option<u16> {
        let cell = self.locate(tag, slots)?;
        Some(self.cell(cell))
    }

    fn locate(&self, tag: u32, slots: &[Task]) -> Option<usize> {
        let mut cell = self.home(tag);
        loop {
            let slot = self.cell(cell);
            if slot == TagIndex::EMPTY {
                return None;
            }
            if slots.get(usize::from(slot)).is_some_and(|task| task.initiator_task_tag == tag) {
                return Some(cell);
            }
            cell = self.next(cell);
        }
    }

    /// Empties the tag's cell and moves later ones of the same run back, so that no search ends early.
    fn remove(&mut self, tag: u32, slots: &[Task]) {
        let Some(mut hole) = self.locate(tag, slots) else { return };
        let mut cell = self.next(hole);
        while self.cell(cell) != TagIndex::EMPTY {
            let slot = self.cell(cell);
            let tag = slots.get(usize::from(slot)).map_or(0, |task| task.initiator_task_tag);
            let from_home = cell.wrapping_sub(self.home(tag)) & self.mask;
            let from_hole = cell.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.set(hole, slot);
                hole = cell;
            }
            cell = self.next(cell);
        }
        self.set(hole, TagIndex::EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tagged(initiator_task_tag: u32) -> Arrival {
        Arrival { initiator_task_tag, ..Arrival::default() }
    }

    #[test]
    fn a_task_has_nothing_of_the_one_whose_slot_it_takes() {
        let mut table = TaskTable::new(1);
        let id = table.take(tagged(1)).unwrap();
        let all = Arrival {
            immediate: true,
            bidirectional: true,
            given: true,
            initiator_task_tag: 2,
            lun: 3,
            expected: 4,
            read_bytes: 5,
            write_bytes: 6,
            unsolicited_end: 7,
            unsolicited_open: true,
        };
        let into = Places::EMPTY;
        let sense = None;
        let task = table.get(id).unwrap();
        *task = Task {
            received: 1,
            held: 1,
            data_out_sn: 1,
            solicit_queued: true,
            data_in_sn: 1,
            data_in_count: 1,
            fetch: Some(Fetch { at: 1, into, end: 1 }),
            push: Some(Push { at: 1, from: into, len: 1, sent: 0, burst: 1 }),
            ending: Some(Ending { status: 1, sense, read_bytes: 1, write_bytes: 1 }),
            lends: true,
            ..*task
        };
        task.push_solicited(Solicited { tag: 1, end: 1 });
        table.release(id);
        table.batch_begins();
        let next = table.take(all).unwrap();
        assert_eq!(next, TaskId { slot: id.slot, generation: id.generation + 1 });
        let task = table.get(next).unwrap();
        let solicited = task.solicited;
        let expected = Task {
            generation: next.generation,
            used: true,
            immediate: true,
            bidirectional: true,
            given: true,
            initiator_task_tag: 2,
            lun: 3,
            expected: 4,
            read_bytes: 5,
            write_bytes: 6,
            unsolicited_end: 7,
            unsolicited_open: true,
            solicited,
            ..Task::default()
        };
        assert_eq!(format!("{task:?}"), format!("{expected:?}"));
    }

    #[test]
    fn a_slot_is_taken_again_when_the_next_batch_begins() {
        let mut table = TaskTable::new(32);
        let first = table.take(tagged(1)).unwrap();
        table.release(first);
        let second = table.take(tagged(2)).unwrap();
        assert_ne!(second.slot, first.slot, "the batch that ends the first has not left");
        table.batch_begins();
        let third = table.take(tagged(3)).unwrap();
        assert_eq!(third.slot, first.slot);
        assert!(table.get(first).is_none(), "an old id names nothing");
    }

    #[test]
    fn a_slot_is_taken_again_when_all_posted_work_is_finished() {
        let mut table = TaskTable::new(8);
        let id = table.take(tagged(1)).unwrap();
        let task = table.get(id).unwrap();
        (task.posted, task.lends) = (2, true);
        task.push_solicited(Solicited::default());
        table.release(id);
        assert_eq!((table.find(1), table.stray_reads), (None, 1));
        table.batch_begins();
        let others: Vec<TaskId> = (0..7).map(|tag| table.take(tagged(tag)).unwrap()).collect();
        assert!(others.iter().all(|other| other.slot != id.slot) && table.take(tagged(9)).is_none());
        table.finished(id, true);
        assert_eq!((table.stray_reads, table.take_released(id)), (0, false));
        table.finished(id, false);
        assert!(table.take_released(id) && !table.take_released(id), "places come back once");
        assert_eq!(table.take(tagged(9)).unwrap().slot, id.slot);
    }

    #[test]
    fn a_table_grows_to_its_limit_and_no_further() {
        let mut table = TaskTable::new(20);
        assert_eq!(table.slots.len(), 8);
        let ids: Vec<TaskId> = (0..20).map(|tag| table.take(tagged(tag)).unwrap()).collect();
        assert_eq!(table.slots.len(), 20);
        assert!(table.take(tagged(99)).is_none());
        assert!((0..20).zip(&ids).all(|(tag, id)| table.find(tag) == Some(*id)));
        table.release(ids[5]);
        assert!(table.take(tagged(99)).is_none(), "the batch that ends it has not left");
        table.batch_begins();
        assert_eq!(table.take(tagged(99)).unwrap().slot, ids[5].slot);
    }

    proptest! {
        #[test]
        fn tags_are_found_as_in_a_map(steps in prop::collection::vec((0u32..40, any::<bool>()), 0..200)) {
            let mut table = TaskTable::new(16);
            let mut model = std::collections::BTreeMap::new();
            for (tag, take) in steps {
                let tag = tag.wrapping_mul(0x0100_0000);
                if take && model.len() < 16 && !model.contains_key(&tag) {
                    model.insert(tag, table.take(tagged(tag)).unwrap());
                } else if let Some(id) = model.remove(&tag) {
                    table.release(id);
                    table.batch_begins();
                }
                for tag in (0u32..40).map(|tag| tag.wrapping_mul(0x0100_0000)) {
                    prop_assert_eq!(table.find(tag), model.get(&tag).copied());
                }
            }
        }
    }
}
