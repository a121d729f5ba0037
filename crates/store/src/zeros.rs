//! Memory that reads as zeros, shared by all stores.

use reactor::memory::{Arena, Region};
use std::sync::{Arc, OnceLock};
use wire::Places;

/// Bytes of zeros; several spans may name the same ones.
const ZEROS_BYTES: u32 = 256 << 10;

/// The most that [`Zeros::places`] can name.
pub(crate) const PLACES_BYTES_MAX: u32 = ZEROS_BYTES * Places::MAX as u32;

/// A region that nobody writes to.
#[derive(Clone)]
pub(crate) struct Zeros(Arc<Region>);

impl Zeros {
    /// The process's one.
    pub(crate) fn get() -> Zeros {
        static SHARED: OnceLock<Zeros> = OnceLock::new();
        let map = || Region::map(u64::from(ZEROS_BYTES)).expect("a process has 256 KiB of address space");
        SHARED.get_or_init(|| Zeros(map())).clone()
    }

    /// `len` zeros, if that is not more than [`PLACES_BYTES_MAX`].
    pub(crate) fn places(&self, len: u32) -> Option<Places> {
        let mut places = Places::EMPTY;
        let mut left = len;
        while left > 0 {
            let part = left.min(ZEROS_BYTES);
            if !places.push(self.0.span(0, part)?) {
                return None;
            }
            left -= part;
        }
        Some(places)
    }

    /// Fills the places.
    pub(crate) fn copy_to(&self, arena: &mut Arena, into: &Places) {
        for piece in pieces(into) {
            self.0.copy_out(0, arena, &piece);
        }
    }

    /// The first byte of the places that is not zero.
    pub(crate) fn compare(&self, arena: &Arena, with: &Places) -> Option<u32> {
        let mut before = 0;
        for piece in pieces(with) {
            if let Some(at) = self.0.compare(0, arena, &piece) {
                return Some(before + at);
            }
            before += piece.len();
        }
        None
    }
}

/// The places cut into parts that are not longer than the zeros.
fn pieces(places: &Places) -> impl Iterator<Item = Places> + '_ {
    let len = places.len();
    (0..len.div_ceil(ZEROS_BYTES)).map(move |nth| places.slice(nth * ZEROS_BYTES, ZEROS_BYTES))
}
