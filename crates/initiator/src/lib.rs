//! The initiator role: [`session`] is one session with a target that survives the loss of its connection,
//! [`client`] drives a session on the caller's thread, and [`remote`] turns a unit into a store. The
//! transport of a connection's commands, iSCSI, iSER, SRP or AoE, is only known to `carrier`.
#![forbid(unsafe_code)]

mod carrier;
pub mod client;
mod destination;
mod frames;
mod port;
pub mod remote;
pub mod session;

pub use client::{Client, discover};
pub use destination::{Destination, resolve};
pub use port::InitiatorPort;

use config::Url;
use std::time::Duration;

/// How an initiator behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Our iSCSI name; with SRP, the first half of our port identifier is derived from it.
    pub initiator_name: String,
    /// Commands in flight on one session.
    pub queue_depth: u16,
    /// How long connecting and logging in may take.
    pub login_within: Duration,
    /// How long the target may be silent before it is sent a ping, and how long the answer may take.
    pub keep_alive: Duration,
    /// How long a command waits for a target that is lost, busy or silent before it fails.
    pub give_up_after: Duration,
    /// Send data of writes with the command and unsolicited (ImmediateData, InitialR2T; immediate data of
    /// SRP); otherwise only on request.
    pub unsolicited_data: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            initiator_name: default_name(),
            queue_depth: 128,
            login_within: Duration::from_secs(5),
            keep_alive: Duration::from_secs(5),
            give_up_after: Duration::from_secs(20),
            unsolicited_data: true,
        }
    }
}

impl Options {
    /// Our name at this URL's target.
    pub fn name_for<'a>(&'a self, url: &'a Url) -> &'a str {
        url.initiator_name.as_deref().unwrap_or(&self.initiator_name)
    }
}

/// A name that identifies this machine, for reservations and access lists.
fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.to_ascii_lowercase().chars().filter(fits).collect();
    let host = if host.is_empty() { "initiator" } else { &host };
    format!("iqn.2026-11.io.lunette:{host}")
}
