//! A store in memory. Memory is allocated when written, and released when ranges are discarded.

use crate::error::OpenError;
use crate::extents::{Ask, Extents, Questions};
use crate::granules::Granules;
use crate::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use crate::occupied::Occupied;
use crate::range::Range;
use crate::size::Size;
use crate::stripes::{Hold, Mode, Stripes};
use reactor::io::{Completion, Io, Tag};
use reactor::memory::{Arena, Pages, Region};
use scsi::storage::{Found, StoreError, Traits};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::{Places, Span};

/// The longest atomic write: what one operation always fits (a 64 KiB span).
pub(crate) const ATOMIC_BYTES_MAX: u32 = 256 << 10;

/// The longest range that is cleared at once, as quickly as one is written.
const CLEAR_AT_ONCE_BYTES: u64 = 256 << 10;

/// The most operations in flight per lane; each belongs to a task of the device server, of which there are
/// fewer.
const PENDING_MAX: usize = 4096;

/// Operations that wait for a long one and are rechecked in one [`Lane::work`].
const RETRIES_MAX: usize = 16;

/// The page, the unit in which memory is released.
const PAGE_BYTES: u32 = 4096;

/// A disk in memory.
pub struct RamStore {
    size: u64,
    region: Arc<Region>,
    granules: Granules,
    stripes: Stripes,
    occupied: Occupied,
    /// Whether reads are sent from the medium's own memory. The kernel copies lent bytes outside our locks,
    /// so such a read can see half of a concurrent write. That is legitimate between unordered simple
    /// commands, but not towards COMPARE AND WRITE, ORWRITE and WRITE ATOMIC, which other initiators must see
    /// whole (SBC-4 4.11, 4.29). From the first of these on, reads are copied under the shared lock instead.
    lends: AtomicBool,
    extents: Extents,
}

/// Opens a store of `size` bytes in memory, all zeros, which takes no more than what is written.
pub fn open(size: u64) -> Result<Arc<RamStore>, OpenError> {
    open_on(size, Pages::Small)
}

/// Like [`open`], on these pages.
pub fn open_on(size: u64, pages: Pages) -> Result<Arc<RamStore>, OpenError> {
    let no_memory = |error| {
        OpenError::new(
            format_args!("ram:{size}"),
            format_args!("cannot reserve {} of memory: {error}", Size(size)),
            "choose a smaller size, or raise the limit (ulimit -v, vm.overcommit_memory)",
        )
    };
    let region = Region::map_on(size, pages).map_err(no_memory)?;
    let stripes = Stripes::new().map_err(no_memory)?;
    let extents = Extents::start().map_err(|error| {
        OpenError::new(
            format_args!("ram:{size}"),
            format_args!("cannot start a thread: {error}"),
            "raise the limit (ulimit -u)",
        )
    })?;
    Ok(Arc::new(RamStore {
        size,
        region,
        granules: Granules::new(size, pages),
        stripes,
        occupied: Occupied::default(),
        lends: AtomicBool::new(true),
        extents,
    }))
}

impl RamStore {
    fn locked<T>(&self, mode: Mode, range: Range, body: impl FnOnce() -> T) -> T {
        let mut hold = Hold::new(mode, range.offset, range.len);
        self.stripes.lock(&mut hold);
        let result = body();
        self.stripes.unlock(&mut hold);
        result
    }

    fn reading<T>(&self, range: Range, body: impl FnOnce(&Region) -> T) -> T {
        self.locked(Mode::Shared, range, || body(&self.region))
    }

    /// `None`: a long operation occupies the range, and nothing was done.
    fn writing<T>(&self, range: Range, body: impl FnOnce(&Region) -> T) -> Option<T> {
        self.locked(Mode::Exclusive, range, || (!self.occupied.overlaps(range)).then(|| body(&self.region)))
    }

