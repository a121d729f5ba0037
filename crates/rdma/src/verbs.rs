//! RDMA devices of the system, through libibverbs, with librdmacm for establishing connections; both are
//! loaded at run time.
//!
//! [`Listener`] accepts connection requests of peers. [`Devices`] holds a core's state: the devices that its
//! connections use, each with the core's arena registered, and the descriptors that become readable on
//! events. A [`QueuePair`] is one connection, the [`Provider`](crate::provider::Provider) beneath a
//! [`Channel`](crate::Channel). [`survey`] lists the devices.
//!
//! # What the `unsafe` blocks rely on
//! - The libraries' objects are created and destroyed only here. [`Id`](cm::Id),
//!   [`EventChannel`](cm::EventChannel), [`Device`](device::Device) and [`QueuePair`] each own theirs, and
//!   hold the objects it depends on by `Arc`, so that those are destroyed after it. The libraries may be
//!   called from any thread (libibverbs and librdmacm are thread-safe).
//! - A device accesses memory only where posted work names it, and only in the arena: a receive belongs to
//!   its connection, which returns it after the queue pair is destroyed; all other places are lent
//!   ([`Arena::lend`](reactor::memory::Arena::lend)) until their work is finished, or the queue pair is
//!   destroyed. Peers have no access: the arena is registered for local use only.
//! - An iWARP device reads into a [`Sink`](sink::Sink) of the connection, which its peer may write. Data is
//!   copied out of it, and nothing ever references it.
//! - Events are acknowledged as they are read, so nothing waits for acknowledgements.

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

pub use devices::{Change, DeviceEvent, Devices};
pub use library::Missing;
pub use listener::{Arrival, Incoming, Listener};
pub use pair::{Depths, QueuePair};
pub use survey::{DeviceFacts, LinkLayer, PortFacts, PortState, Transport, Unknown, survey};

use std::fmt;
use std::io;

/// Why an operation on a device failed.
#[derive(Debug)]
pub enum Error {
    /// The libraries are missing.
    Missing(Missing),
    /// A system call failed.
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// The device lacks a required capability.
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

/// The error that a call has left in `errno`.
fn last(what: &'static str) -> Error {
    Error::System { what, error: io::Error::last_os_error() }
}

/// For a call that returns 0 on success, and leaves the error in `errno` otherwise.
fn done(what: &'static str, result: i32) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(last(what)) }
}

/// Makes a descriptor non-blocking.
fn set_nonblocking(descriptor: i32) -> Result<(), Error> {
    // SAFETY: the descriptor is open: it belongs to an object of the library that the caller holds.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    rustix::io::ioctl_fionbio(descriptor, true)
        .map_err(|errno| Error::System { what: "setting a descriptor nonblocking", error: errno.into() })
}
