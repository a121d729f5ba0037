//! Commands that read and write the medium.

pub(crate) mod atomic;
pub(crate) mod compare;
pub(crate) mod same;
pub(crate) mod sync;
pub(crate) mod transfer;
pub(crate) mod unmap;

use crate::commands::step::{Env, Step};
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::CHUNK_BYTES;
use crate::vocabulary::storage::StoreError;

/// The ending of a command whose storage operation failed.
pub(crate) fn failed(env: &Env<'_>, error: StoreError) -> Step {
    Step::End(Check::from_store(error, env.view.policy.block_bytes).ending(&env.view.policy.modes))
}

/// The ending of a command that cannot continue.
pub(crate) fn refused(env: &Env<'_>, failure: impl Into<Failure>) -> Step {
    Step::End(failure.into().ending(&env.view.policy.modes))
}

/// An event that does not match the step before it: the core violated its contract.
pub(crate) fn unexpected(env: &Env<'_>) -> Step {
    refused(env, Check::INTERNAL)
}

/// Data-out that is transferred chunk by chunk: its length and progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    /// First byte on the medium.
    offset: u64,
    /// Bytes done.
    done: u32,
    /// Bytes to do: what the CDB requests and the initiator is ready to transfer, in whole blocks.
    len: u32,
    /// Bytes at a time.
    step: u32,
}

/// The next part of the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    /// First byte on the medium.
    pub(crate) offset: u64,
    /// Offset in the data-in or data-out.
    pub(crate) at: u32,
    /// Bytes.
    pub(crate) len: u32,
}

impl Chunks {
    pub(crate) fn new(offset: u64, len: u32) -> Chunks {
        Chunks { offset, done: 0, len, step: CHUNK_BYTES }
    }

    /// The current chunk; `None`: all is done.
    pub(crate) fn current(&self) -> Option<Chunk> {
        let len = self.len.saturating_sub(self.done).min(self.step);
        (len > 0).then(|| Chunk {
            offset: self.offset.saturating_add(u64::from(self.done)),
            at: self.done,
            len,
        })
    }

    /// The current chunk is done.
    pub(crate) fn advance(&mut self) {
        self.done = self.done.saturating_add(self.step).min(self.len);
    }

    /// Chunks of at most `bytes` from now on.
    pub(crate) fn limit(&mut self, bytes: u32) {
        self.step = bytes.min(CHUNK_BYTES);
    }

    /// Bytes of task buffer that the longest chunk needs.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.len.min(CHUNK_BYTES)
    }
}

/// GOOD for a program that consumes `total` bytes.
pub(crate) fn taken(total: u32) -> Step {
    Step::End(Ending::taken(u64::from(total)))
}

/// A failure in a chunk, relative to the whole data-out: the offset of a miscompare counts from its start.
pub(crate) fn moved(error: StoreError, by: u32) -> StoreError {
    match error {
        StoreError::Miscompare { at } => StoreError::Miscompare { at: at.saturating_add(by) },
        StoreError::OutOfRange
        | StoreError::NoSpace
        | StoreError::ReadFailed { .. }
        | StoreError::WriteFailed
        | StoreError::Lost
        | StoreError::Unsupported
        | StoreError::ReadOnly
        | StoreError::Unavailable
        | StoreError::Cancelled
        | StoreError::Busy
        | StoreError::Reserved
        | StoreError::Deactivated => error,
    }
}
