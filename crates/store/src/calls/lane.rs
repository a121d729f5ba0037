//! One core's lane into a remote store: operations become calls, one after another.

use super::{Call, Guard, Mailbox, Medium, Shared, Work};
use crate::lane::{Lane, Op, OpId, Outcome, Submitted};
use crate::range::{Range, writes};
use crate::stripes::{Hold, Mode};
use proto::time::Time;
use reactor::io::{Completion, Handle, Io, Tag};
use rustix::io::Errno;
use scsi::storage::{Found, StoreError};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use wire::{Places, Span};

/// The most operations in flight per lane; more are refused as busy.
const FLIGHTS_MAX: usize = 4096;

/// Calls that are kept with their buffers for the next operations.
const SPARE_MAX: usize = 64;

const DONE: Outcome = Ok(Found::Nothing);

/// A lane that makes calls.
pub struct CallLane<M: Medium> {
    pub(crate) store: Arc<M>,
    tags: Tag,
    /// Created when it is first needed.
    mail: Option<Arc<Mailbox>>,
    is_watching: bool,
    is_closing: bool,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Operations that wait for their range, in order of arrival.
    waiting: VecDeque<usize>,
    /// Calls that the medium has.
    out: usize,
    /// A call was started since this was last reset.
    pub(crate) has_started: bool,
    spare: Vec<Box<Call>>,
    /// Empty: capacity for calls that arrive, and for an operation that ends on submission.
    arrived: Vec<Box<Call>>,
    done: Vec<(OpId, Outcome)>,
}

/// An operation in flight.
struct Flight {
    id: OpId,
    op: Op,
    range: Range,
    number: u64,
    phase: Phase,
    /// Bytes of a clear that are done.
    cleared: u64,
    /// The size of its parts; the same for all, whatever the medium becomes meanwhile.
    part: u64,
    /// When it last made progress.
    since: Time,
    is_cancelled: bool,
    /// Its call is stuck, and the medium knows that.
    is_stuck: bool,
    /// The medium's client that makes its calls.
    client: u64,
    /// `None`: the medium has it.
    call: Option<Box<Call>>,
}

/// What the next call of an operation, or the present one, does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Read,
    Write,
    Clear,
    /// Compares and writes in one call.
    Swap,
    /// Reads, after that found a difference.
    Locate,
    Extent,
    Flush,
}

impl<M: Medium> CallLane<M> {
    /// One of a store, with these tags.
    pub fn new(store: Arc<M>, tags: Tag) -> CallLane<M> {
        CallLane {
            store,
            tags,
            mail: None,
            is_watching: false,
            is_closing: false,
            flights: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            out: 0,
            has_started: false,
            spare: Vec::new(),
            arrived: Vec::new(),
            done: Vec::with_capacity(1),
        }
    }

    /// An operation that is finished without a call.
    fn at_once(&self, op: &Op, range: Range) -> Option<Outcome> {
        if writes(op) && self.store.is_read_only() {
            return Some(Err(StoreError::ReadOnly));
        }
        match *op {
            Op::Write { atomic: true, .. } => Some(Err(StoreError::Unsupported)),
            Op::OrWrite { .. } if self.store.has_other_writers() => Some(Err(StoreError::Unsupported)),
            Op::CompareAndWrite { .. }
                if range.len > 0 && self.store.has_other_writers() && !self.store.swaps(range) =>
            {
                Some(Err(StoreError::Unsupported))
            }
            Op::Extent { offset } => self.store.extent(offset).map(Ok),
            Op::Flush if self.store.is_read_only() => Some(DONE),
            Op::Flush => None,
            _ => (range.len == 0).then_some(DONE),
        }
    }

    fn mail(&mut self) -> Option<Arc<Mailbox>> {
        if self.mail.is_none() {
            self.mail = Mailbox::new().ok();
        }
        self.mail.clone()
    }

