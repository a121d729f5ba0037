//! What the threads of one run share.

use super::meter::Post;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Most error messages kept.
pub(super) const ERRORS_KEPT: usize = 16;

/// Times are nanoseconds since `epoch`.
pub(super) struct Shared {
    epoch: Instant,
    /// When measuring begins and ends.
    pub(super) begin: AtomicU64,
    pub(super) end: AtomicU64,
    pub(super) posts: Vec<Post>,
    jobs: usize,
    stop: Arc<AtomicBool>,
    drained: AtomicUsize,
    /// Set when all threads are ready; false: one is not, and the run is cancelled.
    start: OnceLock<bool>,
    /// Set when all threads have drained.
    readback: OnceLock<()>,
}

impl Shared {
    /// For `workers` threads, `jobs` for each target.
    pub(super) fn new(workers: usize, jobs: usize, stop: Arc<AtomicBool>) -> Shared {
        Shared {
            epoch: Instant::now(),
            begin: AtomicU64::new(0),
            end: AtomicU64::new(u64::MAX),
            posts: (0..workers).map(|_| Post::new()).collect(),
            jobs,
            stop,
            drained: AtomicUsize::new(0),
            start: OnceLock::new(),
            readback: OnceLock::new(),
        }
    }

    pub(super) fn now(&self) -> u64 {
        // A u64 holds 584 years.
        self.epoch.elapsed().as_nanos() as u64
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Lets the threads start, or not.
    pub(super) fn start(&self, go: bool) {
        let _ = self.start.set(go);
    }

    pub(super) fn wait_for_start(&self) -> bool {
        *self.start.wait()
    }

    /// A thread has nothing in flight any more.
    pub(super) fn drained(&self) {
        self.drained.fetch_add(1, Ordering::Release);
    }

    pub(super) fn drained_count(&self) -> usize {
        self.drained.load(Ordering::Acquire)
    }

    /// Lets the threads start the final pass.
    pub(super) fn start_readback(&self) {
        let _ = self.readback.set(());
    }

    pub(super) fn wait_for_readback(&self) {
        self.readback.wait();
    }

    /// Which part of its target's range a thread is responsible for, of how many.
    pub(super) fn share_of(&self, worker: usize) -> (u64, u64) {
        ((worker % self.jobs) as u64, self.jobs as u64)
    }
}
