//! One end of the pipe: a driver that follows `Want` and `Transmit`.

use super::memory::{Memory, crc32c_after};
use proto::iscsi::initiator::{Ended, Initiator};
use proto::services::TaskId;
use proto::stream::{Segment, StreamMachine, Transmit, Want};
use proto::time::Time;
use std::collections::VecDeque;
use wire::Places;
use wire::iscsi::BHS_BYTES;

pub(crate) struct End<M> {
    pub machine: M,
    /// Bytes received that the machine has not requested.
    incoming: VecDeque<u8>,
    /// Bytes provided of the header, or of the body with padding and digest.
    brought: Vec<u8>,
    /// Bytes of the batch being sent.
    outgoing: VecDeque<u8>,
    batch: Transmit,
    done: Vec<TaskId>,
}

impl<M: StreamMachine> End<M> {
    pub(crate) fn new(machine: M) -> End<M> {
        End {
            machine,
            incoming: VecDeque::new(),
            brought: Vec::new(),
            outgoing: VecDeque::new(),
            batch: Transmit::default(),
            done: Vec::new(),
        }
    }

    /// Begins a batch when none is being sent.
    pub(crate) fn fill(&mut self, now: Time, memory: &mut Memory) -> bool {
        if !self.outgoing.is_empty() || !self.done.is_empty() || !self.machine.owes() {
            return false;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        self.machine.transmit(now, &mut batch);
        assert!(batch.bytes.len() <= Transmit::BYTES_MAX && batch.segments.len() <= Transmit::SEGMENTS_MAX);
        let mut bytes = batch.bytes.iter().copied();
        let mut sum = Vec::new();
        for segment in &batch.segments {
            let piece = match segment {
                Segment::Bytes { len } => bytes.by_ref().take(*len as usize).collect(),
                Segment::Payload(span) => memory.at(*span).to_vec(),
                Segment::SumStart => {
                    sum.clear();
                    continue;
                }
                Segment::Sum => crc32c_after(0, &sum).to_le_bytes().to_vec(),
            };
            sum.extend(&piece);
            self.outgoing.extend(piece);
        }
        assert_eq!((bytes.count(), self.outgoing.len()), (0, batch.total_bytes as usize));
        self.done.append(&mut batch.done);
        self.batch = batch;
        true
    }

    /// Moves up to `len` bytes to the other end.
    pub(crate) fn carry<N>(&mut self, len: usize, to: &mut End<N>) -> bool {
        let len = len.min(self.outgoing.len());
        to.incoming.extend(self.outgoing.drain(..len));
        len > 0
    }

    /// Bytes from a peer that is not a machine.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        self.incoming.extend(bytes);
    }

    /// All bytes in transit, for a peer that is not a machine.
    pub(crate) fn take_outgoing(&mut self) -> Vec<u8> {
        self.outgoing.drain(..).collect()
    }

    /// Tasks whose payload was in a batch that has been sent.
    pub(crate) fn left(&mut self) -> Vec<TaskId> {
        if self.outgoing.is_empty() { std::mem::take(&mut self.done) } else { Vec::new() }
    }

    /// Provides one thing that the machine wants, as far as it is available.
    pub(crate) fn feed(&mut self, now: Time, memory: &mut Memory) -> bool {
        match self.machine.want() {
            Want::Nothing => false,
            Want::Header { len } => {
                if !self.bring(len as usize) {
                    return false;
                }
                let bytes = std::mem::take(&mut self.brought);
                self.machine.header(now, &bytes);
                true
            }
            Want::Body { place, pad, digest } => {
                self.body(now, memory, Some(place), place.len(), pad, digest)
            }
            Want::Skip { len, pad, digest } => self.body(now, memory, None, len, pad, digest),
        }
    }

    fn body(
        &mut self,
        now: Time,
        memory: &mut Memory,
        place: Option<Places>,
        len: u32,
        pad: u32,
        digest: Option<u32>,
    ) -> bool {
        let padded = (len + pad) as usize;
        let before = self.brought.len();
        let whole = self.bring(padded + if digest.is_some() { 4 } else { 0 });
        // Straight to its place, even when not all of it is available yet.
        let after = self.brought.len();
        let mut at = 0;
        for span in place.iter().flat_map(Places::iter) {
            let end = at + span.len as usize;
            let (from, to) = (before.clamp(at, end), after.clamp(at, end));
            if from < to {
                memory.at(span)[from - at..to - at].copy_from_slice(&self.brought[from..to]);
            }
            at = end;
        }
        if whole {
            let bytes = std::mem::take(&mut self.brought);
            let sum = digest.map(|before| crc32c_after(before, &bytes[..padded]).to_le_bytes());
            let ok = sum.is_none_or(|sum| bytes[padded..] == sum);
            self.machine.body(now, ok);
        }
        whole
    }

    /// Whether `len` bytes have been provided.
    fn bring(&mut self, len: usize) -> bool {
        let missing = len - self.brought.len();
        let here = missing.min(self.incoming.len());
        self.brought.extend(self.incoming.drain(..here));
        self.brought.len() == len
    }

    /// Changes a byte in transit; `false` when there are not that many.
    pub(crate) fn corrupt(&mut self, at: usize) -> bool {
        self.outgoing.get_mut(at).map(|byte| *byte ^= 0x10).is_some()
    }

    pub(crate) fn hung_up(&self) -> bool {
        self.machine.finished() && self.outgoing.is_empty()
    }

    /// Everything received was used.
    pub(crate) fn is_drained(&self) -> bool {
        self.incoming.is_empty() || self.machine.want() == Want::Nothing
    }
}

impl End<Initiator> {
    /// Ends a command that was received in full by the shortcut, where it may.
    pub(crate) fn ended(&mut self, now: Time, memory: &mut Memory) -> Option<Ended> {
        if !self.brought.is_empty() {
            return None;
        }
        let (header, behind) = self.incoming.make_contiguous().split_first_chunk::<BHS_BYTES>()?;
        let ended = self.machine.ended(now, header, behind.len() as u32)?;
        self.incoming.drain(..BHS_BYTES);
        for span in ended.place.iter() {
            let bytes: Vec<u8> = self.incoming.drain(..span.len as usize).collect();
            memory.at(span).copy_from_slice(&bytes);
        }
        self.incoming.drain(..ended.padding as usize);
        Some(ended)
    }
}
