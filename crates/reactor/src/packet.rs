//! Ethernet frames of one protocol on one interface, by a raw packet socket (packet(7)).
//!
//! ```text
//! let mut sockets = open(&setup, cores)?;                  // once; each core takes one of them
//! let mut packets = Packets::new(socket, io.arena())?;
//! io.watch(packets.handle(), tag);                         // again after each completion, if `has_room`
//! loop {
//!     let more = packets.receive(io.arena());              // no system call: a core that spins asks often
//!     while let Some(frame) = packets.frame() { ... }       // ours until `release`
//!     if !more { break }
//! }
//! packets.slot(), packets.queue(slot, len), ...
//! packets.flush(io.arena())?;                              // once in a turn
//! ```
//!
//! Frames are taken from the kernel's ring into slots of the core's own large buffers, and sent from such. A ring
//! within the arena would save that copy, but the kernel fills its places in turn: one frame that waits for a slow store
//! would stop all others, and end each sleep at once.

mod filter;
mod ring;
mod socket;

pub use filter::{Condition, Field, Width};
pub use ring::now;
pub use socket::{Setup, Socket, open};

use crate::io::Handle;
use crate::memory::{Arena, LARGE_BYTES, Loan};
use proto::time::Stamp;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::ptr;
use wire::{Places, Span};

/// Frames that one system call sends, or one call of `receive` takes.
const BATCH: usize = 64;
/// What the payload of each frame lies on a multiple of, so that direct I/O can use it where it lies.
const PAYLOAD_ALIGNMENT: u32 = 512;

/// Frames of one core on one interface.
pub struct Packets {
    socket: Socket,
    blocks: Vec<Places>,
    slots: Slots,
    receiving: Vec<Span>,
    /// Received, and not yet asked for.
    arrived: VecDeque<(Span, Stamp)>,
    sending: Vec<Span>,
    /// Frames to send, oldest first.
    queued: VecDeque<Span>,
    batch: Box<Batch>,
    dropped: u64,
}

/// There is not enough memory for the slots of this socket.
#[derive(Debug)]
pub struct NoRoom(pub Socket);

impl From<NoRoom> for io::Error {
    fn from(_: NoRoom) -> io::Error {
        let words = "too little memory is left for the frames of a network interface";
        io::Error::new(io::ErrorKind::OutOfMemory, words)
    }
}

/// How the frames lie in the buffers.
#[derive(Clone, Copy, Debug)]
struct Slots {
    /// From the start of one slot to that of the next.
    bytes: u32,
    /// Where in a slot a frame begins.
    lead: u32,
    /// Room for a frame.
    room: u32,
}

impl Packets {
    /// Takes buffers for the slots of a socket.
    ///
    /// # Errors
    /// When the arena has not enough.
    pub fn new(socket: Socket, arena: &mut Arena) -> Result<Packets, NoRoom> {
        let slots = Slots::of(&socket);
        let mut packets = Packets {
            slots,
            blocks: Vec::new(),
            receiving: Vec::new(),
            arrived: VecDeque::with_capacity(BATCH),
            sending: Vec::new(),
            queued: VecDeque::with_capacity(socket.slots as usize),
            batch: Box::new(Batch::new()),
            dropped: 0,
            socket,
        };
        let (frames, room) = (packets.socket.frames, packets.socket.slots);
        let got = packets.take(arena, frames).and_then(|receiving| {
            packets.receiving = receiving;
            packets.take(arena, room)
        });
        match got {
            Some(sending) => packets.sending = sending,
            None => return Err(NoRoom(packets.close(arena))),
        }
        Ok(packets)
    }

    /// To be watched: readable when a frame has come, or there is trouble.
    pub fn handle(&self) -> Handle {
        self.socket.handle()
    }

    /// The interface's address.
    pub fn mac(&self) -> [u8; 6] {
        self.socket.mac()
    }

    /// The largest payload of a frame, when the socket was opened.
    pub fn mtu(&self) -> u32 {
        self.socket.mtu()
    }

    /// Why nothing will come or go any more as it did, if so: see [`Socket::outdated`].
    pub fn outdated(&self) -> Option<String> {
        self.socket.outdated()
    }

    /// Takes what has come, without a system call, as far as slots are free for it. Whether there may be more.
    pub fn receive(&mut self, arena: &mut Arena) -> bool {
        for _ in 0..BATCH {
            let (Some(frame), Some(slot)) = (self.socket.ring.first(), self.receiving.last()) else {
                return false;
            };
            // Longer than the interface's frames were when the slots were made, or cut off.
            if frame.len > self.slots.room || !frame.is_whole() {
                self.dropped += 1;
            } else {
                let slot = slot.slice(0, frame.len);
                let to = arena.lend(slot, Loan::Write);
                // SAFETY: the slot is ours, nobody else has this part of its buffer, and it has room for the frame,
                // which is given back below.
                unsafe { frame.copy(to) };
                arena.unlend(slot, Loan::Write);
                self.receiving.pop();
                self.arrived.push_back((slot, frame.came));
            }
            self.socket.ring.advance();
        }
        true
    }

    /// To be asked when a watch has completed and nothing had come, since the next would complete at once.
    ///
    /// # Errors
    /// Each of them once, and receiving goes on: the interface went down (and may come up again), or has gone.
    pub fn trouble(&self) -> io::Result<()> {
        self.socket.error()
    }

    /// Whether a slot is free to receive into. While none is, watching would not wait, for what is there is not taken.
    pub fn has_room(&self) -> bool {
        !self.receiving.is_empty()
    }

    /// Slots to receive into that nobody holds: they are free, or their frames have not been asked for.
    pub fn free(&self) -> u32 {
        (self.receiving.len() + self.arrived.len()) as u32
    }

