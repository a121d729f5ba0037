//! Log lines that peers can cause: at a limited rate, with a count of what was left out soon afterwards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::time::{Duration, Instant};

/// One rate limit: so many lines per [`Limit::WINDOW`]. It lives as long as the process.
#[derive(Debug)]
pub struct Limit {
    burst: u64,
    tell: fn(u64),
    known: Once,
    window: AtomicU64,
    lines: AtomicU64,
}

/// Limits that have been asked, one for each place of [`limited!`](crate::limited!).
static LIMITS: Mutex<Vec<&Limit>> = Mutex::new(Vec::new());
/// Whether a limit has left out lines that were not told yet.
static IS_OWED: AtomicBool = AtomicBool::new(false);

impl Limit {
    /// Length of a window.
    pub const WINDOW: Duration = Duration::from_secs(1);

    /// A limit of `burst` lines in one window; `tell` says how many were left out in one that is over.
    pub const fn new(burst: u64, tell: fn(u64)) -> Self {
        Limit { burst, tell, known: Once::new(), window: AtomicU64::new(0), lines: AtomicU64::new(0) }
    }

    /// Whether one more line may pass now.
    pub fn passes(&'static self) -> bool {
        self.known.call_once(|| limits().push(self));
        let passes = self.passes_in(window());
        if !passes {
            IS_OWED.store(true, Ordering::Relaxed);
        }
        passes
    }

    fn passes_in(&self, window: u64) -> bool {
        self.turn(window);
        self.lines.fetch_add(1, Ordering::Relaxed) < self.burst
    }

    /// Tells what the last window left out, if this is another one. Whether this one owes nothing yet.
    fn turn(&self, window: u64) -> bool {
        if self.window.swap(window, Ordering::Relaxed) != window {
            let left_out = self.lines.swap(0, Ordering::Relaxed).saturating_sub(self.burst);
            if left_out > 0 {
                (self.tell)(left_out);
            }
        }
        self.lines.load(Ordering::Relaxed) <= self.burst
    }
}

/// Whether lines were left out that [`tell`] has not told yet.
pub fn is_owed() -> bool {
    IS_OWED.load(Ordering::Relaxed)
}

/// Tells what was left out in windows that are over.
pub fn tell() {
    if IS_OWED.swap(false, Ordering::Relaxed) {
        let window = window();
        // Each of them, whatever the first says.
        let owed = limits().iter().filter(|limit| !limit.turn(window)).count();
        if owed > 0 {
            IS_OWED.store(true, Ordering::Relaxed);
        }
    }
}

fn limits() -> std::sync::MutexGuard<'static, Vec<&'static Limit>> {
    LIMITS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The number of the current window.
fn window() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs() / Limit::WINDOW.as_secs() + 1
}

/// `limited!(what, level, format...)`: a log line that passes at most ten times a second from this place, or as often as
/// `limited!(what, 50 per second, level, format...)` says. `what` names such lines when some were left out.
#[macro_export]
macro_rules! limited {
    ($what:literal, $burst:literal per second, $level:expr, $($message:tt)+) => {{
        static LIMIT: $crate::limited::Limit = $crate::limited::Limit::new($burst, |left_out| {
            tracing::event!($level, left_out, "log lines were left out: {}", $what);
        });
        if LIMIT.passes() {
            tracing::event!($level, $($message)+);
        }
    }};
    ($what:literal, $level:expr, $($message:tt)+) => {
        $crate::limited!($what, 10 per second, $level, $($message)+)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static TOLD: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    fn told() -> Vec<u64> {
        TOLD.take()
    }

    fn limit() -> Limit {
        Limit::new(10, |left_out| TOLD.with_borrow_mut(|told| told.push(left_out)))
    }

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let limit = limit();
        assert_eq!((0..25).filter(|_| limit.passes_in(1)).count(), 10);
        assert_eq!(told(), []);
        assert!(limit.passes_in(2) && limit.passes_in(2));
        assert_eq!(told(), [15]);
    }

    #[test]
    fn what_was_left_out_is_told_though_nothing_follows() {
        let limit = limit();
        assert_eq!((0..12).filter(|_| limit.passes_in(1)).count(), 10);
        assert!(!limit.turn(1), "its window is not over");
        assert!(limit.turn(2));
        assert_eq!(told(), [2]);
        assert!(limit.turn(3));
        assert_eq!(told(), []);
    }
}
