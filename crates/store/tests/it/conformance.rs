//! What every store must do, on every kind of medium.

use crate::support::fake::FakeIo;
use crate::support::nbd::NbdServer;
use crate::support::rig::{PAD_BYTES, Rig};
use crate::support::{Kernel, Loop, Random, SIZE, directory, is_root, sparse};
use reactor::io::Io;
use reactor::memory::Pages;
use scsi::storage::{Found, StoreError, Traits};
use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use store::lane::{Backend, Op, OpId, Submitted};
use store::{Claim, nbd};
use tempfile::TempDir;
use wire::Places;

/// A store under test.
struct Setup<I: Io> {
    rig: Rig<I>,
    traits: Traits,
    size: u64,
    /// Whether it knows what is allocated.
    maps: bool,
    _medium: Box<dyn Any>,
}

fn setup<I: Kernel, S: Backend<I> + 'static>(
    store: Arc<S>,
    maps: bool,
    medium: impl Any,
) -> Option<Setup<I>> {
    let traits = store.traits();
    let rig = Rig::new(I::start(), &store);
    Some(Setup { rig, traits, size: traits.size_bytes, maps, _medium: Box::new(medium) })
}

fn ram<I: Kernel>() -> Option<Setup<I>> {
    setup(store::open_ram(SIZE).unwrap(), true, ())
}

/// On huge pages, if the machine has them.
fn huge_ram<I: Kernel>() -> Option<Setup<I>> {
    setup(store::open_ram_on(SIZE, Pages::Huge).unwrap(), true, ())
}

fn null<I: Kernel>() -> Option<Setup<I>> {
    setup(store::open_null(SIZE), false, ())
}

fn file_of<I: Kernel>(directory: TempDir, size: u64) -> Option<Setup<I>> {
    let path = sparse(&directory, size);
    setup(store::open_file(&path, None, 512, Claim::Sole).unwrap(), true, directory)
}

/// With direct I/O, if the file system supports it.
fn file<I: Kernel>() -> Option<Setup<I>> {
    file_of(directory(), SIZE)
}

/// Not a multiple of any alignment: through the page cache.
fn odd_file<I: Kernel>() -> Option<Setup<I>> {
    let directory = directory();
    let path = sparse(&directory, SIZE + 1);
    setup(store::open_file(&path, None, 1, Claim::Sole).unwrap(), true, directory)
}

/// tmpfs cannot zero a range: zeros are written.
fn tmpfs_file<I: Kernel>() -> Option<Setup<I>> {
    file_of(TempDir::new_in("/dev/shm").unwrap(), SIZE)
}

fn loop_device<I: Kernel>(sector: u32) -> Option<Setup<I>> {
    if !is_root() {
        return None;
    }
    let directory = directory();
    let device = Loop::attach(&sparse(&directory, SIZE), sector);
    let store = store::open_block(&device.device, sector, Claim::Sole).unwrap();
    setup(store, false, (device, directory))
}

fn loop_512<I: Kernel>() -> Option<Setup<I>> {
    loop_device(512)
}

fn loop_4096<I: Kernel>() -> Option<Setup<I>> {
    loop_device(4096)
}

fn export_of<I: Kernel>(serve: impl FnOnce(&Path) -> NbdServer) -> Option<Setup<I>> {
    let directory = directory();
    let server = serve(&sparse(&directory, SIZE));
    let store = nbd::open(&server.url(), nbd::Options::new(Some(512), false)).unwrap();
    setup(store, true, (server, directory))
}

fn qemu_nbd<I: Kernel>() -> Option<Setup<I>> {
    export_of(|image| NbdServer::qemu(image, &[]))
}

fn storage_daemon<I: Kernel>() -> Option<Setup<I>> {
    export_of(NbdServer::storage_daemon)
}

fn nbdkit<I: Kernel>() -> Option<Setup<I>> {
    export_of(|image| NbdServer::nbdkit(&["file", image.to_str().unwrap()]))
}

