//! What a running daemon reports over HTTP, and what it can be asked to change.
//!
//! tokio stays in this crate. It runs on one thread of its own, which takes no lock and sends no message that a core
//! would notice: what is to be changed it puts on the daemon's [`Desk`], whose owner does it. What clients can make it do
//! is bounded by the limits of [`server`].
#![forbid(unsafe_code)]

mod api;
mod desk;
mod listener;
mod openapi;
mod ring;
mod server;

pub use desk::{Answer, Desk, Done, Fault, Job, Order, Refusal, Refused, Sessions, State};
pub use listener::{BindError, Listener};
pub use server::{CONNECTIONS_MAX, Server};
