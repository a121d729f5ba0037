//! The machine against which a configuration is verified.

use super::access::AdminAccess;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Facts about the machine against which a configuration is verified.
pub(super) struct Machine {
    /// Cores that this process may run on.
    pub(super) cores: Vec<usize>,
    /// Identifies this machine, the same at every start (machine-id(5)). Containers and images may have none.
    pub(super) id: Option<String>,
    /// Identifies this process: no two daemons serve the same memory.
    pub(super) process: String,
    /// Addresses of its network interfaces.
    pub(super) addresses: Vec<IpAddr>,
    /// Relative paths start here; absolute.
    pub(super) base: PathBuf,
    /// Who may do what over TCP, when the files for that are not read again.
    pub(super) access: Option<Arc<AdminAccess>>,
}

impl Machine {
    /// This machine. `base`: the directory of the configuration file.
    pub(super) fn here(base: Option<&Path>) -> Machine {
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let base = base.map_or(here.clone(), |base| here.join(base));
        let id = machine_id(&std::fs::read_to_string("/etc/machine-id").unwrap_or_default());
        let (cores, process) = (usable_cores(), process_id().to_owned());
        Machine { cores, id, process, addresses: addresses(), base, access: None }
    }

    /// Whether an address is one of this machine's.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

/// The content of a machine-id file, unless the ID is not yet initialised (machine-id(5)).
pub(super) fn machine_id(file: &str) -> Option<String> {
    let id = file.trim();
    (!id.is_empty() && id != "uninitialized").then(|| id.into())
}

/// The same for the lifetime of this process.
fn process_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let mut random = [0; 16];
        getrandom::fill(&mut random).expect("the system gives random bytes");
        random.iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

/// Addresses of this machine's network interfaces.
fn addresses() -> Vec<IpAddr> {
    let address = |address: SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    let interfaces = getifaddrs().into_iter().flatten();
    interfaces.filter_map(|interface| interface.address.and_then(address)).collect()
}

/// Cores that this process may run on.
pub(super) fn usable_cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
        Err(_) => (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect(),
    }
}
