//! The core loop: joins transports, device server and stores, and holds the configuration.
//!
//! [`config`] turns text into a verified [`config::Config`]; [`Daemon`] serves it with one `core` thread for each core.
#![forbid(unsafe_code)]

mod access;
mod balance;
pub mod config;
pub mod copy;
mod core;
pub mod cpu;
pub mod daemon;
mod files;
mod frame;
mod guid;
mod housekeeper;
pub mod initiator;
pub mod limited;
mod logins;
mod memory;
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
