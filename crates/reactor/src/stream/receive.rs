//! The receiving half: headers are parsed where they were read, small bodies are copied from there to their places,
//! large ones are received straight into them.

use crate::crc::Crc32c;
use crate::io::{Handle, Io, Tag};
use crate::memory::{Arena, LARGE_BYTES, SMALL_BYTES, copy};
use proto::stream::{HEADER_BYTES_MAX, StreamMachine, Want};
use wire::{Places, Span};

const _: () = assert!(HEADER_BYTES_MAX <= SMALL_BYTES, "a header fits into any buffer");

/// A body missing more than this is received straight into its places. Then at most one small buffer's worth
/// is read ahead: more would swallow the next payload before its header says where it goes.
const STRAIGHT_BYTES_MIN: u32 = 8 * 1024;
/// A body of this size fills at least half of a large buffer, only to be copied from it.
const BULK_BYTES_MIN: u32 = LARGE_BYTES / 2;
/// This many smaller bodies in a row mean that there are no large ones for now.
const SMALL_BODIES: u32 = 16;

#[derive(Debug)]
pub(super) struct Receiver {
    tag: Tag,
    /// Bytes that came along from another core and do not fit into `staging` yet.
    leftover: Vec<u8>,
    /// The buffer that is read into, and its unread bytes.
    staging: Option<Span>,
    start: u32,
    end: u32,
    posted: Option<Posted>,
    /// The last recv brought more than a small buffer holds, or ended a recv that did: use a large one.
    uses_large_buffer: bool,
    /// The last recv filled its buffer.
    is_filled: bool,
    /// How many smaller bodies have to arrive before a large buffer is used again: what is read ahead of a
    /// large body has to be copied to its place.
    bulk: u32,
    payload: Progress,
}

/// Where a recv in flight puts its bytes: first this many into the places of the body, then into `staging`.
#[derive(Clone, Copy, Debug)]
struct Posted {
    straight: u32,
    staged: u32,
}

/// Progress in the current payload.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Payload bytes received.
    done: u32,
    /// Payload bytes that were received straight into the places and have not been processed yet.
    straight: u32,
    /// Bytes of padding and digest received.
    trailer: u32,
    /// The sum so far, once it has begun.
    sum: Option<Crc32c>,
    /// Bytes were received into places that were released before they could be summed.
    is_unsummed: bool,
    digest: [u8; 4],
}

const UNTOUCHED: Progress =
    Progress { done: 0, straight: 0, trailer: 0, sum: None, is_unsummed: false, digest: [0; 4] };

impl Progress {
    /// The next bytes after the payload: `pad` to be discarded, then the digest.
    fn take_trailer(&mut self, bytes: &[u8], pad: u32) {
        let unused = pad.saturating_sub(self.trailer).min(bytes.len() as u32);
        let (padding, digest) = bytes.split_at(unused as usize);
        if let Some(sum) = &mut self.sum {
            sum.add(padding);
        }
        self.trailer += unused;
        if !digest.is_empty() {
            let at = (self.trailer - pad) as usize;
            self.digest[at..][..digest.len()].copy_from_slice(digest);
            self.trailer += digest.len() as u32;
        }
    }
}

/// The parts of [`Want::Body`] and [`Want::Skip`].
#[derive(Clone, Copy)]
struct Body {
    place: Option<Places>,
    len: u32,
    pad: u32,
    digest: Option<u32>,
}

pub(super) enum Delivered {
    /// A header or a body.
    Something,
    /// More bytes must be received for this.
    Short(Want),
    /// No buffer is available for it.
    NoMemory,
}

impl Receiver {
    pub(super) fn new(tag: Tag, leftover: Vec<u8>) -> Receiver {
        Receiver {
            tag,
            leftover,
            staging: None,
            start: 0,
            end: 0,
            posted: None,
            uses_large_buffer: false,
            is_filled: false,
            bulk: 0,
            payload: UNTOUCHED,
        }
    }

    pub(super) fn is_posted(&self) -> bool {
        self.posted.is_some()
    }

    /// Whether a header or body was received in part.
    pub(super) fn is_mid_way(&self) -> bool {
        self.staged() > 0 || !self.leftover.is_empty() || self.is_in_payload()
    }

    /// Whether a payload was received in part.
    pub(super) fn is_in_payload(&self) -> bool {
        self.payload.done > 0 || self.payload.straight > 0 || self.payload.trailer > 0
    }

    pub(super) fn received(&mut self, bytes: u32) {
        let posted = self.posted.take().expect("a recv completes once");
        let straight = bytes.min(posted.straight);
        let staged = bytes - straight;
        let continues = self.uses_large_buffer && self.is_mid_way();
        self.payload.straight = straight;
        self.end += staged;
        self.is_filled = bytes == posted.straight + posted.staged;
        self.uses_large_buffer = bytes > SMALL_BYTES || (staged > 0 && staged == posted.staged) || continues;
    }

