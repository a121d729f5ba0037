//! The sending half: everything that a machine owes is sent in one send.

use super::InFlight;
use crate::crc::Crc32c;
use crate::io::{Errno, Handle, Io, Tag};
use crate::memory::{Arena, LARGE_BYTES, Loan, Pin, SMALL_BYTES, copy};
use proto::services::TaskId;
use proto::stream::{Segment, StreamMachine, Transmit};
use std::cell::RefCell;
use wire::{Places, Span};

/// Bytes copied and summed at a time, so that the sum finds them in the nearest cache.
const CHUNK_BYTES: u32 = 8 * 1024;

/// The most bytes of a batch that is sent at once: 32 answers of 4 KiB and more. Bulk is slower this way.
const AT_ONCE_BYTES_MAX: u32 = 192 * 1024;

/// Tasks whose push is sent in one batch, for which memory is allocated from the start.
const DONE_AT_START: usize = 32;

/// Batches that a core allocates when it has none left: while one is filled, others wait for their turn or
/// their send.
const BATCHES_MADE: usize = 4;
/// Buffers of one send for which memory is allocated from the start.
const BUFFERS_AT_START: usize = 4;

thread_local! {
    /// This core's unused batches. Filling one is quick, so usually there is just one.
    #[expect(clippy::vec_box, reason = "a batch that is kept by a connection is moved there as a pointer")]
    static BATCHES: RefCell<Vec<Box<Batch>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(super) struct Sender {
    tag: Tag,
    in_flight: Option<InFlight>,
    /// It has ended, but that was not reported yet.
    ended: Option<Result<u32, Errno>>,
    /// The buffers of the send in flight: header bytes, sums, and payload that was copied to be summed.
    buffers: Vec<Places>,
    /// Tasks whose push is in the batch being sent.
    done: Vec<TaskId>,
    /// Batches that have been sent.
    left: u64,
    /// The beginning of the next send.
    open: Option<Box<Batch>>,
    /// What a lack of memory has kept from being sent with the rest of its batch.
    rest: Option<Box<Batch>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flushed {
    /// Everything owed is being sent, or will be handled when a completion arrives.
    Well,
    /// No buffer is available for it.
    NoMemory,
}

/// When the end of a send is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    /// By a completion.
    Later,
    /// By [`Sender::take_ended`], if it ends at once.
    Now,
}

/// A batch that is being turned into one send, or several where memory is short.
#[derive(Debug, Default)]
struct Batch {
    transmit: Transmit,
    /// The spans of the next send.
    spans: Vec<Span>,
    /// The next segment, and how much of it was processed.
    segment: usize,
    within: u32,
    /// The next of the header bytes.
    byte: usize,
    /// Those from there on that are already in the sender's buffers.
    staged: Option<Span>,
    sum: Option<Crc32c>,
    /// Room in the last of the sender's buffers.
    room: Option<Span>,
    /// Payload that must stay unchanged until the rest was sent.
    loans: Vec<Span>,
    pins: Vec<Pin>,
}

impl Sender {
    pub(super) fn new(tag: Tag) -> Sender {
        Sender {
            tag,
            in_flight: None,
            ended: None,
            buffers: Vec::with_capacity(BUFFERS_AT_START),
            done: Vec::with_capacity(DONE_AT_START),
            left: 0,
            open: None,
            rest: None,
        }
    }

    /// Whether nothing is being sent or waits to be.
    pub(super) fn is_idle(&self) -> bool {
        self.is_free() && self.open.is_none()
    }

    /// Whether nothing is being sent, and the next batch may begin.
    pub(super) fn is_free(&self) -> bool {
        self.in_flight.is_none() && self.rest.is_none()
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The same when everything given has been sent.
    pub(super) fn given(&self) -> u64 {
        self.left + u64::from(!self.is_free()) + u64::from(self.open.is_some())
    }

    /// What has been appended to the next batch.
    pub(super) fn opened(&self) -> Option<&Transmit> {
        self.open.as_ref().map(|batch| &batch.transmit)
    }

    /// The next batch, for appending.
    #[inline]
    pub(super) fn open(&mut self, is_shared: bool) -> &mut Transmit {
        &mut self.open.get_or_insert_with(|| Batch::begin(is_shared)).transmit
    }

    pub(super) fn in_flight(&self) -> Option<InFlight> {
        self.in_flight
    }

    pub(super) fn flush<I: Io, M: StreamMachine>(
        &mut self,
        io: &mut I,
        socket: Handle,
        machine: &mut M,
        when: When,
    ) -> Flushed {
        if self.in_flight.is_some() {
            return Flushed::Well;
        }
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None if self.open.is_some() || machine.owes() => {
                let mut batch = self.open.take().unwrap_or_else(|| Batch::begin(io.is_shared()));
                // Usually all of it was answered on arrival.
                if machine.owes() {
                    machine.transmit(io.now(), &mut batch.transmit);
                }
                // Not swapped: a new connection would pass its empty allocation on to all others.
                self.done.append(&mut batch.transmit.done);
                batch
            }
            None => return Flushed::Well,
        };
        self.send(io, socket, batch, when)
    }

    fn send<I: Io>(&mut self, io: &mut I, socket: Handle, mut batch: Box<Batch>, when: When) -> Flushed {
        if when == When::Now
            && batch.is_untouched()
            && batch.transmit.total_bytes <= AT_ONCE_BYTES_MAX
            && let Some(result) = io.send_now(socket, &batch.transmit.bytes, &batch.transmit.segments)
            && result.map_or(true, |bytes| batch.skip(bytes))
        {
            self.in_flight = Some(InFlight { since: io.now(), bytes: result.map_or(0, u64::from) });
            self.ended = Some(result);
            // Nothing else is in it.
            batch.transmit.clear();
            recycle(batch);
            return Flushed::Well;
        }
        let is_complete = batch.fill(io.arena(), &mut self.buffers);
        if !batch.spans.is_empty() {
            io.send(socket, &batch.spans, self.tag);
            let bytes = batch.spans.iter().map(|span| u64::from(span.len)).sum();
            self.in_flight = Some(InFlight { since: io.now(), bytes });
        }
        if is_complete {
            self.end_batch(io.arena(), batch);
        } else {
            batch.keep_payload(io.arena());
            self.rest = Some(batch);
        }
        if is_complete || self.in_flight.is_some() { Flushed::Well } else { Flushed::NoMemory }
    }

    /// The result of the send, if it ended at once.
    pub(super) fn take_ended(&mut self) -> Option<Result<u32, Errno>> {
        self.ended.take()
    }

    /// The kernel has finished with the send in flight: its buffers are free again.
    pub(super) fn sent(&mut self, arena: &mut Arena) {
        assert!(self.in_flight.take().is_some(), "a send completes once");
        for buffer in self.buffers.drain(..) {
            arena.give(&buffer);
        }
    }

    /// Sends the rest of the batch, or reports its tasks.
    pub(super) fn go_on<I: Io>(&mut self, io: &mut I, socket: Handle, pushed: &mut Vec<TaskId>) -> Flushed {
        match self.rest.take() {
            Some(rest) => self.send(io, socket, rest, When::Later),
            None => {
                self.left += 1;
                pushed.append(&mut self.done);
                Flushed::Well
            }
        }
    }

    /// Discards what was to be sent.
    pub(super) fn drop_batch(&mut self, arena: &mut Arena) {
        self.done.clear();
        for batch in [self.rest.take(), self.open.take()].into_iter().flatten() {
            self.end_batch(arena, batch);
        }
    }

    fn end_batch(&mut self, arena: &mut Arena, mut batch: Box<Batch>) {
        batch.clear(arena);
        recycle(batch);
    }
}

/// Keeps an emptied batch for reuse.
fn recycle(batch: Box<Batch>) {
    BATCHES.with_borrow_mut(|batches| batches.push(batch));
}

impl Batch {
    /// A batch with the maximum capacity.
    fn roomy() -> Box<Batch> {
        let mut batch = Box::<Batch>::default();
        batch.transmit.bytes.reserve(Transmit::BYTES_MAX);
        batch.transmit.segments.reserve(Transmit::SEGMENTS_MAX);
        batch.transmit.done.reserve(DONE_AT_START);
        batch.spans.reserve(Transmit::SEGMENTS_MAX);
        batch
    }

    #[inline(always)]
    fn begin(is_shared: bool) -> Box<Batch> {
        let take = |batches: &mut Vec<Box<Batch>>| {
            if batches.is_empty() {
                batches.extend((0..BATCHES_MADE).map(|_| Batch::roomy()));
            }
            batches.pop()
        };
        let mut batch = BATCHES.with_borrow_mut(take).unwrap_or_else(Batch::roomy);
        batch.transmit.total_bytes_max =
            if is_shared { Transmit::SHARED_BYTES_MAX } else { Transmit::ALONE_BYTES_MAX };
        batch
    }

    /// Whether nothing of it has been sent, or prepared.
    fn is_untouched(&self) -> bool {
        (self.segment, self.within) == (0, 0)
    }

    /// Skips what was sent of it, which has no sums. Returns whether that was everything.
    fn skip(&mut self, bytes: u32) -> bool {
        if bytes == self.transmit.total_bytes {
            return true;
        }
        let mut left = bytes;
        while let Some(segment) = self.transmit.segments.get(self.segment) {
            let (len, is_payload) = match segment {
                Segment::Bytes { len } => (*len, false),
                Segment::Payload(span) => (span.len, true),
                Segment::Sum | Segment::SumStart => unreachable!("what is summed is not sent so"),
            };
            let part = left.min(len);
            self.byte += if is_payload { 0 } else { part as usize };
            if part < len {
                self.within = part;
                return false;
            }
            left -= part;
            self.segment += 1;
        }
        true
    }

    /// Lists the spans of the next send. False: memory was short, and some segments are left for another.
    fn fill(&mut self, arena: &mut Arena, buffers: &mut Vec<Places>) -> bool {
        self.spans.clear();
        (self.room, self.staged) = (None, None);
        while let Some(segment) = self.transmit.segments.get(self.segment).copied() {
            let is_done = match segment {
                Segment::SumStart => {
                    self.sum = Some(Crc32c::START);
                    true
                }
                Segment::Bytes { len } => self.add_bytes(arena, buffers, len),
                Segment::Sum => self.add_sum(arena, buffers),
                Segment::Payload(span) if self.sum.is_some() && span.buffer != arena.id() => {
                    self.add_copy(arena, buffers, span)
                }
                Segment::Payload(span) => {
                    if let Some(sum) = &mut self.sum {
                        sum.add(arena.bytes(span));
                    }
                    self.spans.push(span.slice(self.within, span.len));
                    true
                }
            };
            if !is_done {
                return false;
            }
            self.segment += 1;
            self.within = 0;
        }
        true
    }

    fn add_bytes(&mut self, arena: &mut Arena, buffers: &mut Vec<Places>, len: u32) -> bool {
        while self.within < len {
            let Some(staged) = self.staged.or_else(|| self.stage(arena, buffers)) else { return false };
            let part = staged.slice(0, len - self.within);
            self.staged = Some(staged.slice(part.len, staged.len)).filter(|rest| rest.len > 0);
            if let Some(sum) = &mut self.sum {
                sum.add(&self.transmit.bytes[self.byte..][..part.len as usize]);
            }
            self.byte += part.len as usize;
            self.within += part.len;
            self.append(part);
        }
        true
    }

    /// Copies the remaining header bytes, as many as fit into one buffer: payload goes between them on the
    /// wire, but not in memory.
    fn stage(&mut self, arena: &mut Arena, buffers: &mut Vec<Places>) -> Option<Span> {
        let left = self.transmit.bytes.len() - self.byte;
        let room = self.room(arena, buffers, left as u32)?;
        arena.bytes_mut(room).copy_from_slice(&self.transmit.bytes[self.byte..][..room.len as usize]);
        Some(room)
    }

    /// RFC 7143 section 13.1: the bytes of a digest are those of the CRC, least significant first.
    fn add_sum(&mut self, arena: &mut Arena, buffers: &mut Vec<Places>) -> bool {
        let sum = self.sum.unwrap_or(Crc32c::START).value().to_le_bytes();
        while self.within < 4 {
            let Some(room) = self.room(arena, buffers, 4 - self.within) else { return false };
            arena.bytes_mut(room).copy_from_slice(&sum[self.within as usize..][..room.len as usize]);
            self.within += room.len;
            self.append(room);
        }
        self.sum = None;
        true
    }

    /// Memory of a store may be overwritten at any time: what is summed must be a copy.
    fn add_copy(&mut self, arena: &mut Arena, buffers: &mut Vec<Places>, span: Span) -> bool {
        while self.within < span.len {
            let Some(room) = self.room(arena, buffers, (span.len - self.within).min(CHUNK_BYTES)) else {
                return false;
            };
            copy(arena, span.slice(self.within, room.len), room);
            if let Some(sum) = &mut self.sum {
                sum.add(arena.bytes(room));
            }
            self.within += room.len;
            self.append(room);
        }
        true
    }

    /// Room for 1 to `len` bytes.
    fn room(&mut self, arena: &mut Arena, buffers: &mut Vec<Places>, len: u32) -> Option<Span> {
        let free = match self.room.filter(|room| room.len > 0) {
            Some(free) => free,
            None => {
                let buffer = arena.take(self.buffer_size(arena)).or_else(|| arena.take(SMALL_BYTES))?;
                buffers.push(buffer);
                buffer.iter().next()?
            }
        };
        self.room = Some(free.slice(len, free.len));
        Some(free.slice(0, len))
    }

    /// Appends bytes in the sender's buffers to the send.
    fn append(&mut self, part: Span) {
        // A span stays within one buffer, even where the next one follows in memory.
        let may_begin_buffer = part.offset.is_multiple_of(SMALL_BYTES.into());
        match self.spans.last_mut() {
            Some(last) if !may_begin_buffer && is_followed_by(*last, part) => last.len += part.len,
            _ => self.spans.push(part),
        }
    }

    /// The size of the next buffer: small if all header bytes and sums to come fit, or nearly all.
    fn buffer_size(&self, arena: &Arena) -> u32 {
        let segments = &self.transmit.segments[self.segment..];
        let is_copied = match segments.first() {
            Some(Segment::Payload(span)) => span.buffer != arena.id(),
            Some(Segment::Bytes { .. } | Segment::Sum | Segment::SumStart) | None => false,
        };
        let headers = self.transmit.bytes.len() - self.byte;
        if is_copied || headers + 4 * segments.len() > SMALL_BYTES as usize {
            LARGE_BYTES
        } else {
            SMALL_BYTES
        }
    }

    /// Keeps the payload of a batch that was not sent as a whole from being reused or unmapped.
    fn keep_payload(&mut self, arena: &mut Arena) {
        if !self.loans.is_empty() || !self.pins.is_empty() {
            return;
        }
        for segment in &self.transmit.segments[self.segment..] {
            let Segment::Payload(span) = *segment else { continue };
            if span.buffer == arena.id() {
                arena.lend(span, Loan::Read);
                self.loans.push(span);
            } else if !self.pins.iter().any(|pin| pin.covers(span)) {
                self.pins.extend(Pin::new(span));
            }
        }
    }

    fn clear(&mut self, arena: &mut Arena) {
        for span in &self.loans {
            arena.unlend(*span, Loan::Read);
        }
        self.loans.clear();
        self.pins.clear();
        self.transmit.clear();
        self.spans.clear();
        self.segment = 0;
        self.within = 0;
        self.byte = 0;
        self.sum = None;
        (self.room, self.staged) = (None, None);
    }
}

fn is_followed_by(span: Span, next: Span) -> bool {
    span.buffer == next.buffer && span.offset + u64::from(span.len) == next.offset
}
