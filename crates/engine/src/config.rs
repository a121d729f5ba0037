//! The desired state. TOML (or the command line) is parsed, then verified into a [`Config`], in which every reference
//! holds and every value is in range; nothing after that can fail for reasons of syntax.
//!
//! `file` and `options` read the two sources into one raw form, `verify` and `access` make a [`Config`] of it, and
//! [`diff`] says how to get from one [`Config`] to another.

mod access;
mod diff;
mod file;
mod options;
mod problems;
mod raw;
mod scalar;
mod spec;
mod verify;

pub use diff::{StepOfChange, diff};
pub use options::ServeOptions;
pub use problems::{Problem, Problems};
pub use scalar::{human_size, show_cores};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Portals of a configuration.
pub const PORTALS_MAX: usize = 256;
/// Targets of a configuration.
pub const TARGETS_MAX: usize = 4096;
/// LUNs of a configuration.
pub const LUNS_MAX: usize = 16384;
/// Groups of a target.
pub const GROUPS_MAX: usize = 1024;
/// Highest LUN number: what flat space addressing reaches (SAM-5 section 4.7.7.3).
pub const LUN_NUMBER_MAX: u16 = 16383;
/// Bytes of a configuration file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// A verified configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Core numbers to run on, ascending, at least one.
    pub cores: Vec<usize>,
    /// How idle cores wait.
    pub poll: Poll,
    /// Where state that survives a restart is kept (APTPL reservations); `None`: nowhere.
    pub state_dir: Option<PathBuf>,
    /// Backing stores with their units.
    pub luns: Vec<Lun>,
    /// Targets.
    pub targets: Vec<Target>,
    /// Addresses that are listened on.
    pub portals: Vec<Portal>,
    /// How long a connection may take to log in.
    pub login_timeout: Duration,
    /// Idle time after which a NOP-In asks whether the initiator lives; it has as long to answer.
    pub keep_alive: Duration,
    /// Connections that may be logging in at once, over all portals.
    pub logins_max: usize,
}

impl Config {
    /// Reads and verifies a file's text; `path` names it in faults, and relative paths in it start at its folder.
    pub fn from_toml(text: &str, path: &Path) -> Result<Config, Problems> {
        let mut problems = problems::Collector::new(Some((path, text)));
        let raw = file::read(text, &mut problems);
        let machine = verify::Machine::here(path.parent());
        let config = raw.and_then(|raw| verify::verify(raw, &machine, &mut problems));
        problems.finish(config)
    }

    /// As [`Config::from_toml`], from the file itself.
    pub fn from_file(path: &Path) -> Result<Config, Problems> {
        Config::from_toml(&options::load(path)?, path)
    }

    /// The configuration that the command line asks for.
    pub fn from_options(options: &ServeOptions) -> Result<Config, Problems> {
        options::config(options)
    }
}

/// How idle cores wait for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// Spin for a bounded time that adapts to arrivals, then sleep.
    Adaptive,
    /// Spin.
    Always,
    /// Sleep.
    Never,
}

/// A listening address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Address and port.
    pub listen: SocketAddr,
    /// Cores that take its connections (a subset of [`Config::cores`]), at least one.
    pub cores: Vec<usize>,
    /// Target portal group tag, from 1.
    pub group: u16,
}

/// A logical unit and its store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lun {
    /// Name, unique among LUNs: how targets refer to it, and what the log says.
    pub name: String,
    /// The store.
    pub store: StoreSpec,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Physical block size in bytes.
    pub physical_block_bytes: u32,
    /// Unit serial number.
    pub serial: String,
    /// Product identification.
    pub product: String,
    /// Read-only.
    pub read_only: bool,
    /// Write cache enabled at start.
    pub write_cache: bool,
    /// Thin provisioned.
    pub thin: bool,
    /// Removable medium.
    pub removable: bool,
}

/// Where a unit's data lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreSpec {
    /// Zeros; writes vanish.
    Null {
        /// Bytes.
        size: u64,
    },
    /// Memory.
    Ram {
        /// Bytes.
        size: u64,
    },
    /// A file; made (sparse) when `size` is given and it does not exist.
    File {
        /// Path.
        path: PathBuf,
        /// Bytes; `None`: as large as the file is.
        size: Option<u64>,
    },
    /// A block device.
    Block {
        /// Path.
        path: PathBuf,
    },
}

/// A target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// iSCSI name, normalised (RFC 3722: lower case).
    pub name: String,
    /// Alias.
    pub alias: Option<String>,
    /// Sessions at most.
    pub sessions_max: usize,
    /// Indices into [`Config::portals`] through which the target is reached, at least one.
    pub portals: Vec<usize>,
    /// LUN number and index into [`Config::luns`], ascending by number: what initiators see unless their group has a
    /// list of its own.
    pub luns: Vec<(u16, usize)>,
    /// Groups, in order; the first that matches an initiator decides. No groups: everyone may log in. Groups, but
    /// none that matches: refused.
    pub groups: Vec<Group>,
}

/// What a target grants to an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access<'a> {
    /// The target has no groups: its own LUN list, read and write, no authentication.
    Open,
    /// As this group says.
    Group(&'a Group),
    /// No group matches.
    Unknown,
    /// This group refuses it.
    Denied(&'a Group),
}

impl Target {
    /// What the initiator of this name may do that comes from this address.
    pub fn access(&self, initiator: &str, from: IpAddr) -> Access<'_> {
        if self.groups.is_empty() {
            return Access::Open;
        }
        match self.groups.iter().find(|group| group.matches(initiator, from)) {
            None => Access::Unknown,
            Some(group) if group.deny => Access::Denied(group),
            Some(group) => Access::Group(group),
        }
    }
}

