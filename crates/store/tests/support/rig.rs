//! A test's core: a kernel, one lane, and buffers.

use reactor::io::{Completion, Io, Tag, Wait};
use scsi::storage::StoreError;
use std::sync::Arc;
use store::lane::{Backend, LANE_TAGS, Lane, Op, OpId, Outcome, Submitted, WORK_BYTES};
use wire::{Places, Span};

/// Bytes of each buffer of a rig.
pub const PAD_BYTES: u32 = 64 << 10;

pub struct Rig<I: Io> {
    pub io: I,
    pub lane: Box<dyn Lane<I>>,
    pads: Vec<Span>,
    next: u32,
    completions: Vec<Completion>,
    pub finished: Vec<(OpId, Outcome)>,
}

impl<I: Io> Rig<I> {
    pub fn new<S: Backend<I> + 'static>(mut io: I, store: &Arc<S>) -> Rig<I> {
        let lane = Arc::clone(store).lane(Tag(3 * LANE_TAGS));
        let mut pads = Vec::new();
        for _ in 0..2 {
            let places = io.arena().take(PAD_BYTES * 4).expect("a new arena has room");
            pads.extend(places.iter());
        }
        Rig { io, lane, pads, next: 0, completions: Vec::new(), finished: Vec::new() }
    }

    /// Places in buffers of set 0 or 1: one span per length, each starting `skip` bytes into its buffer.
    pub fn places(&self, set: usize, skip: u32, lens: &[u32]) -> Places {
        let mut places = Places::EMPTY;
        for (pad, &len) in self.pads[set * 4..][..4].iter().zip(lens) {
            assert!(skip + len <= PAD_BYTES);
            places.push(pad.slice(skip, len));
        }
        assert_eq!(places.len(), lens.iter().sum::<u32>());
        places
    }

    /// Places for `len` bytes in whole buffers.
    pub fn room(&self, set: usize, len: usize) -> Places {
        let len = len as u32;
        let lens: Vec<u32> = (0..4).map(|nth| len.saturating_sub(nth * PAD_BYTES).min(PAD_BYTES)).collect();
        self.places(set, 0, &lens)
    }

    pub fn fill(&mut self, places: &Places, bytes: &[u8]) {
        let mut at = 0;
        for span in places.iter() {
            self.io.arena().bytes_mut(span).copy_from_slice(&bytes[at..at + span.len as usize]);
            at += span.len as usize;
        }
        assert_eq!(at, bytes.len());
    }

    pub fn bytes(&mut self, places: &Places) -> Vec<u8> {
        let arena = self.io.arena();
        places.iter().flat_map(|span| arena.bytes(span).to_vec()).collect()
    }

    /// Submits; the outcome is added to `finished`.
    pub fn start(&mut self, op: &Op) -> OpId {
        let id = OpId(self.next);
        self.next += 1;
        match self.lane.submit(&mut self.io, id, op) {
            Submitted::Done(outcome) => self.finished.push((id, outcome)),
            Submitted::Later => {}
        }
        id
    }

    pub fn turn(&mut self) {
        let before = self.finished.len();
        self.lane.work(&mut self.io, WORK_BYTES, &mut self.finished);
        let retry = self.lane.flush(&mut self.io, &mut self.finished);
        let idle = self.lane.in_flight() == 0 || self.finished.len() > before;
        self.take_turn(if retry || idle { Wait::No } else { Wait::Forever });
    }

    /// A turn that does not wait.
    pub fn poll(&mut self) {
        self.lane.flush(&mut self.io, &mut self.finished);
        self.take_turn(Wait::No);
    }

    /// Submits to the kernel what was started, and leaves completions for the next turn.
    pub fn submit(&mut self) {
        self.io.turn(Wait::No, &mut self.completions);
    }

    fn take_turn(&mut self, wait: Wait) {
        self.io.turn(wait, &mut self.completions);
        for completion in std::mem::take(&mut self.completions) {
            self.lane.completed(&mut self.io, completion, &mut self.finished);
        }
    }

    /// Runs one operation to its end.
    pub fn run(&mut self, op: Op) -> Outcome {
        let id = self.start(&op);
        loop {
            if let Some(at) = self.finished.iter().position(|(done, _)| *done == id) {
                return self.finished.swap_remove(at).1;
            }
            self.turn();
        }
    }

    /// Runs all that was started to its end.
    pub fn settle(&mut self) -> Vec<(OpId, Outcome)> {
        while self.lane.in_flight() > 0 {
            self.turn();
        }
        std::mem::take(&mut self.finished)
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        let into = self.room(0, len);
        self.run(Op::Read { offset, into })?;
        Ok(self.bytes(&into))
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome {
        let from = self.room(0, bytes.len());
        self.fill(&from, bytes);
        self.run(Op::Write { offset, from, durable: false, atomic: false })
    }

    pub fn compare_and_write(&mut self, offset: u64, compare: &[u8], write: &[u8]) -> Outcome {
        let (before, after) = (self.room(0, compare.len()), self.room(1, write.len()));
        self.fill(&before, compare);
        self.fill(&after, write);
        self.run(Op::CompareAndWrite { offset, compare: before, write: after, durable: false })
    }
}
