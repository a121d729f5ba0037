//! The core loop: joins transports, device server and stores.
//!
//! [`Daemon`] serves a verified [`config::Config`] with one `core` thread for each core.
#![forbid(unsafe_code)]

mod access;
mod balance;
pub mod copy;
mod core;
pub mod cpu;
pub mod daemon;
mod files;
mod frame;
mod guid;
mod host;
mod housekeeper;
pub mod initiator;
pub mod limited;
mod logins;
mod message;
mod opening;
pub mod poll;
mod ports;
mod prober;
mod registry;
pub mod remote;
mod slots;
mod state;
#[cfg(test)]
mod testing;
mod transport;
pub mod world;

pub use daemon::Daemon;
pub use host::Host;
