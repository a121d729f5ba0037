//! Writes that were given up while the target may still execute them, and writes that wait for a lost session.
//!
//! Their initiator was told that they failed, and may write the same blocks anew, through any lane. A lane's own
//! commands come after the reinstatement of its session, which ends them (RFC 7143 section 6.3.5); another lane's
//! session knows nothing of that, so its operations on these blocks have to wait for it. Reads too: what has been read
//! must not change later without a write.
//!
//! A write that waits for its session to come back may have been executed, and is sent again; one that nobody waits
//! for any more may be on its way. They hold their blocks until they are over.

use proto::time::Time;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Such writes of all lanes: at most the commands of each.
#[derive(Default)]
pub(super) struct Loose {
    count: AtomicUsize,
    writes: Mutex<Vec<Write>>,
}

struct Write {
    lane: u64,
    /// The operation of the lane that ends it; `None`: it was given up.
    flight: Option<u32>,
    offset: u64,
    len: u64,
    since: Time,
}

impl Loose {
    /// A lane gave up a write, or has to wait with one: then until [`Loose::release`] of that operation.
    pub(super) fn add(&self, lane: u64, flight: Option<u32>, (offset, len): (u64, u64), since: Time) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.push(Write { lane, flight, offset, len, since });
        self.count.store(writes.len(), Ordering::SeqCst);
    }

    /// A lane's operation is over.
    pub(super) fn release(&self, lane: u64, flight: u32) {
        self.keep(|write| write.lane != lane || write.flight != Some(flight));
    }

    /// A lane's session was reinstated: what it gave up is over.
    pub(super) fn reinstated(&self, lane: u64) {
        self.keep(|write| write.lane != lane || write.flight.is_some());
    }

    fn keep(&self, is_kept: impl Fn(&Write) -> bool) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.retain(is_kept);
        self.count.store(writes.len(), Ordering::SeqCst);
    }

    /// Since when another lane's write stands in the way of an operation on this range, if one does.
    pub(super) fn hinders(&self, lane: u64, (offset, len): (u64, u64)) -> Option<Time> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let meets = |write: &&Write| {
            write.lane != lane
                && offset < write.offset.saturating_add(write.len)
                && write.offset < offset.saturating_add(len)
        };
        writes.iter().filter(meets).map(|write| write.since).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_lanes_wait_and_only_for_the_same_blocks() {
        let loose = Loose::default();
        loose.add(1, None, (4096, 4096), Time(5));
        assert_eq!(loose.hinders(1, (4096, 512)), None);
        assert_eq!(loose.hinders(2, (7680, 4096)), Some(Time(5)));
        assert_eq!(loose.hinders(2, (8192, 512)), None);
        assert_eq!(loose.hinders(2, (0, 4096)), None);
        loose.reinstated(2);
        assert_eq!(loose.hinders(2, (0, u64::MAX)), Some(Time(5)));
        loose.reinstated(1);
        assert_eq!(loose.hinders(2, (0, u64::MAX)), None);
    }

    #[test]
    fn what_waits_holds_its_blocks_until_it_is_over() {
        let loose = Loose::default();
        loose.add(1, Some(7), (0, 512), Time(5));
        loose.reinstated(1);
        loose.release(1, 8);
        loose.release(2, 7);
        assert_eq!(loose.hinders(2, (0, 512)), Some(Time(5)));
        loose.release(1, 7);
        assert_eq!(loose.hinders(2, (0, 512)), None);
    }
}
