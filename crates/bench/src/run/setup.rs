//! From a job to its threads.

use super::RunError;
use super::meter::Direction;
use super::pattern::{Mix, Order, Pattern};
use super::shared::Shared;
use super::worker::{Slot, State, Worker};
use crate::job::{Job, Rw, Style};
use crate::verify::{Ledger, UNIT_BYTES};
use fastrand::Rng;
use reactor::io::{Io, Tag};
use reactor::memory::{Arena, LARGE_BYTES, SMALL_BYTES};
use reactor::topology;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use store::lane::Backend;
use wire::{Places, Span};

/// The longest operation: what one operation's places can name.
pub const BS_MAX: u32 = LARGE_BYTES * Places::MAX as u32;

/// Operations that one job may keep in flight.
pub const DEPTH_MAX: u32 = 4096;

/// Threads of one run.
pub const THREADS_MAX: usize = 1024;

/// Memory that all buffers of a run may take.
pub const BUFFERS_BYTES_MAX: u64 = 64 << 30;

/// Room in each arena for what a lane needs for itself. Memory is taken only as it is used.
const LANE_BYTES: u64 = 16 << 20;

/// What a job means for the targets at hand.
pub(super) struct Plan {
    pub(super) job: Arc<Job>,
    targets: Vec<Target>,
    streams: Vec<(Mix, u32)>,
}

struct Target {
    backend: Arc<dyn Backend<Uring>>,
    blocks: u64,
    cursor: Arc<AtomicU64>,
    ledger: Option<Arc<Ledger>>,
}

impl Plan {
    pub(super) fn new(
        job: &Job,
        backends: &[Arc<dyn Backend<Uring>>],
        names: &[String],
    ) -> Result<Plan, RunError> {
        check(job, backends.len())?;
        let streams = streams(job);
        let mut targets = Vec::new();
        for (index, backend) in backends.iter().enumerate() {
            let name = names.get(index).map_or("the target", String::as_str);
            targets.push(Target::new(job, backend, name)?);
        }
        Ok(Plan { job: Arc::new(job.clone()), targets, streams })
    }

    pub(super) fn workers(&self) -> usize {
        self.targets.len() * self.jobs()
    }

    pub(super) fn jobs(&self) -> usize {
        self.job.numjobs as usize
    }

    /// Makes thread number `index`; called on that thread.
    pub(super) fn worker(&self, index: usize, shared: Arc<Shared>) -> Result<Worker, String> {
        let job = &self.job;
        let target = &self.targets[index / self.jobs()];
        if let Some(&core) = job.cores.get(index % job.cores.len().max(1)) {
            topology::pin_to(core).map_err(|error| format!("job {index} on core {core}: {error}"))?;
        }
        let failed = |error: std::io::Error| format!("job {index}: {error}");
        let arena = Arena::new(arena_bytes(job) + LANE_BYTES).map_err(failed)?;
        let waker = Waker::new().map_err(failed)?;
        let mut io = Uring::new(arena, waker).map_err(failed)?;
        let mut rng = Rng::with_seed(job.seed.wrapping_add(index as u64));
        let mut slots = Vec::new();
        for (stream, &(mix, depth)) in self.streams.iter().enumerate() {
            for _ in 0..depth {
                let places = buffer(job, mix, &mut io, &mut rng).ok_or("the buffers do not fit")?;
                slots.push(Slot::new(stream, places));
            }
        }
        let first = (index % self.jobs()) as u64 * target.blocks / u64::from(job.numjobs);
        let pattern = |&(mix, _): &(Mix, u32)| {
            let order = match (job.style, is_random(job.rw)) {
                (Style::Shared, _) => Order::Shared(target.cursor.clone()),
                (_, true) => Order::Random,
                (_, false) => Order::Sequential(first),
            };
            Pattern { order, mix, blocks: target.blocks }
        };
        let mut worker = Worker {
            index,
            shared,
            job: job.clone(),
            ledger: target.ledger.clone(),
            lane: target.backend.clone().lane(Tag(0)),
            io,
            streams: self.streams.iter().map(pattern).collect(),
            state: State::new(job, slots.len()),
            slots,
            rng,
        };
        worker.warm_up().map_err(|problem| format!("job {index}: {problem}"))?;
        Ok(worker)
    }
}

