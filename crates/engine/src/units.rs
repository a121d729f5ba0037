//! Units as they are created, before the cores get them.

use crate::gateway_handle::GatewayEvent;
use crate::housekeeper;
use crate::ledger::Ledger;
use crate::meters::UnitMeter;
use crate::ports::Ports;
use crate::state::files::Files;
use crate::stores::Opened;
use config::names::identity;
use config::{Access, Config, Lun, StoreSpec};
use reactor::io::Io;
use reactor::uring::Uring;
use scsi::unit::Port;
use scsi::{Home, HomeRequest, Incarnation, PortGroup, Sharing, Unit, View};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use store::lane::{Backend, Store};

/// Identifies the time since the machine was booted (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A unit's number is a slot of the cores' tables and, above it, the slot's generation: 28 bits, which fit
/// into a completion's tag.
pub(crate) const SLOT_BITS: u32 = 15;

/// The slot of a unit's number.
pub(crate) fn slot(number: u32) -> usize {
    (number & ((1 << SLOT_BITS) - 1)) as usize
}

/// A unit that a core is to serve.
pub(crate) struct NewUnit<I: Io = Uring> {
    /// The LUN's name in the configuration.
    pub(crate) name: String,
    /// Its store can lose acknowledged data.
    pub(crate) can_lose: bool,
    pub(crate) view: View,
    pub(crate) store: Arc<dyn Backend<I>>,
    /// The core of its home.
    pub(crate) home_core: usize,
    /// Its home, for that core.
    pub(crate) home: Option<Home>,
    /// The blocks that AoE is changing, if it is exported over AoE.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// What is counted of it.
    pub(crate) meter: Arc<UnitMeter>,
    /// The channel to its thread, if gateways share it.
    pub(crate) gateway: Option<mpsc::Sender<GatewayEvent>>,
}

impl<I: Io> NewUnit<I> {
    /// The units of a configuration's LUNs, numbered in order, each with the reason if it must not be served
    /// whatever its store reports.
    pub(crate) fn all(
        config: &Config,
        opened: &[Opened<I>],
        files: &dyn Files,
    ) -> (Vec<NewUnit<I>>, Vec<Result<(), String>>) {
        let ports = Ports::of(config, None).of_luns();
        let each = ports.into_iter().enumerate().zip(opened);
        each.map(|((lun, ports), opened)| NewUnit::of(config, lun, lun as u32, opened, ports, files)).unzip()
    }

    /// The unit of a LUN, with this number.
    pub(crate) fn of(
        config: &Config,
        index: usize,
        number: u32,
        opened: &Opened<I>,
        ports: Vec<Port>,
        files: &dyn Files,
    ) -> (NewUnit<I>, Result<(), String>) {
        let mut unit = Arc::new(unit(config, index, number, opened, ports, files));
        let (home, fit) = home(config, &mut unit, opened, files);
        let lun = &config.luns[index];
        let view = View { unit, policy: home.policy() };
        let store: Arc<dyn Store> = opened.store.clone();
        let new = NewUnit {
            name: lun.name.clone(),
            can_lose: match lun.store {
                StoreSpec::File { .. }
                | StoreSpec::Block { .. }
                | StoreSpec::Remote { .. }
                | StoreSpec::Nbd { .. } => true,
                StoreSpec::Null { .. } | StoreSpec::Ram { .. } | StoreSpec::Rbd { .. } => false,
            },
            home_core: NewUnit::<I>::home_core(number, config),
            meter: Arc::new(UnitMeter::new(
                &lun.name,
                view.clone(),
                config.cores.len(),
                opened.gateway.as_ref().map(|gateway| gateway.reading.clone()),
                Arc::downgrade(&store),
            )),
            view,
            store: opened.store.clone(),
            home: Some(home),
            ledger: lun.export().map(|_| Arc::new(Ledger::new())),
            gateway: opened.gateway.as_ref().map(|gateway| gateway.inbox()),
        };
        (new, fit)
    }

    /// The core of the home of a unit with this number.
    pub(crate) fn home_core(number: u32, config: &Config) -> usize {
        number as usize % config.cores.len()
    }

    /// The unit for one of the cores.
    pub(crate) fn on(&mut self, core: usize) -> NewUnit<I> {
        NewUnit {
            name: self.name.clone(),
            can_lose: self.can_lose,
            view: self.view.clone(),
            store: self.store.clone(),
            home_core: self.home_core,
            home: if core == self.home_core { self.home.take() } else { None },
            ledger: self.ledger.clone(),
            meter: self.meter.clone(),
            gateway: self.gateway.clone(),
        }
    }
}

/// A unit as its LUN is configured now, reached through these ports.
pub(crate) fn configured(unit: &Unit, config: &Config, lun: &Lun, ports: Vec<Port>) -> Unit {
    let space = unit.space.clone().or_else(|| knows_space(lun).then(Arc::default));
    space.iter().for_each(|space| space.set_warn_at(lun.warn_at));
    Unit {
        product: lun.product.clone(),
        thin: lun.thin,
        warn_at: lun.warn_at,
        space,
        read_only: lun.read_only,
        removable: lun.removable,
        write_cache: lun.write_cache,
        exported: lun.export().is_some(),
        groups: groups(config, &ports),
        ports,
        ..unit.clone()
    }
}

