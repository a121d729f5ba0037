//! Where each lane has last written, so that a write that waited for its session is not sent after a newer
//! one.
//!
//! Initiators with several paths abandon a write on one of them and repeat it on another, then rewrite the
//! same blocks. All of that may go through other lanes while the first write waits here for its target: if it
//! was sent then, it would overwrite what was acknowledged since. Such a write ends with BUSY instead.
//!
//! A lane records times for regions, not for blocks: bounded, with one or two memory stores for each write. A
//! write that ends with BUSY because of a neighbouring one costs its initiator a retry.

use proto::time::Time;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a region, as a shift.
const REGION_SHIFT: u32 = 18;
/// How many regions are distinguished; those further on the medium wrap around.
const REGIONS: u64 = 1024;
/// A longer write counts for all regions.
const REGIONS_AT_ONCE_MAX: u64 = 64;

/// A lane's writes.
pub(super) struct WriteHistory {
    /// When a write to each region was last begun, in nanoseconds.
    regions: Box<[AtomicU64]>,
    everywhere: AtomicU64,
}

/// The histories of all lanes.
#[derive(Default)]
pub(super) struct WriteHistories(Mutex<Vec<Arc<WriteHistory>>>);

impl WriteHistories {
    /// The history of a new lane.
    pub(super) fn join(&self) -> Arc<WriteHistory> {
        let regions = (0..REGIONS).map(|_| AtomicU64::new(0)).collect();
        let history = Arc::new(WriteHistory { regions, everywhere: AtomicU64::new(0) });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(history.clone());
        history
    }

    /// Whether a lane other than the one with this history has begun a write near this range, at that time or
    /// later.
    pub(super) fn crosses(&self, own: &Arc<WriteHistory>, range: (u64, u64), since: Time) -> bool {
        fence(Ordering::SeqCst);
        let histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others = histories.iter().filter(|history| !Arc::ptr_eq(history, own));
        others.any(|history| history.last(range) >= since.0.max(1))
    }
}

impl WriteHistory {
    /// A write begins. A check for what blocks it, made afterwards, sees it, or it is seen by
    /// [`WriteHistories::crosses`].
    pub(super) fn note(&self, range: (u64, u64), now: Time) {
        match regions(range) {
            Some(regions) => {
                regions.for_each(|region| self.regions[region].store(now.0, Ordering::Release));
            }
            None => self.everywhere.store(now.0, Ordering::Release),
        }
        fence(Ordering::SeqCst);
    }

    fn last(&self, range: (u64, u64)) -> u64 {
        let latest = |marks: &[AtomicU64]| marks.iter().map(|mark| mark.load(Ordering::Acquire)).max();
        let near = match regions(range) {
            Some(regions) => regions.map(|region| self.regions[region].load(Ordering::Acquire)).max(),
            None => latest(&self.regions),
        };
        near.unwrap_or(0).max(self.everywhere.load(Ordering::Acquire))
    }
}

/// The regions of a range; `None`: too many.
fn regions((offset, len): (u64, u64)) -> Option<impl Iterator<Item = usize>> {
    let first = offset >> REGION_SHIFT;
    let last = offset.saturating_add(len.saturating_sub(1)) >> REGION_SHIFT;
    (last - first < REGIONS_AT_ONCE_MAX).then(|| (first..=last).map(|region| (region % REGIONS) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn only_others_that_wrote_near_and_since_count() {
        let histories = WriteHistories::default();
        let (own, other) = (histories.join(), histories.join());
        assert!(!histories.crosses(&own, (0, 512), Time(0)), "nobody wrote");
        own.note((0, 512), Time(5));
        assert!(!histories.crosses(&own, (0, 512), Time(5)));
        other.note((MIB, 512), Time(7));
        assert!(histories.crosses(&own, (MIB + 512, 512), Time(7)));
        assert!(!histories.crosses(&own, (MIB, 512), Time(8)));
        assert!(!histories.crosses(&own, (2 * MIB, 512), Time(5)));
        assert!(histories.crosses(&own, (0, 2 * MIB), Time(7)));
    }

    #[test]
    fn a_long_write_counts_as_near_every_range() {
        let histories = WriteHistories::default();
        let (own, other) = (histories.join(), histories.join());
        other.note((0, 1 << 40), Time(3));
        assert!(histories.crosses(&own, (5 << 40, 512), Time(3)));
        let (own, other) = (histories.join(), histories.join());
        other.note((512, 512), Time(9));
        assert!(histories.crosses(&own, (0, u64::MAX), Time(9)));
    }
}
