//! The load generator: runs one [`Job`] on targets and measures.
//!
//! Every job of every target has its own thread with a ring, buffers and a lane. Each turn takes all
//! available completions, records them with one reading of the clock, reuses their slots for the next
//! operations, and sends these in one batch. Whatever completes within the measured time is counted.

mod admin;
mod check;
mod gauge;
mod link;
pub(crate) mod meter;
mod pattern;
mod sampler;
mod setup;
mod shared;
mod worker;

pub(crate) use check::depth;

pub use admin::{Admin, AdminClient};
pub use check::{BS_MAX, BUFFERS_BYTES_MAX, DEPTH_MAX, THREADS_MAX, check, writes};

use crate::job::Job;
use crate::result::{RunResult, Sample};
use gauge::Gauge;
use link::Link;
use reactor::uring::Uring;
use sampler::Sampler;
use setup::Plan;
use shared::Shared;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use store::lane::Backend;
use worker::Report;

/// What a run observes besides its targets.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// When set, ends the run early: the result is what was measured until then.
    pub stop: Arc<AtomicBool>,
    /// Source of the target's CPU time; `None`: unknown.
    pub target_cpu: Option<CpuSource>,
    /// A portal of the target, to which a connection is made and closed once per second, to detect queueing
    /// on the way.
    pub portal: Option<SocketAddr>,
}

/// The source of a target's CPU time.
#[derive(Clone, Debug)]
pub enum CpuSource {
    /// This machine's kernel, for the process with this ID.
    Process(u32),
    /// The target itself, a Lunette.
    Admin(AdminClient),
}

/// Why a run was not started: what is wrong, and how to fix it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunError {
    /// What is wrong.
    pub problem: String,
    /// How to fix it.
    pub remedy: String,
}

impl RunError {
    pub(crate) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> RunError {
        RunError { problem: problem.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for RunError {}

/// Time between samples; longer in runs of more than ten minutes, so that a result has at most 6000 of them.
const SAMPLE: Duration = Duration::from_millis(100);
const SAMPLES_MAX: u32 = 6000;

/// How long the main thread sleeps at a time while it waits for the threads.
const NAP: Duration = Duration::from_millis(1);

/// Runs the job on all targets at once, with these `names`. `observe` gets each sample, including those of
/// the ramp.
///
/// # Errors
/// When the job does not fit the targets, or a thread cannot start. Failed operations are counted in the
/// result.
pub fn run(
    job: &Job,
    targets: &[Arc<dyn Backend<Uring>>],
    names: &[String],
    watch: &Watch,
    observe: &mut dyn FnMut(&Sample),
) -> Result<RunResult, RunError> {
    let plan = Arc::new(Plan::new(job, targets, names)?);
    let shared = Arc::new(Shared::new(plan.workers(), plan.jobs(), watch.stop.clone()));
    let (threads, ids) = start(&plan, &shared)?;
    let link = watch.portal.and_then(Link::new);
    let mut sampler = Sampler::new(&shared, ids, Gauge::new(watch.target_cpu.clone()), link, job.bs);
    let begin = shared.now() + nanoseconds(job.ramp);
    let end = begin + nanoseconds(job.runtime);
    shared.begin.store(begin, Ordering::Relaxed);
    shared.end.store(end, Ordering::Relaxed);
    shared.start(true);
    let period = SAMPLE.max(job.runtime / SAMPLES_MAX);
    observe_until(begin, period, &shared, &mut sampler, observe);
    sampler.begin();
    observe_until(end, period, &shared, &mut sampler, observe);
    let end = end.min(shared.now());
    shared.end.store(end, Ordering::Relaxed);
    sampler.end();
    while shared.drained_count() < threads.len() && !threads.iter().any(JoinHandle::is_finished) {
        thread::sleep(NAP);
    }
    shared.start_readback();
    let mut reports: Vec<Report> = Vec::with_capacity(threads.len());
    for thread in threads {
        let report = thread.join().map_err(|_| {
            RunError::new(
                "a job thread ended by a panic",
                "this is a bug in Lunette: please report it, with the command",
            )
        })?;
        reports.extend(report);
    }
    let seconds = end.saturating_sub(begin) as f64 / 1e9;
    Ok(sampler.result(job, names, seconds, reports))
}

fn nanoseconds(time: Duration) -> u64 {
    // A run of more than a century ends with the century.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX >> 2)
}

type Thread = JoinHandle<Option<Report>>;

/// Starts all threads, which then wait; returns them and their IDs.
fn start(plan: &Arc<Plan>, shared: &Arc<Shared>) -> Result<(Vec<Thread>, Vec<u32>), RunError> {
    let (ready, news) = mpsc::channel();
    let mut threads = Vec::new();
    let mut problem = None;
    for index in 0..plan.workers() {
        let (plan, shared, ready) = (plan.clone(), shared.clone(), ready.clone());
        let body = move || {
            let worker = plan.worker(index, shared.clone());
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let _ = ready.send(worker.as_ref().map(|_| id).map_err(String::clone));
            let worker = worker.ok().filter(|_| shared.wait_for_start())?;
            Some(worker.run())
        };
        match thread::Builder::new().name(format!("job {index}")).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                problem = Some(format!("thread of job {index}: {error}"));
                break;
            }
        }
    }
    drop(ready);
    let mut ids = Vec::with_capacity(threads.len());
    for news in news.iter().take(threads.len()) {
        match news {
            Ok(id) => ids.push(id),
            Err(error) => problem = Some(error),
        }
    }
    match problem {
        None if ids.len() == plan.workers() => Ok((threads, ids)),
        problem => {
            shared.start(false);
            threads.into_iter().for_each(|thread| drop(thread.join()));
            let problem = problem.unwrap_or_else(|| "a job thread ended by a panic".into());
            Err(RunError::new(
                problem,
                "choose other --cores or fewer --numjobs, or raise the limits of this user",
            ))
        }
    }
}

/// Samples until the given moment, until the run is stopped, or until no thread is working any more.
fn observe_until(
    moment: u64,
    period: Duration,
    shared: &Shared,
    sampler: &mut Sampler<'_>,
    observe: &mut dyn FnMut(&Sample),
) {
    let start = shared.now();
    let mut samples = 1u32;
    let is_over = || shared.is_stopped() || shared.drained_count() == shared.posts.len();
    while !is_over() {
        let next = start + nanoseconds(period * samples);
        while shared.now() < next.min(moment) && !is_over() {
            let left = Duration::from_nanos(next.min(moment).saturating_sub(shared.now()));
            thread::sleep(left.min(SAMPLE));
        }
        // The rest comes with the threads' reports.
        if shared.now() >= moment || is_over() {
            return;
        }
        samples += 1;
        observe(sampler.sample());
    }
}
