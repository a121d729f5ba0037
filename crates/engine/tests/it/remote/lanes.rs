//! Lanes of one unit, each on its own core, which runs only when the test says so.

use super::cable::Cable;
use super::chain::{client, good, pattern, read};
use super::support::{serve, url_at};
use engine::Daemon;
use initiator::remote::{self, RemoteOptions, RemoteStore};
use reactor::io::{Completion, Io as _, Tag, Wait};
use reactor::memory::Arena;
use reactor::uring::Uring;
use reactor::wake::Waker;
use scsi::storage::StoreError;
use std::sync::Arc;
use std::time::Duration;
use store::lane::{Backend as _, Lane, Op, OpId, Outcome, Submitted};
use wire::Places;

const BYTES: u32 = 4096;

/// A core with a lane and a buffer for each operation.
pub struct Core {
    io: Uring,
    lane: Box<dyn Lane<Uring>>,
    next: u32,
    completions: Vec<Completion>,
    finished: Vec<(OpId, Outcome)>,
}

impl Core {
    /// A core whose session is open.
    pub fn of(store: &Arc<RemoteStore>) -> Core {
        let arena = Arena::new(4 << 20).expect("memory");
        let io = Uring::new(arena, Waker::new().expect("a waker")).expect("a ring");
        let lane = store.clone().lane(Tag(0));
        let mut core = Core { io, lane, next: 0, completions: Vec::new(), finished: Vec::new() };
        core.read(1 << 20).expect("a session");
        core
    }

    pub fn turn(&mut self) {
        self.lane.tick(&mut self.io, &mut self.finished);
        self.io.turn(Wait::AtMost(Duration::from_millis(5)), &mut self.completions);
        for completion in std::mem::take(&mut self.completions) {
            self.lane.completed(&mut self.io, completion, &mut self.finished);
        }
        self.lane.flush(&mut self.io, &mut self.finished);
    }

    /// Begins an operation, and sends it.
    pub fn begin(&mut self, op: &Op) -> OpId {
        self.turn();
        let id = OpId(self.next);
        self.next += 1;
        if let Submitted::Done(outcome) = self.lane.submit(&mut self.io, id, op) {
            self.finished.push((id, outcome));
        }
        self.lane.flush(&mut self.io, &mut self.finished);
        self.turn();
        id
    }

    /// Cancels an operation.
    pub fn cancel(&mut self, id: OpId) {
        self.lane.cancel(&mut self.io, id);
    }

    pub fn end(&mut self, id: OpId) -> Outcome {
        loop {
            if let Some(outcome) = self.take(id) {
                return outcome;
            }
            self.turn();
        }
    }

    pub fn take(&mut self, id: OpId) -> Option<Outcome> {
        let at = self.finished.iter().position(|(done, _)| *done == id)?;
        Some(self.finished.swap_remove(at).1)
    }

    /// A buffer with this in it.
    pub fn buffer(&mut self, data: &[u8]) -> Places {
        let places = self.io.arena().take(BYTES).expect("a buffer");
        places.iter().for_each(|span| self.io.arena().bytes_mut(span).copy_from_slice(data));
        places
    }

