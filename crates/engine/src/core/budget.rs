//! How much memory a core moves in one turn. Operations on a store in memory are done by the core itself, so
//! without a limit a turn would be as long as there are commands. What exceeds the turn's budget continues in
//! the next one, and connections take turns: one with many commands gets no more than one with few.

mod run;

use crate::slots::Key;
use scsi::storage::CHUNK_BYTES;
use scsi::{Event, Step};
use std::collections::VecDeque;
use store::lane::Op;

/// Bytes read, compared, written or cleared in memory in one turn; less than a millisecond's work.
pub(crate) const TURN_BYTES: u64 = 2 << 20;

/// Bytes for one task before others have their turn.
const SHARE_BYTES: u64 = CHUNK_BYTES as u64;

/// What an operation costs apart from its bytes, in bytes.
const OPERATION_BYTES: u64 = 4096;

/// Connections that may wait for their next turn at once, and tasks of each, for which memory is allocated at
/// start.
const CONNECTIONS_AT_START: usize = 8;
const TASKS_AT_START: usize = 128;

/// How a task that was deferred continues.
#[derive(Debug)]
pub(super) enum Rest {
    /// With the result of its last step.
    Event(Event),
    /// With a step that has yet to be done.
    Step(Step),
}

/// What is left of a turn, and what waits for the next one.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
    /// Work that lanes have done in excess of their part of earlier turns.
    debt: u64,
    /// A lane has a long operation to continue.
    has_work: bool,
    /// Tasks by the connection that they came on; the connection whose turn is next is first.
    waiting: VecDeque<(Key, VecDeque<(Key, Rest)>)>,
    /// Empty queues, for reuse.
    spare: Vec<VecDeque<(Key, Rest)>>,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget {
            left: TURN_BYTES,
            debt: 0,
            has_work: false,
            waiting: VecDeque::with_capacity(CONNECTIONS_AT_START),
            spare: (0..CONNECTIONS_AT_START).map(|_| VecDeque::with_capacity(TASKS_AT_START)).collect(),
        }
    }

    /// A turn begins.
    fn refill(&mut self) {
        self.left = TURN_BYTES;
    }

    /// What lanes leave of a turn: half of it where tasks wait.
    fn floor(&self) -> u64 {
        if self.waiting.is_empty() { 0 } else { TURN_BYTES / 2 }
    }

    /// Whether lanes have any of their part left, once their debt is paid from it.
    fn may_work(&mut self) -> bool {
        let debt = std::mem::take(&mut self.debt);
        self.charge_work(debt);
        self.left > self.floor()
    }

    /// Lanes have done this much work; any excess becomes debt.
    fn charge_work(&mut self, cost: u64) {
        let part = cost.min(self.left.saturating_sub(self.floor()));
        self.left -= part;
        self.debt += cost - part;
    }

    /// What is left of the turn, in bytes.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// An operation moved this many bytes.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes.saturating_add(OPERATION_BYTES));
    }

    /// Whether a task has used its share since `before` bytes were left.
    pub(super) fn has_shared(&self, before: u64) -> bool {
        before - self.left >= SHARE_BYTES || self.left == 0
    }

    /// Whether nothing waits for the next turn.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.has_work
    }

    /// A lane has begun a long operation.
    pub(super) fn has_begun(&mut self) {
        self.has_work = true;
    }

    fn defer(&mut self, origin: Key, task: Key, rest: Rest) {
        match self.waiting.iter_mut().find(|(other, _)| *other == origin) {
            Some((_, tasks)) => tasks.push_back((task, rest)),
            None => {
                let mut tasks = self.spare.pop().unwrap_or_default();
                tasks.push_back((task, rest));
                self.waiting.push_back((origin, tasks));
            }
        }
    }

    /// The oldest task of the connection whose turn it is.
    fn next(&mut self) -> Option<(Key, Rest)> {
        let (origin, mut tasks) = self.waiting.pop_front()?;
        let next = tasks.pop_front();
        match tasks.is_empty() {
            true => self.spare.push(tasks),
            false => self.waiting.push_back((origin, tasks)),
        }
        next
    }

    /// The task has ended.
    fn forget(&mut self, origin: Key, task: Key) {
        let Some(at) = self.waiting.iter().position(|(other, _)| *other == origin) else { return };
        let Some((_, tasks)) = self.waiting.get_mut(at) else { return };
        tasks.retain(|(other, _)| *other != task);
        if tasks.is_empty() {
            self.spare.extend(self.waiting.remove(at).map(|(_, tasks)| tasks));
        }
    }
}

