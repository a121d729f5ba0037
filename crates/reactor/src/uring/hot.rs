//! Connections that are received from by direct calls while the core spins, and sent to by direct calls.
//!
//! A receive is in one place only: in the list here, where each turn tries it once, or in the ring, which it
//! enters once and does not leave. A connection has one receive in flight, so whichever of the two brings its
//! bytes, they are the next of the stream. A send is tried immediately; the ring sends the rest, and the next
//! send of the connection waits for that. So bytes are neither lost nor reordered when a connection changes
//! from one way to the other.

use super::requests::{Request, vector};
use crate::io::{Errno, Wait};
use crate::memory::{Arena, Pin};
use proto::stream::Segment;
use proto::time::Time;
use rustix::io::Errno as Os;
use std::time::Duration;

/// Connections that are tried in one turn. If more are busy at once, the ring is cheaper: one system call for
/// all of them.
pub(super) const HOT_MAX: usize = 2;
/// A connection is hot if its bytes arrived within this time of the turn that requested them: a turn's work
/// of many commands, their initiator's, and about as long as a core spins.
const HOT_FOR: Duration = Duration::from_micros(100);
/// How long the ring serves all connections once too many were busy: the cost of detecting that is small in
/// comparison.
const CROWDED_FOR: Duration = Duration::from_millis(1);
/// Sockets are distinguished by their lowest bits: mistaking one for another only gives a wrong hint, which
/// is harmless.
const HINTS: usize = 256;

const SEND: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Vectors and pins of a send for which memory is allocated from the start.
const VECTORS_AT_START: usize = 64;
const PINS_AT_START: usize = 8;

pub(super) struct Hot {
    /// Receives that are tried in each turn.
    pub(super) receives: Vec<u32>,
    is_hot: [bool; HINTS],
    /// The core spins, and not too many connections are hot.
    is_on: bool,
    /// The ring serves all connections.
    is_crowded: bool,
    sends_left: usize,
    crowded_until: Time,
}

impl Hot {
    pub(super) fn new() -> Hot {
        Hot {
            receives: Vec::with_capacity(HOT_MAX + 1),
            is_hot: [false; HINTS],
            is_on: false,
            is_crowded: false,
            sends_left: 0,
            crowded_until: Time(0),
        }
    }

    /// A turn begins. False: the listed receives have to go to the ring.
    pub(super) fn turn(&mut self, wait: Wait, now: Time) -> bool {
        if self.receives.len() > HOT_MAX {
            self.crowded_until = now.after(CROWDED_FOR);
        }
        self.is_crowded = now < self.crowded_until;
        self.is_on = wait == Wait::No && !self.is_crowded;
        self.sends_left = HOT_MAX;
        self.is_on
    }

    /// A receive that was requested at `since` has ended.
    pub(super) fn received(&mut self, socket: i32, since: Time, now: Time) {
        // A core that sleeps does not use it.
        if self.is_on {
            self.is_hot[hint(socket)] = !is_over(since, now);
        }
    }

    /// Whether the core spins, and this socket is hot.
    pub(super) fn is_hot(&self, socket: i32) -> bool {
        self.is_on && self.is_hot[hint(socket)]
    }

    /// Whether a receive is listed. One more than are tried means that there are too many.
    pub(super) fn takes_receive(&self, socket: i32) -> bool {
        self.receives.len() <= HOT_MAX && self.is_hot(socket)
    }

    pub(super) fn takes_send(&mut self, socket: i32) -> bool {
        let takes = self.sends_left > 0 && self.is_hot(socket);
        self.sends_left -= usize::from(takes);
        takes
    }

    /// The same for a send whose end is reported at once, on any connection. The end of one in the ring wakes
    /// a sleeping core, which costs as many calls, and a turn.
    pub(super) fn takes_send_now(&mut self) -> bool {
        let takes = self.sends_left > 0 && !self.is_crowded;
        self.sends_left -= usize::from(takes);
        takes
    }