    /// Bytes that the system clears for [`RamStore::clear`].
    fn fresh_bytes(&self, range: Range, unmap: bool) -> u64 {
        match unmap {
            true => ends(range).into_iter().map(|end| self.granules.fresh_bytes(end)).sum(),
            false => self.granules.fresh_bytes(range),
        }
    }

    /// Zeroes the range; `unmap`: also frees its memory.
    fn clear(&self, range: Range, unmap: bool) {
        if unmap {
            ends(range).into_iter().for_each(|end| self.granules.note_written(end));
            self.region.release(range.offset, range.len);
            self.granules.note_released(range);
        } else {
            self.granules.note_written(range);
            self.region.fill_zero(range.offset, range.len);
        }
    }

    fn found(&self, mapped: bool, len: u64, offset: u64) -> Found {
        Found::Extent { mapped, len: len.min(self.size - offset) }
    }

    fn stop_lending(&self) {
        if self.lends.load(Ordering::Relaxed) {
            self.lends.store(false, Ordering::Relaxed);
        }
    }

    /// Runs an operation at once, unless it has to wait for a long one. Allocation is left to the thread.
    fn run(&self, arena: &mut Arena, op: &Op, range: Range) -> Option<Outcome> {
        let at = range.offset;
        match *op {
            Op::Read { into, .. } => self.reading(range, |region| region.copy_out(at, arena, &into)),
            Op::Write { from, atomic, .. } => {
                if atomic {
                    self.stop_lending();
                }
                self.writing(range, |region| {
                    self.granules.note_written(range);
                    region.copy_in(at, arena, &from);
                })?;
            }
            Op::Compare { with, .. } => {
                let equal = self.reading(range, |region| equal(region, at, arena, &with));
                return Some(equal.map(|()| Found::Nothing));
            }
            Op::CompareAndWrite { compare, write, .. } => {
                self.stop_lending();
                let equal = self.writing(range, |region| {
                    equal(region, at, arena, &compare).map(|()| {
                        self.granules.note_written(range);
                        region.copy_in(at, arena, &write);
                    })
                })?;
                return Some(equal.map(|()| Found::Nothing));
            }
            Op::OrWrite { from, .. } => {
                self.stop_lending();
                self.writing(range, |region| {
                    self.granules.note_written(range);
                    region.or_in(at, arena, &from);
                })?;
            }
            Op::Zero { unmap, .. } => self.writing(range, |_| self.clear(range, unmap))?,
            Op::Discard { .. } => self.writing(range, |_| self.clear(range, true))?,
            Op::Flush | Op::Extent { .. } => {}
        }
        Some(Ok(Found::Nothing))
    }
}

/// The partial pages at both ends of a range: they are written, while whole pages are released.
fn ends(range: Range) -> [Range; 2] {
    let page = u64::from(PAGE_BYTES);
    let first = (range.offset.next_multiple_of(page) - range.offset).min(range.len);
    let last = (range.end() % page).min(range.len - first);
    [Range { len: first, ..range }, Range { offset: range.end() - last, len: last }]
}

impl Ask for RamStore {
    fn extent(&self, offset: u64) -> Outcome {
        let (mapped, len) = self.region.extent(offset);
        Ok(self.found(mapped, len, offset))
    }
}

fn equal(region: &Region, at: u64, arena: &Arena, with: &Places) -> Result<(), StoreError> {
    region.compare(at, arena, with).map_or(Ok(()), |at| Err(StoreError::Miscompare { at }))
}

impl Store for RamStore {
    fn traits(&self) -> Traits {
        Traits {
            size_bytes: self.size,
            blocks: None,
            discards: true,
            discard_granularity_bytes: PAGE_BYTES,
            atomic_write_bytes_max: ATOMIC_BYTES_MAX,
            compare_write_bytes_max: u32::MAX,
            volatile_cache: false,
            read_only: false,
            solid_state: true,
            cryptographic_erase: false,
            identity: None,
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn space(&self) -> Option<(u64, u64)> {
        let used = self.region.allocated_bytes().min(self.size);
        Some((used, self.size - used))
    }

    fn describe(&self) -> String {
        format!("ram, {}", Size(self.size))
    }
}

impl<I: Io> Backend<I> for RamStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(RamLane {
            store: self,
            tags,
            clears: VecDeque::new(),
            waiting: VecDeque::new(),
            cancelled: Vec::new(),
            questions: Questions::default(),
        })
    }
}

