//! The vocabulary of storage: operations of a store, and how they fail.

use std::fmt;

/// Longest piece of a task's data that is buffered at a time, in bytes: the size of the task's buffer.
pub const CHUNK_BYTES: u32 = 256 * 1024;

/// An operation on a unit's medium. Offsets and lengths are bytes, always whole logical blocks inside the capacity.
/// `buffer` is the offset in the task's buffer where the operation's data starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediaOp {
    /// Medium to buffer.
    Read {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Buffer offset.
        buffer: u32,
    },
    /// Buffer to medium.
    Write {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Buffer offset.
        buffer: u32,
        /// Durable before it completes (FUA, or the write cache is off).
        durable: bool,
        /// All or nothing, with respect to other commands and power loss (WRITE ATOMIC).
        atomic: bool,
    },
    /// Everything written so far becomes durable.
    Flush,
    /// The range reads as zeros afterwards. `unmap`: the space may be freed; otherwise it stays allocated.
    Zero {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Deallocate the space where the store can.
        unmap: bool,
        /// Durable before it completes.
        durable: bool,
    },
    /// A hint that the range is no longer needed: it reads as zeros afterwards (LBPRZ = 1), unless the store
    /// turns out not to deallocate space; then nothing is written, and [`Traits::discards`] is false from
    /// then on.
    Discard {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Atomically: compares `len` bytes of the medium with the buffer at `buffer`, and if they are equal writes the
    /// `len` bytes that follow in the buffer. Otherwise [`StoreError::Miscompare`].
    CompareAndWrite {
        /// First byte on the medium.
        offset: u64,
        /// Bytes compared, and bytes written.
        len: u32,
        /// Buffer offset of the compared bytes; the written ones follow them.
        buffer: u32,
        /// Durable before it completes.
        durable: bool,
    },
    /// Atomically: the medium becomes medium OR buffer.
    OrWrite {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Buffer offset.
        buffer: u32,
        /// Durable before it completes.
        durable: bool,
    },
    /// Compares the medium with the buffer: [`StoreError::Miscompare`] when they differ.
    Compare {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Buffer offset.
        buffer: u32,
    },
    /// Queries whether the range that starts at `offset` is mapped, and how far the same answer applies
    /// ([`Found::Extent`]).
    Extent {
        /// First byte on the medium.
        offset: u64,
    },
}

impl MediaOp {
    /// The same, durable before it finishes, where it can be.
    pub(crate) fn durable(mut self) -> MediaOp {
        match &mut self {
            MediaOp::Write { durable, .. }
            | MediaOp::Zero { durable, .. }
            | MediaOp::CompareAndWrite { durable, .. }
            | MediaOp::OrWrite { durable, .. } => *durable = true,
            MediaOp::Read { .. }
            | MediaOp::Flush
            | MediaOp::Discard { .. }
            | MediaOp::Compare { .. }
            | MediaOp::Extent { .. } => {}
        }
        self
    }

    /// Whether its changes may be lost until a flush.
    pub(crate) fn is_cached(&self) -> bool {
        match self {
            MediaOp::Write { durable, .. }
            | MediaOp::Zero { durable, .. }
            | MediaOp::CompareAndWrite { durable, .. }
            | MediaOp::OrWrite { durable, .. } => !durable,
            MediaOp::Discard { .. } => true,
            MediaOp::Read { .. } | MediaOp::Flush | MediaOp::Compare { .. } | MediaOp::Extent { .. } => false,
        }
    }
}

/// The result of a finished operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing to report.
    Nothing,
    /// Answer to [`MediaOp::Extent`].
    Extent {
        /// Whether space is allocated.
        mapped: bool,
        /// Bytes from the queried offset on for which this applies (at least one).
        len: u64,
    },
}

/// How a store fails. One table in `scsi::sense` maps each to sense key, ASC and ASCQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// The compared bytes differ, first at this byte of the compared range.
    Miscompare {
        /// Bytes from the start of the compared range.
        at: u32,
    },
    /// The range is not inside the store (it shrank meanwhile).
    OutOfRange,
    /// No space left to allocate.
    NoSpace,
    /// The medium could not be read at this byte.
    ReadFailed {
        /// First byte that failed, on the medium.
        at: u64,
    },
    /// The medium could not be written.
    WriteFailed,
    /// Acknowledged writes may be lost.
    Lost,
    /// The store cannot do this operation.
    Unsupported,
    /// The store is read-only.
    ReadOnly,
    /// The store is gone or never opened; the unit is not ready.
    Unavailable,
    /// The operation was cancelled before it began.
    Cancelled,
    /// The store is out of a resource for now (memory, queue space).
    Busy,
    /// Another initiator has reserved the store.
    Reserved,
    /// Not from a store: since the command began, its target port group has left the states in which it may
    /// access the medium.
    Deactivated,
}

/// What is wrong, after the store's name.
impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreError::Miscompare { .. } => "the data differs",
            StoreError::OutOfRange => "it has become smaller",
            StoreError::NoSpace => "no space is left",
            StoreError::ReadFailed { .. } | StoreError::WriteFailed => "the medium fails",
            StoreError::Lost => "it has lost writes",
            StoreError::Unsupported => "it does not support this operation",
            StoreError::ReadOnly => "it is write-protected",
            StoreError::Unavailable => "it is lost or not ready",
            StoreError::Cancelled => "the operation was cancelled",
            StoreError::Busy => "it is out of resources",
            StoreError::Reserved => "another initiator has reserved it",
            StoreError::Deactivated => "this port no longer accesses it",
        })
    }
}

/// Block sizes of a store that has its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    /// Logical, in bytes.
    pub logical_bytes: u32,
    /// Physical, in bytes; at least as many.
    pub physical_bytes: u32,
}

/// The names of a medium that has its own, whatever serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Serial number: printable ASCII characters.
    pub serial: [u8; 16],
    /// NAA identifier.
    pub naa: [u8; 16],
    /// EUI-64 based identifier.
    pub eui: [u8; 8],
}

/// The abilities and limits of a store; the limits behind VPD pages B0h and B2h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Fixed block sizes, whatever the unit is configured with.
    pub blocks: Option<BlockSizes>,
    /// Whether discarding deallocates space.
    pub discards: bool,
    /// Discard and zero granularity in bytes.
    pub discard_granularity_bytes: u32,
    /// The longest write that is all-or-nothing, in bytes; 0: none.
    pub atomic_write_bytes_max: u32,
    /// The longest COMPARE AND WRITE that it can do, in bytes compared; 0: none.
    pub compare_write_bytes_max: u32,
    /// Whether writes can be lost at power failure until flushed.
    pub volatile_cache: bool,
    /// Whether the store refuses writes.
    pub read_only: bool,
    /// Whether the medium does not rotate.
    pub solid_state: bool,
    /// Whether all data can be made unreadable at once by discarding a key.
    pub cryptographic_erase: bool,
    /// Fixed names of its unit, whatever that is configured with.
    pub identity: Option<Identity>,
}

impl Traits {
    /// The traits of a store that has never opened. Its abilities are unknown: COMPARE AND WRITE, on which
    /// clusters rely, ends with NOT READY like everything else, rather than being unsupported.
    pub const NONE: Traits = Traits {
        size_bytes: 0,
        blocks: None,
        discards: false,
        discard_granularity_bytes: 0,
        atomic_write_bytes_max: 0,
        compare_write_bytes_max: u32::MAX,
        volatile_cache: false,
        read_only: false,
        solid_state: false,
        cryptographic_erase: false,
        identity: None,
    };
}
