//! One job thread: a ring, a lane, buffers, and the loop that keeps operations in flight.

use super::meter::{Direction, Interval, PerDirection};
use super::pattern::{Pace, Pattern};
use super::shared::{ERRORS_KEPT, Shared};
use crate::job::{self, Job};
use crate::result::VerifyCounts;
use crate::verify::{BlockVersions, Reading, Verdict, Writing};
use fastrand::Rng;
use reactor::cpu::{self, Thread, Times};
use reactor::io::{Completion, Io, Wait};
use reactor::poll::{Poll, Poller, Work};
use reactor::uring::Uring;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::lane::{Lane, Op, OpId, Outcome, Submitted, WORK_BYTES};
use wire::Places;

/// Consecutive failures after which a job stops.
const FAILURES_MAX: u32 = 1000;

/// How long operations may take to complete after the end.
const DRAIN: u64 = 30_000_000_000;

/// How often a sleeping thread wakes up to check.
const WAKE_INTERVAL_NS: u64 = 100_000_000;

/// How often a lane may check its deadlines.
const TICK: u64 = 250_000_000;

/// How many more blocks are tried when the first is in use, with `verify`.
const TRIES: usize = 16;

/// A slot for one operation in flight.
pub(super) struct Slot {
    pub(super) stream: usize,
    pub(super) places: Places,
    direction: Direction,
    block: u64,
    claim: Claim,
    /// When it was submitted; 0: not in flight.
    submitted: u64,
}

/// The answer of the block versions, with `verify`.
#[derive(Clone, Copy)]
enum Claim {
    None,
    Writing(Writing),
    Reading(Reading),
}

impl Slot {
    pub(super) fn new(stream: usize, places: Places) -> Slot {
        Slot { stream, places, direction: Direction::Read, block: 0, claim: Claim::None, submitted: 0 }
    }
}

/// A job thread. It stays on the thread that created it.
pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) job: Arc<Job>,
    pub(super) block_versions: Option<Arc<BlockVersions>>,
    // Dropped before the ring that it uses.
    pub(super) lane: Box<dyn Lane<Uring>>,
    pub(super) io: Uring,
    pub(super) streams: Vec<Pattern>,
    pub(super) slots: Vec<Slot>,
    pub(super) rng: Rng,
    /// Most operations sent together.
    pub(super) portion: usize,
    pub(super) state: State,
}

/// State that changes from turn to turn.
/// Its fields are read and written by one loop, in every turn.
pub(super) struct State {
    /// The time of each turn, taken after its completions; it is used for them, and for the submissions that
    /// follow.
    now: u64,
    /// The run's clock at the ring's zero.
    zero: u64,
    begin: u64,
    end: u64,
    tick: u64,
    pace: Pace,
    poller: Poller,
    /// Slots without an operation in flight.
    idle: Vec<u32>,
    starting: Vec<u32>,
    completions: Vec<Completion>,
    done: Vec<(OpId, Outcome)>,
    in_flight: usize,
    /// Operations completed during submission: their slots can be reused at once.
    has_finished_at_once: bool,
    /// A slot found no block that is not in use.
    blocked: bool,
    interval: Interval,
    run: Run,
    seen: u64,
    spun: u64,
    failures: u32,
    report: Report,
    cpu: (f64, Option<Thread>),
}

/// Operations to be recorded: those submitted in one turn and completed in one have the same latency.
struct Run {
    direction: Direction,
    latency: u64,
    count: u64,
}

/// What a job thread returns at its end.
pub(super) struct Report {
    pub(super) last: Interval,
    pub(super) errors: PerDirection<u64>,
    pub(super) first_errors: Vec<String>,
    /// During the measured time.
    pub(super) cpu: Times,
    pub(super) thread: Option<Thread>,
    /// Nanoseconds of useless spinning during the measured time.
    pub(super) spun: u64,
    pub(super) verify: VerifyCounts,
}

