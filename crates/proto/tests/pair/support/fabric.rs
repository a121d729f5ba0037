//! The fabric between two machines that exchange messages over RDMA: each side's work is done in order,
//! except RDMA Reads, which are done at any time, and is reported as finished some time later. A message
//! without a receive, and RDMA outside of what is advertised, break the connection.

use super::memory::{Memory, Random};
use proto::message::{Access, Advertised, Full, Message, MessageMachine, Post, WorkId};
use proto::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::{BufferId, Places, Span};

/// A work request.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Send { work: WorkId, header: Vec<u8>, payload: Places, solicited: bool, invalidate: Option<u32> },
    Write { work: WorkId, from: Places, to: Advertised },
    Read { work: WorkId, into: Places, from: Advertised },
}

/// A buffer that the other side may access.
#[derive(Clone, Copy, Debug)]
struct Region {
    places: Places,
    access: Access,
    offset: u64,
}

/// Counts of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub reads: usize,
    pub writes: usize,
    /// Bytes that were copied from messages.
    pub copied: u32,
    /// Messages that invalidated.
    pub invalidations: usize,
}

/// One side: its queue pair and its buffers.
pub(crate) struct Port {
    /// Where receives are allocated.
    receives: BufferId,
    /// Receives that are posted.
    ready: VecDeque<Span>,
    /// Receives allocated so far.
    made: usize,
    regions: BTreeMap<u32, Region>,
    /// STags invalidated by a message that the machine has not released yet.
    returned: BTreeSet<u32>,
    /// STags of buffers that the other side has read while the bytes have not been sent: the other side has
    /// them all the same.
    leaving: VecDeque<u32>,
    /// Bytes of each buffer that the other side has read or written.
    moved: BTreeMap<u32, u32>,
    stags: u32,
    /// Posted work that has not begun.
    pub queue: VecDeque<Op>,
    /// RDMA Reads that were begun.
    reads: VecDeque<Op>,
    /// Work that is done, but not reported as finished.
    done: VecDeque<WorkId>,
    /// How much it accepts at a time.
    pub room: usize,
    /// How often it was called.
    asked: usize,
    pub counts: Counts,
}

/// The result of a piece of work.
pub(crate) enum Done {
    /// Nothing that the other side sees.
    Quiet,
    /// The other side has a message.
    Message { place: Span, bytes: Vec<u8>, solicited: bool, invalidated: Option<u32> },
    /// The connection broke.
    Broken(&'static str),
}

impl Port {
    /// A port with receives in this buffer.
    fn new(receives: BufferId) -> Port {
        Port {
            receives,
            ready: VecDeque::new(),
            made: 0,
            regions: BTreeMap::new(),
            returned: BTreeSet::new(),
            leaving: VecDeque::new(),
            moved: BTreeMap::new(),
            stags: 0,
            queue: VecDeque::new(),
            reads: VecDeque::new(),
            done: VecDeque::new(),
            room: usize::MAX,
            asked: 0,
            counts: Counts::default(),
        }
    }

    /// Keeps as many receives posted as the machine requires; released ones are reposted at once.
    fn replenish(&mut self, machine: &impl MessageMachine, memory: &mut Memory) {
        let receives = machine.receives();
        while self.ready.len() < usize::from(receives.count) {
            self.made += 1;
            self.ready.push_back(memory.grow(self.receives, receives.bytes));
        }
        let count = usize::from(receives.count);
        assert_eq!(self.ready.len(), count, "receives that were released are used again");
    }

    /// Receives that are posted.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Messages that the machine has not returned.
    pub(crate) fn held(&self) -> usize {
        self.made - self.ready.len()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.reads.is_empty() && self.done.is_empty() && self.leaving.is_empty()
    }

    /// How many reads of buffers here have not been sent.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// RDMA Reads in progress.
    pub(crate) fn reading(&self) -> usize {
        self.reads.len() + self.queue.iter().filter(|op| matches!(op, Op::Read { .. })).count()
    }

