//! The driver of one connection: provides a stream machine with the bytes that it wants, and sends what it
//! owes.
//!
//! The engine's part, for every connection that something happened to:
//!
//! ```text
//! while stream.feed(io, machine) {
//!     hand every event of machine.poll() to the layer above
//! }
//! stream.end_turn();
//! stream.flush(io, machine); // or gather
//! if stream.wants_more() { do this again in the next turn }
//! ```

mod receive;
mod send;

use crate::io::{Errno, Handle, Io, Tag};
use proto::services::TaskId;
use proto::stream::{StreamMachine, Transmit, Want};
use proto::time::Time;
use receive::{Delivered, Receiver};
use send::{Flushed, Sender, When};
use std::time::Duration;
use wire::{Places, Span};

/// Headers and bodies that one connection gets per turn, so that a loud peer does not starve the others.
const FEED_MAX: u32 = 256;

/// The longest that answers wait for those to commands that have already arrived.
const GATHER_FOR: Duration = Duration::from_micros(100);

/// Header bytes of answers that keep a peer busy while the rest is processed: eight of iSCSI's.
const ENOUGH_BYTES: usize = 8 * 48;

/// The socket of one connection, the bytes that were read ahead, and what is being sent.
///
/// While no data flows, a connection holds one small buffer. A connection that has read much data keeps a
/// large one until its next small message, such as a keep-alive.
#[derive(Debug)]
pub struct Stream {
    socket: Handle,
    receiver: Receiver,
    sender: Sender,
    end: Option<End>,
    fed: u32,
    is_held: bool,
    wants_feed: bool,
    wants_flush: bool,
    /// Since when what is owed has been waiting for what will be owed soon.
    gathers_since: Option<Time>,
}

/// A send that has not completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InFlight {
    /// When it began.
    pub since: Time,
    /// All its bytes: how many of them have been sent is not known before it completes.
    pub bytes: u64,
}

/// Received commands, and the answers to them.
pub struct Exchange<'a> {
    unread: &'a [u8],
    receiver: &'a mut Receiver,
    sender: &'a mut Sender,
    fed: &'a mut u32,
    is_shared: bool,
}

impl<'a> Exchange<'a> {
    /// The next bytes, if this many have been received.
    #[inline]
    pub fn header(&self, len: u32) -> Option<&'a [u8]> {
        self.unread.get(..len as usize)
    }

    /// The same, as a span.
    #[inline]
    pub fn ahead(&self, len: u32) -> Option<Span> {
        self.receiver.ahead(len)
    }

    /// What has been appended to the next send.
    #[inline]
    pub fn answered(&self) -> Option<&Transmit> {
        self.sender.opened()
    }

    /// Like [`Stream::answers`].
    #[inline]
    pub fn answers(&mut self) -> &mut Transmit {
        self.sender.open(self.is_shared)
    }

    /// Like [`Stream::used`], for a header that has been received.
    #[inline]
    pub fn used(&mut self, header: u32) -> bool {
        self.unread = self.unread.get(header as usize..).unwrap_or_default();
        self.receiver.used(header, 0);
        *self.fed += 1;
        *self.fed < FEED_MAX
    }
}

/// How the stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The peer closed it.
    Closed,
    Failed(Errno),
    /// The machine knows.
    Reported,
}

impl Stream {
    /// Drives a connected socket. `recv` and `send` are the tags of its completions; `leftover` is what was
    /// read from the socket earlier ([`Stream::detach`]).
    pub fn new(socket: Handle, recv: Tag, send: Tag, leftover: Vec<u8>) -> Stream {
        Stream {
            socket,
            receiver: Receiver::new(recv, leftover),
            sender: Sender::new(send),
            end: None,
            fed: 0,
            is_held: false,
            wants_feed: false,
            wants_flush: false,
            gathers_since: None,
        }
    }

    /// A recv has completed.
    pub fn received<I: Io>(&mut self, _io: &mut I, result: Result<u32, Errno>) {
        let end = match result {
            Ok(0) => Some(End::Closed),
            Ok(_) => None,
            Err(errno) => Some(End::Failed(errno)),
        };
        self.end = self.end.or(end);
        self.receiver.received(result.unwrap_or(0));
    }

    /// Gives the machine the next thing that it wants. True: take all of `machine.poll()`, act on it, and
    /// call again. False: nothing more can be given now; a recv is posted if the machine wants bytes.
    pub fn feed<I: Io, M: StreamMachine>(&mut self, io: &mut I, machine: &mut M) -> bool {
        self.wants_feed = false;
        if self.receiver.is_posted() || self.end == Some(End::Reported) {
            return false;
        }
        if self.fed == FEED_MAX {
            self.wants_feed = true;
            return false;
        }
        match self.receiver.bring(io, machine) {
            Delivered::Something => {
                self.fed += 1;
                return true;
            }
            Delivered::NoMemory => self.wants_feed = true,
            Delivered::Short(_) if self.end.is_some() => {
                self.report_end(io, machine);
                return true;
            }
            Delivered::Short(Want::Nothing) => {}
            Delivered::Short(_) if self.is_held => {}
            Delivered::Short(want) => self.wants_feed = !self.receiver.post(io, self.socket, want),
        }
        false
    }

