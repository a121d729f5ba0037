//! The daemon: opens stores, binds portals, starts a thread for each core, and shuts all of it down.

mod reconfigure;

use crate::balance::Board;
use crate::changes::Changes;
use crate::core::{Core, aoe};
use crate::events::Events;
use crate::gateways::Gateways;
use crate::guid;
use crate::housekeeper::{Housekeeper, Job};
use crate::logins::Logins;
use crate::message::Message;
use crate::meters::{CoreMeter, Meters};
use crate::patience::Patience;
use crate::registry::Registry;
use crate::served::{Endpoint, Served};
use crate::sessions::Sessions;
use crate::shared::Shared;
use crate::state;
use crate::state::files::System;
use crate::stores::Opened;
use crate::stores::opening::{self, About};
use crate::stores::prober::{self, ProbedStore, StoreProber};
use crate::stores::space::SpaceMeter;
use crate::units::{NewUnit, knows_space};
use config::{ByDevice, Config, Lun, Portal, StoreSpec};
use rdma::verbs::Listener;
use reactor::mailbox::{self, Mailbox, Sender};
use reactor::memory::{Arena, Pages};
use reactor::packet::{self, Line, Setup, Socket};
use reactor::uring::Uring;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use store::lane::Store;

/// I/O buffers of each core, in bytes: mapped at start, touched as used.
const ARENA_BYTES: u64 = 128 << 20;

/// How long startup waits for addresses that are in use, all portals together: the kernel closes the sockets
/// of a ring some time after its process was killed.
const PORT_PATIENCE: Duration = Duration::from_secs(5);
/// Descriptors for state files, reading from /proc, and up to 64 clients of the admin interface.
const OWN_DESCRIPTORS: u64 = 128;

/// What a Ceph client opens: its threads' events, and connections to a usual number of monitors and OSDs.
const RADOS_DESCRIPTORS: usize = 64;

/// The pause between two attempts.
const PORT_PAUSE: Duration = Duration::from_millis(50);

/// A running daemon. Dropping it without [`Daemon::stop`] leaves its threads running until the process ends.
// Its fields are what a stop has to end, or a change has to reach.
pub struct Daemon {
    addresses: Vec<SocketAddr>,
    units: Vec<UnitSummary>,
    srp_guid: Option<u64>,
    cores: Vec<JoinHandle<bool>>,
    mail: Vec<Sender<Message>>,
    housekeeper: Option<JoinHandle<bool>>,
    jobs: mpsc::Sender<Job>,
    registry: Arc<Registry>,
    /// Probers of stores, by the numbers of their units.
    probers: Vec<(u32, StoreProber)>,
    /// Stores by the numbers of their units, while they are open.
    stores: Vec<(u32, Weak<dyn Store>)>,
    about: About,
    changes: Changes,
    gateways: Gateways,
    patience: Patience,
    /// Removed units that have yet to be released.
    leaving: Vec<Leaving>,
    /// The outcome of those that were released when nobody waited for them any more.
    left: Result<(), NotSaved>,
    events: Events,
    meters: Meters,
}

/// A unit that was removed and has yet to be released.
struct Leaving {
    unit: u32,
    serial: String,
    prober: Option<StoreProber>,
}

/// A served unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitSummary {
    /// The LUN's name in the configuration.
    pub name: String,
    /// A description of the store.
    pub store: String,
    /// Size in bytes; 0 when the store failed.
    pub size_bytes: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Thin provisioned: UNMAP is offered.
    pub thin: bool,
    /// Unit serial number.
    pub serial: String,
    /// Why the store is not served.
    pub failed: Option<String>,
}

/// Why the daemon did not start: what, where, and what to do.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// The cores of a daemon, to check that they are responsive.
pub struct Turns {
    cores: Vec<Sender<Message>>,
}

impl Turns {
    /// Wakes all cores and waits until each has taken a turn, also for one that hangs. False: one has ended.
    pub fn wait(&self) -> bool {
        let (turned, turns) = mpsc::channel();
        self.cores.iter().for_each(|core| core.post(Message::Turn(turned.clone())));
        drop(turned);
        turns.iter().count() == self.cores.len()
    }
}

