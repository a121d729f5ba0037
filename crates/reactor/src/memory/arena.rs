//! One core's buffers.

use super::Region;
use std::io;
use wire::{BufferId, Places, Span};

/// Size of a small buffer.
pub const SMALL_BYTES: u32 = 4096;
/// Size of a large buffer.
pub const LARGE_BYTES: u32 = 65536;

const SMALLS: u32 = LARGE_BYTES / SMALL_BYTES;
const ALL_SMALLS: u16 = u16::MAX;
const NONE: u32 = u32::MAX;

/// One core's I/O buffers: large ones, each of which may be cut into small ones and becomes whole again when they are
/// all free. Memory is taken from the system when a buffer is first used. Everything takes constant time.
///
/// Places that [`Arena::take`] returned are given back as they are, once. A buffer can be lent (to the kernel): one
/// that is given back while lent is reused only after the last loan has ended.
///
/// Functions that take spans panic when these are not bytes of buffers that are in use: that is our own broken
/// invariant.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    blocks: Vec<Block>,
    /// Whole free blocks, last freed first used.
    whole: Vec<u32>,
    /// Head of the list of cut blocks that have a free small buffer.
    cut: u32,
    free_bytes: u64,
}

/// One large buffer's worth of memory.
#[derive(Clone, Debug)]
struct Block {
    /// Whether it is cut into small buffers; then bit n of `free` is about small buffer n, otherwise `free` is all or
    /// nothing.
    is_cut: bool,
    free: u16,
    /// Given back, but still lent.
    given: u16,
    /// Loans of each small buffer (of the whole: the first) that may only read it, and that may write it.
    readers: [u32; SMALLS as usize],
    writers: [u32; SMALLS as usize],
    next: u32,
    previous: u32,
}

/// What the borrower of a buffer does with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loan {
    /// It reads: the bytes may be read meanwhile.
    Read,
    /// It writes: the bytes are unusable meanwhile.
    Write,
}

impl Arena {
    /// An arena of at least `bytes` bytes.
    pub fn new(bytes: u64) -> io::Result<Arena> {
        let count = bytes.div_ceil(u64::from(LARGE_BYTES)).max(1);
        let count = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let total = u64::from(count) * u64::from(LARGE_BYTES);
        let block = Block {
            is_cut: false,
            free: ALL_SMALLS,
            given: 0,
            readers: [0; SMALLS as usize],
            writers: [0; SMALLS as usize],
            next: NONE,
            previous: NONE,
        };
        Ok(Arena {
            region: Region::map_private(total)?,
            blocks: vec![block; count as usize],
            whole: (0..count).rev().collect(),
            cut: NONE,
            free_bytes: total,
        })
    }

    /// The region that all buffers lie in.
    pub fn id(&self) -> BufferId {
        self.region.id()
    }

    /// Places of together exactly `len` bytes (at most [`Places::MAX`] large buffers; the last buffer is a small one
    /// if that is enough). `None`: not enough is free, or `len` is 0 or too long.
    pub fn take(&mut self, len: u32) -> Option<Places> {
        if len == 0 || len > LARGE_BYTES * Places::MAX as u32 {
            return None;
        }
        let mut places = Places::EMPTY;
        let mut left = len;
        while left > 0 {
            let offset = if left <= SMALL_BYTES { self.take_small() } else { self.take_large() };
            let Some(offset) = offset else {
                self.give(&places);
                return None;
            };
            let part = left.min(LARGE_BYTES);
            places.push(Span { buffer: self.id(), len: part, offset });
            left -= part;
        }
        Some(places)
    }

    /// Gives back what `take` returned.
    pub fn give(&mut self, places: &Places) {
        for span in places.iter() {
            let (block, small) = self.locate(span);
            let entry = &mut self.blocks[block as usize];
            assert!(entry.given & (1 << small) == 0, "{span:?} is given back twice");
            entry.given |= 1 << small;
            if entry.is_idle(small) {
                self.free(block, small);
            }
        }
    }

    /// The bytes of a span. Panics while it is lent to someone who writes.
    pub fn bytes(&self, span: Span) -> &[u8] {
        let (block, small) = self.locate(span);
        let lent = self.blocks[block as usize].writers[small as usize];
        assert!(lent == 0, "{span:?} is lent for writing");
        // SAFETY: `locate` checked the bounds and that the buffer is in use. Only this arena makes references to its
        // private region; `&mut self` guards those that write, and the kernel does not write as no writer has it.
        unsafe { std::slice::from_raw_parts(self.address(span), span.len as usize) }
    }

