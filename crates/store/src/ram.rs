//! A store in memory. Memory is taken as it is touched, and given back when ranges are discarded.

use crate::error::OpenError;
use crate::extents::{Ask, Extents, Questions};
use crate::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use crate::range::Range;
use crate::size::Size;
use crate::stripes::{Hold, Mode, Stripes};
use reactor::io::{Completion, Io, Tag};
use reactor::memory::{Arena, Region};
use scsi::storage::{Found, StoreError, Traits};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::Places;

/// The longest atomic write: what one operation surely carries (a 64 KiB span).
pub(crate) const ATOMIC_BYTES_MAX: u32 = 256 << 10;

/// Bytes that are cleared in one turn, so that a long range does not hold up the core's other work.
const CLEAR_STEP_BYTES: u64 = 4 << 20;

/// Long operations waiting per lane; each stands for a task of the device server, which are fewer.
const CLEARS_MAX: usize = 1024;

/// The page, in which memory is given back.
const PAGE_BYTES: u32 = 4096;

/// A disk in memory.
pub struct RamStore {
    size: u64,
    region: Arc<Region>,
    stripes: Stripes,
    /// Whether reads are sent from where they lie. The kernel copies lent bytes outside our locks, so such a read
    /// can see half of a write that runs meanwhile. Between unordered simple commands that is legitimate, but not
    /// towards COMPARE AND WRITE, ORWRITE and WRITE ATOMIC, which other initiators must see whole (SBC-4 4.11,
    /// 4.29). From the first of these on, reads are copied under the shared lock instead.
    lends: AtomicBool,
    extents: Extents,
}

/// Opens a store of `size` bytes in memory, all zeros.
pub fn open(size: u64) -> Result<Arc<RamStore>, OpenError> {
    let region = Region::map(size).map_err(|error| {
        OpenError::new(
            format_args!("ram:{size}"),
            format_args!("cannot reserve {} of memory: {error}", Size(size)),
            "choose a smaller size, or raise the limit (ulimit -v, vm.overcommit_memory)",
        )
    })?;
    let extents = Extents::start().map_err(|error| {
        OpenError::new(
            format_args!("ram:{size}"),
            format_args!("cannot start a thread: {error}"),
            "raise the limit (ulimit -u)",
        )
    })?;
    let lends = AtomicBool::new(true);
    Ok(Arc::new(RamStore { size, region, stripes: Stripes::new(), lends, extents }))
}

impl RamStore {
    fn locked<T>(&self, mode: Mode, range: Range, body: impl FnOnce(&Region) -> T) -> T {
        let mut hold = Hold::new(mode, range.offset, range.len);
        self.stripes.lock(&mut hold);
        let result = body(&self.region);
        self.stripes.unlock(&mut hold);
        result
    }

    fn stop_lending(&self) {
        if self.lends.load(Ordering::Relaxed) {
            self.lends.store(false, Ordering::Relaxed);
        }
    }

    /// Everything but clearing, and what the thread does.
    fn run(&self, arena: &mut Arena, op: &Op, range: Range) -> Outcome {
        let at = range.offset;
        match *op {
            Op::Read { into, .. } => {
                self.locked(Mode::Shared, range, |region| region.copy_out(at, arena, &into))
            }
            Op::Write { from, atomic, .. } => {
                if atomic {
                    self.stop_lending();
                }
                self.locked(Mode::Exclusive, range, |region| region.copy_in(at, arena, &from));
            }
            Op::Compare { with, .. } => {
                self.locked(Mode::Shared, range, |region| equal(region, at, arena, &with))?;
            }
            Op::CompareAndWrite { compare, write, .. } => {
                self.stop_lending();
                self.locked(Mode::Exclusive, range, |region| {
                    equal(region, at, arena, &compare).map(|()| region.copy_in(at, arena, &write))
                })?;
            }
            Op::OrWrite { from, .. } => {
                self.stop_lending();
                self.locked(Mode::Exclusive, range, |region| region.or_in(at, arena, &from));
            }
            Op::Flush | Op::Zero { .. } | Op::Discard { .. } | Op::Extent { .. } => {}
        }
        Ok(Found::Nothing)
    }
}

