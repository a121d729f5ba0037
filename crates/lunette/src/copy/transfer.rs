//! Copies one medium onto another, and compares two: any store with any store, with many operations in flight on both
//! sides at once. Pieces are read and written in no particular order.

mod compare;
mod ends;
mod scan;

pub(super) use compare::compare;

use ends::{Ends, Finished, Side};
use reactor::uring::Uring;
use scan::{Piece, Scan};
use scsi::storage::{Found, StoreError};
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use store::lane::{Backend, Op, OpId, Outcome};
use wire::Places;

/// The longest operation with data.
pub(super) const PIECE_BYTES_MAX: u32 = reactor::memory::LARGE_BYTES * Places::MAX as u32;
/// The most operations in flight.
pub(super) const PIECES_MAX: u32 = 4096;
/// The granularity at which zeros are detected in data: large enough to be worth a separate operation.
const SKIPPED_BYTES: u32 = 4 << 10;
const CLEARED_BYTES: u32 = 64 << 10;
/// Operations that do not belong to a piece.
const EXTENT: OpId = OpId(u32::MAX);
const FLUSH: OpId = OpId(u32::MAX - 1);

/// A medium that is read or written.
#[derive(Clone)]
pub(super) struct End {
    /// The store.
    pub(super) store: Arc<dyn Backend<Uring>>,
    /// Operations are whole multiples of this: a power of two up to 64 KiB.
    pub(super) block_bytes: u32,
    /// What is unmapped reads as zeros.
    pub(super) holes_read_zeros: bool,
    /// All of it reads as zeros at the start.
    pub(super) is_blank: bool,
}

/// How media are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Options {
    /// Bytes of one operation: a multiple of both block sizes, up to [`PIECE_BYTES_MAX`].
    pub(super) piece_bytes: u32,
    /// Operations in flight, up to [`PIECES_MAX`].
    pub(super) pieces: u32,
    /// Unmapped or zero ranges are not written, but skipped or unmapped.
    pub(super) sparse: bool,
}

/// Progress, in bytes of the source.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Progress {
    /// The total.
    pub(super) total: u64,
    /// Done.
    pub(super) done: u64,
    /// Of these: written as data.
    pub(super) written: u64,
}

/// Called after every turn; may end the copy.
pub(super) type Watch<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Why a copy or a comparison ended early.
#[derive(Debug)]
pub(super) enum CopyError {
    /// No ring or no memory.
    Setup(io::Error),
    /// The first end cannot be read from this byte on.
    Read(u64, StoreError),
    /// The second end cannot be read from this byte on.
    ReadBack(u64, StoreError),
    /// The second end cannot be written from this byte on.
    Write(u64, StoreError),
    /// What was written cannot be made durable.
    Flush(StoreError),
    /// The watcher ended it.
    Stopped,
}

/// Copies all of `from` to the beginning of `to`, which is as large at least, and makes it durable.
///
/// # Errors
/// See [`CopyError`]; the second end is then written in part.
pub(super) fn copy(from: &End, to: &End, options: Options, watch: Watch<'_>) -> Result<Progress, CopyError> {
    let mut copy = Copy::new(from, to, options).map_err(CopyError::Setup)?;
    while copy.proceed() {
        copy.ends.turn();
        while let Some(finished) = copy.ends.finished.pop_front() {
            copy.settle(finished);
        }
        if watch(copy.progress()).is_break() {
            copy.end(CopyError::Stopped);
        }
    }
    copy.failed.map_or(Ok(Progress { total: copy.total, done: copy.done, written: copy.written }), Err)
}

struct Copy<'a> {
    to: &'a End,
    options: Options,
    ends: Ends,
    scan: Scan,
    slots: Vec<Slot>,
    idle: Vec<u32>,
    total: u64,
    done: u64,
    written: u64,
    flush: Flush,
    failed: Option<CopyError>,
}

