//! Memory that reads as zeros, shared by all stores.

use reactor::memory::{Arena, Region};
use std::sync::{Arc, OnceLock};
use wire::{Places, Span};

/// Bytes of zeros; several spans may name the same ones.
pub(crate) const ZEROS_BYTES: u32 = 1 << 20;

/// A region that is never written.
#[derive(Clone)]
pub(crate) struct Zeros(Arc<Region>);

impl Zeros {
    /// The process-wide one.
    pub(crate) fn get() -> Zeros {
        static SHARED: OnceLock<Zeros> = OnceLock::new();
        let map = || Region::map(u64::from(ZEROS_BYTES)).expect("a process has 1 MiB of address space");
        SHARED.get_or_init(|| Zeros(map())).clone()
    }

    /// `len` zeros, if that is no more than [`ZEROS_BYTES`].
    pub(crate) fn span(&self, len: u32) -> Option<Span> {
        self.0.span(0, len)
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

/// The places cut into parts that are no longer than the zeros.
fn pieces(places: &Places) -> impl Iterator<Item = Places> + '_ {
    let len = places.len();
    (0..len.div_ceil(ZEROS_BYTES)).map(move |nth| places.slice(nth * ZEROS_BYTES, ZEROS_BYTES))
}
