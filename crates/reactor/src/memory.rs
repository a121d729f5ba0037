//! Registered memory regions ([`Region`]), one core's buffers ([`Arena`]) and tables of words ([`Words`]).
//!
//! A process-wide table maps [`wire::BufferId`] to base and length of a region, so that any core's `Io` can
//! turn a [`wire::Span`] into an address after checking its bounds. A region that is used by a request in
//! flight is pinned: it is unmapped only when the last pin is gone. An arena's region is private to its core
//! and never resolved through the table.

mod arena;
mod region;
mod shared;
mod words;

pub(crate) use arena::Lent;
pub use arena::{Arena, LARGE_BYTES, Loan, SMALL_BYTES};
pub use region::{Pages, REGIONS_MAX, Region, page_map};
pub(crate) use region::{Pin, copy, copy_from, copy_to, with_shared_bytes};
pub use words::Words;

/// The page size that buffers are aligned to.
pub const PAGE_BYTES: u64 = 4096;

/// A huge page, which replaces a last-level page table (x86-64, and aarch64 with pages of 4 KiB).
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;
