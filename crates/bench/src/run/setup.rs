//! From a job to its threads.

use super::RunError;
use super::check::{arena_bytes, check, depth, is_random, streams, writes};
use super::meter::Direction;
use super::pattern::{AccessOrder, Mix, Pattern};
use super::shared::Shared;
use super::worker::{Slot, State, Worker};
use crate::job::{Job, Poll, Rw, Style};
use crate::verify::BlockVersions;
use fastrand::Rng;
use reactor::io::{Io, Tag};
use reactor::memory::Arena;
use reactor::topology;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use store::lane::Backend;
use wire::{Places, Span};

/// Room in each arena for what a lane itself needs. Memory is only committed as it is used.
const LANE_BYTES: u64 = 16 << 20;

/// A job applied to the given targets.
pub(super) struct Plan {
    pub(super) job: Arc<Job>,
    targets: Vec<Target>,
    streams: Vec<(Mix, u32)>,
}

struct Target {
    backend: Arc<dyn Backend<Uring>>,
    blocks: u64,
    cursor: Arc<AtomicU64>,
    block_versions: Option<Arc<BlockVersions>>,
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

    /// Creates thread number `index`'s worker; called on that thread.
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
                let places =
                    buffer(job, mix, &mut io, &mut rng).ok_or("not enough memory for the buffers")?;
                slots.push(Slot::new(stream, places));
            }
        }
        let first = (index % self.jobs()) as u64 * target.blocks / u64::from(job.numjobs);
        let pattern = |&(mix, _): &(Mix, u32)| {
            let order = match (job.style, is_random(job.rw)) {
                (Style::Shared, _) => AccessOrder::Shared(target.cursor.clone()),
                (_, true) => AccessOrder::Random,
                (_, false) => AccessOrder::Sequential(first),
            };
            Pattern { order, mix, blocks: target.blocks }
        };
        let mut worker = Worker {
            index,
            shared,
            job: job.clone(),
            block_versions: target.block_versions.clone(),
            lane: target.backend.clone().lane(Tag(0)),
            io,
            streams: self.streams.iter().map(pattern).collect(),
            state: State::new(job, slots.len()),
            slots,
            rng,
            portion: portion(job),
        };
        worker.warm_up().map_err(|problem| format!("job {index}: {problem}"))?;
        Ok(worker)
    }
}

/// Most reads sent together. When both sides spin, the target works on the first half while the second is
/// prepared: otherwise each would wait for the other with all of them. A sleeping side is woken once for all,
/// and writes take long to send.
fn portion(job: &Job) -> usize {
    let depth = depth(job) as usize;
    let goes_halves = job.poll != Poll::Never && !writes(job) && depth >= HALVES_MIN;
    if goes_halves { depth.div_ceil(2) } else { usize::MAX }
}

/// Fewer in flight are sent together.
const HALVES_MIN: usize = 16;

/// The smallest block size of any target.
const BLOCK_BYTES_MIN: u32 = 512;

impl Target {
    fn new(job: &Job, backend: &Arc<dyn Backend<Uring>>, name: &str) -> Result<Target, RunError> {
        let traits = backend.traits();
        let wrong = |problem: String, remedy: &str| Err(RunError::new(format!("{name}: {problem}"), remedy));
        if traits.read_only && writes(job) {
            return wrong(
                "it is read-only".into(),
                "choose --rw read or randread, or a target that can be written",
            );
        }
        if job.rw == Rw::Trim && !traits.discards {
            return wrong(
                "it cannot release space".into(),
                "choose another --rw, or a thin provisioned target",
            );
        }
        let Some(room) = traits.size_bytes.checked_sub(job.offset) else {
            let problem = format!("it ends at byte {}, before --offset {}", traits.size_bytes, job.offset);
            return wrong(problem, "choose a smaller --offset");
        };
        let size = job.size.unwrap_or(room);
        if size > room {
            let problem = format!("beyond --offset it has only {room} bytes, not {size}");
            return wrong(problem, "choose a smaller --size or --offset");
        }
        let blocks = size / u64::from(job.bs);
        if blocks == 0 {
            let problem = format!("{size} bytes hold no block of {} bytes", job.bs);
            let remedy = match job.bs > BLOCK_BYTES_MIN {
                true => "choose a smaller --bs or a larger --size",
                false => "choose a larger --size",
            };
            return wrong(problem, remedy);
        }
        let block_versions = match job.verify {
            true => Some(block_versions(job, blocks)?),
            false => None,
        };
        Ok(Target { backend: backend.clone(), blocks, cursor: Arc::new(AtomicU64::new(0)), block_versions })
    }
}

fn block_versions(job: &Job, blocks: u64) -> Result<Arc<BlockVersions>, RunError> {
    let run = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let run = run.map_or(0, |since| since.as_nanos() as u64);
    BlockVersions::new(job.offset, job.bs, blocks, job.seed, run, job.buffer_compress).map(Arc::new).map_err(
        |error| {
            RunError::new(
                error.to_string(),
                "choose a smaller --size, or a --bs that is a larger multiple of 512",
            )
        },
    )
}

/// A slot's buffer, with the content that is written from it without `verify`: incompressible, with as many
/// zeros in each 512 bytes as requested.
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
}