impl Target {
    fn new(job: &Job, backend: &Arc<dyn Backend<Uring>>, name: &str) -> Result<Target, RunError> {
        let traits = backend.traits();
        let wrong = |problem: String, remedy: &str| Err(RunError::new(format!("{name}: {problem}"), remedy));
        if traits.read_only && streams(job).iter().any(|&(mix, _)| mix != Mix::Only(Direction::Read)) {
            return wrong(
                "it is read-only".into(),
                "choose --rw read or randread, or a target that can be written",
            );
        }
        let Some(room) = traits.size_bytes.checked_sub(job.offset) else {
            let problem = format!("it ends at byte {}, before --offset {}", traits.size_bytes, job.offset);
            return wrong(problem, "choose a smaller --offset");
        };
        let size = job.size.unwrap_or(room);
        if size > room {
            let problem = format!("from --offset on it has {room} bytes, not {size}");
            return wrong(problem, "choose a smaller --size or --offset");
        }
        let blocks = size / u64::from(job.bs);
        if blocks == 0 {
            let problem = format!("{size} bytes hold no block of {} bytes", job.bs);
            return wrong(problem, "choose a smaller --bs or a larger --size");
        }
        let ledger = match job.verify {
            true => Some(ledger(job, blocks)?),
            false => None,
        };
        Ok(Target { backend: backend.clone(), blocks, cursor: Arc::new(AtomicU64::new(0)), ledger })
    }
}

fn ledger(job: &Job, blocks: u64) -> Result<Arc<Ledger>, RunError> {
    let run = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let run = run.map_or(0, |since| since.as_nanos() as u64);
    Ledger::new(job.offset, job.bs, blocks, job.seed, run, job.buffer_compress).map(Arc::new).map_err(
        |error| {
            RunError::new(
                error.to_string(),
                "choose a smaller --size, or a --bs that is a larger multiple of 512",
            )
        },
    )
}

fn check(job: &Job, targets: usize) -> Result<(), RunError> {
    let depth = streams(job).iter().fold(0u32, |sum, &(_, depth)| sum.saturating_add(depth));
    let threads = (job.numjobs as usize).saturating_mul(targets);
    let buffers = arena_bytes(job).saturating_mul(threads as u64);
    let unit = UNIT_BYTES;
    let faults = [
        (targets == 0, "there is no target".into(), "name one"),
        (
            job.bs == 0 || job.bs > BS_MAX,
            format!("--bs {} is out of range", job.bs),
            "choose 1 to 262144 bytes",
        ),
        (job.numjobs == 0, "--numjobs 0 does nothing".into(), "choose at least 1"),
        (
            threads > THREADS_MAX,
            format!("{threads} threads are too many"),
            "choose fewer --numjobs, at most 1024 in all",
        ),
        (depth == 0, "no operation is to be kept in flight".into(), "choose an --iodepth of at least 1"),
        (
            depth > DEPTH_MAX,
            format!("{depth} operations in flight are too many for one job"),
            "choose at most 4096, and more --numjobs",
        ),
        (
            buffers > BUFFERS_BYTES_MAX,
            format!("{buffers} bytes of buffers are too many"),
            "choose a smaller --bs, --iodepth or --numjobs",
        ),
        (
            job.rwmixread > 100,
            format!("--rwmixread {} is more than all", job.rwmixread),
            "choose 0 to 100 percent",
        ),
        (
            job.buffer_compress > 100,
            format!("--buffer-compress {} is more than all", job.buffer_compress),
            "choose 0 to 100 percent",
        ),
        (
            job.rate == Some(0),
            "--rate 0 does nothing".into(),
            "choose at least 1 operation per second, or leave it out",
        ),
        (job.runtime.is_zero(), "--runtime 0 measures nothing".into(), "choose a longer time"),
        (
            job.style == Style::Shared && is_random(job.rw),
            "threads that share one range go through it in order".into(),
            "choose --rw read, write or trim",
        ),
        (
            job.verify && job.rw == Rw::Trim,
            "discarded blocks are not verified".into(),
            "leave --verify out, or choose another --rw",
        ),
        (
            job.verify && !job.bs.is_multiple_of(unit),
            format!("--verify cannot mark blocks of {} bytes", job.bs),
            "choose a --bs that is a multiple of 512",
        ),
        (
            job.rw == Rw::Trim && job.style != Style::Depth && job.style != Style::Shared,
            "discards are one stream".into(),
            "choose --rw read or randread for the order of two streams",
        ),
    ];
    match faults.into_iter().find(|fault| fault.0) {
        Some((_, problem, remedy)) => Err(RunError::new(problem, remedy)),
        None => Ok(()),
    }
}