    /// The bytes of a span. Panics while it is lent.
    pub fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        let (block, small) = self.locate(span);
        let entry = &self.blocks[block as usize];
        assert!(entry.is_idle(small), "{span:?} is lent");
        // SAFETY: as in `bytes`, and with `&mut self` there is no other reference, and nobody has it on loan.
        unsafe { std::slice::from_raw_parts_mut(self.address(span), span.len as usize) }
    }

    /// Lends a span's buffer, and returns the address, which is valid until the same call of [`Arena::unlend`].
    pub(crate) fn lend(&mut self, span: Span, loan: Loan) -> *mut u8 {
        let (block, small) = self.locate(span);
        *self.blocks[block as usize].loans(small, loan) += 1;
        self.region.base().wrapping_add(span.offset as usize)
    }

    /// Ends a loan.
    pub(crate) fn unlend(&mut self, span: Span, loan: Loan) {
        let (block, small) = self.locate(span);
        let entry = &mut self.blocks[block as usize];
        let loans = entry.loans(small, loan);
        assert!(*loans > 0, "{span:?} was not lent");
        *loans -= 1;
        if entry.is_idle(small) && entry.given & (1 << small) != 0 {
            self.free(block, small);
        }
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Bytes of buffers that are taken, or given back but still lent.
    pub fn in_use(&self) -> u64 {
        self.region.len() - self.free_bytes
    }

    fn take_large(&mut self) -> Option<u64> {
        let block = self.whole.pop()?;
        self.blocks[block as usize].free = 0;
        self.free_bytes -= u64::from(LARGE_BYTES);
        Some(u64::from(block) * u64::from(LARGE_BYTES))
    }

    fn take_small(&mut self) -> Option<u64> {
        if self.cut == NONE {
            let block = self.whole.pop()?;
            self.blocks[block as usize].is_cut = true;
            self.link(block);
        }
        let block = self.cut;
        let entry = &mut self.blocks[block as usize];
        let small = entry.free.trailing_zeros();
        entry.free &= !(1 << small);
        if entry.free == 0 {
            self.unlink(block);
        }
        self.free_bytes -= u64::from(SMALL_BYTES);
        Some(u64::from(block) * u64::from(LARGE_BYTES) + u64::from(small * SMALL_BYTES))
    }

    fn free(&mut self, block: u32, small: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.given &= !(1 << small);
        if !entry.is_cut {
            entry.free = ALL_SMALLS;
            self.whole.push(block);
            self.free_bytes += u64::from(LARGE_BYTES);
            return;
        }
        let was_full = entry.free == 0;
        entry.free |= 1 << small;
        let is_whole = entry.free == ALL_SMALLS;
        self.free_bytes += u64::from(SMALL_BYTES);
        if was_full {
            self.link(block);
        }
        if is_whole {
            self.unlink(block);
            self.blocks[block as usize].is_cut = false;
            self.whole.push(block);
        }
    }

    fn link(&mut self, block: u32) {
        let next = std::mem::replace(&mut self.cut, block);
        self.blocks[block as usize].next = next;
        self.blocks[block as usize].previous = NONE;
        if let Some(next) = self.blocks.get_mut(next as usize) {
            next.previous = block;
        }
    }

    fn unlink(&mut self, block: u32) {
        let Block { next, previous, .. } = self.blocks[block as usize];
        match self.blocks.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.cut = next,
        }
        if let Some(next) = self.blocks.get_mut(next as usize) {
            next.previous = previous;
        }
    }

    /// The buffer in use that holds all of the span.
    fn locate(&self, span: Span) -> (u32, u32) {
        assert!(span.buffer == self.id(), "{span:?} is not of this arena");
        let block = span.offset / u64::from(LARGE_BYTES);
        let at = (span.offset % u64::from(LARGE_BYTES)) as u32;
        let Some(entry) = self.blocks.get(block as usize) else { panic!("{span:?} is outside the arena") };
        let (small, start, size) = match entry.is_cut {
            true => (at / SMALL_BYTES, at % SMALL_BYTES, SMALL_BYTES),
            false => (0, at, LARGE_BYTES),
        };
        assert!(span.len <= size - start, "{span:?} crosses the end of its buffer");
        let in_use = entry.free & (1 << small) == 0;
        assert!(in_use, "{span:?} is not in use");
        (block as u32, small)
    }

    /// Where the bytes of a buffer in use are.
    pub(super) fn address(&self, span: Span) -> *mut u8 {
        let (_, _) = self.locate(span);
        self.region.base().wrapping_add(span.offset as usize)
    }
}

impl Block {
    fn is_idle(&self, small: u32) -> bool {
        self.readers[small as usize] == 0 && self.writers[small as usize] == 0
    }

    fn loans(&mut self, small: u32, loan: Loan) -> &mut u32 {
        match loan {
            Loan::Read => &mut self.readers[small as usize],
            Loan::Write => &mut self.writers[small as usize],
        }
    }
}
