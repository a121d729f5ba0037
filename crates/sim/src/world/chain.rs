//! A second daemon, which serves the target's units. It has its own disks and crashes.

use super::daemon::Daemon;
use super::opening::Opening;
use super::{Counted, Kind, Plan, lose, serial, stores};
use crate::directory::Directory;
use crate::disk::Disk;
use crate::initiator::Habits;
use crate::initiator::carrier::{Carrier, Protocol};
use crate::initiator::link::Link;
use crate::kernel::Kernel;
use crate::net::{Event, Net, Request, Shared};
use crate::register::BLOCK_BYTES;
use config::Url;
use config::{Config, StoreSpec};
use engine::world::{Cores, Files as _};
use fastrand::Rng;
use initiator::Destination;
use initiator::Options;
use initiator::client::Reply;
use initiator::remote::{Geometry, RemoteOptions, RemoteStore};
use proto::iscsi::initiator::{self as iscsi, InitiatorConfig, Outcome};
use proto::iscsi::login::{Offers, Plan as Login};
use proto::services::Attribute;
use reactor::crc::crc32c;
use reactor::io::{Handle, Io as _, Tag, Wait};
use reactor::packet::Setup;
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use store::lane::Backend;
use wire::{Cdb, Places, Sense, SenseKey};

const PORTAL: &str = "10.0.0.2:3260";
const TARGET: &str = "iqn.2026-11.io.lunette:back";
const GUID: &str = "024c750000000002";
/// The target's name as an initiator.
pub(super) const CALLER: &str = "iqn.2026-11.io.lunette:front";

/// Separates its choices from others made from the same seed.
const SALT: u64 = 0x6368_6169_6e00_0000;
/// The same for whether initiators are paths.
const PATHS_SALT: u64 = 0x7061_7468_7300_0000;
const ARENA_BYTES: u64 = 128 << 20;
/// How long it may take to learn the units' properties.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the second daemon may take to save that a disk has lost something, and the same if its cores
/// pause.
const SAVE_LOSS_WITHIN: Duration = Duration::from_millis(5);
const SAVE_LOSS_WITHIN_PAUSES: Duration = Duration::from_millis(50);
/// How often it is killed because of a loss.
const HUNTS_MAX: u32 = 4;
/// How long calm initiators only read and flush.
const CALM: Duration = Duration::from_millis(15);
const CONNECT: u64 = 3;

/// The second daemon for a seed.
#[derive(Clone)]
pub(super) struct Chain {
    rng: Rng,
    cores: usize,
    /// The protocol between the daemons.
    protocol: Protocol,
    unsolicited: bool,
    queue_depth: u16,
    give_up_after: Duration,
    /// When it is killed, and how long it is down at most.
    deaths: Vec<Duration>,
    away_micros: u64,
    /// How often, in 100, it dies together with the target.
    both: u32,
    trap: Option<Trap>,
    has_paths: bool,
}

/// Situations that are rare by chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trap {
    /// It is killed after a disk has reported a loss to it, which takes a flush.
    Loss,
    /// Initiators write nothing for a while after a login: what is lost then was all written before.
    Calm,
    /// Few commands are outstanding, most of them COMPARE AND WRITE of one block: one of them when the second
    /// daemon is killed.
    Swap,
}