/// The streams of one job, and how many operations each keeps in flight.
fn streams(job: &Job) -> Vec<(Mix, u32)> {
    let mix = match job.rw {
        Rw::Read | Rw::RandRead => Mix::Only(Direction::Read),
        Rw::Write | Rw::RandWrite => Mix::Only(Direction::Write),
        Rw::RandRw => Mix::Reads(job.rwmixread),
        Rw::Trim => Mix::Only(Direction::Trim),
    };
    let both =
        |reads, writes| vec![(Mix::Only(Direction::Read), reads), (Mix::Only(Direction::Write), writes)];
    match job.style {
        Style::Depth => vec![(mix, job.iodepth)],
        Style::Shared => vec![(mix, 1)],
        Style::Outstanding { reads, writes } => both(reads, writes),
        Style::Bidirectional => both(job.iodepth, job.iodepth),
    }
}

fn is_random(rw: Rw) -> bool {
    match rw {
        Rw::RandRead | Rw::RandWrite | Rw::RandRw => true,
        Rw::Read | Rw::Write | Rw::Trim => false,
    }
}

fn arena_bytes(job: &Job) -> u64 {
    let each = match job.bs {
        bs if bs <= SMALL_BYTES => SMALL_BYTES,
        bs => bs.min(BS_MAX).next_multiple_of(LARGE_BYTES),
    };
    streams(job).iter().map(|&(_, depth)| u64::from(each) * u64::from(depth)).sum()
}

/// A slot's buffer, with the content that is written from it when there is no ledger to say what: what cannot be
/// compressed, and in each 512 bytes as many zeros as asked for.
fn buffer(job: &Job, mix: Mix, io: &mut Uring, rng: &mut Rng) -> Option<Places> {
    if mix == Mix::Only(Direction::Trim) {
        return Some(Places::EMPTY);
    }
    let places = io.arena().take(job.bs)?;
    let random = 512 - 512 * usize::from(job.buffer_compress) / 100;
    for span in places.iter() {
        fill(io.arena().bytes_mut(Span { ..span }), random, rng);
    }
    Some(places)
}

fn fill(bytes: &mut [u8], random: usize, rng: &mut Rng) {
    for chunk in bytes.chunks_mut(512) {
        let (noise, zeros) = chunk.split_at_mut(random.min(chunk.len()));
        rng.fill(noise);
        zeros.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_data_compresses_as_asked() {
        let zeros = |percent: usize| {
            let mut bytes = vec![1; 1024];
            fill(&mut bytes, 512 - 512 * percent / 100, &mut Rng::with_seed(1));
            bytes.iter().filter(|&&byte| byte == 0).count()
        };
        assert!(zeros(0) < 20);
        assert!((512..532).contains(&zeros(50)));
        assert_eq!(zeros(100), 1024);
    }

    #[test]
    fn impossible_jobs_are_refused_with_a_cure() {
        let base = Job::default();
        let refused = |job: Job, word: &str| {
            let error = check(&job, 1).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        assert!(check(&base, 1).is_ok());
        refused(Job { bs: 0, ..base.clone() }, "--bs");
        refused(Job { bs: BS_MAX + 1, ..base.clone() }, "262144");
        refused(Job { numjobs: 0, ..base.clone() }, "--numjobs");
        refused(Job { numjobs: u32::MAX, ..base.clone() }, "at most 1024");
        refused(Job { iodepth: 0, ..base.clone() }, "--iodepth");
        refused(Job { iodepth: u32::MAX, style: Style::Bidirectional, ..base.clone() }, "at most 4096");
        refused(Job { iodepth: 4096, numjobs: 1024, bs: 65_536, ..base.clone() }, "bytes of buffers");
        refused(Job { rwmixread: 101, ..base.clone() }, "percent");
        refused(Job { rate: Some(0), ..base.clone() }, "--rate");
        refused(Job { style: Style::Shared, ..base.clone() }, "in order");
        refused(Job { verify: true, rw: Rw::Trim, ..base.clone() }, "--verify");
        refused(Job { verify: true, bs: 1000, ..base.clone() }, "multiple of 512");
        assert!(check(&base, 0).is_err());
    }
}
