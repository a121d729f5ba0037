//! Long operations are done in parts: they end between two of them when they are cancelled, and no write that
//! is acknowledged meanwhile is lost under them.

use crate::support::fake::FakeIo;
use crate::support::rig::Rig;
use crate::support::{Kernel, directory, sparse};
use reactor::memory::{HUGE_PAGE_BYTES, Pages};
use scsi::storage::{Found, StoreError};
use std::sync::Arc;
use store::Claim;
use store::lane::{Backend, Op, OpId, Outcome};
use tempfile::TempDir;

/// Several parts of any store.
const LONG: u64 = 64 << 20;
const LAST: u64 = LONG - 4096;

const DONE: Outcome = Ok(Found::Nothing);
const CANCELLED: Outcome = Err(StoreError::Cancelled);

fn ram() -> Arc<impl Backend<FakeIo>> {
    store::open_ram(LONG).unwrap()
}

fn file() -> (TempDir, Arc<impl Backend<FakeIo>>) {
    file_in(directory())
}

fn file_in(directory: TempDir) -> (TempDir, Arc<impl Backend<FakeIo>>) {
    let store = store::open_file(&sparse(&directory, LONG), None, 512, Claim::Sole).unwrap();
    (directory, store)
}

fn lane<S: Backend<FakeIo> + 'static>(store: &Arc<S>) -> Rig<FakeIo> {
    Rig::new(FakeIo::start(), store)
}

fn clears() -> [Op; 3] {
    let zero = |unmap| Op::Zero { offset: 0, len: LONG, unmap, durable: false };
    [zero(false), zero(true), Op::Discard { offset: 0, len: LONG }]
}

fn write(rig: &mut Rig<FakeIo>, offset: u64, byte: u8) -> OpId {
    let from = rig.room(0, 4096);
    rig.fill(&from, &[byte; 4096]);
    rig.start(&Op::Write { offset, from, durable: false, atomic: false })
}

fn a_cancelled_clear_ends<S: Backend<FakeIo> + 'static>(store: &Arc<S>) {
    for op in clears() {
        let mut rig = lane(store);
        rig.write(0, &[1; 4096]).unwrap();
        rig.write(LAST, &[1; 4096]).unwrap();
        let id = rig.start(&op);
        rig.turn();
        rig.lane.cancel(&mut rig.io, id);
        assert_eq!(rig.settle(), [(id, CANCELLED)]);
        assert_eq!(rig.read(LAST, 4096), Ok(vec![1; 4096]), "{op:?}");
        assert_eq!(rig.write(LAST, &[2; 4096]), DONE, "nothing stays held");
    }
}

#[test]
fn a_cancelled_clear_of_memory_ends_between_two_parts() {
    a_cancelled_clear_ends(&ram());
}

#[test]
fn a_cancelled_clear_of_a_file_ends_between_two_parts() {
    let (_directory, store) = file();
    a_cancelled_clear_ends(&store);
}

fn a_write_is_not_lost<S: Backend<FakeIo> + 'static>(store: &Arc<S>) {
    let (mut one, mut two) = (lane(store), lane(store));
    for op in clears() {
        let clear = one.start(&op);
        let own = write(&mut one, LAST, 1);
        let others = write(&mut two, LAST - 4096, 2);
        two.turn();
        assert_eq!(two.finished, [], "what is acknowledged must be there");
        let places = two.room(1, 4096);
        assert_eq!(two.lane.write_now(&mut two.io, LAST - 8192, places, true), None);
        let mut outcomes = one.settle();
        outcomes.sort_by_key(|(id, _)| id.0);
        assert_eq!(outcomes, [(clear, DONE), (own, DONE)]);
        assert_eq!(two.settle(), [(others, DONE)]);
        assert_eq!(one.read(LAST - 4096, 8192), Ok([[2; 4096], [1; 4096]].concat()), "{op:?}");
    }
}

#[test]
fn a_write_to_memory_within_a_range_that_is_cleared_is_not_lost() {
    a_write_is_not_lost(&ram());
}

#[test]
fn a_write_to_a_file_within_a_range_that_is_cleared_is_not_lost() {
    let (_directory, store) = file();
    a_write_is_not_lost(&store);
}

#[test]
fn a_write_to_a_file_in_memory_within_a_range_that_is_cleared_is_not_lost() {
    let (_directory, store) = file_in(TempDir::new_in("/dev/shm").unwrap());
    a_write_is_not_lost(&store);
}

