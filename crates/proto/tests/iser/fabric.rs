//! One end of a connection as a fabric of RDMA has it: what was posted, what the peer may touch, which receives stand
//! ready. It panics where a real one would end the connection.

use crate::support::{Memory, Random};
use proto::message::{Access, Advertised, Full, Message, MessageMachine, Post, WorkId};
use proto::time::Time;
use std::collections::{BTreeMap, VecDeque};
use wire::{BufferId, Places, Span};

/// Places of messages are in this buffer.
const MESSAGES: BufferId = BufferId(9);

/// A work request.
#[derive(Clone, Debug)]
pub(crate) enum Posted {
    Send { work: WorkId, header: Vec<u8>, payload: Places, invalidate: Option<u32> },
    Write { work: WorkId, from: Places, to: Advertised },
    Read { work: WorkId, into: Places, from: Advertised },
}

/// A buffer that the peer may touch.
#[derive(Clone, Copy, Debug)]
struct Region {
    places: Places,
    access: Access,
    offset: u64,
}

/// What one end has posted, lent and advertised.
#[derive(Default)]
pub(crate) struct Queues {
    pub posted: VecDeque<Posted>,
    /// RDMA Reads on their way, in order.
    pub reading: VecDeque<(WorkId, Places, Advertised)>,
    /// What is done and not told, in order.
    done: VecDeque<WorkId>,
    regions: BTreeMap<u32, Region>,
    stags: u32,
    /// Messages by place, with their length.
    messages: BTreeMap<u64, Vec<u8>>,
    places: u64,
    /// Receives that were ever posted; those in `messages` are with the machine.
    receives: usize,
    /// Work requests that fit in the queue.
    pub room: usize,
    /// How often anything was posted.
    posts: usize,
    /// RDMA operations of each kind: Writes, Reads, bytes copied, messages that invalidated.
    pub writes: usize,
    pub reads: usize,
    pub copied: u32,
    pub invalidations: usize,
}

impl Queues {
    /// Messages that the machine has not given back.
    pub(crate) fn held(&self) -> usize {
        self.messages.len()
    }

    /// Buffers that the peer may touch.
    pub(crate) fn advertised(&self) -> usize {
        self.regions.len()
    }

    /// What the peer reaches by this STag.
    fn reach(&self, at: Advertised, len: u32, access: Access) -> Places {
        let region = self.regions.get(&at.stag).unwrap_or_else(|| panic!("no such STag: {at:?}"));
        assert_eq!(region.access, access, "{at:?}");
        let from = u32::try_from(at.offset.checked_sub(region.offset).expect("below the buffer")).unwrap();
        assert!(from + len <= region.places.len(), "{at:?} and {len} bytes are past the buffer");
        region.places.slice(from, len)
    }
}

/// What a machine posts to.
struct Posting<'a> {
    queues: &'a mut Queues,
    memory: &'a mut Memory,
    random: &'a mut Random,
}

impl Posting<'_> {
    fn push(&mut self, posted: Posted) -> Result<(), Full> {
        if self.queues.posted.len() >= self.queues.room {
            return Err(Full);
        }
        self.queues.posts += 1;
        self.queues.posted.push_back(posted);
        Ok(())
    }
}

impl Post for Posting<'_> {
    fn send(
        &mut self,
        work: WorkId,
        header: &[u8],
        payload: Places,
        _solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), Full> {
        self.push(Posted::Send { work, header: header.to_vec(), payload, invalidate })
    }

    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full> {
        self.push(Posted::Write { work, from, to })?;
        self.queues.writes += 1;
        Ok(())
    }

    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full> {
        self.push(Posted::Read { work, into, from })?;
        self.queues.reads += 1;
        Ok(())
    }

    fn advertise(&mut self, places: Places, access: Access) -> Result<Advertised, Full> {
        // There is something to wait for.
        let is_busy = !self.queues.posted.is_empty() || !self.queues.done.is_empty();
        if self.queues.room < 100 && is_busy && self.random.below(3) == 0 {
            return Err(Full);
        }
        self.queues.stags += 1;
        let stag = self.queues.stags.wrapping_mul(0x9e37_79b9);
        // As virtual addresses are: any number.
        let offset = self.random.next() >> 2;
        self.queues.posts += 1;
        self.queues.regions.insert(stag, Region { places, access, offset });
        Ok(Advertised { stag, offset })
    }

    fn invalidate(&mut self, stag: u32) {
        self.queues.posts += 1;
        assert!(self.queues.regions.remove(&stag).is_some(), "invalidated twice: {stag:#x}");
    }

    fn copy(&mut self, from: Span, to: Places) {
        assert_eq!((from.buffer, from.len), (MESSAGES, to.len()));
        self.queues.posts += 1;
        self.queues.copied += from.len;
        let (place, at) = (from.offset >> 32, (from.offset & 0xffff_ffff) as usize);
        let bytes = self.queues.messages[&place][at..at + from.len as usize].to_vec();
        scatter(self.memory, to, &bytes);
    }

    fn release(&mut self, place: Span) {
        self.queues.posts += 1;
        assert!(self.queues.messages.remove(&(place.offset >> 32)).is_some(), "released twice");
    }
}

