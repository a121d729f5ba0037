//! What lies between two machines that exchange messages over RDMA: each side's work is done in its order, but for
//! RDMA Reads, which finish whenever it pleases them. A message without a receive, and RDMA outside of what is
//! advertised, break the connection.

use super::Memory;
use super::memory::{MEMORY_BYTES, Random};
use proto::message::{Access, Advertised, Full, Message, MessageMachine, Post, WorkId};
use proto::time::Time;
use std::collections::{BTreeMap, VecDeque};
use wire::{BufferId, Places, Span};

/// Receives are above this in the memory of their side; data of tests is below.
pub(crate) const RECEIVES_AT: u64 = 3 << 20;

enum Op {
    Send { work: WorkId, header: Vec<u8>, payload: Places, solicited: bool },
    Write { work: WorkId, from: Places, to: Advertised },
    Read { work: WorkId, into: Places, from: Advertised },
}

/// One side: its queue pair and its buffers.
pub(crate) struct Port {
    region: BufferId,
    /// Receives that are posted, and where the next buffer is made.
    ready: VecDeque<Span>,
    made: u64,
    stags: BTreeMap<u32, (Places, Access)>,
    stags_made: u32,
    queue: VecDeque<Op>,
    reads: VecDeque<Op>,
    /// How much the queue takes now.
    pub room: usize,
    /// How many RDMA Reads and RDMA Writes were done.
    pub done: usize,
}

/// What a piece of work led to.
pub(crate) enum Done {
    Nothing,
    /// It is finished.
    Work(WorkId),
    /// It is finished, and the other side has a message.
    Message {
        work: WorkId,
        place: Span,
        bytes: Vec<u8>,
        solicited: bool,
    },
    /// The connection broke.
    Broken(&'static str),
}

impl Port {
    pub(crate) fn new(region: BufferId) -> Port {
        Port {
            region,
            ready: VecDeque::new(),
            made: 0,
            stags: BTreeMap::new(),
            stags_made: 0x1000,
            queue: VecDeque::new(),
            reads: VecDeque::new(),
            room: usize::MAX,
            done: 0,
        }
    }

    /// Keeps as many receives posted as the machine says; what was released was posted again at once.
    pub(crate) fn replenish(&mut self, machine: &impl MessageMachine) {
        let receives = machine.receives();
        while self.ready.len() < usize::from(receives.count) {
            let offset = RECEIVES_AT + self.made;
            self.made += u64::from(receives.bytes).next_multiple_of(64);
            assert!(RECEIVES_AT + self.made <= MEMORY_BYTES as u64, "receives are used again");
            self.ready.push_back(Span { buffer: self.region, offset, len: receives.bytes });
        }
    }

    /// Receives that are posted.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.reads.is_empty()
    }

    /// RDMA Reads under way.
    pub(crate) fn reading(&self) -> usize {
        self.reads.len() + self.queue.iter().filter(|op| matches!(op, Op::Read { .. })).count()
    }

    /// Buffers that the other side may touch.
    pub(crate) fn advertised(&self) -> usize {
        self.stags.len()
    }

    pub(crate) fn advertise(&mut self, places: Places, access: Access) -> Advertised {
        self.stags_made += 7;
        self.stags.insert(self.stags_made, (places, access));
        Advertised { stag: self.stags_made, offset: u64::from(self.stags_made) << 8 }
    }

    pub(crate) fn invalidate(&mut self, stag: u32) {
        assert!(self.stags.remove(&stag).is_some(), "invalidated twice");
    }

    /// The part of a buffer that the other side names, if it may.
    fn part(&self, at: Advertised, len: u32, access: Access) -> Option<Places> {
        let (places, granted) = self.stags.get(&at.stag)?;
        let from = u32::try_from(at.offset.checked_sub(u64::from(at.stag) << 8)?).ok()?;
        let fits = from.checked_add(len)? <= places.len() && *granted == access;
        fits.then(|| places.slice(from, len))
    }

    fn post(&mut self, op: Op) -> Result<(), Full> {
        if self.queue.len() + self.reads.len() >= self.room {
            return Err(Full);
        }
        self.queue.push_back(op);
        Ok(())
    }