struct RamLane {
    store: Arc<RamStore>,
    /// The first of them is for answers.
    tags: Tag,
    clears: VecDeque<Clear>,
    /// Operations that wait for a long one, of this lane or another.
    waiting: VecDeque<(OpId, Op, Range)>,
    /// Cancelled, but not reported yet.
    cancelled: Vec<OpId>,
    questions: Questions,
}

/// A long Zero or Discard.
struct Clear {
    id: OpId,
    range: Range,
    /// Bytes of it that are done.
    done: u64,
    /// Release the memory.
    unmap: bool,
    /// Its range is occupied.
    occupies: bool,
}

impl Clear {
    /// Clears the next part of this size, once the range is occupied; returns how many bytes were cleared,
    /// including by the system.
    fn step(&mut self, store: &RamStore, bytes: u64) -> u64 {
        self.occupies = self.occupies || store.occupied.take(self.range);
        if !self.occupies {
            return 0;
        }
        let len = (self.range.len - self.done).min(bytes);
        let part = Range { offset: self.range.offset + self.done, len };
        let fresh = store.fresh_bytes(part, self.unmap);
        store.locked(Mode::Exclusive, part, || store.clear(part, self.unmap));
        self.done += len;
        len + fresh
    }

    fn is_done(&self) -> bool {
        self.done == self.range.len
    }

    fn end(self, store: &RamStore) -> OpId {
        if self.occupies {
            store.occupied.give(self.range);
        }
        self.id
    }
}

impl RamLane {
    /// The operation continues in later turns.
    fn defer(&mut self, id: OpId, op: &Op, range: Range) -> Submitted {
        if self.pending() == PENDING_MAX {
            return Submitted::Done(Err(StoreError::Busy));
        }
        match long_clear(op, range) {
            Some(unmap) => {
                let occupies = self.store.occupied.take(range);
                self.clears.push_back(Clear { id, range, done: 0, unmap, occupies });
            }
            None => self.waiting.push_back((id, *op, range)),
        }
        Submitted::Later
    }

    fn pending(&self) -> usize {
        self.clears.len() + self.waiting.len() + self.cancelled.len()
    }
}

/// Whether an operation is a clear that is not done at once, and whether it releases memory.
fn long_clear(op: &Op, range: Range) -> Option<bool> {
    let unmap = match op {
        Op::Zero { unmap, .. } => *unmap,
        Op::Discard { .. } => true,
        Op::Read { .. }
        | Op::Write { .. }
        | Op::Flush
        | Op::CompareAndWrite { .. }
        | Op::OrWrite { .. }
        | Op::Compare { .. }
        | Op::Extent { .. } => return None,
    };
    (range.len > CLEAR_AT_ONCE_BYTES).then_some(unmap)
}

impl<I: Io> Lane<I> for RamLane {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span> {
        let end = offset.checked_add(u64::from(len))?;
        if end > self.store.size || !self.store.lends.load(Ordering::Relaxed) {
            return None;
        }
        self.store.region.prefetch(offset, len);
        self.store.region.span(offset, len)
    }

    fn read_now(&mut self, io: &mut I, offset: u64, into: &Places) -> bool {
        let op = Op::Read { offset, into: *into };
        let Ok(range) = Range::of(&op, self.store.size) else { return false };
        matches!(self.store.run(io.arena(), &op, range), Some(Ok(_)))
    }

