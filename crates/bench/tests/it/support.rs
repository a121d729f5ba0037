//! A store that can be observed and tampered with.

use bench::job::Job;
use bench::result::{RunResult, Sample};
use bench::run::{Watch, run};
use reactor::io::{Completion, Tag};
use reactor::uring::Uring;
use scsi::storage::{Found, Traits};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use wire::Span;

/// What a tampered store does with an operation.
pub(crate) enum Fate {
    /// Does this one instead.
    Does(Op),
    /// Does nothing, and returns this outcome.
    Says(Outcome),
}

type Decide = dyn Fn(Op) -> Fate + Send + Sync;
type Batch = dyn Fn(usize) + Send + Sync;

/// Another store, with a function that decides the fate of each operation.
struct FaultyStore {
    inner: Arc<dyn Backend<Uring>>,
    decide: Box<Decide>,
    /// Gets the number of operations of each lane turn; they then complete only at the end of that turn.
    batch: Option<Box<Batch>>,
}

/// A store whose operations go through `decide`.
pub(crate) fn faulty(
    inner: Arc<dyn Backend<Uring>>,
    decide: impl Fn(Op) -> Fate + Send + Sync + 'static,
) -> Arc<dyn Backend<Uring>> {
    Arc::new(FaultyStore { inner, decide: Box::new(decide), batch: None })
}

/// Like [`faulty`]; operations complete at the end of their turn, and `batch` gets their number.
pub(crate) fn faulty_in_batches(
    inner: Arc<dyn Backend<Uring>>,
    decide: impl Fn(Op) -> Fate + Send + Sync + 'static,
    batch: impl Fn(usize) + Send + Sync + 'static,
) -> Arc<dyn Backend<Uring>> {
    Arc::new(FaultyStore { inner, decide: Box::new(decide), batch: Some(Box::new(batch)) })
}

impl Store for FaultyStore {
    fn traits(&self) -> Traits {
        self.inner.traits()
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        self.inner.refresh()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

impl Backend<Uring> for FaultyStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<Uring>> {
        let inner = self.inner.clone().lane(tags);
        Box::new(FaultyLane { store: self, inner, held: Vec::new() })
    }
}

struct FaultyLane {
    store: Arc<FaultyStore>,
    inner: Box<dyn Lane<Uring>>,
    held: Vec<(OpId, Outcome)>,
}

impl Lane<Uring> for FaultyLane {
    fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
        None
    }

    fn submit(&mut self, io: &mut Uring, id: OpId, op: &Op) -> Submitted {
        let submitted = match (self.store.decide)(*op) {
            Fate::Does(op) => self.inner.submit(io, id, &op),
            Fate::Says(outcome) => Submitted::Done(outcome),
        };
        match (submitted, &self.store.batch) {
            (Submitted::Done(outcome), Some(_)) => {
                self.held.push((id, outcome));
                Submitted::Later
            }
            (submitted, _) => submitted,
        }
    }

    fn completed(&mut self, io: &mut Uring, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.inner.completed(io, completion, done);
    }

    fn flush(&mut self, io: &mut Uring, done: &mut Vec<(OpId, Outcome)>) -> bool {
        if let (Some(batch), 1..) = (&self.store.batch, self.held.len()) {
            batch(self.held.len());
        }
        done.append(&mut self.held);
        self.inner.flush(io, done)
    }

    fn work(&mut self, io: &mut Uring, bytes: u64, done: &mut Vec<(OpId, Outcome)>) -> u64 {
        self.inner.work(io, bytes, done)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }
}

pub(crate) const GOOD: Outcome = Ok(Found::Nothing);

pub(crate) fn ram(size: u64) -> Arc<dyn Backend<Uring>> {
    store::open_ram(size).unwrap()
}

/// A short run: long enough for many operations on an idle machine, since the first turn alone fills the
/// queue. On a busy one none may complete ([`measure_until`]).
pub(crate) fn short() -> Job {
    Job { runtime: Duration::from_millis(150), ramp: Duration::ZERO, ..Job::default() }
}

/// Runs without observing.
pub(crate) fn measure(job: &Job, targets: &[Arc<dyn Backend<Uring>>]) -> RunResult {
    observe(job, targets, &Watch::default(), &mut |_| {})
}

/// Runs repeatedly until a run has produced what the test needs.
pub(crate) fn measure_until(
    job: &Job,
    targets: &[Arc<dyn Backend<Uring>>],
    is_enough: impl Fn(&RunResult) -> bool,
) -> RunResult {
    const RUNS_MAX: usize = 100;
    let runs = std::iter::repeat_with(|| measure(job, targets));
    runs.take(RUNS_MAX).find(is_enough).expect("a run that brings it")
}

/// Runs. One run at a time, so that each has the machine to itself, as in real use.
pub(crate) fn observe(
    job: &Job,
    targets: &[Arc<dyn Backend<Uring>>],
    watch: &Watch,
    look: &mut dyn FnMut(&Sample),
) -> RunResult {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let names: Vec<String> = (0..targets.len()).map(|n| format!("target {n}")).collect();
    run(job, targets, &names, watch, look).unwrap()
}

/// Why a job is refused.
pub(crate) fn refused(job: &Job, target: Arc<dyn Backend<Uring>>) -> String {
    run(job, &[target], &["it".into()], &Watch::default(), &mut |_| {}).unwrap_err().to_string()
}