    fn begin(&mut self, now: Time, id: OpId, op: &Op, range: Range) -> Option<usize> {
        let mail = self.mail()?;
        if self.free.is_empty() && self.flights.len() == FLIGHTS_MAX {
            return None;
        }
        let phase = match op {
            Op::Read { .. } | Op::Compare { .. } | Op::OrWrite { .. } => Phase::Read,
            Op::Extent { .. } => Phase::Extent,
            Op::CompareAndWrite { .. } if self.store.swaps(range) => Phase::Swap,
            Op::CompareAndWrite { .. } => Phase::Read,
            Op::Write { .. } => Phase::Write,
            Op::Zero { .. } | Op::Discard { .. } => Phase::Clear,
            Op::Flush => Phase::Flush,
        };
        let mode = if writes(op) { Mode::Exclusive } else { Mode::Shared };
        let part = if phase == Phase::Clear { self.store.clear_bytes() } else { range.len };
        let mut call = self.spare.pop().unwrap_or_else(|| Call::new(&mail));
        // A query may find its range before or after any change that is in progress.
        let held = if phase == Phase::Extent { 0 } else { range.len.min(part) };
        let guard = Guard::new(self.store.shared(), Hold::new(mode, range.offset, held));
        let number = guard.number();
        call.guard = Some(guard);
        let op = *op;
        let call = Some(call);
        let flight = Flight {
            id,
            op,
            range,
            number,
            phase,
            cleared: 0,
            part,
            since: now,
            is_cancelled: false,
            is_stuck: false,
            client: self.store.client(),
            call,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[slot] = Some(flight);
        Some(slot)
    }

    /// Starts the next call of an operation if it has its range; otherwise the operation waits.
    fn proceed<I: Io>(&mut self, io: &mut I, slot: usize, done: &mut Vec<(OpId, Outcome)>) {
        if !self.takes_its_range(slot) {
            // Whatever is released from now on wakes the core.
            self.mail.iter().for_each(|mail| self.store.shared().wake_on_release(mail));
            if !self.takes_its_range(slot) {
                self.watch(io);
                return self.waiting.push_back(slot);
            }
        }
        let flight = self.flights[slot].as_mut().expect("a waiting operation exists");
        let Some(mut call) = flight.call.take() else { return };
        call.slot = slot;
        call.client = flight.client;
        // It may have waited for its range.
        flight.since = io.now();
        flight.prepare(io, &mut call, self.store.size());
        match self.store.start(call) {
            Ok(()) => {
                self.out += 1;
                self.has_started = true;
                self.watch(io);
            }
            Err(call) => {
                let error = if self.store.is_lost() { StoreError::Unavailable } else { StoreError::Busy };
                self.finish(slot, Some(call), Err(error), done);
            }
        }
    }

    fn takes_its_range(&mut self, slot: usize) -> bool {
        let flight = self.flights[slot].as_mut().expect("a waiting operation exists");
        let (range, is_write) = (flight.range, writes(&flight.op));
        let is_in_parts = range.len > flight.part;
        let Some(guard) = flight.call.as_mut().and_then(|call| call.guard.as_mut()) else { return true };
        (!is_in_parts || guard.occupy(range)) && guard.try_lock(is_write.then_some(range))
    }

    /// Has the core woken when calls end.
    fn watch<I: Io>(&mut self, io: &mut I) {
        let Some(mail) = &self.mail else { return };
        let is_idle = self.out == 0 && self.waiting.is_empty() && self.flights.len() == self.free.len();
        if !self.is_watching && !self.is_closing && !is_idle {
            self.is_watching = true;
            io.watch(Handle(mail.event().as_raw_fd()), self.tags);
        }
    }

    /// Whether the medium has calls of it.
    pub(crate) fn awaits_answers(&self) -> bool {
        self.out > 0
    }

    /// Where its calls are returned to, once it has started any.
    pub(crate) fn mailbox(&self) -> Option<&Arc<Mailbox>> {
        self.mail.as_ref()
    }

    /// Takes the calls that have ended.
    pub(crate) fn receive<I: Io>(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        let Some(mail) = &self.mail else { return };
        let mut arrived = std::mem::take(&mut self.arrived);
        mail.take(&mut arrived);
        for call in arrived.drain(..) {
            self.out -= 1;
            let slot = call.slot;
            let number = call.guard.as_ref().map(Guard::number);
            let flight = self.flights[slot].as_mut().filter(|flight| Some(flight.number) == number);
            match flight {
                // Its operation was abandoned: now others may access its blocks.
                None => self.keep(call),
                Some(_) => self.answered(io, slot, call, done),
            }
        }
        self.arrived = arrived;
    }

    fn answered<I: Io>(&mut self, io: &mut I, slot: usize, call: Box<Call>, done: &mut Vec<(OpId, Outcome)>) {
        if !self.store.accepts(&call) {
            return self.finish(slot, Some(call), Err(StoreError::Unavailable), done);
        }
        let size = self.store.size();
        let flight = self.flights[slot].as_mut().expect("a call belongs to an operation");
        flight.since = io.now();
        flight.is_no_longer_stuck(self.store.shared());
        if let Some(phase) = flight.instead_of_swap(&call) {
            if phase == Phase::Read && self.store.has_other_writers() {
                return self.finish(slot, Some(call), Err(StoreError::Unsupported), done);
            }
            if phase == Phase::Read {
                self.store.swaps_less();
            }
            (flight.phase, flight.call) = (phase, Some(call));
            return self.proceed(io, slot, done);
        }
        match flight.completed(io, call, size) {
            Step::Next => self.proceed(io, slot, done),
            Step::Done(call, outcome) => self.finish(slot, Some(call), outcome, done),
        }
    }

    /// Reports an operation; its call ends here, or stays with the medium.
    fn finish(
        &mut self,
        slot: usize,
        call: Option<Box<Call>>,
        outcome: Outcome,
        done: &mut Vec<(OpId, Outcome)>,
    ) {
        let mut flight = self.flights[slot].take().expect("a finished operation exists");
        flight.is_no_longer_stuck(self.store.shared());
        match call.or(flight.call) {
            Some(call) => self.keep(call),
            None => {
                // A query depends on more than what is accessed, and nothing depends on its end: if only it hangs,
                // others go on.
                if flight.phase != Phase::Extent {
                    self.store.shared().abandon(flight.number, flight.client);
                }
                self.store.withdraw(flight.number);
            }
        }
        self.free.push(slot);
        done.push((flight.id, outcome));
    }

    /// A call that has ended: what it held is free.
    fn keep(&mut self, mut call: Box<Call>) {
        call.guard = None;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(call);
        }
    }
}