impl Ask for RamStore {
    fn extent(&self, offset: u64) -> Outcome {
        let (mapped, len) = self.region.extent(offset);
        Ok(Found::Extent { mapped, len: len.min(self.size - offset) })
    }
}

fn equal(region: &Region, at: u64, arena: &Arena, with: &Places) -> Result<(), StoreError> {
    region.compare(at, arena, with).map_or(Ok(()), |at| Err(StoreError::Miscompare { at }))
}

impl Store for RamStore {
    fn traits(&self) -> Traits {
        Traits {
            size_bytes: self.size,
            discards: true,
            discard_granularity_bytes: PAGE_BYTES,
            atomic_write_bytes_max: ATOMIC_BYTES_MAX,
            compare_write_bytes_max: u32::MAX,
            volatile_cache: false,
            read_only: false,
            solid_state: true,
            cryptographic_erase: false,
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        format!("ram, {}", Size(self.size))
    }
}

impl<I: Io> Backend<I> for RamStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(RamLane { store: self, tags, clears: VecDeque::new(), questions: Questions::default() })
    }
}

struct RamLane {
    store: Arc<RamStore>,
    /// The first of them is for answers.
    tags: Tag,
    clears: VecDeque<Clear>,
    questions: Questions,
}

/// A Zero or Discard under way.
struct Clear {
    id: OpId,
    left: Range,
    /// Give the memory back.
    unmap: bool,
}

impl Clear {
    /// Clears the next part; true when all is done.
    fn step(&mut self, store: &RamStore) -> bool {
        let part = Range { offset: self.left.offset, len: self.left.len.min(CLEAR_STEP_BYTES) };
        store.locked(Mode::Exclusive, part, |region| {
            if self.unmap {
                region.release(part.offset, part.len);
            } else {
                region.fill_zero(part.offset, part.len);
            }
        });
        self.left = Range { offset: part.offset + part.len, len: self.left.len - part.len };
        self.left.len == 0
    }
}

impl RamLane {
    fn clear(&mut self, id: OpId, left: Range, unmap: bool) -> Submitted {
        let mut clear = Clear { id, left, unmap };
        if clear.step(&self.store) {
            return Submitted::Done(Ok(Found::Nothing));
        }
        if self.clears.len() == CLEARS_MAX {
            return Submitted::Done(Err(StoreError::Busy));
        }
        self.clears.push_back(clear);
        Submitted::Later
    }
}

impl<I: Io> Lane<I> for RamLane {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Places> {
        let end = offset.checked_add(u64::from(len))?;
        if end > self.store.size || !self.store.lends.load(Ordering::Relaxed) {
            return None;
        }
        self.store.region.prefetch(offset, len);
        self.store.region.span(offset, len).map(Places::one)
    }

    fn put(&mut self, io: &mut I, offset: u64, from: Places) -> bool {
        let op = Op::Write { offset, from, durable: false, atomic: false };
        let range = Range::of(&op, self.store.size);
        range.is_ok_and(|range| self.store.run(io.arena(), &op, range).is_ok())
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        let range = match Range::of(op, self.store.size) {
            Ok(range) => range,
            Err(error) => return Submitted::Done(Err(error)),
        };
        match *op {
            Op::Zero { unmap, .. } => self.clear(id, range, unmap),
            Op::Discard { .. } => self.clear(id, range, true),
            Op::Extent { offset } => {
                let store = self.store.clone();
                self.questions.ask(io, self.tags, id, &self.store.extents, store, offset)
            }
            _ => Submitted::Done(self.store.run(io.arena(), op, range)),
        }
    }

    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.questions.completed(io, completion.tag, done);
    }

    fn cancel(&mut self, _io: &mut I, id: OpId) {
        self.questions.cancel(id);
    }

    fn flush(&mut self, _io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        self.questions.flush(done);
        if let Some(clear) = self.clears.front_mut()
            && clear.step(&self.store)
        {
            done.push((clear.id, Ok(Found::Nothing)));
            self.clears.pop_front();
        }
        !self.clears.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.clears.len() + self.questions.open()
    }
}
