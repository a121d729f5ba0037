//! The seam between a machine that exchanges messages over RDMA (iSER, SRP) and the driver of its connection, whatever
//! carries it: iWARP in user space, or a device of the system.
//!
//! The driver's loop, for each machine:
//!
//! 1. keep as many receives posted as [`MessageMachine::receives`] says, of buffers that the driver owns, or
//!    notify the machine that there are fewer ([`MessageMachine::accept_fewer_receives`]);
//! 2. report what completed: [`MessageMachine::received`], [`MessageMachine::finished`];
//! 3. hand every event of [`MessageMachine::poll`] to the layer above;
//! 4. let the machine post what it owes: [`MessageMachine::post`];
//! 5. once it has ended ([`MessageMachine::is_over`]) close the connection, and notify it that it is closed,
//!    whichever side closed
//!    it ([`MessageMachine::closed`]).
//!
//! What was posted cannot be called back: the memory that it names is lent until it is finished, or the
//! connection is closed. Machines report to the layer above accordingly ([`crate::services::Up::Pushed`]). The
//! same is true of what a peer reads of an advertised buffer: its answer may come before the bytes that it is
//! about have left ([`Post::invalidate`]).

use crate::time::Time;
use wire::{Places, Span};

/// The receives that must stand ready for a peer: its credits are never more than these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receives {
    /// How many.
    pub count: u16,
    /// Bytes of each.
    pub bytes: u32,
    /// The byte in each that lies on a boundary of a page, so that data behind a header of that length goes to a device
    /// without a copy. Zero: no data is expected behind a header.
    pub aligned_at: u32,
}

/// Names a work request until it is finished; chosen by the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WorkId(pub u64);

impl WorkId {
    /// An RDMA Write that nobody waits for: a message is posted behind it, and finished later. It needs no completion.
    pub const UNSIGNALED: WorkId = WorkId(u64::MAX);
}

/// A message that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The whole receive that it came in: the machine's until it is returned by [`Post::release`].
    pub place: Span,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The STag of ours that the peer has invalidated with it.
    pub invalidated: Option<u32>,
}

/// A buffer that the peer may touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertised {
    /// STag, or R_Key.
    pub stag: u32,
    /// The address of its first byte under that STag.
    pub offset: u64,
}

/// What the peer may do with an advertised buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// RDMA Read.
    Read,
    /// RDMA Write.
    Write,
}

/// The queue is full: what was to be posted is to be offered again after the next completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// What a machine may ask of its queue pair. Work is done in the order in which it was posted, except that an RDMA Read
/// finishes later than what follows it may.
pub trait Post {
    /// Sends `header` and the bytes at `payload` as one message; with `invalidate`, the peer's STag is invalid once it
    /// has arrived. The header is copied, also one with text, which is as long as a message may be.
    fn send(
        &mut self,
        work: WorkId,
        header: &[u8],
        payload: Places,
        solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), Full>;

    /// RDMA Write of the bytes at `from` to the peer's buffer.
    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full>;

    /// RDMA Read of `into.len()` bytes of the peer's buffer.
    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full>;

    /// Lets the peer touch a buffer, until it is invalidated by either side.
    fn advertise(&mut self, places: Places, access: Access) -> Result<Advertised, Full>;

    /// Bytes of an advertised buffer that the peer has written, or read, until now; also of one that the peer itself has
    /// invalidated, until another is advertised.
    fn moved(&self, stag: u32) -> u32;

    /// The peer may touch it no more; also to be called, once, for one that the peer itself has invalidated. `false`:
    /// bytes that the peer has read are still on their way, and the places are lent until [`MessageMachine::freed`].
    #[must_use]
    fn invalidate(&mut self, stag: u32) -> bool;

    /// Copies bytes of a message to where they belong.
    fn copy(&mut self, from: Span, to: Places);

    /// What is now in a part of the place of a message: an RDMA Read may have gone there.
    fn bytes(&self, place: Span) -> &[u8];

    /// The place of a message is free: it is posted again as a receive.
    fn release(&mut self, place: Span);
}

/// The answer to a peer that asks for a connection, with private data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The connection is made.
    Accept(Vec<u8>),
    /// It is not.
    Reject(Vec<u8>),
}

/// The protocol state of one connection that exchanges messages.
pub trait MessageMachine {
    /// Its events for the layer above.
    type Event;

    /// As the side that asks for the connection: the private data of the request.
    fn request(&mut self) -> Vec<u8>;

    /// As the side that is asked: the peer's private data.
    fn asked(&mut self, now: Time, private_data: &[u8]) -> Answer;

    /// The connection is made; as the side that asked, with the private data of the answer.
    fn established(&mut self, now: Time, private_data: &[u8]);

    /// There is memory for so many receives only, those of messages with the machine among them: from now on no more may
    /// be promised than these, until this is called with more of them. Returns the answer to the request for the
    /// connection as it is now, if none was given yet; a rejection says that the machine cannot work with so few.
    fn accept_fewer_receives(&mut self, receives: u16) -> Answer {
        let _ = receives;
        Answer::Reject(Vec::new())
    }

    /// As the side that is asked: whether the acceptance that was answered may go out now. Asked when the receives stand
    /// ready, and again after whatever may change it.
    fn may_accept(&mut self) -> bool {
        true
    }

    /// As the side that is asked: the rejection that goes out in place of the acceptance, if there is to be one. Asked as
    /// [`MessageMachine::may_accept`] is.
    fn rejection(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// As the side that asked: the connection was turned away, with this private data.
    fn rejected(&mut self, now: Time, private_data: &[u8]) {
        let _ = private_data;
        self.closed(now, "the connection was rejected");
    }

    /// The receives that must stand ready now, beside those whose messages the machine has not released; asked after
    /// each call of the others.
    fn receives(&self) -> Receives;

    /// A message arrived.
    fn received(&mut self, now: Time, message: Message<'_>);

    /// Work has finished: its places are free, or, after an RDMA Read, filled.
    fn finished(&mut self, now: Time, work: WorkId);

    /// What was read of a buffer that was invalidated has left now: its places are free. Machines that
    /// advertise nothing get none.
    fn freed(&mut self, now: Time, stag: u32) {
        let _ = (now, stag);
    }

    /// The connection has ended, for this reason, and all that was posted is void. Also after
    /// [`Self::is_over`]: the layer above is notified of the end only now.
    fn closed(&mut self, now: Time, reason: &str);

    /// Takes the oldest event for the layer above. Any call and any verb may leave events.
    fn poll(&mut self) -> Option<Self::Event>;

    /// Whether `post` would post anything.
    fn owes(&self) -> bool;

    /// Posts what is owed, as much as is taken.
    fn post(&mut self, now: Time, to: &mut dyn Post);

    /// Whether everything that matters was sent, and the connection is to be closed once that has left.
    fn is_over(&self) -> bool;

    /// When `tick` wants to be called next, if nothing else happens.
    fn deadline(&self) -> Option<Time>;

    /// Time has reached the deadline.
    fn tick(&mut self, now: Time);
}