    pub fn begin_write(&mut self, offset: u64, data: &[u8]) -> OpId {
        let from = self.buffer(data);
        self.begin(&Op::Write { offset, from, durable: false, atomic: false })
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Outcome {
        let id = self.begin_write(offset, data);
        self.end(id)
    }

    /// Reads that leave together.
    pub fn read_together(&mut self, offsets: [u64; 2]) {
        self.turn();
        let reads = offsets.map(|offset| {
            let into: Places = self.io.arena().take(BYTES).expect("a buffer");
            let id = OpId(self.next);
            self.next += 1;
            let submitted = self.lane.submit(&mut self.io, id, &Op::Read { offset, into });
            assert_eq!(submitted, Submitted::Later);
            (id, into)
        });
        for (id, into) in reads {
            self.end(id).expect("data");
            self.io.arena().give(&into);
        }
    }

    pub fn read(&mut self, offset: u64) -> Outcome {
        let into: Places = self.io.arena().take(BYTES).expect("a buffer");
        let id = self.begin(&Op::Read { offset, into });
        let outcome = self.end(id);
        self.io.arena().give(&into);
        outcome
    }
}

/// A back end, and two cores that reach it through a cable.
fn two_cores() -> (Daemon, Cable, Core, Core) {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to(back.addresses()[0]);
    let url = url_at(cable.address(), "").parse().expect("a URL");
    let store = remote::open(&url, &RemoteOptions::default()).expect("a unit");
    let (one, two) = (Core::of(&store), Core::of(&store));
    (back, cable, one, two)
}

/// The final contents of the medium.
fn there(back: &Daemon) -> Vec<u8> {
    good(&mut client(back), read(0, 8), BYTES, &[])
}

#[test]
fn a_write_overtaken_while_its_connection_was_stuck_is_returned_as_busy() {
    let (back, cable, mut one, mut two) = two_cores();
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    cable.hold(&old[..512]);
    let stale = one.begin_write(0, &old);
    cable.wait_until_held();
    two.write(0, &new).expect("nobody knows that the other connection is stuck");
    cable.cut();
    cable.let_go();
    cable.reopen();
    assert_eq!(one.end(stale), Err(StoreError::Busy));
    assert!(there(&back) == new);
    one.write(0, &old).expect("its initiator writes it anew");
    assert!(there(&back) == old);
}

#[test]
fn a_write_that_waits_for_its_session_holds_its_blocks_until_it_is_over() {
    let (back, cable, mut one, mut two) = two_cores();
    let (first, second) = (pattern(1, 4096), pattern(2, 4096));
    cable.hold(&first[..512]);
    let waits = one.begin_write(0, &first);
    cable.wait_until_held();
    cable.cut();
    cable.let_go();
    // It sees that its connection is gone, and cannot reconnect.
    (0..10).for_each(|_| one.turn());
    cable.reopen();
    two.write(1 << 20, &second).expect("other blocks are free");
    assert_eq!(two.write(0, &second), Err(StoreError::Busy));
    assert_eq!(two.read(0), Err(StoreError::Busy));
    one.end(waits).expect("it is sent again");
    assert!(there(&back) == first);
    two.write(0, &second).expect("it has ended");
    assert!(there(&back) == second);
}

#[test]
fn a_write_that_nobody_waits_for_any_more_is_not_sent_again() {
    let (back, cable, mut one, mut two) = two_cores();
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    cable.hold(&old[..512]);
    let stale = one.begin_write(0, &old);
    cable.wait_until_held();
    one.cancel(stale);
    assert_eq!(two.write(0, &new), Err(StoreError::Busy), "it may be on its way");
    cable.cut();
    cable.let_go();
    // It sees that its connection is gone, and cannot reconnect.
    (0..10).for_each(|_| one.turn());
    assert_eq!(one.take(stale), None, "whoever cancelled it relies on its being over");
    cable.reopen();
    assert_eq!(one.end(stale), Err(StoreError::Cancelled));
    while two.write(0, &new) == Err(StoreError::Busy) {
        one.turn();
    }
    one.read(0).expect("the session is back");
    assert!(there(&back) == new);
}

#[test]
fn a_lane_wants_ticks_as_long_as_its_session_is_in_use() {
    let back = serve(&["ram:16M"]);
    let url = url_at(back.addresses()[0], "").parse().expect("a URL");
    let store = remote::open(&url, &RemoteOptions::default()).expect("a unit");
    let unused: Box<dyn Lane<Uring>> = store.clone().lane(Tag(0));
    assert!(!unused.wants_ticks(), "it has no session");
    let mut used = Core::of(&store);
    used.write(0, &pattern(1, 4096)).expect("a session");
    assert_eq!(used.lane.in_flight(), 0);
    assert!(used.lane.wants_ticks(), "it keeps its session alive, and is a witness for others");
}

#[test]
fn a_target_that_is_lost_repeatedly_is_abandoned() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to_foreign(back.addresses()[0]);
    let url = url_at(cable.address(), "?give_up_after=5").parse().expect("a URL");
    let mut one = Core::of(&remote::open(&url, &RemoteOptions::default()).expect("a unit"));
    // Two commands: if the connection is lost between them, the first may be lost.
    let zero = Op::Zero { offset: 0, len: BYTES.into(), unmap: false, durable: true };
    let mut id = one.begin(&zero);
    let outcome = loop {
        cable.cut();
        let _ = one.read(1 << 20);
        match one.take(id) {
            Some(Ok(_)) => id = one.begin(&zero),
            Some(Err(error)) => break error,
            None => {}
        }
    };
    assert_eq!(outcome, StoreError::Unavailable);
}