impl State {
    pub(super) fn new(job: &Job, slots: usize) -> State {
        let poll = match job.poll {
            job::Poll::Adaptive => Poll::Adaptive,
            job::Poll::Always => Poll::Always,
            job::Poll::Never => Poll::Never,
        };
        let report = Report {
            last: Interval::new(),
            errors: PerDirection::default(),
            first_errors: Vec::new(),
            cpu: Times::default(),
            thread: None,
            spun: 0,
            verify: VerifyCounts::default(),
        };
        State {
            now: 0,
            zero: 0,
            begin: 0,
            end: 0,
            tick: 0,
            pace: Pace::new(job, 0),
            poller: Poller::new(poll),
            idle: (0..slots as u32).rev().collect(),
            starting: Vec::with_capacity(slots),
            completions: Vec::with_capacity(slots.max(256)),
            done: Vec::with_capacity(slots),
            in_flight: 0,
            has_finished_at_once: false,
            blocked: false,
            interval: Interval::new(),
            run: Run { direction: Direction::Read, latency: 0, count: 0 },
            seen: 0,
            spun: 0,
            failures: 0,
            report,
            cpu: (0.0, None),
        }
    }

    fn record(&mut self, direction: Direction, latency: u64) {
        if (self.run.direction, self.run.latency) != (direction, latency) {
            self.settle_run();
            (self.run.direction, self.run.latency) = (direction, latency);
        }
        self.run.count += 1;
    }

    fn settle_run(&mut self) {
        let Run { direction, latency, count } = self.run;
        if count > 0 {
            self.interval.tally.record(direction, latency, count);
            self.run.count = 0;
        }
    }
}

impl Worker {
    /// Runs from `begin` of the ramp to the end, and returns its report. Then nothing is in flight any more,
    /// except operations that take too long.
    pub(super) fn run(mut self) -> Report {
        self.state.begin = self.shared.begin.load(Ordering::Relaxed);
        self.state.end = self.shared.end.load(Ordering::Relaxed);
        self.state.now = self.shared.now();
        self.state.interval.from = self.state.now;
        self.state.pace = Pace::new(&self.job, self.state.now);
        self.cross_into_measuring();
        while self.state.now < self.state.end && self.state.failures < FAILURES_MAX {
            self.fill();
            self.turn();
            self.hand_over();
        }
        self.stop_measuring();
        self.drain();
        self.shared.drained();
        if let Some(block_versions) = self.block_versions.clone() {
            self.shared.wait_for_readback();
            self.read_back(&block_versions);
        }
        let state = self.state;
        Report { last: state.interval, ..state.report }
    }

