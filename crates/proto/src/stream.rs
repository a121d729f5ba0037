//! The interface between a machine that uses a byte stream and the driver that owns the socket.
//!
//! The driver's loop, for each machine:
//!
//! 1. call [`StreamMachine::want`], provide those bytes, call [`StreamMachine::header`] or
//!    [`StreamMachine::body`];
//! 2. pass every event of [`StreamMachine::poll`] to the engine **before** calling `want` again: a command
//!    that carries data must get its buffer first;
//! 3. when the socket is free and something is owed, [`StreamMachine::transmit`] fills a [`Transmit`], which
//!    is sent in one call. When that send has completed, the driver reports the tasks in `Transmit::done`.

use crate::services::TaskId;
use crate::time::Time;
use wire::{Places, Span};

/// What a machine wants next of its input.
///
/// For a payload that the driver has begun to receive, this always describes the whole payload, and the
/// driver keeps track of how much it has; the only change that may happen meanwhile is from `Body` to `Skip`,
/// when the task was aborted: the rest is then discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Exactly `len` contiguous bytes (1..=[`HEADER_BYTES_MAX`]), for [`StreamMachine::header`].
    Header {
        /// Length in bytes.
        len: u32,
    },
    /// `place.len()` payload bytes straight into `place`, then `pad` bytes to discard, then, with `digest`,
    /// the four bytes of a CRC32C over payload and padding; then [`StreamMachine::body`].
    Body {
        /// Where the payload goes.
        place: Places,
        /// Bytes to discard after the payload (0..=[`PAD_BYTES_MAX`]): padding, and an unused CRC.
        pad: u32,
        /// A CRC32C follows that must be verified. It continues from this one, which covers the bytes before;
        /// the CRC32C of nothing is 0.
        digest: Option<u32>,
    },
    /// Like `Body`, but the payload is discarded (and still summed with `digest`).
    Skip {
        /// Payload bytes.
        len: u32,
        /// Bytes to discard after the payload (0..=[`PAD_BYTES_MAX`]).
        pad: u32,
        /// As in `Body`.
        digest: Option<u32>,
    },
    /// Nothing for now: read no further until the engine has called the machine.
    Nothing,
}

/// The longest contiguous piece that a machine may request with [`Want::Header`], in bytes. Longer texts are
/// requested in several pieces.
pub const HEADER_BYTES_MAX: u32 = 4096;

/// The most bytes to discard after a payload: three of padding, and an unused CRC field.
pub const PAD_BYTES_MAX: u32 = 7;

/// One piece of output, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// The next `len` bytes of [`Transmit::bytes`].
    Bytes {
        /// Length in bytes.
        len: u32,
    },
    /// Payload sent from its place.
    Payload(Span),
    /// Four bytes of CRC32C over all `Payload` and `Bytes` segments since the last `SumStart`, summed by the
    /// driver from the very bytes that it sends.
    Sum,
    /// A sum starts here; nothing is sent for it.
    SumStart,
}

/// One batch of output: headers in `bytes`, payload named by spans.
///
/// The driver lends `bytes` (its capacity is the batch's limit) and keeps both vectors' allocations between batches.
#[derive(Debug)]
pub struct Transmit {
    /// Header, text, sense and padding bytes, in the order of the `Bytes` segments.
    pub bytes: Vec<u8>,
    /// What to send, in order.
    pub segments: Vec<Segment>,
    /// Tasks whose pushed payload ends within this batch.
    pub done: Vec<TaskId>,
    /// Payload and header bytes so far.
    pub total_bytes: u32,
    /// A batch that has reached this many bytes accepts no further PDU: [`Transmit::SHARED_BYTES_MAX`], or
    /// more where the send delays no other connection.
    pub total_bytes_max: u32,
}

impl Default for Transmit {
    fn default() -> Transmit {
        Transmit {
            bytes: Vec::new(),
            segments: Vec::new(),
            done: Vec::new(),
            total_bytes: 0,
            total_bytes_max: Transmit::SHARED_BYTES_MAX,
        }
    }
}

impl Transmit {
    /// Header bytes per batch.
    pub const BYTES_MAX: usize = 16 * 1024;
    /// Segments per batch (the kernel accepts 1024 vectors in one call).
    pub const SEGMENTS_MAX: usize = 512;
    /// Bytes per batch where others wait for its end. (With eight times as much, one loud initiator made
    /// quiet ones wait 450 us instead of 100.)
    pub const SHARED_BYTES_MAX: u32 = 128 * 1024;
    /// Bytes per batch where none do: 16 answers of 64 KiB are sent in one call, and the next 16 commands
    /// arrive together.
    pub const ALONE_BYTES_MAX: u32 = 1024 * 1024;

