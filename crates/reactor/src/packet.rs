//! Ethernet frames of one protocol on one interface, on a raw packet socket (packet(7)).
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
//! Frames are copied from the kernel's ring into slots of the core's own large buffers, and sent from such
//! slots. A ring inside the arena would save that copy, but the kernel fills its slots in turn: one frame
//! that waits for a slow store would block all others, and end each sleep at once.

pub mod aoe;
mod batch;
mod filter;
mod line;
mod ring;
mod socket;

pub use filter::{Condition, Field, Width};
pub use line::{Arrival, Line, Shape, Unsent};
pub use ring::now;
pub use socket::{HEADER_BYTES, Setup, Socket, open};

use crate::io::Handle;
use crate::memory::{Arena, LARGE_BYTES};
use proto::time::Stamp;
use std::collections::VecDeque;
use std::io;
use wire::{Places, Span};

/// Frames that one system call sends, or one call of `receive` handles.
const BATCH: usize = 64;
/// The alignment of each frame's payload, so that direct I/O can use it in place.
const PAYLOAD_ALIGNMENT: u32 = 512;

/// Frames of one core on one interface.
pub struct Packets<L: Line = Socket> {
    line: L,
    batch: Box<L::Batch>,
    blocks: Vec<Places>,
    slots: Slots,
    receiving: Vec<Span>,
    /// Received, but not returned yet.
    arrived: VecDeque<(Span, Stamp)>,
    sending: Vec<Span>,
    /// Frames to send, oldest first.
    queued: VecDeque<Span>,
    dropped: u64,
}

/// There is not enough memory for the slots of this socket.
#[derive(Debug)]
pub struct NoRoom<L: Line = Socket>(pub L);

impl<L: Line> From<NoRoom<L>> for io::Error {
    fn from(_: NoRoom<L>) -> io::Error {
        let text = "too little memory is left for the frames of a network interface";
        io::Error::new(io::ErrorKind::OutOfMemory, text)
    }
}

/// How frames are laid out in the buffers.
#[derive(Clone, Copy, Debug)]
struct Slots {
    /// From the start of one slot to that of the next.
    bytes: u32,
    /// Where a frame begins in a slot.
    lead: u32,
    /// The longest frame.
    room: u32,
}

impl<L: Line> Packets<L> {
    /// Allocates buffers for the slots of a socket.
    ///
    /// # Errors
    /// When the arena does not have enough.
    pub fn new(line: L, arena: &mut Arena) -> Result<Packets<L>, NoRoom<L>> {
        let shape = line.shape();
        let slots = Slots::of(shape, line.mtu());
        let mut packets = Packets {
            slots,
            blocks: Vec::new(),
            receiving: Vec::new(),
            arrived: VecDeque::with_capacity(BATCH),
            sending: Vec::new(),
            queued: VecDeque::with_capacity(shape.slots as usize),
            dropped: 0,
            batch: Box::default(),
            line,
        };
        let got = packets.take(arena, shape.frames).and_then(|receiving| {
            packets.receiving = receiving;
            packets.take(arena, shape.slots)
        });
        match got {
            Some(sending) => packets.sending = sending,
            None => return Err(NoRoom(packets.close(arena))),
        }
        Ok(packets)
    }

    /// To be watched: readable when a frame has arrived, or on an error.
    pub fn handle(&self) -> Handle {
        self.line.handle()
    }

    /// The interface's address.
    pub fn mac(&self) -> [u8; 6] {
        self.line.mac()
    }

    /// The largest payload of a frame, when the socket was opened.
    pub fn mtu(&self) -> u32 {
        self.line.mtu()
    }

    /// Why frames are not received and sent as before, if so: see [`Line::outdated`].
    pub fn outdated(&self) -> Option<String> {
        self.line.outdated()
    }

    /// Takes the frames that have arrived, without a system call, as far as there are free slots. Returns
    /// whether there may be more.
    pub fn receive(&mut self, arena: &mut Arena) -> bool {
        for _ in 0..BATCH {
            let Some(slot) = self.receiving.last() else { return false };
            match self.line.receive(arena, *slot) {
                Arrival::Nothing => return false,
                Arrival::Cut => self.dropped += 1,
                Arrival::Frame { len, stamp } => {
                    self.arrived.push_back((slot.slice(0, len), stamp));
                    self.receiving.pop();
                }
            }
        }
        true
    }

