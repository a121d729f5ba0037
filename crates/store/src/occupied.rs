//! The ranges that long operations of a store process part by part. Each is held until its operation ends: a
//! write between two parts would be acknowledged and then be lost under the next one.

use crate::range::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Ranges per store; further long operations wait.
const RANGES_MAX: usize = 64;

/// The ranges of one store, shared by its lanes.
#[derive(Default)]
pub(crate) struct Occupied {
    /// Writers check this first, so that they lock nothing as long as there are none.
    count: AtomicUsize,
    ranges: Mutex<Vec<Range>>,
}

impl Occupied {
    /// Takes a range before the first part of it is locked, unless it overlaps another one.
    pub(crate) fn take(&self, range: Range) -> bool {
        let mut ranges = self.ranges();
        if ranges.len() == RANGES_MAX || ranges.iter().any(|other| other.overlaps(range)) {
            return false;
        }
        ranges.push(range);
        self.count.store(ranges.len(), Ordering::Release);
        true
    }

    /// Releases a range that was taken.
    pub(crate) fn give(&self, range: Range) {
        let mut ranges = self.ranges();
        let at = ranges.iter().position(|other| *other == range).expect("a range is given once");
        ranges.swap_remove(at);
        self.count.store(ranges.len(), Ordering::Release);
    }

    /// Whether a write to this range has to wait. Called while its stripes are locked: an operation that
    /// takes its range only after that locks them later, and comes entirely after the write; one whose part
    /// was locked before is seen here.
    pub(crate) fn overlaps(&self, range: Range) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.ranges().iter().any(|other| other.overlaps(range))
    }

    fn ranges(&self) -> MutexGuard<'_, Vec<Range>> {
        self.ranges.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_taken_one_after_the_other() {
        let occupied = Occupied::default();
        let range = |offset, len| Range { offset, len };
        assert!(!occupied.overlaps(range(0, u64::MAX)));
        assert!(occupied.take(range(100, 50)) && occupied.take(range(150, 50)));
        assert!(!occupied.take(range(199, 1)));
        assert!(occupied.overlaps(range(149, 2)) && !occupied.overlaps(range(200, 1)));
        assert!(!occupied.overlaps(range(99, 1)));
        occupied.give(range(150, 50));
        assert!(occupied.take(range(199, 1)) && !occupied.overlaps(range(150, 49)));
    }

    #[test]
    fn ranges_are_limited() {
        let occupied = Occupied::default();
        let taken = (0..100).filter(|nth| occupied.take(Range { offset: *nth, len: 1 })).count();
        assert_eq!(taken, RANGES_MAX);
    }
}