/// The second daemon in this seed's world, if any, with units of these kinds. Memory is replaced in most of
/// them: a daemon with units in memory cannot be killed.
pub(super) fn draw(seed: u64, kinds: &mut [Kind]) -> Option<Chain> {
    let mut rng = Rng::with_seed(seed ^ SALT);
    if rng.u32(0..6) != 0 {
        return None;
    }
    if rng.u32(0..4) != 0 {
        let memory = kinds.iter_mut().filter(|kind| **kind == Kind::Memory);
        memory.for_each(|kind| *kind = [Kind::Device, Kind::File(1)][rng.usize(0..2)]);
    }
    let can_crash = !kinds.contains(&Kind::Memory);
    let deaths = if can_crash { rng.u32(0..6) } else { 0 };
    // Many worlds end soon.
    let most = [5_000, 50_000, 600_000][rng.usize(0..3)];
    let deaths = (0..deaths).map(|_| Duration::from_micros(rng.u64(0..most))).collect();
    Some(Chain {
        cores: rng.usize(1..=3),
        protocol: [Protocol::Iscsi, Protocol::Iser, Protocol::Srp][rng.usize(0..3)],
        unsolicited: rng.bool(),
        queue_depth: [1, 8, 128][rng.usize(0..3)],
        give_up_after: Duration::from_secs([2, 20][rng.usize(0..2)]),
        deaths,
        away_micros: [1_000, 100_000, 1_000_000][rng.usize(0..3)],
        both: if can_crash { [0, 30][rng.usize(0..2)] } else { 0 },
        trap: [None, Some(Trap::Loss), Some(Trap::Calm), Some(Trap::Swap)][rng.usize(0..4)]
            .filter(|_| can_crash),
        has_paths: Rng::with_seed(seed ^ PATHS_SALT).bool(),
        rng,
    })
}

/// The saved record of a unit's losses.
fn noted(directory: &Directory, unit: usize) -> Option<Vec<u8>> {
    let serial: String = format!("BACK{unit}").bytes().map(|byte| format!("{byte:02x}")).collect();
    directory.read(Path::new(&format!("/state/losses-{serial}"))).ok()
}

fn address() -> SocketAddr {
    PORTAL.parse().expect("an address")
}

/// A unit of the second daemon, for the target that opens it.
pub(super) struct Unit {
    pub(super) url: Url,
    pub(super) addresses: Vec<Destination>,
    pub(super) options: Options,
    /// The serial number of the target's unit.
    pub(super) serial: String,
}

/// The second daemon.
pub(super) struct Back {
    net: Shared,
    directory: Directory,
    /// Its first host.
    first: usize,
    chain: Chain,
    /// `None`: it is dead.
    daemon: Option<Daemon>,
    /// What its disks have kept while it is dead.
    disks: Vec<Disk>,
    lives: u32,
    /// Its units' geometries at first.
    geometries: Vec<Geometry>,
    /// The saved records of each unit's losses when it was started.
    noted: Vec<Option<Vec<u8>>>,
    /// How often the target has opened its units.
    openings: Cell<u32>,
    is_healed: bool,
    /// It is about to be killed, as a disk has reported a loss to it.
    is_hunted: bool,
    /// How many more times it may be.
    hunts: u32,
}

impl Back {
    /// A running one, which is killed now and then from now on.
    pub(super) fn new(plan: &Plan, chain: Chain, net: &Shared) -> Back {
        let atas = plan.ethernet.as_ref().map_or(0, |segment| segment.initiators);
        let first = plan.cores + plan.initiators.len() + 2 + atas;
        let mut back = Back {
            net: net.clone(),
            directory: Directory::new(Rng::with_seed(SALT), 0),
            first,
            chain,
            daemon: None,
            disks: Vec::new(),
            lives: 0,
            geometries: Vec::new(),
            noted: Vec::new(),
            openings: Cell::new(0),
            is_healed: false,
            is_hunted: false,
            hunts: HUNTS_MAX,
        };
        back.starts(plan);
        back.geometries = Scout::new(&mut back).learn(plan.kinds.len());
        let mut net = net.borrow_mut();
        let now = net.now;
        back.chain.deaths.iter().for_each(|at| net.at(now.after(*at), Event::Back));
        drop(net);
        back
    }