    /// Buffers that the other side may access, or has invalidated and the machine has not released.
    pub(crate) fn advertised(&self) -> usize {
        self.regions.len() + self.returned.len()
    }

    pub(crate) fn advertise(&mut self, places: Places, access: Access, random: &mut Random) -> Advertised {
        self.stags += 1;
        let stag = self.stags.wrapping_mul(0x9e37_79b9);
        // Any number, like virtual addresses.
        let offset = random.next() >> 2;
        self.regions.insert(stag, Region { places, access, offset });
        Advertised { stag, offset }
    }

    /// `false`: some of it has not been sent.
    pub(crate) fn invalidate(&mut self, stag: u32) -> bool {
        let was = self.regions.remove(&stag).is_some() || self.returned.remove(&stag);
        assert!(was, "invalidated twice: {stag:#x}");
        !self.leaving.contains(&stag)
    }

    /// What was read first has been sent: returns the STag if it is invalid and nothing else of it is in
    /// transit.
    fn leave(&mut self) -> Option<u32> {
        let stag = self.leaving.pop_front()?;
        (!self.regions.contains_key(&stag) && !self.leaving.contains(&stag)).then_some(stag)
    }

    /// The part of a buffer that the other side names, if it has access.
    fn part(&self, at: Advertised, len: u32, access: Access) -> Option<Places> {
        let region = self.regions.get(&at.stag)?;
        let from = u32::try_from(at.offset.checked_sub(region.offset)?).ok()?;
        let fits = from.checked_add(len)? <= region.places.len() && region.access == access;
        fits.then(|| region.places.slice(from, len))
    }

    /// Puts a message into a receive.
    fn land(&mut self, bytes: &[u8], memory: &mut Memory) -> Result<Span, &'static str> {
        let place = self.ready.pop_front().ok_or("a message without a receive")?;
        let part = memory.at(place).get_mut(..bytes.len()).ok_or("a message longer than its receive")?;
        part.copy_from_slice(bytes);
        Ok(place)
    }

    fn post(&mut self, op: Op) -> Result<(), Full> {
        if self.queue.len() + self.reads.len() + self.done.len() >= self.room {
            return Err(Full);
        }
        self.asked += 1;
        self.queue.push_back(op);
        Ok(())
    }

    /// Does one piece of work.
    pub(crate) fn execute(&mut self, other: &mut Port, memory: &mut Memory, random: &mut Random) -> Done {
        let read = !self.reads.is_empty() && (self.queue.is_empty() || random.below(3) == 0);
        let op = if read { self.reads.pop_front() } else { self.queue.pop_front() };
        match op {
            None => {}
            Some(Op::Read { work, into, from }) if read => {
                let Some(source) = other.part(from, into.len(), Access::Read) else {
                    return Done::Broken("an RDMA Read of what is not advertised");
                };
                memory.copy(source, into);
                other.leaving.push_back(from.stag);
                *other.moved.entry(from.stag).or_default() += into.len();
                self.counts.reads += 1;
                self.done.push_back(work);
            }
            Some(op @ Op::Read { .. }) => self.reads.push_back(op),
            Some(Op::Write { work, from, to }) => {
                let Some(sink) = other.part(to, from.len(), Access::Write) else {
                    return Done::Broken("an RDMA Write to what is not advertised");
                };
                memory.copy(from, sink);
                *other.moved.entry(to.stag).or_default() += from.len();
                self.counts.writes += 1;
                self.done.push_back(work);
            }
            Some(Op::Send { work, header, payload, solicited, invalidate }) => {
                let mut bytes = header;
                payload.iter().for_each(|span| bytes.extend_from_slice(memory.at(span)));
                if let Some(stag) = invalidate {
                    self.counts.invalidations += 1;
                    if other.regions.remove(&stag).is_none() {
                        return Done::Broken("an invalidation of what is not advertised");
                    }
                    other.returned.insert(stag);
                }
                self.done.push_back(work);
                return match other.land(&bytes, memory) {
                    Ok(place) => Done::Message { place, bytes, solicited, invalidated: invalidate },
                    Err(why) => Done::Broken(why),
                };
            }
        }
        Done::Quiet
    }
}