    fn write_now(&mut self, io: &mut I, offset: u64, from: Places, may_clear: bool) -> Option<u64> {
        let op = Op::Write { offset, from, durable: false, atomic: false };
        let range = Range::of(&op, self.store.size).ok()?;
        let fresh = self.store.granules.fresh_bytes(range);
        if fresh > 0 && !may_clear {
            return None;
        }
        self.store.run(io.arena(), &op, range)?.ok().map(|_| fresh)
    }

    fn works_at_once(&self) -> bool {
        true
    }

    fn fresh_bytes(&self, op: &Op) -> u64 {
        let unmap = match op {
            Op::Write { .. } | Op::CompareAndWrite { .. } | Op::OrWrite { .. } => false,
            Op::Zero { unmap, .. } => *unmap,
            Op::Discard { .. } => true,
            Op::Read { .. } | Op::Flush | Op::Compare { .. } | Op::Extent { .. } => return 0,
        };
        // A long clear is charged part by part.
        let range = Range::of(op, self.store.size).ok().filter(|range| long_clear(op, *range).is_none());
        range.map_or(0, |range| self.store.fresh_bytes(range, unmap))
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        let range = match Range::of(op, self.store.size) {
            Ok(range) => range,
            Err(error) => return Submitted::Done(Err(error)),
        };
        if let Op::Extent { offset } = *op {
            if let Some((mapped, len)) = io.memory_extent_now(&self.store.region, offset) {
                let outcome = Ok(self.store.found(mapped, len, offset));
                return self.questions.known(io, self.tags, id, outcome);
            }
            let store = self.store.clone();
            return self.questions.ask(io, self.tags, id, &self.store.extents, store, offset);
        }
        if long_clear(op, range).is_none()
            && let Some(outcome) = self.store.run(io.arena(), op, range)
        {
            return Submitted::Done(outcome);
        }
        self.defer(id, op, range)
    }

    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.questions.completed(io, completion.tag, done);
    }

    fn flush(&mut self, _io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        self.questions.flush(done);
        done.extend(self.cancelled.drain(..).map(|id| (id, Err(StoreError::Cancelled))));
        self.pending() > 0
    }

    fn work(&mut self, io: &mut I, bytes: u64, done: &mut Vec<(OpId, Outcome)>) -> u64 {
        let mut worked = 0;
        for _ in 0..self.waiting.len().min(RETRIES_MAX) {
            if worked >= bytes {
                return worked;
            }
            let Some((id, op, range)) = self.waiting.pop_front() else { break };
            let fresh = <Self as Lane<I>>::fresh_bytes(self, &op);
            match self.store.run(io.arena(), &op, range) {
                Some(outcome) => {
                    worked += range.len.max(1) + fresh;
                    done.push((id, outcome));
                }
                None => self.waiting.push_back((id, op, range)),
            }
        }
        for _ in 0..self.clears.len().min(RETRIES_MAX) {
            if worked >= bytes {
                return worked;
            }
            let Some(mut clear) = self.clears.pop_front() else { break };
            worked += clear.step(&self.store, bytes - worked);
            if clear.is_done() {
                done.push((clear.end(&self.store), Ok(Found::Nothing)));
            } else {
                self.clears.push_back(clear);
            }
        }
        worked
    }

    fn cancel(&mut self, _io: &mut I, id: OpId) {
        if let Some(at) = self.clears.iter().position(|clear| clear.id == id) {
            let clear = self.clears.remove(at);
            self.cancelled.extend(clear.map(|clear| clear.end(&self.store)));
        } else if let Some(at) = self.waiting.iter().position(|(waiting, ..)| *waiting == id) {
            self.waiting.remove(at);
            self.cancelled.push(id);
        } else {
            self.questions.cancel(id);
        }
    }

    fn in_flight(&self) -> usize {
        self.pending() + self.questions.open()
    }

    fn close(&mut self, io: &mut I) -> bool {
        self.questions.close(io, self.tags)
    }
}

/// A lane that is dropped with operations in flight releases their ranges.
impl Drop for RamLane {
    fn drop(&mut self) {
        for clear in self.clears.drain(..) {
            clear.end(&self.store);
        }
    }
}
