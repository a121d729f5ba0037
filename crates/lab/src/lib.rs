//! What a measurement or a test starts around itself and stops again: targets as processes of their own
//! (`lunette serve`, tgt, vblade, SPDK), programs from Debian packages, and network namespaces behind links.
//!
//! It depends on nothing of ours but the command line. Errors are messages for a person.
#![forbid(unsafe_code)]

mod daemon;
mod directory;
mod place;
mod process;
mod spdk;
mod tgt;
mod tools;
pub mod vblade;

pub use daemon::Daemon;
pub use directory::Directory;
pub use place::{IN_ORDER, Link, Place};
pub use spdk::Spdk;
pub use tgt::Tgt;
pub use tools::{Packages, Tools};
pub use vblade::Vblade;