    /// Whether the recv in flight follows one that filled its buffer, and so is likely to find bytes at once.
    /// True once for each.
    pub(super) fn take_filled(&mut self) -> bool {
        std::mem::take(&mut self.is_filled) && self.is_posted()
    }

    /// Gives the machine one header or body, if all of it has been received.
    pub(super) fn bring<I: Io, M: StreamMachine>(&mut self, io: &mut I, machine: &mut M) -> Delivered {
        if !self.leftover.is_empty() && !self.load_leftover(io.arena()) {
            return Delivered::NoMemory;
        }
        let now = io.now();
        let want = machine.want();
        let body = match want {
            Want::Nothing => return Delivered::Short(want),
            Want::Header { len } => {
                let Some(unread) = self.unread().filter(|unread| unread.len >= len) else {
                    return Delivered::Short(want);
                };
                let (header, behind) = io.arena().bytes(unread).split_at(len as usize);
                let taken = machine.header_and(now, header, behind);
                assert!(taken <= unread.len - len, "a machine takes what is there");
                self.start += len + taken;
                return Delivered::Something;
            }
            Want::Body { place, pad, digest } => Body { place: Some(place), len: place.len(), pad, digest },
            Want::Skip { len, pad, digest } => Body { place: None, len, pad, digest },
        };
        match self.bring_body(io.arena(), body) {
            Some(digest_ok) => {
                self.payload = UNTOUCHED;
                self.note_body(body.len);
                machine.body(now, digest_ok);
                Delivered::Something
            }
            None if self.leftover.is_empty() => Delivered::Short(want),
            None => self.bring(io, machine),
        }
    }

    /// A body has arrived.
    fn note_body(&mut self, len: u32) {
        let is_bulk = len >= BULK_BYTES_MIN;
        self.bulk = if is_bulk { SMALL_BODIES } else { self.bulk.saturating_sub(1) };
    }

    /// `Some`: it is complete; whether the digest matches.
    fn bring_body(&mut self, arena: &mut Arena, body: Body) -> Option<bool> {
        let straight = std::mem::take(&mut self.payload.straight);
        if self.payload.sum.is_none() {
            self.payload.sum = body.digest.map(Crc32c::after);
        }
        if straight > 0 {
            match (body.place, &mut self.payload.sum) {
                (Some(place), Some(sum)) => {
                    for span in place.slice(self.payload.done, straight).iter() {
                        sum_span(sum, arena, span);
                    }
                }
                (Some(_), None) => {}
                (None, _) => self.payload.is_unsummed = true,
            }
            self.payload.done += straight;
        }
        self.bring_staged(arena, body);
        let trailer = body.pad + if body.digest.is_some() { 4 } else { 0 };
        if self.payload.done == body.len {
            let missing = trailer - self.payload.trailer;
            if let Some(span) = self.take_staged(missing.min(self.staged())) {
                self.payload.take_trailer(arena.bytes(span), body.pad);
            }
        }
        if self.payload.done < body.len || self.payload.trailer < trailer {
            return None;
        }
        let sent = u32::from_le_bytes(self.payload.digest);
        Some(self.payload.is_unsummed || self.payload.sum.is_none_or(|sum| sent == sum.value()))
    }

    /// Moves payload from staging to its places, or discards it.
    fn bring_staged(&mut self, arena: &mut Arena, body: Body) {
        let missing = body.len - self.payload.done;
        let Some(from) = self.take_staged(missing.min(self.staged())) else { return };
        if let Some(sum) = &mut self.payload.sum {
            sum.add(arena.bytes(from));
        }
        if let Some(place) = body.place {
            arena.copy(from, &place.slice(self.payload.done, from.len));
        }
        self.payload.done += from.len;
    }

    /// The next unread bytes, if this many have been received.
    #[inline]
    pub(super) fn ahead(&self, len: u32) -> Option<Span> {
        self.unread().filter(|unread| unread.len >= len).map(|unread| unread.slice(0, len))
    }

    /// Whether fewer bytes than these have been received, with room for the rest in the buffer.
    pub(super) fn lacks(&self, len: u32) -> bool {
        self.staged() < len && self.staging.is_some_and(|staging| staging.len >= len)
    }

    /// Whether everything received is accessible here.
    pub(super) fn is_open(&self) -> bool {
        self.posted.is_none() && self.leftover.is_empty()
    }

    /// The next bytes, which have been received, were used in place.
    #[inline]
    pub(super) fn used(&mut self, header: u32, body: u32) {
        self.start += header + body;
        assert!(self.start <= self.end, "only what is here can be used");
        if body > 0 {
            self.note_body(body);
        }
    }

