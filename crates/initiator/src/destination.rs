//! The address of a target.

use config::{Protocol, Url};
use std::net::{SocketAddr, ToSocketAddrs};

/// The address of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    /// At this address.
    Address(SocketAddr),
    /// On the Ethernet of the interface with this name.
    Interface(String),
}

impl Destination {
    /// The address, if it is one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Destination::Address(address) => Some(*address),
            Destination::Interface(_) => None,
        }
    }
}

/// Addresses of a URL's host, in the resolver's order. May block.
///
/// # Errors
/// When the name does not resolve.
pub fn resolve(url: &Url) -> std::io::Result<Vec<Destination>> {
    if url.protocol == Protocol::Aoe {
        return Ok(vec![Destination::Interface(url.host.clone())]);
    }
    let addresses: Vec<Destination> =
        (url.host.as_str(), url.port).to_socket_addrs()?.map(Destination::Address).collect();
    if addresses.is_empty() {
        return Err(std::io::Error::other("the name has no address"));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_interfaces_are_found() {
        let found = |text: &str| resolve(&text.parse().expect("a URL")).expect("it");
        assert_eq!(found("aoe://eth0.7/258.3"), [Destination::Interface("eth0.7".into())]);
        assert_eq!(found("iscsi://[::1]"), [Destination::Address("[::1]:3260".parse().unwrap())]);
    }
}
