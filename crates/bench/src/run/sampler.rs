//! What the main thread sees of a run: samples while it lasts, the result in the end.

use super::cpu::{self, CoreTimes, Thread, Times};
use super::meter::{Direction, Tally};
use super::shared::{ERRORS_KEPT, Shared};
use super::worker::Report;
use crate::job::Job;
use crate::result::{CoreLoad, Cpu, RunResult, Sample, Side, ThreadLoad, VerifyCounts};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Threads of each side that a result names.
const THREADS_NAMED: usize = 64;

/// How long job threads get to hand over what they have; those that are slower do so at the next sample.
const HAND_OVER: Duration = Duration::from_millis(1);

pub(super) struct Sampler<'a> {
    shared: &'a Shared,
    /// The kernel's numbers of the job threads.
    ids: Vec<u32>,
    target: Option<u32>,
    /// All that was handed over of the measured time.
    total: Tally,
    series: Vec<Sample>,
    /// The last sample before measuring began.
    ramp: Option<Sample>,
    bs: u32,
    last: Moment,
    first: Option<Extent>,
    measured: Option<Measured>,
}

/// CPU times at a moment.
struct Moment {
    at: u64,
    cores: Vec<CoreTimes>,
    initiator: f64,
    target: Option<Times>,
}

/// What is looked at where measuring begins.
struct Extent {
    moment: Moment,
    target_threads: Vec<Thread>,
}

/// What is looked at from where measuring begins to where it ends.
#[derive(Default)]
struct Measured {
    cores: Vec<CoreLoad>,
    target: Option<Times>,
    target_threads: Vec<(Thread, Times)>,
}

impl<'a> Sampler<'a> {
    pub(super) fn new(shared: &'a Shared, ids: Vec<u32>, target: Option<u32>, bs: u32) -> Sampler<'a> {
        let last = Moment::now(shared, &ids, target);
        Sampler {
            shared,
            ids,
            target,
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
        let moment = Moment::now(self.shared, &self.ids, self.target);
        self.first = Some(Extent { moment, target_threads: self.target.map_or_else(Vec::new, cpu::threads) });
    }

    /// Measuring ends.
    pub(super) fn end(&mut self) {
        let now = Moment::now(self.shared, &self.ids, self.target);
        let Some(first) = &self.first else { return };
        let target_threads = self.target.map_or_else(Vec::new, cpu::threads).into_iter().map(|thread| {
            let before = first.target_threads.iter().find(|before| before.id == thread.id);
            let times = thread.times.since(before.map_or(Times::default(), |before| before.times));
            (thread, times)
        });
        self.measured = Some(Measured {
            cores: cpu::loads(&first.moment.cores, &now.cores),
            target: now.target.zip(first.moment.target).map(|(now, before)| now.since(before)),
            target_threads: target_threads.collect(),
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
        let now = Moment::now(self.shared, &self.ids, self.target);
        let last = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let seconds = now.at.saturating_sub(last.at).max(1) as f64 / 1e9;
        let [p50, p99] = fresh.percentiles([50.0, 99.0]);
        let begin = self.shared.begin.load(Ordering::Relaxed);
        let target = now.target.zip(last.target).map(|(now, last)| now.since(last).sum());
        let sample = Sample {
            at: (now.at as f64 - begin as f64) / 1e9,
            iops,
            bytes_per_second: iops * f64::from(self.bs),
            p50,
            p99,
            cores: cpu::loads(&last.cores, &now.cores),
            target_cores: target.map(|target| target / seconds),
            initiator_cores: (now.initiator - last.initiator).max(0.0) / seconds,
        };
        match self.first {
            Some(_) => {
                self.series.push(sample);
                self.series.last().expect("it was just put there")
            }
            None => self.ramp.insert(sample),
        }
    }

    /// All that was measured.
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
        // A run that was stopped during its ramp has no measured time, and nothing to divide by it.
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
    fn now(shared: &Shared, ids: &[u32], target: Option<u32>) -> Moment {
        Moment {
            at: shared.now(),
            cores: cpu::cores(),
            initiator: ids.iter().filter_map(|&id| cpu::own_thread(id)).map(Times::sum).sum(),
            target: target.and_then(cpu::process),
        }
    }
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
