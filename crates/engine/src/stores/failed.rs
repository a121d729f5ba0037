//! The lane of a store that did not open.

use reactor::io::{Completion, Io};
use scsi::storage::StoreError;
use store::lane::{Lane, Op, OpId, Outcome, Submitted};
use wire::Span;

/// Refuses every operation: the unit exists, but is not ready.
pub(super) struct FailedLane;

impl<I: Io> Lane<I> for FailedLane {
    fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
        None
    }

    fn submit(&mut self, _io: &mut I, _id: OpId, _op: &Op) -> Submitted {
        Submitted::Done(Err(StoreError::Unavailable))
    }

    fn completed(&mut self, _io: &mut I, _completion: Completion, _done: &mut Vec<(OpId, Outcome)>) {}

    fn flush(&mut self, _io: &mut I, _done: &mut Vec<(OpId, Outcome)>) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        0
    }
}
