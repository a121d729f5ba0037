//! Requests in flight, with everything that the kernel reads and writes for them at a stable address.

use crate::io::Tag;
use crate::memory::{Arena, Lent, Loan, Pin};
use proto::time::Time;
use rustix::net::SocketAddrAny;
use std::ptr;
use wire::{Places, Span};

/// The most requests that one ring may have in flight; further ones fail with ENOBUFS.
const REQUESTS_MAX: usize = 65536;

/// Pins for which a finished request keeps its allocation.
const PINS_KEPT: usize = 8;

/// Requests, batches and their spans that a ring allocates at start; more are allocated when they are needed.
const REQUESTS_AT_START: usize = 256;
const BATCHES_AT_START: usize = 16;
const SPANS_AT_START: usize = 64;

/// All requests of a ring. They are boxed, never move while in flight, and are reused.
pub(super) struct Requests {
    // Boxed so that a request stays where it is while the table grows.
    #[expect(clippy::vec_box)]
    table: Vec<Box<Request>>,
    free: Vec<u32>,
    #[expect(clippy::vec_box)]
    batches: Vec<Box<Batch>>,
}

/// One request.
pub(super) struct Request {
    pub(super) tag: Tag,
    pub(super) kind: Kind,
    /// When a receive was requested.
    pub(super) since: Time,
    /// Bytes that a send has sent.
    pub(super) sent: u32,
    /// The address of a connect.
    pub(super) address: Option<Box<SocketAddrAny>>,
    message: libc::msghdr,
    places: Places,
    vectors: [libc::iovec; Places::MAX],
    /// The first vector that a send has not yet finished.
    first: usize,
    /// For more spans than fit into `places`.
    batch: Option<Box<Batch>>,
    pins: Vec<Pin>,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Accept,
    Connect {
        socket: i32,
    },
    Receive {
        socket: i32,
    },
    Send {
        socket: i32,
    },
    /// Waits for input from a peer.
    Peers {
        descriptor: i32,
    },
    /// Fills its places.
    Fill,
    /// Reads from its places.
    Drain,
    /// Has no places.
    Bare,
}

struct Batch {
    /// The spans that were lent.
    spans: Vec<Span>,
    vectors: Vec<libc::iovec>,
}

impl Requests {
    pub(super) fn new() -> Requests {
        let batch = || {
            let (spans, vectors) = (Vec::with_capacity(SPANS_AT_START), Vec::with_capacity(SPANS_AT_START));
            Box::new(Batch { spans, vectors })
        };
        Requests {
            table: (0..REQUESTS_AT_START).map(|_| Box::new(Request::new())).collect(),
            free: (0..REQUESTS_AT_START as u32).rev().collect(),
            batches: (0..BATCHES_AT_START).map(|_| batch()).collect(),
        }
    }

    /// Starts a request; `None`: too many.
    pub(super) fn start(&mut self, tag: Tag, kind: Kind) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.table.len() < REQUESTS_MAX => {
                self.table.push(Box::new(Request::new()));
                self.table.len() as u32 - 1
            }
            None => return None,
        };
        let request = self.get(index);
        request.tag = tag;
        request.kind = kind;
        request.sent = 0;
        request.first = 0;
        Some(index)
    }

    pub(super) fn get(&mut self, index: u32) -> &mut Request {
        &mut self.table[index as usize]
    }

    /// The request in flight with this tag, by a linear search.
    pub(super) fn find(&self, tag: Tag) -> Option<u32> {
        let tagged = self.table.iter().zip(0..).filter(|(request, _)| request.tag == tag);
        let mut tagged = tagged.map(|(_, index)| index);
        tagged.find(|index| !self.free.contains(index))
    }

    /// Lends any number of spans to the kernel, for a send.
    pub(super) fn lend_all(&mut self, index: u32, arena: &mut Arena, spans: &[Span]) {
        let empty = || Box::new(Batch { spans: Vec::new(), vectors: Vec::new() });
        let batch = self.batches.pop().unwrap_or_else(empty);
        self.get(index).lend_batch(arena, batch, spans);
    }

    /// The kernel has finished with the request: its loans and pins end.
    pub(super) fn finish(&mut self, index: u32, arena: &mut Arena) {
        let request = &mut self.table[index as usize];
        let loan = request.kind.loan();
        let ours = arena.id();
        let mut end = |span: Span| {
            if span.buffer == ours {
                arena.unlend(span, loan);
            }
        };
        request.places.iter().for_each(&mut end);
        request.places.clear();
        if let Some(mut batch) = request.batch.take() {
            batch.spans.iter().copied().for_each(&mut end);
            batch.spans.clear();
            batch.vectors.clear();
            self.batches.push(batch);
        }
        if !request.pins.is_empty() {
            request.pins.clear();
            request.pins.shrink_to(PINS_KEPT);
        }
        request.address = None;
        self.free.push(index);
    }
}