/// A cancelled read hangs after this part of the time after which a write does: a gateway is fenced for the latter.
const FORGONE_PART: u32 = 3;

/// What follows a call.
enum Step {
    Next,
    Done(Box<Call>, Outcome),
}

impl Flight {
    /// Whether the medium may be changing its range.
    fn is_being_changed(&self) -> bool {
        self.call.is_none() && matches!(self.phase, Phase::Write | Phase::Clear | Phase::Swap)
    }

    /// Whether it was cancelled while it only reads, which hangs: nothing depends on its end, and a change of the unit's
    /// state that waited for it would have other gateways fence this one.
    fn is_forgone(&self, store: &impl Medium, waited: Duration) -> bool {
        let is_read =
            self.call.is_none() && matches!(self.phase, Phase::Read | Phase::Locate | Phase::Extent);
        let hangs = is_read && waited >= store.stuck_after() / FORGONE_PART;
        self.is_cancelled && hangs && store.has_other_writers()
    }

    fn is_no_longer_stuck(&mut self, shared: &Shared) {
        if std::mem::take(&mut self.is_stuck) {
            shared.mark_stuck(self.number, None);
        }
    }

    /// Fills in the next call.
    fn prepare<I: Io>(&self, io: &mut I, call: &mut Call, size: u64) {
        let offset = self.range.offset;
        call.work = match self.phase {
            Phase::Read | Phase::Locate => {
                call.data.resize(self.range.len as usize, 0);
                Work::Read { offset }
            }
            Phase::Write => {
                match &self.op {
                    Op::Write { from, .. } => copy(io, from, &mut call.data),
                    Op::CompareAndWrite { write, .. } => copy(io, write, &mut call.data),
                    // The operand has already been combined.
                    _ => {}
                }
                Work::Write { offset, durable: self.is_durable() }
            }
            Phase::Swap => {
                if let Op::CompareAndWrite { compare, write, .. } = &self.op {
                    let half = compare.len() as usize;
                    call.data.resize(2 * half, 0);
                    let (first, second) = call.data.split_at_mut(half);
                    io.arena().copy_out(compare, first);
                    io.arena().copy_out(write, second);
                }
                Work::CompareAndWrite { offset }
            }
            Phase::Clear => {
                let stays = matches!(self.op, Op::Zero { unmap: false, .. });
                let len = (self.range.len - self.cleared).min(self.part);
                Work::Zero { offset: offset + self.cleared, len, stays, durable: self.is_durable() }
            }
            Phase::Extent => Work::Extent { offset, len: size.saturating_sub(offset) },
            Phase::Flush => Work::Flush,
        };
    }

    /// Whether what it changes is durable before it ends.
    fn is_durable(&self) -> bool {
        match self.op {
            Op::Write { durable, .. }
            | Op::Zero { durable, .. }
            | Op::CompareAndWrite { durable, .. }
            | Op::OrWrite { durable, .. } => durable,
            Op::Read { .. } | Op::Flush | Op::Discard { .. } | Op::Compare { .. } | Op::Extent { .. } => {
                false
            }
        }
    }

