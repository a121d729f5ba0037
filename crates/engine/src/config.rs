//! The desired state. TOML (or the command line) is parsed, then verified into a [`Config`], in which every reference
//! holds and every value is in range; nothing after that can fail for reasons of syntax.

mod raw;
mod spec;
mod verify;

pub use spec::{format_size, parse_size};

use raw::{RawConfig, RawMapping, RawPortal, RawTarget};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;
use verify::Source;

/// The target that is served when none is named.
pub const DEFAULT_TARGET: &str = "iqn.2026-11.io.lunette:disk";
/// The LUN that is served when none is given.
pub const DEFAULT_LUN: &str = "ram:1G";

/// All that is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems(pub Vec<Problem>);

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where: a path into the file with its line, or an option.
    pub place: String,
    /// What, and how to mend it.
    pub what: String,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{}: {}", problem.place, problem.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// What the command line of `serve` gives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Addresses to listen on; they replace the file's portals.
    pub listen: Vec<String>,
    /// The target's name.
    pub target: Option<String>,
    /// LUN SPECs.
    pub luns: Vec<String>,
    /// Cores, as a list or `all`.
    pub cores: Option<String>,
    /// Poll mode.
    pub poll: Option<String>,
    /// State directory.
    pub state_dir: Option<PathBuf>,
}

impl Config {
    /// Verifies a file's text; `path` is where it was read from.
    ///
    /// # Errors
    /// All that is wrong with it, each with its place.
    pub fn from_toml(text: &str, path: &Path, options: &Options) -> Result<Config, Problems> {
        let mut raw: RawConfig = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(1, |t| t.matches('\n').count() + 1);
            one_problem(&format!("line {line}"), error.message())
        })?;
        if options.target.is_some() || !options.luns.is_empty() {
            let what = "with --config, targets and LUNs are in the file; leave --target and --lun out";
            return Err(one_problem("command line", what));
        }
        override_by(&mut raw, options);
        let dir = path.parent().unwrap_or(Path::new("."));
        verify::verify(raw, Source::File { text, dir })
    }

    /// Verifies the command line alone.
    ///
    /// # Errors
    /// All that is wrong with it, each with its option.
    pub fn from_options(options: &Options) -> Result<Config, Problems> {
        let mut raw = RawConfig::default();
        override_by(&mut raw, options);
        let mut problems = Vec::new();
        let specs = if options.luns.is_empty() { &[DEFAULT_LUN.to_owned()][..] } else { &options.luns };
        let mut mappings: Vec<RawMapping> = Vec::new();
        for (index, text) in specs.iter().enumerate() {
            match spec::parse_lun(text) {
                Ok(mut lun) => {
                    let name = lun.name.get_or_insert_with(|| format!("lun{index}")).clone();
                    let number = lun.id.unwrap_or(u16::try_from(index).unwrap_or(u16::MAX));
                    mappings.push(RawMapping { number, lun: name });
                    raw.luns.push(Spanned::new(0..0, lun));
                }
                Err(what) => problems.push(Problem { place: format!("--lun {text}"), what }),
            }
        }
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        let target = RawTarget {
            name: options.target.clone().unwrap_or_else(|| DEFAULT_TARGET.to_owned()),
            alias: None,
            sessions_max: None,
            portals: None,
            luns: mappings,
            groups: Vec::new(),
        };
        raw.targets.push(Spanned::new(0..0, target));
        verify::verify(raw, Source::Options { specs })
    }
}

fn one_problem(place: &str, what: &str) -> Problems {
    Problems(vec![Problem { place: place.to_owned(), what: what.to_owned() }])
}

fn override_by(raw: &mut RawConfig, options: &Options) {
    if !options.listen.is_empty() {
        let portal =
            |listen: &String| RawPortal { name: None, listen: listen.clone(), cores: None, group: None };
        raw.portals = options.listen.iter().map(|listen| Spanned::new(0..0, portal(listen))).collect();
    }
    raw.cores = options.cores.clone().or(raw.cores.take());
    raw.poll = options.poll.clone().or(raw.poll.take());
    raw.state_dir = options.state_dir.clone().or(raw.state_dir.take());
}

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
