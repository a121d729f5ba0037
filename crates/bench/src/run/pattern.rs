//! The position, direction and time of the next operation.

use super::meter::Direction;
use crate::job::Job;
use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One stream of operations of one job thread over a range of `blocks` blocks.
pub(super) struct Pattern {
    pub(super) order: AccessOrder,
    pub(super) mix: Mix,
    pub(super) blocks: u64,
}

/// The order in which blocks are accessed.
pub(super) enum AccessOrder {
    /// One after the other from here on, then again from the first.
    Sequential(u64),
    /// Like `Sequential`, but several threads take turns.
    Shared(Arc<AtomicU64>),
    /// In random order.
    Random,
}

/// Which operations a stream consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mix {
    Only(Direction),
    /// This percentage of reads, the rest writes.
    Reads(u8),
}

impl Pattern {
    /// The next operation and its block.
    pub(super) fn next(&mut self, rng: &mut Rng) -> (Direction, u64) {
        let direction = match self.mix {
            Mix::Only(direction) => direction,
            Mix::Reads(percent) if rng.u8(0..100) < percent => Direction::Read,
            Mix::Reads(_) => Direction::Write,
        };
        let block = match &mut self.order {
            AccessOrder::Sequential(next) => {
                let block = *next;
                *next = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
            AccessOrder::Shared(next) => next.fetch_add(1, Ordering::Relaxed) % self.blocks,
            AccessOrder::Random => rng.u64(0..self.blocks),
        };
        (direction, block)
    }
}

/// How many operations may start, by a schedule that does not depend on how fast they complete: number n is
/// due n * each / rate after the start. Late ones are made up for as soon as the queue depth allows.
pub(super) struct Pace {
    /// In bytes or operations per second; `None`: unlimited.
    rate: Option<u64>,
    /// What one operation counts for, in the same unit.
    each: u32,
    start: u64,
    started: u64,
}

const SECOND: u128 = 1_000_000_000;

impl Pace {
    pub(super) fn new(job: &Job, start: u64) -> Pace {
        let (rate, each) = match job.rate {
            Some(bytes) => (Some(bytes), job.bs),
            None => (job.rate_iops, 1),
        };
        Pace { rate, each, start, started: 0 }
    }

    /// Operations that may start now.
    pub(super) fn due(&self, now: u64) -> u64 {
        let Some(rate) = self.rate else { return u64::MAX };
        let passed = u128::from(now.saturating_sub(self.start));
        let due = passed * u128::from(rate) / (SECOND * u128::from(self.each)) + 1;
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.started)
    }

    /// Counts an operation that was started.
    pub(super) fn count(&mut self) {
        self.started += 1;
    }

    /// When the next operation is due; `None`: any time.
    pub(super) fn next_due(&self) -> Option<u64> {
        let rate = u128::from(self.rate?);
        let after = (u128::from(self.started) * u128::from(self.each) * SECOND).div_ceil(rate);
        Some(self.start.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pattern: &mut Pattern, count: usize) -> Vec<(Direction, u64)> {
        let mut rng = Rng::with_seed(7);
        (0..count).map(|_| pattern.next(&mut rng)).collect()
    }

    #[test]
    fn sequential_blocks_follow_each_other_and_wrap() {
        let mix = Mix::Only(Direction::Write);
        let mut pattern = Pattern { order: AccessOrder::Sequential(2), mix, blocks: 4 };
        let blocks: Vec<u64> = take(&mut pattern, 6).iter().map(|next| next.1).collect();
        assert_eq!(blocks, [2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn threads_that_share_a_range_take_each_block_once() {
        let mix = Mix::Only(Direction::Read);
        let cursor = Arc::new(AtomicU64::new(0));
        let pattern = || Pattern { order: AccessOrder::Shared(cursor.clone()), mix, blocks: 8 };
        let mut blocks: Vec<u64> = Vec::new();
        for mut pattern in [pattern(), pattern()] {
            blocks.extend(take(&mut pattern, 4).iter().map(|next| next.1));
        }
        assert_eq!(blocks, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn random_blocks_cover_the_range_in_the_asked_mix() {
        let mut pattern = Pattern { order: AccessOrder::Random, mix: Mix::Reads(70), blocks: 16 };
        let taken = take(&mut pattern, 10_000);
        assert!((0..16).all(|block| taken.iter().any(|next| next.1 == block)));
        assert!(taken.iter().all(|next| next.1 < 16));
        let reads = taken.iter().filter(|next| next.0 == Direction::Read).count();
        assert!((6800..7200).contains(&reads), "{reads}");
    }

    #[test]
    fn a_rate_is_a_schedule() {
        let bytes = Job { rate: Some(4_096_000), bs: 4096, ..Job::default() };
        keeps_to_a_thousand(Pace::new(&bytes, 5_000_000));
        keeps_to_a_thousand(Pace::new(&Job { rate_iops: Some(1000), ..Job::default() }, 5_000_000));
        assert_eq!(Pace::new(&Job::default(), 0).due(0), u64::MAX);
        assert_eq!(Pace::new(&Job::default(), 0).next_due(), None);
    }

    fn keeps_to_a_thousand(mut pace: Pace) {
        assert_eq!(pace.due(5_000_000), 1);
        pace.count();
        assert_eq!(pace.due(5_000_000), 0);
        assert_eq!(pace.next_due(), Some(6_000_000));
        assert_eq!(pace.due(5_999_999), 0);
        assert_eq!(pace.due(6_000_000), 1);
        assert_eq!(pace.due(1_005_000_000), 1000, "what is late is made up for");
    }
}