    /// The last `len` bytes are unread again.
    pub(super) fn rewind(&mut self, len: u32) {
        assert!(len <= self.start && !self.is_posted(), "only what was just read can be read again");
        self.start -= len;
    }

    /// Receives more. False: no buffer is available for it now.
    pub(super) fn post<I: Io>(&mut self, io: &mut I, socket: Handle, want: Want) -> bool {
        let mut into = Places::EMPTY;
        let mut straight = 0;
        let mut is_bulk = self.bulk > 0;
        if let Want::Body { place, .. } = want {
            is_bulk |= place.len() >= BULK_BYTES_MIN;
            let missing = place.len() - self.payload.done;
            if missing > STRAIGHT_BYTES_MIN {
                into = place.slice(self.payload.done, missing);
                straight = missing;
            }
        }
        let is_large = self.uses_large_buffer && !is_bulk && straight == 0 && io.arena().is_half_free();
        let size = if is_large { LARGE_BYTES } else { SMALL_BYTES };
        let room = self.make_room(io.arena(), size);
        let room = room.map(|room| if straight > 0 { room.slice(0, SMALL_BYTES) } else { room });
        let staged = room.filter(|room| into.push(*room)).map_or(0, |room| room.len);
        if into.is_empty() {
            return false;
        }
        self.posted = Some(Posted { straight, staged });
        io.recv(socket, &into, self.tag);
        true
    }

    /// Replaces the staging buffer by one of `size` bytes if possible, with the unread bytes at its start,
    /// and returns the room after them.
    #[inline(always)]
    fn make_room(&mut self, arena: &mut Arena, size: u32) -> Option<Span> {
        let old = self.staging;
        if self.staged() == 0
            && let Some(old) = old.filter(|old| old.len == size)
        {
            (self.start, self.end) = (0, 0);
            return Some(old);
        }
        let unread = self.unread();
        let fits = self.staged() < size;
        if old.is_none_or(|old| old.len != size && fits)
            && let Some(new) = arena.take(size).and_then(|places| places.iter().next())
        {
            if let Some(unread) = unread {
                copy(arena, unread, new.slice(0, unread.len));
            }
            if let Some(old) = old {
                arena.give(&Places::one(old));
            }
            self.staging = Some(new);
        } else if let (Some(old), Some(unread)) = (old, unread)
            && self.start > 0
        {
            copy(arena, unread, old.slice(0, unread.len));
        }
        self.end = self.staged();
        self.start = 0;
        let staging = self.staging?;
        Some(staging.slice(self.end, staging.len)).filter(|room| room.len > 0)
    }

    /// False: no buffer is available for it now.
    fn load_leftover(&mut self, arena: &mut Arena) -> bool {
        let wanted = self.leftover.len().saturating_add(self.staged() as usize);
        let size = if wanted <= SMALL_BYTES as usize { SMALL_BYTES } else { LARGE_BYTES };
        let Some(room) = self.make_room(arena, size) else { return self.staged() > 0 };
        let bytes = self.leftover.len().min(room.len as usize);
        let room = room.slice(0, bytes as u32);
        arena.bytes_mut(room).copy_from_slice(&self.leftover[..bytes]);
        self.end += room.len;
        if bytes == self.leftover.len() {
            self.leftover = Vec::new();
        } else {
            self.leftover.drain(..bytes);
        }
        true
    }

    /// The unread bytes; the buffer is released.
    pub(super) fn into_unread(self, arena: &mut Arena) -> Vec<u8> {
        let mut bytes = self.unread().map_or(Vec::new(), |unread| arena.bytes(unread).to_vec());
        bytes.extend_from_slice(&self.leftover);
        if let Some(staging) = self.staging {
            arena.give(&Places::one(staging));
        }
        bytes
    }

    fn staged(&self) -> u32 {
        self.end - self.start
    }

    #[inline]
    pub(super) fn unread(&self) -> Option<Span> {
        let staged = self.staged();
        self.staging.map(|staging| staging.slice(self.start, staged)).filter(|unread| unread.len > 0)
    }

    /// Takes the next `len` unread bytes, which must have been received. `None` if `len` is zero.
    fn take_staged(&mut self, len: u32) -> Option<Span> {
        let taken = self.unread()?.slice(0, len);
        self.start += taken.len;
        (taken.len > 0).then_some(taken)
    }
}

/// Adds the bytes of a span to a sum.
fn sum_span(sum: &mut Crc32c, arena: &Arena, span: Span) {
    if span.buffer == arena.id() {
        sum.add(arena.bytes(span));
        return;
    }
    crate::memory::with_shared_bytes(span, |bytes| sum.add(bytes));
}