    /// Whether another PDU with `bytes` header bytes and `segments` segments fits.
    #[inline]
    pub fn has_room(&self, bytes: usize, segments: usize) -> bool {
        self.total_bytes < self.total_bytes_max && self.has_room_without_payload(bytes, segments)
    }

    /// The same for one that has no payload.
    pub fn has_room_without_payload(&self, bytes: usize, segments: usize) -> bool {
        self.bytes.len().saturating_add(bytes) <= Self::BYTES_MAX
            && self.segments.len().saturating_add(segments) <= Self::SEGMENTS_MAX
    }

    /// Appends bytes; neighbouring pieces become one segment.
    #[inline]
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        if len == 0 {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.total_bytes = self.total_bytes.saturating_add(len);
        match self.segments.last_mut() {
            Some(Segment::Bytes { len: last }) => *last = last.saturating_add(len),
            _ => self.segments.push(Segment::Bytes { len }),
        }
    }

    /// Starts a sum.
    pub fn start_sum(&mut self) {
        self.segments.push(Segment::SumStart);
    }

    /// Appends the sum.
    pub fn push_sum(&mut self) {
        self.total_bytes = self.total_bytes.saturating_add(4);
        self.segments.push(Segment::Sum);
    }

    /// Appends payload.
    #[inline]
    pub fn push_payload(&mut self, span: Span) {
        self.total_bytes = self.total_bytes.saturating_add(span.len);
        self.segments.push(Segment::Payload(span));
    }

    /// Clears the batch, but keeps the allocations.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.segments.clear();
        self.done.clear();
        self.total_bytes = 0;
    }
}

/// The protocol state of one connection over a byte stream.
pub trait StreamMachine {
    /// Its events for the layer above.
    type Event;

    /// What to provide next. Called again after every `header`, `body`, `transmit`, `tick` and call from the
    /// engine; the answer is valid until one of these happens.
    fn want(&self) -> Want;

    /// The bytes requested by `Want::Header`.
    fn header(&mut self, now: Time, bytes: &[u8]);

    /// The same, with the bytes already received after them. Returns how many of those were used, too:
    /// everything that would be requested by `Want::Header` before anything else can happen.
    fn header_and(&mut self, now: Time, bytes: &[u8], behind: &[u8]) -> u32 {
        let _ = behind;
        self.header(now, bytes);
        0
    }

    /// The payload of `Want::Body` or `Want::Skip` has been received or skipped. `digest_ok` is false when a
    /// digest was requested and did not match.
    fn body(&mut self, now: Time, digest_ok: bool);

    /// The stream ended (`None`: the peer closed it in an orderly way) or failed for this reason.
    fn closed(&mut self, now: Time, error: Option<&str>);

    /// The oldest event for the engine. Any call may produce events.
    fn poll(&mut self) -> Option<Self::Event>;

    /// Whether `transmit` would add anything.
    fn owes(&self) -> bool;

    /// Appends what is owed, as much as fits.
    fn transmit(&mut self, now: Time, batch: &mut Transmit);

    /// Whether everything that matters was sent and the socket is to be closed once the last batch has been
    /// sent.
    fn finished(&self) -> bool;

    /// When `tick` has to be called next, if nothing else happens.
    fn deadline(&self) -> Option<Time>;

    /// The deadline has been reached.
    fn tick(&mut self, now: Time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::BufferId;

    /// How many answers of 64 KiB, each between two headers, fit into a batch.
    fn answers(total_bytes_max: u32, is_summed: bool) -> u32 {
        let mut batch = Transmit { total_bytes_max, ..Transmit::default() };
        let mut count = 0;
        while batch.has_room(96, 5) {
            batch.push_bytes(&[0; 48]);
            if is_summed {
                batch.start_sum();
            }
            batch.push_payload(Span { buffer: BufferId(0), offset: 0, len: 64 * 1024 });
            if is_summed {
                batch.push_sum();
            }
            batch.push_bytes(&[0; 48]);
            count += 1;
        }
        count
    }

    #[test]
    fn a_lone_connection_batches_more_answers() {
        for is_summed in [false, true] {
            assert_eq!(answers(Transmit::SHARED_BYTES_MAX, is_summed), 2);
            assert_eq!(answers(Transmit::ALONE_BYTES_MAX, is_summed), 16);
        }
    }
}