    /// Does one piece of work.
    pub(crate) fn execute(&mut self, other: &mut Port, memory: &mut Memory, random: &mut Random) -> Done {
        let read = !self.reads.is_empty() && (self.queue.is_empty() || random.below(3) == 0);
        let op = if read { self.reads.pop_front() } else { self.queue.pop_front() };
        match op {
            None => Done::Nothing,
            Some(Op::Read { work, into, from }) if read => {
                let Some(source) = other.part(from, into.len(), Access::Read) else {
                    return Done::Broken("an RDMA Read of what is not advertised");
                };
                memory.copy(source, into);
                self.done += 1;
                Done::Work(work)
            }
            Some(op @ Op::Read { .. }) => {
                self.reads.push_back(op);
                Done::Nothing
            }
            Some(Op::Write { work, from, to }) => {
                let Some(sink) = other.part(to, from.len(), Access::Write) else {
                    return Done::Broken("an RDMA Write to what is not advertised");
                };
                memory.copy(from, sink);
                self.done += 1;
                Done::Work(work)
            }
            Some(Op::Send { work, header, payload, solicited }) => {
                let mut bytes = header;
                payload.iter().for_each(|span| bytes.extend_from_slice(memory.at(span)));
                let Some(place) = other.ready.pop_front() else {
                    return Done::Broken("a message without a receive");
                };
                if bytes.len() > place.len as usize {
                    return Done::Broken("a message longer than its receive");
                }
                memory.at(place)[..bytes.len()].copy_from_slice(&bytes);
                Done::Message { work, place, bytes, solicited }
            }
        }
    }
}

/// A side while its machine posts.
pub(crate) struct Posting<'a> {
    pub port: &'a mut Port,
    pub memory: &'a mut Memory,
}

impl Post for Posting<'_> {
    fn send(
        &mut self,
        work: WorkId,
        header: &[u8],
        payload: Places,
        solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), Full> {
        assert!(invalidate.is_none(), "SRP has no such thing");
        self.port.post(Op::Send { work, header: header.to_vec(), payload, solicited })
    }

    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full> {
        self.port.post(Op::Write { work, from, to })
    }

    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full> {
        self.port.post(Op::Read { work, into, from })
    }

    fn advertise(&mut self, places: Places, access: Access) -> Result<Advertised, Full> {
        Ok(self.port.advertise(places, access))
    }

    fn invalidate(&mut self, stag: u32) {
        self.port.invalidate(stag);
    }

    fn copy(&mut self, from: Span, to: Places) {
        self.memory.copy(Places::one(from), to);
    }

    fn bytes(&self, place: Span) -> &[u8] {
        let from = place.offset as usize;
        &self.memory.regions[place.buffer.0 as usize][from..from + place.len as usize]
    }

    fn release(&mut self, place: Span) {
        assert!(!self.port.ready.contains(&place), "released twice");
        self.port.ready.push_back(place);
    }
}

/// One machine and its side of the fabric.
pub(crate) struct Node<M> {
    pub machine: M,
    pub port: Port,
}

impl<M: MessageMachine> Node<M> {
    pub(crate) fn new(machine: M, region: BufferId) -> Node<M> {
        Node { machine, port: Port::new(region) }
    }

    /// Lets the machine post; `false` when nothing came of it.
    pub(crate) fn post(&mut self, now: Time, memory: &mut Memory) -> bool {
        let before = (self.port.queue.len(), self.port.ready.len());
        self.port.replenish(&self.machine);
        if self.machine.owes() {
            self.machine.post(now, &mut Posting { port: &mut self.port, memory });
        }
        self.port.replenish(&self.machine);
        let posted = usize::from(self.machine.receives().count);
        assert_eq!(self.port.ready.len(), posted, "as many buffers as at the start");
        before != (self.port.queue.len(), self.port.ready.len())
    }

    /// A message of the other side.
    pub(crate) fn received(&mut self, now: Time, place: Span, bytes: &[u8]) {
        self.machine.received(now, Message { place, bytes, invalidated: None });
    }

    /// All that was posted is void.
    pub(crate) fn close(&mut self, now: Time, reason: &str) {
        self.port.queue.clear();
        self.port.reads.clear();
        self.port.stags.clear();
        self.machine.closed(now, reason);
    }
}
