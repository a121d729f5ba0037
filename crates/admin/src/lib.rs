//! What a running daemon reports over HTTP, and what it can be asked to change.
//!
//! tokio stays in this crate, on one thread. Changes of the configuration are submitted to the daemon's [`Desk`], whose owner
//! makes them. Only sessions are listed and ended from here, on a few more threads, since cores answer by messages that have to
//! be waited for: one list at a time, in a bounded share of the cores' time. What clients can make it do is bounded by the
//! limits of [`server`] and of the desk.
#![forbid(unsafe_code)]

mod api;
mod desk;
mod listener;
mod openapi;
mod ring;
mod server;
mod tls;

pub use desk::{
    Answer, ChangeRequest, Desk, Done, Fault, Format, Job, Readings, Refusal, Refused, Sessions, State,
};
pub use listener::{BindError, Listener};
pub use server::{CONNECTIONS_MAX, Server};
pub use tls::{Access, Authorities, Insecure, Secured, is_host, secure};
