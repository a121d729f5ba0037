//! The interface of an RDMA connection to the driver of its machine, for both providers: iWARP in user space,
//! and verbs.

pub use proto::iwarp::Refused;
use proto::iwarp::memory::Access;
use proto::time::Time;
use reactor::memory::Arena;
use wire::{Places, Span};

/// The capabilities of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Most bytes of a message that are copied when it is posted; longer ones are sent from a buffer.
    pub inline_bytes: u32,
    /// A message can invalidate a peer's STag. Otherwise the message is sent without, and the peer
    /// invalidates it itself.
    pub send_with_invalidate: bool,
    /// Memory is registered by work requests, without a system call.
    pub fast_registration: bool,
    /// Connections can share a receive queue.
    pub shared_receives: bool,
}

/// A connection event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer requests the connection. Answer with [`Provider::accept`] or [`Provider::reject`].
    Request {
        /// Private data, zero-padded by some networks.
        private_data: Vec<u8>,
    },
    /// The connection is established.
    Established {
        /// On the requesting side: the private data of the answer.
        private_data: Vec<u8>,
    },
    /// On the requesting side: the peer rejected the connection. `Gone` follows.
    Rejected {
        /// Private data.
        private_data: Vec<u8>,
    },
    /// A message has arrived in the oldest posted receive.
    Received {
        /// Where the receive begins.
        id: u64,
        /// Length in bytes.
        len: u32,
        /// The STag that the peer has invalidated: it is no longer registered.
        invalidated: Option<u32>,
    },
    /// A Send has finished; its places are free. Sends finish in the order in which they were posted.
    Sent {
        /// The work request.
        id: u64,
    },
    /// An RDMA Write has finished; its places are free.
    Written {
        /// The work request.
        id: u64,
    },
    /// The data of an RDMA Read has arrived in its places.
    Read {
        /// The work request.
        id: u64,
    },
    /// No more bytes of this invalidated STag's places are in flight.
    Freed {
        /// The STag.
        stag: u32,
    },
    /// The connection has ended, and everything posted is void. Always the last event.
    Gone {
        /// Why.
        reason: String,
    },
}

/// One end of a connection: a queue pair, and the exchange of private data that establishes it.
///
/// Work is collected until [`Provider::submit`], which posts it in one batch. Places are in the core's arena.
pub trait Provider {
    /// Its capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Whether messages may be posted.
    fn is_established(&self) -> bool;

    /// In answer to [`Event::Request`]: accepts the connection.
    fn accept(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused>;

    /// In answer to [`Event::Request`]: rejects the connection.
    fn reject(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused>;

    /// Posts a receive for one message of the peer; also allowed before the connection is established.
    fn post_receive(&mut self, place: Span, arena: &mut Arena) -> Result<(), Refused>;

    /// How many bytes of such a header [`Provider::send`] copies; the rest must precede the payload.
    fn copied(&self, header: &[u8], payload: &Places) -> usize;

    /// Sends `header` and then the bytes at `from`, as one message. With `invalidate`, that STag of the peer
    /// is invalid once the message has arrived.
    fn send(
        &mut self,
        id: u64,
        header: &[u8],
        from: Places,
        solicited: bool,
        invalidate: Option<u32>,
        arena: &mut Arena,
    ) -> Result<(), Refused>;

    /// Writes the bytes at `from` to `offset` in the peer's buffer `stag`.
    fn write(
        &mut self,
        id: u64,
        from: Places,
        stag: u32,
        offset: u64,
        arena: &mut Arena,
    ) -> Result<(), Refused>;

    /// Fills `into` with the bytes at `offset` in the peer's buffer `stag`.
    fn read(
        &mut self,
        id: u64,
        into: Places,
        stag: u32,
        offset: u64,
        arena: &mut Arena,
    ) -> Result<(), Refused>;

    /// Lets the peer read or write `places` with the STag returned, until it is invalidated.
    fn register(&mut self, places: Places, access: Access) -> Result<u32, Refused>;

    /// Bytes that the peer has written to or read from the memory registered, now or last, as this STag.
    fn moved(&self, stag: u32) -> u32;

    /// Invalidates an STag for the peer. `false`: bytes of its places are in flight until [`Event::Freed`].
    fn invalidate(&mut self, stag: u32) -> bool;

    /// Submits everything posted since the last call.
    fn submit(&mut self);

    /// The oldest event.
    fn poll(&mut self, arena: &mut Arena) -> Option<Event>;

    /// Closes the connection, once everything posted has been sent; `Gone` follows.
    fn close(&mut self, now: Time);

    /// When `tick` is to be called next.
    fn deadline(&self) -> Option<Time>;

    /// Time has reached the deadline.
    fn tick(&mut self, now: Time);

    /// Ends the driver: nothing accesses the arena's memory any more once this returns.
    fn release(&mut self, arena: &mut Arena);
}
