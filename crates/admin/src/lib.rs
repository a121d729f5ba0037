//! The HTTP interface to a running daemon: what it reports, and what can be changed.
//!
//! tokio stays in this crate, on one thread. Configuration changes are submitted to the daemon's [`Hub`],
//! whose owner makes them. Only sessions are listed and ended from here, on a few more threads, since these
//! have to wait for answers from cores: one list at a time, in a bounded share of the cores' time. The load
//! that clients can cause is bounded by the limits of [`server`] and of the hub.
#![forbid(unsafe_code)]

mod api;
mod hub;
mod listener;
mod openapi;
mod ring;
mod server;
mod tls;

pub use hub::{
    Answer, ChangeRequest, Done, Fault, Format, Hub, Job, Readings, Refusal, Refused, Sessions, State,
};
pub use listener::{BindError, Listener};
pub use server::{CONNECTIONS_MAX, Server};
pub use tls::{Access, Authorities, Insecure, Secured, is_host, secure};
