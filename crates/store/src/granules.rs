//! Which huge pages of a store in memory were written: the system clears a whole page before the first write
//! to it, which takes as long as hundreds of writes.

use crate::range::Range;
use reactor::memory::{HUGE_PAGE_BYTES, Pages};
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each huge page; none with small pages.
pub(crate) struct Granules {
    written: Box<[AtomicU64]>,
}

impl Granules {
    /// For a store of this size, with nothing written.
    pub(crate) fn new(size: u64, pages: Pages) -> Granules {
        let count = match pages {
            Pages::Huge => size.div_ceil(HUGE_PAGE_BYTES),
            Pages::Small | Pages::System => 0,
        };
        Granules { written: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Bytes that the system clears for a write to this range.
    pub(crate) fn fresh_bytes(&self, range: Range) -> u64 {
        let is_fresh = |(word, bit): &(&AtomicU64, u64)| word.load(Ordering::Relaxed) & bit == 0;
        self.of(range).filter(is_fresh).count() as u64 * HUGE_PAGE_BYTES
    }

    /// The range was written.
    pub(crate) fn note_written(&self, range: Range) {
        for (word, bit) in self.of(range) {
            // Cores share the word, and nearly always find the bit set.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Memory of the range was released. A huge page inside it is allocated as one again when it is written;
    /// one that was released in part has become small pages. To be called afterwards, so that a write in
    /// between leaves nothing wrong.
    pub(crate) fn note_released(&self, range: Range) {
        let first = range.offset.next_multiple_of(HUGE_PAGE_BYTES);
        let end = range.end() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let whole = Range { offset: first, len: end.saturating_sub(first) };
        for (word, bit) in self.of(whole) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn of(&self, range: Range) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let end = if range.len == 0 { 0 } else { range.end().div_ceil(HUGE_PAGE_BYTES) };
        // None with small pages.
        (range.offset / HUGE_PAGE_BYTES..end)
            .filter_map(|page| self.written.get((page / 64) as usize).map(|word| (word, 1 << (page % 64))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> Range {
        Range { offset, len }
    }

    #[test]
    fn a_huge_page_is_cleared_before_the_first_write_to_it_and_again_when_it_was_given_back() {
        let granules = Granules::new(100 * HUGE_PAGE_BYTES + 5, Pages::Huge);
        let last = range(100 * HUGE_PAGE_BYTES, 5);
        let across = range(70 * HUGE_PAGE_BYTES - 1, 2);
        assert_eq!(granules.fresh_bytes(across), 2 * HUGE_PAGE_BYTES);
        granules.note_written(range(70 * HUGE_PAGE_BYTES, 512));
        assert_eq!(granules.fresh_bytes(across), HUGE_PAGE_BYTES);
        granules.note_written(across);
        assert_eq!((granules.fresh_bytes(across), granules.fresh_bytes(last)), (0, HUGE_PAGE_BYTES));
        granules.note_released(range(69 * HUGE_PAGE_BYTES + 4096, 2 * HUGE_PAGE_BYTES));
        assert_eq!(granules.fresh_bytes(across), HUGE_PAGE_BYTES, "the one that was released completely");
        assert_eq!(granules.fresh_bytes(range(69 * HUGE_PAGE_BYTES, 4096)), 0);
        assert_eq!(granules.fresh_bytes(range(4096, 0)), 0);
    }

    #[test]
    fn nothing_is_counted_on_small_pages() {
        let granules = Granules::new(1 << 40, Pages::Small);
        assert!(granules.written.is_empty());
        granules.note_written(range(0, 1 << 40));
        assert_eq!(granules.fresh_bytes(range(0, 1 << 40)), 0);
    }
}
