//! What is known of a target that is not there: since when and why, when it is tried again, and what the log has of it.

use crate::initiator::Url;
use proto::time::Time;
use std::time::Duration;

/// How long after a failure the next connection is tried: the first time, and at most.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How long commands can leave before the target counts as back: one that goes again at once was never there.
const STEADY: Duration = Duration::from_secs(2);
/// How long after a line about a failure the next one comes for another reason.
const QUIET: Duration = Duration::from_secs(10);

pub(super) struct Outage {
    /// Whoever uses the session reports failures.
    is_silent: bool,
    /// Since when there has been no session.
    since: Option<Time>,
    /// Why there was no connection the last time.
    failure: Option<String>,
    /// When the log had a failure last; until the target is back.
    logged: Option<Time>,
    /// Since when commands can leave.
    open_since: Option<Time>,
    backoff: Duration,
}

impl Outage {
    pub(super) fn new() -> Outage {
        let backoff = BACKOFF_MIN;
        Outage { is_silent: false, since: None, failure: None, logged: None, open_since: None, backoff }
    }

    pub(super) fn silence(&mut self) {
        self.is_silent = true;
    }

    pub(super) fn has_lasted(&self, now: Time, at_most: Duration) -> bool {
        self.since.is_some_and(|since| now.since(since) >= at_most)
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub(super) fn forget_failure(&mut self) {
        self.failure = None;
    }

    /// There is no session.
    pub(super) fn begins(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Commands can leave.
    pub(super) fn is_over(&mut self) {
        self.since = None;
        self.failure = None;
    }

    /// The connection is lost, on which commands left or not, and were answered or not.
    pub(super) fn lost(&mut self, now: Time, was_answered: bool) {
        self.begins(now);
        self.open_since = None;
        if was_answered {
            // Whoever is back at once is met at once.
            self.backoff = BACKOFF_MIN;
        }
    }

    /// There is no connection; returns when the next try is due. A line goes to the log when the target is lost, and
    /// when it stays so for another reason.
    pub(super) fn failed(&mut self, url: &Url, now: Time, reason: &str) -> Time {
        self.begins(now);
        let is_news = match self.logged {
            None => true,
            Some(logged) => {
                now.since(logged) >= QUIET && self.failure.as_deref().is_some_and(|last| last != reason)
            }
        };
        if is_news && !self.is_silent {
            self.logged = Some(now);
            tracing::warn!(target = %url, reason, "no session with the target");
        }
        self.failure = Some(reason.to_owned());
        let next = now.after(self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        next
    }

    /// Commands can leave, now.
    pub(super) fn is_open(&mut self, url: &Url, now: Time) {
        if now.since(*self.open_since.get_or_insert(now)) < STEADY {
            return;
        }
        self.backoff = BACKOFF_MIN;
        if self.logged.take().is_some() {
            tracing::info!(target = %url, "the session with the target is back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> Url {
        "iscsi://h/iqn.2026-11.io.lunette:a/0".parse().expect("a URL")
    }

    /// Whether a failure is logged.
    fn logs(outage: &mut Outage, now: Time, reason: &str) -> bool {
        outage.failed(&url(), now, reason);
        outage.logged == Some(now)
    }

    #[test]
    fn a_target_that_comes_and_goes_is_logged_once_and_met_ever_less_often() {
        let (mut outage, mut now) = (Outage::new(), Time(0));
        let mut lines = 0;
        let mut pauses = Vec::new();
        for round in 0..100 {
            let reason = if round % 2 == 0 { "closed by the target" } else { "connection reset" };
            lines += u32::from(logs(&mut outage, now, reason));
            let pause = outage.backoff;
            pauses.push(pause);
            now = now.after(pause);
            outage.is_over();
            outage.is_open(&url(), now);
            now = now.after(Duration::from_millis(1));
            outage.lost(now, false);
        }
        assert_eq!((lines, pauses.last()), (1, Some(&BACKOFF_MAX)));
        now = now.after(BACKOFF_MAX);
        outage.is_over();
        outage.is_open(&url(), now);
        outage.is_open(&url(), now.after(STEADY));
        assert_eq!((outage.logged, outage.backoff), (None, BACKOFF_MIN), "it is back");
        assert!(logs(&mut outage, now.after(STEADY), "connection reset"));
    }

    #[test]
    fn another_reason_is_logged_now_and_then() {
        let mut outage = Outage::new();
        assert!(logs(&mut outage, Time(0), "refused"));
        let later = Time(0).after(QUIET);
        assert!(!logs(&mut outage, Time(1), "no route"));
        assert!(!logs(&mut outage, later, "no route"));
        assert!(logs(&mut outage, later, "refused"));
        outage.silence();
        assert!(!logs(&mut outage, later.after(QUIET), "no route"));
    }
}
