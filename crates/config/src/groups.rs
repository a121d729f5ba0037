//! Matching initiators to the groups of a target.

use super::model::{Group, Network, Target};
use std::net::IpAddr;

impl Target {
    /// The first group that matches an initiator.
    pub fn group_of(&self, initiator: &str, from: IpAddr) -> Option<&Group> {
        self.groups.iter().find(|group| group.matches(initiator, from))
    }
}

impl Group {
    fn matches(&self, initiator: &str, from: IpAddr) -> bool {
        let by_name = self.initiators.is_empty() || self.initiators.iter().any(|p| matches(p, initiator));
        let by_network = self.networks.is_empty() || self.networks.iter().any(|n| n.contains(from));
        by_name && by_network
    }
}

impl Network {
    /// Whether it contains an address; IPv4-mapped IPv6 addresses are recognised.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let bits = |ip: IpAddr| match ip.to_canonical() {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        let ((net, net_width), (host, host_width)) = (bits(self.address), bits(address));
        let bits = u32::from(self.prefix).min(128);
        let mask = if bits == 0 { 0 } else { u128::MAX << (128 - bits) };
        net_width == host_width && net & mask == host & mask
    }
}

/// Whether a name matches a pattern with `*` and `?`, ignoring case (RFC 3722).
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.to_lowercase().chars().collect();
    let name: Vec<char> = name.to_lowercase().chars().collect();
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == '*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            n = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("iqn.*", "iqn.2026-11.a:b", true),
            ("iqn.2026-11.a:?", "iqn.2026-11.A:b", true),
            ("iqn.2026-11.a:?", "iqn.2026-11.a:bc", false),
            ("*:host*1", "iqn.x:host11", true),
            ("", "", true),
            ("*", "", true),
            ("a", "", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn networks() {
        let network = |text: &str, prefix| Network { address: text.parse().expect("an address"), prefix };
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(network("192.0.2.0", 24).contains(ip("192.0.2.77")));
        assert!(!network("192.0.2.0", 24).contains(ip("192.0.3.1")));
        assert!(network("192.0.2.0", 24).contains(ip("::ffff:192.0.2.1")));
        assert!(network("0.0.0.0", 0).contains(ip("203.0.113.9")));
        assert!(!network("0.0.0.0", 0).contains(ip("2001:db8::1")));
        assert!(network("2001:db8::", 32).contains(ip("2001:db8:1::1")));
    }
}
