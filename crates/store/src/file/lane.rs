//! One core's lane into a file.

use super::flight::{Flight, Step};
use super::syncs::Turn;
use super::{FileStore, Kind};
use crate::extents::{Ask, Questions};
use crate::lane::{LANE_TAGS, Lane, Op, OpId, Outcome, Submitted};
use crate::range::{Range, writes};
use crate::stripes::{Hold, Mode};
use reactor::io::{Completion, Errno, Handle, Io, Tag};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::SeekFrom;
use rustix::io::Errno as Os;
use scsi::storage::{Found, StoreError};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::{Places, Span};

/// The most operations in flight per lane; more are refused as busy.
const FLIGHTS_MAX: usize = 4096;

/// Slots for operations that are allocated at start.
const FLIGHTS_AT_START: usize = 128;

pub(super) struct FileLane {
    store: Arc<FileStore>,
    tags: Tag,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Flights that lack their buffer, their range or their turn to sync, in order of arrival. A buffer is
    /// taken before anything is locked: an operation that holds a range waits only for other ranges, syncs
    /// and the kernel, and a sync only for the kernel.
    waiting: VecDeque<usize>,
    /// One of the flights runs the file's sync.
    syncs: bool,
    /// Readable when a sync of another core has ended that this one waits for; created when it is first
    /// needed.
    ended: Option<Arc<OwnedFd>>,
    /// It will become readable, and the core is woken then.
    is_watching: bool,
    questions: Questions,
    /// Empty: capacity for an operation that ends on submission.
    done: Vec<(OpId, Outcome)>,
}

impl FileLane {
    pub(super) fn new(store: Arc<FileStore>, tags: Tag) -> FileLane {
        FileLane {
            store,
            tags,
            flights: Vec::with_capacity(FLIGHTS_AT_START),
            free: Vec::with_capacity(FLIGHTS_AT_START),
            waiting: VecDeque::with_capacity(FLIGHTS_AT_START),
            syncs: false,
            ended: None,
            is_watching: false,
            questions: Questions::default(),
            done: Vec::with_capacity(1),
        }
    }

    /// An operation that is finished without a request to the kernel.
    fn at_once(&self, op: &Op, range: Range) -> Option<Outcome> {
        if writes(op) && self.store.shape.read_only {
            return Some(Err(StoreError::ReadOnly));
        }
        match *op {
            Op::Write { atomic: true, .. } => Some(Err(StoreError::Unsupported)),
            Op::Extent { offset } if self.store.shape.kind == Kind::Block => {
                let size = self.store.size();
                let (unmapped, end) = self.store.unmapped.at(offset, size);
                Some(Ok(extent(offset, size, end, !unmapped)))
            }
            Op::Flush if self.store.shape.read_only => Some(Ok(Found::Nothing)),
            Op::Flush => None,
            Op::Discard { .. } if !self.store.can_punch.load(Ordering::Relaxed) => Some(Ok(Found::Nothing)),
            _ => (range.len == 0).then_some(Ok(Found::Nothing)),
        }
    }

    /// The range of an operation that is one system call, locked; `None`: it is not, or has to wait.
    fn takes_at_once(&self, op: &Op, mode: Mode) -> Option<Hold> {
        let store = &self.store;
        if !store.shape.in_memory || store.shape.grain.is_direct() || store.shape.read_only && writes(op) {
            return None;
        }
        let range = Range::of(op, store.size()).ok()?;
        let mut hold = Hold::new(mode, range.offset, range.len);
        if store.stripes.try_lock(&mut hold) && !(writes(op) && store.occupied.overlaps(range)) {
            return Some(hold);
        }
        store.stripes.unlock(&mut hold);
        None
    }

    /// The completion of answers; operations have the tags before it.
    fn answers(&self) -> Tag {
        Tag(self.tags.0 + LANE_TAGS - 1)
    }

    /// The completion of a sync of another core.
    fn ends(&self) -> Tag {
        Tag(self.tags.0 + LANE_TAGS - 2)
    }

