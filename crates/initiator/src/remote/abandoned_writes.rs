//! Writes that were abandoned while the target may still execute them, and writes that wait for a lost
//! session.
//!
//! To their initiator they have failed, and it may rewrite the same blocks, through any lane: operations on
//! these blocks have to wait until the target cannot execute the old write any more. Reads too: what has been
//! read must not change later without a write. A successful login is no proof; [`super::revalidation`] finds
//! one.
//!
//! A write that waits for its session to be restored may have been executed, and is resent; a cancelled one
//! may be in transit. They hold their blocks against other lanes until they have ended.

use proto::time::Time;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The most abandoned writes of one lane that are not known to have ended; beyond that, their ranges are
/// merged.
const ABANDONED_MAX: usize = 1024;

/// Such writes of all lanes: at most the commands of each, and [`ABANDONED_MAX`].
#[derive(Default)]
pub(super) struct AbandonedWrites {
    count: AtomicUsize,
    writes: Mutex<Writes>,
}

#[derive(Default)]
struct Writes {
    /// By lane, and the lane's operation that will end it.
    waiting: BTreeMap<(u64, u32), Write>,
    abandoned: Vec<Write>,
}

#[derive(Clone, Copy)]
struct Write {
    lane: u64,
    offset: u64,
    len: u64,
    since: Time,
    /// It is cancelled, and blocks the lane itself as well.
    is_cancelled: bool,
}

impl AbandonedWrites {
    /// A lane has to wait with a write: until [`AbandonedWrites::release`] or [`AbandonedWrites::abandon`] of
    /// that operation.
    pub(super) fn add(&self, lane: u64, flight: u32, (offset, len): (u64, u64), since: Time) {
        let write = Write { lane, offset, len, since, is_cancelled: false };
        self.change(|writes| {
            writes.waiting.insert((lane, flight), write);
        });
    }

    /// A write that was added is cancelled.
    pub(super) fn cancel(&self, lane: u64, flight: u32) {
        self.change(|writes| {
            writes.waiting.get_mut(&(lane, flight)).into_iter().for_each(|write| write.is_cancelled = true);
        });
    }

    /// A lane's operation has ended, and can no longer be executed.
    pub(super) fn release(&self, lane: u64, flight: u32) {
        self.change(|writes| {
            writes.waiting.remove(&(lane, flight));
        });
    }

    /// A lane's operation has ended, but the target may still execute it.
    pub(super) fn abandon(&self, lane: u64, flight: u32) {
        self.change(|Writes { waiting, abandoned }| {
            abandoned.extend(waiting.remove(&(lane, flight)));
            if abandoned.iter().filter(|write| write.lane == lane).count() > ABANDONED_MAX {
                let all = abandoned.extract_if(.., |write| write.lane == lane).reduce(Write::and);
                abandoned.extend(all);
            }
        });
    }

    /// Of the writes that a lane abandoned, the target can now execute only those in these ranges.
    pub(super) fn keep(&self, lane: u64, may_land: impl Fn((u64, u64)) -> bool) {
        self.change(|writes| {
            writes.abandoned.retain(|write| write.lane != lane || may_land((write.offset, write.len)));
        });
    }

    fn change(&self, change: impl FnOnce(&mut Writes)) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut writes);
        self.count.store(writes.waiting.len() + writes.abandoned.len(), Ordering::SeqCst);
    }

    /// Reads them, if there are any.
    fn read<T>(&self, read: impl FnOnce(&Writes) -> T) -> Option<T> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        Some(read(&self.writes.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Whether the target may still execute anything that a lane abandoned.
    pub(super) fn has_abandoned(&self, lane: u64) -> bool {
        self.read(|writes| writes.abandoned.iter().any(|write| write.lane == lane)).unwrap_or(false)
    }

    /// The ranges that abandoned writes of any lane may still change.
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        let ranges =
            |writes: &Writes| writes.abandoned.iter().map(|write| (write.offset, write.len)).collect();
        self.read(ranges).unwrap_or_default()
    }

    /// Since when a write blocks a lane's operation on this range, if one does: another lane's, or one that
    /// was cancelled or abandoned.
    pub(super) fn blocked_since(&self, lane: u64, range: (u64, u64)) -> Option<Time> {
        let first = |writes: &Writes| {
            let others = writes.waiting.values().filter(|write| write.lane != lane || write.is_cancelled);
            let all = others.chain(&writes.abandoned).filter(|write| write.overlaps(range));
            all.map(|write| write.since).min()
        };
        self.read(first).flatten()
    }
}

