//! Counts and latencies: each job thread gathers its own, and hands them to the main thread about ten times
//! per second by swapping, so that a job thread never waits and records each operation only once.

use crate::result::{Latency, Stream};
use hdrhistogram::Histogram;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longer latencies count as this one, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// Significant decimal digits of latencies.
const DIGITS: u8 = 3;

/// Direction of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
    Trim,
}

impl Direction {
    pub(crate) const ALL: [Direction; 3] = [Direction::Read, Direction::Write, Direction::Trim];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
            Direction::Trim => "trim",
        }
    }
}

/// A value for each direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerDirection<T>([T; 3]);

impl<T> PerDirection<T> {
    pub(crate) fn new(make: impl FnMut(Direction) -> T) -> PerDirection<T> {
        PerDirection(Direction::ALL.map(make))
    }

    pub(crate) fn of(&self, direction: Direction) -> &T {
        &self.0[direction as usize]
    }

    pub(crate) fn of_mut(&mut self, direction: Direction) -> &mut T {
        &mut self.0[direction as usize]
    }
}

/// Operations of each direction and their latencies, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Tally(PerDirection<Histogram<u64>>);

impl Tally {
    pub(crate) fn new() -> Tally {
        let empty = |_| Histogram::new_with_max(LATENCY_MAX, DIGITS).expect("the bounds are constants");
        Tally(PerDirection::new(empty))
    }

    /// Records this many operations that took the same time.
    pub(crate) fn record(&mut self, direction: Direction, nanoseconds: u64, count: u64) {
        self.0.of_mut(direction).saturating_record_n(nanoseconds, count);
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        for direction in Direction::ALL {
            let from = other.0.of(direction);
            if !from.is_empty() {
                self.0.of_mut(direction).add(from).expect("the bounds are the same");
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        for direction in Direction::ALL {
            let histogram = self.0.of_mut(direction);
            if !histogram.is_empty() {
                histogram.clear();
            }
        }
    }

    pub(crate) fn operations(&self) -> u64 {
        self.0.0.iter().map(Histogram::len).sum()
    }

    /// Percentiles over all directions, in microseconds.
    pub(crate) fn percentiles<const N: usize>(&self, percentiles: [f64; N]) -> [f64; N] {
        let mut all = Histogram::<u64>::new_with_max(LATENCY_MAX, DIGITS).expect("the bounds are constants");
        for histogram in self.0.0.iter().filter(|histogram| !histogram.is_empty()) {
            all.add(histogram).expect("the bounds are the same");
        }
        percentiles.map(|percentile| at(&all, percentile))
    }

    /// The results of one direction over `seconds`; `None`: no operations.
    pub(crate) fn stream(&self, direction: Direction, bs: u32, seconds: f64, errors: u64) -> Option<Stream> {
        let histogram = self.0.of(direction);
        let operations = histogram.len();
        if operations == 0 && errors == 0 {
            return None;
        }
        let bytes = operations * u64::from(bs);
        Some(Stream {
            operations,
            bytes,
            iops: operations as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency: latency(histogram),
            errors,
        })
    }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    if histogram.is_empty() {
        return Latency::default();
    }
    let curve = (0..100).map(f64::from).chain([99.5, 99.9, 99.95, 99.99, 100.0]);
    Latency {
        min: micro(histogram.min()),
        mean: histogram.mean() / 1000.0,
        stddev: histogram.stdev() / 1000.0,
        p50: at(histogram, 50.0),
        p90: at(histogram, 90.0),
        p99: at(histogram, 99.0),
        p999: at(histogram, 99.9),
        max: micro(histogram.max()),
        curve: curve.map(|percentile| (percentile, at(histogram, percentile))).collect(),
    }
}

fn at(histogram: &Histogram<u64>, percentile: f64) -> f64 {
    micro(histogram.value_at_percentile(percentile).min(histogram.max()))
}

fn micro(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

/// What one job thread did in an interval, in nanoseconds of the run's clock.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Whether it is in the measured time, not in the ramp.
    pub(crate) measured: bool,
    pub(crate) tally: Tally,
}

impl Interval {
    pub(crate) fn new() -> Interval {
        Interval { from: 0, to: 0, measured: false, tally: Tally::new() }
    }
}

/// Where one job thread leaves its intervals for the main thread.
pub(crate) struct Post {
    /// Incremented whenever the main thread wants an interval.
    wanted: AtomicU64,
    slot: Mutex<Slot>,
}

struct Slot {
    /// Otherwise the interval is empty, ready to be swapped in.
    is_full: bool,
    interval: Interval,
}

impl Post {
    pub(crate) fn new() -> Post {
        let slot = Slot { is_full: false, interval: Interval::new() };
        Post { wanted: AtomicU64::new(0), slot: Mutex::new(slot) }
    }

    /// Requests the thread's interval.
    pub(crate) fn ask(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes what the thread left, if anything, to make room for the next.
    pub(crate) fn collect(&self, look: impl FnOnce(&Interval)) {
        let mut slot = self.slot.lock().expect("nobody panics with it");
        if slot.is_full {
            look(&slot.interval);
            slot.interval.tally.clear();
            slot.is_full = false;
        }
    }

    /// On the thread's side: leaves `interval` if one was requested since `seen`, and takes an empty one for
    /// it.
    pub(crate) fn leave(&self, seen: &mut u64, interval: &mut Interval) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == *seen {
            return false;
        }
        let Ok(mut slot) = self.slot.try_lock() else { return false };
        if slot.is_full {
            return false;
        }
        *seen = wanted;
        std::mem::swap(&mut slot.interval, interval);
        slot.is_full = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut tally = Tally::new();
        (1..=1000).for_each(|n| tally.record(Direction::Read, n * 1000, 1));
        let read = tally.stream(Direction::Read, 512, 2.0, 0).unwrap();
        assert_eq!((read.operations, read.bytes, read.iops), (1000, 512_000, 500.0));
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() <= wanted / 500.0, "{found}");
        let latency = &read.latency;
        near(latency.min, 1.0);
        near(latency.mean, 500.5);
        near(latency.p50, 500.0);
        near(latency.p90, 900.0);
        near(latency.p99, 990.0);
        near(latency.p999, 999.0);
        near(latency.max, 1000.0);
        assert_eq!(latency.curve.len(), 105);
        assert!(latency.curve.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        assert!(tally.stream(Direction::Write, 512, 2.0, 0).is_none());
        assert_eq!(tally.stream(Direction::Trim, 512, 2.0, 3).unwrap().errors, 3);
    }

    #[test]
    fn nothing_is_lost_between_the_thread_and_its_reader() {
        let post = Post::new();
        let (mut interval, mut seen, mut total) = (Interval::new(), 0, Tally::new());
        let record = |interval: &mut Interval| interval.tally.record(Direction::Write, 5, 1);
        record(&mut interval);
        assert!(!post.leave(&mut seen, &mut interval), "nobody asked");
        post.ask();
        assert!(post.leave(&mut seen, &mut interval));
        record(&mut interval);
        post.ask();
        assert!(!post.leave(&mut seen, &mut interval), "the first was not collected yet");
        record(&mut interval);
        post.collect(|interval| total.add(&interval.tally));
        assert!(post.leave(&mut seen, &mut interval));
        post.collect(|interval| total.add(&interval.tally));
        post.collect(|_| panic!("there is nothing more"));
        assert_eq!((total.operations(), interval.tally.operations()), (3, 0));
    }
}