macro_rules! on {
    ($kernel:ty: $($medium:ident as $module:ident),+; $checks:tt) => {
        $(on!(@ $kernel, $medium, $module, $checks);)+
    };
    (@ $kernel:ty, $medium:ident, $module:ident, [$($check:ident)+]) => {
        mod $module {
            $(#[test]
            fn $check() {
                if let Some(mut setup) = super::$medium::<$kernel>() {
                    super::$check(&mut setup);
                }
            })+
        }
    };
}

macro_rules! conformance {
    ($($check:ident)+) => {
        on!(reactor::uring::Uring: ram as ram, huge_ram as huge_ram, file as file, odd_file as page_cache, tmpfs_file as tmpfs,
            loop_512 as loop_512, loop_4096 as loop_4096,
            qemu_nbd as qemu_nbd, storage_daemon as storage_daemon, nbdkit as nbdkit; [$($check)+]);
        on!(super::FakeIo: file as plain_file; [$($check)+]);
    };
}

// It stores nothing: it only has to refuse what all refuse, and to read zeros.
on!(reactor::uring::Uring: null as null; [refuses_ranges_outside reads_zeros_at_first]);

conformance! {
    agrees_with_a_model
    refuses_ranges_outside
    reads_zeros_at_first
    knows_what_is_mapped
    asks_no_file_system_on_the_core
    clears_long_ranges
    makes_things_durable
    keeps_overlapping_operations_apart
    leaves_nothing_behind_of_a_cancelled_operation
    compares_up_to_the_first_difference
}

mod soak {
    use super::*;
    use crate::support::ceph::{Ceph, POOL};
    use config::RbdImage;
    use store::rbd::{self, Options};

    /// One cluster for all, as it takes seconds to start; each test has its own image.
    #[test]
    fn an_image_on_ceph_is_as_any_store() {
        let ceph = Ceph::start();
        let checks: [fn(&mut Setup<reactor::uring::Uring>); 8] = [
            agrees_with_a_model,
            refuses_ranges_outside,
            reads_zeros_at_first,
            clears_long_ranges,
            makes_things_durable,
            keeps_overlapping_operations_apart,
            leaves_nothing_behind_of_a_cancelled_operation,
            compares_up_to_the_first_difference,
        ];
        for (number, check) in checks.into_iter().enumerate() {
            let name = format!("disk{number}");
            ceph.create(&name, SIZE);
            let image = RbdImage::parse(&format!("{POOL}/{name}")).expect("an image");
            let image = RbdImage { conf: Some(ceph.conf().into()), ..image };
            let store = rbd::open(&image, Options::new(512, false)).expect("it opens");
            check(&mut setup(store, false, ()).expect("a store"));
        }
    }
}

/// Random operations on random bytes, against an array.
fn agrees_with_a_model<I: Io>(setup: &mut Setup<I>) {
    let mut random = Random::new(7);
    let size = setup.size as usize;
    let mut model = vec![0u8; size];
    // Around the beginning, a lock stripe, a clearing step, and the end.
    let around = [0u64, 64 << 10, 16 << 20, setup.size - 1];
    for _ in 0..400 {
        let lens: Vec<u32> = (0..=random.below(4))
            .map(|_| {
                let unit = [1, 512, 4096][random.below(3) as usize];
                unit * (1 + random.below(40_000 / u64::from(unit)) as u32)
            })
            .collect();
        let len = lens.iter().sum::<u32>() as usize;
        let skip = [0, 1, 512][random.below(3) as usize];
        let unit = [1, 512, 4096][random.below(3) as usize];
        let near = around[random.below(4) as usize].saturating_sub(random.below(100_000));
        let offset = (near / unit * unit).min((size - len) as u64);
        step(setup, &mut random, &mut model, offset, (skip, &lens));
    }
    for at in (0..size).step_by(4 * PAD_BYTES as usize) {
        let len = (size - at).min(4 * PAD_BYTES as usize);
        assert!(setup.rig.read(at as u64, len).unwrap() == model[at..at + len], "the range from {at} on");
    }
}