/// The state of one piece.
struct Slot {
    places: Places,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Idle,
    /// `len` bytes from `at` on are being read.
    Reading {
        at: u64,
        len: u32,
    },
    /// They are being written; at the moment, `from..to` of them.
    Writing {
        at: u64,
        len: u32,
        from: u32,
        to: u32,
    },
    /// A range without data is being cleared.
    Clearing {
        at: u64,
        len: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    Owed,
    UnderWay,
    Done,
}

impl<'a> Copy<'a> {
    fn new(from: &'a End, to: &'a End, options: Options) -> io::Result<Copy<'a>> {
        let mut ends = Ends::new(from, to, options.pieces, options.piece_bytes)?;
        let slots: Option<Vec<Slot>> = (0..options.pieces)
            .map(|_| Some(Slot { places: ends.take(options.piece_bytes)?, state: State::Idle }))
            .collect();
        let total = from.store.traits().size_bytes;
        let unit = from.block_bytes.max(to.block_bytes);
        let extents = options.sparse && from.holes_read_zeros;
        Ok(Copy {
            to,
            options,
            ends,
            scan: Scan::new(total, unit, options.piece_bytes, extents),
            slots: slots.ok_or(io::ErrorKind::OutOfMemory)?,
            idle: (0..options.pieces).rev().collect(),
            total,
            done: 0,
            written: 0,
            flush: Flush::Owed,
            failed: None,
        })
    }

    fn progress(&self) -> Progress {
        Progress { total: self.total, done: self.done, written: self.written }
    }

    fn end(&mut self, error: CopyError) {
        self.failed.get_or_insert(error);
    }

    /// Starts what can be started. False: everything is done, or the copy was abandoned and nothing is in
    /// flight any more.
    fn proceed(&mut self) -> bool {
        while self.failed.is_none()
            && let Some(slot) = self.idle.pop()
        {
            match self.scan.next() {
                Piece::Data { at, len } => self.read(slot, at, len),
                Piece::Hole { at: _, len } if self.to.is_blank => {
                    self.done += len;
                    self.idle.push(slot);
                }
                Piece::Hole { at, len } => self.clear(slot, at, len),
                Piece::Ask { at } => {
                    self.idle.push(slot);
                    self.ends.submit(Side::From, EXTENT, &Op::Extent { offset: at });
                }
                Piece::Wait | Piece::End => {
                    self.idle.push(slot);
                    break;
                }
            }
        }
        let is_at_rest = self.idle.len() == self.slots.len() && !self.ends.is_busy();
        match self.flush {
            _ if !is_at_rest => true,
            Flush::Owed if self.failed.is_none() => {
                self.flush = Flush::UnderWay;
                self.ends.submit(Side::To, FLUSH, &Op::Flush);
                true
            }
            Flush::Owed | Flush::UnderWay | Flush::Done => false,
        }
    }

    fn read(&mut self, slot: u32, at: u64, len: u32) {
        let Slot { places, state } = &mut self.slots[slot as usize];
        *state = State::Reading { at, len };
        let into = places.slice(0, len);
        self.ends.submit(Side::From, OpId(slot), &Op::Read { offset: at, into });
    }

    fn clear(&mut self, slot: u32, at: u64, len: u64) {
        self.slots[slot as usize].state = State::Clearing { at, len };
        let unmap = self.to.store.traits().discards;
        self.ends.submit(Side::To, OpId(slot), &Op::Zero { offset: at, len, unmap, durable: false });
    }

    fn settle(&mut self, Finished { side, id, outcome }: Finished) {
        match id {
            EXTENT => self.extent_found(outcome),
            FLUSH => {
                self.flush = Flush::Done;
                let outcome = match outcome {
                    Ok(_) if self.ends.losses() > 0 => Err(StoreError::WriteFailed),
                    _ => outcome,
                };
                if let Err(error) = outcome {
                    self.end(CopyError::Flush(error));
                }
            }
            OpId(slot) => {
                let step = match outcome {
                    Ok(_) if self.failed.is_none() => self.step(slot),
                    Ok(_) => false,
                    Err(error) => {
                        let at = self.slots[slot as usize].state.place();
                        self.end(match side {
                            Side::From => CopyError::Read(at, error),
                            Side::To => CopyError::Write(at, error),
                        });
                        false
                    }
                };
                if !step {
                    self.slots[slot as usize].state = State::Idle;
                    self.idle.push(slot);
                }
            }
        }
    }