    /// Has the core woken when a sync ends, unless it already will be. Returns whether that is new: a sync
    /// may have ended before.
    fn watch_syncs<I: Io>(&mut self, io: &mut I) -> bool {
        if self.syncs || self.is_watching {
            return false;
        }
        if self.ended.is_none() {
            // Without one the core polls.
            self.ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new);
        }
        let Some(ended) = &self.ended else { return false };
        self.store.syncs.wake(ended);
        io.watch(Handle(ended.as_raw_fd()), self.ends());
        self.is_watching = true;
        true
    }

    /// A sync of another core has ended.
    fn sync_ended(&mut self) {
        self.is_watching = false;
        if let Some(ended) = &self.ended {
            let _ = rustix::io::read(ended, &mut [0; 8]);
        }
    }

    fn slot(&mut self, flight: Flight) -> Option<usize> {
        if let Some(slot) = self.free.pop() {
            self.flights[slot] = Some(flight);
            return Some(slot);
        }
        if self.flights.len() == FLIGHTS_MAX {
            return None;
        }
        self.flights.push(Some(flight));
        Some(self.flights.len() - 1)
    }

    /// Issues the flight's next request if it has its buffer, its range and its turn; otherwise it waits, or
    /// has ended.
    fn proceed<I: Io>(&mut self, io: &mut I, slot: usize, done: &mut Vec<(OpId, Outcome)>) {
        let flight = self.flights[slot].as_mut().expect("a waiting operation exists");
        if !flight.wants_sync() && !flight.takes_its_range(&self.store) {
            return self.waiting.push_back(slot);
        }
        let turn = flight.turn(&self.store);
        if turn == Turn::Wait && self.watch_syncs(io) {
            return self.proceed(io, slot, done);
        }
        let flight = self.flights[slot].as_mut().expect("it still exists");
        match turn {
            Turn::Wait => self.waiting.push_back(slot),
            Turn::Over => {
                let outcome = flight.synced(&self.store);
                self.finish(slot, outcome, done);
            }
            Turn::Begin => {
                self.syncs |= flight.syncs();
                if let Some(result) = flight.issue(io, &self.store, Tag(self.tags.0 + slot as u64)) {
                    self.go_on(io, slot, result, done);
                }
            }
        }
    }

    /// The outcome of the flight's last request.
    fn go_on<I: Io>(
        &mut self,
        io: &mut I,
        slot: usize,
        result: Result<u32, Errno>,
        done: &mut Vec<(OpId, Outcome)>,
    ) {
        let mut result = result;
        loop {
            let flight = self.flights[slot].as_mut().expect("a completion belongs to an operation");
            let synced = flight.syncs();
            let step = flight.completed(io, &self.store, result);
            if synced {
                self.syncs = flight.syncs();
            }
            match step {
                Step::Issue => match flight.issue(io, &self.store, Tag(self.tags.0 + slot as u64)) {
                    Some(next) => result = next,
                    None => return,
                },
                Step::Relock => {
                    flight.note(&self.store, false);
                    self.store.stripes.unlock(&mut flight.hold);
                    flight.relock(&self.store);
                    return self.proceed(io, slot, done);
                }
                Step::Sync => return self.proceed(io, slot, done),
                Step::Done(outcome) => return self.finish(slot, outcome, done),
            }
        }
    }

    fn finish(&mut self, slot: usize, outcome: Outcome, done: &mut Vec<(OpId, Outcome)>) {
        let mut flight = self.flights[slot].take().expect("a finished operation exists");
        flight.note(&self.store, outcome.is_ok());
        if outcome.is_ok() && flight.leaves_dirty(&self.store) {
            self.store.syncs.wrote();
        }
        self.store.stripes.unlock(&mut flight.hold);
        flight.leave(&self.store);
        if let Some(buffer) = flight.buffer {
            self.store.pool.give(buffer);
        }
        self.free.push(slot);
        done.push((flight.id, outcome));
    }
}