/// What is required of a new LUN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// Its store has to open; otherwise the change is refused.
    Store,
    /// The same, where its store was served until an earlier step of this change: a file may be larger than
    /// `size`, as at startup.
    KnownStore,
    /// Nothing, when a change is rolled back: if its store does not open, it is not ready until it does, as
    /// at startup, and a file that has grown keeps its size.
    Lun,
}

/// Why a change was not made, or not completely.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// Nothing has changed.
    Refused(String),
    /// The change was made, but not all that was written may be durable.
    NotSaved(NotSaved),
    /// The change was made, but what it removes has not ended in time, and is left to end on its own.
    StillEnding(String),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::Refused(why) => f.write_str(why),
            ChangeError::NotSaved(what) => what.fmt(f),
            ChangeError::StillEnding(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ChangeError {}

/// Why acknowledged data may be missing at the next start; the log names the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotSaved {
    /// A store could not be flushed at the end.
    NotFlushed,
    /// A store's path no longer leads to it.
    Misplaced,
    /// The state directory could not be made durable.
    State,
}

impl fmt::Display for NotSaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotSaved::NotFlushed => {
                "a store could not be flushed: writes that were not durable yet may be lost (see the log)"
            }
            NotSaved::Misplaced => {
                "a file or device was deleted or moved while it was served: its data is not at its path (see the log)"
            }
            NotSaved::State => {
                "the state directory could not be made durable: a power failure may lose saved reservations (see the log)"
            }
        })
    }
}

impl std::error::Error for NotSaved {}

impl Daemon {
    /// Starts serving a configuration. A store that does not open takes down only its own LUNs.
    ///
    /// # Errors
    /// When a portal's address cannot be bound, the state directory not created, or a core not started.
    pub fn start(config: Config) -> Result<Daemon, StartError> {
        Daemon::start_as(config, Events::default(), Vec::new(), |_| Ok(()))
    }

    /// The same, with events reported to `events`, and with these sockets for the portals that have their
    /// addresses. `settle` runs once everything else that the configuration names is open, and before any
    /// core starts; it may drop privileges.
    ///
    /// # Errors
    /// As [`Daemon::start`]; when a socket listens at no portal; and those of `settle`.
    pub fn start_as(
        config: Config,
        events: Events,
        sockets: Vec<(String, TcpListener)>,
        settle: impl FnOnce(&Config) -> Result<(), String>,
    ) -> Result<Daemon, StartError> {
        Daemon::begin(config, events, sockets, settle, opening::open_all)
    }

    /// The same, with a function that opens stores.
    #[cfg(test)]
    pub(crate) fn start_with(
        config: Config,
        events: Events,
        open: impl FnOnce(&mut [Lun], &About) -> Vec<Opened>,
    ) -> Result<Daemon, StartError> {
        Daemon::begin(config, events, Vec::new(), |_| Ok(()), open)
    }

