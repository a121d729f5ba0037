//! Operations of a remote store as calls that own their bytes, and what must hold until these have ended,
//! even when nobody waits for them: [`lane`] turns operations into calls, and a [`Medium`] carries them out.
//!
//! A call cannot be recalled, and hangs while the medium is unreachable. If its memory belonged to the arena,
//! neither the buffers of an aborted command nor the core's arena could ever be released.
#![expect(clippy::vec_box, reason = "calls stay where they are as they move between lists and a medium")]

mod joint;
pub(crate) mod lane;

pub use crate::range::Range;
pub(crate) use joint::split;
pub use lane::CallLane;

use crate::occupied::Occupied;
use crate::stripes::{Hold, Mode, Stripes};
use joint::Joint;
use rustix::event::{EventfdFlags, eventfd};
use scsi::storage::Found;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A request to a medium; the bytes are in [`Call::data`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Reads into all of the data.
    Read {
        /// Offset on the medium.
        offset: u64,
    },
    /// Writes the data.
    Write {
        /// Offset on the medium.
        offset: u64,
        /// Make it durable before it ends.
        durable: bool,
    },
    /// Makes the range read as zeros.
    Zero {
        /// Its offset.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Keep it allocated.
        stays: bool,
        /// Make it durable before it ends.
        durable: bool,
    },
    /// Finds what is allocated.
    Extent {
        /// Offset on the medium.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Compare with the first half of the data, and write the other half if they are equal.
    CompareAndWrite {
        /// Offset on the medium.
        offset: u64,
    },
    /// Makes everything durable that has ended.
    Flush,
}

/// Carries out the calls of a store's lanes.
pub trait Medium: Send + Sync + 'static {
    /// What its lanes share.
    fn shared(&self) -> &Arc<Shared>;

    /// Its present size in bytes.
    fn size(&self) -> u64;

    /// Whether writes are not allowed.
    fn is_read_only(&self) -> bool;

    /// Whether it is unreachable: it then gets no more work, which would only accumulate.
    fn is_lost(&self) -> bool;

    /// How long an operation waits for it.
    fn give_up_after(&self) -> Duration;

    /// The most bytes that one call clears, so that it is quick.
    fn clear_bytes(&self) -> u64;

    /// What is allocated there, if that is known without a call.
    fn extent(&self, offset: u64) -> Option<Found>;

    /// Whether other clients write to it. Then what takes a read and a write is not atomic, and an operation that
    /// changes it ends only with its call: otherwise the call could overwrite what others write after that.
    fn has_other_writers(&self) -> bool {
        false
    }

    /// The number of its client that makes calls now.
    fn client(&self) -> u64 {
        0
    }

    /// Whether nothing that this client has sent can overwrite anything newer: then nothing of it is waited
    /// for.
    fn has_abandoned(&self, _client: u64) -> bool {
        false
    }

    /// How long a call that changes a medium with other writers may take before it is stuck.
    fn stuck_after(&self) -> Duration {
        Duration::MAX
    }

    /// Whether it compares and writes a range atomically.
    fn swaps(&self, _range: Range) -> bool {
        false
    }

    /// It turned out to support a smaller range.
    fn swaps_less(&self) {}

    /// Whether the answer of a call counts: not if the medium has since fenced the client that made it.
    fn accepts(&self, _call: &Call) -> bool {
        true
    }

    /// Begins a call, which is returned to its mailbox; `Err`: it was not accepted.
    fn start(&self, call: Box<Call>) -> Result<(), Box<Call>>;

    /// The call with this guard is no longer waited for: do not begin what has not begun.
    fn withdraw(&self, _number: u64) {}
}

/// A call: it is returned to the mailbox of the lane that started it.
pub struct Call {
    /// What to do.
    pub work: Work,
    /// Its bytes.
    pub data: Vec<u8>,
    /// Where a comparison found a difference, by an offset whose base depends on the medium.
    pub mismatch: u64,
    /// The answer: bytes read; negative: an error number.
    pub answer: i64,
    /// What was found.
    pub found: Found,
    /// The number of its medium's client that made it.
    pub client: u64,
    /// The operation that it belongs to: its index in the lane, and its number in the store.
    pub(crate) slot: usize,
    pub(crate) guard: Option<Guard>,
    part_of: Option<Arc<Joint>>,
    to: Arc<Mailbox>,
}

