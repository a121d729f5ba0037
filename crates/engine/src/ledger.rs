//! Changes of one unit that are in progress or have ended, by the blocks that they change; shared by all
//! cores. An initiator that gets no answer retransmits (Linux's driver with another tag and from another of
//! its addresses), and continues when one of the two is answered. The other must not reach the medium after
//! what the initiator sends next. A change that is late by the kernel's time stamps ([`reactor::packet`]) is
//! [`Held::Late`], whoever sent it and wherever it waited; one that arrives while its blocks are being
//! changed waits ([`Held::Busy`]).
//!
//! A claim is visible before its core checks for others, so of two that overlap at least one sees the other.
//! Everything is done by atomics, sequentially consistent where that matters, and nothing waits for a core
//! that is stalled.

use proto::time::Stamp;
use std::array::from_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Blocks whose changes are found in the same bucket: 4 KiB.
const PIECE: u64 = 8;
/// The most pieces that the sectors of one frame span.
const PIECES_MAX: usize = 4;
/// The longest range of sectors that spans no more; the longest frame has 17.
const BLOCKS_MAX: u64 = (PIECES_MAX as u64 - 1) * PIECE + 1;
/// The number of buckets, as a power of two.
const BUCKETS_LOG2: u32 = 9;
/// Changes known in each.
const WAYS: usize = 7;

/// The changes of one unit.
pub(crate) struct Ledger(Box<[Bucket]>);

/// Two cache lines.
#[repr(align(128))]
struct Bucket {
    /// When the newest of the changes arrived that others have displaced.
    forgotten: AtomicU64,
    changes: [Entry; WAYS],
}

struct Entry {
    /// A [`What`].
    what: AtomicU64,
    /// When the request arrived; only its own core writes this, before the change ends.
    received_at: AtomicU64,
}

/// A range of blocks and the phase of their change, which are updated together. Zero is none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct What(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Free,
    /// Its core is checking whether it may begin.
    Tried,
    Begun,
    /// In progress, with others waiting for its end.
    Awaited,
    Ended,
}

const PHASES: [Phase; 5] = [Phase::Free, Phase::Tried, Phase::Begun, Phase::Awaited, Phase::Ended];

impl What {
    const PHASE_BITS: u32 = 3;
    const LEN_BITS: u32 = 6;

    fn new(blocks: &Range<u64>, phase: Phase) -> What {
        let len = blocks.end - blocks.start;
        assert!(len <= BLOCKS_MAX, "a frame has few sectors");
        What((blocks.start << Self::LEN_BITS | len) << Self::PHASE_BITS).with(phase)
    }

    fn with(self, phase: Phase) -> What {
        What(self.0 >> Self::PHASE_BITS << Self::PHASE_BITS | phase as u64)
    }

    fn phase(self) -> Phase {
        PHASES[(self.0 & ((1 << Self::PHASE_BITS) - 1)) as usize]
    }

    fn overlaps(self, blocks: &Range<u64>) -> bool {
        let start = self.0 >> (Self::LEN_BITS + Self::PHASE_BITS);
        let len = self.0 >> Self::PHASE_BITS & ((1 << Self::LEN_BITS) - 1);
        start < blocks.end && blocks.start < start + len
    }
}

impl Entry {
    fn what(&self) -> What {
        What(self.what.load(SeqCst))
    }

    fn set(&self, what: What) {
        self.what.store(what.0, SeqCst);
    }

    /// Replaces `this` by `that`. Returns whether it was `this`.
    fn replace(&self, this: What, that: What) -> bool {
        self.what.compare_exchange(this.0, that.0, SeqCst, SeqCst).is_ok()
    }
}

/// The right to change some blocks, until [`Ledger::end`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    received_at: Stamp,
    /// Buckets and ways in them.
    entries: [(u16, u8); PIECES_MAX],
    count: u8,
}

impl Claim {
    fn entries(&self) -> impl Iterator<Item = (usize, usize)> {
        self.entries[..usize::from(self.count)].iter().map(|(bucket, way)| ((*bucket).into(), (*way).into()))
    }
}

