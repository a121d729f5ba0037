//! How much space a thin unit takes.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The space that a unit's store takes, as last measured.
#[derive(Debug)]
pub struct Space {
    used_bytes: AtomicU64,
    available_bytes: AtomicU64,
    /// The percentage of the size at which the log warns; 0: never.
    warn_at: AtomicU8,
}

/// Not measured yet.
const UNKNOWN: u64 = u64::MAX;

/// Bytes of a threshold set, the unit of all of this.
pub(crate) const SET_BYTES: u64 = 1 << 20;

impl Default for Space {
    fn default() -> Space {
        Space {
            used_bytes: AtomicU64::new(UNKNOWN),
            available_bytes: AtomicU64::new(0),
            warn_at: AtomicU8::new(0),
        }
    }
}

impl Space {
    /// Sets the used and available space. Returns whether that is news.
    pub fn set(&self, used_bytes: u64, available_bytes: u64) -> bool {
        let available = self.available_bytes.swap(available_bytes, Ordering::Relaxed);
        let used = self.used_bytes.swap(used_bytes, Ordering::Relaxed);
        (used, available) != (used_bytes, available_bytes)
    }

    /// Sets the percentage of the size at which the log warns.
    pub fn set_warn_at(&self, percent: Option<u8>) {
        self.warn_at.store(percent.unwrap_or(0), Ordering::Relaxed);
    }

    /// The percentage of the size at which the log warns.
    pub fn warn_at(&self) -> Option<u8> {
        Some(self.warn_at.load(Ordering::Relaxed)).filter(|percent| *percent > 0)
    }

    /// The space that the store takes, if that is known.
    pub fn used_bytes(&self) -> Option<u64> {
        Some(self.used_bytes.load(Ordering::Relaxed)).filter(|used| *used != UNKNOWN)
    }

    /// Used and available space in threshold sets, if known.
    pub(crate) fn sets(&self) -> Option<(u32, u32)> {
        let available = self.available_bytes.load(Ordering::Relaxed).checked_div(SET_BYTES)?;
        Some((sets(self.used_bytes()?.div_ceil(SET_BYTES)), sets(available)))
    }
}

/// A number of threshold sets.
pub(crate) fn sets(sets: u64) -> u32 {
    u32::try_from(sets).unwrap_or(u32::MAX)
}