impl Request {
    fn new() -> Request {
        // SAFETY: a msghdr of zeros is a valid, empty one.
        let message = unsafe { std::mem::zeroed() };
        Request {
            tag: Tag(0),
            kind: Kind::Bare,
            since: Time(0),
            sent: 0,
            address: None,
            message,
            places: Places::EMPTY,
            vectors: [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; Places::MAX],
            first: 0,
            batch: None,
            pins: Vec::with_capacity(PINS_KEPT),
        }
    }

    /// Lends places to the kernel and returns their vectors.
    pub(super) fn lend(&mut self, arena: &mut Arena, places: &Places) -> &[libc::iovec] {
        self.places = *places;
        let loan = self.kind.loan();
        let mut count = 0;
        for (vector, span) in self.vectors.iter_mut().zip(places.iter()) {
            *vector = resolve(arena, &mut self.pins, span, loan);
            count += 1;
        }
        self.message.msg_iov = self.vectors.as_mut_ptr();
        self.message.msg_iovlen = count;
        &self.vectors[..count]
    }

    /// The vectors of the places that were lent.
    pub(super) fn vectors(&self) -> &[libc::iovec] {
        &self.vectors[..self.message.msg_iovlen]
    }

    fn lend_batch(&mut self, arena: &mut Arena, mut batch: Box<Batch>, spans: &[Span]) {
        // A send's headers are in one buffer, between payload from elsewhere: one loan of it is enough.
        let mut loan: Option<Lent> = None;
        for span in spans.iter().copied() {
            let base = if span.buffer != arena.id() {
                pinned(&mut self.pins, span)
            } else if let Some(address) = loan.as_ref().and_then(|loan| loan.address(span)) {
                address
            } else {
                batch.spans.push(span);
                loan.insert(arena.lend_to_read(span)).address(span).expect("the buffer holds the span")
            };
            batch.vectors.push(libc::iovec { iov_base: base.cast(), iov_len: span.len as usize });
        }
        self.message.msg_iov = batch.vectors.as_mut_ptr();
        self.message.msg_iovlen = batch.vectors.len();
        self.batch = Some(batch);
    }

    /// The header of a message whose vectors are what was lent.
    pub(super) fn message(&mut self) -> *mut libc::msghdr {
        &raw mut self.message
    }

    /// A send has sent `bytes` bytes. Returns whether some are left.
    pub(super) fn advance(&mut self, bytes: u32) -> bool {
        self.sent += bytes;
        let vectors = match &mut self.batch {
            Some(batch) => &mut batch.vectors[..],
            None => &mut self.vectors[..],
        };
        let mut skip = bytes as usize;
        let end = self.first + self.message.msg_iovlen;
        for vector in &mut vectors[self.first..end] {
            if skip < vector.iov_len {
                vector.iov_base = vector.iov_base.wrapping_byte_add(skip);
                vector.iov_len -= skip;
                break;
            }
            skip -= vector.iov_len;
            self.first += 1;
        }
        self.message.msg_iov = vectors[self.first..].as_mut_ptr();
        self.message.msg_iovlen = end - self.first;
        self.message.msg_iovlen > 0
    }
}

impl Kind {
    fn loan(self) -> Loan {
        match self {
            Kind::Receive { .. } | Kind::Fill => Loan::Write,
            Kind::Accept
            | Kind::Connect { .. }
            | Kind::Send { .. }
            | Kind::Peers { .. }
            | Kind::Drain
            | Kind::Bare => Loan::Read,
        }
    }
}

/// With [`Request::lend_batch`] and [`vector`] the only way from a span to an address for the kernel.
fn resolve(arena: &mut Arena, pins: &mut Vec<Pin>, span: Span, loan: Loan) -> libc::iovec {
    let base = if span.buffer == arena.id() { arena.lend(span, loan) } else { pinned(pins, span) };
    libc::iovec { iov_base: base.cast(), iov_len: span.len as usize }
}

/// The same for a call that has ended before the arena is used again.
#[inline]
pub(super) fn vector(arena: &Arena, pins: &mut Vec<Pin>, span: Span) -> libc::iovec {
    let base = if span.buffer == arena.id() { arena.address(span) } else { pinned(pins, span) };
    libc::iovec { iov_base: base.cast(), iov_len: span.len as usize }
}

/// The address of the bytes of a shared region. Neighbouring spans of one region share a pin.
#[inline]
fn pinned(pins: &mut Vec<Pin>, span: Span) -> *mut u8 {
    // Most are in the same region as the one before.
    if let Some(address) = pins.last().and_then(|pin| pin.find(span)) {
        return address;
    }
    if let Some(address) = pins.iter().find_map(|pin| pin.find(span)) {
        return address;
    }
    let pin = Pin::new(span).expect("a span names bytes of a living shared region");
    let address = pin.address(span);
    pins.push(pin);
    address
}