    fn begin(
        mut config: Config,
        events: Events,
        sockets: Vec<(String, TcpListener)>,
        settle: impl FnOnce(&Config) -> Result<(), String>,
        open: impl FnOnce(&mut [Lun], &About) -> Vec<Opened>,
    ) -> Result<Daemon, StartError> {
        let asked = config.clone();
        let sockets_end = prepare(&mut config)?;
        let srp_guid = config.srp_guid;
        let endpoints = bind_all(&config, sockets)?;
        let addresses = endpoints.iter().map(|endpoint| endpoint.address).collect();
        let sockets =
            open_interfaces(&config, packet::open).map_err(|error| StartError(format!("AoE on {error}")))?;
        let about = About::of(&config);
        let opened = open(&mut config.luns, &about);
        let summaries = config.luns.iter().zip(&opened).map(|(lun, opened)| summary(lun, opened)).collect();
        let (units, fit) = NewUnit::all(&config, &opened, &System);

        settle(&config).map_err(StartError)?;

        let count = config.cores.len();
        let (jobs, work) = mpsc::channel();
        let mailboxes = mailbox::mesh::<Message>(count)
            .map_err(|error| StartError(format!("mailboxes between cores: {error}")))?;
        let mail: Vec<Sender<Message>> = (0..count).map(|core| mailboxes[0].sender(core)).collect();
        let (shared, served) = share(config, endpoints, sockets_end, jobs.clone(), events.clone());
        let registry = shared.registry.clone();
        let housekeeper = start_housekeeper(&shared, &mail, work)?;
        let mut probers = Vec::new();
        for (((unit, lun), opened), fit) in (0..).zip(&shared.config.luns).zip(&opened).zip(&fit) {
            let reports = Reports { mail: &mail, events: &events };
            probers.extend(probe_if_needed(&shared.config, lun, unit, opened, fit, reports)?);
        }
        probers.iter().for_each(|(_, prober)| prober.begin());
        let gateways = Gateways::all(&shared.config, &units, &opened, &mail).map_err(StartError)?;
        let stores = (0..).zip(&opened).map(|(unit, opened)| (unit, weak(opened))).collect();
        let changes = Changes::new(&mail, &served, &units, asked);
        let counted = units.iter().map(|unit| unit.meter.clone()).collect();
        let numbers = &shared.config.cores;
        let meters = Meters::new(counted, &shared.meters, numbers, &registry, ARENA_BYTES);
        let cores = start_cores(&shared, &served, mailboxes, units, sockets)?;
        Ok(Daemon {
            addresses,
            units: summaries,
            srp_guid,
            cores,
            mail,
            housekeeper: Some(housekeeper),
            jobs,
            registry,
            probers,
            stores,
            about,
            changes,
            gateways,
            patience: Patience::default(),
            leaving: Vec::new(),
            left: Ok(()),
            events,
            meters,
        })
    }

    /// Bound addresses of the portals, in the configuration's order.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Units, in the order of the configuration's LUNs.
    pub fn units(&self) -> &[UnitSummary] {
        &self.units
    }

    /// Its counters, for other threads.
    pub fn meters(&self) -> Meters {
        self.meters.clone()
    }

    /// Its sessions, for other threads.
    pub fn sessions(&self) -> Sessions {
        Sessions::new(&self.mail, &self.registry)
    }

    /// The GUID of SRP target ports, their id_ext and ioc_guid, if there are any.
    pub fn srp_guid(&self) -> Option<u64> {
        self.srp_guid
    }

    /// Finishes commands in flight, asks initiators to log out, flushes stores, and ends. Blocks until then.
    ///
    /// # Errors
    /// When acknowledged data may be missing at the next start.
    pub fn stop(mut self) -> Result<(), NotSaved> {
        self.gateways.withdraw_all();
        let cores = self.begin_stop();
        let mut outcome = Ok(());
        for core in cores {
            if !core.join().unwrap_or(false) {
                outcome = Err(NotSaved::NotFlushed);
            }
        }
        self.settle_leaving();
        outcome = outcome.and(self.left);
        let probers = std::mem::take(&mut self.probers).into_iter().map(|(_, prober)| prober);
        let leaving = std::mem::take(&mut self.leaving).into_iter().filter_map(|unit| unit.prober);
        if !prober::end(probers.chain(leaving).collect()) {
            outcome = outcome.and(Err(NotSaved::Misplaced));
        }
        let _ = self.jobs.send(Job::Stop);
        let housekeeper = self.housekeeper.take();
        if housekeeper.is_some_and(|housekeeper| !housekeeper.join().unwrap_or(false)) {
            tracing::error!(
                "the state directory could not be made durable: a power failure may lose saved reservations"
            );
            outcome = outcome.and(Err(NotSaved::State));
        }
        outcome
    }

    /// The turns of its cores.
    pub fn turns(&self) -> Turns {
        Turns { cores: self.mail.clone() }
    }

    /// The configuration that is served, including all changes since the start.
    pub fn config(&self) -> &Config {
        self.changes.config()
    }

    /// Sets how long its changes wait at most.
    #[cfg(test)]
    pub(crate) fn wait_at_most(&mut self, limit: std::time::Duration) {
        self.patience.limit = limit;
    }

