//! Counters of commands, kept where these run: each set has one thread that writes it, without a lock or a
//! wait, and may be read by any other. A reading is not a snapshot: a command may be in one of its numbers
//! and not yet in the next.

use scsi::Direction;
use scsi::command::Status;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::SenseKey;

/// Buckets of a latency histogram: up to 1 us, 2 us, 4 us and so on to 16.8 s, and beyond.
pub const BUCKETS: usize = 26;
/// Sense keys have four bits.
const SENSE_KEYS: usize = 16;
const FAILURES: usize = SENSE_KEYS + 4;

/// The bound of a bucket in microseconds, inclusive; `None`: the last one has none.
pub fn bound_us(bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKETS).then(|| 1 << bucket)
}

/// The bucket of a command that took this long.
#[inline]
fn bucket_of(nanos: u64) -> usize {
    match nanos.div_ceil(1000) {
        0 | 1 => 0,
        micros => (u64::BITS - (micros - 1).leading_zeros()).min(BUCKETS as u32 - 1) as usize,
    }
}

/// Why a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It got CHECK CONDITION with this sense key.
    Sense(SenseKey),
    /// It got BUSY.
    Busy,
    /// It got RESERVATION CONFLICT.
    ReservationConflict,
    /// It got TASK SET FULL.
    TaskSetFull,
    /// It was aborted, or its session ended before all of its data had been sent.
    Aborted,
}

impl Failure {
    /// Every one.
    pub fn all() -> impl Iterator<Item = Failure> {
        let others = [Failure::Busy, Failure::ReservationConflict, Failure::TaskSetFull, Failure::Aborted];
        SenseKey::ALL.into_iter().map(Failure::Sense).chain(others)
    }

    /// The failure that a status stands for; with CHECK CONDITION it depends on the sense data. Aborted
    /// commands are counted when they are aborted.
    pub(crate) fn of(status: Status) -> Option<Failure> {
        match status {
            Status::Good | Status::ConditionMet | Status::CheckCondition | Status::TaskAborted => None,
            Status::Busy => Some(Failure::Busy),
            Status::ReservationConflict => Some(Failure::ReservationConflict),
            Status::TaskSetFull => Some(Failure::TaskSetFull),
        }
    }

    fn index(self) -> usize {
        match self {
            Failure::Sense(key) => usize::from(key.bits()),
            Failure::Busy => SENSE_KEYS,
            Failure::ReservationConflict => SENSE_KEYS + 1,
            Failure::TaskSetFull => SENSE_KEYS + 2,
            Failure::Aborted => SENSE_KEYS + 3,
        }
    }
}

/// A number that only one thread changes.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Neither a locked instruction nor a fence: nobody else changes it.
    #[inline(always)]
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Commands of one direction.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    bytes: Count,
    nanos: Count,
    buckets: [Count; BUCKETS],
    failed: Count,
}

impl Moving {
    /// This many commands have succeeded, which moved this much in total and took this long each.
    #[inline(always)]
    pub(crate) fn add(&self, commands: u64, bytes: u64, nanos: u64) {
        self.bytes.add(bytes);
        // The time of commands answered in the turn in which they arrived is unknown.
        if nanos == 0 {
            return self.buckets[0].add(commands);
        }
        self.nanos.add(commands * nanos);
        self.buckets[bucket_of(nanos)].add(commands);
    }

    fn read(&self) -> Moved {
        Moved {
            bytes: self.bytes.get(),
            nanos: self.nanos.get(),
            buckets: self.buckets.each_ref().map(Count::get),
            failed: self.failed.get(),
        }
    }
}

/// Commands of a session, or of a unit on one core. No two share a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Counters {
    pub(crate) read: Moving,
    pub(crate) write: Moving,
    other: Count,
    errors: [Count; FAILURES],
}

impl Counters {
    /// A command has succeeded.
    pub(crate) fn ended(&self, direction: Direction, bytes: u64, nanos: u64) {
        match direction {
            Direction::Read => self.read.add(1, bytes, nanos),
            Direction::Write => self.write.add(1, bytes, nanos),
            Direction::Other => self.other.add(1),
        }
    }

    /// A command has failed. The time that took says nothing about commands that move data.
    pub(crate) fn ended_badly(&self, direction: Direction) {
        match direction {
            Direction::Read => self.read.failed.add(1),
            Direction::Write => self.write.failed.add(1),
            Direction::Other => self.other.add(1),
        }
    }

