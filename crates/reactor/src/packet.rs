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

/// Frames that one system call sends, or one call of `receive` takes.
const BATCH: usize = 64;
/// What the payload of each frame lies on a multiple of, so that direct I/O can use it where it lies.
const PAYLOAD_ALIGNMENT: u32 = 512;

/// Frames of one core on one interface.
pub struct Packets<L: Line = Socket> {
    line: L,
    batch: Box<L::Batch>,
    blocks: Vec<Places>,
    slots: Slots,
    receiving: Vec<Span>,
    /// Received, and not yet asked for.
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

impl<L: Line> Packets<L> {
    /// Takes buffers for the slots of a socket.
    ///
    /// # Errors
    /// When the arena has not enough.
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

    /// To be watched: readable when a frame has come, or there is trouble.
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

    /// Why nothing will come or go any more as it did, if so: see [`Line::outdated`].
    pub fn outdated(&self) -> Option<String> {
        self.line.outdated()
    }

    /// Takes what has come, without a system call, as far as slots are free for it. Whether there may be more.
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

    /// To be asked when a watch has completed and nothing had come, since the next would complete at once.
    ///
    /// # Errors
    /// Each of them once, and receiving continues: the interface went down (and may come up again), or has gone.
    pub fn trouble(&self) -> io::Result<()> {
        self.line.trouble()
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

    /// Queues the frame in the first `len` bytes of a slot. With no bytes, the slot is only returned.
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

    /// Frames that were for us and that there was no room for, so far.
    pub fn dropped(&mut self) -> u64 {
        self.dropped += u64::from(self.line.drops());
        self.dropped
    }

    /// Ends it. All slots go back to the arena, also those of frames that were not released; one that is lent is reused
    /// only when that has ended. Who drops the socket, on which nothing is watched any more, waits for the kernel: tens
    /// of milliseconds.
    pub fn close(self, arena: &mut Arena) -> L {
        self.blocks.iter().for_each(|block| arena.give(block));
        self.line
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
