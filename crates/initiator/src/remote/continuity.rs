//! Whether a target has run without a restart since it acknowledged what is not durable yet.
//!
//! A target with a volatile cache that restarts has lost writes that it had acknowledged, and answers the
//! next SYNCHRONIZE CACHE with GOOD. Nothing in SCSI distinguishes this from a connection that was merely
//! cut: a new nexus gets the POWER ON unit attention either way (SAM-5 section 5.14.1). So, after each login
//! while such writes exist, one of these must prove that the target kept running:
//! - It is a Lunette, and reports the incarnation of its store in the vendor specific bytes of INQUIRY data.
//!   (If that is in turn a remote unit, it changes after each loss.)
//! - A session of another lane, which existed before, answers a command that it was sent after that login.
//!
//! Otherwise they are likely lost, and that is reported: to every nexus once, by its next flush
//! ([`store::lane::Lane::losses`]). Without such writes, or without a volatile cache, there is nothing to
//! report. What earlier processes have written is not known here: until a flush has succeeded, there may be
//! such writes of theirs.
//!
//! Events of all lanes are ordered by one counter, which only flushes and logins increment. A lane records it
//! for the writes that it acknowledges, so the datapath reads something that hardly ever changes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Identifies one run of a store's cache: while it is the same, nothing acknowledged is lost.
pub(super) type Incarnation = [u8; 16];

/// What the lanes of a store know together.
#[derive(Default)]
pub(super) struct Continuity {
    /// The counter.
    clock: AtomicU64,
    /// Known or possible restarts of the target. What was reported to an earlier session no longer counts.
    era: AtomicU64,
    /// Writes with numbers up to this one are durable, or were reported as lost.
    settled: AtomicU64,
    /// Others may have written before the unit was opened, without flushing.
    inherits: bool,
    /// A lane has at some time begun a write.
    has_written: AtomicBool,
    /// When the first lane had logged in.
    arrived: AtomicU64,
    /// For each lane, the number of the last write that was acknowledged from a volatile cache.
    cached: Mutex<Vec<Arc<AtomicU64>>>,
    losses: Arc<AtomicU64>,
    resets: AtomicU64,
    incarnation: Mutex<Option<Incarnation>>,
    /// Sessions that are open.
    open: AtomicUsize,
    /// The last login that needs a witness, and the last witness's report.
    wanted: AtomicU64,
    witnessed: AtomicU64,
}

/// What a login reveals about the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// It kept running, or nothing depends on that.
    Fine,
    /// The login has begun a new era.
    Restarted,
    /// A witness is needed.
    Doubtful,
}

impl Continuity {
    /// Losses are counted in `losses`; `inherits`: writes of earlier users of the unit may not be durable.
    pub(super) fn new(
        incarnation: Option<Incarnation>,
        losses: Arc<AtomicU64>,
        inherits: bool,
    ) -> Continuity {
        Continuity { incarnation: Mutex::new(incarnation), losses, inherits, ..Continuity::default() }
    }