fn step<I: Io>(
    setup: &mut Setup<I>,
    random: &mut Random,
    model: &mut [u8],
    offset: u64,
    (skip, lens): (u32, &[u32]),
) {
    let rig = &mut setup.rig;
    let (one, two) = (rig.places(0, skip, lens), rig.places(1, skip, lens));
    let len = one.len() as usize;
    let here = &mut model[offset as usize..offset as usize + len];
    let data = random.bytes(len);
    let durable = random.chance(20);
    let done = Ok(Found::Nothing);
    match random.below(8) {
        0 | 1 => {
            rig.fill(&one, &data);
            let atomic = setup.traits.atomic_write_bytes_max as usize >= len && random.chance(10);
            if random.chance(2) && rig.lane.write_now(&mut rig.io, offset, one, true).is_some() {
                return here.copy_from_slice(&data);
            }
            assert_eq!(rig.run(Op::Write { offset, from: one, durable, atomic }), done);
            here.copy_from_slice(&data);
        }
        2 => {
            if random.chance(2) || !rig.lane.read_now(&mut rig.io, offset, &one) {
                assert_eq!(rig.run(Op::Read { offset, into: one }), done);
            }
            assert!(rig.bytes(&one) == here, "{len} bytes at {offset}");
        }
        3 => {
            let unmap = random.chance(2);
            assert_eq!(rig.run(Op::Zero { offset, len: len as u64, unmap, durable }), done);
            here.fill(0);
        }
        4 => {
            assert_eq!(rig.run(Op::Discard { offset, len: len as u64 }), done);
            here.fill(0);
        }
        5 => {
            rig.fill(&one, &data);
            assert_eq!(rig.run(Op::OrWrite { offset, from: one, durable }), done);
            here.iter_mut().zip(&data).for_each(|(byte, operand)| *byte |= operand);
        }
        _ => {
            let mut compared = here.to_vec();
            let wrong = random.chance(2).then(|| random.below(len as u64) as usize);
            if let Some(at) = wrong {
                compared[at] ^= 1;
            }
            rig.fill(&one, &compared);
            rig.fill(&two, &data);
            let expected = wrong.map_or(done, |at| Err(StoreError::Miscompare { at: at as u32 }));
            assert_eq!(rig.run(Op::Compare { offset, with: one }), expected);
            let op = Op::CompareAndWrite { offset, compare: one, write: two, durable };
            assert_eq!(rig.run(op), expected);
            if wrong.is_none() {
                here.copy_from_slice(&data);
            }
        }
    }
}

fn refuses_ranges_outside<I: Io>(setup: &mut Setup<I>) {
    let rig = &mut setup.rig;
    let places = rig.room(0, 512);
    let size = setup.size;
    let outside = Err(StoreError::OutOfRange);
    for offset in
        [size - 511, size, size + 1, i64::MAX as u64 - 511, i64::MAX as u64, u64::MAX - 511, u64::MAX]
    {
        assert_eq!(rig.run(Op::Read { offset, into: places }), outside);
        assert_eq!(rig.run(Op::Write { offset, from: places, durable: true, atomic: false }), outside);
        assert_eq!(rig.run(Op::Zero { offset, len: 512, unmap: true, durable: true }), outside);
        assert_eq!(rig.run(Op::Discard { offset, len: 512 }), outside);
        assert_eq!(rig.run(Op::OrWrite { offset, from: places, durable: false }), outside);
        assert_eq!(rig.run(Op::Compare { offset, with: places }), outside);
        let both = Op::CompareAndWrite { offset, compare: places, write: places, durable: false };
        assert_eq!(rig.run(both), outside);
        assert_eq!(rig.lane.borrow(offset, 512), None);
    }
    assert_eq!(rig.run(Op::Discard { offset: 0, len: u64::MAX }), outside);
    assert_eq!(rig.run(Op::Discard { offset: size, len: u64::MAX }), outside);
    assert_eq!(rig.run(Op::Extent { offset: size }), outside);
    assert_eq!(rig.run(Op::Extent { offset: u64::MAX }), outside);
    // An empty range at the very end is inside, and succeeds.
    assert_eq!(rig.run(Op::Read { offset: size, into: Places::EMPTY }), Ok(Found::Nothing));
    assert_eq!(rig.run(Op::Discard { offset: size, len: 0 }), Ok(Found::Nothing));
    assert_eq!(rig.run(Op::Read { offset: size - 512, into: places }), Ok(Found::Nothing));
    assert_eq!(rig.lane.in_flight(), 0);
}