    /// Whether commands may be answered on arrival: received bytes are accessible, and nothing is being sent.
    /// Each turn has its share of that, as with [`Stream::feed`].
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.end.is_none() && self.receiver.is_open() && self.sender.is_free() && self.fed < FEED_MAX
    }

    /// The beginning of the next send: answers may be appended.
    #[inline]
    pub fn answers<I: Io>(&mut self, io: &I) -> &mut Transmit {
        self.sender.open(io.is_shared())
    }

    /// The received commands, to be answered on arrival: nothing else happens to the stream meanwhile.
    #[inline]
    pub fn exchange<'a, I: Io>(&'a mut self, io: &'a mut I) -> Exchange<'a> {
        let is_shared = io.is_shared();
        let unread = self.receiver.unread().map_or(&[][..], |unread| io.arena().bytes(unread));
        let Stream { receiver, sender, fed, .. } = self;
        Exchange { unread, receiver, sender, fed, is_shared }
    }

    /// A header and the body after it, which have been received, were used in place. False: the connection
    /// has had its share of this turn.
    #[inline]
    pub fn used(&mut self, header: u32, body: u32) -> bool {
        self.receiver.used(header, body);
        self.fed += 1;
        self.fed < FEED_MAX
    }

    /// Waits for this many bytes, with nothing else to do. False: they have been received, or there is no
    /// room for them.
    #[inline(always)]
    pub fn await_bytes<I: Io>(&mut self, io: &mut I, len: u32) -> bool {
        let is_posted = !self.is_held
            && self.receiver.lacks(len)
            && self.receiver.post(io, self.socket, Want::Header { len });
        self.wants_feed &= !is_posted;
        is_posted
    }

    /// The bytes received for the machine, if it may be given any.
    #[inline]
    pub fn unread(&self) -> Option<Span> {
        self.receiver.unread().filter(|_| self.receiver.is_open())
    }

    /// A received header, body and trailer were used: the body is copied to its place.
    #[inline]
    pub fn place<I: Io>(&mut self, io: &mut I, header: u32, body: &Places, trailer: u32) {
        let len = body.len();
        if let Some(unread) = self.receiver.unread().filter(|_| len > 0) {
            io.arena().copy(unread.slice(header, len), body);
        }
        self.receiver.used(header, len + trailer);
    }

    /// The next bytes for the machine, if this many have been received.
    #[inline]
    pub fn ahead(&self, len: u32) -> Option<Span> {
        self.receiver.ahead(len)
    }

    /// The last `len` bytes, a header, become unread again, for another machine. Nothing was requested since.
    pub fn rewind(&mut self, len: u32) {
        self.receiver.rewind(len);
    }

    /// The machine gets no input for now: what was deferred to the next turn waits until [`Stream::feed`] is
    /// called.
    pub fn pause(&mut self) {
        self.wants_feed = false;
    }

    /// The turn has ended: in the next one the connection may have its share again.
    pub fn end_turn(&mut self) {
        self.fed = 0;
    }

    /// Sends what the machine owes, all in one send, if none is in flight.
    pub fn flush<I: Io, M: StreamMachine>(&mut self, io: &mut I, machine: &mut M) {
        self.flush_when(io, machine, When::Later);
    }

    /// The same at once, if possible. The result belongs to a send that has already ended, as with
    /// [`Stream::gather`].
    pub fn flush_now<I: Io, M: StreamMachine>(
        &mut self,
        io: &mut I,
        machine: &mut M,
    ) -> Option<Result<u32, Errno>> {
        self.flush_when(io, machine, When::Now);
        self.sender.take_ended()
    }

    fn flush_when<I: Io, M: StreamMachine>(&mut self, io: &mut I, machine: &mut M, when: When) {
        if self.end.is_some() {
            // The peer is gone: what a lack of memory has kept back must not keep the stream busy.
            self.sender.drop_batch(io.arena());
            self.wants_flush = false;
            return;
        }
        self.wants_flush = self.sender.flush(io, self.socket, machine, when) == Flushed::NoMemory;
    }

    /// Like [`Stream::flush`], but as long as each recv fills its buffer, what is owed waits for the next
    /// turn: a peer that is woken for each answer sends one command for each. The result belongs to a send
    /// that has already ended: call [`Stream::sent`] with it instead of waiting for a completion. Where
    /// nobody sleeps and one recv has brought many commands, their answers are sent: both ends work at the
    /// same time then.
    pub fn gather<I: Io, M: StreamMachine>(
        &mut self,
        io: &mut I,
        machine: &mut M,
    ) -> Option<Result<u32, Errno>> {
        let is_filled = self.receiver.take_filled();
        let owes = || self.sender.opened().is_some() || machine.owes();
        if is_filled && self.end.is_none() && owes() && !self.has_enough(io) {
            let since = *self.gathers_since.get_or_insert(io.now());
            if io.now().since(since) < GATHER_FOR {
                self.wants_flush = true;
                return None;
            }
        }
        self.gathers_since = None;
        self.flush_when(io, machine, When::Now);
        self.sender.take_ended()
    }

    /// Whether the answers to what the last recv brought keep the peer busy.
    fn has_enough<I: Io>(&self, io: &I) -> bool {
        let answers = || self.sender.opened().map_or(0, |batch| batch.bytes.len());
        self.gathers_since.is_none() && answers() >= ENOUGH_BYTES && io.is_hot(self.socket)
    }

    /// The send has completed. Appends the tasks whose push has been sent to `pushed`. If it failed, the
    /// machine is notified that the stream has ended, and a posted recv will soon complete.
    pub fn sent<I: Io, M: StreamMachine>(
        &mut self,
        io: &mut I,
        machine: &mut M,
        result: Result<u32, Errno>,
        pushed: &mut Vec<TaskId>,
    ) {
        self.sender.sent(io.arena());
        match result {
            Ok(_) if self.end != Some(End::Reported) => {
                self.wants_flush = self.sender.go_on(io, self.socket, pushed) == Flushed::NoMemory;
            }
            Ok(_) => {}
            Err(errno) => {
                io.shutdown(self.socket);
                self.end = self.end.or(Some(End::Failed(errno)));
                self.report_end(io, machine);
            }
        }
    }

    /// Whether the connection has work left that no completion will announce: call [`Stream::feed`] and
    /// [`Stream::flush`] again in the next turn.
    pub fn wants_more(&self) -> bool {
        self.wants_feed || self.wants_flush
    }

    /// Whether it has nothing to do before the posted recv completes, unless the machine has.
    pub fn is_at_rest(&self) -> bool {
        self.receiver.is_posted() && self.sender.is_idle() && self.end.is_none() && !self.wants_more()
    }

    /// With `true`, no recv is posted from now on: what was read is still fed to the machine, and once the
    /// recv in flight has completed the stream may be moved.
    pub fn hold(&mut self, hold: bool) {
        self.is_held = hold;
    }

    /// Whether nothing is in flight: the stream may be closed.
    pub fn quiet(&self) -> bool {
        !self.receiver.is_posted() && self.sender.is_idle()
    }

    /// Whether a payload has been received in part.
    pub fn is_in_payload(&self) -> bool {
        self.receiver.is_in_payload()
    }

    /// Whether the stream may be moved: nothing is in flight, and it is not in the middle of a payload.
    pub fn is_movable(&self) -> bool {
        self.quiet() && !self.is_in_payload()
    }

    /// Whether everything that the machine has given to be sent was sent.
    pub fn has_sent(&self) -> bool {
        self.sender.is_idle()
    }

    /// The number of batches that will have been sent when everything given so far has
    /// ([`Stream::have_left`]).
    pub fn given(&self) -> u64 {
        self.sender.given()
    }

    /// Whether this many batches have been sent, or nothing is to be sent.
    pub fn have_left(&self, batches: u64) -> bool {
        self.sender.left() >= batches || self.sender.is_idle()
    }

    /// The socket.
    pub fn socket(&self) -> Handle {
        self.socket
    }

    /// The send in flight.
    pub fn in_flight(&self) -> Option<InFlight> {
        self.sender.in_flight()
    }

    /// Shuts the connection down: what is in flight completes soon, then the stream is quiet and can be
    /// closed.
    pub fn shutdown<I: Io>(&mut self, io: &mut I) {
        io.shutdown(self.socket);
    }

    /// Removes a movable stream from this core: returns its socket, and the bytes that were read but not yet
    /// fed to the machine.
    pub fn detach<I: Io>(self, io: &mut I) -> (Handle, Vec<u8>) {
        assert!(self.is_movable(), "a stream in the middle of something cannot be moved");
        (self.socket, self.receiver.into_unread(io.arena()))
    }

    /// Closes the socket of a quiet stream.
    pub fn close<I: Io>(self, io: &mut I) {
        assert!(self.quiet(), "a stream with requests in flight cannot be closed");
        self.receiver.into_unread(io.arena());
        io.close(self.socket);
    }

    fn report_end<I: Io, M: StreamMachine>(&mut self, io: &mut I, machine: &mut M) {
        let now = io.now();
        self.sender.drop_batch(io.arena());
        match self.end.replace(End::Reported) {
            Some(End::Failed(errno)) => {
                let error = std::io::Error::from_raw_os_error(errno.0).to_string();
                machine.closed(now, Some(&error));
            }
            Some(End::Closed) if self.receiver.is_mid_way() => {
                machine.closed(now, Some("the connection was closed in the middle of a PDU"));
            }
            Some(End::Closed) => machine.closed(now, None),
            Some(End::Reported) | None => {}
        }
    }
}
