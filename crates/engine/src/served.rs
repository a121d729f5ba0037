//! What is served at present: an immutable snapshot, which every core uses until it gets the next one.

mod offer;

use crate::access::ConfiguredAccess;
use crate::ledger::Ledger;
use crate::limits::Limits;
use crate::ports::Ports;
use crate::registry::Registry;
use config::{AoeInterface, Config, Group, Lun, Portal};
use rdma::verbs::Listener;
use reactor::io::Handle;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use wire::aoe::Address;

pub(crate) use offer::Delta;

/// A target as its sessions see it.
#[derive(Debug)]
pub(crate) struct Named {
    /// Unique, also among earlier targets.
    pub(crate) number: usize,
    pub(crate) name: String,
}

/// A portal that listens.
pub(crate) struct Endpoint {
    /// Unique, also among earlier portals.
    pub(crate) number: usize,
    /// Its address, with the port that was bound.
    pub(crate) address: SocketAddr,
    /// The listening socket, if there is one.
    pub(crate) handle: Option<Handle>,
    /// Keeps the socket open as long as a core may accept from it.
    pub(crate) socket: Option<Arc<TcpListener>>,
    /// The listener of RDMA devices.
    pub(crate) by_device: Option<Arc<Listener>>,
}

/// An interface on which AoE is served.
pub(crate) struct Segment {
    /// Unique, also among earlier interfaces, and new when the same interface is added again.
    pub(crate) number: usize,
    pub(crate) interface: AoeInterface,
}

/// What is served: LUNs, and how and to whom they are shown.
pub(crate) struct Served {
    /// How many snapshots there were before.
    pub(crate) epoch: u64,
    /// The configuration, completed with what only stores know.
    pub(crate) config: Arc<Config>,
    /// The number of each LUN's unit, in the configuration's order.
    pub(crate) units: Vec<u32>,
    /// The targets, in that order.
    pub(crate) targets: Vec<Arc<Named>>,
    /// The portals, in that order.
    pub(crate) endpoints: Vec<Arc<Endpoint>>,
    /// The interfaces of AoE, in that order.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// The target ports.
    pub(crate) ports: Ports,
    /// Units by their AoE address.
    pub(crate) exports: BTreeMap<Address, u32>,
    /// The ledgers of units that are exported over AoE since this snapshot.
    pub(crate) ledgers: Vec<(u32, Arc<Ledger>)>,
    /// Limits.
    pub(crate) limits: Limits,
    /// The access rules.
    pub(crate) access: Arc<ConfiguredAccess>,
    /// The differences from the previous snapshot.
    pub(crate) delta: Delta,
}

/// The parts of a snapshot.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) units: Vec<u32>,
    pub(crate) targets: Vec<Arc<Named>>,
    pub(crate) endpoints: Vec<Arc<Endpoint>>,
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) ledgers: Vec<(u32, Arc<Ledger>)>,
}

impl Served {
    /// The first snapshot: units and targets are numbered by their positions.
    pub(crate) fn first(config: Config, endpoints: Vec<Arc<Endpoint>>, registry: &Arc<Registry>) -> Served {
        let units = (0..).zip(&config.luns).map(|(number, _)| number).collect();
        let named = |(number, target): (usize, &config::Target)| Named { number, name: target.name.clone() };
        let targets = config.targets.iter().enumerate().map(named).map(Arc::new).collect();
        config.luns.iter().for_each(warn_of_blocks);
        let ports = Ports::of(&config, None);
        let segment =
            |(number, interface): (usize, &AoeInterface)| Segment { number, interface: interface.clone() };
        let segments = config.aoe.iter().enumerate().map(segment).map(Arc::new).collect();
        let parts = Parts { config, units, targets, endpoints, segments, ledgers: Vec::new() };
        Served::of(None, parts, ports, registry)
    }

    fn of(before: Option<&Served>, parts: Parts, ports: Ports, registry: &Arc<Registry>) -> Served {
        let Parts { config, units, targets, endpoints, segments, ledgers } = parts;
        let exports = exports(&config, &units);
        let config = Arc::new(config);
        let limits = Limits::of(&config, before.map(|before| (&*before.config, &before.limits)));
        let epoch = before.map_or(0, |before| before.epoch + 1);
        let addresses = endpoints.iter().map(|endpoint| endpoint.address).collect();
        let access = ConfiguredAccess::new(config.clone(), targets.clone(), addresses, registry.clone());
        let access = Arc::new(access);
        let delta = Delta::default();
        let served = Served {
            epoch,
            config,
            units,
            targets,
            endpoints,
            segments,
            ports,
            exports,
            ledgers,
            limits,
            access,
            delta,
        };
        Served { delta: before.map(|before| served.since(before)).unwrap_or_default(), ..served }
    }

    /// The next snapshot.
    pub(crate) fn next(&self, parts: Parts) -> Served {
        let ports = Ports::of(&parts.config, Some(&self.ports));
        Served::of(Some(self), parts, ports, self.access.registry())
    }

    /// The index of a LUN, by its name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.config.luns.iter().position(|lun| lun.name == name)
    }

    /// The index of a target, by its number, if it still exists.
    pub(crate) fn target(&self, number: usize) -> Option<usize> {
        self.targets.iter().position(|target| target.number == number)
    }

    /// A portal, by its number, if it still exists.
    pub(crate) fn portal(&self, number: usize) -> Option<(usize, &Portal)> {
        let index = self.endpoints.iter().position(|endpoint| endpoint.number == number)?;
        Some((index, &self.config.portals[index]))
    }

    /// The listeners of a portal, by its number, if it still exists.
    pub(crate) fn endpoint(&self, number: usize) -> Option<&Arc<Endpoint>> {
        self.endpoints.iter().find(|endpoint| endpoint.number == number)
    }

    /// An interface of AoE, by its number, if it still exists.
    pub(crate) fn segment(&self, number: usize) -> Option<&Arc<Segment>> {
        self.segments.iter().find(|segment| segment.number == number)
    }

    /// The cores of a portal, by its number.
    pub(crate) fn cores_of(&self, number: usize) -> &[usize] {
        self.portal(number).map_or(&[], |(_, portal)| &portal.cores)
    }

    /// The group of a target (by number) that an initiator belongs to, if the target has groups.
    pub(crate) fn group_of(&self, target: usize, initiator: &str, from: IpAddr) -> Option<&Group> {
        self.config.targets[self.target(target)?].group_of(initiator, from)
    }
}

/// Logs that a LUN with an AoE address is not served over AoE.
pub(crate) fn warn_of_blocks(lun: &Lun) {
    if let (Some(address), None) = (lun.aoe, lun.export()) {
        let (name, block_bytes) = (&lun.name, lun.block_bytes);
        tracing::error!(lun = %name, "it has {block_bytes}-byte blocks, so it is not served over AoE as {address}");
    }
}

fn exports(config: &Config, units: &[u32]) -> BTreeMap<Address, u32> {
    let mut exports = BTreeMap::new();
    for (lun, unit) in config.luns.iter().zip(units) {
        if let Some(address) = lun.export() {
            exports.insert(address, *unit);
        }
    }
    exports
}