    /// The fallback where the medium could not compare and write, or found a difference.
    fn instead_of_swap(&self, call: &Call) -> Option<Phase> {
        match errno(call.answer) {
            Some(Errno::INVAL) if self.phase == Phase::Swap => Some(Phase::Read),
            Some(Errno::ILSEQ) if self.phase == Phase::Swap => Some(Phase::Locate),
            _ => None,
        }
    }

    /// Its call has ended.
    fn completed<I: Io>(&mut self, io: &mut I, mut call: Box<Call>, size: u64) -> Step {
        if call.answer < 0 {
            let error = self.error(&call, size);
            return Step::Done(call, Err(error));
        }
        let is_read = matches!(self.phase, Phase::Read | Phase::Locate);
        if is_read && u64::try_from(call.answer) != Ok(call.data.len() as u64) {
            let at = self.range.offset;
            return Step::Done(call, Err(StoreError::ReadFailed { at }));
        }
        match (self.phase, &self.op) {
            (Phase::Read, Op::Read { into, .. }) => {
                io.arena().copy_in(&call.data, into);
                Step::Done(call, DONE)
            }
            (
                Phase::Read | Phase::Locate,
                Op::Compare { with, .. } | Op::CompareAndWrite { compare: with, .. },
            ) => {
                let operand = io.arena().to_vec(with);
                if let Some(at) = call.data.iter().zip(&operand).position(|(here, there)| here != there) {
                    return Step::Done(call, Err(StoreError::Miscompare { at: at as u32 }));
                }
                self.write_next(call)
            }
            (Phase::Read, Op::OrWrite { from, .. }) => {
                let operand = io.arena().to_vec(from);
                call.data.iter_mut().zip(&operand).for_each(|(here, there)| *here |= there);
                self.write_next(call)
            }
            (Phase::Clear, _) => self.clear_next(call),
            (Phase::Extent, _) => {
                let found = call.found;
                Step::Done(call, Ok(found))
            }
            _ => Step::Done(call, DONE),
        }
    }

    /// What was read is written next, unless it was only compared.
    fn write_next(&mut self, call: Box<Call>) -> Step {
        if matches!(self.op, Op::Compare { .. }) {
            return Step::Done(call, DONE);
        }
        if self.is_cancelled {
            return Step::Done(call, Err(StoreError::Cancelled));
        }
        // Another client has made it equal since the comparison: compare again.
        self.phase = if self.phase == Phase::Locate { Phase::Swap } else { Phase::Write };
        self.call = Some(call);
        Step::Next
    }

    fn clear_next(&mut self, mut call: Box<Call>) -> Step {
        self.cleared += (self.range.len - self.cleared).min(self.part);
        let rest = self.range.len - self.cleared;
        if rest == 0 {
            return Step::Done(call, DONE);
        }
        if self.is_cancelled {
            return Step::Done(call, Err(StoreError::Cancelled));
        }
        let next = Hold::new(Mode::Exclusive, self.range.offset + self.cleared, rest.min(self.part));
        if let Some(guard) = &mut call.guard {
            guard.relock(next);
        }
        self.call = Some(call);
        Step::Next
    }

    /// How the medium's error is reported.
    fn error(&self, call: &Call, size: u64) -> StoreError {
        match errno(call.answer).unwrap_or(Errno::IO) {
            Errno::NOSPC | Errno::DQUOT => StoreError::NoSpace,
            Errno::ROFS => StoreError::ReadOnly,
            Errno::CANCELED => StoreError::Cancelled,
            Errno::INVAL if self.range.end() > size => StoreError::OutOfRange,
            Errno::NOMEM | Errno::AGAIN => StoreError::Busy,
            // The medium, or the right to use it, is gone: 108 is also what a fenced client of Ceph gets.
            Errno::SHUTDOWN
            | Errno::TIMEDOUT
            | Errno::NOTCONN
            | Errno::NOENT
            | Errno::ACCESS
            | Errno::PERM => StoreError::Unavailable,
            _ if writes(&self.op) || self.phase == Phase::Flush => StoreError::WriteFailed,
            _ => StoreError::ReadFailed { at: self.range.offset },
        }
    }
}