    /// Its sessions, and the channels to its cores.
    #[cfg(test)]
    pub(crate) fn insides(&self) -> (Arc<Registry>, Vec<Sender<Message>>) {
        (self.registry.clone(), self.mail.clone())
    }

    /// Asks the cores to stop, once.
    fn begin_stop(&mut self) -> Vec<JoinHandle<bool>> {
        let cores = std::mem::take(&mut self.cores);
        if !cores.is_empty() {
            self.mail.iter().for_each(|core| core.post(Message::Stop));
        }
        cores
    }
}

/// Stops like [`Daemon::stop`], but waits for nothing.
impl Drop for Daemon {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// What the cores of this configuration share, and the first snapshot that they serve.
pub(crate) fn share<L: Line>(
    config: Config,
    endpoints: Vec<Endpoint>,
    sockets_end: i32,
    housekeeper: mpsc::Sender<Job<L>>,
    events: Events,
) -> (Arc<Shared<L>>, Arc<Served>) {
    let count = config.cores.len();
    let registry = Arc::new(Registry::default());
    let endpoints = endpoints.into_iter().map(Arc::new).collect();
    let served = Arc::new(Served::first(config.clone(), endpoints, &registry));
    let shared = Shared {
        logins: Logins::new(config.logins_max),
        loads: (0..count).map(|_| AtomicUsize::new(0)).collect(),
        board: Board::new(count),
        meters: (0..count).map(|_| CoreMeter::default()).collect(),
        sockets_end,
        registry,
        events,
        housekeeper,
        config,
    };
    (Arc::new(shared), served)
}

/// Creates the state directory and raises the limit of descriptors. Returns the first descriptor that
/// connections may not have.
fn prepare(config: &mut Config) -> Result<i32, StartError> {
    if let Some(dir) = &config.state_dir {
        state::make_directory(dir).map_err(|error| {
            StartError(format!(
                "state directory {}: {error}; create it, or name another with --state-dir",
                dir.display()
            ))
        })?;
    }
    if config.srp_guid.is_none() && config.portals.iter().any(|portal| portal.transports.srp) {
        let made = guid::find_or_make(config.state_dir.as_deref()).map_err(StartError)?;
        config.srp_guid = Some(made);
    }
    Ok(sockets_end(config, raise_descriptor_limit(config)))
}

/// Raises the soft limit of descriptors, since each connection and file needs one: its default (1024) is
/// meant for shells, not for daemons.
fn raise_descriptor_limit(config: &Config) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised to its hard limit");
    }
    let sessions: usize = config.targets.iter().map(|target| target.sessions_max).sum();
    let wanted = (sessions + 3 * config.logins_max) as u64 + own_descriptors(config);
    let limit = getrlimit(Resource::Nofile).current;
    if let Some(limit) = limit.filter(|limit| *limit < wanted) {
        tracing::warn!(
            limit,
            wanted,
            "the limit of open files is lower than the number of connections that sessions_max and logins_max allow: \
             raise LimitNOFILE or ulimit -n"
        );
    }
    limit
}

/// Descriptors that the daemon opens while it serves: state files, clients of the admin interface, stores that open late, and
/// sessions with other targets.
fn own_descriptors(config: &Config) -> u64 {
    let of_lun = |lun: &Lun| match lun.store {
        StoreSpec::Null { .. } | StoreSpec::Ram { .. } => 0,
        // Each core's lane has one that wakes it after another's sync, and one for answers to extent queries.
        StoreSpec::File { .. } | StoreSpec::Block { .. } => 2 + 2 * config.cores.len(),
        StoreSpec::Remote { .. } => config.cores.len(),
        // A connection, another one while that is replaced, and one that wakes each core's lane.
        StoreSpec::Nbd { .. } => 2 + config.cores.len(),
        // Each core's lane has one that wakes it; librados has as many connections as there are monitors and
        // OSDs. Gateways that share the image have another client for what they agree on.
        StoreSpec::Rbd { .. } => RADOS_DESCRIPTORS * (1 + usize::from(lun.is_shared())) + config.cores.len(),
    };
    // At each portal one new connection may wait for a descriptor.
    (config.luns.iter().map(of_lun).sum::<usize>() + config.portals.len()) as u64 + OWN_DESCRIPTORS
}

