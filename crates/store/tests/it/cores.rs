//! Several cores on one store, each with its own kernel.

use crate::support::rig::Rig;
use crate::support::{Kernel, Random, SIZE, directory, sparse};
use reactor::uring::Uring;
use scsi::storage::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::Claim;
use store::lane::{Backend, Op};
use tempfile::TempDir;
use wire::Places;

const CORES: u64 = 3;

/// Cores write the same bytes, each its own pattern; readers see one whole pattern.
fn never_tears<I: Kernel, S: Backend<I> + 'static>(store: &Arc<S>, rounds: u64, offset: u64, len: usize) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let reader = scope.spawn(move || {
            let mut rig = Rig::new(I::start(), store);
            let mut reads = 0;
            let into = rig.room(1, len);
            while !over.load(Ordering::Relaxed) || reads < 100 {
                let is_here = reads % 2 == 0 && rig.lane.read_now(&mut rig.io, offset, &into);
                let bytes = if is_here { rig.bytes(&into) } else { rig.read(offset, len).unwrap() };
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn");
                reads += 1;
            }
        });
        let writers: Vec<_> = (1..=CORES as u8)
            .map(|pattern| {
                scope.spawn(move || {
                    let mut rig = Rig::new(I::start(), store);
                    let from = rig.room(0, len);
                    rig.fill(&from, &vec![pattern; len]);
                    for _ in 0..rounds {
                        for _ in 0..4 {
                            rig.start(&Op::Write { offset, from, durable: false, atomic: false });
                        }
                        assert!(rig.settle().iter().all(|(_, outcome)| outcome.is_ok()));
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

/// Every core increments counters by COMPARE AND WRITE; none is lost.
fn loses_no_increment<I: Kernel, S: Backend<I> + 'static>(store: &Arc<S>, rounds: u64, block: usize) {
    const COUNTERS: u64 = 3;
    std::thread::scope(|scope| {
        for core in 0..CORES {
            scope.spawn(move || {
                let mut rig = Rig::new(I::start(), store);
                let mut random = Random::new(core);
                for round in 0..rounds {
                    increment(&mut rig, (round % COUNTERS) * block as u64, block, &mut random);
                }
            });
        }
    });
    let mut rig = Rig::new(I::start(), store);
    for counter in 0..COUNTERS {
        let bytes = rig.read(counter * block as u64, block).unwrap();
        assert_eq!(count(&bytes), CORES * rounds / COUNTERS);
    }
}

fn count(block: &[u8]) -> u64 {
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

fn increment<I: Kernel>(rig: &mut Rig<I>, offset: u64, block: usize, random: &mut Random) {
    loop {
        let before = rig.read(offset, block).unwrap();
        let mut after = random.bytes(block);
        after[..8].copy_from_slice(&(count(&before) + 1).to_le_bytes());
        match rig.compare_and_write(offset, &before, &after) {
            Ok(_) => return,
            Err(StoreError::Miscompare { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// ORWRITE from all cores into the same bytes, each its own bits.
fn loses_no_bit<I: Kernel, S: Backend<I> + 'static>(store: &Arc<S>) {
    std::thread::scope(|scope| {
        for core in 0..8 {
            scope.spawn(move || {
                let mut rig = Rig::new(I::start(), store);
                for at in 0..64u64 {
                    let from = rig.room(0, 512);
                    rig.fill(&from, &[1 << core; 512]);
                    rig.run(Op::OrWrite { offset: at * 512, from, durable: false }).unwrap();
                }
            });
        }
    });
    let mut rig = Rig::<I>::new(I::start(), store);
    assert!(rig.read(0, 64 * 512).unwrap().iter().all(|byte| *byte == 0xFF));
}

fn all<I: Kernel, S: Backend<I> + 'static>(rounds: u64, open: impl Fn() -> Arc<S>) {
    never_tears::<I, S>(&open(), rounds, 1 << 20, 65_536);
    never_tears::<I, S>(&open(), rounds, (1 << 20) + 300, 200_000);
    loses_no_increment::<I, S>(&open(), rounds, 512);
    loses_no_increment::<I, S>(&open(), rounds, 4096);
    loses_no_bit::<I, S>(&open());
}

fn on_file<I: Kernel>(size: u64) {
    in_directory::<I>(&directory(), size);
}

fn in_directory<I: Kernel>(directory: &TempDir, size: u64) {
    let path = sparse(directory, size);
    all::<I, _>(60, || {
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        store::open_file(&path, None, 1, Claim::Sole).unwrap()
    });
}

#[test]
fn ram() {
    all::<Uring, _>(3000, || store::open_ram(SIZE).unwrap());
}

#[test]
fn file() {
    on_file::<Uring>(SIZE);
}

#[test]
fn file_in_memory() {
    in_directory::<Uring>(&TempDir::new_in("/dev/shm").unwrap(), SIZE);
}

#[test]
fn page_cache() {
    on_file::<Uring>(SIZE + 1);
}

/// Reads may be sent from the medium's memory only until an initiator relies on seeing others' writes whole.
#[test]
fn memory_is_lent_until_an_atomic_operation() {
    let store = store::open_ram(SIZE).unwrap();
    let mut one = Rig::new(Uring::start(), &store);
    let mut two = Rig::new(Uring::start(), &store);
    one.write(8192, &[5; 4096]).unwrap();
    let lent = two.lane.borrow(8192, 4096).unwrap();
    assert_eq!(lent.len, 4096);
    // Lent memory can be written to another store directly.
    let directory = directory();
    let copy = store::open_file(&sparse(&directory, SIZE), None, 512, Claim::Sole).unwrap();
    let mut three = Rig::new(Uring::start(), &copy);
    for offset in [0, 512, 4097] {
        three.run(Op::Write { offset, from: Places::one(lent), durable: false, atomic: false }).unwrap();
        assert_eq!(three.read(offset, 4096), Ok(vec![5; 4096]));
    }
    one.compare_and_write(0, &[0; 512], &[1; 512]).unwrap();
    assert_eq!(two.lane.borrow(8192, 4096), None);
}

#[test]
fn null_is_zeros_for_everyone() {
    let store = store::open_null(1 << 50);
    let mut rig = Rig::new(Uring::start(), &store);
    assert_eq!(rig.lane.borrow((1 << 50) - (1 << 20), 1 << 20).map(|span| span.len), Some(1 << 20));
    rig.write(0, &[1; 512]).unwrap();
    assert_eq!(rig.read(0, 262_144), Ok(vec![0; 262_144]));
    assert_eq!(rig.compare_and_write(0, &[0, 0, 1], &[0; 3]), Err(StoreError::Miscompare { at: 2 }));
    assert_eq!(rig.compare_and_write(0, &[0; 512], &[1; 512]), Ok(scsi::storage::Found::Nothing));
    assert_eq!(rig.read(1 << 50, 1), Err(StoreError::OutOfRange));
}