fn reads_zeros_at_first<I: Io>(setup: &mut Setup<I>) {
    let places = setup.rig.room(0, 100_000);
    for offset in [0, 77, setup.size - 100_000] {
        setup.rig.fill(&places, &vec![0xEE; 100_000]);
        assert_eq!(setup.rig.run(Op::Read { offset, into: places }), Ok(Found::Nothing));
        assert!(setup.rig.bytes(&places).iter().all(|byte| *byte == 0));
    }
}

fn knows_what_is_mapped<I: Io>(setup: &mut Setup<I>) {
    let extent = |setup: &mut Setup<I>, offset| match setup.rig.run(Op::Extent { offset }) {
        Ok(Found::Extent { mapped, len }) => {
            assert!(len > 0 && offset + len <= setup.size);
            mapped
        }
        other => panic!("{other:?}"),
    };
    let maps = setup.maps;
    let (here, granule) = (4 << 20, u64::from(setup.traits.discard_granularity_bytes));
    assert_eq!(extent(setup, 0), !maps);
    assert_eq!(extent(setup, setup.size - 1), !maps);
    setup.rig.write(here, &vec![1; 128 << 10]).unwrap();
    assert!(extent(setup, here));
    assert!(extent(setup, here + (128 << 10) - 1));
    assert_eq!(setup.rig.run(Op::Discard { offset: here, len: 64 << 10 }), Ok(Found::Nothing));
    // A block device counts everything as mapped until it knows better.
    let after = maps && !setup.traits.discards;
    assert_eq!((extent(setup, here), extent(setup, here + (64 << 10) - granule)), (after, after));
    assert!(extent(setup, here + (64 << 10)));
    assert!(setup.rig.read(here, 64 << 10).unwrap().iter().all(|byte| *byte == 0));
    assert!(setup.rig.read(here + (64 << 10), 64 << 10).unwrap().iter().all(|byte| *byte == 1));
}

/// lseek and the page map may take long; what a block device has discarded is recorded in memory.
fn asks_no_file_system_on_the_core<I: Io>(setup: &mut Setup<I>) {
    let Setup { rig, maps, .. } = setup;
    let submitted = rig.lane.submit(&mut rig.io, OpId(9), &Op::Extent { offset: 0 });
    assert_eq!(submitted == Submitted::Later, *maps);
    rig.settle();
}

fn clears_long_ranges<I: Io>(setup: &mut Setup<I>) {
    let len = setup.size - 2000;
    let zero = |unmap, durable| Op::Zero { offset: 1000, len, unmap, durable };
    let ops = [zero(false, true), zero(true, true), zero(false, false), Op::Discard { offset: 1000, len }];
    for op in ops {
        for offset in [0, 8 << 20, setup.size - 4096] {
            setup.rig.write(offset, &[7; 4096]).unwrap();
        }
        assert_eq!(setup.rig.run(op), Ok(Found::Nothing));
        let head = setup.rig.read(0, 4096).unwrap();
        assert!(head[..1000].iter().all(|byte| *byte == 7) && head[1000..].iter().all(|byte| *byte == 0));
        assert!(setup.rig.read(8 << 20, 4096).unwrap().iter().all(|byte| *byte == 0));
        let tail = setup.rig.read(setup.size - 4096, 4096).unwrap();
        assert!(tail[..3096].iter().all(|byte| *byte == 0) && tail[3096..].iter().all(|byte| *byte == 7));
    }
}

fn makes_things_durable<I: Io>(setup: &mut Setup<I>) {
    let from = setup.rig.room(0, 70_000);
    setup.rig.fill(&from, &vec![3; 70_000]);
    for offset in [0, 4096, 100_001] {
        let write = Op::Write { offset, from, durable: true, atomic: false };
        assert_eq!(setup.rig.run(write), Ok(Found::Nothing));
    }
    assert_eq!(setup.rig.run(Op::Flush), Ok(Found::Nothing));
    assert!(setup.rig.read(100_001, 70_000).unwrap().iter().all(|byte| *byte == 3));
}