    fn config(&self, plan: &Plan) -> Config {
        let mut text = format!(
            "srp_guid = \"{GUID}\"\npoll = \"never\"\nlogin_timeout = \"5s\"\nkeep_alive = 5\nstall_timeout = \"10s\"\n\
             state_dir = \"/state\"\n\n[[portal]]\nlisten = \"{PORTAL}\"\ntransports = [\"iscsi\", \"iser\", \"srp\"]\n"
        );
        let names = (0..plan.kinds.len()).map(|unit| format!("\"unit{unit}\"")).collect::<Vec<_>>();
        for (unit, name) in names.iter().enumerate() {
            let bytes = plan.blocks * BLOCK_BYTES;
            text += &format!("\n[[lun]]\nname = {name}\nram = \"{bytes}\"\nserial = \"BACK{unit}\"\n");
        }
        text += &format!("\n[[target]]\nname = \"{TARGET}\"\nluns = [{}]\n", names.join(", "));
        let config = Config::from_toml(&text, Path::new("back.toml"));
        let mut config = config.unwrap_or_else(|problems| panic!("{problems}"));
        config.cores = (0..self.chain.cores).collect();
        config.portals.iter_mut().for_each(|portal| portal.cores.clone_from(&config.cores));
        plan.stores_of(&mut config);
        config
    }

    /// Starts it with what its disks have kept.
    fn starts(&mut self, plan: &Plan) {
        let config = self.config(plan);
        let listener = self.net.borrow_mut().listen(address());
        self.noted = (0..plan.kinds.len()).map(|unit| noted(&self.directory, unit)).collect();
        let stores = stores(plan, &self.net, std::mem::take(&mut self.disks));
        let (net, first, lives) = (self.net.clone(), self.first, self.lives);
        let kernel = |core, waker| Kernel::new(first + core, net.clone(), ARENA_BYTES, Some(waker), lives);
        let lines = |_: &Setup<'_>, _| Ok(Vec::new());
        let directory = Box::new(self.directory.clone());
        let cores =
            Cores::new(config, stores, vec![listener], directory, lines, kernel).expect("descriptors");
        let daemon = Daemon::new(cores, self.chain.cores, first, first + self.chain.cores);
        daemon.wake(&self.net);
        self.daemon = Some(daemon);
        self.lives += 1;
        self.note(2, "the second daemon is started");
    }

    fn note(&self, word: u64, text: &str) {
        let net = &mut *self.net.borrow_mut();
        net.trace.note(net.now, &[word], || text.to_owned());
    }

    /// Kills it, with or without losing power: then its disks' losses are added to
    /// [`crate::net::Net::losses`].
    fn dies(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        daemon.die();
        let loses_power = self.chain.rng.bool() && !std::mem::take(&mut self.is_hunted);
        let text =
            if loses_power { "power of the second daemon fails" } else { "the second daemon is killed" };
        self.note(u64::from(loses_power), text);
        self.directory.crash(loses_power);
        let net = &mut *self.net.borrow_mut();
        net.kill(address());
        let within = save_loss_within(net);
        for (_, disk) in &mut net.disks {
            // The kernel reports it once, and a process may be killed before it has saved what it was
            // notified of.
            let is_fresh = disk.is_left().is_some_and(|said| net.now.since(said) < within);
            if is_fresh && !loses_power && self.noted[disk.unit] == noted(&self.directory, disk.unit) {
                net.forgotten.push(disk.unit);
            }
        }
        let (disks, losses) = lose(net, loses_power);
        self.disks = disks;
        net.losses.extend(losses);
        let away = Duration::from_micros(self.chain.rng.u64(0..self.chain.away_micros));
        net.at(net.now.after(away), Event::Back);
    }

    /// It is killed, or restarted.
    pub(super) fn acts(&mut self, plan: &Plan) {
        match self.daemon {
            Some(_) if self.is_healed => {}
            Some(_) => self.dies(),
            None => self.starts(plan),
        }
    }

    /// Nothing goes wrong with it any more.
    pub(super) fn heal(&mut self, plan: &Plan) {
        self.is_healed = true;
        if self.daemon.is_none() {
            self.starts(plan);
        }
    }

    /// The target was killed, and perhaps this daemon with it. It does not notice when the target has lost
    /// power.
    pub(super) fn caller_dies(&mut self, plan: &Plan, loses_power: bool) {
        self.net.borrow_mut().kill_callers(0..plan.cores, !loses_power);
        if self.chain.rng.u32(0..100) < self.chain.both {
            self.dies();
        }
    }

