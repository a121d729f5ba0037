//! Backing stores. Cores share a [`lane::Store`]; a [`lane::Lane`] is one core's private way into it.
//!
//! [`null`] reads as zeros, [`ram`] is memory, [`mod@file`] is a file or a block device, [`nbd`] an export of
//! an NBD server, [`rbd`] an image on Ceph. [`rados`] stores the state that daemons share about a shared
//! image.
#![deny(unsafe_code)]

pub mod calls;
pub mod error;
pub mod file;
pub mod image;
pub mod lane;
pub mod nbd;
pub mod null;
pub mod rados;
pub mod ram;
pub mod rbd;

mod bounded;
mod extents;
mod granules;
mod occupied;
mod pool;
mod range;
mod size;
mod stripes;
mod zeros;

pub use error::OpenError;
pub use file::{Claim, open as open_file, open_block};
pub use null::open as open_null;
pub use ram::{open as open_ram, open_on as open_ram_on};
