//! Log lines that hostile peers can cause: at a limited rate, with a count of what was left out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One rate limit: so many lines per [`Limit::WINDOW`].
#[derive(Debug)]
pub struct Limit {
    burst: u64,
    start: std::sync::OnceLock<Instant>,
    window: AtomicU64,
    lines: AtomicU64,
}

impl Limit {
    /// Length of a window.
    pub const WINDOW: Duration = Duration::from_secs(1);

    /// A limit of `burst` lines in one window.
    pub const fn new(burst: u64) -> Self {
        Limit {
            burst,
            start: std::sync::OnceLock::new(),
            window: AtomicU64::new(0),
            lines: AtomicU64::new(0),
        }
    }

    /// Whether one more line may pass now; with it, how many were left out before.
    pub fn pass(&self) -> Option<u64> {
        let start = *self.start.get_or_init(Instant::now);
        self.pass_in(start.elapsed().as_secs() / Self::WINDOW.as_secs() + 1)
    }

    fn pass_in(&self, window: u64) -> Option<u64> {
        if self.window.swap(window, Ordering::Relaxed) != window {
            let left_out = self.lines.swap(1, Ordering::Relaxed).saturating_sub(self.burst);
            return Some(left_out);
        }
        (self.lines.fetch_add(1, Ordering::Relaxed) < self.burst).then_some(0)
    }
}

/// `limited!(level, format...)`: a log line that passes at most ten times a second from this place, or as often as
/// `limited!(50 per second, level, format...)` says.
#[macro_export]
macro_rules! limited {
    ($burst:literal per second, $level:expr, $($message:tt)+) => {{
        static LIMIT: $crate::limited::Limit = $crate::limited::Limit::new($burst);
        match LIMIT.pass() {
            Some(0) => tracing::event!($level, $($message)+),
            Some(left_out) => {
                tracing::event!($level, left_out, $($message)+);
            }
            None => {}
        }
    }};
    ($level:expr, $($message:tt)+) => {
        $crate::limited!(10 per second, $level, $($message)+)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let limit = Limit::new(10);
        let passed = (0..25).filter(|_| limit.pass_in(1).is_some()).count();
        assert_eq!(passed, 10);
        assert_eq!(limit.pass_in(2), Some(15));
        assert_eq!(limit.pass_in(2), Some(0));
    }
}
