//! The desired state. TOML (or the command line) is parsed, then verified into a [`Config`], in which every reference
//! holds and every value is in range; nothing after that can fail for reasons of syntax.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

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
    /// LUN number and index into [`Config::luns`], for initiators that match no group, or whose group has no list.
    pub luns: Vec<(u16, usize)>,
    /// Groups, in order; the first that matches an initiator decides. No groups: everyone may log in.
    pub groups: Vec<Group>,
}

/// A group of initiators of one target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// For the log.
    pub name: String,
    /// Initiator name patterns (`*` and `?`); empty: any name.
    pub initiators: Vec<String>,
    /// Networks the initiator may come from; empty: any.
    pub networks: Vec<Network>,
    /// A match is refused.
    pub deny: bool,
    /// All LUNs are read-only for this group.
    pub read_only: bool,
    /// LUN number and index into [`Config::luns`]; `None`: the target's list.
    pub luns: Option<Vec<(u16, usize)>>,
    /// CHAP; `None`: no authentication.
    pub chap: Option<Chap>,
}

/// An address prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// Address, host bits zero.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
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
