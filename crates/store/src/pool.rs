//! A store's own buffers, for operations that inspect the medium's bytes or cannot go straight to it. Its
//! lanes share them; they are in shared memory, so that bytes can be moved between them and any places.

use reactor::memory::Region;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Span;

/// Size of a buffer.
pub(crate) const BUFFER_BYTES: u32 = 64 << 10;

/// Buffers per store: operations that need one at the same time. Further ones wait.
const BUFFERS: u32 = u64::BITS;

/// The buffers of one store. Their memory is allocated on first use.
pub(crate) struct Pool {
    region: Arc<Region>,
    /// A bit for each free buffer.
    free: AtomicU64,
}

/// A buffer in use.
#[derive(Debug)]
pub(crate) struct Buffer(u32);

impl Buffer {
    fn offset(&self) -> u64 {
        u64::from(self.0) * u64::from(BUFFER_BYTES)
    }
}

impl Pool {
    pub(crate) fn new() -> io::Result<Pool> {
        let region = Region::map(u64::from(BUFFERS) * u64::from(BUFFER_BYTES))?;
        Ok(Pool { region, free: AtomicU64::new(u64::MAX) })
    }

    pub(crate) fn take(&self) -> Option<Buffer> {
        let lowest = |free: u64| (free != 0).then(|| free & (free - 1));
        let before = self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest).ok()?;
        Some(Buffer(before.trailing_zeros()))
    }

    pub(crate) fn give(&self, buffer: Buffer) {
        self.free.fetch_or(1 << buffer.0, Ordering::Release);
    }

    /// The memory, and the offset of a buffer's byte `at` in it.
    pub(crate) fn place(&self, buffer: &Buffer, at: u32) -> (&Region, u64) {
        (&self.region, buffer.offset() + u64::from(at))
    }

    /// The bytes `from .. to` of a buffer.
    pub(crate) fn span(&self, buffer: &Buffer, from: u32, to: u32) -> Span {
        assert!(from <= to && to <= BUFFER_BYTES, "{from}..{to} is not inside a buffer");
        Span { buffer: self.region.id(), len: to - from, offset: buffer.offset() + u64::from(from) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_is_taken_once_and_comes_back() {
        let pool = Pool::new().unwrap();
        let taken: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), BUFFERS as usize);
        let mut offsets: Vec<u64> = taken.iter().map(Buffer::offset).collect();
        offsets.dedup();
        assert_eq!(offsets.len(), BUFFERS as usize);
        let (region, at) = pool.place(&taken[63], BUFFER_BYTES - 1);
        assert!(region.span(at, 1).is_some());
        taken.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(std::iter::from_fn(|| pool.take()).count(), BUFFERS as usize);
    }
}
