//! Writes that were given up while the target may still execute them, and writes that wait for a lost session.
//!
//! To their initiator they have failed, and it may write the same blocks anew, through any lane: operations on these
//! blocks have to wait until the target cannot execute the old write any more. Reads too: what has been read must not
//! change later without a write. That a login has succeeded is no proof; what is one, [`super::examination`] knows.
//!
//! A write that waits for its session to come back may have been executed, and is sent again; one that nobody waits
//! for any more may be on its way. They hold their blocks against other lanes until they are over.

use proto::time::Time;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Writes that one lane has given up and nothing has ended; beyond that their blocks are taken together.
const GIVEN_UP_MAX: usize = 1024;

/// Such writes of all lanes: at most the commands of each, and [`GIVEN_UP_MAX`].
#[derive(Default)]
pub(super) struct Loose {
    count: AtomicUsize,
    writes: Mutex<Vec<Write>>,
}

#[derive(Clone, Copy)]
struct Write {
    lane: u64,
    /// The operation of the lane that ends it; `None`: it was given up.
    flight: Option<u32>,
    offset: u64,
    len: u64,
    since: Time,
}

impl Loose {
    /// A lane has to wait with a write, or nobody waits for it: until [`Loose::release`] or [`Loose::give_up`] of that
    /// operation.
    pub(super) fn add(&self, lane: u64, flight: u32, (offset, len): (u64, u64), since: Time) {
        let write = Write { lane, flight: Some(flight), offset, len, since };
        self.change(|writes| writes.push(write));
    }

    /// A lane's operation is over, and cannot be executed any more.
    pub(super) fn release(&self, lane: u64, flight: u32) {
        self.change(|writes| writes.retain(|write| write.lane != lane || write.flight != Some(flight)));
    }

    /// A lane's operation is over, and the target may execute it yet.
    pub(super) fn give_up(&self, lane: u64, flight: u32) {
        self.change(|writes| {
            let is_it = |write: &&mut Write| write.lane == lane && write.flight == Some(flight);
            writes.iter_mut().filter(is_it).for_each(|write| write.flight = None);
            let is_given_up = |write: &Write| write.lane == lane && write.flight.is_none();
            if writes.iter().filter(|write| is_given_up(write)).count() > GIVEN_UP_MAX {
                let all = writes.extract_if(.., |write| is_given_up(write)).reduce(Write::and);
                writes.extend(all);
            }
        });
    }

    /// Of what a lane gave up, the target can execute only what is in these ranges any more.
    pub(super) fn keep(&self, lane: u64, may_land: impl Fn((u64, u64)) -> bool) {
        self.change(|writes| {
            writes.retain(|write| {
                write.lane != lane || write.flight.is_some() || may_land((write.offset, write.len))
            });
        });
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Write>)) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut writes);
        self.count.store(writes.len(), Ordering::SeqCst);
    }

    /// Whether a lane gave up anything that the target may execute yet.
    pub(super) fn has_given_up(&self, lane: u64) -> bool {
        self.first(|write| write.lane == lane && write.flight.is_none()).is_some()
    }

    /// The ranges that what any lane gave up may yet change.
    pub(super) fn given_up(&self) -> Vec<(u64, u64)> {
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let given_up = writes.iter().filter(|write| write.flight.is_none());
        given_up.map(|write| (write.offset, write.len)).collect()
    }

    /// Since when a write stands in the way of a lane's operation on this range, if one does: another lane's, or one
    /// that was given up.
    pub(super) fn hinders(&self, lane: u64, range: (u64, u64)) -> Option<Time> {
        self.first(|write| (write.lane != lane || write.flight.is_none()) && write.meets(range))
    }

    /// Since when the first of these stands in the way.
    fn first(&self, is_one: impl Fn(&Write) -> bool) -> Option<Time> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.iter().filter(|write| is_one(write)).map(|write| write.since).min()
    }
}

impl Write {
    fn meets(&self, range: (u64, u64)) -> bool {
        meet((self.offset, self.len), range)
    }

    /// Both, and what is between them.
    fn and(self, other: Write) -> Write {
        let end = |write: &Write| write.offset.saturating_add(write.len);
        let offset = self.offset.min(other.offset);
        let len = end(&self).max(end(&other)) - offset;
        Write { offset, len, since: self.since.min(other.since), ..self }
    }
}

/// Whether two ranges, each an offset and a length, have bytes in common.
pub(super) fn meet((one, one_len): (u64, u64), (other, other_len): (u64, u64)) -> bool {
    other < one.saturating_add(one_len) && one < other.saturating_add(other_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_is_in_everybody_s_way_and_only_on_the_same_blocks() {
        let loose = Loose::default();
        loose.add(1, 7, (4096, 4096), Time(5));
        assert_eq!(loose.hinders(1, (4096, 512)), None, "it waits for the same session");
        assert!(!loose.has_given_up(1) && loose.given_up().is_empty());
        loose.give_up(1, 7);
        for lane in [1, 2] {
            assert_eq!(loose.hinders(lane, (7680, 4096)), Some(Time(5)));
            assert_eq!(loose.hinders(lane, (8192, 512)), None);
            assert_eq!(loose.hinders(lane, (0, 4096)), None);
        }
        assert!(loose.has_given_up(1) && !loose.has_given_up(2));
        assert_eq!(loose.given_up(), [(4096, 4096)]);
        loose.keep(2, |_| false);
        loose.keep(1, |range| range == (4096, 4096));
        assert_eq!(loose.hinders(2, (0, u64::MAX)), Some(Time(5)));
        loose.keep(1, |_| false);
        assert_eq!(loose.hinders(2, (0, u64::MAX)), None);
    }

    #[test]
    fn what_waits_holds_its_blocks_until_it_is_over() {
        let loose = Loose::default();
        loose.add(1, 7, (0, 512), Time(5));
        loose.keep(1, |_| false);
        loose.release(1, 8);
        loose.release(2, 7);
        assert_eq!(loose.hinders(2, (0, 512)), Some(Time(5)));
        loose.release(1, 7);
        assert_eq!(loose.hinders(2, (0, 512)), None);
    }

    #[test]
    fn writes_that_are_kept_apart_are_bounded() {
        let loose = Loose::default();
        for n in 0..10 * GIVEN_UP_MAX as u64 {
            loose.add(1, 7, (n * 1024, 512), Time(n));
            loose.give_up(1, 7);
            assert_eq!(loose.hinders(2, (0, 512)), Some(Time(0)), "{n}");
            assert!(loose.hinders(2, (n * 1024 + 511, 1)).is_some());
        }
        assert!(loose.writes.lock().unwrap().len() <= GIVEN_UP_MAX);
    }
}
