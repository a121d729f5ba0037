//! The interface between a machine that exchanges messages over RDMA (iSER, SRP) and the driver of its
//! connection, whatever carries it: iWARP in user space, or an RDMA device.
//!
//! The driver's loop, for each machine:
//!
//! 1. keep as many receives posted as [`MessageMachine::receives`] requires, in buffers that the driver owns,
//!    or notify the machine that there are fewer ([`MessageMachine::accept_fewer_receives`]);
//! 2. report what completed: [`MessageMachine::received`], [`MessageMachine::finished`];
//! 3. pass every event of [`MessageMachine::poll`] to the engine;
//! 4. let the machine post what it owes: [`MessageMachine::post`];
//! 5. once it has ended ([`MessageMachine::is_over`]) close the connection, and notify the machine when it is
//!    closed, whichever side closed it ([`MessageMachine::closed`]).
//!
//! Posted work cannot be recalled: its memory stays borrowed until it has finished, or the connection is
//! closed. Machines report to the engine accordingly ([`crate::services::Up::Pushed`]). The same applies to
//! what a peer reads from an advertised buffer: its answer may arrive before the bytes it has read have been
//! sent ([`Post::invalidate`]).

use crate::time::Time;
use wire::{Places, Span};

/// The receives that must be posted for a peer: its credits never exceed these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receives {
    /// How many.
    pub count: u16,
    /// Bytes of each.
    pub bytes: u32,
    /// The byte in each that is page-aligned, so that data after a header of that length goes to a device
    /// without a copy. Zero: no data is expected after a header.
    pub aligned_at: u32,
}

/// Identifies a work request until it has finished; chosen by the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WorkId(pub u64);

impl WorkId {
    /// An RDMA Write that nothing waits for: a message is posted behind it, and finishes later. It needs no
    /// completion.
    pub const UNSIGNALED: WorkId = WorkId(u64::MAX);
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The whole receive buffer that it arrived in: it belongs to the machine until it is returned by
    /// [`Post::release`].
    pub place: Span,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Our STag that the peer has invalidated with it.
    pub invalidated: Option<u32>,
}

/// A buffer that the peer may access.
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

/// The queue is full: offer the work again after the next completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// What a machine may do with its queue pair. Work is executed in the order of posting, except that an RDMA
/// Read may finish later than what follows it.
pub trait Post {
    /// Sends `header` and the bytes at `payload` as one message; with `invalidate`, the peer's STag is
    /// invalid once it has arrived. The header is copied, even one with text, which may be as long as a
    /// message.
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

    /// Lets the peer access a buffer, until it is invalidated by either side.
    fn advertise(&mut self, places: Places, access: Access) -> Result<Advertised, Full>;

    /// Bytes of an advertised buffer that the peer has written or read so far; also of one that the peer
    /// itself has invalidated, until another is advertised.
    fn moved(&self, stag: u32) -> u32;

    /// Ends the peer's access to a buffer; also to be called, once, for one that the peer itself has
    /// invalidated. `false`: bytes that the peer has read are still being sent, and the places stay borrowed
    /// until [`MessageMachine::freed`].
    #[must_use]
    fn invalidate(&mut self, stag: u32) -> bool;

    /// Copies bytes of a message to their place.
    fn copy(&mut self, from: Span, to: Places);

    /// The present content of a part of a message's buffer: an RDMA Read may have filled it.
    fn bytes(&self, place: Span) -> &[u8];

    /// The buffer of a message is free: it is posted as a receive again.
    fn release(&mut self, place: Span);
}

/// The answer to a peer that requests a connection, with private data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The connection is accepted.
    Accept(Vec<u8>),
    /// It is rejected.
    Reject(Vec<u8>),
}

/// The protocol state of one connection that exchanges messages.
pub trait MessageMachine {
    /// Its events for the layer above.
    type Event;

    /// As the side that requests the connection: the private data of the request.
    fn request(&mut self) -> Vec<u8>;

    /// As the side that receives the request: the peer's private data.
    fn asked(&mut self, now: Time, private_data: &[u8]) -> Answer;

    /// The connection is established; for the side that requested it, with the private data of the answer.
    fn established(&mut self, now: Time, private_data: &[u8]);

    /// There is memory for only this many receives, including those of messages that the machine holds: from
    /// now on credits may not exceed these, until this is called with a larger number. Returns the answer to
    /// the connection request as it is now, if it has not been given yet; a rejection means that the machine
    /// cannot work with so few.
    fn accept_fewer_receives(&mut self, receives: u16) -> Answer {
        let _ = receives;
        Answer::Reject(Vec::new())
    }

    /// As the side that receives the request: whether the acceptance may be sent now. Called when the
    /// receives are posted, and again after anything that may change it.
    fn may_accept(&mut self) -> bool {
        true
    }

    /// As the side that receives the request: the rejection to send instead of the acceptance, if there is
    /// one. Called like [`MessageMachine::may_accept`].
    fn rejection(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// As the side that requested the connection: it was rejected, with this private data.
    fn rejected(&mut self, now: Time, private_data: &[u8]) {
        let _ = private_data;
        self.closed(now, "the connection was rejected");
    }

    /// The receives that must be posted now, beside those whose messages the machine has not released; called
    /// after each call of the others.
    fn receives(&self) -> Receives;

    /// A message arrived.
    fn received(&mut self, now: Time, message: Message<'_>);

    /// Work has finished: its places are free, or, after an RDMA Read, filled.
    fn finished(&mut self, now: Time, work: WorkId);

    /// What was read from an invalidated buffer has been sent: its places are free. Machines that advertise
    /// nothing do not get this.
    fn freed(&mut self, now: Time, stag: u32) {
        let _ = (now, stag);
    }

    /// The connection has ended, for this reason, and all posted work is void. Also after [`Self::is_over`]:
    /// the engine is notified of the end only now.
    fn closed(&mut self, now: Time, reason: &str);

    /// The oldest event for the engine. Any call may produce events.
    fn poll(&mut self) -> Option<Self::Event>;

    /// Whether `post` would post anything.
    fn owes(&self) -> bool;

    /// Posts what is owed, as much as is accepted.
    fn post(&mut self, now: Time, to: &mut dyn Post);

    /// Whether everything that matters was posted, and the connection is to be closed once that has been
    /// sent.
    fn is_over(&self) -> bool;

    /// When `tick` has to be called next, if nothing else happens.
    fn deadline(&self) -> Option<Time>;

    /// The deadline has been reached.
    fn tick(&mut self, now: Time);
}
