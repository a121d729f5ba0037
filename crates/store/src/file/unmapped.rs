//! What is known to be unmapped on a device that does not report it: the last discarded range, as long as
//! nothing was written into it. Everything else counts as mapped, which is always safe: it only concerns
//! space.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// One range of bytes, or none.
#[derive(Debug, Default)]
pub(super) struct Unmapped {
    /// Writers check this first, so that they lock nothing as long as there is no range.
    known: AtomicBool,
    range: Mutex<(u64, u64)>,
}

impl Unmapped {
    /// The bytes from `start` to `end` were discarded. To be called while they are locked.
    pub(super) fn add(&self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut range = self.range.lock().expect("no holder of this lock panics");
        let touches = self.known.load(Ordering::Relaxed) && start <= range.1 && end >= range.0;
        *range = if touches { (range.0.min(start), range.1.max(end)) } else { (start, end) };
        self.known.store(true, Ordering::Release);
    }

    /// The bytes from `start` to `end` were written. To be called while they are locked.
    pub(super) fn remove(&self, start: u64, end: u64) {
        if !self.known.load(Ordering::Acquire) {
            return;
        }
        let mut range = self.range.lock().expect("no holder of this lock panics");
        if start < range.1 && end > range.0 {
            // The longer part that remains.
            let (before, after) = ((range.0, start.max(range.0)), (end.min(range.1), range.1));
            *range = if before.1 - before.0 >= after.1 - after.0 { before } else { after };
            self.known.store(range.0 < range.1, Ordering::Release);
        }
    }

    /// Whether `offset` is unmapped, and where that ends.
    pub(super) fn at(&self, offset: u64, size: u64) -> (bool, u64) {
        if !self.known.load(Ordering::Acquire) {
            return (false, size);
        }
        let (start, end) = *self.range.lock().expect("no holder of this lock panics");
        match offset {
            _ if offset < start => (false, start),
            _ if offset < end => (true, end),
            _ => (false, size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_together_and_writes_cut_them() {
        let unmapped = Unmapped::default();
        assert_eq!(unmapped.at(0, 100), (false, 100));
        unmapped.remove(0, 10);
        unmapped.add(10, 20);
        unmapped.add(20, 40);
        assert_eq!(unmapped.at(0, 100), (false, 10));
        assert_eq!(unmapped.at(15, 100), (true, 40));
        assert_eq!(unmapped.at(40, 100), (false, 100));
        unmapped.remove(12, 14);
        assert_eq!(unmapped.at(12, 100), (false, 14));
        assert_eq!(unmapped.at(14, 100), (true, 40));
        unmapped.remove(0, 100);
        assert_eq!(unmapped.at(20, 100), (false, 100));
    }
}