    /// The target is running again: now and then it dies before it has done much.
    pub(super) fn caller_lives(&mut self) {
        if self.chain.both > 0 && !self.is_healed && self.chain.rng.bool() {
            let after = Duration::from_micros(self.chain.rng.u64(0..10_000));
            let net = &mut *self.net.borrow_mut();
            net.at(net.now.after(after), Event::Back);
        }
    }

    /// The target has ended.
    pub(super) fn is_left(&mut self, plan: &Plan) {
        self.net.borrow_mut().kill_callers(0..plan.cores, true);
    }

    /// Whether it is running.
    pub(super) fn lives(&self) -> bool {
        self.daemon.is_some()
    }

    /// The target opens its units, from a host just for that.
    pub(super) fn opens(&self, plan: &Plan, directory: &Directory) -> Opening {
        let host = self.first + self.chain.cores + 1;
        // No earlier one has this many requests.
        let kernel = Kernel::new(host, self.net.clone(), 16 << 20, None, self.openings.get() + 1);
        self.openings.set(self.openings.get() + 1);
        let units = (0..plan.kinds.len()).map(|unit| Unit {
            url: self.chain.url(unit),
            addresses: vec![Destination::Address(address())],
            options: self.chain.options(),
            serial: serial(unit),
        });
        Opening::new(host, kernel, &self.net, directory, plan.cores, units.collect())
    }

    /// Its units, just opened, as stores of the target.
    pub(super) fn units(&self, config: &mut Config, opening: Opening) -> Vec<Counted> {
        self.net.borrow_mut().kill_callers(opening.host..opening.host + 1, true);
        let daemon = self.daemon.as_ref().expect("it was reached");
        let unit = |((unit, geometry), ports): ((usize, &Geometry), _)| {
            let url = self.chain.url(unit);
            let losses = Arc::<AtomicU64>::default();
            let options = RemoteOptions {
                initiator: self.chain.options(),
                losses: losses.clone(),
                ports,
                inherits: true,
                ..RemoteOptions::default()
            };
            let addresses = vec![Destination::Address(address())];
            let geometry = geometry.clone().in_run(daemon.cores.incarnation(unit));
            let store = RemoteStore::new(&url, addresses, &options, geometry).expect("memory");
            config.luns[unit].store = StoreSpec::Remote { url: Box::new(url), block_bytes: None };
            let store: Arc<dyn Backend<Kernel>> = store;
            (store, losses)
        };
        self.geometries.iter().enumerate().zip(opening.ports).map(unit).collect()
    }

    /// Whether it is one of its hosts.
    pub(super) fn has(&self, host: usize) -> bool {
        (self.first..self.first + self.chain.hosts()).contains(&host)
    }

    /// Continues a request of a core.
    pub(super) fn go(&mut self, host: usize, request: Request) {
        // The scout has ended.
        if let Some(daemon) = self.daemon.as_mut().filter(|daemon| daemon.has(host)) {
            daemon.kernel(host).go(request);
        }
    }

    /// One of its hosts has a turn.
    pub(super) fn turn(&mut self, plan: &Plan, host: usize) {
        match &mut self.daemon {
            Some(daemon) if daemon.is_worker(host) => daemon.work(&self.net),
            Some(daemon) if daemon.has(host) => {
                daemon.turn(&self.net, host, plan.slowness, plan.moves);
                self.hunt();
            }
            Some(_) | None => {}
        }
    }

    /// It is killed soon after a disk has reported a loss to it, as soon as it must have saved that.
    fn hunt(&mut self) {
        if self.chain.trap != Some(Trap::Loss) || self.is_hunted || self.is_healed || self.hunts == 0 {
            return;
        }
        let net = &mut *self.net.borrow_mut();
        let said = net.disks.iter().find_map(|(_, disk)| disk.said());
        if let Some(at) = said.map(|said| said.after(save_loss_within(net))).filter(|at| *at > net.now) {
            (self.is_hunted, self.hunts) = (true, self.hunts - 1);
            let after = Duration::from_micros(self.chain.rng.u64(1..2_000));
            net.at(at.after(after), Event::Back);
        }
    }

