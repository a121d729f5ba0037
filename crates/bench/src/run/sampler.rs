//! The main thread's view of a run: samples during it, the result at the end.

use super::gauge::{Gauge, Reading, Threads};
use super::link::Link;
use super::meter::{Direction, Tally};
use super::shared::{ERRORS_KEPT, Shared};
use super::worker::Report;
use crate::job::Job;
use crate::result::{CoreLoad, CoreUse, Cpu, RunResult, Sample, Side, ThreadLoad, VerifyCounts};
use reactor::cpu::{self, CoreTimes, Thread, Times};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Most threads of each side listed in a result.
const THREADS_NAMED: usize = 64;

/// How long job threads get to hand over their data; slower ones do so at the next sample.
const HAND_OVER: Duration = Duration::from_millis(1);

pub(super) struct Sampler<'a> {
    shared: &'a Shared,
    /// The job threads' IDs in the kernel.
    ids: Vec<u32>,
    /// Reads the target's CPU time.
    gauge: Gauge,
    /// What each sample reads from it.
    threads: Threads,
    link: Option<Link>,
    /// Everything handed over for the measured time.
    total: Tally,
    series: Vec<Sample>,
    /// The last sample before measuring began.
    ramp: Option<Sample>,
    bs: u32,
    last: Moment,
    first: Option<Moment>,
    measured: Option<Measured>,
}

/// CPU times at a given moment.
struct Moment {
    at: u64,
    cores: Vec<CoreTimes>,
    initiator: Vec<Thread>,
    target: Option<Reading>,
}

