//! Two lanes on one ring.

use super::End;
use proto::time::Time;
use reactor::io::{Completion, Io as _, Tag, Wait};
use reactor::memory::{Arena, LARGE_BYTES};
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use store::lane::{LANE_TAGS, Lane, Op, OpId, Outcome, Submitted, WORK_BYTES};
use wire::Places;

/// Bytes for the lanes themselves. Memory is only taken as it is used.
const LANES_BYTES: u64 = 16 << 20;
/// How often lanes check their deadlines, and watchers are called.
const TICK: Duration = Duration::from_millis(100);

/// One of the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    From,
    To,
}

impl Side {
    const BOTH: [Side; 2] = [Side::From, Side::To];

    fn tags(self) -> Tag {
        Tag(match self {
            Side::From => 0,
            Side::To => LANE_TAGS,
        })
    }
}

/// A completed operation.
pub(super) struct Finished {
    pub(super) side: Side,
    pub(super) id: OpId,
    pub(super) outcome: Outcome,
}

pub(super) struct Ends {
    // Lanes end before their ring.
    from: Box<dyn Lane<Uring>>,
    to: Box<dyn Lane<Uring>>,
    io: Uring,
    pub(super) finished: VecDeque<Finished>,
    /// Completed operations that `finished` has not returned yet.
    in_flight: usize,
    completions: Vec<Completion>,
    done: Vec<(OpId, Outcome)>,
    tick_at: Time,
}

impl Ends {
    /// With this many buffers of this size.
    pub(super) fn new(from: &End, to: &End, buffers: u32, bytes: u32) -> io::Result<Ends> {
        let room = u64::from(buffers) * u64::from(bytes.next_multiple_of(LARGE_BYTES));
        let io = Uring::new(Arena::new(room + LANES_BYTES)?, Waker::new()?)?;
        let lane = |end: &End, side: Side| Arc::clone(&end.store).lane(side.tags());
        Ok(Ends {
            from: lane(from, Side::From),
            to: lane(to, Side::To),
            tick_at: io.now(),
            io,
            finished: VecDeque::new(),
            in_flight: 0,
            completions: Vec::new(),
            done: Vec::new(),
        })
    }

    /// A buffer, kept until the end.
    pub(super) fn take(&mut self, bytes: u32) -> Option<Places> {
        self.io.arena().take(bytes)
    }

    pub(super) fn submit(&mut self, side: Side, id: OpId, op: &Op) {
        self.in_flight += 1;
        let Ends { from, to, io, .. } = self;
        let lane = if side == Side::From { from } else { to };
        if let Submitted::Done(outcome) = lane.submit(io, id, op) {
            self.finish(side, id, outcome);
        }
    }

    /// Losses of the destination's store ([`Lane::losses`]).
    pub(super) fn losses(&mut self) -> u64 {
        self.to.losses()
    }

    /// Whether anything is in progress, or finished and not handled yet.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0 || !self.finished.is_empty()
    }

    /// Advances everything; waits a short while when there is nothing to do.
    pub(super) fn turn(&mut self) {
        let mut is_waiting = self.on_each(|lane, io, done| {
            lane.work(io, WORK_BYTES, done);
            lane.flush(io, done)
        });
        if self.io.now() >= self.tick_at {
            self.tick_at = self.io.now().after(TICK);
            is_waiting |= self.on_each(|lane, io, done| {
                lane.tick(io, done);
                lane.flush(io, done)
            });
        }
        let wait = if is_waiting || !self.finished.is_empty() { Wait::No } else { Wait::AtMost(TICK) };
        self.io.turn(wait, &mut self.completions);
        for completion in std::mem::take(&mut self.completions) {
            let side = if completion.tag.0 < LANE_TAGS { Side::From } else { Side::To };
            let lane = if side == Side::From { &mut self.from } else { &mut self.to };
            lane.completed(&mut self.io, completion, &mut self.done);
            self.note(side);
        }
        self.on_each(|lane, io, done| lane.flush(io, done));
    }

    pub(super) fn fill_zeros(&mut self, places: &Places) {
        places.iter().for_each(|span| self.io.arena().bytes_mut(span).fill(0));
    }

    pub(super) fn is_zero(&mut self, places: &Places) -> bool {
        let arena = self.io.arena();
        places.iter().all(|span| all_zero(arena.bytes(span)))
    }

    /// The first byte that differs in the first `len` bytes of each.
    pub(super) fn difference(&mut self, a: &Places, b: &Places, len: u32) -> Option<u32> {
        let arena = self.io.arena();
        let mut at = 0;
        while at < len {
            let span = |places: &Places| places.slice(at, len - at).iter().next().unwrap_or_default();
            let (a, b) = (span(a), span(b));
            let piece = a.len.min(b.len);
            let (a, b) = (arena.bytes(a.slice(0, piece)), arena.bytes(b.slice(0, piece)));
            if a != b {
                let first = a.iter().zip(b).take_while(|(a, b)| a == b).count();
                return Some(at + first as u32);
            }
            at += piece.max(1);
        }
        None
    }

    fn on_each(
        &mut self,
        mut act: impl FnMut(&mut dyn Lane<Uring>, &mut Uring, &mut Vec<(OpId, Outcome)>) -> bool,
    ) -> bool {
        let mut any = false;
        for side in Side::BOTH {
            let lane = if side == Side::From { &mut self.from } else { &mut self.to };
            any |= act(lane.as_mut(), &mut self.io, &mut self.done);
            self.note(side);
        }
        any
    }

    fn note(&mut self, side: Side) {
        for (id, outcome) in std::mem::take(&mut self.done) {
            self.finish(side, id, outcome);
        }
    }

    fn finish(&mut self, side: Side, id: OpId, outcome: Outcome) {
        self.in_flight -= 1;
        self.finished.push_back(Finished { side, id, outcome });
    }
}

/// In pieces that the compiler vectorises.
fn all_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|chunk| chunk.iter().fold(0, |or, byte| or | byte) == 0)
}
