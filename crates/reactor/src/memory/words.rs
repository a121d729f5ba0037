//! A large table of words, most of which are never touched.

use super::region::{Pages, map_pages, mapped_bytes, unmap};
use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU32;

/// A table of words, initially zero, in a separate mapping: it takes memory only for the pages of it that are
/// written. (The allocator writes the zeros itself where a table is too small for a mapping.)
#[derive(Debug)]
pub struct Words {
    base: *const AtomicU32,
    count: usize,
}

// SAFETY: the mapping lives as long as the table, and is only reached through references to atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// A table of this many words, at least one.
    pub fn new(count: u32) -> io::Result<Words> {
        let bytes = mapped_bytes(bytes_of(count)).ok_or(io::ErrorKind::InvalidInput)?;
        let base = map_pages(bytes, Pages::Small)?.cast_const().cast();
        Ok(Words { base, count: count as usize })
    }
}

fn bytes_of(count: u32) -> u64 {
    u64::from(count) * size_of::<AtomicU32>() as u64
}

impl Deref for Words {
    type Target = [AtomicU32];

    #[inline]
    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: `new` mapped at least this many words, aligned to a page and all zero, which is a value of AtomicU32; they stay
        // mapped until the table is dropped, and nobody else has a pointer to them.
        unsafe { std::slice::from_raw_parts(self.base, self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if let Some(bytes) = mapped_bytes(bytes_of(self.count as u32)) {
            // SAFETY: the mapping that `new` made, of the same length; references to it have ended with the table's.
            unsafe { unmap(self.base.cast_mut().cast(), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_are_zero_and_keep_what_is_written_to_the_first_and_the_last() {
        for count in [1, 1024, 16_385] {
            let words = Words::new(count).unwrap();
            assert_eq!(words.len(), count as usize);
            assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            for word in [words.first(), words.last()] {
                word.unwrap().fetch_add(7, Ordering::Relaxed);
            }
            let sum: u32 = words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
            assert_eq!(sum, 14);
        }
        assert!(Words::new(0).is_err());
    }
}
