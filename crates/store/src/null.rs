//! A store that reads as zeros and forgets what is written.

use crate::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use crate::range::Range;
use crate::size::Size;
use crate::zeros::Zeros;
use reactor::io::{Completion, Io, Tag};
use reactor::memory::Arena;
use scsi::storage::{Found, StoreError, Traits};
use std::sync::Arc;
use wire::{Places, Span};

/// Zeros, without memory or device behind them.
pub struct NullStore {
    size: u64,
    zeros: Zeros,
}

/// The longest atomic write: nothing is stored, so nothing can tear; the limit is that of memory.
const ATOMIC_BYTES_MAX: u32 = crate::ram::ATOMIC_BYTES_MAX;

/// Opens a null store of `size` bytes.
pub fn open(size: u64) -> Arc<NullStore> {
    Arc::new(NullStore { size, zeros: Zeros::get() })
}

impl Store for NullStore {
    fn traits(&self) -> Traits {
        Traits {
            size_bytes: self.size,
            blocks: None,
            discards: true,
            discard_granularity_bytes: 1,
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

    fn describe(&self) -> String {
        format!("null, {}", Size(self.size))
    }
}

impl<I: Io> Backend<I> for NullStore {
    fn lane(self: Arc<Self>, _tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(NullLane { store: self })
    }
}

struct NullLane {
    store: Arc<NullStore>,
}

impl NullLane {
    fn run(&self, arena: &mut Arena, op: &Op) -> Outcome {
        let range = Range::of(op, self.store.size)?;
        match *op {
            Op::Read { into, .. } => self.store.zeros.copy_to(arena, &into),
            Op::Compare { with, .. } => self.compare(arena, &with)?,
            Op::CompareAndWrite { compare, .. } => self.compare(arena, &compare)?,
            Op::Extent { .. } => {
                return Ok(Found::Extent { mapped: false, len: self.store.size - range.offset });
            }
            Op::Write { .. } | Op::Flush | Op::Zero { .. } | Op::Discard { .. } | Op::OrWrite { .. } => {}
        }
        Ok(Found::Nothing)
    }

    fn compare(&self, arena: &Arena, with: &Places) -> Result<(), StoreError> {
        self.store.zeros.compare(arena, with).map_or(Ok(()), |at| Err(StoreError::Miscompare { at }))
    }
}

impl<I: Io> Lane<I> for NullLane {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span> {
        let end = offset.checked_add(u64::from(len))?;
        if end > self.store.size {
            return None;
        }
        self.store.zeros.span(len)
    }

    fn write_now(&mut self, io: &mut I, offset: u64, from: Places, _may_clear: bool) -> Option<u64> {
        let written = self.run(io.arena(), &Op::Write { offset, from, durable: false, atomic: false });
        written.ok().map(|_| 0)
    }

    fn works_at_once(&self) -> bool {
        true
    }

    fn submit(&mut self, io: &mut I, _id: OpId, op: &Op) -> Submitted {
        Submitted::Done(self.run(io.arena(), op))
    }

    fn completed(&mut self, _io: &mut I, _completion: Completion, _done: &mut Vec<(OpId, Outcome)>) {}

    fn flush(&mut self, _io: &mut I, _done: &mut Vec<(OpId, Outcome)>) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        0
    }
}
