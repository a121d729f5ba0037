//! How fast to send: the retransmission timer (RFC 6298, with limits for one Ethernet segment), and the window.

use crate::time::Time;
use std::time::Duration;

/// The timer before anything was measured, and its limits.
const TIMEOUT_FIRST: Duration = Duration::from_millis(100);
const TIMEOUT_MIN: Duration = Duration::from_millis(5);
pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(1);
/// The shortest timeout for what may take the device long: all of a cache may have to go to the medium.
pub(super) const LONG_TIMEOUT: Duration = Duration::from_millis(200);

/// What is known of the path to the target and back.
#[derive(Debug)]
pub(super) struct Pace {
    /// SRTT and RTTVAR, once measured.
    measured: Option<(Duration, Duration)>,
    timeout: Duration,
    /// Frames that may be unanswered, at least one and at most `limit`.
    window: u16,
    limit: u16,
    /// Answers since the window last changed.
    answers: u16,
    /// When an answer last arrived, and when the newest answered request was sent.
    heard_at: Time,
    newest: Time,
    /// When the window was last reduced: earlier requests were sent with the larger one.
    cut_at: Time,
}

impl Pace {
    /// One frame at a time, until more is known.
    pub(super) fn new() -> Pace {
        Pace {
            measured: None,
            timeout: TIMEOUT_FIRST,
            window: 1,
            limit: 1,
            answers: 0,
            heard_at: Time::default(),
            newest: Time::default(),
            cut_at: Time::default(),
        }
    }

    /// The target can queue this many requests.
    pub(super) fn limit(&mut self, limit: u16) {
        let limit = limit.max(1);
        let was_full = self.window == self.limit;
        self.window = if was_full { limit } else { self.window.min(limit) };
        self.limit = limit;
    }

    /// Frames that may be unanswered.
    pub(super) fn window(&self) -> u16 {
        self.window
    }

    /// The timeout of a request that was retransmitted this many times.
    pub(super) fn timeout(&self, retries: u8) -> Duration {
        self.timeout.saturating_mul(1 << retries.min(16)).min(TIMEOUT_MAX)
    }

    /// The answer to a request that was sent once took this long (RFC 6298 section 2).
    pub(super) fn measured(&mut self, took: Duration) {
        let (smoothed, variation) = match self.measured {
            None => (took, divided(took, 2)),
            Some((smoothed, variation)) => {
                let off = smoothed.abs_diff(took);
                let smoothed = divided(smoothed.saturating_mul(7).saturating_add(took), 8);
                (smoothed, divided(variation.saturating_mul(3).saturating_add(off), 4))
            }
        };
        self.measured = Some((smoothed, variation));
        let timeout = smoothed.saturating_add(variation.saturating_mul(4));
        self.timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
    }

    /// The answer came to a retransmitted request, and says nothing about how long it took; its timeout stays
    /// in use until something else is measured (RFC 6298 section 5.7).
    pub(super) fn ambiguous(&mut self, waited_for: Duration) {
        self.timeout = self.timeout.max(waited_for).min(TIMEOUT_MAX);
    }

    /// Since when the answer to a request sent then has been late: while earlier requests are being answered,
    /// and none of the later ones, it waits in a queue on the path, as the others did (the reason for RFC
    /// 6298 section 5.3, too).
    pub(super) fn waited_since(&self, sent_at: Time) -> Time {
        if sent_at >= self.newest { sent_at.max(self.heard_at) } else { sent_at }
    }

    /// A request sent then was answered: after a window's worth of these, the window grows by one.
    pub(super) fn answered(&mut self, sent_at: Time, now: Time) {
        (self.heard_at, self.newest) = (now, self.newest.max(sent_at));
        self.answers = self.answers.saturating_add(1);
        if self.answers >= self.window && self.window < self.limit {
            self.window = self.window.saturating_add(1);
            self.answers = 0;
        }
    }

    /// A request sent then got no answer in time: the window is halved, once for everything that was sent
    /// with it.
    pub(super) fn lost(&mut self, sent_at: Time, now: Time) {
        if sent_at >= self.cut_at {
            self.window = (self.window / 2).max(1);
            (self.answers, self.cut_at) = (0, now);
        }
    }
}

fn divided(whole: Duration, by: u32) -> Duration {
    whole.checked_div(by).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_timer_follows_what_is_measured() {
        let mut pace = Pace::new();
        assert_eq!(pace.timeout(0), 100 * MS);
        pace.measured(20 * MS);
        assert_eq!(pace.timeout(0), 60 * MS);
        (0..100).for_each(|_| pace.measured(20 * MS));
        assert!(pace.timeout(0) < 21 * MS);
        (0..100).for_each(|_| pace.measured(MS / 100));
        assert_eq!(pace.timeout(0), TIMEOUT_MIN);
        assert_eq!(pace.timeout(2), 4 * TIMEOUT_MIN);
        assert_eq!(pace.timeout(u8::MAX), TIMEOUT_MAX);
    }

    #[test]
    fn a_target_that_has_become_slow_is_waited_for_before_it_is_measured() {
        let mut pace = Pace::new();
        (0..100).for_each(|_| pace.measured(MS));
        pace.ambiguous(40 * MS);
        assert_eq!(pace.timeout(0), 40 * MS);
        pace.measured(MS);
        assert!(pace.timeout(0) < 10 * MS);
    }

    #[test]
    fn the_window_is_halved_once_for_what_it_had_let_go_and_grows_with_answers() {
        let mut pace = Pace::new();
        pace.limit(16);
        assert_eq!(pace.window(), 16);
        pace.lost(Time(100), Time(200));
        pace.lost(Time(150), Time(210));
        assert_eq!(pace.window(), 8);
        pace.lost(Time(220), Time(300));
        assert_eq!(pace.window(), 4);
        (0..4 + 5).for_each(|_| pace.answered(Time(0), Time(0)));
        assert_eq!(pace.window(), 6);
        (0..1000).for_each(|_| pace.answered(Time(0), Time(0)));
        assert_eq!(pace.window(), 16);
        for n in 0..10 {
            pace.lost(Time(1000 + n), Time(1000 + n));
        }
        assert_eq!(pace.window(), 1);
    }

    #[test]
    fn what_is_in_a_queue_is_waited_for_as_long_as_the_queue_moves() {
        let mut pace = Pace::new();
        pace.answered(Time(10), Time(50));
        assert_eq!(pace.waited_since(Time(10)), Time(50));
        assert_eq!(pace.waited_since(Time(60)), Time(60));
        pace.answered(Time(20), Time(70));
        assert_eq!(pace.waited_since(Time(10)), Time(10), "a later one was answered before");
        assert_eq!(pace.waited_since(Time(30)), Time(70));
    }

    #[test]
    fn a_limit_holds_at_once() {
        let mut pace = Pace::new();
        pace.limit(0);
        assert_eq!(pace.window(), 1);
        pace.limit(64);
        pace.limit(3);
        assert_eq!(pace.window(), 3);
        pace.lost(Time(1), Time(2));
        pace.limit(64);
        assert_eq!(pace.window(), 1);
    }
}