/// The reserved descriptors, but no more than a quarter of all.
fn sockets_end(config: &Config, limit: Option<u64>) -> i32 {
    let Some(limit) = limit else { return i32::MAX };
    let reserved = own_descriptors(config).min(limit / 4);
    i32::try_from(limit - reserved).unwrap_or(i32::MAX)
}

fn bind_all(config: &Config, mut given: Vec<(String, TcpListener)>) -> Result<Vec<Endpoint>, StartError> {
    let mut patience = PORT_PATIENCE;
    let at = |portal: &Portal, socket: &TcpListener| {
        portal.rdma != ByDevice::Only && socket.local_addr().is_ok_and(|address| address == portal.listen)
    };
    for (name, socket) in &given {
        if !config.portals.iter().any(|portal| at(portal, socket)) {
            return Err(StartError(format!(
                "the socket {name} of the service manager listens on {}, which no portal uses; add a [[portal]] with \
                 that `listen`, or remove the socket",
                bound(socket)?
            )));
        }
    }
    // All of TCP first: a device may use the same ports as TCP.
    let sockets =
        config.portals.iter().map(|portal| match given.iter().position(|(_, socket)| at(portal, socket)) {
            Some(found) => Ok(Some(given.swap_remove(found).1)),
            None => bind(portal, &mut patience),
        });
    let sockets: Vec<Option<TcpListener>> = sockets.collect::<Result<_, _>>()?;
    let each = config.portals.iter().zip(sockets).enumerate();
    each.map(|(number, (portal, socket))| attach(portal, number, socket.map(Arc::new))).collect()
}

/// The TCP listener of a portal, if it has one.
fn bind(portal: &Portal, patience: &mut Duration) -> Result<Option<TcpListener>, StartError> {
    if portal.rdma == ByDevice::Only {
        return Ok(None);
    }
    let listener = listen(portal.listen, patience, std::thread::sleep).map_err(|error| {
        let fix = match error.kind() {
            ErrorKind::AddrInUse => "is another target running there? choose another port with --listen",
            ErrorKind::AddrNotAvailable => "no interface of this machine has this address",
            ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE",
            _ => "check the address",
        };
        StartError(format!("cannot listen on {}: {error}; {fix}", portal.listen))
    })?;
    Ok(Some(listener))
}

/// A portal with this number and TCP listener.
fn attach(portal: &Portal, number: usize, socket: Option<Arc<TcpListener>>) -> Result<Endpoint, StartError> {
    let address = socket.as_ref().map_or(Ok(portal.listen), |socket| bound(socket))?;
    let by_device = listen_by_device(portal, address)?.map(Arc::new);
    let handle = socket.as_deref().map(reactor::net::handle);
    Ok(Endpoint { number, address, handle, socket, by_device })
}

/// The listeners of a portal, reusing those it had where they are unchanged.
fn reopen(portal: &Portal, number: usize, before: Option<&Arc<Endpoint>>) -> Result<Endpoint, StartError> {
    let mut patience = Duration::ZERO;
    let Some(before) = before else {
        return attach(portal, number, bind(portal, &mut patience)?.map(Arc::new));
    };
    let socket = match &before.socket {
        Some(socket) if portal.rdma != ByDevice::Only => Some(socket.clone()),
        Some(_) | None => bind(portal, &mut patience)?.map(Arc::new),
    };
    if before.by_device.is_none() || portal.rdma == ByDevice::No {
        return attach(portal, number, socket);
    }
    let handle = socket.as_deref().map(reactor::net::handle);
    Ok(Endpoint { number, address: before.address, handle, socket, by_device: before.by_device.clone() })
}

/// Listens on an address; while it is in use, waits until the deadline.
fn listen(
    address: SocketAddr,
    patience: &mut Duration,
    mut sleep: impl FnMut(Duration),
) -> std::io::Result<TcpListener> {
    let mut has_waited = false;
    loop {
        match reactor::net::listen(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && !patience.is_zero() => {
                if !has_waited {
                    tracing::warn!(
                        %address,
                        "the address is in use; waiting up to {} s for a daemon that was killed to release it",
                        patience.as_secs()
                    );
                }
                has_waited = true;
                let pause = PORT_PAUSE.min(*patience);
                sleep(pause);
                *patience -= pause;
            }
            done => return done,
        }
    }
}

