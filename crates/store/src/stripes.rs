//! Range locks of one store, shared by all its lanes: a fixed table of words, one per 4 KiB granule of the medium,
//! modulo the size of the table.
//!
//! A range is locked granule by granule in ascending order of table index, and what is held is kept while the
//! next one is waited for. All lanes lock in the same order, so the waits cannot form a cycle. Neighbouring
//! granules are neighbouring words: locking 64 KiB touches one cache line.

use reactor::memory::Words;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the medium under one lock: the page of the page cache, and the largest common sector.
pub(crate) const GRANULE_BYTES: u64 = 4096;

/// Locks per store; two ranges 64 MiB apart share one.
const STRIPES: u32 = 16_384;

/// The stripe is held exclusively.
const EXCLUSIVE: u32 = 1 << 31;
/// An exclusive hold is waited for: no further sharer gets in, so that readers cannot starve a writer.
const WANTED: u32 = 1 << 30;
/// The number of sharers.
const SHARERS: u32 = WANTED - 1;

/// How a range is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Together with other sharers: the medium is only read.
    Shared,
    /// Exclusively.
    Exclusive,
}

/// A range that is locked, or being locked.
#[derive(Debug)]
pub(crate) struct Hold {
    mode: Mode,
    first: u32,
    count: u32,
    taken: u32,
    waiting: bool,
}

impl Hold {
    /// A hold on the bytes `offset .. offset + len`; nothing is locked yet.
    pub(crate) fn new(mode: Mode, offset: u64, len: u64) -> Hold {
        let first = offset / GRANULE_BYTES;
        let last = offset.saturating_add(len.saturating_sub(1)) / GRANULE_BYTES;
        let count = if len == 0 { 0 } else { (last - first + 1).min(u64::from(STRIPES)) };
        Hold {
            mode,
            first: (first % u64::from(STRIPES)) as u32,
            count: count as u32,
            taken: 0,
            waiting: false,
        }
    }

    /// Whether all of it is locked.
    pub(crate) fn is_whole(&self) -> bool {
        self.taken == self.count
    }

    /// Whether nothing of it is locked, or kept from new sharers.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0 && !self.waiting
    }

    /// The `nth` stripe in ascending order; a range that wraps around starts at the table's low end.
    fn stripe(&self, nth: u32) -> usize {
        let wrapped = (self.first + self.count).saturating_sub(STRIPES);
        (if nth < wrapped { nth } else { self.first + nth - wrapped }) as usize
    }
}

/// The locks of one store.
pub(crate) struct Stripes {
    words: Words,
}

impl Stripes {
    pub(crate) fn new() -> io::Result<Stripes> {
        Ok(Stripes { words: Words::new(STRIPES)? })
    }

    /// Continues locking; true once the whole range is held. Otherwise retry later, or [`Stripes::unlock`].
    pub(crate) fn try_lock(&self, hold: &mut Hold) -> bool {
        while hold.taken < hold.count {
            let word = &self.words[hold.stripe(hold.taken)];
            let got = match hold.mode {
                Mode::Shared => share(word),
                Mode::Exclusive => try_set_exclusive(word),
            };
            hold.waiting = !got && hold.mode == Mode::Exclusive;
            if !got {
                return false;
            }
            hold.taken += 1;
        }
        true
    }

    /// Locks the range, spinning; for lanes whose holders only copy memory and never wait for the kernel.
    pub(crate) fn lock(&self, hold: &mut Hold) {
        const SPINS_BEFORE_YIELD: u32 = 128;
        let mut spins = 0;
        while !self.try_lock(hold) {
            spins += 1;
            if spins % SPINS_BEFORE_YIELD == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Releases everything held.
    pub(crate) fn unlock(&self, hold: &mut Hold) {
        if hold.waiting {
            // Another waiter may have set it too; it sets it again when it retries.
            self.words[hold.stripe(hold.taken)].fetch_and(!WANTED, Ordering::Relaxed);
            hold.waiting = false;
        }
        for nth in 0..hold.taken {
            let word = &self.words[hold.stripe(nth)];
            match hold.mode {
                Mode::Shared => {
                    word.fetch_sub(1, Ordering::Release);
                }
                Mode::Exclusive => word.store(0, Ordering::Release),
            }
        }
        hold.taken = 0;
    }
}

fn share(word: &AtomicU32) -> bool {
    word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| {
        (now & (EXCLUSIVE | WANTED) == 0).then_some(now + 1)
    })
    .is_ok()
}

fn try_set_exclusive(word: &AtomicU32) -> bool {
    let got = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| {
        (now & (EXCLUSIVE | SHARERS) == 0).then_some(EXCLUSIVE)
    });
    if got.is_err() {
        word.fetch_or(WANTED, Ordering::Relaxed);
    }
    got.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(stripes: &Stripes, mode: Mode, offset: u64, len: u64) -> Option<Hold> {
        let mut hold = Hold::new(mode, offset, len);
        if stripes.try_lock(&mut hold) {
            return Some(hold);
        }
        stripes.unlock(&mut hold);
        None
    }

