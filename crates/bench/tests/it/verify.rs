//! What a job with `verify` finds.

use super::support::{Fate, GOOD, faulty, measure, ram, refused, short};
use bench::job::{Job, Rw, Style};
use bench::result::{RunResult, VerifyCounts};
use reactor::uring::Uring;
use scsi::storage::StoreError;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use store::Claim;
use store::lane::{Backend, Op};

const BS: u32 = 4096;

/// Random reads and writes by several threads, and a check of everything at the end.
fn job() -> Job {
    Job { rw: Rw::RandRw, bs: BS, verify: true, iodepth: 8, size: Some(64 * 4096), ..short() }
}

fn counts(result: &RunResult) -> VerifyCounts {
    result.verify.unwrap()
}

/// Writes go through `bend`.
fn bad_writes(bend: impl Fn(u64, Op) -> Fate + Send + Sync + 'static) -> Arc<dyn Backend<Uring>> {
    faulty(ram(1 << 20), move |op| match op {
        Op::Write { offset, .. } => bend(offset, op),
        other => Fate::Does(other),
    })
}

fn sequential_writes(blocks: u64) -> Job {
    Job { rw: Rw::Write, iodepth: 32, size: Some(blocks * u64::from(BS)), ..job() }
}

#[test]
fn a_store_that_keeps_what_it_is_given_passes() {
    for style in [Style::Depth, Style::Bidirectional, Style::Outstanding { reads: 3, writes: 5 }] {
        let result = measure(&Job { numjobs: 4, style, ..job() }, &[ram(1 << 20), ram(1 << 20)]);
        let counts = counts(&result);
        assert!(counts.checked > 0 && counts.bad() == 0, "{counts:?} {:?}", result.first_errors);
    }
}

#[test]
fn a_file_that_keeps_what_it_is_given_passes() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk");
    let file: Arc<dyn Backend<Uring>> = store::open_file(&path, Some(1 << 20), 512, Claim::Sole).unwrap();
    let targets = [file];
    for bs in [512, 4608, 65_536 + 512] {
        let result =
            measure(&Job { bs, numjobs: 2, size: Some(1 << 20), buffer_compress: 50, ..job() }, &targets);
        let counts = counts(&result);
        assert!(counts.checked > 0 && counts.bad() == 0, "{bs}: {counts:?} {:?}", result.first_errors);
    }
}

#[test]
fn a_store_that_forgets_everything_loses() {
    let result = measure(&sequential_writes(64), &[store::open_null(1 << 20)]);
    let counts = counts(&result);
    assert!(counts.lost > 0 && counts.lost == counts.checked, "{counts:?}");
    assert!(result.first_errors[0].contains("is lost"), "{:?}", result.first_errors);
}

#[test]
fn a_write_that_only_seems_to_be_done_is_stale() {
    let written = Mutex::new(HashSet::new());
    let target = bad_writes(move |offset, op| match written.lock().unwrap().insert(offset) {
        true => Fate::Does(op),
        false => Fate::Says(GOOD),
    });
    let result = measure(&sequential_writes(16), &[target]);
    let counts = counts(&result);
    assert!(counts.stale > 0 && counts.stale == counts.bad(), "{counts:?}");
    assert!(result.first_errors[0].contains("holds version 1, but version"), "{:?}", result.first_errors);
}

#[test]
fn a_write_that_is_done_by_half_is_torn() {
    let target = bad_writes(|_, op| {
        let Op::Write { offset, from, durable, atomic } = op else { unreachable!() };
        Fate::Does(Op::Write { offset, from: from.slice(0, BS / 2), durable, atomic })
    });
    let counts = counts(&measure(&sequential_writes(64), &[target]));
    assert!(counts.torn > 0 && counts.torn == counts.checked, "{counts:?}");
}

#[test]
fn a_write_that_goes_elsewhere_is_misplaced() {
    let target = bad_writes(|offset, op| {
        let Op::Write { from, durable, atomic, .. } = op else { unreachable!() };
        Fate::Does(Op::Write { offset: offset ^ u64::from(BS), from, durable, atomic })
    });
    let result = measure(&sequential_writes(16), &[target]);
    let counts = counts(&result);
    assert!(counts.misplaced > 0 && counts.misplaced == counts.checked, "{counts:?}");
    assert!(
        result.first_errors.iter().any(|error| error.contains("holds the data of byte")),
        "{:?}",
        result.first_errors
    );
}

#[test]
fn a_read_of_another_block_is_misplaced() {
    let target = faulty(ram(1 << 20), |op| match op {
        Op::Read { offset, into } => Fate::Does(Op::Read { offset: offset ^ u64::from(BS), into }),
        other => Fate::Does(other),
    });
    let counts = counts(&measure(&sequential_writes(16), &[target]));
    assert!(counts.misplaced > 0 && counts.misplaced == counts.checked, "{counts:?}");
}

#[test]
fn one_bad_write_among_many_is_found() {
    let nth = AtomicU64::new(0);
    let target = bad_writes(move |_, op| match nth.fetch_add(1, Ordering::Relaxed) {
        7 => Fate::Says(GOOD),
        8.. => Fate::Says(Err(StoreError::WriteFailed)),
        _ => Fate::Does(op),
    });
    let result = measure(&sequential_writes(16), &[target]);
    let counts = counts(&result);
    assert_eq!((counts.lost, counts.bad()), (1, 1), "{counts:?} {:?}", result.first_errors);
}

#[test]
fn after_a_write_that_failed_either_version_is_right() {
    let nth = AtomicU64::new(0);
    let target = bad_writes(move |_, op| {
        let nth = nth.fetch_add(1, Ordering::Relaxed);
        match (nth % 3, op) {
            (0, op) => Fate::Does(op),
            (1, _) => Fate::Says(Err(StoreError::WriteFailed)),
            // Half of the data is written before the failure.
            (_, Op::Write { offset, from, durable, atomic }) if nth.is_multiple_of(2) => {
                Fate::Does(Op::Write { offset, from, durable, atomic })
            }
            (_, _) => Fate::Says(Err(StoreError::Busy)),
        }
    });
    let result = measure(&Job { numjobs: 2, ..job() }, &[target]);
    let counts = counts(&result);
    assert!(counts.checked > 0 && counts.bad() == 0, "{counts:?} {:?}", result.first_errors);
    assert!(result.write.unwrap().errors > 0);
}

#[test]
fn a_table_that_would_be_too_large_is_refused_with_a_fix() {
    let job = Job { rw: Rw::RandWrite, bs: 512, verify: true, ..short() };
    let error = refused(&job, store::open_null(1 << 40));
    assert!(error.contains("choose a smaller --size"), "{error}");
}
