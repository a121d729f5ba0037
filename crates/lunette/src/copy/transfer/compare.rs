//! Compares two media byte by byte.

use super::ends::{Ends, Finished, Side};
use super::{CopyError, End, Options, Progress, Watch};
use scsi::storage::StoreError;
use std::io;
use store::lane::{Op, OpId};
use wire::Places;

/// Reads all of `first` and as much of `second`; returns the first byte that differs.
///
/// # Errors
/// When one cannot be read, or the watcher ends it.
pub(in crate::copy) fn compare(
    first: &End,
    second: &End,
    options: Options,
    watch: Watch<'_>,
) -> Result<Option<u64>, CopyError> {
    let mut compare = Compare::new(first, second, options).map_err(CopyError::Setup)?;
    while compare.proceed() {
        compare.ends.turn();
        while let Some(finished) = compare.ends.finished.pop_front() {
            compare.settle(&finished);
        }
        if watch(Progress { total: compare.total, done: compare.done, written: 0 }).is_break() {
            compare.failed.get_or_insert(CopyError::Stopped);
        }
    }
    compare.failed.map_or(Ok(compare.differs), Err)
}

struct Compare {
    ends: Ends,
    slots: Vec<Slot>,
    idle: Vec<u32>,
    /// The unit of reads of the second end.
    block_bytes: u32,
    piece_bytes: u32,
    next: u64,
    total: u64,
    done: u64,
    /// The lowest offset known to differ. Pieces before it were all begun earlier.
    differs: Option<u64>,
    failed: Option<CopyError>,
}

struct Slot {
    first: Places,
    second: Places,
    at: u64,
    len: u32,
    /// Reads in progress.
    owed: u8,
}

impl Compare {
    fn new(first: &End, second: &End, options: Options) -> io::Result<Compare> {
        let Options { pieces, piece_bytes, .. } = options;
        let mut ends = Ends::new(first, second, 2 * pieces, piece_bytes)?;
        let mut slot = || {
            let (first, second) = (ends.take(piece_bytes)?, ends.take(piece_bytes)?);
            Some(Slot { first, second, at: 0, len: 0, owed: 0 })
        };
        let slots: Option<Vec<Slot>> = (0..pieces).map(|_| slot()).collect();
        Ok(Compare {
            slots: slots.ok_or(io::ErrorKind::OutOfMemory)?,
            idle: (0..pieces).rev().collect(),
            ends,
            block_bytes: second.block_bytes,
            piece_bytes,
            next: 0,
            total: first.store.traits().size_bytes,
            done: 0,
            differs: None,
            failed: None,
        })
    }

    /// Starts what can be started. False: everything is done.
    fn proceed(&mut self) -> bool {
        while self.failed.is_none()
            && self.differs.is_none()
            && self.next < self.total
            && let Some(index) = self.idle.pop()
        {
            let at = self.next;
            let len = (self.total - at).min(u64::from(self.piece_bytes)) as u32;
            self.next += u64::from(len);
            let slot = &mut self.slots[index as usize];
            (slot.at, slot.len, slot.owed) = (at, len, 2);
            let first = slot.first.slice(0, len);
            let second = slot.second.slice(0, len.next_multiple_of(self.block_bytes));
            self.ends.submit(Side::From, OpId(index), &Op::Read { offset: at, into: first });
            self.ends.submit(Side::To, OpId(index), &Op::Read { offset: at, into: second });
        }
        self.idle.len() < self.slots.len()
    }

    fn settle(&mut self, finished: &Finished) {
        let OpId(index) = finished.id;
        let slot = &mut self.slots[index as usize];
        slot.owed -= 1;
        let owed = slot.owed;
        let (at, len) = (slot.at, slot.len);
        if let Err(error) = finished.outcome {
            self.failed.get_or_insert(failure(finished.side, at, error));
        }
        if owed > 0 {
            return;
        }
        self.idle.push(index);
        if self.failed.is_some() {
            return;
        }
        let Slot { first, second, .. } = &self.slots[index as usize];
        match self.ends.difference(first, second, len) {
            Some(byte) => {
                let here = at + u64::from(byte);
                self.differs = Some(self.differs.map_or(here, |before| before.min(here)));
            }
            None => self.done += u64::from(len),
        }
    }
}

fn failure(side: Side, at: u64, error: StoreError) -> CopyError {
    match side {
        Side::From => CopyError::Read(at, error),
        Side::To => CopyError::ReadBack(at, error),
    }
}
