//! What a job does, and what it reports.

use super::support::{Fate, faulty, faulty_in_batches, measure, observe, ram, refused, short};
use bench::job::{Job, Poll, Rw, Style};
use bench::result::{RunResult, Sample, Side};
use bench::run::{CpuSource, Watch};
use scsi::storage::StoreError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Claim;
use store::lane::Op;

const HOUR: Duration = Duration::from_secs(3600);

/// Direction, offset and length of an operation.
fn seen(op: &Op) -> (char, u64, u64) {
    match *op {
        Op::Read { offset, into } => ('r', offset, u64::from(into.len())),
        Op::Write { offset, from, .. } => ('w', offset, u64::from(from.len())),
        Op::Discard { offset, len } => ('t', offset, len),
        ref other => panic!("a job does not do {other:?}"),
    }
}

/// The first operations that a job sends to its target, after the warm-up reads.
fn first_operations(job: &Job) -> Vec<(char, u64, u64)> {
    const KEPT: usize = 4096;
    let all = Arc::new(Mutex::new(Vec::with_capacity(KEPT)));
    let log = all.clone();
    let target = faulty(store::open_null(1 << 30), move |op| {
        let mut log = log.lock().unwrap();
        if log.len() < KEPT {
            log.push(seen(&op));
        }
        Fate::Does(op)
    });
    measure(job, &[target]);
    let all = all.lock().unwrap();
    all[job.numjobs as usize..].to_vec()
}

#[test]
fn the_sums_of_a_run_add_up() {
    let counted = Arc::new(AtomicU64::new(0));
    let target = || {
        let counted = counted.clone();
        faulty(ram(1 << 20), move |op| {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::Does(op)
        })
    };
    let job = Job { rw: Rw::RandRw, rwmixread: 60, numjobs: 2, iodepth: 8, ..short() };
    let mut samples = Vec::new();
    let watch = Watch { target_cpu: Some(CpuSource::Process(std::process::id())), ..Watch::default() };
    let mut look = |sample: &Sample| samples.push(sample.clone());
    let result = observe(&job, &[target(), target()], &watch, &mut look);
    let (read, write) = (result.read.as_ref().unwrap(), result.write.as_ref().unwrap());
    let measured = read.operations + write.operations;
    let asked = counted.load(Ordering::Relaxed);
    // Each of 4 threads warms up with 1 read, and may have a queue of 8 that completes too late.
    assert!(measured > 0 && measured <= asked && asked - measured <= 4 * 9, "{measured} of {asked}");
    for stream in [read, write] {
        assert_eq!(stream.bytes, stream.operations * 4096);
        assert!((stream.iops - stream.operations as f64 / result.seconds).abs() < 1e-6);
        assert!((stream.bytes_per_second - stream.iops * 4096.0).abs() < 1e-3);
        assert!(stream.latency.min <= stream.latency.p50 && stream.latency.p50 <= stream.latency.max);
        assert_eq!(stream.errors, 0);
    }
    assert!((result.iops() - measured as f64 / result.seconds).abs() < 1e-6);
    assert!(result.trim.is_none() && result.verify.is_none());
    assert_eq!((&result.job, &result.series), (&job, &samples));
    assert_eq!(result.targets, ["target 0", "target 1"]);
    assert!(result.series.is_sorted_by(|a, b| a.at < b.at));
    let cpu = result.initiator_cpu.user_seconds + result.initiator_cpu.system_seconds;
    assert!(cpu > 0.0 && (result.initiator_cpu.us_per_op - cpu * 1e6 / measured as f64).abs() < 1e-6);
    assert!(result.target_cpu.is_some());
    assert_eq!(result.threads.iter().filter(|thread| thread.side == Side::Initiator).count(), 4);
    let text = serde_json::to_string(&result).unwrap();
    let back: RunResult = serde_json::from_str(&text).unwrap();
    // serde_json reads a fraction to within its last digit, not to the bit.
    assert!((back.iops() - result.iops()).abs() < 1e-6);
}