    /// This many commands failed for this reason.
    pub(crate) fn failed(&self, failure: Failure, commands: u64) {
        self.errors[failure.index()].add(commands);
    }

    /// What was counted until now.
    pub(crate) fn read(&self) -> Counts {
        Counts {
            read: self.read.read(),
            write: self.write.read(),
            other: self.other.get(),
            errors: self.errors.each_ref().map(Count::get),
        }
    }
}

/// Commands of one direction that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Bytes moved by those that succeeded.
    pub bytes: u64,
    /// The total time that those took.
    pub nanos: u64,
    /// How many took how long: each is in one bucket.
    pub buckets: [u64; BUCKETS],
    /// How many failed; their bytes and times are not counted.
    pub failed: u64,
}

impl Moved {
    /// How many there were.
    pub fn commands(&self) -> u64 {
        self.succeeded() + self.failed
    }

    /// How many of them succeeded.
    pub fn succeeded(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn add(&mut self, other: &Moved) {
        self.bytes += other.bytes;
        self.nanos += other.nanos;
        self.failed += other.failed;
        self.buckets.iter_mut().zip(other.buckets).for_each(|(all, more)| *all += more);
    }
}

/// Commands that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Those that read the medium.
    pub read: Moved,
    /// Those that write it.
    pub write: Moved,
    /// All others.
    pub other: u64,
    errors: [u64; FAILURES],
}

impl Counts {
    /// How many failed, by reason. Aborted commands have not ended, and are counted only here.
    pub fn errors(&self) -> impl Iterator<Item = (Failure, u64)> {
        Failure::all().map(|failure| (failure, self.errors[failure.index()]))
    }

    /// How many were aborted, and so have not ended.
    pub fn aborted(&self) -> u64 {
        self.errors[Failure::Aborted.index()]
    }

    /// All of them.
    pub fn commands(&self) -> u64 {
        self.read.commands() + self.write.commands() + self.other
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.other += other.other;
        self.errors.iter_mut().zip(other.errors).for_each(|(all, more)| *all += more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let micros = [0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 1 << 24, (1 << 24) + 1, u64::MAX / 1000];
        for nanos in micros.into_iter().flat_map(|us: u64| [us * 1000, (us * 1000).saturating_sub(1)]) {
            let bucket = bucket_of(nanos);
            assert!(bound_us(bucket).is_none_or(|bound| nanos <= bound * 1000), "{nanos}");
            let below = bucket.checked_sub(1).and_then(bound_us);
            assert!(below.is_none_or(|bound| nanos > bound * 1000), "{nanos}");
        }
        assert_eq!(bound_us(BUCKETS - 2), Some(1 << 24));
        assert_eq!(bound_us(BUCKETS - 1), None);
    }

    #[test]
    fn each_reason_to_fail_has_a_count_of_its_own() {
        let mut places: Vec<usize> = Failure::all().map(Failure::index).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), Failure::all().count());
    }

    #[test]
    fn what_was_counted_is_read_and_added_up() {
        let counters = Counters::default();
        counters.read.add(3, 3 * 4096, 1500);
        counters.ended(Direction::Write, 512, 0);
        counters.ended(Direction::Other, 36, 7);
        counters.failed(Failure::Sense(SenseKey::MediumError), 1);
        counters.ended_badly(Direction::Write);
        counters.failed(Failure::Aborted, 3);
        let mut counts = counters.read();
        counts.add(&counters.read());
        assert_eq!((counts.read.bytes, counts.read.nanos, counts.read.buckets[1]), (6 * 4096, 9000, 6));
        assert_eq!((counts.write.bytes, counts.write.nanos, counts.write.buckets[0]), (1024, 0, 2));
        let errors = counts.errors().filter(|(_, count)| *count > 0);
        let medium_error = Failure::Sense(SenseKey::MediumError);
        assert_eq!(errors.collect::<Vec<_>>(), [(medium_error, 2), (Failure::Aborted, 6)]);
        assert_eq!(
            (counts.write.succeeded(), counts.write.commands()),
            (2, 4),
            "no time is known of what failed"
        );
        assert_eq!((counts.other, counts.commands()), (2, 12));
    }
}