    /// Whether nobody is connected to it.
    pub(super) fn is_alone(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| daemon.is_alone(false))
    }

    /// Checks that it has released everything.
    pub(super) fn is_clean(&mut self) -> Result<(), String> {
        self.daemon.as_mut().map_or(Ok(()), |daemon| daemon.is_clean(false))
    }

    /// Its state as text.
    pub(super) fn status(&mut self) -> String {
        self.daemon.as_mut().map_or_else(|| "it is dead".into(), Daemon::status)
    }
}

/// How long the second daemon may take to save a loss.
fn save_loss_within(net: &Net) -> Duration {
    if net.odds.pause > 0 { SAVE_LOSS_WITHIN_PAUSES } else { SAVE_LOSS_WITHIN }
}

impl Chain {
    /// Most cores of the target: what is resent after another core has written there ends with BUSY.
    pub(super) fn cores_max(&self) -> usize {
        if self.trap == Some(Trap::Swap) { 1 } else { usize::MAX }
    }

    /// Adapts initiators' behaviour.
    pub(super) fn shape(&self, habits: &mut Habits) {
        match self.trap {
            Some(Trap::Loss) => habits.flushes = 3,
            Some(Trap::Calm) => (habits.calm, habits.flushes) = (CALM, habits.flushes.max(20)),
            Some(Trap::Swap) => {
                (habits.others, habits.duels, habits.depth) = (700, true, habits.depth.min(4));
            }
            None => {}
        }
    }

    /// Whether all initiators are one, with a session for each path.
    pub(super) fn has_paths(&self) -> bool {
        self.has_paths
    }

    /// How many hosts it adds: its cores, its worker, and a scout.
    pub(super) fn hosts(&self) -> usize {
        self.cores + 2
    }

    /// The second daemon is no longer killed.
    pub(super) fn goes_on(&mut self) {
        self.deaths.clear();
        self.both = 0;
    }

    /// The target's options for connecting to it.
    fn options(&self) -> Options {
        Options {
            initiator_name: CALLER.into(),
            queue_depth: self.queue_depth,
            give_up_after: self.give_up_after,
            unsolicited_data: self.unsolicited,
            ..Options::default()
        }
    }

    fn url(&self, unit: usize) -> Url {
        let text = match self.protocol {
            Protocol::Iscsi => format!("iscsi://{PORTAL}/{TARGET}/{unit}"),
            Protocol::Iser => format!("iser://{PORTAL}/{TARGET}/{unit}"),
            Protocol::Srp => format!("srp://{PORTAL}/{GUID}/{unit}"),
        };
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }
}

/// An initiator that learns the units' properties, before anything else happens in the world.
struct Scout<'a> {
    back: &'a mut Back,
    host: usize,
    kernel: Kernel,
    link: Option<Link>,
    events: Vec<iscsi::Event>,
}

