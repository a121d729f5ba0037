//! What an RDMA connection offers to the driver of its machine, with either provider: iWARP in user space, or
//! verbs.

pub use proto::iwarp::Refused;
use proto::iwarp::memory::Access;
use proto::time::Time;
use reactor::memory::Arena;
use wire::{Places, Span};

/// What a connection can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Bytes of a message that are copied when it is posted, at most; longer ones go out of a buffer.
    pub inline_bytes: u32,
    /// A message can invalidate a peer's STag. Where it cannot, the message goes without, and the peer sees to it.
    pub send_with_invalidate: bool,
    /// Buffers are registered by work requests, without a call of the system.
    pub fast_registration: bool,
    /// Connections can share their receives.
    pub shared_receives: bool,
}

/// The outcome of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for the connection. Answer by [`Provider::accept`] or [`Provider::reject`].
    Request {
        /// Private data, with zeros behind it where the network pads it.
        private_data: Vec<u8>,
    },
    /// The connection is made.
    Established {
        /// As the side that asked: the private data of the answer.
        private_data: Vec<u8>,
    },
    /// As the side that asked: the peer turned the connection away. `Gone` follows.
    Rejected {
        /// Private data.
        private_data: Vec<u8>,
    },
    /// A message has arrived in the oldest of the posted receives.
    Received {
        /// Where that begins.
        id: u64,
        /// Length in bytes.
        len: u32,
        /// The STag that the peer has invalidated: it is no longer registered.
        invalidated: Option<u32>,
    },
    /// A Send has left; its places are free. Sends finish in the order in which they were posted.
    Sent {
        /// The work request.
        id: u64,
    },
    /// An RDMA Write has left; its places are free.
    Written {
        /// The work request.
        id: u64,
    },
    /// The data of an RDMA Read is in its places.
    Read {
        /// The work request.
        id: u64,
    },
    /// No bytes of the places of this STag, which was invalidated, are on their way any more.
    Freed {
        /// The STag.
        stag: u32,
    },
    /// The connection has ended, and all that was posted is void. Always the last event.
    Gone {
        /// Why.
        reason: String,
    },
}

/// One end of a connection: a queue pair, and the exchange of private data that makes it.
///
/// Work is collected until [`Provider::submit`], and goes out in one batch. Places are of the core's arena.
pub trait Provider {
    /// What it can.
    fn capabilities(&self) -> Capabilities;

    /// Whether messages may be posted.
    fn is_established(&self) -> bool;

    /// In answer to [`Event::Request`]: makes the connection.
    fn accept(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused>;

    /// In answer to [`Event::Request`]: turns the peer away.
    fn reject(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused>;

    /// Gives a place for one message of the peer, also before the connection is made.
    fn post_receive(&mut self, place: Span, arena: &mut Arena) -> Result<(), Refused>;

    /// How many bytes of such a header [`Provider::send`] copies; the rest comes in front of the payload.
    fn copied(&self, header: &[u8], payload: &Places) -> usize;

    /// Sends `header` and then the bytes at `from`, as one message. With `invalidate`, the peer's STag is invalid once
    /// it has arrived.
    fn send(
        &mut self,
        id: u64,
        header: &[u8],
        from: Places,
        solicited: bool,
        invalidate: Option<u32>,
        arena: &mut Arena,
    ) -> Result<(), Refused>;

    /// Writes the bytes at `from` to `offset` of what the peer has advertised as `stag`.
    fn write(
        &mut self,
        id: u64,
        from: Places,
        stag: u32,
        offset: u64,
        arena: &mut Arena,
    ) -> Result<(), Refused>;

    /// Fills `into` with the bytes at `offset` of what the peer has advertised as `stag`.
    fn read(
        &mut self,
        id: u64,
        into: Places,
        stag: u32,
        offset: u64,
        arena: &mut Arena,
    ) -> Result<(), Refused>;

    /// Lets the peer read or write `places` by the STag that is returned, until that is invalidated.
    fn register(&mut self, places: Places, access: Access) -> Result<u32, Refused>;

    /// Bytes that the peer has written to, or read of, what is, or was last, registered as this STag.
    fn moved(&self, stag: u32) -> u32;

    /// The peer may use the STag no more. `false`: bytes of its places are on their way, until [`Event::Freed`].
    fn invalidate(&mut self, stag: u32) -> bool;

    /// Hands over all that was posted since.
    fn submit(&mut self);

    /// The oldest event.
    fn poll(&mut self, arena: &mut Arena) -> Option<Event>;

    /// Closes the connection, once what was posted has been sent; `Gone` follows.
    fn close(&mut self, now: Time);

    /// When `tick` wants to be called next.
    fn deadline(&self) -> Option<Time>;

    /// Time has reached the deadline.
    fn tick(&mut self, now: Time);

    /// The driver goes away: nothing touches memory of the arena any more when this returns.
    fn release(&mut self, arena: &mut Arena);
}