/// The error that a call was answered with, if it was; others than the system's are none.
fn errno(answer: i64) -> Option<Errno> {
    let number = i32::try_from(answer.checked_neg()?).ok()?;
    // What an `Errno` can be: it panics otherwise.
    (1..=4095).contains(&number).then(|| Errno::from_raw_os_error(number))
}

fn copy<I: Io>(io: &mut I, from: &Places, data: &mut Vec<u8>) {
    data.resize(from.len() as usize, 0);
    io.arena().copy_out(from, data);
}

impl<I: Io, M: Medium> Lane<I> for CallLane<M> {
    fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
        None
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        let range = match Range::of(op, self.store.size()) {
            Ok(range) => range,
            Err(error) => return Submitted::Done(Err(error)),
        };
        if let Some(outcome) = self.at_once(op, range) {
            return Submitted::Done(outcome);
        }
        // A lost medium gets no more work, which would only accumulate.
        if self.store.is_lost() {
            return Submitted::Done(Err(StoreError::Unavailable));
        }
        let Some(slot) = self.begin(io.now(), id, op, range) else {
            return Submitted::Done(Err(StoreError::Busy));
        };
        let mut done = std::mem::take(&mut self.done);
        self.proceed(io, slot, &mut done);
        let outcome = done.pop();
        self.done = done;
        outcome.map_or(Submitted::Later, |(_, outcome)| Submitted::Done(outcome))
    }

    fn completed(&mut self, io: &mut I, _completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.is_watching = false;
        self.receive(io, done);
        self.watch(io);
    }

    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        for _ in 0..self.waiting.len() {
            let Some(slot) = self.waiting.pop_front() else { break };
            if self.flights[slot].as_ref().is_some_and(|flight| flight.is_cancelled) {
                self.finish(slot, None, Err(StoreError::Cancelled), done);
            } else {
                self.proceed(io, slot, done);
            }
        }
        // They are woken when something is released.
        false
    }

    /// What has made no progress for too long is reported as failed, unless others write to the medium; its
    /// call holds its blocks until it has ended.
    fn tick(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        self.flush(io, done);
        let now = io.now();
        let store = &self.store;
        let is_due = |flight: &mut Flight| {
            let waited = now.since(flight.since);
            if flight.is_forgone(&**store, waited) {
                return true;
            }
            if !(store.has_other_writers() && flight.is_being_changed()) {
                return waited >= store.give_up_after() || store.has_abandoned(flight.client);
            }
            if waited >= store.stuck_after() && !flight.is_stuck {
                flight.is_stuck = true;
                store.shared().mark_stuck(flight.number, Some(flight.client));
            }
            store.has_abandoned(flight.client)
        };
        let mut due = Vec::new();
        for (slot, flight) in self.flights.iter_mut().enumerate() {
            due.extend(flight.as_mut().is_some_and(is_due).then_some(slot));
        }
        if due.is_empty() {
            return;
        }
        self.waiting.retain(|slot| !due.contains(slot));
        for slot in due {
            let is_cancelled = self.flights[slot].as_ref().is_some_and(|flight| flight.is_cancelled);
            let error = if is_cancelled { StoreError::Cancelled } else { StoreError::Unavailable };
            self.finish(slot, None, Err(error), done);
        }
    }

    fn cancel(&mut self, _io: &mut I, id: OpId) {
        let Some(flight) = self.flights.iter_mut().flatten().find(|flight| flight.id == id) else { return };
        flight.is_cancelled = true;
        if flight.call.is_none() {
            self.store.withdraw(flight.number);
        }
    }

    fn waits_for_threads(&self) -> bool {
        self.out > 0
    }

    fn wants_ticks(&self) -> bool {
        self.flights.len() > self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    fn close(&mut self, io: &mut I) -> bool {
        self.is_closing = true;
        if self.is_watching {
            io.unwatch(self.tags);
        }
        !self.is_watching
    }
}

/// Calls that the medium still has are returned to nobody; what they hold is released then.
impl<M: Medium> Drop for CallLane<M> {
    fn drop(&mut self) {
        self.mail.iter().for_each(|mail| mail.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_an_error_only_if_the_system_has_such_a_number() {
        for answer in [0, 1, i64::MAX, i64::MIN, -4096, -i64::from(u32::MAX)] {
            assert_eq!(errno(answer), None, "{answer}");
        }
        assert_eq!(errno(-i64::from(Errno::INVAL.raw_os_error())), Some(Errno::INVAL));
        assert_eq!(errno(-4095).map(Errno::raw_os_error), Some(4095));
    }
}