    fn all_free(stripes: &Stripes) -> bool {
        stripes.words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    #[test]
    fn sharers_exclude_a_writer_and_a_writer_everyone() {
        let stripes = Stripes::new().unwrap();
        let mut one = held(&stripes, Mode::Shared, 0, 8192).unwrap();
        let mut two = held(&stripes, Mode::Shared, 4096, 1).unwrap();
        assert!(held(&stripes, Mode::Exclusive, 8191, 1).is_none());
        assert!(held(&stripes, Mode::Exclusive, 8192, 1).is_some_and(|mut hold| {
            stripes.unlock(&mut hold);
            true
        }));
        stripes.unlock(&mut one);
        stripes.unlock(&mut two);
        let mut alone = held(&stripes, Mode::Exclusive, 0, 8192).unwrap();
        assert!(held(&stripes, Mode::Shared, 5000, 1).is_none());
        assert!(held(&stripes, Mode::Exclusive, 0, 1).is_none());
        stripes.unlock(&mut alone);
        assert!(all_free(&stripes));
    }

    #[test]
    fn a_waiting_writer_keeps_new_readers_out_and_keeps_what_it_has() {
        let stripes = Stripes::new().unwrap();
        let mut reader = held(&stripes, Mode::Shared, 4096, 4096).unwrap();
        let mut writer = Hold::new(Mode::Exclusive, 0, 12_288);
        assert!(!stripes.try_lock(&mut writer));
        assert!(held(&stripes, Mode::Shared, 0, 1).is_none(), "held by the writer already");
        assert!(held(&stripes, Mode::Shared, 4096, 1).is_none(), "wanted by the writer");
        stripes.unlock(&mut reader);
        assert!(stripes.try_lock(&mut writer));
        stripes.unlock(&mut writer);
        assert!(all_free(&stripes));
    }

    #[test]
    fn ranges_at_the_edges() {
        let stripes = Stripes::new().unwrap();
        let table = u64::from(STRIPES) * GRANULE_BYTES;
        for (offset, len) in [(0, 0), (0, u64::MAX), (u64::MAX, 1), (u64::MAX - 1, u64::MAX), (table - 1, 2)]
        {
            let mut hold = held(&stripes, Mode::Exclusive, offset, len).unwrap();
            assert_eq!(hold.taken, hold.count);
            stripes.unlock(&mut hold);
        }
        let wrapping = Hold::new(Mode::Shared, table - 1, 2);
        assert_eq!((wrapping.stripe(0), wrapping.stripe(1)), (0, STRIPES as usize - 1));
        assert!(all_free(&stripes));
    }

    #[test]
    fn exclusive_holders_never_meet() {
        let stripes = Stripes::new().unwrap();
        let counters: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (stripes, counters) = (&stripes, &counters);
                scope.spawn(move || {
                    for round in 0..2000u64 {
                        let first = (thread * 7 + round * 3) % 8;
                        let count = 1 + round % (8 - first);
                        let mut hold =
                            Hold::new(Mode::Exclusive, first * GRANULE_BYTES, count * GRANULE_BYTES);
                        stripes.lock(&mut hold);
                        for counter in &counters[first as usize..(first + count) as usize] {
                            // Not an atomic increment: only the lock keeps it from losing one.
                            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        }
                        stripes.unlock(&mut hold);
                    }
                });
            }
        });
        let sum: u32 = counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        let expected: u64 = (0..4u64)
            .flat_map(|thread| (0..2000u64).map(move |round| 1 + round % (8 - (thread * 7 + round * 3) % 8)))
            .sum();
        assert_eq!(u64::from(sum), expected);
        assert!(all_free(&stripes));
    }
}