impl Call {
    pub(crate) fn new(to: &Arc<Mailbox>) -> Box<Call> {
        let to = to.clone();
        Box::new(Call {
            work: Work::Flush,
            data: Vec::new(),
            mismatch: 0,
            answer: 0,
            found: Found::Nothing,
            client: 0,
            slot: 0,
            guard: None,
            part_of: None,
            to,
        })
    }

    /// Whether it is the call of the lane with this mailbox.
    pub(crate) fn is_of(&self, lane: &Arc<Mailbox>) -> bool {
        Arc::ptr_eq(&self.to, lane)
    }

    /// Whether its guard has this number, or that of the call that it is a part of.
    pub(crate) fn is_numbered(&self, number: u64) -> bool {
        let of_whole = self.part_of.as_ref().and_then(|whole| whole.number);
        self.guard.as_ref().map(Guard::number).or(of_whole) == Some(number)
    }

    /// It holds nothing any more, though it has not ended.
    pub(crate) fn let_go(&mut self) {
        drop(self.guard.take());
        drop(self.part_of.as_ref().and_then(|whole| whole.take_guard()));
    }

    /// Wakes its lane.
    pub(crate) fn wake(&self) {
        self.to.wake();
    }

    /// It has ended.
    pub fn answered(mut call: Box<Call>) {
        let whole = match call.part_of.take() {
            Some(joint) => joint.ended(&call),
            None => Some(call),
        };
        if let Some(call) = whole {
            let to = call.to.clone();
            to.post(call);
        }
    }
}