/// Everything at once on the same bytes: the result is one of the writes, whole.
fn keeps_overlapping_operations_apart<I: Io>(setup: &mut Setup<I>) {
    let rig = &mut setup.rig;
    let mut random = Random::new(11);
    let (ones, twos) = (rig.room(0, 200_000), rig.room(1, 200_000));
    rig.fill(&ones, &vec![0x11; 200_000]);
    rig.fill(&twos, &vec![0x22; 200_000]);
    for round in 0..20u64 {
        // Directly, or through the buffers.
        let offset = if round % 2 == 0 { 1 << 20 } else { (2 << 20) + 123 };
        let started = 60;
        for _ in 0..started {
            let places = if random.chance(2) { ones } else { twos };
            rig.start(&match random.below(10) {
                0 => Op::Flush,
                1 => Op::OrWrite { offset, from: places, durable: false },
                2 => Op::CompareAndWrite { offset, compare: ones, write: twos, durable: false },
                3 => Op::Zero { offset, len: 200_000, unmap: true, durable: false },
                4 => Op::Compare { offset, with: places },
                _ => Op::Write { offset, from: places, durable: false, atomic: false },
            });
        }
        let outcomes = rig.settle();
        assert_eq!(outcomes.len(), started);
        for (_, outcome) in outcomes {
            assert!(
                matches!(outcome, Ok(Found::Nothing) | Err(StoreError::Miscompare { at: 0 })),
                "{outcome:?}"
            );
        }
        let with = [0x00, 0x11, 0x22, 0x33].map(|byte| vec![byte; 200_000]);
        let left = rig.read(offset, 200_000).unwrap();
        assert!(with.contains(&left), "torn in round {round}");
        rig.fill(&ones, &vec![0x11; 200_000]);
    }
}

/// An operation cannot be recalled; cancelling it only means that its result is not needed. It must still be
/// reported, once, and from then on neither its range nor its places are accessed: a reset that was waiting
/// is answered then, and the places are reused.
fn leaves_nothing_behind_of_a_cancelled_operation<I: Io>(setup: &mut Setup<I>) {
    const LEN: usize = 200_000;
    let (offset, rig) = (4096 + 512, &mut setup.rig);
    let (old, new) = (rig.room(0, LEN), rig.room(1, LEN));
    for round in 0..40u8 {
        rig.fill(&old, &vec![1; LEN]);
        let cancelled = [
            Op::Write { offset, from: old, durable: round.is_multiple_of(8), atomic: false },
            Op::Zero { offset, len: LEN as u64, unmap: round.is_multiple_of(8), durable: false },
            Op::Discard { offset, len: LEN as u64 },
            Op::CompareAndWrite { offset, compare: old, write: old, durable: false },
        ];
        let ids = cancelled.map(|op| rig.start(&op));
        let mut reported: Vec<_> = rig.settle().into_iter().map(|(id, _)| id).collect();
        reported.sort_by_key(|id| id.0);
        assert_eq!(reported, ids);
        // The places belong to another task now, and so does the range.
        rig.fill(&old, &vec![0xee; LEN]);
        rig.fill(&new, &vec![round; LEN]);
        assert_eq!(
            rig.run(Op::Write { offset, from: new, durable: false, atomic: false }),
            Ok(Found::Nothing)
        );
        rig.turn();
        assert!(rig.read(offset, LEN).unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
}

fn compares_up_to_the_first_difference<I: Io>(setup: &mut Setup<I>) {
    let data = Random::new(5).bytes(150_000);
    setup.rig.write(8192, &data).unwrap();
    for at in [0, 1, 4095, 65_535, 65_536, 149_999] {
        let mut wrong = data.clone();
        wrong[at] ^= 0x80;
        wrong[149_999] ^= 1;
        let miscompare = Err(StoreError::Miscompare { at: at as u32 });
        assert_eq!(setup.rig.compare_and_write(8192, &wrong, &vec![0; 150_000]), miscompare);
    }
    assert!(setup.rig.read(8192, 150_000).unwrap() == data, "a miscompare changes nothing");
    assert_eq!(setup.rig.compare_and_write(8192, &data, &vec![9; 150_000]), Ok(Found::Nothing));
    assert!(setup.rig.read(8192, 150_000).unwrap().iter().all(|byte| *byte == 9));
}