    /// Reads one block, so that any session the lane needs is established before measuring begins.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn warm_up(&mut self) -> Result<(), String> {
        self.io.turn(Wait::No, &mut self.state.completions);
        self.state.zero = self.shared.now().wrapping_sub(self.io.now().0);
        let failed = |error: &dyn std::fmt::Display| format!("the first read failed: {error}");
        let into = self.io.arena().take(self.job.bs).ok_or_else(|| failed(&"no buffer"))?;
        let op = Op::Read { offset: self.job.offset, into };
        let deadline = self.shared.now() + DRAIN;
        let mut outcome = match self.lane.submit(&mut self.io, OpId(0), &op) {
            Submitted::Done(outcome) => Some(outcome),
            Submitted::Later => None,
        };
        while outcome.is_none() && self.state.now < deadline && !self.shared.is_stopped() {
            self.state.now = self.shared.now();
            let hurry = self.lane.flush(&mut self.io, &mut self.state.done);
            let wait = if hurry || !self.state.done.is_empty() { 0 } else { WAKE_INTERVAL_NS };
            self.exchange(Wait::AtMost(Duration::from_nanos(wait)));
            outcome = self.state.done.pop().map(|done| done.1);
        }
        self.io.arena().give(&into);
        match outcome {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(failed(&error)),
            None => Err(failed(&"no answer")),
        }
    }

    /// Submits as many operations as allowed.
    fn fill(&mut self) {
        self.state.has_finished_at_once = false;
        self.state.blocked = false;
        let mut due = self.state.pace.due(self.state.now);
        std::mem::swap(&mut self.state.idle, &mut self.state.starting);
        let mut starting = std::mem::take(&mut self.state.starting);
        let mut portion = 0;
        for slot in starting.drain(..) {
            if due == 0 || !self.choose(slot as usize) {
                self.state.blocked |= due > 0;
                self.state.idle.push(slot);
                continue;
            }
            due -= 1;
            self.state.pace.count();
            self.submit(slot);
            portion += 1;
            if portion == self.portion {
                portion = 0;
                self.lane.flush(&mut self.io, &mut self.state.done);
            }
        }
        self.state.starting = starting;
    }

    /// Chooses a slot's next operation; false: all blocks tried are in use.
    fn choose(&mut self, slot: usize) -> bool {
        let slot = &mut self.slots[slot];
        let stream = &mut self.streams[slot.stream];
        for _ in 0..TRIES {
            (slot.direction, slot.block) = stream.next(&mut self.rng);
            let Some(block_versions) = &self.block_versions else { return true };
            let claim = match slot.direction {
                Direction::Read => block_versions.begin_read(slot.block).map(Claim::Reading),
                Direction::Write => block_versions.begin_write(slot.block).map(Claim::Writing),
                Direction::Trim => unreachable!("trims are not verified"),
            };
            if let Some(claim) = claim {
                slot.claim = claim;
                return true;
            }
        }
        false
    }

    fn submit(&mut self, slot: u32) {
        let bs = u64::from(self.job.bs);
        let Slot { places, direction, block, claim, .. } = self.slots[slot as usize];
        let offset = self.job.offset + block * bs;
        if let (Some(block_versions), Claim::Writing(writing)) = (&self.block_versions, claim) {
            stamp(block_versions, writing, &mut self.io, &places);
            self.state.now = self.shared.now();
        }
        let op = match direction {
            Direction::Read => Op::Read { offset, into: places },
            Direction::Write => Op::Write { offset, from: places, durable: false, atomic: false },
            Direction::Trim => Op::Discard { offset, len: bs },
        };
        self.slots[slot as usize].submitted = self.state.now;
        self.state.in_flight += 1;
        match self.lane.submit(&mut self.io, OpId(slot), &op) {
            Submitted::Later => {}
            Submitted::Done(outcome) => {
                self.state.now = self.shared.now();
                self.finished(OpId(slot), outcome);
                self.state.has_finished_at_once = true;
            }
        }
    }

    /// Sends what was submitted, waits, and processes completions.
    fn turn(&mut self) {
        self.lane.work(&mut self.io, WORK_BYTES, &mut self.state.done);
        let waits = self.lane.flush(&mut self.io, &mut self.state.done);
        self.state.poller.hurry(waits || self.state.blocked);
        let wait = self.wait();
        let mut busy = self.exchange(wait) || self.state.has_finished_at_once;
        let before = self.state.now;
        self.state.now = self.state.zero.wrapping_add(self.io.now().0).max(before);
        self.state.end = self.shared.end.load(Ordering::Relaxed);
        self.cross_into_measuring();
        busy |= !self.state.done.is_empty();
        if self.state.has_finished_at_once {
            self.io.worked();
        }
        if !busy && wait == Wait::No {
            self.state.spun += self.state.now - before;
        }
        let mut done = std::mem::take(&mut self.state.done);
        for (id, outcome) in done.drain(..) {
            self.finished(id, outcome);
        }
        self.state.done = done;
        self.state.settle_run();
        if self.block_versions.is_some() {
            self.state.now = self.shared.now();
        }
        let work = if busy { Work::Other } else { Work::None };
        self.state.poller.turned(self.io.now(), work);
    }

    /// Passes completions and time to the lane; returns whether there were completions.
    fn exchange(&mut self, wait: Wait) -> bool {
        self.io.turn(wait, &mut self.state.completions);
        let any = !self.state.completions.is_empty();
        for completion in self.state.completions.drain(..) {
            self.lane.completed(&mut self.io, completion, &mut self.state.done);
        }
        if self.state.now >= self.state.tick {
            self.state.tick = self.state.now + TICK;
            self.lane.tick(&mut self.io, &mut self.state.done);
        }
        any
    }

    fn wait(&mut self) -> Wait {
        let State { now, begin, end, .. } = self.state;
        let next = self.state.pace.next_due().filter(|_| !self.state.idle.is_empty());
        let can_go_on = self.state.has_finished_at_once && next.is_none_or(|next| next <= now);
        if can_go_on || !self.state.done.is_empty() {
            return Wait::No;
        }
        let boundary = [begin, end].into_iter().find(|&boundary| now < boundary).unwrap_or(u64::MAX);
        let until = boundary.min(now + WAKE_INTERVAL_NS).min(next.unwrap_or(u64::MAX));
        let time = Duration::from_nanos(until.saturating_sub(now).max(1));
        self.state.poller.wait(self.io.now(), Some(time))
    }

    /// Handles an operation's completion.
    fn finished(&mut self, id: OpId, outcome: Outcome) {
        let slot = &mut self.slots[id.0 as usize];
        let submitted = std::mem::take(&mut slot.submitted);
        let direction = slot.direction;
        self.state.in_flight -= 1;
        self.state.idle.push(id.0);
        let is_ok = outcome.is_ok();
        match outcome {
            Ok(_) => {
                self.state.failures = 0;
                if self.state.now < self.state.end {
                    let latency = self.state.now.saturating_sub(submitted);
                    self.state.record(direction, latency);
                }
            }
            Err(error) => self.failed(id, &error),
        }
        let claim = std::mem::replace(&mut self.slots[id.0 as usize].claim, Claim::None);
        self.settle(id, claim, is_ok);
    }

    #[cold]
    fn failed(&mut self, id: OpId, error: &dyn std::fmt::Display) {
        let Slot { direction, block, .. } = self.slots[id.0 as usize];
        let at = self.job.offset + block * u64::from(self.job.bs);
        self.state.failures += 1;
        *self.state.report.errors.of_mut(direction) += 1;
        self.note(format_args!("{} at byte {at} failed: {error}", direction.name()));
        if self.state.failures == FAILURES_MAX {
            let job = self.index;
            self.note(format_args!("job {job} stopped after {FAILURES_MAX} failures in a row"));
        }
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        let errors = &mut self.state.report.first_errors;
        if errors.len() < ERRORS_KEPT {
            errors.push(what.to_string());
        }
    }

    /// Records the outcome of an operation in the block versions, and checks what was read.
    fn settle(&mut self, id: OpId, claim: Claim, is_ok: bool) {
        let Some(block_versions) = self.block_versions.as_deref() else { return };
        match claim {
            Claim::None => {}
            Claim::Writing(writing) => block_versions.end_write(writing, is_ok),
            Claim::Reading(reading) => {
                let slot = &self.slots[id.0 as usize];
                let mut check = block_versions.check(reading);
                if is_ok {
                    slot.places.iter().for_each(|span| check.add(self.io.arena().bytes(span)));
                    let verdict = check.verdict();
                    self.state.report.verify.count(verdict);
                    block_versions.end_read(reading);
                    if !matches!(verdict, Verdict::Good | Verdict::Unknown) {
                        let at = block_versions.address(slot.block);
                        self.note(format_args!("the block at byte {at} {verdict}"));
                    }
                } else {
                    block_versions.end_read(reading);
                }
            }
        }
    }

    /// Ends the ramp when its time has passed.
    fn cross_into_measuring(&mut self) {
        let now = self.state.now;
        if self.state.interval.measured || now < self.state.begin {
            return;
        }
        self.state.settle_run();
        self.state.interval.tally.clear();
        self.state.interval.from = now;
        self.state.interval.measured = true;
        self.state.spun = 0;
        self.state.cpu = (cpu::this_thread_seconds(), cpu::this_thread());
    }

    /// Hands the interval to the main thread if requested.
    fn hand_over(&mut self) {
        let state = &mut self.state;
        state.interval.to = state.now;
        let (now, measured) = (state.now, state.interval.measured);
        if self.shared.posts[self.index].leave(&mut state.seen, &mut state.interval) {
            state.interval.from = now;
            state.interval.measured = measured;
        }
    }

    fn stop_measuring(&mut self) {
        self.state.interval.to = self.state.now.min(self.state.end);
        let (seconds, thread) = std::mem::take(&mut self.state.cpu);
        if !self.state.interval.measured {
            return;
        }
        let seconds = (cpu::this_thread_seconds() - seconds).max(0.0);
        let after = cpu::this_thread();
        let ticks = match (&thread, &after) {
            (Some(before), Some(after)) => after.times.since(before.times),
            _ => Times::default(),
        };
        // The kernel reports the sum exactly, its parts in ticks.
        let user = if ticks.sum() > 0.0 { seconds * ticks.user / ticks.sum() } else { seconds };
        self.state.report.cpu = Times { user, system: seconds - user };
        self.state.report.thread = after;
        self.state.report.spun = self.state.spun;
    }

    /// Waits for operations in flight.
    fn drain(&mut self) {
        self.state.has_finished_at_once = false;
        self.state.blocked = false;
        let deadline = self.state.now + DRAIN;
        while self.state.in_flight > 0 && self.state.now < deadline {
            self.turn();
        }
        for slot in 0..self.slots.len() {
            if std::mem::take(&mut self.slots[slot].submitted) != 0 {
                self.failed(OpId(slot as u32), &"it did not finish within 30 s after the end");
            }
        }
    }

    /// Reads back its share of all written blocks, unless the run is stopped or the target no longer answers.
    fn read_back(&mut self, block_versions: &BlockVersions) {
        let (part, parts) = self.shared.share_of(self.index);
        let bound =
            |part: u64| (u128::from(block_versions.blocks()) * u128::from(part) / u128::from(parts)) as u64;
        let mut blocks =
            (bound(part)..bound(part + 1)).filter(|&block| block_versions.is_written(block)).peekable();
        self.state.failures = 0;
        self.state.pace = Pace::new(&Job::default(), 0);
        self.state.now = self.shared.now();
        let mut deadline = self.state.now + DRAIN;
        while blocks.peek().is_some()
            && self.state.failures < FAILURES_MAX
            && self.state.now < deadline
            && !self.shared.is_stopped()
        {
            self.state.has_finished_at_once = false;
            let ready = self.state.idle.len();
            if ready > 0 {
                deadline = self.state.now + DRAIN;
            }
            for block in blocks.by_ref().take(ready) {
                // The last write of the block never completed.
                let Some(reading) = block_versions.begin_read(block) else {
                    self.state.report.verify.unread += 1;
                    continue;
                };
                let slot = self.state.idle.pop().expect("they were counted");
                let entry = &mut self.slots[slot as usize];
                (entry.direction, entry.block, entry.claim) =
                    (Direction::Read, block, Claim::Reading(reading));
                self.submit(slot);
            }
            self.turn();
        }
        self.drain();
        self.state.report.verify.unread += blocks.count() as u64;
    }
}

fn stamp(block_versions: &BlockVersions, writing: Writing, io: &mut Uring, places: &Places) {
    let mut from = 0;
    for span in places.iter() {
        block_versions.fill(writing, from, io.arena().bytes_mut(span));
        from += span.len;
    }
}