impl<I: Io> Lane<I> for FileLane {
    fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
        None
    }

    fn read_now(&mut self, io: &mut I, offset: u64, into: &Places) -> bool {
        let (store, op) = (&self.store, Op::Read { offset, into: *into });
        let Some(mut hold) = self.takes_at_once(&op, Mode::Shared) else { return false };
        let result = io.read_now(store.handle(), offset, into);
        store.stripes.unlock(&mut hold);
        result == Some(Ok(into.len()))
    }

    fn write_now(&mut self, io: &mut I, offset: u64, from: Places, _may_clear: bool) -> Option<u64> {
        // In memory, a write that has to be durable is like any other.
        let (store, op) = (&self.store, Op::Write { offset, from, durable: false, atomic: false });
        let mut hold = self.takes_at_once(&op, Mode::Exclusive)?;
        let result = io.write_now(store.handle(), offset, &from, false);
        store.stripes.unlock(&mut hold);
        (result == Some(Ok(from.len()))).then_some(0)
    }

    fn works_at_once(&self) -> bool {
        self.store.shape.in_memory
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        let range = match Range::of(op, self.store.size()) {
            Ok(range) => range,
            Err(error) => return Submitted::Done(Err(error)),
        };
        if let Some(outcome) = self.at_once(op, range) {
            return Submitted::Done(outcome);
        }
        if let Op::Extent { offset } = *op {
            let (store, tag) = (self.store.clone(), self.answers());
            if let Some(known) = io.extent_now(store.handle(), offset) {
                let found = known.map(|(mapped, end)| extent(offset, store.size(), end, mapped));
                let outcome = found.map_err(|_| StoreError::ReadFailed { at: offset });
                return self.questions.known(io, tag, id, outcome);
            }
            return self.questions.ask(io, tag, id, &self.store.extents, store, offset);
        }
        let flight = Flight::new(&self.store, id, op, range);
        let Some(slot) = self.slot(flight) else {
            return Submitted::Done(Err(StoreError::Busy));
        };
        let mut done = std::mem::take(&mut self.done);
        self.proceed(io, slot, &mut done);
        let outcome = done.pop();
        self.done = done;
        outcome.map_or(Submitted::Later, |(_, outcome)| Submitted::Done(outcome))
    }

    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        if completion.tag == self.answers() {
            return self.questions.completed(io, completion.tag, done);
        }
        if completion.tag == self.ends() {
            return self.sync_ended();
        }
        self.go_on(io, (completion.tag.0 - self.tags.0) as usize, completion.result, done);
    }

    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        self.questions.flush(done);
        for _ in 0..self.waiting.len() {
            let Some(slot) = self.waiting.pop_front() else { break };
            if self.flights[slot].as_ref().is_some_and(|flight| flight.is_cancelled) {
                self.finish(slot, Err(StoreError::Cancelled), done);
            } else {
                self.proceed(io, slot, done);
            }
        }
        // Flights that wait for a sync continue when it has completed.
        let is_notified = self.syncs || self.is_watching;
        let waits =
            |slot: &usize| is_notified && self.flights[*slot].as_ref().is_some_and(Flight::wants_sync);
        !self.waiting.iter().all(waits)
    }

    fn losses(&mut self) -> u64 {
        self.store.syncs.losses()
    }

    fn is_dirty(&mut self) -> bool {
        self.store.syncs.is_dirty()
    }

    fn cancel(&mut self, _io: &mut I, id: OpId) {
        if let Some(flight) = self.flights.iter_mut().flatten().find(|flight| flight.id == id) {
            flight.is_cancelled = true;
        }
        self.questions.cancel(id);
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len() + self.questions.open()
    }

    fn close(&mut self, io: &mut I) -> bool {
        if self.is_watching {
            io.unwatch(self.ends());
        }
        self.questions.close(io, self.answers()) && !self.is_watching
    }
}

/// A lane that is dropped with operations in flight releases their ranges. `Io` waits for what the kernel
/// still does for it before it releases the memory; until then the store must stay open, as `Io` knows its
/// file only by number. Buffers that the kernel may still fill are not reused.
impl Drop for FileLane {
    fn drop(&mut self) {
        for flight in self.flights.iter_mut().flatten() {
            flight.abandon_sync(&self.store);
            self.store.stripes.unlock(&mut flight.hold);
            flight.leave(&self.store);
        }
    }
}

impl Ask for FileStore {
    fn extent(&self, offset: u64) -> Outcome {
        let size = self.size();
        let failed = |_| StoreError::ReadFailed { at: offset };
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Err(Os::NXIO) => Ok(extent(offset, size, size, false)),
            Err(error) => Err(failed(error)),
            Ok(data) if data > offset => Ok(extent(offset, size, data, false)),
            Ok(_) => {
                let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(offset)).map_err(failed)?;
                Ok(extent(offset, size, hole, true))
            }
        }
    }
}

/// What is allocated at `offset`; the same applies up to `end`.
fn extent(offset: u64, size: u64, end: u64, mapped: bool) -> Found {
    Found::Extent { mapped, len: end.min(size).saturating_sub(offset).max(1) }
}
