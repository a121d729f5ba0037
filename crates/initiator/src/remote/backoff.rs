//! When to request a missing proof again: with exponentially growing delays.

use proto::time::Time;
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(2);
const LAST: Duration = Duration::from_secs(256);

/// Until the proof arrives.
pub(super) struct Backoff {
    due: Time,
    rest: Duration,
}

impl Backoff {
    pub(super) fn new(now: Time) -> Backoff {
        Backoff { due: now.after(FIRST), rest: FIRST }
    }

    /// Whether to request it now; if so, the next time is further away.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        if now < self.due {
            return false;
        }
        self.rest = (self.rest * 2).min(LAST);
        self.due = now.after(self.rest);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_back_off_exponentially() {
        let mut backoff = Backoff::new(Time(0));
        let due = (0..3000u64).filter(|n| backoff.is_due(Time(0).after(Duration::from_secs(*n))));
        assert_eq!(
            due.collect::<Vec<_>>(),
            [2, 6, 14, 30, 62, 126, 254, 510, 766, 1022, 1278, 1534, 1790, 2046, 2302, 2558, 2814]
        );
    }
}