/// A side while its machine posts.
struct Posting<'a> {
    port: &'a mut Port,
    memory: &'a mut Memory,
    random: &'a mut Random,
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
        self.port.post(Op::Send { work, header: header.to_vec(), payload, solicited, invalidate })
    }

    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full> {
        self.port.post(Op::Write { work, from, to })
    }

    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full> {
        self.port.post(Op::Read { work, into, from })
    }

    fn advertise(&mut self, places: Places, access: Access) -> Result<Advertised, Full> {
        // Only where there is something to wait for.
        if self.port.room < 100 && !self.port.is_idle() && self.random.below(3) == 0 {
            return Err(Full);
        }
        self.port.asked += 1;
        Ok(self.port.advertise(places, access, self.random))
    }

    fn moved(&self, stag: u32) -> u32 {
        self.port.moved.get(&stag).copied().unwrap_or(0)
    }

    fn invalidate(&mut self, stag: u32) -> bool {
        self.port.asked += 1;
        self.port.invalidate(stag)
    }

    fn copy(&mut self, from: Span, to: Places) {
        assert_eq!(from.buffer, self.port.receives, "what is copied came in a message");
        self.port.asked += 1;
        self.port.counts.copied += from.len;
        self.memory.copy(Places::one(from), to);
    }

    fn bytes(&self, place: Span) -> &[u8] {
        self.memory.look(place)
    }

    fn release(&mut self, place: Span) {
        assert!(!self.port.ready.contains(&place), "released twice");
        self.port.asked += 1;
        self.port.ready.push_back(place);
    }
}

/// One machine and its side of the fabric.
pub(crate) struct Node<M> {
    pub machine: M,
    pub port: Port,
    is_closed: bool,
}

impl<M: MessageMachine> Node<M> {
    pub(crate) fn new(machine: M, receives: BufferId) -> Node<M> {
        Node { machine, port: Port::new(receives), is_closed: false }
    }

    /// Lets the machine post; `false` when nothing was posted.
    pub(crate) fn post(&mut self, now: Time, memory: &mut Memory, random: &mut Random) -> bool {
        if self.is_closed {
            return false;
        }
        let before = self.port.asked;
        self.port.replenish(&self.machine, memory);
        if self.machine.owes() {
            self.machine.post(now, &mut Posting { port: &mut self.port, memory, random });
        }
        self.port.replenish(&self.machine, memory);
        before != self.port.asked
    }

    /// A message of the other side, in its receive.
    pub(crate) fn received(&mut self, now: Time, place: Span, bytes: &[u8], invalidated: Option<u32>) {
        self.machine.received(now, Message { place, bytes, invalidated });
    }

    /// A forged message.
    pub(crate) fn inject(&mut self, now: Time, memory: &mut Memory, bytes: &[u8], invalidated: Option<u32>) {
        let place = self.port.land(bytes, memory).unwrap();
        self.received(now, place, bytes, invalidated);
    }

    /// Reports the oldest piece of work that is done as finished.
    pub(crate) fn report(&mut self, now: Time) {
        if let Some(work) = self.port.done.pop_front() {
            self.machine.finished(now, work);
        }
    }

    /// Reports a buffer as free, when what was read of it has been sent.
    pub(crate) fn leave(&mut self, now: Time) {
        if let Some(stag) = self.port.leave() {
            self.machine.freed(now, stag);
        }
    }

    /// All posted work is void; `false` when it already was.
    pub(crate) fn close(&mut self, now: Time, reason: &str) -> bool {
        if std::mem::replace(&mut self.is_closed, true) {
            return false;
        }
        self.port.queue.clear();
        self.port.reads.clear();
        self.port.done.clear();
        self.port.regions.clear();
        self.port.returned.clear();
        self.port.leaving.clear();
        self.machine.closed(now, reason);
        true
    }
}
