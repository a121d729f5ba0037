//! Whether a job can run at all, and the limits derived from it.

use super::RunError;
use super::meter::Direction;
use super::pattern::Mix;
use crate::job::{Job, Rw, Style};
use crate::verify::UNIT_BYTES;
use reactor::memory::{LARGE_BYTES, SMALL_BYTES};
use wire::Places;

/// The longest operation: the most that one operation's places can hold.
pub const BS_MAX: u32 = LARGE_BYTES * Places::MAX as u32;

/// Most operations that one job may keep in flight.
pub const DEPTH_MAX: u32 = 4096;

/// Most threads of one run.
pub const THREADS_MAX: usize = 1024;

/// Most memory for all buffers of a run.
pub const BUFFERS_BYTES_MAX: u64 = 64 << 30;

/// Checks a job for this many targets, as far as that is possible without them.
///
/// # Errors
/// When it could run on no target.
pub fn check(job: &Job, targets: usize) -> Result<(), RunError> {
    let faults = amounts(job, targets).into_iter().chain(settings(job));
    match faults.into_iter().find(|fault| fault.0) {
        Some((_, problem, remedy)) => Err(RunError::new(problem, remedy)),
        None => Ok(()),
    }
}

/// Whether the fault exists, what it is, and the fix.
type Fault = (bool, String, &'static str);

fn amounts(job: &Job, targets: usize) -> [Fault; 7] {
    let depth = depth(job);
    let threads = (job.numjobs as usize).saturating_mul(targets);
    let buffers = arena_bytes(job).saturating_mul(threads as u64);
    [
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
        (depth == 0, "no operation would be kept in flight".into(), "choose an --iodepth of at least 1"),
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
    ]
}

fn settings(job: &Job) -> [Fault; 11] {
    [
        (
            job.rwmixread > 100,
            format!("--rwmixread {} is more than 100", job.rwmixread),
            "choose 0 to 100 percent",
        ),
        (
            job.buffer_compress > 100,
            format!("--buffer-compress {} is more than 100", job.buffer_compress),
            "choose 0 to 100 percent",
        ),
        (
            job.rate == Some(0),
            "--rate 0 does nothing".into(),
            "choose bytes per second, such as 100M, or leave it out",
        ),
        (
            job.rate_iops == Some(0),
            "--rate-iops 0 does nothing".into(),
            "choose at least 1 operation per second, or leave it out",
        ),
        (
            job.rate.is_some() && job.rate_iops.is_some(),
            "--rate and --rate-iops cannot be combined".into(),
            "leave one of them out",
        ),
        (job.runtime.is_zero(), "--runtime 0 measures nothing".into(), "choose a longer time"),
        (
            job.style == Style::Shared && is_random(job.rw),
            "threads that share a range must go through it in order".into(),
            "choose --rw read, write or trim",
        ),
        (
            job.verify && job.rw == Rw::Trim,
            "discarded blocks are not verified".into(),
            "leave --verify out, or choose another --rw",
        ),
        (
            job.verify && job.rw != Rw::Trim && !writes(job),
            "--verify checks what the run itself has written, and this one only reads".into(),
            "choose --rw write, randwrite or randrw, or leave --verify out",
        ),
        (
            job.verify && !job.bs.is_multiple_of(UNIT_BYTES),
            format!("--verify cannot mark blocks of {} bytes", job.bs),
            "choose a --bs that is a multiple of 512",
        ),
        (
            job.rw == Rw::Trim && job.style != Style::Depth && job.style != Style::Shared,
            "discards are one stream".into(),
            "choose --rw read or randread for the order of two streams",
        ),
    ]
}

/// The streams of one job, and how many operations each keeps in flight.
pub(super) fn streams(job: &Job) -> Vec<(Mix, u32)> {
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

/// Operations that one job keeps in flight.
pub(crate) fn depth(job: &Job) -> u32 {
    streams(job).iter().fold(0u32, |sum, &(_, depth)| sum.saturating_add(depth))
}

/// Whether a job changes its targets.
pub fn writes(job: &Job) -> bool {
    streams(job).iter().any(|&(mix, depth)| depth > 0 && mix != Mix::Only(Direction::Read))
}

/// Whether blocks are accessed in random order.
pub(super) fn is_random(rw: Rw) -> bool {
    match rw {
        Rw::RandRead | Rw::RandWrite | Rw::RandRw => true,
        Rw::Read | Rw::Write | Rw::Trim => false,
    }
}

/// Memory for the buffers of one job.
pub(super) fn arena_bytes(job: &Job) -> u64 {
    let each = match job.bs {
        bs if bs <= SMALL_BYTES => SMALL_BYTES,
        bs => bs.min(BS_MAX).next_multiple_of(LARGE_BYTES),
    };
    streams(job).iter().map(|&(_, depth)| u64::from(each) * u64::from(depth)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_jobs_are_refused_with_a_fix() {
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
        refused(Job { rate: Some(0), ..base.clone() }, "--rate 0");
        refused(Job { rate_iops: Some(0), ..base.clone() }, "--rate-iops 0");
        refused(Job { rate: Some(1), rate_iops: Some(1), ..base.clone() }, "cannot be combined");
        refused(Job { style: Style::Shared, ..base.clone() }, "in order");
        refused(Job { verify: true, rw: Rw::Trim, ..base.clone() }, "--verify");
        refused(Job { verify: true, ..base.clone() }, "only reads");
        let reads = Style::Outstanding { reads: 1, writes: 0 };
        refused(Job { verify: true, rw: Rw::Write, style: reads, ..base.clone() }, "only reads");
        refused(Job { verify: true, rw: Rw::Write, bs: 1000, ..base.clone() }, "multiple of 512");
        assert!(check(&base, 0).is_err());
    }
}