/// The measured time, from begin to end.
#[derive(Default)]
struct Measured {
    cores: Vec<CoreLoad>,
    target: Option<Times>,
    target_threads: Vec<(Thread, Times)>,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        ids: Vec<u32>,
        mut gauge: Gauge,
        link: Option<Link>,
        bs: u32,
    ) -> Sampler<'a> {
        let last = Moment::now(shared, &ids, gauge.read(Threads::Reported));
        let threads = last.target.as_ref().map_or(Threads::Left, Reading::cheap);
        Sampler {
            shared,
            ids,
            gauge,
            threads,
            link,
            total: Tally::new(),
            series: Vec::new(),
            ramp: None,
            bs,
            last,
            first: None,
            measured: None,
        }
    }

    /// Measuring begins.
    pub(super) fn begin(&mut self) {
        self.first = Some(Moment::now(self.shared, &self.ids, self.gauge.read(Threads::Reported)));
    }

    /// Measuring ends.
    pub(super) fn end(&mut self) {
        let now = Moment::now(self.shared, &self.ids, self.gauge.read(Threads::Reported));
        let Some(first) = &self.first else { return };
        let target = now.target.as_ref().zip(first.target.as_ref());
        self.measured = Some(Measured {
            cores: loads(&first.cores, &now.cores),
            target: target.map(|(now, before)| now.times.since(before.times)),
            target_threads: target.map_or_else(Vec::new, |(now, before)| now.threads_since(before)),
        });
    }

    /// Gathers what the threads did since the last sample.
    pub(super) fn sample(&mut self) -> &Sample {
        self.shared.posts.iter().for_each(|post| post.ask());
        thread::sleep(HAND_OVER);
        let mut fresh = Tally::new();
        let mut iops = 0.0;
        for post in &self.shared.posts {
            post.collect(|interval| {
                let seconds = interval.to.saturating_sub(interval.from).max(1) as f64 / 1e9;
                iops += interval.tally.operations() as f64 / seconds;
                fresh.add(&interval.tally);
                if interval.measured {
                    self.total.add(&interval.tally);
                }
            });
        }
        let now = Moment::now(self.shared, &self.ids, self.gauge.read(self.threads));
        let last = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let seconds = now.at.saturating_sub(last.at).max(1) as f64 / 1e9;
        let [p50, p99] = fresh.percentiles([50.0, 99.0]);
        let begin = self.shared.begin.load(Ordering::Relaxed);
        let target = now.target.as_ref().zip(last.target.as_ref());
        let target = target.map(|(now, last)| now.times.since(last.times).sum());
        let sample = Sample {
            at: (now.at as f64 - begin as f64) / 1e9,
            iops,
            bytes_per_second: iops * f64::from(self.bs),
            p50,
            p99,
            cores: loads(&last.cores, &now.cores),
            target_cores: target.map(|target| target / seconds),
            initiator_cores: now.initiator_since(&last).map(|(_, times)| times.sum()).sum::<f64>() / seconds,
            core_use: core_use(&last, now, seconds, self.gauge.is_elsewhere()),
            link: self.link.as_mut().and_then(Link::measure),
        };
        match self.first {
            Some(_) => {
                self.series.push(sample);
                self.series.last().expect("it was just put there")
            }
            None => self.ramp.insert(sample),
        }
    }

    /// The result of everything measured.
    pub(super) fn result(
        mut self,
        job: &Job,
        names: &[String],
        seconds: f64,
        reports: Vec<Report>,
    ) -> RunResult {
        for post in &self.shared.posts {
            post.collect(|interval| {
                if interval.measured {
                    self.total.add(&interval.tally);
                }
            });
        }
        for report in reports.iter().filter(|report| report.last.measured) {
            self.total.add(&report.last.tally);
        }
        // A run stopped during its ramp has no measured time to divide by.
        let time = if seconds > 0.0 { seconds } else { 1.0 };
        let stream = |direction| {
            let errors = reports.iter().map(|report| *report.errors.of(direction)).sum();
            self.total.stream(direction, job.bs, time, errors)
        };
        let operations = self.total.operations();
        let initiator = reports.iter().fold(Times::default(), |sum, report| Times {
            user: sum.user + report.cpu.user,
            system: sum.system + report.cpu.system,
        });
        let measured = self.measured.unwrap_or_default();
        let verify = reports.iter().fold(VerifyCounts::default(), |mut sum, report| {
            sum.add(report.verify);
            sum
        });
        RunResult {
            job: job.clone(),
            targets: names.to_vec(),
            seconds,
            read: stream(Direction::Read),
            write: stream(Direction::Write),
            trim: stream(Direction::Trim),
            initiator_cpu: cpu_of(initiator, operations),
            target_cpu_lost: self.gauge.lost(),
            target_cpu: measured.target.map(|times| cpu_of(times, operations)),
            cores: measured.cores,
            threads: threads(&reports, measured.target_threads, time),
            series: self.series,
            verify: job.verify.then_some(verify),
            first_errors: reports
                .into_iter()
                .flat_map(|report| report.first_errors)
                .take(ERRORS_KEPT)
                .collect(),
        }
    }
}

impl Moment {
    fn now(shared: &Shared, ids: &[u32], target: Option<Reading>) -> Moment {
        Moment {
            at: shared.now(),
            cores: cpu::cores(),
            initiator: ids.iter().filter_map(|&id| cpu::own_thread(id)).collect(),
            target,
        }
    }

    /// What this side's threads have used since an earlier moment.
    fn initiator_since(&self, before: &Moment) -> impl Iterator<Item = (&Thread, Times)> {
        self.initiator.iter().filter_map(|now| {
            let before = before.initiator.iter().find(|before| before.id == now.id)?;
            Some((now, now.times.since(before.times)))
        })
    }
}

/// Who used the cores of this machine between two moments.
fn core_use(before: &Moment, now: &Moment, seconds: f64, is_target_elsewhere: bool) -> Vec<CoreUse> {
    let mut uses: BTreeMap<usize, CoreUse> = BTreeMap::new();
    let mut of_core = |core: usize, add: &dyn Fn(&mut CoreUse)| {
        add(uses.entry(core).or_insert(CoreUse { core, ..CoreUse::default() }));
    };
    for (thread, times) in now.initiator_since(before) {
        of_core(thread.core, &|of| of.initiator += times.sum() / seconds);
    }
    let target = now.target.as_ref().zip(before.target.as_ref()).filter(|_| !is_target_elsewhere);
    for (thread, times) in target.into_iter().flat_map(|(now, before)| now.threads_since(before)) {
        of_core(thread.core, &|of| of.target += times.sum() / seconds);
    }
    uses.into_values().filter(|of| of.target + of.initiator > 0.0).collect()
}

