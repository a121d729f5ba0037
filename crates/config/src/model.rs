//! The verified desired state: what the daemon is to serve. Only types; other modules parse and check them.

use super::access::AdminAccess;
use super::nbd::NbdUrl;
use super::rbd::RbdImage;
use super::url::Url;
use proto::iscsi::chap::Algorithm;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use wire::aoe::{Address, Mac};
use wire::scsi::AccessState;

/// Most portals in a configuration.
pub const PORTALS_MAX: usize = 256;
/// Most targets in a configuration.
pub const TARGETS_MAX: usize = 4096;
/// Most LUNs in a configuration.
pub const LUNS_MAX: usize = 16384;
/// Most groups of a target.
pub const GROUPS_MAX: usize = 1024;
/// Most interfaces that serve AoE.
pub const AOE_INTERFACES_MAX: usize = 64;
/// Highest LUN number: the limit of flat space addressing (SAM-5 section 4.7.7.3).
pub const LUN_NUMBER_MAX: u16 = wire::scsi::lun::NUMBER_MAX;
/// Most commands that a session may have in flight.
pub const QUEUE_DEPTH_MAX: u16 = 128;
/// Largest configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// A verified configuration.
/// Its fields are one for each section or global key of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Core numbers to run on, ascending, at least one.
    pub cores: Vec<usize>,
    /// How idle cores wait.
    pub poll: Poll,
    /// Where state that survives a restart is stored (APTPL reservations); `None`: nowhere.
    pub state_dir: Option<PathBuf>,
    /// Where the admin interface listens.
    pub admin: AdminPlace,
    /// The group whose users may also use its socket.
    pub admin_group: Option<String>,
    /// Who may make changes over TCP, and how connections are encrypted.
    pub admin_access: Arc<AdminAccess>,
    /// The gateways that share LUNs; `None`: this daemon shares none.
    pub cluster: Option<Box<Cluster>>,
    /// Backing stores with their units.
    pub luns: Vec<Lun>,
    /// Targets.
    pub targets: Vec<Target>,
    /// Addresses to listen on.
    pub portals: Vec<Portal>,
    /// The configured portal groups, ascending by tag.
    pub portal_groups: Vec<PortalGroup>,
    /// Interfaces that serve AoE.
    pub aoe: Vec<AoeInterface>,
    /// How long a connection may take to log in.
    pub login_timeout: Duration,
    /// Idle time after which a NOP-In ping is sent to the initiator, which has as long to answer.
    pub keep_alive: Duration,
    /// How long data to or from an initiator may make no progress before its session is ended.
    pub stall_timeout: Duration,
    /// Most connections that may be logging in at the same time, over all portals.
    pub logins_max: usize,
    /// Identifies the SRP target ports, as both id_ext and ioc_guid; `None`: one is generated, and kept in the state directory.
    pub srp_guid: Option<u64>,
}

/// The gateways that share LUNs, and which of them this one is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// The same in each gateway's file.
    pub name: String,
    /// The name of this gateway.
    pub gateway: String,
    /// The pool that holds their shared state, and how to access it; it names no image.
    pub place: RbdImage,
    /// Time within which another gateway becomes active when one dies.
    pub takeover: Duration,
    /// Time within which all OSDs have a new OSD map: with it they refuse a gateway that was fenced.
    pub osd_map_delay: Duration,
}

/// How idle cores wait for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// Spin for a bounded time that adapts to the arrival rate, then sleep.
    Adaptive,
    /// Spin.
    Always,
    /// Sleep.
    Never,
}

/// Whether there is an admin interface, and where.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum AdminPlace {
    /// Where commands expect it, if it can listen there.
    #[default]
    Usual,
    /// There is none.
    Nowhere,
    /// At this address.
    At(AdminAddress),
}

/// Where the admin interface listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminAddress {
    /// A socket in the file system, for its owner only.
    Unix(PathBuf),
    /// An address and a port; port 0 picks any free one.
    Tcp(SocketAddr),
}

/// A listening address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Its name in the file, if it has one.
    pub name: Option<String>,
    /// Address and port.
    pub listen: SocketAddr,
    /// Cores that accept its connections (a subset of [`Config::cores`]), at least one.
    pub cores: Vec<usize>,
    /// Target portal group tag, from 1.
    pub group: u16,
    /// The protocols offered.
    pub transports: Transports,
    /// Whether RDMA devices listen there, for iSER and SRP.
    pub rdma: ByDevice,
    /// It accepts no new sessions, and existing ones are asked to log out within this time.
    pub drain: Option<Duration>,
    /// Logins using iSCSI names are redirected to this address.
    pub redirect: Option<SocketAddr>,
}

