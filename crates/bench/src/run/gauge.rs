//! The target's CPU time, from whatever source.

use super::CpuSource;
use reactor::cpu::{self, Thread, Times};

/// Reads a source for as long as it answers.
pub(super) struct Gauge {
    source: Option<CpuSource>,
    /// Process ID and uptime in the last answer: another process's counters do not continue from these.
    seen: Option<(u32, f64)>,
    lost: Option<String>,
}

/// Whether a reading includes threads: reading many costs more than reading their sum.
#[derive(Clone, Copy)]
pub(super) enum Threads {
    Reported,
    Left,
}

/// Most threads of a target sampled ten times per second.
const THREADS_SAMPLED: usize = 64;

/// What a target had used at a given moment.
pub(super) struct Reading {
    pub(super) times: Times,
    pub(super) threads: Vec<Thread>,
}

impl Gauge {
    pub(super) fn new(source: Option<CpuSource>) -> Gauge {
        Gauge { source, seen: None, lost: None }
    }

    /// `None`: unknown. A source that failed once is not read again, so that a run pays for its timeout only
    /// once.
    pub(super) fn read(&mut self, with: Threads) -> Option<Reading> {
        let read = match self.source.as_ref().filter(|_| self.lost.is_none())? {
            CpuSource::Process(pid) => {
                let threads = || match with {
                    Threads::Reported => cpu::threads(*pid),
                    Threads::Left => Vec::new(),
                };
                let read = cpu::process(*pid).map(|times| Reading { times, threads: threads() });
                read.ok_or_else(|| format!("process {pid} has ended"))
            }
            CpuSource::Admin(client) => client.snapshot().and_then(|now| {
                let seen = self.seen.replace((now.pid, now.uptime_seconds));
                if seen.is_some_and(|(pid, uptime)| pid != now.pid || uptime > now.uptime_seconds) {
                    return Err("it was restarted while it was measured".into());
                }
                Ok(Reading { times: now.times, threads: now.threads })
            }),
        };
        read.map_err(|reason| self.lost = Some(reason)).ok()
    }

    /// Whether the target runs on another machine's cores.
    pub(super) fn is_elsewhere(&self) -> bool {
        match &self.source {
            Some(CpuSource::Admin(client)) => client.is_elsewhere(),
            Some(CpuSource::Process(_)) | None => false,
        }
    }

    /// Why the source is no longer read.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.clone()
    }
}

impl Reading {
    /// What the next intermediate reading may include without becoming a load itself.
    pub(super) fn cheap(&self) -> Threads {
        if self.threads.len() <= THREADS_SAMPLED { Threads::Reported } else { Threads::Left }
    }

    /// The current threads, with what they have used since an earlier reading.
    pub(super) fn threads_since(&self, before: &Reading) -> Vec<(Thread, Times)> {
        let since = |thread: &Thread| {
            let before = before.threads.iter().find(|before| before.id == thread.id);
            (thread.clone(), thread.times.since(before.map_or(Times::default(), |before| before.times)))
        };
        self.threads.iter().map(since).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::admin::AdminClient;
    use super::super::admin::tests::Answers;
    use super::*;
    use reactor::cpu::Snapshot;
    use std::time::Duration;

    #[test]
    fn thread_times_are_reported_until_the_target_is_replaced() {
        let mut first = cpu::snapshot(Duration::from_secs(1));
        // Values whose sums are exact.
        first.times.user = 1.0;
        first.threads[0].times.user = 1.0;
        let mut second = Snapshot { uptime_seconds: 2.0, ..first.clone() };
        second.times.user += 0.5;
        second.threads[0].times.user += 0.5;
        let restarted = Snapshot { uptime_seconds: 0.5, ..second.clone() };
        let client = AdminClient::open(Answers::new(&[&first, &first, &second, &restarted])).unwrap();
        let mut gauge = Gauge::new(Some(CpuSource::Admin(client)));
        let before = gauge.read(Threads::Reported).unwrap();
        let after = gauge.read(Threads::Reported).unwrap();
        assert_eq!(after.times.since(before.times).sum(), 0.5);
        let threads = after.threads_since(&before);
        assert_eq!((threads[0].1.sum(), threads[0].0.id), (0.5, first.threads[0].id));
        assert!(gauge.read(Threads::Reported).is_none());
        assert_eq!(gauge.lost().as_deref(), Some("it was restarted while it was measured"));
    }

    #[test]
    fn a_process_that_ended_is_lost() {
        let mut gauge = Gauge::new(Some(CpuSource::Process(u32::MAX)));
        assert!(gauge.read(Threads::Left).is_none());
        assert!(gauge.lost().unwrap().contains("has ended"));
        assert_eq!(Gauge::new(None).lost(), None);
    }
}