fn cpu_of(times: Times, operations: u64) -> Cpu {
    let us_per_op = if operations > 0 { times.sum() * 1e6 / operations as f64 } else { 0.0 };
    Cpu { user_seconds: times.user, system_seconds: times.system, us_per_op }
}

/// The busiest threads of each side.
fn threads(reports: &[Report], target: Vec<(Thread, Times)>, seconds: f64) -> Vec<ThreadLoad> {
    let own = reports.iter().filter_map(|report| {
        let thread = report.thread.as_ref()?;
        let spinning = report.spun as f64 / 1e9;
        Some(ThreadLoad {
            side: Side::Initiator,
            name: thread.name.clone(),
            core: thread.core,
            busy: (report.cpu.sum() - spinning).max(0.0) / seconds,
            spinning: spinning / seconds,
        })
    });
    let others = target.into_iter().map(|(thread, times)| ThreadLoad {
        side: Side::Target,
        name: thread.name,
        core: thread.core,
        busy: times.sum() / seconds,
        spinning: 0.0,
    });
    let busiest = |mut loads: Vec<ThreadLoad>| {
        loads.sort_by(|a, b| b.busy.total_cmp(&a.busy));
        loads.truncate(THREADS_NAMED);
        loads
    };
    [busiest(own.collect()), busiest(others.collect())].concat()
}

/// The load of every core between two moments. Time stolen by a hypervisor is not counted: the fractions are
/// of the time that this machine had.
fn loads(before: &[CoreTimes], after: &[CoreTimes]) -> Vec<CoreLoad> {
    let load = |now: &CoreTimes| {
        let then = before.iter().find(|then| then.core == now.core)?;
        let Times { user, system } = now.times.since(then.times);
        let idle = (now.idle - then.idle).max(0.0);
        let all = user + system + idle;
        let share = |part: f64, without: f64| if all > 0.0 { part / all } else { without };
        let (user, system, idle) = (share(user, 0.0), share(system, 0.0), share(idle, 1.0));
        Some(CoreLoad { core: now.core, user, system, idle })
    };
    after.iter().filter_map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_reported_with_the_side_whose_threads_were_on_it() {
        let thread = |id, core, user| Thread {
            id,
            name: String::new(),
            core,
            pinned: None,
            times: Times { user, system: 0.0 },
        };
        let moment = |initiator: Vec<Thread>, target: Vec<Thread>| Moment {
            at: 0,
            cores: Vec::new(),
            initiator,
            target: Some(Reading { times: Times::default(), threads: target }),
        };
        let before = moment(vec![thread(1, 0, 1.0), thread(2, 1, 1.0)], vec![thread(7, 1, 3.0)]);
        let now =
            moment(vec![thread(1, 1, 1.2), thread(2, 1, 1.0)], vec![thread(7, 1, 4.0), thread(8, 3, 0.5)]);
        let rounded = |elsewhere| -> Vec<(usize, i32, i32)> {
            let percent = |share: f64| (share * 100.0).round() as i32;
            let uses = core_use(&before, &now, 2.0, elsewhere);
            uses.iter().map(|of| (of.core, percent(of.target), percent(of.initiator))).collect()
        };
        assert_eq!(rounded(false), [(1, 50, 10), (3, 25, 0)]);
        assert_eq!(rounded(true), [(1, 0, 10)], "cores of another machine are not ours");
    }

    #[test]
    fn shares_of_a_core_are_of_the_time_it_had() {
        let core = |user, system, idle| [CoreTimes { core: 3, times: Times { user, system }, idle }];
        let (before, after) = (core(1.0, 1.0, 1.0), core(1.25, 1.25, 1.5));
        let load = loads(&before, &after)[0];
        assert_eq!((load.core, load.user, load.system, load.idle), (3, 0.25, 0.25, 0.5));
        assert_eq!(loads(&after, &after)[0].idle, 1.0);
        assert!(loads(&[], &after).is_empty());
    }
}
