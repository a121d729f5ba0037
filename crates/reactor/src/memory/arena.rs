//! One core's buffers.

use super::{Pages, Region, copy, copy_from, copy_to};
use std::io;
use wire::{BufferId, Places, Span};

/// Size of a small buffer.
pub const SMALL_BYTES: u32 = 4096;
/// Size of a large buffer.
pub const LARGE_BYTES: u32 = 65536;

const SMALLS: u32 = LARGE_BYTES / SMALL_BYTES;
const ALL_SMALLS: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
/// Parts of a large buffer being written for which memory is allocated from the start.
const PARTS_AT_START: usize = 4;
/// The most memory that [`Arena::renew`] keeps.
const KEPT_BYTES: u64 = 8 << 20;

/// One core's I/O buffers: large ones, each of which may be divided into small ones and becomes whole again
/// when they are all free. Memory is taken from the system when a buffer is first used. Everything takes
/// constant time.
///
/// What [`Arena::take`] returned is released as a whole, once. A buffer can be lent (to the kernel): one that
/// is released while lent is reused only after the last loan has ended.
///
/// Functions that take spans panic when these are not bytes of buffers in use: that would be a bug.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    blocks: Vec<Block>,
    /// Whole free blocks, last freed first used.
    whole: Vec<u32>,
    /// Those from this one on have never been used.
    unused: u32,
    /// Head of the list of divided blocks that have a free small buffer.
    cut: u32,
    free_bytes: u64,
}

/// One large buffer's worth of memory.
#[derive(Debug)]
struct Block {
    /// Whether it is divided into small buffers; then bit n of `free` is small buffer n, otherwise `free` is
    /// all or nothing.
    is_cut: bool,
    free: u16,
    /// Released, but still lent.
    given: u16,
    /// Loans of each small buffer (of a whole block: the first) that may only read it, and that may write it.
    readers: [u32; SMALLS as usize],
    writers: [u32; SMALLS as usize],
    /// For a whole block, the parts that are lent for writing: from, and to. A connection's receives are
    /// pieces of one.
    written: Vec<(u32, u32)>,
    next: u32,
    previous: u32,
}

/// How a borrower uses a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loan {
    /// It reads: the bytes may be read meanwhile.
    Read,
    /// It writes: the bytes are unusable meanwhile.
    Write,
}

/// A buffer that was lent.
pub(crate) struct Lent {
    whole: Span,
    base: *mut u8,
}

impl Lent {
    /// The address of a span's bytes, if it is in this buffer.
    pub(crate) fn address(&self, span: Span) -> Option<*mut u8> {
        let at = span.offset.checked_sub(self.whole.offset).filter(|_| span.buffer == self.whole.buffer)?;
        let is_inside = at.saturating_add(span.len.into()) <= u64::from(self.whole.len);
        is_inside.then(|| self.base.wrapping_add(at as usize))
    }
}

impl Arena {
    /// An arena of at least `bytes` bytes.
    pub fn new(bytes: u64) -> io::Result<Arena> {
        Arena::on(bytes, Pages::System)
    }

    /// Like [`Arena::new`], on these pages: huge ones for an arena that many connections share.
    pub fn on(bytes: u64, pages: Pages) -> io::Result<Arena> {
        let count = bytes.div_ceil(u64::from(LARGE_BYTES)).max(1);
        let count = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let total = u64::from(count) * u64::from(LARGE_BYTES);
        Ok(Arena {
            region: Region::map_private(total, pages)?,
            blocks: (0..count).map(|_| Block::new()).collect(),
            whole: (0..count).rev().collect(),
            unused: 0,
            cut: NONE,
            free_bytes: total,
        })
    }

    /// Makes it what it was when it was new, zeros included, for a simulation's next core: that is cheaper than a new one. What was
    /// taken from it is no longer used, and nothing is lent.
    pub fn renew(&mut self) {
        let (count, used) = (self.blocks.len() as u32, std::mem::take(&mut self.unused));
        for block in &mut self.blocks[..used as usize] {
            let mut written = std::mem::take(&mut block.written);
            written.clear();
            *block = Block::with(written);
        }
        self.whole.clear();
        self.whole.extend((0..count).rev());
        self.cut = NONE;
        self.free_bytes = self.region.len();
        self.region.renew(u64::from(used) * u64::from(LARGE_BYTES), KEPT_BYTES);
    }