    /// A lane's record of the last write that was acknowledged from a volatile cache.
    pub(super) fn join(&self) -> Arc<AtomicU64> {
        let note = Arc::new(AtomicU64::new(0));
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).push(note.clone());
        note
    }

    /// A point in the order of events, for a flush, a login or a witness that begins.
    pub(super) fn point(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A write is about to be sent.
    pub(super) fn writes(&self) {
        if !self.has_written.load(Ordering::Relaxed) {
            self.has_written.store(true, Ordering::SeqCst);
        }
    }

    /// A write was acknowledged from a volatile cache. The lane checks the era afterwards: either whoever
    /// begins a new one sees this record, or the lane sees that era.
    pub(super) fn note(&self, last: &AtomicU64) {
        let number = self.clock.load(Ordering::SeqCst) + 1;
        if last.load(Ordering::Relaxed) != number {
            last.store(number, Ordering::SeqCst);
        }
    }

    /// The present era.
    pub(super) fn era(&self) -> u64 {
        self.era.load(Ordering::SeqCst)
    }

    /// How often unflushed writes were, or may have been, lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// How often the unit was reset, as far as is known.
    pub(super) fn resets(&self) -> u64 {
        self.resets.load(Ordering::SeqCst)
    }

    /// A flush that began at this point succeeded.
    pub(super) fn flushed(&self, point: u64) {
        self.settled.fetch_max(point, Ordering::SeqCst);
    }

    /// A login happened at this point.
    pub(super) fn arrived(&self, point: u64, incarnation: Option<Incarnation>) -> Arrival {
        let mut known = self.incarnation.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *known, incarnation);
        drop(known);
        // Logins before the first known one happened, more or less, when the unit was opened.
        let here = self.point();
        let first = self.arrived.compare_exchange(0, here, Ordering::SeqCst, Ordering::SeqCst);
        let is_early = point < first.map_or_else(|first| first, |_| here);
        if before.is_some() && incarnation.is_some() {
            if before == incarnation {
                return Arrival::Fine;
            }
            self.reset(true);
            return Arrival::Restarted;
        }
        let inherits = !is_early && self.has_inherited();
        // A write of an open session may have been answered but not recorded yet.
        if self.has_witnesses() && (inherits || self.has_written.load(Ordering::SeqCst)) {
            self.wanted.fetch_max(point, Ordering::SeqCst);
            return Arrival::Doubtful;
        }
        if !self.is_dirty() && !inherits {
            return Arrival::Fine;
        }
        self.reset(true);
        Arrival::Restarted
    }

    /// Whether a witness proves that the target kept running until the login at this point.
    pub(super) fn is_proven(&self, point: u64) -> bool {
        self.witnessed.load(Ordering::SeqCst) > point
    }

    /// There was no witness: a new era begins.
    pub(super) fn unproven(&self) {
        self.era.fetch_add(1, Ordering::SeqCst);
        if self.lose() {
            self.resets.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether a witness is needed.
    pub(super) fn wants_witness(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) > self.witnessed.load(Ordering::SeqCst)
    }

    /// Whether there is a session that can be a witness.
    pub(super) fn has_witnesses(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// A command that was sent at this point was answered on an open session.
    pub(super) fn witness(&self, point: u64) {
        self.witnessed.fetch_max(point, Ordering::SeqCst);
    }

    /// A session has been opened, or an open one has ended.
    pub(super) fn count(&self, is_open: bool) {
        match is_open {
            true => self.open.fetch_add(1, Ordering::SeqCst),
            false => self.open.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// The unit was reset, with its volatile cache or without: a new era begins.
    pub(super) fn reset(&self, loses_cache: bool) {
        self.era.fetch_add(1, Ordering::SeqCst);
        self.resets.fetch_add(1, Ordering::SeqCst);
        if loses_cache {
            self.lose();
        }
    }

    /// A flush that began at this point failed: the unit will not report it again.
    pub(super) fn flush_failed(&self, point: u64) {
        self.losses.fetch_add(1, Ordering::SeqCst);
        self.flushed(point);
    }

    /// Whether writes were acknowledged from a volatile cache that no flush has covered, and whose loss was
    /// not reported.
    pub(super) fn is_dirty(&self) -> bool {
        let settled = self.settled.load(Ordering::SeqCst);
        let notes = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        notes.iter().any(|note| note.load(Ordering::SeqCst) > settled)
    }

    /// Whether earlier processes may have left such writes.
    fn has_inherited(&self) -> bool {
        self.inherits && self.settled.load(Ordering::SeqCst) == 0
    }

    /// Records a loss, if there is anything to lose. Returns whether there was.
    fn lose(&self) -> bool {
        let point = self.point();
        let is_dirty = self.is_dirty() || self.has_inherited();
        if is_dirty {
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
        self.flushed(point);
        is_dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Option<Incarnation> = Some([1; 16]);
    const TWO: Option<Incarnation> = Some([2; 16]);

    #[test]
    fn what_was_flushed_is_not_lost() {
        let continuity = Continuity::new(ONE, Arc::default(), false);
        let lane = continuity.join();
        continuity.note(&lane);
        let flush = continuity.point();
        continuity.flushed(flush);
        assert_eq!(continuity.arrived(continuity.point(), TWO), Arrival::Restarted);
        assert_eq!((continuity.losses(), continuity.resets(), continuity.era()), (0, 1, 1));
    }

    #[test]
    fn a_write_that_ends_while_a_flush_is_under_way_is_not_covered_by_it() {
        let continuity = Continuity::new(ONE, Arc::default(), false);
        let lane = continuity.join();
        let flush = continuity.point();
        continuity.note(&lane);
        continuity.flushed(flush);
        assert_eq!(continuity.arrived(continuity.point(), TWO), Arrival::Restarted);
        assert_eq!(continuity.losses(), 1);
        // It is reported once.
        assert_eq!(continuity.arrived(continuity.point(), ONE), Arrival::Restarted);
        assert_eq!(continuity.losses(), 1);
    }

    #[test]
    fn the_same_incarnation_has_lost_nothing() {
        let continuity = Continuity::new(ONE, Arc::default(), false);
        continuity.note(&continuity.join());
        assert_eq!(continuity.arrived(continuity.point(), ONE), Arrival::Fine);
        assert_eq!((continuity.losses(), continuity.era()), (0, 0));
    }

    #[test]
    fn what_was_written_before_the_unit_was_opened_is_lost_as_well_until_a_flush_has_succeeded() {
        let continuity = Continuity::new(ONE, Arc::default(), true);
        assert_eq!(continuity.arrived(continuity.point(), ONE), Arrival::Fine);
        assert!(!continuity.is_dirty(), "this process wrote nothing");
        assert_eq!(continuity.arrived(continuity.point(), TWO), Arrival::Restarted);
        assert_eq!(continuity.arrived(continuity.point(), ONE), Arrival::Restarted);
        assert_eq!(continuity.losses(), 1, "it is reported once");
        let continuity = Continuity::new(ONE, Arc::default(), true);
        continuity.flushed(continuity.point());
        assert_eq!(continuity.arrived(continuity.point(), TWO), Arrival::Restarted);
        assert_eq!(continuity.losses(), 0);
    }

    #[test]
    fn what_was_written_before_the_unit_was_opened_is_not_lost_by_the_first_logins() {
        let continuity = Continuity::new(None, Arc::default(), true);
        let logins = [continuity.point(), continuity.point()];
        assert_eq!(logins.map(|login| continuity.arrived(login, None)), [Arrival::Fine; 2]);
        continuity.count(true);
        assert_eq!(continuity.arrived(continuity.point(), None), Arrival::Doubtful, "the first can witness");
        continuity.count(false);
        assert_eq!(continuity.arrived(continuity.point(), None), Arrival::Restarted);
        assert_eq!(continuity.losses(), 1);
    }

    #[test]
    fn a_target_without_incarnation_is_trusted_when_nothing_is_at_stake() {
        let continuity = Continuity::new(None, Arc::default(), false);
        assert_eq!(continuity.arrived(continuity.point(), None), Arrival::Fine);
        continuity.note(&continuity.join());
        assert_eq!(continuity.arrived(continuity.point(), None), Arrival::Restarted);
        assert_eq!(continuity.losses(), 1);
        assert_eq!(continuity.arrived(continuity.point(), None), Arrival::Fine);
    }

    #[test]
    fn another_session_is_a_witness_when_it_is_answered_after_the_login() {
        let continuity = Continuity::new(None, Arc::default(), false);
        continuity.count(true);
        assert_eq!(continuity.arrived(continuity.point(), None), Arrival::Fine, "nobody wrote");
        continuity.writes();
        continuity.note(&continuity.join());
        let before = continuity.point();
        let login = continuity.point();
        assert_eq!(continuity.arrived(login, None), Arrival::Doubtful);
        continuity.witness(before);
        assert!(continuity.wants_witness() && !continuity.is_proven(login));
        continuity.witness(continuity.point());
        assert!(!continuity.wants_witness() && continuity.is_proven(login));
        continuity.unproven();
        assert_eq!((continuity.losses(), continuity.era()), (1, 1));
    }
}