impl Scout<'_> {
    fn new(back: &mut Back) -> Scout<'_> {
        let host = back.first + back.chain.cores + 1;
        let mut kernel = Kernel::new(host, back.net.clone(), 16 << 20, None, 0);
        kernel.connect(address(), Tag(CONNECT));
        let now = back.net.borrow().now;
        back.net.borrow_mut().wake(host, now);
        let mut scout = Scout { back, host, kernel, link: None, events: Vec::new() };
        scout.until(|event| matches!(event, iscsi::Event::Ready(_)));
        scout
    }

    /// The geometries of these units.
    fn learn(mut self, units: usize) -> Vec<Geometry> {
        let learn = |unit| {
            let geometry = Geometry::query(|cdb, bytes| self.command(unit, cdb, bytes));
            geometry.unwrap_or_else(|problem| panic!("unit {unit} of the second daemon: {problem}"))
        };
        let geometries = (0..units).map(learn).collect();
        self.back.net.borrow_mut().kill_callers(self.host..self.host + 1, true);
        geometries
    }

    fn command(&mut self, unit: usize, cdb: Cdb, bytes: u32) -> Result<Reply, String> {
        loop {
            let read = if bytes == 0 { Some(Places::EMPTY) } else { self.kernel.arena().take(bytes) };
            let read = read.expect("memory");
            let lun = (unit as u64) << 48;
            let request =
                iscsi::Request { lun, attribute: Attribute::Simple, cdb, read, write: Places::EMPTY };
            let task = self.link.as_mut().and_then(|link| link.machine.submit(request));
            let task = task.ok_or("it takes no command")?;
            let ended = self.until(
                |event| matches!(event, iscsi::Event::Completed(completion) if completion.task == task),
            );
            let iscsi::Event::Completed(completion) = ended else { unreachable!("it was looked for") };
            let data = self.kernel.arena().to_vec(&read.slice(0, completion.read_bytes));
            self.kernel.arena().give(&read);
            let Outcome::Status { status, sense } = completion.outcome else {
                return Err(format!("{:?}", completion.outcome));
            };
            // New units report one.
            if sense.as_ref().and_then(Sense::key) != Some(SenseKey::UnitAttention) {
                return Ok(Reply { status, sense, data });
            }
        }
    }

    /// Runs until such an event.
    fn until(&mut self, is_it: impl Fn(&iscsi::Event) -> bool) -> iscsi::Event {
        let until = self.back.net.borrow().now.after(PATIENCE);
        loop {
            if let Some(at) = self.events.iter().position(&is_it) {
                return self.events.swap_remove(at);
            }
            let event = self.back.net.borrow_mut().next(until);
            match event.unwrap_or_else(|| panic!("the scout finds only {:?}", self.events)) {
                Event::Turn { host } => {
                    let begins = self.back.net.borrow_mut().begins(host);
                    if begins && host == self.host {
                        self.turn();
                    } else if begins && let Some(daemon) = &mut self.back.daemon {
                        match daemon.is_worker(host) {
                            true => daemon.work(&self.back.net),
                            false => daemon.turn(&self.back.net, host, 1, 0),
                        }
                    }
                }
                Event::Go { host, request } => self.go(host, request),
                Event::Arrive { socket } => {
                    let waits = self.back.net.borrow_mut().arrive(socket);
                    waits.into_iter().for_each(|(host, request)| self.go(host, request));
                }
                Event::Land { .. } | Event::Fault | Event::Back | Event::Step { .. } => {}
            }
        }
    }

    fn go(&mut self, host: usize, request: Request) {
        if host == self.host { self.kernel.go(request) } else { self.back.go(host, request) }
    }

    fn turn(&mut self) {
        let mut completions = Vec::new();
        self.kernel.turn(Wait::No, &mut completions);
        for completion in completions {
            if completion.tag == Tag(CONNECT) {
                let socket = Handle(completion.result.expect("it listens") as i32);
                let machine = Carrier::new(Protocol::Iscsi, login(), self.host, socket, &mut self.kernel);
                self.link = Some(Link::new(machine, 1, socket));
            } else if let Some(link) = &mut self.link {
                link.completed(&mut self.kernel, completion.tag.0 & 3, completion.result);
            }
        }
        if let Some(link) = &mut self.link {
            for _ in 0..2 {
                while link.feed(&mut self.kernel) {
                    self.events.extend(std::iter::from_fn(|| link.poll()));
                }
                self.events.extend(std::iter::from_fn(|| link.poll()));
                link.flush(&mut self.kernel);
            }
        }
        let mut net = self.back.net.borrow_mut();
        let at = net.now.after(Duration::from_micros(50));
        net.wake(self.host, at);
    }
}

fn login() -> InitiatorConfig {
    let plan = Login {
        initiator: "iqn.2026-11.io.lunette:scout".into(),
        alias: None,
        target: Some(TARGET.into()),
        isid: [0x80, 0, 0, 0, 0, 1],
        chap: None,
        offers: Offers::default(),
        text_bytes: 8192,
    };
    let (login_within, idle) = (Duration::from_secs(20), Duration::from_secs(30));
    InitiatorConfig { plan, queue_depth: 1, login_within, idle, crc32c }
}