#[test]
fn operations_stay_aligned_inside_the_range() {
    for rw in [Rw::Read, Rw::Write, Rw::RandRead, Rw::RandWrite, Rw::RandRw, Rw::Trim] {
        let job = Job { rw, bs: 8192, offset: 4096, size: Some(100_000), iodepth: 4, ..short() };
        let operations = first_operations(&job);
        let directions = match rw {
            Rw::Read | Rw::RandRead => "r",
            Rw::Write | Rw::RandWrite => "w",
            Rw::RandRw => "rw",
            Rw::Trim => "t",
        };
        for (direction, offset, len) in operations {
            assert!(directions.contains(direction), "{rw:?}: {direction}");
            assert!(len == 8192 && offset >= 4096 && (offset - 4096) % 8192 == 0, "{rw:?}: {offset}");
            assert!(offset + len <= 4096 + 100_000, "{rw:?}: {offset}");
        }
    }
}

#[test]
fn a_sequential_job_goes_from_block_to_block() {
    let job = Job { rw: Rw::Write, bs: 4096, size: Some(8 * 4096), iodepth: 1, ..short() };
    for (nth, (_, offset, _)) in first_operations(&job).into_iter().enumerate() {
        assert_eq!(offset, nth as u64 % 8 * 4096);
    }
}

#[test]
fn threads_that_share_a_range_take_every_block_once() {
    let job = Job { rw: Rw::Read, style: Style::Shared, numjobs: 3, size: Some(1 << 30), ..short() };
    let mut blocks: Vec<u64> = first_operations(&job).iter().map(|operation| operation.1 / 4096).collect();
    let count = blocks.len();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), count);
}

#[test]
fn the_same_seed_gives_the_same_operations() {
    let job = |seed| Job { rw: Rw::RandRw, iodepth: 2, seed, ..short() };
    let (once, again, other) =
        (first_operations(&job(5)), first_operations(&job(5)), first_operations(&job(6)));
    let common = once.len().min(again.len()).min(other.len()).min(50);
    assert_eq!(once[..common], again[..common]);
    assert_ne!(once[..common], other[..common]);
}