/// Why a claim was not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// Another change of its blocks is in progress, until its [`Ledger::end`].
    Busy,
    /// A newer one has ended.
    Late,
    /// No entry is free for it, or others are claiming the same at this moment.
    Crowded,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        let entry = |_| Entry { what: AtomicU64::new(0), received_at: AtomicU64::new(0) };
        let bucket = |_| Bucket { forgotten: AtomicU64::new(0), changes: from_fn(entry) };
        Ledger((0..1 << BUCKETS_LOG2).map(bucket).collect())
    }

    /// Begins a change of these blocks that arrived at `received_at`, if nothing prevents it.
    pub(crate) fn begin(
        &self,
        blocks: &Range<u64>,
        received_at: Stamp,
        now: impl Fn() -> Stamp,
    ) -> Result<Claim, Held> {
        let mut claim = Claim { received_at, entries: [(0, 0); PIECES_MAX], count: 0 };
        let tried = self.enter(blocks, &mut claim).and_then(|()| self.check_overlaps(blocks, &claim, &now));
        let what = match tried {
            Ok(()) => What::new(blocks, Phase::Begun),
            Err(_) => What(0),
        };
        claim.entries().for_each(|(bucket, way)| self.0[bucket].changes[way].set(what));
        tried.map(|()| claim)
    }

    /// The change has ended, successfully or not. Returns whether others wait for that.
    pub(crate) fn end(&self, claim: &Claim) -> bool {
        let mut is_awaited = false;
        for (bucket, way) in claim.entries() {
            let entry = &self.0[bucket].changes[way];
            entry.received_at.store(claim.received_at.0, SeqCst);
            let mut what = entry.what();
            while !entry.replace(what, what.with(Phase::Ended)) {
                what = entry.what();
            }
            is_awaited |= what.phase() == Phase::Awaited;
        }
        is_awaited
    }

    fn enter(&self, blocks: &Range<u64>, claim: &mut Claim) -> Result<(), Held> {
        for piece in blocks.start / PIECE..blocks.end.div_ceil(PIECE) {
            let mixed = piece.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BUCKETS_LOG2);
            let way = self.0[mixed as usize].take(blocks).ok_or(Held::Crowded)?;
            claim.entries[usize::from(claim.count)] = (mixed as u16, way as u8);
            claim.count += 1;
        }
        Ok(())
    }

    fn check_overlaps(
        &self,
        blocks: &Range<u64>,
        claim: &Claim,
        now: &impl Fn() -> Stamp,
    ) -> Result<(), Held> {
        for (at, _) in claim.entries() {
            let bucket = &self.0[at];
            for (way, entry) in bucket.changes.iter().enumerate() {
                if !claim.entries().any(|own| own == (at, way)) {
                    entry.check(blocks, claim.received_at, now)?;
                }
            }
            // After the entries: a change whose entry was displaced meanwhile is known by this.
            in_time(claim.received_at, &bucket.forgotten, now)?;
        }
        Ok(())
    }
}

impl Bucket {
    /// An entry for a change that is being tried, displacing the oldest if need be.
    fn take(&self, blocks: &Range<u64>) -> Option<usize> {
        loop {
            let age = |what: What, entry: &Entry| match what.phase() {
                Phase::Free => Some(0),
                Phase::Ended => Some(entry.received_at.load(SeqCst)),
                Phase::Tried | Phase::Begun | Phase::Awaited => None,
            };
            let places = self.changes.iter().enumerate();
            let places = places.map(|(way, entry)| (way, entry, entry.what()));
            let free = places.filter_map(|(way, entry, what)| Some((age(what, entry)?, way, entry, what)));
            let (_, way, entry, what) = free.min_by_key(|(age, ..)| *age)?;
            // The entry stays until what is displaced here has been recorded.
            if entry.replace(what, what.with(Phase::Tried)) {
                if what.phase() == Phase::Ended {
                    self.forgotten.fetch_max(entry.received_at.load(SeqCst), SeqCst);
                }
                entry.set(What::new(blocks, Phase::Tried));
                return Some(way);
            }
        }
    }
}

impl Entry {
    /// Whether this entry prevents a change of these blocks that arrived then.
    fn check(&self, blocks: &Range<u64>, received_at: Stamp, now: &impl Fn() -> Stamp) -> Result<(), Held> {
        loop {
            let what = self.what();
            if !what.overlaps(blocks) {
                return Ok(());
            }
            match what.phase() {
                Phase::Free => return Ok(()),
                Phase::Tried => return Err(Held::Crowded),
                Phase::Awaited => return Err(Held::Busy),
                Phase::Begun if self.replace(what, what.with(Phase::Awaited)) => return Err(Held::Busy),
                Phase::Ended => return in_time(received_at, &self.received_at, now),
                // It has ended at this moment.
                Phase::Begun => {}
            }
        }
    }
}

