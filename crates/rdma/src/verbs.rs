//! RDMA devices of the system: by libibverbs, and librdmacm for making connections, both found at run time.
//!
//! [`Listener`] accepts connection requests of peers. What a core has is in [`Devices`]: the devices that its
//! connections use, each with the core's arena registered, and the descriptors that become readable on
//! events. A [`QueuePair`] is one connection, the [`Provider`](crate::provider::Provider) under a
//! [`Channel`](crate::Channel). [`survey`] reports what devices there are.
//!
//! # What the `unsafe` blocks rely on
//! - Objects of the libraries are made and ended here only. [`Id`](cm::Id), [`EventChannel`](cm::EventChannel),
//!   [`Device`](device::Device) and [`QueuePair`] each own theirs, and hold what they are made of by `Arc`, so that it ends
//!   after them. The libraries may be called from any thread (libibverbs and librdmacm are thread-safe).
//! - A device touches memory only where work that was posted names it, and only of the arena: a receive belongs to its
//!   connection, which returns it after the queue pair is gone; all other places are lent
//!   ([`Arena::lend`](reactor::memory::Arena::lend)) until their work is finished, or the queue pair is gone. A peer
//!   reaches nothing: the arena is registered for local use only.
//! - An iWARP device reads into a [`Sink`](sink::Sink) of the connection, which its peer may write. It is copied from, and
//!   never referred to.
//! - Events are acknowledged where they are taken, so nothing waits for that.

mod cm;
mod device;
mod devices;
mod library;
mod listener;
mod pair;
mod queue;
mod sink;
mod survey;
mod sys;

pub use devices::{Change, Devices, Happened};
pub use library::Missing;
pub use listener::{Arrival, Incoming, Listener};
pub use pair::{Depths, QueuePair};
pub use survey::{DeviceFacts, LinkLayer, PortFacts, PortState, Transport, Unknown, survey};

use std::fmt;
use std::io;

/// Why something could not be done with a device.
#[derive(Debug)]
pub enum Error {
    /// The libraries are not there.
    Missing(Missing),
    /// The system refused it.
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// The device cannot do what is needed.
    Unfit(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing(missing) => write!(f, "{missing}"),
            Error::System { what, error } => write!(f, "{what}: {error}"),
            Error::Unfit(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Error {
        Error::Missing(missing)
    }
}

/// What a call has left in `errno`.
fn last(what: &'static str) -> Error {
    Error::System { what, error: io::Error::last_os_error() }
}

/// Of a call that returns 0 when it is done, and leaves the reason in `errno` otherwise.
fn done(what: &'static str, result: i32) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(last(what)) }
}

/// A descriptor is read without waiting.
fn set_nonblocking(descriptor: i32) -> Result<(), Error> {
    // SAFETY: the descriptor is open: it belongs to an object of the library that the caller holds.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    rustix::io::ioctl_fionbio(descriptor, true)
        .map_err(|errno| Error::System { what: "setting a descriptor nonblocking", error: errno.into() })
}