/// Has RDMA devices listen at portals that use them, also on a port that TCP uses.
fn listen_by_device(portal: &Portal, address: SocketAddr) -> Result<Option<Listener>, StartError> {
    let by_devices = portal.rdma != ByDevice::No;
    let listener = by_devices.then(|| Listener::new(address)).transpose();
    listener.map_err(|error| {
        let is_taken = matches!(&error, rdma::verbs::Error::System { error, .. } if error.kind() == ErrorKind::AddrInUse);
        if is_taken && portal.rdma == ByDevice::Too {
            return StartError(format!(
                "no RDMA device can listen on {address} together with TCP: {error}; for an iWARP device, which uses \
                 TCP's ports, set rdma = \"only\" for this portal in the file, and add another one for TCP"
            ));
        }
        StartError(format!(
            "no RDMA device can listen on {address}: {error}; `lunette rdma` lists devices, and without --rdma (rdma = \
             true in the file) iSER and SRP are served without one"
        ))
    })
}

/// Packet sockets of interfaces, by core.
pub(crate) fn open_interfaces<L, E>(
    config: &Config,
    mut open: impl FnMut(&Setup<'_>, usize) -> Result<Vec<L>, E>,
) -> Result<Vec<Vec<(usize, L)>>, E> {
    let mut lines: Vec<Vec<(usize, L)>> = config.cores.iter().map(|_| Vec::new()).collect();
    for (index, interface) in config.aoe.iter().enumerate() {
        let opened = open(&aoe::setup(interface), interface.cores.len())?;
        for (core, line) in interface.cores.iter().zip(opened) {
            if let Some(position) = config.cores.iter().position(|number| number == core) {
                lines[position].push((index, line));
            }
        }
    }
    Ok(lines)
}

fn bound(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|error| StartError(format!("a listening socket has no address: {error}")))
}

fn summary(lun: &Lun, opened: &Opened) -> UnitSummary {
    let traits = opened.store.traits();
    UnitSummary {
        name: lun.name.clone(),
        store: opened.store.describe(),
        size_bytes: traits.size_bytes,
        thin: lun.thin && traits.discards,
        serial: served_serial(lun, &traits),
        block_bytes: lun.block_bytes,
        failed: opened.failed.clone(),
    }
}

/// The serial number that initiators see: the store's own, if it has one.
fn served_serial(lun: &Lun, traits: &scsi::storage::Traits) -> String {
    let own = traits.identity.map(|own| String::from_utf8_lossy(&own.serial).into_owned());
    own.unwrap_or_else(|| lun.serial.clone())
}

fn weak(opened: &Opened) -> Weak<dyn Store> {
    let store: Arc<dyn Store> = opened.store.clone();
    Arc::downgrade(&store)
}

fn start_housekeeper(
    shared: &Shared,
    mail: &[Sender<Message>],
    work: mpsc::Receiver<Job>,
) -> Result<JoinHandle<bool>, StartError> {
    let housekeeper = Housekeeper::new(shared, mail);
    spawn("housekeeper", move || housekeeper.run(&work))
}

/// Where the prober of a store reports.
#[derive(Clone, Copy)]
struct Reports<'a> {
    /// The cores' mailboxes.
    mail: &'a [Sender<Message>],
    /// Events.
    events: &'a Events,
}