/// Reads and writes in each turn's batch.
fn batches(job: &Job) -> Vec<(usize, usize)> {
    let now = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let (count, all) = (now.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = all.clone();
    let target = faulty_in_batches(
        store::open_null(1 << 30),
        move |op| {
            let counter = if seen(&op).0 == 'r' { &count.0 } else { &count.1 };
            counter.fetch_add(1, Ordering::Relaxed);
            Fate::Does(op)
        },
        move |_| {
            let batch = (now.0.swap(0, Ordering::Relaxed), now.1.swap(0, Ordering::Relaxed));
            log.lock().unwrap().push(batch);
        },
    );
    let result = measure(job, &[target]);
    assert!(result.iops() > 0.0);
    let all = all.lock().unwrap();
    // The first is the warm-up read.
    all[1..].to_vec()
}

#[test]
fn a_batch_of_completions_becomes_a_batch_of_submissions() {
    for poll in [Poll::Adaptive, Poll::Always, Poll::Never] {
        let job = Job { rw: Rw::RandRead, iodepth: 15, poll, ..short() };
        assert!(batches(&job).iter().all(|&batch| batch == (15, 0)));
    }
    let job = Job { rw: Rw::RandRead, iodepth: 16, poll: Poll::Never, ..short() };
    assert!(batches(&job).iter().all(|&batch| batch == (16, 0)));
    let job = Job { rw: Rw::RandWrite, iodepth: 16, poll: Poll::Always, ..short() };
    assert!(batches(&job).iter().all(|&batch| batch == (0, 16)));
}

#[test]
fn polling_workers_send_deep_reads_in_halves() {
    for poll in [Poll::Adaptive, Poll::Always] {
        let job = Job { rw: Rw::RandRead, iodepth: 16, poll, ..short() };
        assert!(batches(&job).iter().all(|&batch| batch == (8, 0)));
    }
}

#[test]
fn reads_and_writes_side_by_side_keep_their_own_depth() {
    let job = Job { rw: Rw::RandRw, style: Style::Outstanding { reads: 3, writes: 5 }, ..short() };
    assert!(batches(&job).iter().all(|&batch| batch == (3, 5)));
    let job = Job { rw: Rw::Read, style: Style::Bidirectional, iodepth: 4, ..short() };
    assert!(batches(&job).iter().all(|&batch| batch == (4, 4)));
}

#[test]
fn a_rate_is_not_exceeded() {
    let job = Job { rate_iops: Some(200), numjobs: 2, ..short() };
    let result = measure(&job, &[ram(1 << 20)]);
    let operations = result.read.unwrap().operations;
    assert!(operations > 0 && operations as f64 <= 2.0 * (200.0 * result.seconds + 1.0), "{operations}");
}

#[test]
fn a_ramp_is_shown_and_not_counted() {
    let job = Job { ramp: HOUR, runtime: HOUR, ..short() };
    let watch = Watch::default();
    let stop = watch.stop.clone();
    let mut ats = Vec::new();
    let mut look = |sample: &Sample| {
        ats.push(sample.at);
        stop.store(ats.len() == 3, Ordering::Relaxed);
    };
    let result = observe(&job, &[ram(1 << 20)], &watch, &mut look);
    assert_eq!((result.seconds, result.iops(), result.series.len()), (0.0, 0.0, 0));
    assert!(result.read.is_none());
    assert!(ats.len() == 3 && ats.iter().all(|&at| at < 0.0));
}

#[test]
fn a_run_that_is_stopped_reports_what_it_has() {
    let watch = Watch::default();
    let stop = watch.stop.clone();
    let job = Job { runtime: HOUR, verify: true, rw: Rw::RandWrite, ..short() };
    let mut look = |_: &Sample| stop.store(true, Ordering::Relaxed);
    let result = observe(&job, &[ram(1 << 20)], &watch, &mut look);
    assert!(result.seconds > 0.0 && result.seconds < HOUR.as_secs_f64());
    assert!(result.write.unwrap().operations > 0);
    let counts = result.verify.unwrap();
    assert!(counts.checked == 0 && counts.unread > 0, "nothing is read back: {counts:?}");
    assert_eq!(result.series.len(), 1);
}

#[test]
fn failures_are_counted_and_end_the_run_when_there_is_nothing_else() {
    let is_warm = AtomicBool::new(false);
    let target = faulty(ram(1 << 20), move |op| match is_warm.swap(true, Ordering::Relaxed) {
        false => Fate::Does(op),
        true => Fate::Says(Err(StoreError::Unavailable)),
    });
    let result = measure(&Job { runtime: HOUR, ..short() }, &[target]);
    let read = result.read.unwrap();
    assert!(read.operations == 0 && read.errors >= 1000, "{read:?}");
    assert!(result.first_errors.len() <= 16 && result.first_errors[0].contains("it is lost or not ready"));
}

#[test]
fn what_cannot_be_run_is_refused_before_it_starts() {
    let job = short();
    assert!(refused(&Job { offset: 1 << 30, ..job.clone() }, ram(1 << 20)).contains("smaller --offset"));
    assert!(refused(&Job { size: Some(1 << 30), ..job.clone() }, ram(1 << 20)).contains("smaller --size"));
    assert!(refused(&Job { size: Some(4095), ..job.clone() }, ram(1 << 20)).contains("smaller --bs"));
    assert!(refused(&Job { cores: vec![100_000], ..job.clone() }, ram(1 << 20)).contains("core 100000"));
    let dead = faulty(ram(1 << 20), |_| Fate::Says(Err(StoreError::Unavailable)));
    assert!(refused(&Job { numjobs: 3, ..job.clone() }, dead).contains("the first read failed"));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    std::fs::File::create_new(&path).unwrap().set_len(1 << 20).unwrap();
    let file = store::open_file(&path, None, 512, Claim::Shared).unwrap();
    assert!(refused(&Job { rw: Rw::Write, ..job.clone() }, file.clone()).contains("it is read-only"));
    assert!(measure(&job, &[file]).iops() > 0.0);
}

#[test]
fn job_threads_can_be_pinned() {
    let core = *reactor::topology::usable_cores().unwrap().last().unwrap();
    let result =
        measure(&Job { cores: vec![core], numjobs: 2, poll: Poll::Never, ..short() }, &[ram(1 << 20)]);
    let own: Vec<_> = result.threads.iter().filter(|thread| thread.side == Side::Initiator).collect();
    assert!(own.len() == 2 && own.iter().all(|thread| thread.core == core), "{own:?}");
}
