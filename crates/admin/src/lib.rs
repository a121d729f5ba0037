//! What a running daemon reports over HTTP: the CPU time that it uses. It is read-only.
//!
//! tokio stays in this crate. It runs on one thread of its own, which takes no lock and sends no message that a core
//! would notice; what clients can make it do is bounded by the limits of [`server`].
#![forbid(unsafe_code)]

mod listener;
mod server;

pub use listener::{BindError, Listener};
pub use server::{CONNECTIONS_MAX, Server};
