//! The work of a core in one turn is bounded, however many commands there are.

use super::*;
use crate::core::TURN_BYTES;
use reactor::memory::HUGE_PAGE_BYTES;
use store::lane::{Op, OpId, Outcome, Submitted};
use wire::scsi::command::{Verify10, WriteSame16};

/// By how much one operation may exceed the turn's budget.
const LONGEST_BYTES: u64 = 256 << 10;

/// The most bytes that lanes moved in one turn of the core, and the turns in which any were moved.
#[derive(Default)]
struct Meter {
    turn: usize,
    bytes: u64,
    most: u64,
    turns: usize,
}

impl Meter {
    fn add(&mut self, turn: usize, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if turn != self.turn {
            (self.turn, self.bytes) = (turn, 0);
            self.turns += 1;
        }
        self.bytes += bytes;
        self.most = self.most.max(self.bytes);
    }
}

/// A lane that records the work it does.
struct Metered {
    lane: Box<dyn Lane<RecordingIo>>,
    /// Bytes that the system has to clear for each write.
    fresh: u64,
    turn: Arc<AtomicUsize>,
    meter: Arc<Mutex<Meter>>,
}

impl Metered {
    fn note(&self, bytes: u64) {
        self.meter.lock().expect("nobody panics with it").add(self.turn.load(Ordering::Relaxed), bytes);
    }
}

impl Lane<RecordingIo> for Metered {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span> {
        self.lane.borrow(offset, len)
    }

    fn read_now(&mut self, io: &mut RecordingIo, offset: u64, into: &Places) -> bool {
        self.note(u64::from(into.len()));
        self.lane.read_now(io, offset, into)
    }

    fn write_now(&mut self, io: &mut RecordingIo, offset: u64, from: Places, may_clear: bool) -> Option<u64> {
        if self.fresh > 0 && !may_clear {
            return None;
        }
        self.note(self.fresh);
        self.lane.write_now(io, offset, from, may_clear).map(|_| self.fresh)
    }

    fn works_at_once(&self) -> bool {
        self.lane.works_at_once()
    }

    fn fresh_bytes(&self, op: &Op) -> u64 {
        if matches!(op, Op::Write { .. }) { self.fresh } else { 0 }
    }

    fn submit(&mut self, io: &mut RecordingIo, id: OpId, op: &Op) -> Submitted {
        let submitted = self.lane.submit(io, id, op);
        if let (Submitted::Done(_), Op::Read { into: places, .. } | Op::Compare { with: places, .. }) =
            (submitted, op)
        {
            self.note(u64::from(places.len()));
        }
        self.note(self.fresh_bytes(op));
        submitted
    }

    fn completed(&mut self, io: &mut RecordingIo, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.lane.completed(io, completion, done);
    }

    fn flush(&mut self, io: &mut RecordingIo, done: &mut Vec<(OpId, Outcome)>) -> bool {
        self.lane.flush(io, done)
    }

    fn work(&mut self, io: &mut RecordingIo, bytes: u64, done: &mut Vec<(OpId, Outcome)>) -> u64 {
        let worked = self.lane.work(io, bytes, done);
        self.note(worked);
        worked
    }

    fn cancel(&mut self, io: &mut RecordingIo, id: OpId) {
        self.lane.cancel(io, id);
    }

    fn in_flight(&self) -> usize {
        self.lane.in_flight()
    }
}

/// A target whose lanes are metered together; the system clears this many fresh bytes for each write.
fn metered(units: usize, unit_bytes: u64, fresh: u64) -> (Target, Arc<Mutex<Meter>>) {
    let meter = Arc::<Mutex<Meter>>::default();
    let of = meter.clone();
    let target = Target::with(
        units,
        unit_bytes,
        Box::new(move |lane, turn| Box::new(Metered { lane, fresh, turn, meter: of.clone() })),
    );
    (target, meter)
}

/// A command without data.
fn dataless(peer: &Peer, cdb: impl Into<Cdb>) -> Request {
    let (cdb, lun) = (cdb.into(), peer.session.lun_bytes());
    Request { lun, attribute: Attribute::Simple, cdb, read: Places::EMPTY, write: Places::EMPTY }
}

#[test]
fn many_commands_that_read_memory_take_many_turns() {
    const COMMANDS: usize = 32;
    let (target, meter) = metered(1, UNIT_BYTES, 0);
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::login(&target, "")).collect();
    for peer in &mut peers {
        let verify = dataless(peer, Verify10::new(0, (UNIT_BYTES / u64::from(BLOCK)) as u16));
        peer.submit(&[verify; COMMANDS]);
    }
    for mut peer in peers {
        peer.finish(COMMANDS);
        peer.logout();
    }
    target.stop();
    let Meter { most, turns, .. } = &*meter.lock().expect("the core has ended");
    assert!(*most <= TURN_BYTES + LONGEST_BYTES, "{most} bytes in one turn");
    assert!(*turns as u64 >= 4 * COMMANDS as u64 * UNIT_BYTES / (TURN_BYTES + LONGEST_BYTES));
}

#[test]
fn copied_reads_are_bounded_as_well() {
    // By tasks, and by commands that need none.
    for (commands, blocks) in [(32, 512), (128, 128)] {
        let unit_bytes = u64::from(commands * blocks * BLOCK);
        let (target, meter) = metered(1, unit_bytes, 0);
        let mut peer = Peer::login(&target, "?data_digest=crc32c");
        assert_eq!(peer.read(commands, blocks).len() as u64, unit_bytes);
        peer.logout();
        target.stop();
        let most = meter.lock().expect("the core has ended").most;
        assert!(most <= TURN_BYTES + LONGEST_BYTES, "{most} bytes in one turn");
    }
}

#[test]
fn long_clears_of_many_units_share_one_budget() {
    const UNITS: usize = 4;
    const LONG_BYTES: u64 = 16 << 20;
    let (target, meter) = metered(UNITS, LONG_BYTES, 0);
    let mut peers: Vec<Peer> = (0..UNITS).map(|lun| Peer::login_to(&target, lun, "")).collect();
    for peer in &mut peers {
        // WRITE SAME(16) of zeros that are not sent (NDOB), to the end.
        let clear = dataless(peer, WriteSame16 { no_data: true, ..WriteSame16::new(0, 0) });
        peer.submit(&[clear]);
    }
    for mut peer in peers {
        peer.finish(1);
        peer.logout();
    }
    target.stop();
    let Meter { most, turns, .. } = &*meter.lock().expect("the core has ended");
    assert!(*most <= TURN_BYTES + LONGEST_BYTES, "{most} bytes in one turn");
    assert!(*turns as u64 >= UNITS as u64 * LONG_BYTES / (TURN_BYTES + LONGEST_BYTES));
}

#[test]
fn first_writes_to_huge_pages_take_many_turns() {
    const COMMANDS: u32 = 32;
    let (target, meter) = metered(1, UNIT_BYTES, HUGE_PAGE_BYTES);
    let mut peer = Peer::login(&target, "");
    let place = peer.io.arena().take(BLOCK).expect("a buffer");
    let requests: Vec<Request> =
        (0..COMMANDS).map(|lba| peer.request(0x2a, lba, Places::EMPTY, place)).collect();
    peer.run(&requests);
    peer.logout();
    target.stop();
    let Meter { most, turns, .. } = &*meter.lock().expect("the core has ended");
    assert!(*most < TURN_BYTES + HUGE_PAGE_BYTES, "{most} bytes in one turn");
    assert_eq!(*turns, COMMANDS as usize);
}
