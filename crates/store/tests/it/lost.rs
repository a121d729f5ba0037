//! What a file loses when the kernel cannot write it back: nobody who relied on it gets GOOD.

use crate::support::Kernel;
use crate::support::fuse::Fuse;
use crate::support::rig::Rig;
use reactor::uring::Uring;
use rustix::io::Errno;
use scsi::storage::{Found, StoreError};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use store::Claim;
use store::file::FileStore;
use store::lane::{Op, OpId, Outcome};
use wire::Places;

const DONE: Outcome = Ok(Found::Nothing);
const LOST: Outcome = Err(StoreError::WriteFailed);
const BLOCK: usize = 4096;

fn served() -> (Fuse, Arc<FileStore>) {
    let fuse = Fuse::mount(1 << 20);
    let store = store::open_file(&fuse.path(), None, 512, Claim::Sole).unwrap();
    (fuse, store)
}

fn core(store: &Arc<FileStore>) -> Rig<Uring> {
    Rig::new(Uring::start(), store)
}

fn durable(rig: &mut Rig<Uring>, offset: u64, byte: u8) -> Op {
    let from = rig.room(0, BLOCK);
    rig.fill(&from, &[byte; BLOCK]);
    durable_from(from, offset)
}

fn durable_from(from: Places, offset: u64) -> Op {
    Op::Write { offset, from, durable: true, atomic: false }
}

/// Runs what two cores have begun to its end.
fn settle(first: (&mut Rig<Uring>, OpId), second: (&mut Rig<Uring>, OpId)) -> (Outcome, Outcome) {
    let outcome = |rig: &Rig<Uring>, id| rig.finished.iter().find(|(done, _)| *done == id).map(|done| done.1);
    loop {
        first.0.poll();
        second.0.poll();
        if let (Some(one), Some(two)) = (outcome(first.0, first.1), outcome(second.0, second.1)) {
            return (one, two);
        }
    }
}

#[test]
fn of_two_flushes_at_a_time_none_succeeds_for_what_one_has_lost() {
    let (fuse, store) = served();
    let (mut one, mut two) = (core(&store), core(&store));
    for faults in [Fuse::fail_writes, Fuse::fail_syncs] {
        fuse.hold();
        one.write(0, &[1; BLOCK]).unwrap();
        two.write(BLOCK as u64, &[2; BLOCK]).unwrap();
        let first = one.start(&Op::Flush);
        one.poll();
        fuse.wait_until_held();
        let second = two.start(&Op::Flush);
        two.poll();
        faults(&fuse, Some(Errno::IO.raw_os_error()));
        let losses = two.lane.losses();
        fuse.release();
        while one.finished.is_empty() {
            one.poll();
        }
        faults(&fuse, None);
        assert_eq!(settle((&mut one, first), (&mut two, second)), (LOST, LOST));
        assert_eq!(two.lane.losses(), losses + 1);
        one.finished.clear();
        two.finished.clear();
        assert_eq!((one.run(Op::Flush), two.run(Op::Flush)), (DONE, DONE), "what was not lost is kept");
    }
}

#[test]
fn every_error_of_a_durable_write_is_a_loss_to_others() {
    let (fuse, store) = served();
    let (mut one, mut two) = (core(&store), core(&store));
    for errno in [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::STALE] {
        fuse.fail_writes(Some(errno.raw_os_error()));
        one.write(0, &[1; BLOCK]).unwrap();
        let losses = one.lane.losses();
        fuse.write_back().unwrap_err();
        fuse.fail_writes(None);
        let write = durable(&mut two, 8 * BLOCK as u64, 2);
        two.run(write).unwrap_err();
        assert_eq!(one.lane.losses(), losses + 1, "{errno}");
        // The kernel has reported it, and does not do so again.
        assert_eq!(one.run(Op::Flush), DONE);
    }
}

#[test]
fn a_durable_write_whose_data_another_flush_has_lost_fails() {
    let (fuse, store) = served();
    let (mut one, mut two) = (core(&store), core(&store));
    fuse.hold();
    let write = durable(&mut two, 0, 2);
    let second = two.start(&write);
    // It writes; what arrives then waits until its core handles completions.
    let (file, mut byte) = (File::open(fuse.path()).unwrap(), [0]);
    while byte != [2] {
        two.submit();
        file.read_exact_at(&mut byte, 0).unwrap();
    }
    let flush = one.start(&Op::Flush);
    one.submit();
    fuse.wait_until_held();
    fuse.fail_writes(Some(Errno::IO.raw_os_error()));
    fuse.release();
    assert_eq!(one.settle(), [(flush, LOST)]);
    fuse.fail_writes(None);
    let first = one.start(&Op::Flush);
    assert_eq!(settle((&mut one, first), (&mut two, second)), (DONE, LOST));
    assert_eq!(fuse.byte(0), 0);
}

#[test]
fn durable_writes_and_flushes_of_all_cores_go_on_together() {
    let (fuse, store) = served();
    std::thread::scope(|scope| {
        for core in 0..3 {
            let store = &store;
            scope.spawn(move || {
                let mut rig = self::core(store);
                let from = rig.room(0, BLOCK);
                rig.fill(&from, &[core as u8 + 1; BLOCK]);
                for round in 0..30 {
                    for nth in 0..4 {
                        rig.start(&durable_from(from, (core * 4 + nth) * BLOCK as u64));
                        rig.start(&Op::Flush);
                    }
                    assert!(rig.settle().iter().all(|(_, outcome)| *outcome == DONE), "round {round}");
                }
            });
        }
    });
    for block in 0..12 {
        assert_eq!(usize::from(fuse.byte(block * BLOCK)), block / 4 + 1);
    }
}

#[test]
fn a_core_that_waits_for_the_sync_of_another_sleeps_until_it_is_woken() {
    let (fuse, store) = served();
    let (mut one, mut two) = (core(&store), core(&store));
    for round in 0..3 {
        one.write(0, &[1; BLOCK]).unwrap();
        fuse.hold();
        let first = one.start(&Op::Flush);
        one.submit();
        fuse.wait_until_held();
        let second = two.start(&Op::Flush);
        let looks_again = two.lane.flush(&mut two.io, &mut two.finished);
        assert!(!looks_again && two.finished.is_empty(), "round {round}");
        fuse.release();
        assert_eq!(one.settle(), [(first, DONE)]);
        assert_eq!(two.settle(), [(second, DONE)]);
    }
}

#[test]
fn a_core_that_goes_while_it_syncs_holds_nobody_up() {
    let (fuse, store) = served();
    let (mut gone, mut stays) = (core(&store), core(&store));
    stays.write(0, &[1; BLOCK]).unwrap();
    fuse.hold();
    gone.start(&Op::Flush);
    gone.submit();
    fuse.wait_until_held();
    let flush = stays.start(&Op::Flush);
    stays.poll();
    assert!(stays.finished.is_empty());
    fuse.release();
    drop(gone);
    assert_eq!(stays.settle(), [(flush, LOST)], "nobody knows how its sync has ended");
    assert_eq!(stays.run(Op::Flush), DONE);
}
