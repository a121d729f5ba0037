//! What a core may request of the kernel.

use crate::memory::Region;
use crate::packet::Line;
use proto::stream::Segment;
use proto::time::{Stamp, Time};
use std::net::SocketAddr;
use std::time::Duration;
use wire::Places;

/// Returned with the completion of its request. The engine packs kind, index and generation into it; `Io`
/// never inspects it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u64);

/// An open socket or file: valid on every core of the process, so a connection can move.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub i32);

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: Tag,
    /// Bytes transferred, or for `accept` the new socket's [`Handle`] number, or the error number (`errno`).
    pub result: Result<u32, Errno>,
}

/// An error number of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// How long a turn may sleep when nothing is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until something happens, at most this long.
    AtMost(Duration),
    /// Until something happens.
    Forever,
}

/// How to allocate or deallocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Deallocate the range (a hole); it reads as zeros.
    PunchHole,
    /// The range reads as zeros and stays allocated.
    Zero,
}

/// The kernel, as one core sees it. Requests are queued and submitted together with the next [`Io::turn`], or
/// are executed at once; places lent to a request are returned with its completion. There is exactly one
/// completion for each request, and it arrives in a turn. A socket has at most one recv and one send in
/// flight.
pub trait Io {
    /// Where frames are received and sent.
    type Line: Line;

    /// The present time; advances only in `turn`, and not in each of those that find nothing to do.
    fn now(&self) -> Time;

    /// The present time, by the clock that stamps received frames
    /// ([`crate::packet::Packets::stamped_frame`]).
    fn stamp(&self) -> Stamp;

    /// Processor time that this core's thread has used, including spinning, or waited for while other threads
    /// had its processor.
    fn processor_time(&self) -> Duration;

    /// This core's buffers. A buffer that is part of a request in flight is lent: it can be released
    /// ([`crate::memory::Arena::give`]), but is reused only after the completion.
    fn arena(&mut self) -> &mut crate::memory::Arena;

    /// Unpredictable bits.
    fn random() -> u32;

    /// Local and peer address of a socket; `None`: it is no longer connected.
    fn addresses(&self, socket: Handle) -> Option<(SocketAddr, SocketAddr)>;

    /// What fits into one TCP segment of a connected socket's path, in bytes.
    fn segment_bytes(&self, socket: Handle) -> u32;

    /// Another handle of a socket, the lowest free one; `None`: none is.
    fn duplicate(&mut self, socket: Handle) -> Option<Handle>;

    /// Accepts one connection from a listening socket.
    fn accept(&mut self, listener: Handle, tag: Tag);

    /// Connects a new TCP socket; the completion carries its handle.
    fn connect(&mut self, to: SocketAddr, tag: Tag);

    /// Receives at least one byte into the places, in order. 0 bytes: the peer closed the stream.
    fn recv(&mut self, socket: Handle, into: &Places, tag: Tag);

    /// Whether several sockets have received recently: a long send of one of them delays the others.
    fn is_shared(&self) -> bool;

    /// Whether the core spins and receives from this socket by direct calls: no answer to it wakes a sleeping
    /// peer.
    fn is_hot(&self, _socket: Handle) -> bool {
        false
    }

    /// Sends all bytes of the spans in order, or fails.
    fn send(&mut self, socket: Handle, from: &[wire::Span], tag: Tag);

    /// Sends at once as much of `segments`, with these bytes, as the socket has room for; returns how much
    /// that was. No completion follows. `None`, such as where something has to be summed: send it by
    /// [`Io::send`].
    fn send_now(
        &mut self,
        _socket: Handle,
        _bytes: &[u8],
        _segments: &[Segment],
    ) -> Option<Result<u32, Errno>> {
        None
    }

    /// Completes when a descriptor becomes readable, which may be in nonblocking mode.
    fn watch(&mut self, descriptor: Handle, tag: Tag);

    /// The same, for a descriptor that peers use: counts for [`Io::is_shared`].
    fn watch_peers(&mut self, descriptor: Handle, tag: Tag) {
        self.watch(descriptor, tag);
    }

    /// Completes when a socket that was full has room to send. [`Io::unwatch`] ends this, too.
    fn watch_room(&mut self, socket: Handle, tag: Tag);

    /// The watch with this tag completes soon, with an error if the descriptor is not readable; then nothing
    /// holds the descriptor. So does a connection that is being established.
    fn unwatch(&mut self, tag: Tag);

    /// Ends both directions of a socket: requests in flight on it complete soon, with an error or 0 bytes.
    fn shutdown(&mut self, socket: Handle);

    /// Closes a socket or file that has no request in flight.
    fn close(&mut self, handle: Handle);

    /// Closes a socket whose owner is dropped without its kernel.
    fn abandon(socket: Handle) {
        crate::net::close(socket);
    }

    /// Reads from a file.
    fn read(&mut self, file: Handle, at: u64, into: &Places, tag: Tag);

    /// Writes to a file; `durable`: it is on stable storage before the completion (RWF_DSYNC).
    fn write(&mut self, file: Handle, at: u64, from: &Places, durable: bool, tag: Tag);

    /// Reads from a file in memory before this returns, which is quick unless the machine swaps; returns how
    /// many bytes, and no completion follows. (tmpfs has no nonblocking reads, so the kernel gives each
    /// queued request to a thread.) `None`: read it by [`Io::read`].
    fn read_now(&mut self, _file: Handle, _at: u64, _into: &Places) -> Option<Result<u32, Errno>> {
        None
    }

    /// The same for [`Io::write`].
    fn write_now(
        &mut self,
        _file: Handle,
        _at: u64,
        _from: &Places,
        _durable: bool,
    ) -> Option<Result<u32, Errno>> {
        None
    }

    /// Makes everything written to the file durable (fdatasync).
    fn sync(&mut self, file: Handle, tag: Tag);

    /// Allocates or deallocates a range of a file or block device.
    fn allocate(&mut self, file: Handle, how: Allocate, at: u64, len: u64, tag: Tag);

    /// Whether a file has data at an offset, and up to where the same applies, from a kernel that knows at
    /// once. `None`: a thread has to find out, as lseek may block.
    fn extent_now(&mut self, _file: Handle, _at: u64) -> Option<Result<(bool, u64), Errno>> {
        None
    }

    /// The same for memory, and for how many bytes that applies ([`Region::extent`]).
    fn memory_extent_now(&mut self, _memory: &Region, _at: u64) -> Option<(bool, u64)> {
        None
    }

    /// Whether completions are already available, so that the next turn will not sleep.
    fn is_ready(&self) -> bool;

    /// Submits everything queued, waits at most as long as allowed, and appends all completions. Returns
    /// early when another core wakes this one.
    fn turn(&mut self, wait: Wait, completions: &mut Vec<Completion>);

    /// There was work since the last turn that no completion announced: the next turn reads the clock.
    fn worked(&mut self) {}
}