impl Write {
    fn overlaps(&self, range: (u64, u64)) -> bool {
        overlap((self.offset, self.len), range)
    }

    /// A range that includes both.
    fn and(self, other: Write) -> Write {
        let end = |write: &Write| write.offset.saturating_add(write.len);
        let offset = self.offset.min(other.offset);
        let len = end(&self).max(end(&other)) - offset;
        Write { offset, len, since: self.since.min(other.since), ..self }
    }
}

/// Whether two ranges, each an offset and a length, have bytes in common.
pub(super) fn overlap((one, one_len): (u64, u64), (other, other_len): (u64, u64)) -> bool {
    other < one.saturating_add(one_len) && one < other.saturating_add(other_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_write_blocks_all_lanes_but_only_on_its_blocks() {
        let writes = AbandonedWrites::default();
        writes.add(1, 7, (4096, 4096), Time(5));
        assert_eq!(writes.blocked_since(1, (4096, 512)), None, "it waits for the same session");
        assert!(!writes.has_abandoned(1) && writes.ranges().is_empty());
        writes.abandon(1, 7);
        for lane in [1, 2] {
            assert_eq!(writes.blocked_since(lane, (7680, 4096)), Some(Time(5)));
            assert_eq!(writes.blocked_since(lane, (8192, 512)), None);
            assert_eq!(writes.blocked_since(lane, (0, 4096)), None);
        }
        assert!(writes.has_abandoned(1) && !writes.has_abandoned(2));
        assert_eq!(writes.ranges(), [(4096, 4096)]);
        writes.keep(2, |_| false);
        writes.keep(1, |range| range == (4096, 4096));
        assert_eq!(writes.blocked_since(2, (0, u64::MAX)), Some(Time(5)));
        writes.keep(1, |_| false);
        assert_eq!(writes.blocked_since(2, (0, u64::MAX)), None);
    }

    #[test]
    fn what_waits_holds_its_blocks_until_it_is_over() {
        let writes = AbandonedWrites::default();
        writes.add(1, 7, (0, 512), Time(5));
        writes.keep(1, |_| false);
        writes.release(1, 8);
        writes.release(2, 7);
        assert_eq!(writes.blocked_since(2, (0, 512)), Some(Time(5)));
        writes.release(1, 7);
        assert_eq!(writes.blocked_since(2, (0, 512)), None);
    }

    #[test]
    fn a_cancelled_write_blocks_all_lanes_until_it_ends() {
        let writes = AbandonedWrites::default();
        writes.add(1, 7, (0, 512), Time(5));
        writes.cancel(1, 7);
        assert_eq!([1, 2].map(|lane| writes.blocked_since(lane, (0, 512))), [Some(Time(5)); 2]);
        writes.release(1, 7);
        assert_eq!(writes.blocked_since(1, (0, 512)), None);
    }

    #[test]
    fn writes_that_are_kept_apart_are_bounded() {
        let writes = AbandonedWrites::default();
        for n in 0..10 * ABANDONED_MAX as u64 {
            writes.add(1, 7, (n * 1024, 512), Time(n));
            writes.abandon(1, 7);
            assert_eq!(writes.blocked_since(2, (0, 512)), Some(Time(0)), "{n}");
            assert!(writes.blocked_since(2, (n * 1024 + 511, 1)).is_some());
        }
        assert!(writes.writes.lock().unwrap().abandoned.len() <= ABANDONED_MAX);
    }
}