fn what_waits_can_be_cancelled<S: Backend<FakeIo> + 'static>(store: &Arc<S>) {
    let (mut one, mut two) = (lane(store), lane(store));
    let [op, ..] = clears();
    one.start(&op);
    one.turn();
    let given_up = [write(&mut two, 0, 3), two.start(&op)];
    two.turn();
    for id in given_up {
        two.lane.cancel(&mut two.io, id);
    }
    let mut outcomes = two.settle();
    outcomes.sort_by_key(|(id, _)| id.0);
    assert_eq!(outcomes, given_up.map(|id| (id, CANCELLED)));
    let outcomes: Vec<_> = one.settle().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, [DONE]);
    assert_eq!(one.read(0, 4096), Ok(vec![0; 4096]));
    // A lane that is dropped releases its ranges.
    one.start(&op);
    one.turn();
    drop(one);
    assert_eq!(two.write(LAST, &[4; 4096]), DONE);
}

#[test]
fn what_waits_for_a_clear_of_memory_can_be_cancelled() {
    what_waits_can_be_cancelled(&ram());
}

#[test]
fn what_waits_for_a_clear_of_a_file_can_be_cancelled() {
    let (_directory, store) = file();
    what_waits_can_be_cancelled(&store);
}

#[test]
fn a_compare_and_write_that_is_cancelled_while_it_compares_writes_nothing() {
    let (_directory, store) = file();
    let mut rig = lane(&store);
    let (compare, write) = (rig.room(0, 4096), rig.room(1, 4096));
    rig.fill(&compare, &[0; 4096]);
    rig.fill(&write, &[1; 4096]);
    let id = rig.start(&Op::CompareAndWrite { offset: 0, compare, write, durable: false });
    rig.lane.cancel(&mut rig.io, id);
    assert_eq!(rig.settle(), [(id, CANCELLED)]);
    assert_eq!(rig.read(0, 4096), Ok(vec![0; 4096]));
}

#[test]
fn what_the_system_clears_for_a_first_write_to_memory_is_said_before() {
    let store = store::open_ram_on(LONG, Pages::Huge).unwrap();
    let mut rig = lane(&store);
    let from = rig.room(0, 4096);
    let write = |offset| Op::Write { offset, from, durable: false, atomic: false };
    let fresh = |rig: &Rig<FakeIo>, offset| rig.lane.fresh_bytes(&write(offset));
    assert_eq!(fresh(&rig, 0), HUGE_PAGE_BYTES);
    assert_eq!(rig.lane.write_now(&mut rig.io, 0, from, false), None);
    assert_eq!(rig.lane.write_now(&mut rig.io, 0, from, true), Some(HUGE_PAGE_BYTES));
    assert_eq!((fresh(&rig, 4096), fresh(&rig, HUGE_PAGE_BYTES)), (0, HUGE_PAGE_BYTES));
    rig.write(HUGE_PAGE_BYTES - 2048, &[1; 4096]).unwrap();
    assert_eq!(fresh(&rig, HUGE_PAGE_BYTES), 0);
    let discard = Op::Discard { offset: 0, len: HUGE_PAGE_BYTES };
    assert_eq!(rig.lane.fresh_bytes(&discard), 0);
    rig.start(&discard);
    rig.settle();
    assert_eq!((fresh(&rig, 0), fresh(&rig, HUGE_PAGE_BYTES)), (HUGE_PAGE_BYTES, 0));
    // Partial pages at the ends are written, once in each huge page.
    let (mut done, across) = (Vec::new(), 8 * HUGE_PAGE_BYTES - 512);
    rig.start(&Op::Discard { offset: across, len: 3 * HUGE_PAGE_BYTES });
    let costs: Vec<u64> = (0..4).map(|_| rig.lane.work(&mut rig.io, 1 << 20, &mut done)).collect();
    let (part, whole) = (1 << 20, HUGE_PAGE_BYTES);
    assert_eq!(costs, [part + 2 * whole, part, part + whole, part]);
    rig.settle();
    // A comparison writes nothing.
    let (compare, write) = (rig.room(0, 512), rig.room(1, 512));
    rig.fill(&compare, &[1; 512]);
    rig.start(&Op::CompareAndWrite { offset: 20 * HUGE_PAGE_BYTES, compare, write, durable: false });
    assert_eq!(fresh(&rig, 20 * HUGE_PAGE_BYTES), HUGE_PAGE_BYTES);
    // Its share of a turn includes what the system clears.
    rig.start(&Op::Zero { offset: 4 * HUGE_PAGE_BYTES, len: 1 << 20, unmap: false, durable: false });
    assert_eq!(rig.lane.work(&mut rig.io, 4096, &mut Vec::new()), HUGE_PAGE_BYTES + 4096);
    assert_eq!(rig.lane.work(&mut rig.io, 4096, &mut Vec::new()), 4096);
    rig.settle();
}