/// Bytes that an operation moves at once; longer ones are [`Lane::work`](store::lane::Lane::work).
pub(super) fn bytes(op: &Op) -> u64 {
    match op {
        Op::Read { into, .. } => u64::from(into.len()),
        Op::Write { from, .. } | Op::OrWrite { from, .. } => u64::from(from.len()),
        Op::Compare { with, .. } => u64::from(with.len()),
        Op::CompareAndWrite { compare, write, .. } => u64::from(compare.len() + write.len()),
        Op::Zero { len, .. } | Op::Discard { len, .. } => (*len).min(SHARE_BYTES),
        Op::Flush | Op::Extent { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Key {
        Key { index, generation: 0 }
    }

    fn next(budget: &mut Budget) -> Option<u32> {
        budget.next().map(|(task, _)| task.index)
    }

    #[test]
    fn a_connection_with_many_tasks_waits_as_long_as_one_with_few() {
        let mut budget = Budget::new();
        for task in 0..100 {
            budget.defer(key(1), key(task), Rest::Event(Event::Start));
        }
        budget.defer(key(2), key(200), Rest::Event(Event::Start));
        budget.defer(key(3), key(300), Rest::Event(Event::Start));
        let order: Vec<u32> = (0..5).filter_map(|_| next(&mut budget)).collect();
        assert_eq!(order, [0, 200, 300, 1, 2]);
        budget.defer(key(2), key(201), Rest::Event(Event::Start));
        assert_eq!((next(&mut budget), next(&mut budget)), (Some(3), Some(201)));
    }

    #[test]
    fn an_aborted_task_leaves_the_deferred_queue() {
        let mut budget = Budget::new();
        for round in 0..1000 {
            budget.defer(key(1), key(round), Rest::Event(Event::Start));
            budget.forget(key(1), key(round));
        }
        assert!(budget.is_idle() && budget.spare.len() == CONNECTIONS_AT_START);
        budget.defer(key(1), key(5), Rest::Event(Event::Start));
        budget.forget(key(1), key(6));
        budget.forget(key(2), key(5));
        assert_eq!((next(&mut budget), next(&mut budget)), (Some(5), None));
    }

    #[test]
    fn lane_work_leaves_half_of_each_turn_to_waiting_tasks() {
        let mut budget = Budget::new();
        budget.defer(key(1), key(1), Rest::Event(Event::Start));
        let stretch = TURN_BYTES + SHARE_BYTES;
        let mut worked = 0;
        for _ in 0..100 {
            budget.refill();
            if budget.may_work() {
                budget.charge_work(stretch);
                worked += stretch;
            }
            assert!(budget.left() >= TURN_BYTES / 2);
        }
        assert!(worked <= 100 * TURN_BYTES / 2 + stretch && worked >= 99 * TURN_BYTES / 2);
        // A lane that is alone gets all of it.
        next(&mut budget);
        budget.refill();
        assert!(budget.may_work());
        budget.charge_work(stretch);
        assert_eq!(budget.left(), 0);
    }

    #[test]
    fn many_small_operations_are_as_much_as_a_few_large_ones() {
        let mut budget = Budget::new();
        let small = (0..).take_while(|_| {
            budget.charge(512);
            budget.left() > 0
        });
        assert!(small.count() <= 512);
        budget.refill();
        let before = budget.left();
        budget.charge(SHARE_BYTES - OPERATION_BYTES - 1);
        assert!(!budget.has_shared(before));
        budget.charge(0);
        assert!(budget.has_shared(before));
    }
}
