//! How fast this machine is.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

/// Processor time that [`sample`] takes on the machine of the table in CONTRIBUTING.md, in milliseconds.
const REFERENCE: u64 = 1500;

/// The size of the table, as a power of two: 64 MiB, more than caches have, as compilers use memory.
const WORDS: u32 = 23;
const STEPS: u64 = 10_000_000;

/// How much slower this machine is at the moment than the one on which the limit holds; at least 1.
pub(super) fn slowness() -> f64 {
    let fastest = (0..3).map(|_| sample()).min().unwrap_or_default();
    println!("speed: {fastest} ms of processor time, where {REFERENCE} are the reference");
    (fastest as f64 / REFERENCE as f64).max(1.0)
}

/// The processor time of a fixed piece of work, in milliseconds: arithmetic, and memory accesses of which each
/// waits for the one before.
fn sample() -> u64 {
    let mut table = vec![0_u64; 1 << WORDS];
    let before = worked();
    let mut mixed = 1_u64;
    for step in 0..STEPS {
        mixed = (mixed ^ step).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let slot = &mut table[(mixed >> (64 - WORDS)) as usize];
        mixed ^= *slot;
        *slot = mixed;
    }
    black_box(table);
    worked() - before
}

/// The processor time of this thread, in milliseconds.
fn worked() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