/// Checks that what arrived then is not older than `newest`. A stamp newer than now is from before the clock
/// was set back, and says nothing.
fn in_time(received_at: Stamp, newest: &AtomicU64, now: &impl Fn() -> Stamp) -> Result<(), Held> {
    let newest = Stamp(newest.load(SeqCst));
    if newest <= received_at || newest > now() { Ok(()) } else { Err(Held::Late) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// The clock was not set back.
    fn latest() -> Stamp {
        Stamp(u64::MAX)
    }

    fn begin(ledger: &Ledger, blocks: Range<u64>, received_at: u64) -> Result<Claim, Held> {
        ledger.begin(&blocks, Stamp(received_at), latest)
    }

    /// Changes blocks. Returns whether others wait.
    fn change(ledger: &Ledger, blocks: Range<u64>, received_at: u64) -> bool {
        let claim = begin(ledger, blocks, received_at).expect("nothing is in its way");
        ledger.end(&claim)
    }

    #[test]
    fn what_came_before_a_change_that_has_ended_is_late() {
        let ledger = Ledger::new();
        assert!(!change(&ledger, 20..37, 5));
        for blocks in [20..21, 36..37, 0..21, 36..50, 25..26, 20..37] {
            assert_eq!(begin(&ledger, blocks, 4).err(), Some(Held::Late));
        }
        for beside in [12..20, 37..38] {
            assert!(!change(&ledger, beside, 4));
        }
        assert!(!change(&ledger, 30..31, 5), "what came at the same time is not");
        assert!(!change(&ledger, 20..37, 6));
        assert_eq!(begin(&ledger, 20..21, 5).err(), Some(Held::Late));
    }

    #[test]
    fn changes_of_the_same_blocks_wait_for_one_another() {
        let ledger = Ledger::new();
        let first = begin(&ledger, 7..24, 1).expect("nothing is in its way");
        for received_at in [0, 1, 2] {
            assert_eq!(begin(&ledger, 23..25, received_at).err(), Some(Held::Busy));
        }
        assert!(!change(&ledger, 24..25, 0));
        assert!(ledger.end(&first), "somebody waits");
        assert!(!change(&ledger, 23..25, 2));
    }

    #[test]
    fn a_write_behind_a_forgotten_change_is_late_at_worst() {
        let ledger = Ledger::new();
        assert!(!change(&ledger, 8..16, 7));
        for n in 0..100_000u64 {
            let block = n * 977 % 50_000_000;
            assert!(!change(&ledger, block..block + 1, 10 + n));
        }
        assert_eq!(begin(&ledger, 8..9, 6).err(), Some(Held::Late));
    }

    #[test]
    fn without_room_nothing_begins_and_what_ends_makes_room() {
        let ledger = Ledger::new();
        let begun: Vec<Claim> = (0..7).map(|n| begin(&ledger, n..n + 1, 1).expect("there is room")).collect();
        assert_eq!(begin(&ledger, 7..9, 2).err(), Some(Held::Crowded));
        assert!(!ledger.end(&begun[3]));
        let claim = begin(&ledger, 7..9, 2).expect("there is room again");
        assert!(!ledger.end(&claim));
    }

    #[test]
    fn a_clock_that_is_set_back_stops_nobody() {
        let ledger = Ledger::new();
        assert!(!change(&ledger, 0..8, 1000));
        let claim = ledger.begin(&(0..8), Stamp(10), || Stamp(11)).expect("there was no such time yet");
        assert!(!ledger.end(&claim));
    }

    /// Cores that change a few blocks as fast as they can, each change stamped when its core checks the time.
    #[test]
    fn no_two_cores_change_a_block_at_once_and_the_newest_stays() {
        const BLOCKS: u64 = 40;
        let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now").as_nanos()
            as u64;
        println!("seed {seed}");
        let (ledger, clock) = (Ledger::new(), AtomicU64::new(1));
        let medium: Vec<(AtomicBool, AtomicU64)> = (0..BLOCKS).map(|_| Default::default()).collect();
        let core = |seed: u64| {
            let mut state = seed;
            let mut random = |end: u64| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 33) % end
            };
            let mut done = 0;
            for _ in 0..50_000 {
                let start = random(BLOCKS);
                let blocks = start..(start + 1 + random(17)).min(BLOCKS);
                let received_at = clock.fetch_add(1, SeqCst);
                if random(256) == 0 {
                    std::thread::yield_now();
                }
                let Ok(claim) = begin(&ledger, blocks.clone(), received_at) else { continue };
                let cells = &medium[blocks.start as usize..blocks.end as usize];
                for (is_changed, newest) in cells {
                    assert!(!is_changed.swap(true, SeqCst), "{blocks:?}");
                    assert!(newest.swap(received_at, SeqCst) < received_at, "{blocks:?}");
                }
                cells.iter().for_each(|(is_changed, _)| is_changed.store(false, SeqCst));
                ledger.end(&claim);
                done += 1;
            }
            done
        };
        let done: u64 = std::thread::scope(|scope| {
            let cores: Vec<_> = (0..4).map(|n| scope.spawn(move || core(seed.wrapping_add(n)))).collect();
            cores.into_iter().map(|core| core.join().expect("it does not panic")).sum()
        });
        assert!(done > 1000, "{done}");
    }
}
