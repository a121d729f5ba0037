//! The bytes of the medium that an operation accesses.

use crate::lane::Op;
use scsi::storage::StoreError;

/// A range of bytes that is known to be inside a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

impl Range {
    /// Where it ends.
    pub fn end(self) -> u64 {
        self.offset + self.len
    }

    pub(crate) fn overlaps(self, other: Range) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    /// The range of an operation on a store of `size` bytes. A compare-and-write whose two halves differ in
    /// length is invalid.
    pub(crate) fn of(op: &Op, size: u64) -> Result<Range, StoreError> {
        let (offset, len) = match *op {
            Op::Read { offset, into } => (offset, u64::from(into.len())),
            Op::Write { offset, from, .. } | Op::OrWrite { offset, from, .. } => {
                (offset, u64::from(from.len()))
            }
            Op::Compare { offset, with } => (offset, u64::from(with.len())),
            Op::CompareAndWrite { offset, compare, write, .. } => {
                if compare.len() != write.len() {
                    return Err(StoreError::Unsupported);
                }
                (offset, u64::from(compare.len()))
            }
            Op::Zero { offset, len, .. } | Op::Discard { offset, len } => (offset, len),
            Op::Extent { offset } => (offset, 1),
            Op::Flush => (0, 0),
        };
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(Range { offset, len }),
            _ => Err(StoreError::OutOfRange),
        }
    }
}

/// Whether an operation may change the medium.
pub(crate) fn writes(op: &Op) -> bool {
    match op {
        Op::Write { .. }
        | Op::Zero { .. }
        | Op::Discard { .. }
        | Op::CompareAndWrite { .. }
        | Op::OrWrite { .. } => true,
        Op::Read { .. } | Op::Flush | Op::Compare { .. } | Op::Extent { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{BufferId, Places, Span};

    #[test]
    fn ranges_at_the_edges_of_u64() {
        let places = Places::one(Span { buffer: BufferId(0), len: 512, offset: 0 });
        let read = |offset| Op::Read { offset, into: places };
        assert_eq!(Range::of(&read(512), 1024), Ok(Range { offset: 512, len: 512 }));
        for offset in [513, 1024, u64::MAX - 511, u64::MAX] {
            assert_eq!(Range::of(&read(offset), 1024), Err(StoreError::OutOfRange));
        }
        assert_eq!(Range::of(&read(u64::MAX - 512), u64::MAX).map(|range| range.len), Ok(512));
        let zero = |offset, len| Op::Zero { offset, len, unmap: true, durable: false };
        assert!(Range::of(&zero(0, u64::MAX), u64::MAX).is_ok());
        assert_eq!(Range::of(&zero(1, u64::MAX), u64::MAX), Err(StoreError::OutOfRange));
        assert_eq!(Range::of(&Op::Extent { offset: 1024 }, 1024), Err(StoreError::OutOfRange));
    }

    #[test]
    fn both_halves_of_a_compare_and_write_are_as_long() {
        let span = |len| Places::one(Span { buffer: BufferId(0), len, offset: 0 });
        let op = Op::CompareAndWrite { offset: 0, compare: span(512), write: span(1024), durable: false };
        assert_eq!(Range::of(&op, 4096), Err(StoreError::Unsupported));
    }
}