/// Probes the store of a unit, if necessary. Open memory is probed only for the space that it takes.
fn probe_if_needed(
    config: &Config,
    lun: &Lun,
    unit: u32,
    opened: &Opened,
    fit: &Result<(), String>,
    reports: Reports<'_>,
) -> Result<Option<(u32, StoreProber)>, StartError> {
    if let Err(error) = fit {
        tracing::error!(lun = %lun.name, "its LUNs are not ready: {error}");
        return Ok(None);
    }
    let is_watched = match &lun.store {
        StoreSpec::Null { .. } | StoreSpec::Ram { .. } => opened.failed.is_some() || knows_space(lun),
        StoreSpec::File { .. }
        | StoreSpec::Block { .. }
        | StoreSpec::Remote { .. }
        | StoreSpec::Nbd { .. }
        | StoreSpec::Rbd { .. } => true,
    };
    if !is_watched {
        return Ok(None);
    }
    let space_meter = knows_space(lun).then(|| SpaceMeter::new(opened.space.clone()));
    start_prober(config, lun, unit, opened.store.clone(), opened.failed.clone(), space_meter, reports)
}

fn start_prober(
    config: &Config,
    lun: &Lun,
    unit: u32,
    store: Arc<dyn Store>,
    failed: Option<String>,
    space_meter: Option<SpaceMeter>,
    Reports { mail, events }: Reports<'_>,
) -> Result<Option<(u32, StoreProber)>, StartError> {
    let home = NewUnit::<Uring>::home_core(unit, config);
    let name = lun.name.clone();
    let (logged, misplaced, resets, events) = (None, None, 0, events.clone());
    let probed =
        ProbedStore { name, unit, home, store, failed, logged, resets, misplaced, events, space_meter };
    let started = prober::start(probed, mail[home].clone());
    let prober = started.map_err(|error| StartError(format!("a thread for {}: {error}", lun.name)))?;
    Ok(Some((unit, prober)))
}

/// What a core is made from, on its own thread.
struct Seed {
    me: usize,
    shared: Arc<Shared>,
    served: Arc<Served>,
    mailbox: Mailbox<Message>,
    units: Vec<NewUnit>,
    /// Packet sockets, by the interface's index in the configuration.
    sockets: Vec<(usize, Socket)>,
}

/// A core that panics takes the homes of its units and its sessions with it, and others would wait for it
/// forever: the process ends at once, so that initiators use other paths or reconnect after a restart.
struct AlarmBell;

impl Drop for AlarmBell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The panic itself was reported by the hook.
            std::process::abort();
        }
    }
}

fn start_cores(
    shared: &Arc<Shared>,
    served: &Arc<Served>,
    mailboxes: Vec<Mailbox<Message>>,
    mut units: Vec<NewUnit>,
    sockets: Vec<Vec<(usize, Socket)>>,
) -> Result<Vec<JoinHandle<bool>>, StartError> {
    let mut start = |((me, mailbox), sockets)| {
        start_core(Seed {
            me,
            shared: shared.clone(),
            served: served.clone(),
            mailbox,
            units: units.iter_mut().map(|unit| unit.on(me)).collect(),
            sockets,
        })
    };
    mailboxes.into_iter().enumerate().zip(sockets).map(&mut start).collect()
}

fn start_core(seed: Seed) -> Result<JoinHandle<bool>, StartError> {
    let number = seed.shared.config.cores[seed.me];
    let (ready, started) = mpsc::channel();
    let thread = spawn(&format!("core-{number}"), move || {
        if let Err(error) = reactor::topology::pin_to(number) {
            tracing::warn!(core = number, %error, "the thread could not be pinned to its core");
        }
        match Arena::on(ARENA_BYTES, Pages::Huge).and_then(|arena| Uring::new(arena, seed.mailbox.waker())) {
            Err(error) => {
                let _ = ready.send(Err(error.to_string()));
            }
            Ok(io) => {
                let mut core = Core::new(seed.me, io, seed.shared, seed.served, seed.mailbox, seed.units);
                let served = core.serve_interfaces(seed.sockets).map_err(|error| error.to_string());
                let is_served = served.is_ok();
                let _ = ready.send(served);
                if !is_served {
                    return true;
                }
                let bell = AlarmBell;
                let flushed = core.run();
                drop(bell);
                return flushed;
            }
        }
        true
    })?;
    match started.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(StartError(format!("core {number} cannot start: {error}"))),
        Err(_) => Err(StartError(format!("core {number} ended during the start"))),
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| StartError(format!("thread {name} cannot start: {error}")))
}

#[cfg(test)]
mod tests;