/// The portal that accepts connections to a local address, by its index in `addresses`: the one with that
/// address, or else the one that listens on all addresses of its family with that port. `[::]` accepts no
/// IPv4 connections (IPV6_V6ONLY).
pub fn portal_of(addresses: &[SocketAddr], local: SocketAddr) -> Option<usize> {
    let is_wild = |address: &SocketAddr| {
        address.ip().is_unspecified()
            && address.port() == local.port()
            && address.is_ipv6() == local.is_ipv6()
    };
    let exact = addresses.iter().position(|address| *address == local);
    exact.or_else(|| addresses.iter().position(is_wild))
}

/// Portals with the same tag, which initiators see as one target port group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortalGroup {
    /// Target portal group tag.
    pub tag: u16,
    /// The asymmetric access state of units reached through them.
    pub state: AccessState,
    /// Whether initiators should prefer them.
    pub preferred: bool,
    /// Whether initiators may set the state, for each unit separately.
    pub explicit: bool,
    /// The identifiers of their ports.
    pub port_ids: PortIds,
}

/// Relative target port identifiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortIds {
    /// The first.
    pub first: u16,
    /// The last, not less than the first.
    pub last: u16,
}

impl PortIds {
    /// All identifiers.
    pub const ALL: PortIds = PortIds { first: 1, last: u16::MAX };
}

/// Whether RDMA devices listen at a portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByDevice {
    /// Only TCP listens.
    No,
    /// As well as TCP.
    Too,
    /// Instead of TCP.
    Only,
}

/// An interface that serves every unit with an AoE address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AoeInterface {
    /// Name of the network interface.
    pub name: String,
    /// Cores that receive its frames (a subset of [`Config::cores`]), at least one.
    pub cores: Vec<usize>,
    /// Initiators to serve; empty: all.
    pub allow: BTreeSet<Mac>,
    /// Initiators not to serve, even if allowed.
    pub deny: BTreeSet<Mac>,
}

impl AoeInterface {
    /// Whether frames from this address are accepted.
    pub fn admits(&self, mac: Mac) -> bool {
        !self.deny.contains(&mac) && (self.allow.is_empty() || self.allow.contains(&mac))
    }
}

/// The transports that a portal offers, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transports {
    /// iSCSI over TCP.
    pub iscsi: bool,
    /// iSER over iWARP in user space.
    pub iser: bool,
    /// SRP over iWARP in user space.
    pub srp: bool,
}

impl Transports {
    /// The default transports.
    pub const DEFAULT: Transports = Transports { iscsi: true, iser: true, srp: false };

    /// Whether initiators log in to targets by iSCSI name.
    pub fn any_iscsi(self) -> bool {
        self.iscsi || self.iser
    }
}

/// A logical unit and its store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lun {
    /// Name, unique among LUNs: used by targets and in the log.
    pub name: String,
    /// The store.
    pub store: StoreSpec,
    /// Logical block size in bytes; for a remote store, that of its unit once it is open.
    pub block_bytes: u32,
    /// Physical block size in bytes.
    pub physical_block_bytes: u32,
    /// Unit serial number.
    pub serial: String,
    /// Whether the serial number is the same at the next start.
    pub serial_lasts: bool,
    /// Product identification.
    pub product: String,
    /// Read-only.
    pub read_only: bool,
    /// Write cache enabled at start.
    pub write_cache: bool,
    /// Thin provisioned.
    pub thin: bool,
    /// The percentage of its size that it may use before its initiators are notified; `None`: never.
    pub warn_at: Option<u8>,
    /// Removable medium.
    pub removable: bool,
    /// Its AoE address; `None`: it is not served over AoE.
    pub aoe: Option<Address>,
    /// Limits for all its sessions together.
    pub limits: Limits,
    /// How the cluster's gateways share it; `None`: this daemon serves it alone.
    pub access: Option<Access>,
}

impl Lun {
    /// Whether the cluster's gateways share it.
    pub fn is_shared(&self) -> bool {
        self.access.is_some()
    }
}

/// Which of the gateways that share a LUN access its medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// One at a time; the others are in standby.
    One,
    /// All at once.
    All,
}

