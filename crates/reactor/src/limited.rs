//! Rate-limited log lines, for those that peers can cause: a burst at once and one per second in the long
//! run, followed by a count of those suppressed. So a peer that keeps causing them does not fill the disk.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::time::{Duration, Instant};

/// One rate limit: a burst of lines at once, and one more for each [`Limit::WINDOW`]. It lives as long as the
/// process.
#[derive(Debug)]
pub struct Limit {
    burst: u64,
    report: fn(u64),
    known: Once,
    /// The window in which a line last passed or was suppressed.
    window: AtomicU64,
    /// The window up to which lines that passed have used up the rate.
    used_up_to: AtomicU64,
    suppressed: AtomicU64,
}

/// Limits that have been used, one for each place of [`limited!`](crate::limited!).
static LIMITS: Mutex<Vec<&Limit>> = Mutex::new(Vec::new());
/// Whether a limit has suppressed lines that were not reported yet.
static IS_OWED: AtomicBool = AtomicBool::new(false);

impl Limit {
    /// Length of a window.
    pub const WINDOW: Duration = Duration::from_secs(1);

    /// A limit of `burst` lines at once; `report` gets the number suppressed in a window that has ended.
    pub const fn new(burst: u64, report: fn(u64)) -> Self {
        let (window, used_up_to, suppressed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Limit { burst, report, known: Once::new(), window, used_up_to, suppressed }
    }

    /// Whether one more line may be logged now.
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
        let used = self.used_up_to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let used = used.max(window).saturating_add(1);
            (used.saturating_sub(window) <= self.burst).then_some(used)
        });
        if used.is_err() {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        used.is_ok()
    }

    /// Reports what the last window suppressed, if a new one has begun. Returns whether this one has nothing
    /// to report yet.
    fn turn(&self, window: u64) -> bool {
        if self.window.swap(window, Ordering::Relaxed) != window {
            let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
            if suppressed > 0 {
                (self.report)(suppressed);
            }
        }
        self.suppressed.load(Ordering::Relaxed) == 0
    }
}

/// Whether lines were suppressed that [`report`] has not reported yet.
pub fn is_owed() -> bool {
    IS_OWED.load(Ordering::Relaxed)
}

/// Reports what was suppressed in windows that have ended.
pub fn report() {
    if IS_OWED.swap(false, Ordering::Relaxed) {
        let window = window();
        // Each of them, whatever the first returns.
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

/// `limited!(what, level, format...)`: a log line that may pass ten times at once from this place, or as
/// often as `limited!(what, 200 at once, level, format...)` says, and then once a second. `what` describes
/// the suppressed lines in the report.
#[macro_export]
macro_rules! limited {
    ($what:literal, $burst:literal at once, $level:expr, $($message:tt)+) => {{
        static LIMIT: $crate::limited::Limit = $crate::limited::Limit::new($burst, |suppressed| {
            tracing::event!($level, suppressed, "log lines were suppressed: {}", $what);
        });
        // A line that no subscriber accepts is not counted.
        if tracing::enabled!($level) && LIMIT.passes() {
            tracing::event!($level, $($message)+);
        }
    }};
    ($what:literal, $level:expr, $($message:tt)+) => {
        $crate::limited!($what, 10 at once, $level, $($message)+)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static REPORTED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    fn reported() -> Vec<u64> {
        REPORTED.take()
    }

    fn limit() -> Limit {
        Limit::new(10, |suppressed| REPORTED.with_borrow_mut(|counts| counts.push(suppressed)))
    }

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let limit = limit();
        assert_eq!((0..25).filter(|_| limit.passes_in(7)).count(), 10);
        assert_eq!(reported(), []);
        assert!(limit.passes_in(8) && !limit.passes_in(8));
        assert_eq!(reported(), [15]);
    }

    #[test]
    fn in_the_long_run_one_line_passes_in_a_window() {
        let limit = limit();
        let passed = (1..=1000).map(|window| (0..100).filter(|_| limit.passes_in(window)).count());
        assert_eq!(passed.sum::<usize>(), 10 + 999);
        // After a pause it is as in the beginning.
        assert_eq!((0..25).filter(|_| limit.passes_in(1009)).count(), 9);
        assert_eq!((0..25).filter(|_| limit.passes_in(2000)).count(), 10);
        assert_eq!(reported().iter().sum::<u64>(), 1000 * 100 - 1009 + 16);
    }

    #[test]
    fn what_was_left_out_is_reported_though_nothing_follows() {
        let limit = limit();
        assert_eq!((0..12).filter(|_| limit.passes_in(1)).count(), 10);
        assert!(!limit.turn(1), "its window is not over");
        assert!(limit.turn(2));
        assert_eq!(reported(), [2]);
        assert!(limit.turn(3));
        assert_eq!(reported(), []);
    }
}