    /// The region of all buffers.
    pub fn id(&self) -> BufferId {
        self.region.id()
    }

    /// Places of exactly `len` bytes in total (at most [`Places::MAX`] large buffers; the last buffer is a
    /// small one if that is enough). `None`: not enough is free, or `len` is 0 or too long.
    pub fn take(&mut self, len: u32) -> Option<Places> {
        if len == 0 || len > LARGE_BYTES * Places::MAX as u32 {
            return None;
        }
        if len <= SMALL_BYTES {
            let offset = self.take_small()?;
            return Some(Places::one(Span { buffer: self.id(), len, offset }));
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

    /// Bytes of buffers that [`Arena::take`] uses for this length.
    pub fn taken_bytes(len: u32) -> u64 {
        let (large, rest) = (u64::from(len / LARGE_BYTES), len % LARGE_BYTES);
        let last = match rest {
            0 => 0,
            1..=SMALL_BYTES => SMALL_BYTES,
            _ => LARGE_BYTES,
        };
        large * u64::from(LARGE_BYTES) + u64::from(last)
    }

    /// Releases what `take` returned.
    pub fn give(&mut self, places: &Places) {
        for span in places.iter() {
            let (block, small) = self.locate(span);
            let entry = &mut self.blocks[block as usize];
            assert!(entry.given & (1 << small) == 0, "{span:?} is released twice");
            entry.given |= 1 << small;
            if entry.is_idle(small) {
                self.free(block, small);
            }
        }
    }

    /// The bytes of a span. Panics while it is lent for writing: a small buffer as a whole, a large one in
    /// the parts that were lent.
    #[inline]
    pub fn bytes(&self, span: Span) -> &[u8] {
        let (block, small) = self.locate(span);
        let is_written = self.blocks[block as usize].is_written(small, span);
        assert!(!is_written, "{span:?} is lent for writing");
        // SAFETY: `locate` checked the bounds and that the buffer is in use. Only this arena makes references to its
        // private region, and `&mut self` guards those that write. Neither kernel nor device writes these bytes: each
        // address that they have to write to came from `lend`, or follows a `lend` of its span (`extent`), which has
        // noted the part, and the borrow keeps new loans from being made.
        unsafe { std::slice::from_raw_parts(self.at(span), span.len as usize) }
    }

    /// The bytes of a span. Panics while it is lent.
    pub fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        let (block, small) = self.locate(span);
        let entry = &self.blocks[block as usize];
        assert!(entry.is_idle(small), "{span:?} is lent");
        // SAFETY: as in `bytes`; with `&mut self` there is no other reference, and nobody has any of the buffer on loan,
        // not even to read.
        unsafe { std::slice::from_raw_parts_mut(self.at(span), span.len as usize) }
    }

    /// Copies a span to places of the same length; both are in this arena or in shared regions. The bytes may
    /// be lent: concurrent writers leave a mixture.
    pub fn copy(&mut self, from: Span, to: &Places) {
        assert!(from.len == to.len(), "{from:?} is not as long as {to:?}");
        let mut at = 0;
        for span in to.iter() {
            copy(self, from.slice(at, span.len), span);
            at += span.len;
        }
    }

    /// A copy of the bytes of places in this arena or in shared regions. They may be lent, as with
    /// [`Arena::copy`].
    pub fn to_vec(&self, places: &Places) -> Vec<u8> {
        let mut bytes = vec![0; places.len() as usize];
        self.copy_out(places, &mut bytes);
        bytes
    }

    /// Copies the bytes of such places, which may be lent, to a slice of the same length.
    pub fn copy_out(&self, places: &Places, into: &mut [u8]) {
        let mut rest = into;
        for span in places.iter() {
            let (part, behind) = rest.split_at_mut(span.len as usize);
            copy_to(self, span, part);
            rest = behind;
        }
        assert!(rest.is_empty(), "{places:?} has fewer bytes");
    }

    /// Copies a slice to such places of the same length, which may be lent.
    pub fn copy_in(&mut self, bytes: &[u8], places: &Places) {
        let mut rest = bytes;
        for span in places.iter() {
            let (part, behind) = rest.split_at(span.len as usize);
            copy_from(self, part, span);
            rest = behind;
        }
        assert!(rest.is_empty(), "{places:?} has fewer bytes");
    }

    /// Where its memory begins, and its length: for registering it with a device. The device is given only
    /// places that are lent, for writing where it writes, until it has finished with them.
    pub fn extent(&self) -> (*mut u8, usize) {
        (self.region.base(), self.region.len() as usize)
    }

    /// Lends a span's buffer, and returns the address, which is valid until the same call of [`Arena::unlend`].
    pub fn lend(&mut self, span: Span, loan: Loan) -> *mut u8 {
        let (block, small) = self.locate(span);
        let entry = &mut self.blocks[block as usize];
        if loan == Loan::Write && !entry.is_cut {
            entry.written.push(within(span));
        }
        *entry.loans(small, loan) += 1;
        self.at(span)
    }

    /// Like [`Arena::lend`] for reading, and for all spans of the same buffer: until [`Arena::unlend`] of
    /// this one.
    pub(crate) fn lend_to_read(&mut self, span: Span) -> Lent {
        let (block, small) = self.locate(span);
        let entry = &mut self.blocks[block as usize];
        *entry.loans(small, Loan::Read) += 1;
        let len = if entry.is_cut { SMALL_BYTES } else { LARGE_BYTES };
        let offset = u64::from(block) * u64::from(LARGE_BYTES) + u64::from(small * SMALL_BYTES);
        let whole = Span { buffer: span.buffer, len, offset };
        Lent { base: self.at(whole), whole }
    }

    /// Ends a loan.
    pub fn unlend(&mut self, span: Span, loan: Loan) {
        let (block, small) = self.locate(span);
        let entry = &mut self.blocks[block as usize];
        let loans = entry.loans(small, loan);
        assert!(*loans > 0, "{span:?} was not lent");
        *loans -= 1;
        if loan == Loan::Write && !entry.is_cut {
            let part = entry.written.iter().position(|part| *part == within(span));
            entry.written.swap_remove(part.expect("the part was lent as it is released"));
        }
        if entry.is_idle(small) && entry.given & (1 << small) != 0 {
            self.free(block, small);
        }
    }

    /// Free bytes.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Bytes of the large buffers that are free as a whole.
    pub fn whole_bytes(&self) -> u64 {
        self.whole.len() as u64 * u64::from(LARGE_BYTES)
    }

    /// Whether half of all is free: those that allocate ahead of any data leave the rest to those whose data
    /// is on its way.
    pub fn is_half_free(&self) -> bool {
        self.free_bytes >= self.in_use()
    }

    /// Bytes of buffers in use, or released but still lent.
    pub fn in_use(&self) -> u64 {
        self.region.len() - self.free_bytes
    }

    fn take_whole(&mut self) -> Option<u32> {
        let block = self.whole.pop()?;
        self.unused = self.unused.max(block + 1);
        Some(block)
    }

    fn take_large(&mut self) -> Option<u64> {
        let block = self.take_whole()?;
        self.blocks[block as usize].free = 0;
        self.free_bytes -= u64::from(LARGE_BYTES);
        Some(u64::from(block) * u64::from(LARGE_BYTES))
    }

    fn take_small(&mut self) -> Option<u64> {
        if self.cut == NONE {
            let block = self.take_whole()?;
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

    /// The buffer in use that contains the whole span.
    #[inline]
    fn locate(&self, span: Span) -> (u32, u32) {
        let block = span.offset / u64::from(LARGE_BYTES);
        let (at, _) = within(span);
        let Some(entry) = self.blocks.get(block as usize).filter(|_| span.buffer == self.id()) else {
            self.refuse(span)
        };
        let (small, size) = if entry.is_cut { (at / SMALL_BYTES, SMALL_BYTES) } else { (0, LARGE_BYTES) };
        let is_inside = span.len <= size - at % size;
        if !is_inside || entry.free & (1 << small) != 0 {
            self.refuse(span);
        }
        (block as u32, small)
    }

    /// Panics with the reason why a span cannot be located.
    #[cold]
    fn refuse(&self, span: Span) -> ! {
        assert!(span.buffer == self.id(), "{span:?} is not of this arena");
        let block = self.blocks.get((span.offset / u64::from(LARGE_BYTES)) as usize);
        let Some(entry) = block else { panic!("{span:?} is outside the arena") };
        let size = if entry.is_cut { SMALL_BYTES } else { LARGE_BYTES };
        assert!(span.len <= size - within(span).0 % size, "{span:?} crosses the end of its buffer");
        panic!("{span:?} is not in use");
    }

    /// The address of the bytes of a buffer in use.
    pub(crate) fn address(&self, span: Span) -> *mut u8 {
        let (_, _) = self.locate(span);
        self.at(span)
    }

    /// The same, for a span that was located.
    fn at(&self, span: Span) -> *mut u8 {
        self.region.base().wrapping_add(span.offset as usize)
    }
}

impl Block {
    fn new() -> Block {
        Block::with(Vec::with_capacity(PARTS_AT_START))
    }

    /// `written`: the list for parts that are being written, empty.
    fn with(written: Vec<(u32, u32)>) -> Block {
        Block {
            is_cut: false,
            free: ALL_SMALLS,
            given: 0,
            readers: [0; SMALLS as usize],
            writers: [0; SMALLS as usize],
            written,
            next: NONE,
            previous: NONE,
        }
    }

    fn is_idle(&self, small: u32) -> bool {
        self.readers[small as usize] == 0 && self.writers[small as usize] == 0
    }

    /// Whether a part of the span is lent for writing.
    #[inline]
    fn is_written(&self, small: u32, span: Span) -> bool {
        let (from, to) = within(span);
        let overlaps = |(first, last): &(u32, u32)| from < *last && *first < to;
        self.writers[small as usize] > 0 && (self.is_cut || self.written.iter().any(overlaps))
    }

    fn loans(&mut self, small: u32, loan: Loan) -> &mut u32 {
        match loan {
            Loan::Read => &mut self.readers[small as usize],
            Loan::Write => &mut self.writers[small as usize],
        }
    }
}

/// The start and end of a span, which is valid, in its large buffer.
fn within(span: Span) -> (u32, u32) {
    let from = (span.offset % u64::from(LARGE_BYTES)) as u32;
    (from, from.saturating_add(span.len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn first(places: &Places) -> Span {
        places.iter().next().unwrap()
    }

    #[test]
    fn places_have_the_asked_length_and_fitting_buffers() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let lens = |places: Places| places.iter().map(|span| span.len).collect::<Vec<_>>();
        assert_eq!(lens(arena.take(512).unwrap()), [512]);
        assert_eq!(arena.in_use(), 4096);
        assert_eq!(lens(arena.take(65_536 + 100).unwrap()), [65_536, 100]);
        assert_eq!(arena.in_use(), 65_536 + 2 * 4096);
        assert_eq!([512, 65_536 + 100].map(Arena::taken_bytes), [4096, 65_536 + 4096]);
        assert_eq!(lens(arena.take(256 * 1024).unwrap()), [65_536; 4]);
        assert_eq!(arena.take(0), None);
        assert_eq!(arena.take(256 * 1024 + 1), None);
    }

    #[test]
    fn a_renewed_arena_is_like_a_new_one() {
        let mut arena = Arena::new(150 * 65_536).unwrap();
        let lens = [65_536 + 100, 1, 200_000, 65_536, 65_536];
        for is_renewed in [false, true] {
            let taken: Vec<Places> = lens.iter().map(|len| arena.take(*len).unwrap()).collect();
            let spans = taken.iter().flat_map(Places::iter);
            assert_eq!(first(&taken[0]).offset, 0);
            for span in spans {
                assert!(arena.bytes(span).iter().all(|byte| *byte == 0), "after being renewed: {is_renewed}");
                arena.bytes_mut(span).fill(1);
            }
            arena.lend(first(&taken[2]), Loan::Write);
            arena.lend(first(&taken[1]), Loan::Read);
            arena.give(&taken[1]);
            arena.take(25 * 65_536 / 7).into_iter().for_each(|places| arena.give(&places));
            let far: Vec<Places> = (0..140).map(|_| arena.take(65_536).unwrap()).collect();
            far.iter().map(first).for_each(|span| arena.bytes_mut(span).fill(2));
            arena.renew();
            assert_eq!((arena.in_use(), arena.whole_bytes()), (0, 150 * 65_536));
        }
        let all: Vec<Places> = (0..150).map(|_| arena.take(65_536).unwrap()).collect();
        let spans = all.iter().map(first).enumerate();
        spans.for_each(|(nth, span)| {
            assert_eq!(span.offset, nth as u64 * 65_536);
            assert!(arena.bytes(span).iter().all(|byte| *byte == 0));
        });
    }

    #[test]
    fn a_failed_take_takes_nothing() {
        let mut arena = Arena::new(3 * 65_536).unwrap();
        let small = arena.take(1).unwrap();
        assert_eq!(arena.take(3 * 65_536), None);
        assert_eq!((arena.free_bytes(), arena.whole_bytes()), (3 * 65_536 - 4096, 2 * 65_536));
        arena.give(&small);
        assert_eq!(arena.whole_bytes(), 3 * 65_536);
        assert!(arena.take(3 * 65_536).is_some());
        assert_eq!(arena.free_bytes(), 0);
        assert_eq!(arena.take(1), None);
    }

    #[test]
    fn a_lent_buffer_is_reused_only_after_the_last_loan() {
        let mut arena = Arena::new(65_536).unwrap();
        let places = arena.take(65_536).unwrap();
        let span = first(&places);
        arena.lend(span, Loan::Write);
        arena.lend(span.slice(0, 10), Loan::Read);
        arena.give(&places);
        assert_eq!(arena.take(1), None);
        arena.unlend(span, Loan::Write);
        assert_eq!(arena.take(1), None);
        arena.unlend(span.slice(0, 10), Loan::Read);
        assert_eq!(arena.in_use(), 0);
        assert!(arena.take(1).is_some());
    }

    #[test]
    fn what_is_lent_for_reading_can_be_read() {
        let mut arena = Arena::new(65_536).unwrap();
        let span = first(&arena.take(100).unwrap());
        arena.bytes_mut(span)[7] = 9;
        arena.lend(span, Loan::Read);
        assert_eq!(arena.bytes(span)[7], 9);
    }

    #[test]
    #[should_panic(expected = "is lent for writing")]
    fn what_is_being_written_cannot_be_read() {
        let mut arena = Arena::new(65_536).unwrap();
        let span = first(&arena.take(100).unwrap());
        arena.lend(span, Loan::Write);
        arena.bytes(span);
    }

    #[test]
    fn the_rest_of_a_large_buffer_can_be_read_while_a_part_is_written() {
        let mut arena = Arena::new(65_536).unwrap();
        let span = first(&arena.take(65_536).unwrap());
        let [one, other] = [span.slice(1000, 500), span.slice(3000, 500)];
        let reads = |arena: &Arena, at, len| {
            let read = std::panic::AssertUnwindSafe(|| arena.bytes(span.slice(at, len)).len());
            std::panic::catch_unwind(read).is_ok()
        };
        arena.lend(one, Loan::Write);
        assert!(reads(&arena, 0, 1000) && reads(&arena, 1500, 64_000));
        assert!(!reads(&arena, 999, 2) && !reads(&arena, 1499, 1) && !reads(&arena, 0, 65_536));
        arena.lend(other, Loan::Write);
        assert!(reads(&arena, 0, 1000) && reads(&arena, 3500, 64_000));
        assert!(reads(&arena, 1500, 1500), "between them nobody writes");
        assert!(!reads(&arena, 1000, 1) && !reads(&arena, 3499, 1));
        arena.unlend(one, Loan::Write);
        assert!(!reads(&arena, 3000, 500));
        arena.unlend(other, Loan::Write);
        arena.lend(one, Loan::Write);
        assert!(reads(&arena, 3000, 500) && !reads(&arena, 1000, 500));
    }

    #[test]
    #[should_panic(expected = "is lent")]
    fn what_is_lent_cannot_be_written() {
        let mut arena = Arena::new(65_536).unwrap();
        let span = first(&arena.take(100).unwrap());
        arena.lend(span, Loan::Read);
        arena.bytes_mut(span);
    }

    #[test]
    #[should_panic(expected = "is not in use")]
    fn a_free_buffer_cannot_be_used() {
        let mut arena = Arena::new(65_536).unwrap();
        let places = arena.take(100).unwrap();
        arena.give(&places);
        arena.bytes(first(&places));
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_lent_buffer_cannot_be_released_twice() {
        let mut arena = Arena::new(65_536).unwrap();
        let places = arena.take(100).unwrap();
        arena.lend(first(&places), Loan::Read);
        arena.give(&places);
        arena.give(&places);
    }

    #[test]
    #[should_panic(expected = "is not of this arena")]
    fn another_arenas_buffer_cannot_be_used() {
        let mut arena = Arena::new(65_536).unwrap();
        let span = first(&Arena::new(65_536).unwrap().take(100).unwrap());
        arena.bytes_mut(span);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u32),
        Give(usize),
        Lend(usize),
        Unlend(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => prop_oneof![1u32..=4096, 1u32..=262_144].prop_map(Step::Take),
            3 => any::<usize>().prop_map(Step::Give),
            2 => any::<usize>().prop_map(Step::Lend),
            2 => any::<usize>().prop_map(Step::Unlend),
        ];
        proptest::collection::vec(step, 1..200)
    }

    /// Buffers that must not be handed out: those in use, and those that are lent.
    #[derive(Default)]
    struct Model {
        taken: Vec<Places>,
        loans: Vec<Span>,
    }

    impl Model {
        fn blocks(&self, span: Span) -> bool {
            let end = |span: Span| span.offset + u64::from(span.len).next_multiple_of(4096);
            let same = |other: Span| span.offset < end(other) && other.offset < end(span);
            self.taken.iter().flat_map(|places| places.iter()).any(same)
                || self.loans.iter().copied().any(same)
        }

        fn run(&mut self, arena: &mut Arena, step: Step) {
            match step {
                Step::Take(len) => {
                    let before = arena.free_bytes();
                    let Some(places) = arena.take(len) else {
                        assert_eq!(arena.free_bytes(), before);
                        return;
                    };
                    assert_eq!(places.len(), len);
                    assert!(places.iter().all(|span| !self.blocks(span)), "handed out twice");
                    self.taken.push(places);
                }
                Step::Give(n) if !self.taken.is_empty() => {
                    let places = self.taken.swap_remove(n % self.taken.len());
                    arena.give(&places);
                }
                Step::Lend(n) if !self.taken.is_empty() => {
                    let span = first(&self.taken[n % self.taken.len()]);
                    arena.lend(span, Loan::Write);
                    self.loans.push(span);
                }
                Step::Unlend(n) if !self.loans.is_empty() => {
                    let span = self.loans.swap_remove(n % self.loans.len());
                    arena.unlend(span, Loan::Write);
                }
                Step::Give(_) | Step::Lend(_) | Step::Unlend(_) => {}
            }
        }
    }

    proptest! {
        #[test]
        fn no_buffer_has_two_owners(steps in steps()) {
            let mut arena = Arena::new(16 * 65_536).unwrap();
            let mut model = Model::default();
            for step in steps {
                model.run(&mut arena, step);
            }
            model.taken.iter().for_each(|places| arena.give(places));
            model.loans.iter().for_each(|span| arena.unlend(*span, Loan::Write));
            prop_assert_eq!(arena.in_use(), 0);
            prop_assert_eq!(arena.whole.len(), 16);
            prop_assert_eq!(arena.cut, NONE);
        }
    }
}