/// Where a unit's data is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreSpec {
    /// Reads as zeros; discards writes.
    Null {
        /// Bytes.
        size: u64,
    },
    /// Memory.
    Ram {
        /// Bytes.
        size: u64,
        /// Whether it uses huge pages.
        huge_pages: HugePages,
    },
    /// A file; created (sparse) when `size` is given and it does not exist.
    File {
        /// Path.
        path: PathBuf,
        /// Bytes; `None`: the current size of the file.
        size: Option<u64>,
    },
    /// A block device.
    Block {
        /// Path.
        path: PathBuf,
    },
    /// A unit of another target, whose block size it has.
    Remote {
        /// Its URL.
        url: Box<Url>,
        /// The block size that it must have; `None`: any.
        block_bytes: Option<u32>,
    },
    /// An export of an NBD server.
    Nbd {
        /// Its URL.
        url: Box<NbdUrl>,
    },
    /// An image of Ceph's block devices.
    Rbd {
        /// The image.
        image: Box<RbdImage>,
        /// The unit's identifiers are derived from the image, not from a configured serial number.
        names_unit: bool,
    },
}

/// Whether a disk in memory uses huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HugePages {
    /// If all RAM disks together fit into the memory available to this process, even when full.
    #[default]
    Auto,
    /// Yes.
    Always,
    /// No: a disk uses only as much memory as has been written.
    Never,
}

/// As on the command line, without sizes of files and secrets of URLs.
impl std::fmt::Display for StoreSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreSpec::Null { size } => write!(f, "null:{size}"),
            StoreSpec::Ram { size, .. } => write!(f, "ram:{size}"),
            StoreSpec::File { path, .. } => write!(f, "file:{}", path.display()),
            StoreSpec::Block { path } => write!(f, "block:{}", path.display()),
            StoreSpec::Remote { url, .. } => write!(f, "{url}"),
            StoreSpec::Nbd { url } => write!(f, "{url}"),
            StoreSpec::Rbd { image, .. } => write!(f, "{image}"),
        }
    }
}

/// A target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// iSCSI name, normalised (RFC 3722: lower case).
    pub name: String,
    /// Alias.
    pub alias: Option<String>,
    /// Most sessions.
    pub sessions_max: usize,
    /// Commands that a session may have in flight, unless its group sets a limit.
    pub queue_depth: Option<u16>,
    /// Indices into [`Config::portals`] of the portals that expose the target, at least one.
    pub portals: Vec<usize>,
    /// LUN number and index into [`Config::luns`], ascending by number: what initiators see unless their group has a
    /// list of its own.
    pub luns: Vec<(u16, usize)>,
    /// Groups, in order; the first that matches an initiator decides. No groups: everyone may log in. Groups, but
    /// none that matches: refused.
    pub groups: Vec<Group>,
}

/// A group of initiators of one target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name, for the log.
    pub name: String,
    /// Initiator name patterns (`*` and `?`), lower case; empty: any name.
    pub initiators: Vec<String>,
    /// Networks that the initiator may connect from; empty: any.
    pub networks: Vec<Network>,
    /// Matching initiators are refused.
    pub deny: bool,
    /// All LUNs are read-only for this group.
    pub read_only: bool,
    /// LUN number and index into [`Config::luns`], ascending by number; `None`: the target's list.
    pub luns: Option<Vec<(u16, usize)>>,
    /// CHAP; `None`: no authentication.
    pub chap: Option<Chap>,
    /// Commands that a session may have in flight; `None`: the target's limit.
    pub queue_depth: Option<u16>,
    /// Limits for all its sessions together.
    pub limits: Limits,
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
    /// The name and secret with which the target authenticates itself, if requested.
    pub mutual: Option<(String, Vec<u8>)>,
    /// Accepted algorithms, best first; empty: all, as the initiator prefers.
    pub algorithms: Vec<Algorithm>,
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chap").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Limits, each for all sessions and cores together; `None`: unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Limits {
    /// Commands per second.
    pub iops: Option<Rate>,
    /// Bytes per second.
    pub bytes: Option<Rate>,
}

/// A limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Amount per second.
    pub per_second: u64,
    /// Burst after a pause; at least [`Rate::BURST_MILLIS`] of the rate.
    pub burst: u64,
}

impl Rate {
    /// The smallest burst: what the rate allows in this time.
    pub const BURST_MILLIS: u64 = 20;
}

impl Limits {
    /// Whether anything is limited.
    pub fn any(&self) -> bool {
        self.iops.is_some() || self.bytes.is_some()
    }
}