    /// To be called when a watch has completed and nothing had arrived, since the next would complete at
    /// once.
    ///
    /// # Errors
    /// Each of them once, and receiving continues: the interface went down (and may come up again), or was
    /// removed.
    pub fn take_error(&self) -> io::Result<()> {
        self.line.take_error()
    }

    /// Whether a slot is free to receive into. While none is, watching would not wait, as pending frames are
    /// not taken.
    pub fn has_room(&self) -> bool {
        !self.receiving.is_empty()
    }

    /// Receive slots that are not held: they are free, or their frames have not been returned yet.
    pub fn free(&self) -> u32 {
        (self.receiving.len() + self.arrived.len()) as u32
    }

    /// The oldest received frame, exactly its bytes; it stays in place until it is released.
    pub fn frame(&mut self) -> Option<Span> {
        self.stamped_frame().map(|(frame, _)| frame)
    }

    /// The same, with the time at which it was received: earlier frames have an earlier time, whichever
    /// socket they waited at.
    pub fn stamped_frame(&mut self) -> Option<(Span, Stamp)> {
        self.arrived.pop_front()
    }

    /// Releases a received frame; in any order.
    pub fn release(&mut self, frame: Span) {
        self.receiving.push(self.slots.whole(frame));
    }

    /// Whether [`Packets::slot`] has one.
    pub fn has_slot(&self) -> bool {
        !self.sending.is_empty()
    }

    /// A slot for one frame to send, which belongs to the caller until it is queued. `None`: all are queued,
    /// or in use.
    pub fn slot(&mut self) -> Option<Span> {
        self.sending.pop()
    }

    /// Queues the frame in the first `len` bytes of a slot. With zero bytes, the slot is only returned.
    pub fn queue(&mut self, slot: Span, len: u32) {
        assert!(len <= self.slots.room, "a frame of {len} bytes is longer than its slot");
        match len {
            0 => self.sending.push(self.slots.whole(slot)),
            len => self.queued.push_back(slot.slice(0, len)),
        }
    }

    /// Sends what is queued, as far as the interface accepts it now. Returns whether something is left, to be
    /// sent by calling this again when there is room ([`crate::io::Io::watch_room`]).
    ///
    /// # Errors
    /// When the interface accepts no frames: it is down, or was removed. The frames are lost.
    pub fn flush(&mut self, arena: &mut Arena) -> io::Result<bool> {
        let mut result = Ok(());
        while !self.queued.is_empty() {
            match self.line.send(&mut self.batch, arena, self.queued.iter().copied()) {
                Ok(count) => self.done(count),
                Err(Unsent::Full) => break,
                Err(Unsent::Lost(why)) => {
                    self.done(1);
                    result = why.map_or(result, Err);
                }
            }
        }
        result.map(|()| !self.queued.is_empty())
    }

    /// Frames for us that were dropped for lack of room, so far.
    pub fn dropped(&mut self) -> u64 {
        self.dropped += u64::from(self.line.drops());
        self.dropped
    }

    /// Closes it. All slots are returned to the arena, including those of frames that were not released; one
    /// that is lent is reused only when that has ended. Dropping the socket, on which nothing must be watched
    /// any more, waits for the kernel: tens of milliseconds.
    pub fn close(self, arena: &mut Arena) -> L {
        self.blocks.iter().for_each(|block| arena.give(block));
        self.line
    }

    /// The oldest `count` frames have been sent.
    fn done(&mut self, count: usize) {
        let slots = self.slots;
        self.sending.extend(self.queued.drain(..count).map(|frame| slots.whole(frame)));
    }

    /// `count` slots in newly allocated buffers.
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
    fn of(shape: Shape, mtu: u32) -> Slots {
        let lead = shape.header.next_multiple_of(PAYLOAD_ALIGNMENT) - shape.header;
        let room = HEADER_BYTES + mtu;
        Slots { bytes: (lead + room).next_multiple_of(PAYLOAD_ALIGNMENT), lead, room }
    }

    /// The slot of a frame.
    fn whole(self, frame: Span) -> Span {
        Span { len: self.room, ..frame }
    }
}
