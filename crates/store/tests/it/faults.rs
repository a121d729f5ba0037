//! How stores handle a kernel and a medium that fail.

use crate::support::fake::{Decide, FakeIo, Fate, Request};
use crate::support::rig::Rig;
use crate::support::{Kernel, Random, SIZE, Tmpfs, directory, is_root, sparse};
use reactor::io::Allocate;
use reactor::uring::Uring;
use rustix::io::Errno;
use scsi::storage::{Found, StoreError};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use store::Claim;
use store::file::FileStore;
use store::lane::{Op, Store};
use tempfile::TempDir;

const DONE: Result<Found, StoreError> = Ok(Found::Nothing);

fn file(size: u64) -> (TempDir, PathBuf, Arc<FileStore>) {
    let directory = directory();
    let path = sparse(&directory, size);
    let store = store::open_file(&path, None, 1, Claim::Sole).unwrap();
    (directory, path, store)
}

fn deciding(store: &Arc<FileStore>, decide: impl FnMut(&Request) -> Fate + 'static) -> Rig<FakeIo> {
    let decide: Decide = Box::new(decide);
    Rig::new(FakeIo::with(decide), store)
}

/// Where there is no page cache, a durable write is one request.
fn is_direct(store: &Arc<FileStore>) -> bool {
    store.describe().contains("direct I/O")
}

/// Fails every request with the error that the cell holds.
fn failing(store: &Arc<FileStore>) -> (Rig<FakeIo>, Rc<Cell<Option<Errno>>>) {
    let error = Rc::new(Cell::new(None));
    let shared = error.clone();
    let decide = move |_: &Request| shared.get().map_or(Fate::Succeeds, Fate::Fails);
    (deciding(store, decide), error)
}

#[test]
fn errors_of_the_medium_are_distinguished() {
    let (_directory, _, store) = file(SIZE);
    let (mut rig, error) = failing(&store);
    let cases = [
        (Errno::IO, StoreError::ReadFailed { at: 4096 }, StoreError::WriteFailed),
        (Errno::NOSPC, StoreError::NoSpace, StoreError::NoSpace),
        (Errno::DQUOT, StoreError::NoSpace, StoreError::NoSpace),
        (Errno::ROFS, StoreError::ReadOnly, StoreError::ReadOnly),
        (Errno::NXIO, StoreError::Unavailable, StoreError::Unavailable),
        (Errno::NOMEM, StoreError::Busy, StoreError::Busy),
        (Errno::CANCELED, StoreError::Cancelled, StoreError::Cancelled),
        (Errno::AGAIN, StoreError::Busy, StoreError::Busy),
    ];
    for (errno, read, write) in cases {
        error.set(Some(errno));
        assert_eq!(rig.read(4096, 512), Err(read));
        assert_eq!(rig.write(4096, &[1; 4096]), Err(write));
        assert_eq!(rig.run(Op::Zero { offset: 0, len: 1 << 20, unmap: true, durable: true }), Err(write));
        assert_eq!(rig.run(Op::Discard { offset: 0, len: 1 << 20 }), Err(write));
        assert_eq!(rig.compare_and_write(4096, &[0; 512], &[1; 512]), Err(read));
        assert_eq!(rig.run(Op::Flush), Err(write));
        error.set(None);
        assert_eq!(rig.read(4096, 512), Ok(vec![0; 512]));
        assert_eq!(rig.compare_and_write(4096, &[0; 512], &[0; 512]), DONE, "nothing stays locked");
    }
    assert_eq!(rig.lane.in_flight(), 0);
}

#[test]
fn a_read_reports_where_it_failed() {
    let (_directory, _, store) = file(SIZE);
    let mut calls = 0;
    let mut rig = deciding(&store, move |_| {
        calls += 1;
        if calls == 1 { Fate::Short(8192) } else { Fate::Fails(Errno::IO) }
    });
    assert_eq!(rig.read(4096, 65_536), Err(StoreError::ReadFailed { at: 12_288 }));
}