    /// The oldest received frame, exactly its bytes; it stays where it is until it is released.
    pub fn frame(&mut self) -> Option<Span> {
        self.stamped_frame().map(|(frame, _)| frame)
    }

    /// The same, and when it came in: what came before it has an earlier time, whichever socket it waited at.
    pub fn stamped_frame(&mut self) -> Option<(Span, Stamp)> {
        self.arrived.pop_front()
    }

    /// Gives back a received frame; in any order.
    pub fn release(&mut self, frame: Span) {
        self.receiving.push(self.slots.whole(frame));
    }

    /// Whether [`Packets::slot`] has one.
    pub fn has_slot(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Room for one frame to send, which is the caller's until it is queued. `None`: all are queued, or in use.
    pub fn slot(&mut self) -> Option<Span> {
        self.sending.pop()
    }

    /// Queues the frame in the first `len` bytes of a slot. With no bytes, the slot is only given back.
    pub fn queue(&mut self, slot: Span, len: u32) {
        assert!(len <= self.slots.room, "a frame of {len} bytes is longer than its slot");
        match len {
            0 => self.sending.push(self.slots.whole(slot)),
            len => self.queued.push_back(slot.slice(0, len)),
        }
    }

    /// Sends what is queued, as far as the interface takes it now. Whether something is left: to be sent, again by this,
    /// when there is room ([`crate::io::Io::watch_room`]).
    ///
    /// # Errors
    /// When the interface takes no frames: it is down, or has gone. The frames are lost.
    pub fn flush(&mut self, arena: &mut Arena) -> io::Result<bool> {
        let mut result = Ok(());
        while !self.queued.is_empty() {
            self.batch.lend(arena, self.queued.iter().copied());
            let sent = self.batch.send(self.handle());
            self.batch.unlend(arena);
            match sent {
                Ok(count) => self.done(count),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // A queue of the interface is full, and the frame is lost as on any wire.
                Err(Errno::NOBUFS) => self.done(1),
                Err(errno) => {
                    self.done(1);
                    result = Err(self.socket.explain(errno));
                }
            }
        }
        result.map(|()| !self.queued.is_empty())
    }

    /// Frames that were for us and that there was no room for, so far.
    pub fn dropped(&mut self) -> u64 {
        self.dropped += u64::from(self.socket.drops());
        self.dropped
    }

    /// Ends it. All slots go back to the arena, also those of frames that were not released; one that is lent is reused
    /// only when that has ended. Who drops the socket, on which nothing is watched any more, waits for the kernel: tens
    /// of milliseconds.
    pub fn close(self, arena: &mut Arena) -> Socket {
        self.blocks.iter().for_each(|block| arena.give(block));
        self.socket
    }

    /// The oldest `count` frames have been sent.
    fn done(&mut self, count: usize) {
        let slots = self.slots;
        self.sending.extend(self.queued.drain(..count).map(|frame| slots.whole(frame)));
    }

    /// `count` slots in buffers of their own.
    fn take(&mut self, arena: &mut Arena, count: u32) -> Option<Vec<Span>> {
        let mut slots = Vec::with_capacity(count as usize);
        while slots.len() < count as usize {
            let block = arena.take(LARGE_BYTES)?;
            self.blocks.push(block);
            let block = block.iter().next()?;
            let starts = (0..LARGE_BYTES / self.slots.bytes).map(|n| n * self.slots.bytes + self.slots.lead);
            let more = starts.map(|at| block.slice(at, self.slots.room));
            slots.extend(more.take(count as usize - slots.len()));
        }
        Some(slots)
    }
}

impl Slots {
    fn of(socket: &Socket) -> Slots {
        let lead = socket.header.next_multiple_of(PAYLOAD_ALIGNMENT) - socket.header;
        let room = socket.frame_bytes();
        Slots { bytes: (lead + room).next_multiple_of(PAYLOAD_ALIGNMENT), lead, room }
    }

    /// The slot of a frame.
    fn whole(self, frame: Span) -> Span {
        Span { len: self.room, ..frame }
    }
}

/// What the kernel is told of the frames of one system call.
struct Batch {
    spans: Vec<Span>,
    vectors: [libc::iovec; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

impl Batch {
    fn new() -> Batch {
        // SAFETY: a mmsghdr of zeros is a valid, empty one.
        let message = unsafe { std::mem::zeroed() };
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Batch { spans: Vec::with_capacity(BATCH), vectors: [vector; BATCH], messages: [message; BATCH] }
    }

    /// Lends the first spans, and makes messages of them.
    fn lend(&mut self, arena: &mut Arena, spans: impl Iterator<Item = Span>) {
        let entries = self.vectors.iter_mut().zip(&mut self.messages);
        for (span, (vector, message)) in spans.zip(entries) {
            *vector =
                libc::iovec { iov_base: arena.lend(span, Loan::Read).cast(), iov_len: span.len as usize };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            self.spans.push(span);
        }
    }

    /// Ends the loans.
    fn unlend(&mut self, arena: &mut Arena) {
        self.spans.drain(..).for_each(|span| arena.unlend(span, Loan::Read));
    }

    /// Sends what is lent; the number of frames.
    fn send(&mut self, socket: Handle) -> Result<usize, Errno> {
        let (messages, count) = (self.messages.as_mut_ptr(), self.spans.len() as u32);
        // SAFETY: the first `count` messages each have one vector of ours, whose bytes are lent for reading.
        counted(unsafe { libc::sendmmsg(socket.0, messages, count, libc::MSG_DONTWAIT) })
    }
}

fn counted(result: i32) -> Result<usize, Errno> {
    let errno = || Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
    usize::try_from(result).map_err(|_| errno())
}
