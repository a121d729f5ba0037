//! What a machine may post to its queue pair, and buffers for message headers too long for the queue pair to
//! copy.

use crate::provider::{Provider, Refused};
use crate::receives::ReceiveBuffers;
use proto::iwarp::memory::Access as Allowed;
use proto::message::{Access, Advertised, Full, Post, WorkId};
use reactor::memory::{Arena, LARGE_BYTES, SMALL_BYTES};
use std::collections::VecDeque;
use wire::{Places, Span};

/// When less than this is free, memory is left for batches in flight, which cannot do without.
const SCARCE_BYTES: u64 = 2 * LARGE_BYTES as u64;

/// A channel while its machine is posting.
pub(super) struct Posting<'a, P> {
    pub pair: &'a mut P,
    pub arena: &'a mut Arena,
    pub receives: &'a mut ReceiveBuffers,
    pub staging: &'a mut Staging,
    /// A refusal that waiting does not resolve.
    pub fault: &'a mut Option<Refused>,
}

impl<P: Provider> Posting<'_, P> {
    fn note_refusal<T>(&mut self, result: Result<T, Refused>) -> Result<T, Full> {
        result.map_err(|refused| {
            match refused {
                // In any other state the connection ends soon.
                Refused::Full | Refused::State => {}
                Refused::TooLong | Refused::NoReads => *self.fault = Some(refused),
            }
            Full
        })
    }

    /// A buffer that holds `header`, followed by the bytes at `payload`.
    fn stage(&mut self, header: &[u8], payload: &Places) -> Option<Places> {
        let header_bytes = header.len() as u32;
        let len = header_bytes.checked_add(payload.len())?;
        let buffer = self.staging.take(len, self.arena)?;
        let mut rest = header;
        for span in buffer.slice(0, header_bytes).iter() {
            let (piece, after) = rest.split_at(span.len as usize);
            self.arena.bytes_mut(span).copy_from_slice(piece);
            rest = after;
        }
        let mut at = header_bytes;
        for span in payload.iter() {
            self.arena.copy(span, &buffer.slice(at, span.len));
            at += span.len;
        }
        Some(buffer)
    }
}

impl<P: Provider> Post for Posting<'_, P> {
    fn send(
        &mut self,
        work: WorkId,
        header: &[u8],
        payload: Places,
        solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), Full> {
        let (head, rest) = header.split_at(self.pair.copied(header, &payload));
        if rest.is_empty() {
            let sent = self.pair.send(work.0, head, payload, solicited, invalidate, self.arena);
            self.note_refusal(sent)?;
            self.staging.posted(None);
            return Ok(());
        }
        let buffer = self.stage(rest, &payload).ok_or(Full)?;
        let staged = buffer.slice(0, rest.len() as u32 + payload.len());
        let sent = self.pair.send(work.0, head, staged, solicited, invalidate, self.arena);
        let sent = self.note_refusal(sent);
        match sent {
            Ok(()) => self.staging.posted(Some(buffer)),
            Err(Full) => self.staging.recycle(buffer, self.arena),
        }
        sent
    }

    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full> {
        let posted = self.pair.write(work.0, from, to.stag, to.offset, self.arena);
        self.note_refusal(posted)
    }

    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full> {
        let posted = self.pair.read(work.0, into, from.stag, from.offset, self.arena);
        self.note_refusal(posted)
    }

    fn advertise(&mut self, places: Places, access: Access) -> Result<Advertised, Full> {
        let (remote_read, remote_write) = match access {
            Access::Read => (true, false),
            Access::Write => (false, true),
        };
        let registered = self.pair.register(places, Allowed { remote_read, remote_write });
        Ok(Advertised { stag: self.note_refusal(registered)?, offset: 0 })
    }

    fn moved(&self, stag: u32) -> u32 {
        self.pair.moved(stag)
    }

    fn invalidate(&mut self, stag: u32) -> bool {
        self.pair.invalidate(stag)
    }

    fn copy(&mut self, from: Span, to: Places) {
        self.arena.copy(from, &to);
    }

    fn bytes(&self, place: Span) -> &[u8] {
        self.arena.bytes(place)
    }

    fn release(&mut self, place: Span) {
        let place = self.receives.reclaim(place);
        let posted = self.pair.post_receive(place, self.arena);
        assert!(posted != Err(Refused::Full), "there was room for it before");
    }
}

/// Buffers for headers longer than the queue pair copies. One is reserved from the start, so that such a
/// message waits for the previous one at most, however short memory is.
#[derive(Debug, Default)]
pub(super) struct Staging {
    spare: Option<Places>,
    /// Those of Sends in flight, each with its Send's number: Sends finish in order.
    in_flight: VecDeque<(u64, Places)>,
    posted: u64,
    sent: u64,
    is_short: bool,
}

impl Staging {
    /// `false`: out of memory for the first buffer.
    pub(super) fn reserve(&mut self, arena: &mut Arena) -> bool {
        if self.spare.is_none() && self.in_flight.is_empty() {
            self.spare = arena.take(SMALL_BYTES);
        }
        self.spare.is_some() || !self.in_flight.is_empty()
    }

    /// The machine starts posting.
    pub(super) fn begin(&mut self) {
        self.is_short = false;
    }

    /// Whether memory was short while it posted.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// A buffer of at least `len` bytes. `None`: none is available until a Send has finished, or memory is
    /// released.
    fn take(&mut self, len: u32, arena: &mut Arena) -> Option<Places> {
        let is_scarce = arena.free_bytes() < SCARCE_BYTES && len <= SMALL_BYTES;
        let taken = match self.spare.take_if(|spare| spare.len() >= len) {
            None if is_scarce => None,
            None => arena.take(len.max(SMALL_BYTES)),
            spare => spare,
        };
        self.is_short = taken.is_none() && self.in_flight.is_empty();
        taken
    }

    /// A Send was posted, with this buffer.
    fn posted(&mut self, buffer: Option<Places>) {
        self.posted += 1;
        self.in_flight.extend(buffer.map(|buffer| (self.posted, buffer)));
    }

    /// The oldest posted Send has finished.
    pub(super) fn sent(&mut self, arena: &mut Arena) {
        self.sent += 1;
        if let Some((_, buffer)) = self.in_flight.pop_front_if(|(of, _)| *of == self.sent) {
            self.recycle(buffer, arena);
        }
    }

    /// Keeps a buffer for the next header, or releases it.
    fn recycle(&mut self, buffer: Places, arena: &mut Arena) {
        match self.spare {
            Some(_) => arena.give(&buffer),
            None => self.spare = Some(buffer),
        }
    }

    pub(super) fn close(self, arena: &mut Arena) {
        for buffer in self.spare.into_iter().chain(self.in_flight.into_iter().map(|(_, buffer)| buffer)) {
            arena.give(&buffer);
        }
    }
}