#[test]
fn short_transfers_go_on() {
    for size in [SIZE, SIZE + 1] {
        let (_directory, _, store) = file(size);
        let mut random = Random::new(3);
        let mut rig = deciding(&store, move |_| match random.below(3) {
            0 => Fate::Succeeds,
            1 => Fate::Short(4096 * (1 + random.below(8)) as u32 + 5),
            _ => Fate::Fails(if random.chance(2) { Errno::INTR } else { Errno::AGAIN }),
        });
        let data = Random::new(4).bytes(200_000);
        for offset in [0, 4096, 8191] {
            rig.write(offset, &data).unwrap();
            assert!(rig.read(offset, 200_000).unwrap() == data);
            assert_eq!(rig.compare_and_write(offset, &data, &data), DONE);
            assert_eq!(rig.run(Op::Zero { offset, len: 5 << 20, unmap: false, durable: true }), DONE);
            assert!(rig.read(offset, 200_000).unwrap().iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_file_that_was_cut_fails_where_it_ends() {
    for size in [SIZE, SIZE + 1] {
        let (_directory, path, store) = file(size);
        let mut rig = Rig::new(Uring::start(), &store);
        File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(rig.read((1 << 20) - 4096, 4096), Ok(vec![0; 4096]));
        let cut = Err(StoreError::ReadFailed { at: 1 << 20 });
        assert_eq!(rig.read((1 << 20) - 4096, 8192), cut);
        assert_eq!(rig.read((1 << 20) - 4097, 8192), cut);
        assert_eq!(rig.read(1 << 20, 512), cut);
        assert_eq!(rig.read((1 << 20) + 7, 512), Err(StoreError::ReadFailed { at: (1 << 20) + 7 }));
        let compare = rig.compare_and_write(1 << 20, &[0; 512], &[1; 512]);
        assert_eq!(compare, Err(StoreError::ReadFailed { at: 1 << 20 }));
    }
}

#[test]
fn a_changed_size_is_noticed() {
    let (_directory, path, store) = file(SIZE);
    let mut rig = Rig::new(Uring::start(), &store);
    let resize = |size| File::options().write(true).open(&path).unwrap().set_len(size).unwrap();
    assert_eq!(store.refresh(), Ok(None));
    resize(SIZE * 2);
    assert_eq!(rig.read(SIZE, 512), Err(StoreError::OutOfRange));
    assert_eq!(store.refresh().unwrap().map(|traits| traits.size_bytes), Some(SIZE * 2));
    assert_eq!(store.refresh(), Ok(None));
    assert_eq!(rig.read(SIZE, 512), Ok(vec![0; 512]));
    resize(4096);
    assert_eq!(store.refresh().unwrap().map(|traits| traits.size_bytes), Some(4096));
    assert_eq!(rig.read(4096, 512), Err(StoreError::OutOfRange));
    assert_eq!(rig.write(3584, &[1; 512]), DONE);
}

#[test]
fn what_cannot_be_punched_is_left_as_it_is_by_a_discard_and_written_by_a_zeroing() {
    let (_directory, _, store) = file(SIZE);
    let asked = Rc::new(RefCell::new(Vec::new()));
    let log = asked.clone();
    let mut rig = deciding(&store, move |request| match request {
        Request::Allocate { how, .. } => {
            log.borrow_mut().push(*how);
            Fate::Fails(Errno::OPNOTSUPP)
        }
        _ => Fate::Succeeds,
    });
    assert!(store.traits().discards);
    rig.write(0, &[2; 4096]).unwrap();
    assert_eq!(rig.run(Op::Discard { offset: 0, len: SIZE }), DONE);
    assert_eq!(store.refresh().unwrap().map(|traits| traits.discards), Some(false));
    assert_eq!(store.refresh(), Ok(None));
    assert_eq!(rig.run(Op::Discard { offset: 0, len: SIZE }), DONE);
    assert_eq!(rig.read(0, 4096), Ok(vec![2; 4096]));
    for (offset, len) in [(0, 5 << 20), (4095, 70_000), (16 << 20, 1 << 20)] {
        rig.write(offset, &[1; 100_000]).unwrap();
        rig.write(offset + len - 10, &[1; 20]).unwrap();
        assert_eq!(rig.run(Op::Zero { offset, len, unmap: true, durable: false }), DONE);
        assert!(rig.read(offset, 60_000).unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(rig.read(offset + len - 10, 20).unwrap(), [[0; 10], [1; 10]].concat());
    }
    assert_eq!(*asked.borrow(), [Allocate::PunchHole, Allocate::Zero], "each is tried once");
    assert!(!store.traits().discards);
}

#[test]
fn durable_operations_end_with_a_sync_or_are_one() {
    for size in [SIZE, SIZE + 1] {
        durable_operations_sync(size);
    }
}

fn durable_operations_sync(size: u64) {
    let (_directory, _, store) = file(size);
    let log = Rc::new(RefCell::new(Vec::new()));
    let seen = log.clone();
    let mut rig = deciding(&store, move |request| {
        seen.borrow_mut().push(match request {
            Request::Read { .. } => "read",
            Request::Write { durable: true, .. } => "durable write",
            Request::Write { durable: false, .. } => "write",
            Request::Sync => "sync",
            Request::Allocate { .. } => "clear",
        });
        Fate::Succeeds
    });
    let clear = |durable| Op::Zero { offset: 0, len: 1 << 20, unmap: true, durable };
    assert_eq!(rig.run(clear(false)), DONE);
    assert_eq!(rig.run(clear(true)), DONE);
    assert_eq!(log.take(), ["clear", "clear", "sync"]);
    let from = rig.room(0, 4096);
    rig.fill(&from, &[1; 4096]);
    assert_eq!(rig.run(Op::Write { offset: 0, from, durable: true, atomic: false }), DONE);
    assert_eq!(rig.run(Op::Flush), DONE);
    let durable_write: &[&str] = if is_direct(&store) { &["durable write"] } else { &["write", "sync"] };
    assert_eq!(log.take(), [durable_write, &["sync"]].concat());
    assert_eq!(rig.run(Op::OrWrite { offset: 0, from, durable: true }), DONE);
    assert_eq!(rig.run(Op::CompareAndWrite { offset: 0, compare: from, write: from, durable: true }), DONE);
    assert_eq!(log.take(), [&["read"], durable_write, &["read"], durable_write].concat());
}

#[test]
fn a_failed_sync_is_a_loss_to_every_lane() {
    let (_directory, _, store) = file(SIZE + 1);
    let (mut rig, error) = failing(&store);
    let mut other = Rig::new(FakeIo::start(), &store);
    rig.write(0, &[1; 512]).unwrap();
    error.set(Some(Errno::IO));
    assert_eq!(rig.run(Op::Flush), Err(StoreError::WriteFailed));
    error.set(None);
    assert_eq!((rig.lane.losses(), other.lane.losses()), (1, 1));
    assert_eq!((rig.run(Op::Flush), other.run(Op::Flush)), (DONE, DONE), "what comes after it is kept");
    assert_eq!(rig.read(0, 512), Ok(vec![1; 512]));
    assert_eq!(rig.lane.losses(), 1);
}

#[test]
fn a_durable_write_that_fails_may_have_lost_data_of_others_only_if_it_syncs_itself() {
    use Errno as E;
    for size in [SIZE + 1, SIZE] {
        let (_directory, _, store) = file(size);
        let (mut rig, fails) = failing(&store);
        let from = rig.room(0, 4096);
        let write = |durable| Op::Write { offset: 0, from, durable, atomic: false };
        let of_the_medium = [E::IO, E::NOSPC, E::DQUOT, E::STALE, E::NXIO, E::NODEV];
        let of_the_request = [E::FBIG, E::PERM, E::NOBUFS];
        for errno in of_the_medium.into_iter().chain(of_the_request) {
            let losses = rig.lane.losses();
            fails.set(Some(errno));
            rig.run(write(false)).unwrap_err();
            assert_eq!(rig.lane.losses(), losses, "only the write itself failed: {errno}");
            rig.run(write(true)).unwrap_err();
            let lost = is_direct(&store) && of_the_medium.contains(&errno);
            assert_eq!(rig.lane.losses(), losses + u64::from(lost), "{errno}");
            fails.set(None);
            assert_eq!(rig.run(write(true)), DONE);
        }
    }
}

#[test]
fn more_operations_than_buffers() {
    let (_directory, _, store) = file(SIZE);
    let mut rig = Rig::new(FakeIo::start(), &store);
    let (zeros, ones) = (rig.room(0, 4096), rig.room(1, 4096));
    rig.fill(&zeros, &[0; 4096]);
    rig.fill(&ones, &[1; 4096]);
    for nth in 0..300 {
        rig.start(&Op::CompareAndWrite { offset: nth * 4096, compare: zeros, write: ones, durable: false });
    }
    assert!(rig.settle().iter().all(|(_, outcome)| *outcome == DONE));
    assert!((0..300).all(|nth| rig.read(nth * 4096, 4096) == Ok(vec![1; 4096])));
}

#[test]
fn a_lane_that_goes_away_holds_nobody_up() {
    let (_directory, _, store) = file(SIZE);
    let mut gone = Rig::new(Uring::start(), &store);
    let mut stays = Rig::new(Uring::start(), &store);
    let places = gone.room(0, 4096);
    for offset in [0, 100, 4096] {
        gone.start(&Op::Write { offset, from: places, durable: false, atomic: false });
        gone.start(&Op::CompareAndWrite { offset, compare: places, write: places, durable: false });
    }
    let from = stays.room(0, 4096);
    stays.start(&Op::Write { offset: 0, from, durable: false, atomic: false });
    assert!(stays.lane.flush(&mut stays.io, &mut stays.finished), "it waits for the other lane");
    assert_eq!(gone.lane.in_flight(), 6);
    drop(gone);
    assert!(stays.settle().iter().all(|(_, outcome)| *outcome == DONE));
    assert_eq!(stays.run(Op::Zero { offset: 0, len: 1 << 20, unmap: true, durable: true }), DONE);
}

#[test]
fn a_full_file_system_says_so() {
    let rig_on = |path: &PathBuf| {
        let store = store::open_file(path, Some(8 << 20), 512, Claim::Sole).unwrap();
        Rig::new(Uring::start(), &store)
    };
    if !is_root() {
        return;
    }
    let full = Tmpfs::mount(1 << 20);
    let mut rig = rig_on(&full.directory.path().join("disk"));
    let outcomes: Vec<_> = (0..32).map(|nth| rig.write(nth << 16, &[1; 65_536])).collect();
    assert_eq!(outcomes.first(), Some(&DONE));
    assert_eq!(outcomes.last(), Some(&Err(StoreError::NoSpace)));
    assert_eq!(rig.run(Op::Discard { offset: 0, len: 1 << 20 }), DONE);
    assert_eq!(rig.write(3 << 20, &[2; 65_536]), DONE, "discarding made space");
    drop(rig);
}

/// What cannot be done at once is left to an operation, which can report errors.
#[test]
fn a_file_in_memory_is_read_and_written_where_it_is_asked_for() {
    let directory = TempDir::new_in("/dev/shm").unwrap();
    let path = sparse(&directory, SIZE);
    let store = store::open_file(&path, None, 512, Claim::Sole).unwrap();
    let mut rig = Rig::new(Uring::start(), &store);
    let (from, into) = (rig.places(0, 512, &[1000, 24]), rig.places(1, 0, &[24, 1000]));
    let data = Random::new(3).bytes(1024);
    rig.fill(&from, &data);
    assert_eq!(rig.lane.write_now(&mut rig.io, SIZE - 1024, from, false), Some(0));
    assert!(rig.lane.read_now(&mut rig.io, SIZE - 1024, &into));
    assert!(rig.bytes(&into) == data);
    assert_eq!(rig.write(4096, &[7; 4096]), DONE);
    assert_eq!((rig.read(4096, 4096), rig.lane.in_flight()), (Ok(vec![7; 4096]), 0));

    assert!(!rig.lane.read_now(&mut rig.io, SIZE - 1023, &into), "outside");
    assert_eq!(rig.lane.write_now(&mut rig.io, u64::MAX, from, true), None, "outside");
    File::options().write(true).open(&path).unwrap().set_len(SIZE - 512).unwrap();
    assert!(!rig.lane.read_now(&mut rig.io, SIZE - 1024, &into), "it was cut");
    assert_eq!(
        rig.run(Op::Read { offset: SIZE - 1024, into }),
        Err(StoreError::ReadFailed { at: SIZE - 512 })
    );
    drop((rig, store));

    let store = store::open_file(&path, None, 512, Claim::Shared).unwrap();
    let mut rig = Rig::new(Uring::start(), &store);
    let (from, into) = (rig.room(0, 1024), rig.room(1, 1024));
    assert!(rig.lane.read_now(&mut rig.io, 4096, &into));
    assert_eq!(rig.lane.write_now(&mut rig.io, 4096, from, true), None, "it is only read");
    assert_eq!(rig.read(4096, 4096), Ok(vec![7; 4096]));

    // On a disk it is left to the ring.
    let (_directory, _, store) = file(SIZE);
    let mut rig = Rig::new(Uring::start(), &store);
    let (from, into) = (rig.room(0, 1024), rig.room(1, 1024));
    assert!(!rig.lane.read_now(&mut rig.io, 0, &into));
    assert_eq!(rig.lane.write_now(&mut rig.io, 0, from, true), None);
}

#[test]
fn a_file_system_that_cannot_punch_frees_no_space() {
    if !is_root() {
        return;
    }
    let ramfs = Tmpfs::mount_kind("ramfs", 0);
    let path = ramfs.directory.path().join("disk");
    let store = store::open_file(&path, Some(SIZE), 512, Claim::Sole).unwrap();
    assert!(!store.traits().discards);
    let mut rig = Rig::new(Uring::start(), &store);
    rig.write(0, &[1; 4096]).unwrap();
    assert_eq!(rig.run(Op::Discard { offset: 0, len: SIZE }), DONE);
    assert_eq!(rig.read(0, 4096), Ok(vec![1; 4096]));
    drop((rig, store));
}

#[test]
fn a_read_only_store_refuses_all_that_writes() {
    let directory = directory();
    let path = sparse(&directory, SIZE);
    let store = store::open_file(&path, None, 512, Claim::Shared).unwrap();
    assert!(store.traits().read_only && !store.traits().discards);
    let mut rig = Rig::new(FakeIo::start(), &store);
    let refused = Err(StoreError::ReadOnly);
    assert_eq!(rig.write(0, &[1; 512]), refused);
    assert_eq!(rig.run(Op::Zero { offset: 0, len: 512, unmap: true, durable: false }), refused);
    assert_eq!(rig.run(Op::Discard { offset: 0, len: 512 }), refused);
    assert_eq!(rig.compare_and_write(0, &[0; 512], &[0; 512]), refused);
    assert_eq!(rig.read(0, 512), Ok(vec![0; 512]));
    assert_eq!(rig.run(Op::Flush), DONE);
}
