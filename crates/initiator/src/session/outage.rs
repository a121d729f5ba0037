//! The outage of a target: since when and why, when it is retried, and what is logged about it.

use config::Url;
use proto::time::Time;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long after a failure the next connection is attempted: the first time, and at most.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How long commands must have been allowed before the target counts as back: one that is lost again at once
/// never was.
const STEADY: Duration = Duration::from_secs(2);
/// The minimum time between log lines about a failure when only the reason changes.
const QUIET: Duration = Duration::from_secs(10);

/// The log of a target with which there may be several sessions: a line when the first of them is lost, and
/// one when all are back.
#[derive(Clone, Default)]
pub struct OutageLog(Arc<Mutex<Logged>>);

#[derive(Default)]
struct Logged {
    /// When a failure was last logged; until the target is back.
    last: Option<Time>,
    /// Sessions that are lost.
    lost: usize,
}

impl OutageLog {
    fn lock(&self) -> MutexGuard<'_, Logged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is no connection, perhaps for another reason than that session had before; returns whether to
    /// log that.
    fn failed(&self, now: Time, is_other: bool) -> bool {
        let last = &mut self.lock().last;
        let is_news = last.is_none_or(|at| is_other && now.since(at) >= QUIET);
        if is_news {
            *last = Some(now);
        }
        is_news
    }

    /// A session is back, or has ended; returns whether it was the last lost one.
    fn is_over(&self) -> bool {
        let mut logged = self.lock();
        logged.lost = logged.lost.saturating_sub(1);
        logged.lost == 0 && logged.last.take().is_some()
    }
}

pub(super) struct Outage {
    /// The session's user reports failures.
    is_silent: bool,
    log: OutageLog,
    /// It is counted as lost.
    is_lost: bool,
    /// Since when there has been no session.
    since: Option<Time>,
    /// Why there was last no connection.
    failure: Option<String>,
    /// The last logged reason, initially perhaps another session's.
    logged: Option<String>,
    /// Since when commands may be sent.
    open_since: Option<Time>,
    backoff: Duration,
}

impl Outage {
    pub(super) fn new(log: OutageLog) -> Outage {
        Outage {
            is_silent: false,
            log,
            is_lost: false,
            since: None,
            failure: None,
            logged: None,
            open_since: None,
            backoff: BACKOFF_MIN,
        }
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

    /// Commands may be sent.
    pub(super) fn is_over(&mut self) {
        self.since = None;
        self.failure = None;
    }

    /// The connection is lost, whether or not commands were sent and answered on it.
    pub(super) fn lost(&mut self, now: Time, was_answered: bool) {
        self.begins(now);
        self.open_since = None;
        if was_answered {
            // A target that is back at once is reconnected at once.
            self.backoff = BACKOFF_MIN;
        }
    }

    /// There is no connection; returns when the next attempt is due. It is logged when the target is lost,
    /// and when it stays so for another reason.
    pub(super) fn failed(&mut self, url: &Url, now: Time, reason: &str) -> Time {
        self.begins(now);
        if !std::mem::replace(&mut self.is_lost, true) {
            self.log.lock().lost += 1;
        }
        let is_other =
            self.failure.is_some() && self.logged.as_deref().is_some_and(|before| before != reason);
        let is_news = !self.is_silent && self.log.failed(now, is_other);
        if is_news || self.logged.is_none() {
            self.logged = Some(reason.to_owned());
        }
        if is_news {
            tracing::warn!(target = %url, reason, "no session with the target");
        }
        self.failure = Some(reason.to_owned());
        let next = now.after(self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        next
    }

    /// Commands may be sent from now on.
    pub(super) fn is_open(&mut self, url: &Url, now: Time) {
        if now.since(*self.open_since.get_or_insert(now)) < STEADY {
            return;
        }
        self.backoff = BACKOFF_MIN;
        self.logged = None;
        if std::mem::take(&mut self.is_lost) && self.log.is_over() {
            tracing::info!(target = %url, "the session with the target is back");
        }
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        if self.is_lost {
            self.log.is_over();
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
        outage.log.lock().last.as_ref().is_some_and(|at| *at == now)
    }

    #[test]
    fn a_flapping_target_is_logged_once_and_reconnected_ever_less_often() {
        let (mut outage, mut now) = (Outage::new(OutageLog::default()), Time(0));
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
        assert!(outage.log.lock().last.is_none() && outage.backoff == BACKOFF_MIN, "it is back");
        assert!(logs(&mut outage, now.after(STEADY), "connection reset"));
    }

    #[test]
    fn another_reason_that_stays_is_logged_after_a_while() {
        let mut outage = Outage::new(OutageLog::default());
        assert!(logs(&mut outage, Time(0), "refused"));
        let later = Time(0).after(QUIET);
        assert!(!logs(&mut outage, Time(1), "no route"));
        assert!(logs(&mut outage, later, "no route"));
        assert!(!logs(&mut outage, Time(later.0 + 1), "refused"));
        assert!(!logs(&mut outage, later.after(QUIET), "no route"));
        outage.silence();
        assert!(!logs(&mut outage, later.after(QUIET), "refused"));
    }

    #[test]
    fn sessions_with_one_target_are_logged_as_one() {
        let log = OutageLog::default();
        let mut all: Vec<Outage> = (0..3).map(|_| Outage::new(log.clone())).collect();
        assert!(logs(&mut all[0], Time(1), "refused"));
        assert!(all.iter_mut().all(|outage| !logs(outage, Time(2), "refused")));
        let quiet = Time(2).after(QUIET);
        let mut two = vec![Outage::new(log.clone()), Outage::new(log.clone())];
        for round in 0..3 {
            for (outage, reason) in two.iter_mut().zip(["no route", "reset"]) {
                let now = Time(quiet.after(QUIET * round).0 + 1);
                assert!(!logs(outage, now, reason), "each has its own reason, which does not change");
            }
        }
        drop(two);
        let back = Time(3).after(STEADY);
        for outage in &mut all[..2] {
            outage.is_open(&url(), Time(3));
            outage.is_open(&url(), back);
        }
        assert!(log.lock().last.is_some(), "one is lost yet");
        assert!(!logs(&mut all[0], back, "refused"), "the outage continues");
        all.truncate(1);
        assert!(log.lock().last.is_some(), "the same, of the first");
        all.clear();
        assert!(log.lock().last.is_none() && log.lock().lost == 0);
    }
}