    /// A source that does not report extents is read as a whole.
    fn extent_found(&mut self, outcome: Outcome) {
        match outcome {
            Ok(Found::Extent { mapped, len }) => self.scan.record(mapped, len),
            Ok(Found::Nothing) | Err(_) => self.scan.without_extents(),
        }
    }

    /// An operation of a piece succeeded; true: another one is in progress.
    fn step(&mut self, slot: u32) -> bool {
        match self.slots[slot as usize].state {
            State::Idle => unreachable!("an idle piece has no operation"),
            State::Clearing { len, .. } => {
                self.done += len;
                false
            }
            State::Reading { at, len } => {
                // The end of the source may not be a whole block of the destination.
                let whole = len.next_multiple_of(self.to.block_bytes);
                let tail = self.slots[slot as usize].places.slice(len, whole - len);
                self.ends.fill_zeros(&tail);
                self.write(slot, at, len, 0)
            }
            State::Writing { at, len, from, to } => {
                debug_assert!(from < to);
                self.write(slot, at, len, to)
            }
        }
    }

    /// Writes the next run of data or zeros of a piece, from this byte of it on.
    fn write(&mut self, slot: u32, at: u64, len: u32, mut from: u32) -> bool {
        let whole = len.next_multiple_of(self.to.block_bytes);
        while from < whole {
            let places = self.slots[slot as usize].places.slice(0, whole);
            let (is_zero, to) = self.run(&places, from);
            let (offset, run) = (at + u64::from(from), to - from);
            let op = match is_zero {
                true if self.to.is_blank => {
                    from = to;
                    continue;
                }
                true => {
                    let unmap = self.to.store.traits().discards;
                    Op::Zero { offset, len: run.into(), unmap, durable: false }
                }
                false => {
                    self.written += u64::from(run.min(len.saturating_sub(from)));
                    Op::Write { offset, from: places.slice(from, run), durable: false, atomic: false }
                }
            };
            self.slots[slot as usize].state = State::Writing { at, len, from, to };
            self.ends.submit(Side::To, OpId(slot), &op);
            return true;
        }
        self.done += u64::from(len);
        false
    }

    /// Whether zeros or data begin here, and where that ends.
    fn run(&mut self, places: &Places, from: u32) -> (bool, u32) {
        let whole = places.len();
        if !self.options.sparse {
            return (false, whole);
        }
        let least = if self.to.is_blank { SKIPPED_BYTES } else { CLEARED_BYTES };
        let granule = least.max(self.to.block_bytes);
        let mut is_zero = |at: u32| self.ends.is_zero(&places.slice(at, granule));
        let first = is_zero(from);
        let mut to = from.saturating_add(granule).min(whole);
        while to < whole && is_zero(to) == first {
            to = to.saturating_add(granule).min(whole);
        }
        (first, to)
    }
}

impl State {
    /// Where on the medium the operation in progress began.
    fn place(self) -> u64 {
        match self {
            State::Idle => 0,
            State::Reading { at, .. } | State::Clearing { at, .. } => at,
            State::Writing { at, from, .. } => at + u64::from(from),
        }
    }
}

/// What happened, after the medium's name: `cannot be read at byte 4096: ...`.
impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Setup(error) => write!(f, "no io_uring or memory available: {error}"),
            CopyError::Read(at, error) => read_failed(f, *at, *error),
            CopyError::ReadBack(at, error) => read_failed(f, *at, *error),
            CopyError::Write(at, error) => write!(f, "cannot be written at byte {at}: {}", error),
            CopyError::Flush(error) => write!(f, "cannot make the data durable: {}", error),
            CopyError::Stopped => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for CopyError {}

fn read_failed(f: &mut fmt::Formatter<'_>, at: u64, error: StoreError) -> fmt::Result {
    let at = if let StoreError::ReadFailed { at } = error { at } else { at };
    write!(f, "cannot be read at byte {at}: {}", error)
}

#[cfg(test)]
mod tests;