    /// What [`Hot::takes_send_now`] allowed was not sent in this way.
    pub(super) fn has_not_sent(&mut self) {
        self.sends_left += 1;
    }

    #[cfg(test)]
    pub(super) fn heat(&mut self, socket: i32) {
        self.is_on = true;
        self.is_hot[hint(socket)] = true;
        self.sends_left = HOT_MAX;
    }
}

/// Whether a receive has waited too long to keep trying it.
pub(super) fn is_over(since: Time, now: Time) -> bool {
    now.since(since) >= HOT_FOR
}

fn hint(socket: i32) -> usize {
    socket as usize % HINTS
}

/// Receives what is available. `None`: nothing yet.
pub(super) fn receive(socket: i32, request: &mut Request) -> Option<i32> {
    let received = match request.vectors() {
        // SAFETY: the vector is of a place that is lent for writing until the request is finished.
        [one] => unsafe { libc::recv(socket, one.iov_base, one.iov_len, libc::MSG_DONTWAIT) },
        // SAFETY: as above for each vector of the message, which is the request's own.
        _ => unsafe { libc::recvmsg(socket, request.message(), libc::MSG_DONTWAIT) },
    };
    ended(received)
}

/// Sends what the socket has room for. `None`: it has none.
pub(super) fn send(socket: i32, request: &mut Request) -> Option<i32> {
    // SAFETY: the message's vectors are of spans that are lent for reading until the request is finished.
    ended(unsafe { libc::sendmsg(socket, request.message(), SEND) })
}

/// Sends without requests.
pub(super) struct Direct {
    vectors: Vec<libc::iovec>,
    pins: Vec<Pin>,
}

impl Direct {
    pub(super) fn new() -> Direct {
        Direct { vectors: Vec::with_capacity(VECTORS_AT_START), pins: Vec::with_capacity(PINS_AT_START) }
    }

    /// Sends what the socket has room for, which may be nothing. `None`: some of it has to be summed first.
    pub(super) fn send(
        &mut self,
        socket: i32,
        arena: &Arena,
        bytes: &[u8],
        segments: &[Segment],
    ) -> Option<Result<u32, Errno>> {
        let sent = self.gather(arena, bytes, segments).then(|| self.call(socket));
        self.vectors.clear();
        self.pins.clear();
        sent
    }

    /// Lists what is sent: borrowed bytes, buffers in use of the arena, and pinned regions.
    fn gather(&mut self, arena: &Arena, bytes: &[u8], segments: &[Segment]) -> bool {
        let mut rest = bytes;
        for segment in segments {
            self.vectors.push(match *segment {
                Segment::Bytes { len } => {
                    let (part, behind) = rest.split_at(len as usize);
                    rest = behind;
                    libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }
                }
                Segment::Payload(span) => vector(arena, &mut self.pins, span),
                Segment::Sum | Segment::SumStart => return false,
            });
        }
        true
    }

    fn call(&mut self, socket: i32) -> Result<u32, Errno> {
        // SAFETY: a msghdr of zeros is a valid, empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.vectors.as_mut_ptr();
        message.msg_iovlen = self.vectors.len();
        // SAFETY: `send` has just listed the vectors, and still borrows or pins what they are of. They are only read.
        match ended(unsafe { libc::sendmsg(socket, &raw const message, SEND) }) {
            Some(sent) => u32::try_from(sent).map_err(|_| Errno(-sent)),
            None => Ok(0),
        }
    }
}

/// In the form of a completion's result.
fn ended(moved: isize) -> Option<i32> {
    if let Ok(bytes) = u32::try_from(moved) {
        return Some(bytes as i32);
    }
    match Os::from_io_error(&std::io::Error::last_os_error()) {
        Some(Os::AGAIN | Os::INTR) => None,
        Some(errno) => Some(-errno.raw_os_error()),
        None => Some(-libc::EIO),
    }
}
