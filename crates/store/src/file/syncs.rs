//! Syncs of an open file, one at a time.
//!
//! A write-back error of the page cache is reported once for each open file (fsync(2)), and all cores share
//! one: of two syncs at a time, one gets the error and the other succeeds, whosever the data was. So no two
//! run at the same time, on whatever core, and an operation that needs one while another runs waits for the
//! next. An error is counted before the sync that got it ends: every operation that waited for that sync, or
//! for a later one, sees it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which sync runs, which cores wait for its end, and how many have lost data.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// Counts beginnings and ends of syncs: an odd number while one runs.
    changes: AtomicU64,
    losses: Arc<AtomicU64>,
    /// Data was written that no sync has begun after, or that one has lost.
    is_dirty: AtomicBool,
    /// Wakes the cores that wait: at most one event per lane.
    waiting: Mutex<Vec<Arc<OwnedFd>>>,
}

/// A request for a sync that begins after it: the end of the first one that suffices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SyncTicket(u64);

/// The state of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// A sync runs: call again later.
    Wait,
    /// The caller runs the sync, and ends it by [`Syncs::end`].
    Begin,
    /// A sync that suffices has completed.
    Over,
}

impl Syncs {
    /// Losses are counted in `losses`.
    pub(super) fn new(losses: Arc<AtomicU64>) -> Syncs {
        Syncs { losses, ..Syncs::default() }
    }

    /// For everything written up to now.
    pub(super) fn ticket(&self) -> SyncTicket {
        let changes = self.changes.load(Ordering::Acquire);
        let runs = changes % 2;
        SyncTicket(changes + runs + 2)
    }

    pub(super) fn turn(&self, ticket: SyncTicket) -> Turn {
        let changes = self.changes.load(Ordering::Acquire);
        if changes >= ticket.0 {
            return Turn::Over;
        }
        let begin = || {
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            self.changes.compare_exchange(changes, changes + 1, success, failure).is_ok()
        };
        if !changes.is_multiple_of(2) || !begin() {
            return Turn::Wait;
        }
        self.is_dirty.store(false, Ordering::Release);
        Turn::Begin
    }

    /// Data was written that is not durable.
    pub(super) fn wrote(&self) {
        if !self.is_dirty.load(Ordering::Acquire) {
            self.is_dirty.store(true, Ordering::Release);
        }
    }

    /// Whether data was written that is not known to be durable.
    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// The running sync has completed. If it failed, [`Syncs::lost`] comes before.
    pub(super) fn end(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting());
        for event in waiting {
            // Fails only when the counter is full, and then it is readable anyway.
            let _ = rustix::io::write(&event, &1u64.to_ne_bytes());
        }
    }

    /// Makes this readable, once, when a sync ends. One may have ended before: check the turn again after
    /// calling this.
    pub(super) fn wake(&self, event: &Arc<OwnedFd>) {
        self.waiting().push(event.clone());
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<OwnedFd>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Written data may be lost, which the kernel will not report again. Returns how often that has happened.
    pub(super) fn lost(&self) -> u64 {
        self.wrote();
        self.losses.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// How often data was lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sync_runs_at_a_time_and_who_comes_meanwhile_waits_for_the_next() {
        let syncs = Syncs::default();
        let (first, too) = (syncs.ticket(), syncs.ticket());
        assert_eq!((syncs.turn(first), syncs.turn(too)), (Turn::Begin, Turn::Wait));
        let late = syncs.ticket();
        assert_eq!(syncs.turn(late), Turn::Wait);
        syncs.end();
        assert_eq!((syncs.turn(too), syncs.turn(late)), (Turn::Over, Turn::Begin));
        syncs.end();
        assert_eq!(syncs.turn(late), Turn::Over);
    }

    #[test]
    fn what_was_written_is_dirty_until_a_sync_that_begins_after_it_has_ended_well() {
        let syncs = Syncs::default();
        assert!(!syncs.is_dirty());
        syncs.wrote();
        assert!(syncs.is_dirty());
        assert_eq!(syncs.turn(syncs.ticket()), Turn::Begin);
        syncs.end();
        assert!(!syncs.is_dirty());
        assert_eq!(syncs.turn(syncs.ticket()), Turn::Begin);
        syncs.wrote();
        syncs.end();
        assert!(syncs.is_dirty(), "it came too late for that one");
        assert_eq!(syncs.turn(syncs.ticket()), Turn::Begin);
        syncs.lost();
        syncs.end();
        assert!(syncs.is_dirty(), "it is lost");
    }
}