/// Whether they are configured differently, or reached through different ports.
pub(crate) fn differ(one: &Unit, other: &Unit) -> bool {
    let of = |unit: &Unit| {
        let shown = (unit.product.clone(), unit.thin, unit.read_only, unit.removable);
        let paths = (unit.ports.clone(), unit.groups.clone());
        (shown, unit.write_cache, unit.warn_at, unit.exported, paths)
    };
    of(one) != of(other)
}

/// The groups of these ports.
fn groups(config: &Config, ports: &[Port]) -> Vec<PortGroup> {
    let tags: BTreeSet<u16> = ports.iter().map(|port| port.group).collect();
    let group = |tag| {
        let config::PortalGroup { tag, state, preferred, explicit, .. } = config.portal_group(tag);
        PortGroup { tag, state, preferred, explicit }
    };
    tags.into_iter().map(group).collect()
}

fn unit<I: Io>(
    config: &Config,
    index: usize,
    number: u32,
    opened: &Opened<I>,
    ports: Vec<Port>,
    files: &dyn Files,
) -> Unit {
    let lun = &config.luns[index];
    let identity = identity(&lun.serial);
    opened.space.set_warn_at(lun.warn_at);
    Unit {
        index: number,
        block_bytes: lun.block_bytes,
        physical_block_bytes: lun.physical_block_bytes,
        serial: lun.serial.clone(),
        product: lun.product.clone(),
        naa: identity.naa,
        eui: identity.eui,
        incarnation: Incarnation {
            name: incarnation::<I>(config, lun, files),
            losses: opened.losses.clone(),
        },
        thin: lun.thin,
        warn_at: lun.warn_at,
        space: knows_space(lun).then(|| opened.space.clone()),
        read_only: lun.read_only,
        removable: lun.removable,
        write_cache: lun.write_cache,
        exported: lun.export().is_some(),
        remote: matches!(lun.store, StoreSpec::Remote { .. } | StoreSpec::Nbd { .. }),
        ptpl_capable: lun.is_shared() || (config.state_dir.is_some() && lun.serial_lasts),
        sharing: lun.access.map(|access| match access {
            Access::One => Sharing::One,
            Access::All => Sharing::All,
        }),
        copies: Arc::default(),
        groups: groups(config, &ports),
        ports,
    }
}

/// Whether the space that a LUN's store takes is measured. That is quick for a file, and for memory takes
/// longer the larger it is.
pub(crate) fn knows_space(lun: &Lun) -> bool {
    let is_known = match lun.store {
        StoreSpec::File { .. } => true,
        StoreSpec::Ram { .. } => lun.warn_at.is_some(),
        StoreSpec::Null { .. }
        | StoreSpec::Block { .. }
        | StoreSpec::Remote { .. }
        | StoreSpec::Nbd { .. }
        | StoreSpec::Rbd { .. } => false,
    };
    lun.thin && is_known
}

/// Identifies a period in which a store loses nothing that it acknowledged: for files and devices, whose
/// cache is the kernel's or the device's, until the machine is rebooted; for all others, until this process
/// ends. What the store loses meanwhile is counted; for files and devices it is also recorded in the state
/// directory, if there is one, since the next process cannot know of it otherwise
/// ([`crate::housekeeper::Job::KeepLoss`]).
fn incarnation<I: Io>(config: &Config, lun: &Lun, files: &dyn Files) -> [u8; 16] {
    let outlives = match lun.store {
        StoreSpec::File { .. } | StoreSpec::Block { .. } => true,
        StoreSpec::Null { .. }
        | StoreSpec::Ram { .. }
        | StoreSpec::Remote { .. }
        | StoreSpec::Nbd { .. }
        | StoreSpec::Rbd { .. } => false,
    };
    let lost = || match &config.state_dir {
        None => Ok(Vec::new()),
        Some(dir) => match files.read(&housekeeper::losses_path(dir, &lun.serial)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            lost => lost,
        },
    };
    let name = || -> io::Result<[u8; 16]> {
        let bytes = [files.read(Path::new(BOOT_ID))?, lost()?].concat();
        Ok(identity(&String::from_utf8_lossy(&bytes)).naa)
    };
    if outlives { name().unwrap_or_else(|_| random::<I>()) } else { random::<I>() }
}

fn random<I: Io>() -> [u8; 16] {
    let mut random = [0; 16];
    random.as_chunks_mut().0.iter_mut().for_each(|word| *word = I::random().to_be_bytes());
    random
}

/// The home of a unit; an error if the unit must not be served whatever its store reports.
fn home<I: Io>(
    config: &Config,
    unit: &mut Arc<Unit>,
    opened: &Opened<I>,
    files: &dyn Files,
) -> (Home, Result<(), String>) {
    let mut home = Home::new(unit.clone(), opened.store.traits());
    let fit = match &config.state_dir {
        Some(dir) if !unit.is_shared() => housekeeper::restore(&mut home, files, dir, &unit.serial),
        Some(_) | None => Ok(()),
    };
    if fit.is_err() {
        // The saved state stays as it is until an administrator has looked: APTPL from an initiator must not
        // replace it.
        *unit = Arc::new(Unit { ptpl_capable: false, ..Unit::clone(unit) });
        home = Home::new(unit.clone(), opened.store.traits());
    }
    if let Some(error) = fit.as_ref().err().or(opened.failed.as_ref()) {
        home.handle(HomeRequest::StoreFailed(error.as_str().into()));
    }
    (home, fit)
}