/// Where a lane receives the calls that have ended.
pub(crate) struct Mailbox {
    event: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arrived: Vec<Box<Call>>,
    is_closed: bool,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Arc<Mailbox>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Mailbox { event, state: Mutex::default() }))
    }

    /// Readable once a call has arrived, or the lane was woken otherwise.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn post(&self, call: Box<Call>) {
        let mut state = self.state();
        if state.is_closed {
            // Nobody will take it; what it held is released when it is dropped, outside the lock.
            drop(state);
            return drop(call);
        }
        let is_first = state.arrived.is_empty();
        state.arrived.push(call);
        drop(state);
        if is_first {
            self.wake();
        }
    }

    /// Wakes its lane.
    pub(crate) fn wake(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Takes what has arrived, in exchange for an empty list.
    pub(crate) fn take(&self, list: &mut Vec<Box<Call>>) {
        // Before the calls are taken: a later one makes it readable again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::swap(&mut self.state().arrived, list);
    }

    /// Nothing is taken any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let arrived = std::mem::take(&mut state.arrived);
        drop(state);
        drop(arrived);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State shared by the operations of all lanes. It outlives the store, as long as its medium has calls of it.
pub struct Shared {
    pub(crate) stripes: Stripes,
    pub(crate) occupied: Occupied,
    next: AtomicU64,
    /// Operations that were reported as failed although their calls have not ended, and the client that made these.
    abandoned_count: AtomicUsize,
    abandoned: Mutex<BTreeMap<u64, u64>>,
    /// Operations that have waited for their calls for too long, and the client that made these.
    stuck_count: AtomicUsize,
    stuck: Mutex<BTreeMap<u64, u64>>,
    /// Lanes with operations that wait for those of others.
    waiting_count: AtomicUsize,
    waiting: Mutex<Vec<Arc<Mailbox>>>,
    releases: AtomicU64,
}

impl Shared {
    /// For a store.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn new() -> io::Result<Arc<Shared>> {
        Ok(Arc::new(Shared {
            stripes: Stripes::new()?,
            occupied: Occupied::default(),
            next: AtomicU64::new(1),
            abandoned_count: AtomicUsize::new(0),
            abandoned: Mutex::default(),
            stuck_count: AtomicUsize::new(0),
            stuck: Mutex::default(),
            waiting_count: AtomicUsize::new(0),
            waiting: Mutex::default(),
            releases: AtomicU64::new(0),
        }))
    }

    /// Whether there are calls whose operations were reported as failed.
    pub fn has_abandoned(&self) -> bool {
        self.abandoned_count.load(Ordering::Acquire) > 0
    }

    /// Whether there are such calls of this client.
    pub fn has_abandoned_of(&self, client: u64) -> bool {
        self.has_abandoned() && self.abandoned().values().any(|other| *other == client)
    }

    /// An operation is reported as failed before its call, made by this client, has ended.
    pub(crate) fn abandon(&self, number: u64, client: u64) {
        self.change_abandoned(|abandoned| abandoned.insert(number, client));
    }

    /// Whether calls of this client are stuck.
    pub fn is_stuck(&self, client: u64) -> bool {
        let stuck = || self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        self.stuck_count.load(Ordering::Acquire) > 0 && stuck().values().any(|other| *other == client)
    }

    /// The call of an operation, made by this client, is stuck; `None`: no longer.
    pub(crate) fn mark_stuck(&self, number: u64, client: Option<u64>) {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        match client {
            Some(client) => _ = stuck.insert(number, client),
            None => _ = stuck.remove(&number),
        }
        self.stuck_count.store(stuck.len(), Ordering::Release);
    }

    /// Whether the operation with this number was reported as failed.
    pub(crate) fn is_abandoned(&self, number: u64) -> bool {
        self.abandoned().contains_key(&number)
    }

    fn abandoned(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_abandoned(&self, change: impl FnOnce(&mut BTreeMap<u64, u64>) -> Option<u64>) {
        let mut abandoned = self.abandoned();
        change(&mut abandoned);
        self.abandoned_count.store(abandoned.len(), Ordering::Release);
    }

    /// Wakes a lane when anything is released. Retry after calling this: it may have been released before.
    pub(crate) fn wake_on_release(&self, lane: &Arc<Mailbox>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|other| Arc::ptr_eq(other, lane)) {
            waiting.push(lane.clone());
        }
        self.waiting_count.store(waiting.len(), Ordering::SeqCst);
        // Either the releasing side sees the lane, or the lane sees what was released.
        fence(Ordering::SeqCst);
    }

    fn released(&self) {
        fence(Ordering::SeqCst);
        if self.waiting_count.load(Ordering::SeqCst) > 0 {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.drain(..).for_each(|lane| lane.wake());
            self.waiting_count.store(0, Ordering::SeqCst);
            self.releases.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often lanes were woken since something was released: a simulation need not look at their descriptors as long as this stays
    /// the same and no call is answered.
    pub fn releases(&self) -> u64 {
        self.releases.load(Ordering::Relaxed)
    }
}

/// What an operation holds: until it is dropped nothing else changes its range, or nothing does at all if it
/// only reads.
pub(crate) struct Guard {
    shared: Arc<Shared>,
    number: u64,
    hold: Hold,
    /// The whole range of an operation that is done in parts.
    occupied: Option<Range>,
}

impl Guard {
    pub(crate) fn new(shared: &Arc<Shared>, hold: Hold) -> Guard {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        Guard { shared: shared.clone(), number, hold, occupied: None }
    }

    /// A number that is unique among the store's operations.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What it holds, as a separate guard: its operation ends, but what it has begun may not have.
    pub(crate) fn part(&mut self) -> Guard {
        let mut part = Guard::new(&self.shared, Hold::new(Mode::Shared, 0, 0));
        std::mem::swap(&mut part.hold, &mut self.hold);
        std::mem::swap(&mut part.occupied, &mut self.occupied);
        part
    }

    /// Takes the whole range of an operation that is done in parts.
    pub(crate) fn occupy(&mut self, range: Range) -> bool {
        if self.occupied.is_none() && self.shared.occupied.take(range) {
            self.occupied = Some(range);
        }
        self.occupied.is_some()
    }

    /// Continues locking. `writes`: the range of an operation that waits for those done in parts. What is
    /// locked stays locked: an operation that reads before it writes locks again, and those that arrived
    /// meanwhile wait for it.
    pub(crate) fn try_lock(&mut self, writes: Option<Range>) -> bool {
        if self.hold.is_whole() {
            return true;
        }
        // Before anything is locked: its release would wake those that wait, and these would do the same to this one.
        if !self.is_held_off(writes) {
            if !self.shared.stripes.try_lock(&mut self.hold) {
                return false;
            }
            if !self.is_held_off(writes) {
                return true;
            }
        }
        if !self.hold.is_empty() {
            self.shared.stripes.unlock(&mut self.hold);
            self.shared.released();
        }
        false
    }

    /// Whether it waits for an operation that is done in parts.
    fn is_held_off(&self, writes: Option<Range>) -> bool {
        self.occupied.is_none() && writes.is_some_and(|range| self.shared.occupied.overlaps(range))
    }

    /// Releases what is locked, before locking this.
    pub(crate) fn relock(&mut self, hold: Hold) {
        self.shared.stripes.unlock(&mut self.hold);
        self.hold = hold;
        self.shared.released();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.stripes.unlock(&mut self.hold);
        if let Some(range) = self.occupied.take() {
            self.shared.occupied.give(range);
        }
        if self.shared.has_abandoned() {
            self.shared.change_abandoned(|abandoned| abandoned.remove(&self.number));
        }
        self.shared.released();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range = Range { offset: 4096, len: 8192 };

    fn writer(shared: &Arc<Shared>) -> Guard {
        Guard::new(shared, Hold::new(Mode::Exclusive, RANGE.offset, RANGE.len))
    }

    #[test]
    fn what_was_read_stays_locked_until_it_is_written() {
        let shared = Shared::new().unwrap();
        let (mut writer, mut clear) = (writer(&shared), writer(&shared));
        assert!(writer.try_lock(Some(RANGE)));
        assert!(clear.occupy(Range { offset: 0, len: 1 << 30 }));
        assert!(writer.try_lock(Some(RANGE)), "it goes on between its read and its write");
        assert!(!clear.try_lock(None), "and the clear waits for it");
        drop(writer);
        assert!(clear.try_lock(None));
    }

    #[test]
    fn a_part_of_an_operation_keeps_the_range_locked() {
        let shared = Shared::new().unwrap();
        let (mut old, mut new) = (writer(&shared), writer(&shared));
        assert!(old.try_lock(Some(RANGE)));
        let part = old.part();
        drop(old);
        assert!(!new.try_lock(Some(RANGE)));
        drop(part);
        assert!(new.try_lock(Some(RANGE)));
    }

    #[test]
    fn a_write_that_has_not_begun_waits_for_a_clear_and_is_woken_by_its_end() {
        let shared = Shared::new().unwrap();
        let (mut writer, mut clear) = (writer(&shared), writer(&shared));
        assert!(clear.occupy(RANGE) && !writer.try_lock(Some(RANGE)));
        let lane = Mailbox::new().unwrap();
        shared.wake_on_release(&lane);
        let is_woken = || rustix::io::read(lane.event(), &mut [0; 8]).is_ok();
        assert!(!is_woken());
        drop(clear);
        assert!(is_woken() && writer.try_lock(Some(RANGE)));
    }

    #[test]
    fn writes_that_wait_for_a_clear_do_not_wake_each_other() {
        let shared = Shared::new().unwrap();
        let (mut clear, mut reader) =
            (writer(&shared), Guard::new(&shared, Hold::new(Mode::Shared, 8192, 1)));
        let mut writers = [writer(&shared), writer(&shared)];
        assert!(reader.try_lock(None));
        assert!(!writers[0].try_lock(Some(RANGE)), "it locks the first page, and waits for the reader");
        assert!(clear.occupy(RANGE));
        let lane = Mailbox::new().unwrap();
        let is_woken = || rustix::io::read(lane.event(), &mut [0; 8]).is_ok();
        for is_first in [true, false] {
            shared.wake_on_release(&lane);
            assert!(writers.iter_mut().all(|writer| !writer.try_lock(Some(RANGE))));
            assert_eq!(is_woken(), is_first, "only what had been locked before is released");
        }
        drop(reader);
        assert!(is_woken() && clear.try_lock(None), "no writer keeps what it had locked");
        shared.wake_on_release(&lane);
        drop(clear);
        assert!(is_woken() && writers[0].try_lock(Some(RANGE)));
    }
}