/// A machine and its queues.
pub(crate) struct End<M> {
    pub machine: M,
    pub queues: Queues,
}

impl<M: MessageMachine> End<M> {
    pub(crate) fn new(machine: M) -> End<M> {
        End { machine, queues: Queues { room: 1 << 20, ..Queues::default() } }
    }

    /// Lets the machine post; whether it did.
    pub(crate) fn post(&mut self, now: Time, memory: &mut Memory, random: &mut Random) -> bool {
        self.provide();
        if !self.machine.owes() {
            return false;
        }
        let before = self.queues.posts;
        self.machine.post(now, &mut Posting { queues: &mut self.queues, memory, random });
        self.queues.posts > before
    }

    /// Posts the receives that the machine wants.
    fn provide(&mut self) {
        self.queues.receives = self.queues.receives.max(self.machine.receives().count.into());
    }

    /// Hands a message to the machine, for which a receive must stand ready.
    pub(crate) fn receive(&mut self, now: Time, bytes: Vec<u8>, invalidated: Option<u32>) {
        assert!(self.queues.messages.len() < self.queues.receives, "no receive stands ready");
        assert!(bytes.len() <= self.machine.receives().bytes as usize, "a receive is too short");
        self.queues.places += 1;
        let len = bytes.len() as u32;
        let place = Span { buffer: MESSAGES, len, offset: self.queues.places << 32 };
        self.queues.messages.insert(self.queues.places, bytes.clone());
        self.machine.received(now, Message { place, bytes: &bytes, invalidated });
        self.provide();
    }

    /// Does the oldest of what was posted.
    pub(crate) fn work<P: MessageMachine>(
        &mut self,
        now: Time,
        peer: &mut End<P>,
        memory: &mut Memory,
    ) -> bool {
        let Some(posted) = self.queues.posted.pop_front() else { return false };
        match posted {
            Posted::Send { work, header, payload, invalidate } => {
                let mut bytes = header;
                bytes.extend(gather(memory, payload));
                if let Some(stag) = invalidate {
                    self.queues.invalidations += 1;
                    assert!(peer.queues.regions.remove(&stag).is_some(), "no such STag: {stag:#x}");
                }
                self.queues.done.push_back(work);
                peer.receive(now, bytes, invalidate);
            }
            Posted::Write { work, from, to } => {
                let place = peer.queues.reach(to, from.len(), Access::Write);
                let bytes = gather(memory, from);
                scatter(memory, place, &bytes);
                self.queues.done.push_back(work);
            }
            Posted::Read { work, into, from } => self.queues.reading.push_back((work, into, from)),
        }
        true
    }

    /// The answer to the oldest RDMA Read arrives.
    pub(crate) fn read<P>(&mut self, now: Time, peer: &mut End<P>, memory: &mut Memory) -> bool {
        let Some((work, into, from)) = self.queues.reading.pop_front() else { return false };
        let bytes = gather(memory, peer.queues.reach(from, into.len(), Access::Read));
        scatter(memory, into, &bytes);
        self.machine.finished(now, work);
        true
    }

    /// Tells the oldest of what is done.
    pub(crate) fn tell(&mut self, now: Time) -> bool {
        let Some(work) = self.queues.done.pop_front() else { return false };
        self.machine.finished(now, work);
        true
    }
}

fn gather(memory: &mut Memory, places: Places) -> Vec<u8> {
    places.iter().flat_map(|span| memory.at(span).to_vec()).collect()
}

fn scatter(memory: &mut Memory, places: Places, bytes: &[u8]) {
    let mut at = 0;
    for span in places.iter() {
        let len = span.len as usize;
        memory.at(span).copy_from_slice(&bytes[at..at + len]);
        at += len;
    }
    assert_eq!(at, bytes.len());
}
