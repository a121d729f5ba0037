//! Wire formats of every protocol that Lunette speaks.
//!
//! Each file holds one family of layouts as `zerocopy` types: what a peer sent is viewed in place, what we
//! send is built on the stack. Nothing here does I/O, allocates per PDU, or makes decisions: a layout that
//! does not fit is `None` (too short) or carries its raw value for the machine to validate. `shown` makes a
//! peer's text safe to display.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

pub mod aoe;
pub mod ata;
pub mod iscsi;
pub mod iser;
pub mod iwarp;
pub mod nbd;
pub mod scsi;
pub mod shown;
pub mod span;
pub mod srp;

pub use scsi::{Cdb, Sense, SenseData, SenseKey, Specific};
pub use shown::{Printable, is_printable, shown};
pub use span::{BufferId, Places, Span};