/// A group of initiators of one target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// For the log.
    pub name: String,
    /// Initiator name patterns (`*` and `?`), lower case; empty: any name.
    pub initiators: Vec<String>,
    /// Networks the initiator may come from; empty: any.
    pub networks: Vec<Network>,
    /// A match is refused.
    pub deny: bool,
    /// All LUNs are read-only for this group.
    pub read_only: bool,
    /// LUN number and index into [`Config::luns`], ascending by number; `None`: the target's list.
    pub luns: Option<Vec<(u16, usize)>>,
    /// CHAP; `None`: no authentication.
    pub chap: Option<Chap>,
}

impl Group {
    /// Whether an initiator of this name that comes from this address belongs to the group.
    pub fn matches(&self, initiator: &str, from: IpAddr) -> bool {
        let name = initiator.to_lowercase();
        let named = self.initiators.is_empty() || self.initiators.iter().any(|p| wildcard(p, &name));
        let placed = self.networks.is_empty() || self.networks.iter().any(|network| network.contains(from));
        named && placed
    }
}

/// Whether the pattern, in which `*` stands for any text and `?` for one character, is the whole of `text`.
fn wildcard(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            Some(_) | None => match &mut star {
                None => return false,
                Some((at, taken)) => {
                    *taken += 1;
                    (p, t) = (*at + 1, *taken);
                }
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// An address prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// Address, host bits zero.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl Network {
    /// The network of this prefix that holds the address. `prefix` is at most 32 or 128.
    pub fn new(address: IpAddr, prefix: u8) -> Network {
        let address = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Network { address, prefix }
    }

    /// Whether the address lies in it; an IPv4 address counts as such also when it came over an IPv6 socket.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && Network::new(address, self.prefix) == *self
    }
}

/// CHAP credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Chap {
    /// The name that the initiator gives.
    pub user: String,
    /// Its secret.
    pub secret: Vec<u8>,
    /// The name and secret with which the target proves itself, if asked.
    pub mutual: Option<(String, Vec<u8>)>,
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chap").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(initiators: &[&str], networks: &[&str], deny: bool) -> Group {
        Group {
            name: "g".into(),
            initiators: initiators.iter().map(|s| s.to_string()).collect(),
            networks: networks.iter().map(|text| scalar::network(text).unwrap()).collect(),
            deny,
            read_only: false,
            luns: None,
            chap: None,
        }
    }

    fn target(groups: Vec<Group>) -> Target {
        let name = "iqn.2026-11.io.lunette:t".into();
        Target { name, alias: None, sessions_max: 1, portals: vec![0], luns: vec![], groups }
    }

    #[test]
    fn the_first_matching_group_decides() {
        let from = "10.1.2.3".parse().unwrap();
        let groups = vec![
            group(&["iqn.1993-08.org.debian:bad*"], &[], true),
            group(&["iqn.1993-08.org.debian:*"], &["10.0.0.0/8", "fd00::/8"], false),
        ];
        let t = target(groups);
        assert_eq!(t.access("iqn.1993-08.org.debian:bad1", from), Access::Denied(&t.groups[0]));
        assert_eq!(t.access("iqn.1993-08.org.Debian:Good", from), Access::Group(&t.groups[1]));
        assert_eq!(t.access("iqn.1993-08.org.debian:good", "11.0.0.1".parse().unwrap()), Access::Unknown);
        assert_eq!(t.access("iqn.1991-05.com.microsoft:pc", from), Access::Unknown);
        assert_eq!(target(vec![]).access("anyone", from), Access::Open);
    }

    #[test]
    fn networks_contain_their_addresses_only() {
        let network = scalar::network("10.1.0.0/16").unwrap();
        assert!(network.contains("10.1.255.255".parse().unwrap()));
        assert!(network.contains("::ffff:10.1.0.1".parse().unwrap()));
        assert!(!network.contains("10.2.0.0".parse().unwrap()));
        assert!(!network.contains("fd00::1".parse().unwrap()));
        assert!(scalar::network("::/0").unwrap().contains("fd00::1".parse().unwrap()));
        assert!(scalar::network("0.0.0.0/0").unwrap().contains("255.0.0.1".parse().unwrap()));
    }

    #[test]
    fn wildcards_stand_for_any_text_and_for_one_character() {
        for (pattern, text) in [("*", ""), ("a*c", "abbc"), ("a?c", "abc"), ("*b*", "abc"), ("", ""), ("a**", "a")] {
            assert!(wildcard(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a?c", "ac"), ("a*c", "ab"), ("?", ""), ("ab", "abc")] {
            assert!(!wildcard(pattern, text), "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn a_wildcard_matches_as_the_definition_says(pattern in "[ab*?]{0,6}", text in "[ab]{0,7}") {
            fn defined(p: &[u8], t: &[u8]) -> bool {
                match (p.split_first(), t.split_first()) {
                    (None, None) => true,
                    (None, Some(_)) => false,
                    (Some((b'*', rest)), _) => (0..=t.len()).any(|n| defined(rest, &t[n..])),
                    (Some((c, p)), Some((d, t))) => (*c == b'?' || c == d) && defined(p, t),
                    (Some(_), None) => false,
                }
            }
            prop_assert_eq!(wildcard(&pattern, &text), defined(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
