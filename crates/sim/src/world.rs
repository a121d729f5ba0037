//! A run: cores and initiators take turns, until everything is done and quiet.

mod chain;
pub(crate) mod counters;
mod cuts;
pub(crate) mod daemon;
mod guest;
mod opening;
mod plan;
mod thin;
mod worlds;

pub use cuts::Cuts;
pub use worlds::Worlds;

use crate::ata::{self, Ata};
use crate::attention::Attentions;
use crate::device::Device;
use crate::directory::Directory;
use crate::disk::{Disk, Faults, Loss};
use crate::ethernet::{self, Ethernet, Hazards};
use crate::initiator::{Aim, Checks, Habits, Initiator, Place, Protocol};
use crate::kernel::Kernel;
use crate::limits::Meter;
use crate::net::{Event, Net, Request, Shared};
use crate::play::Play;
use crate::quarrels::Quarrel;
use crate::register::{BLOCK_BYTES, Registers};
use crate::reservations::Reservations;
use crate::rogue::{self, Rogue};
use crate::trace::Trace;
use chain::{Back, Chain};
use daemon::Daemon;
use engine::world::Cores;
use fastrand::Rng;
use guest::{Guest, Interface};
use opening::Opening;
use plan::{Kind, Plan, serial};
use reactor::io::Handle;
use reactor::packet::Setup;
use rustix::fs::MemfdFlags;
use std::any::Any;
use std::cell::RefCell;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use store::lane::Backend;
use thin::Measurements;
use wire::aoe::{Mac, sectors_per_frame};

const PORTAL: &str = "10.0.0.1:3260";
const TARGET: &str = "iqn.2026-11.io.lunette:sim";
const UNITS_MAX: usize = 3;
/// Ten times what the longest runs take.
const TURNS_MAX: u64 = 1_000_000;
/// How long everything may take to end once nothing goes wrong any more.
const PATIENCE: Duration = Duration::from_secs(120);
/// Commands, or transfers of 16 blocks, that suffice for one life of the target.
const EFFORT_MAX: u64 = 15_000;
/// The target's Ethernet address.
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Extra memory for a core's frames.
const FRAMES_BYTES: u64 = 16 << 20;

/// The result of a successful run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Commands that ended.
    pub commands: u64,
    /// Changes of the configuration, each of one LUN or of several things at once.
    pub changes: u64,
    /// Turns of cores.
    pub turns: u64,
    /// The checksum of everything that happened, if requested.
    pub sum: u64,
    /// Everything that happened, line by line, if requested.
    pub trace: String,
}

/// The result of a failed run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What was violated.
    pub what: String,
    /// Everything that happened before, line by line, if requested.
    pub trace: String,
}

pub(crate) fn habits(rng: &mut Rng, orders: u32, others: u32) -> Habits {
    let rare = |rng: &mut Rng, most: u32| if rng.bool() { rng.u32(0..=most) } else { 0 };
    Habits {
        depth: [1, 4, 32, 128][rng.usize(0..4)],
        reads: [300, 500, 800][rng.usize(0..3)],
        long: [0, 0, 30, 200][rng.usize(0..4)],
        longer: 100,
        flushes: rare(rng, 50),
        aborts: rare(rng, 30),
        resets: rare(rng, 2),
        logouts: rare(rng, 5),
        returns: rare(rng, 5),
        orders,
        others,
        moves: 0,
        duels: false,
        preempts: false,
        calm: Duration::ZERO,
        simple: 60,
        patience: Duration::from_millis([20, 500, 8000][rng.usize(0..3)]),
        pause_micros: [10, 100, 2000][rng.usize(0..3)],
    }
}

/// A store, and a counter of its losses.
type Counted = (Arc<dyn Backend<Kernel>>, Arc<AtomicU64>);

/// A unit's store: in memory, or a file with a disk's content, of which only the name exists in the real
/// system.
fn store(plan: &Plan, unit: usize, disk: Option<Disk>, net: &mut Net) -> Counted {
    let losses = Arc::<AtomicU64>::default();
    let (kind, bytes) = (plan.kinds[unit], u64::from(plan.blocks * BLOCK_BYTES));
    let open = || {
        let file = rustix::fs::memfd_create("disk", MemfdFlags::CLOEXEC).map(File::from);
        let file = file.expect("a descriptor");
        file.set_len(bytes).expect("a size");
        let disk = disk.unwrap_or_else(|| Disk::new(unit, kind.cache(), bytes as usize));
        net.disks.push((Handle(file.as_raw_fd()), disk));
        file
    };
    let store: Arc<dyn Backend<Kernel>> = match kind {
        Kind::Memory => store::open_ram(bytes).expect("memory"),
        Kind::Device => Arc::new(Device { file: open(), size_bytes: bytes }),
        Kind::File(grain) => store::file::on(open(), grain, losses.clone()).expect("a store"),
    };
    (store, losses)
}

/// Starts the target: with units of another daemon, or with what its disks have kept, for none or all units.
fn start(
    plan: &Plan,
    net: &Shared,
    directory: &Directory,
    back: Option<(&Back, Opening)>,
    disks: Vec<Disk>,
    lives: u32,
) -> Daemon {
    let mut config = plan.config();
    let listeners = config.portals.iter().map(|portal| net.borrow_mut().listen(portal.listen)).collect();
    let mut stores = match back {
        None => stores(plan, net, disks),
        Some((back, opening)) => back.units(&mut config, opening),
    };
    if plan.rogue.is_some() {
        stores.push((store::open_ram(rogue::UNIT_BYTES).expect("memory"), Arc::default()));
    }
    let more = plan.ethernet.as_ref().map_or(0, |_| FRAMES_BYTES);
    let kernel = |core, waker| Kernel::new(core, net.clone(), plan.arena_bytes + more, Some(waker), lives);
    let lines = |setup: &Setup<'_>, cores| {
        let opened = net.borrow_mut().ethernet.as_mut().map(|ethernet| ethernet.open(MAC, setup, cores));
        Ok(opened.unwrap_or_default())
    };
    let cores = Cores::new(config, stores, listeners, Box::new(directory.clone()), lines, kernel)
        .expect("descriptors");
    Daemon::new(cores, plan.cores, 0, plan.cores + plan.initiators.len())
}

/// The stores of all units, with what their disks have kept: none or all of them.
fn stores(plan: &Plan, net: &Shared, disks: Vec<Disk>) -> Vec<Counted> {
    let mut disks = disks.into_iter();
    let store = |unit: usize| {
        let disk = if plan.kinds[unit] == Kind::Memory { None } else { disks.next() };
        store(plan, unit, disk, &mut net.borrow_mut())
    };
    (0..plan.kinds.len()).map(store).collect()
}

/// Takes the disks, with what a power failure has left on them, and their losses.
fn lose(net: &mut Net, loses_power: bool) -> (Vec<Disk>, Vec<Loss>) {
    let mut disks: Vec<Disk> = std::mem::take(&mut net.disks).into_iter().map(|(_, disk)| disk).collect();
    let mut losses = Vec::new();
    if loses_power {
        disks.iter_mut().for_each(|disk| losses.extend(disk.lose_power(&mut net.rng)));
    }
    (disks, losses)
}

/// The role of a host; initiators by number.
enum Who {
    Core,
    Initiator(usize),
    /// Runs work offloaded from the cores.
    Worker,
    Rogue,
    Ata(usize),
    /// A host of the second daemon.
    Back,
}

struct World {
    plan: Plan,
    net: Shared,
    registers: Rc<RefCell<Registers>>,
    reservations: Rc<RefCell<Vec<Reservations>>>,
    directory: Directory,
    /// The target.
    front: Daemon,
    /// The daemon that serves the target's units, if they are another daemon's.
    back: Option<Back>,
    /// The target is dead, and opens these before it is restarted.
    opening: Option<Opening>,
    initiators: Vec<Initiator>,
    rogue: Option<Rogue>,
    guest: Option<Guest>,
    thin: Option<Measurements>,
    atas: Vec<Ata>,
    fault_micros: Option<u64>,
    turns: u64,
}

/// Runs the world of this seed with these cuts.
///
/// # Errors
/// When a check fails.
pub(crate) fn run(seed: u64, cuts: &Cuts, keeps_trace: bool) -> Result<Ran, Failure> {
    let mut rng = Rng::with_seed(seed);
    let mut plan = Plan::new(seed, &mut rng);
    cuts.of_plan(&mut plan);
    // The initiators are followed by the worker, a rogue, and AoE initiators.
    let atas = plan.ethernet.as_ref().map_or(0, |segment| segment.initiators);
    let hosts = plan.cores + plan.initiators.len() + 2 + atas + plan.chain.as_ref().map_or(0, Chain::hosts);
    let net = Net::new(rng, Trace::new(keeps_trace), plan.odds, hosts);
    net.borrow_mut().ethernet = plan.ethernet.as_ref().map(Ethernet::new);
    ethernet::begin(&net);
    let mut world = World::new(plan, seed, cuts, net.clone());
    let lived = catch_unwind(AssertUnwindSafe(|| world.run()));
    let (sum, trace) = net.borrow_mut().trace.end();
    match lived.unwrap_or_else(|panic| Err(panic_message(&*panic))) {
        Ok(()) => {
            let of_atas = world.atas.iter().map(|ata| ata.commands).sum::<u64>();
            let commands = of_atas + world.initiators.iter().map(|initiator| initiator.commands).sum::<u64>();
            let changes = world.guest.as_ref().map_or(0, Guest::changes);
            Ok(Ran { commands, turns: world.turns, changes, sum, trace })
        }
        Err(what) => {
            // It may be in the middle of something.
            std::mem::forget(world);
            Err(Failure { what, trace })
        }
    }
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a panic: {}", text.unwrap_or("it says nothing"))
}

fn rogue(plan: &Plan, net: &Shared) -> Option<Rogue> {
    let host = plan.cores + plan.initiators.len() + 1;
    let kernel = || Kernel::new(host, net.clone(), 64 << 20, None, 0);
    plan.rogue.map(|manners| Rogue::new(host, kernel(), net.clone(), manners))
}

/// Adds the AoE initiators.
fn join(
    plan: &Plan,
    cuts: &Cuts,
    net: &Shared,
    registers: &Rc<RefCell<Registers>>,
    reservations: &Rc<RefCell<Vec<Reservations>>>,
    place: &Place,
) -> Vec<Ata> {
    let Some(segment) = &plan.ethernet else { return Vec::new() };
    let wanders = segment.wanders;
    let mut rng = Rng::with_seed(!segment.seed);
    let one = |number: usize| {
        let index = plan.initiators.len() + number;
        let host = plan.cores + index + 2;
        let macs = &ata::macs(host)[..if wanders { 2 } else { 1 }];
        let mut shared = net.borrow_mut();
        let ethernet = shared.ethernet.as_mut().expect("there is one");
        let stations = macs.iter().map(|mac| (*mac, ethernet.join(*mac, host))).collect();
        drop(shared);
        let segment = ata::Segment {
            stations,
            target: MAC,
            units: place.units,
            blocks: place.blocks,
            frame_blocks: sectors_per_frame(segment.mtu).into(),
            fragile: place.fragile.clone(),
        };
        let mut habits = ata::Habits::draw(&mut rng);
        cuts.of_ata(&mut habits);
        if wanders && number > 0 {
            // A copy that arrives after another initiator's write looks like a newer one.
            habits.reads = 1000;
        }
        let checks = ata::Checks { index, registers: registers.clone(), reservations: reservations.clone() };
        let mut ata = Ata::new(host, net.clone(), checks, segment, habits, rng.fork());
        let now = net.borrow().now;
        ata.restarted(now);
        ata
    };
    (0..segment.initiators).map(one).collect()
}

/// Where the target's units are.
fn place(plan: &Plan, portal: SocketAddr) -> Place {
    let can_fail = plan.faults.can_fail();
    let is_fragile = |kind: &Kind| can_fail && *kind != Kind::Memory || plan.chain.is_some();
    Place {
        portals: [portal].into(),
        target: TARGET.into(),
        units: plan.kinds.len(),
        blocks: plan.blocks,
        plain: plan.kinds.iter().map(|kind| *kind == Kind::Device).collect(),
        fragile: plan.kinds.iter().map(is_fragile).collect(),
        is_calm: plan.is_calm(),
        truth: None,
        gives_up: None,
    }
}

impl Play for World {
    fn net(&self) -> &Shared {
        &self.net
    }

    fn fault_micros(&self) -> Option<u64> {
        self.fault_micros
    }

    fn back(&mut self) -> Result<(), String> {
        self.back.iter_mut().for_each(|back| back.acts(&self.plan));
        self.check_losses()
    }

    /// Of what gateways do there is nothing: the thin unit is measured.
    fn step(&mut self, number: u64) -> Result<(), String> {
        if let Some(thin) = &mut self.thin {
            let now = self.net.borrow().now;
            let after = thin.step(now, &self.front.cores);
            self.net.borrow_mut().at(now.after(after), Event::Step { number });
            self.front.look_around(&self.net, usize::MAX);
        }
        Ok(())
    }

    fn go(&mut self, host: usize, request: Request) -> Result<(), String> {
        if let Some(opening) = &mut self.opening {
            if opening.host == host {
                opening.kernel.go(request);
                return self.check_losses();
            }
            if self.front.has(host) {
                return Ok(());
            }
        }
        match (self.who(host), &mut self.rogue, &mut self.back) {
            (Who::Core, ..) => self.front.kernel(host).go(request),
            (Who::Initiator(number), ..) => self.initiators[number].kernel.go(request),
            (Who::Rogue, Some(rogue), _) => rogue.kernel.go(request),
            (Who::Rogue, None, _) if let Some(guest) = &mut self.guest => guest.kernel.go(request),
            (Who::Back, _, Some(back)) if back.has(host) => back.go(host, request),
            _ => unreachable!("host {host} has no requests"),
        }
        self.check_losses()
    }

    fn turn(&mut self, host: usize) -> Result<(), String> {
        if let Some(opening) = &mut self.opening {
            if opening.host == host {
                opening.turn();
                return Ok(());
            }
            if self.front.has(host) || self.front.is_worker(host) {
                return Ok(());
            }
        }
        match (self.who(host), &mut self.rogue, &mut self.back) {
            (Who::Core, ..) => {
                self.count_turn()?;
                self.front.turn(&self.net, host, self.plan.slowness, self.plan.moves);
                return counters::check(self.front.counted(host));
            }
            (Who::Worker, ..) => {
                self.front.work(&self.net);
                return Ok(());
            }
            (Who::Back, _, Some(back)) if back.has(host) => {
                back.turn(&self.plan, host);
                return self.count_turn();
            }
            (Who::Initiator(number), ..) => self.initiators[number].turn()?,
            (Who::Ata(number), ..) => self.atas[number].turn()?,
            (Who::Rogue, Some(rogue), _) => rogue.turn(),
            (Who::Rogue, None, _) if let Some(guest) = &mut self.guest => {
                guest.turn(&mut self.front.cores)?;
                match guest.interface() {
                    Some(Interface::Left) => self.atas.iter_mut().try_for_each(Ata::target_left)?,
                    Some(Interface::Joined) => self.atas.iter_mut().for_each(Ata::target_joined),
                    None => {}
                }
                self.front.look_around(&self.net, usize::MAX);
            }
            (Who::Rogue | Who::Back, ..) => unreachable!("host {host} is nobody"),
        }
        let mut net = self.net.borrow_mut();
        net.carry(host);
        net.turned(host, 1);
        Ok(())
    }
}

impl World {
    fn new(plan: Plan, seed: u64, cuts: &Cuts, net: Shared) -> World {
        let directory = Directory::new(net.borrow_mut().rng.fork(), plan.directory_fails);
        let back = plan.chain.clone().map(|chain| Back::new(&plan, chain, &net));
        let opened = back.as_ref().map(|back| {
            // There are no sessions to wait for: there was no target before.
            let mut opening = back.opens(&plan, &directory);
            while !opening.is_done() {
                opening.turn();
            }
            (back, opening)
        });
        let front = start(&plan, &net, &directory, opened, Vec::new(), 0);
        let (units, blocks) = (plan.kinds.len(), plan.blocks);
        let can_fail = plan.faults.can_fail();
        let may_lose = plan.crashes > 0 || can_fail || plan.chain.is_some();
        let atas = plan.ethernet.as_ref().map_or(0, |segment| segment.initiators);
        let everybody = plan.initiators.len() + atas;
        let registers = Registers::new(everybody, units, blocks, may_lose);
        let registers = if back.is_some() { registers.of_chain() } else { registers };
        let registers = Rc::new(RefCell::new(registers));
        net.borrow_mut().faults = plan.faults;
        let is_classic = plan.quarrel == Some(Quarrel::Unit);
        let reservations = (0..units).map(|_| Reservations::new(everybody, is_classic)).collect();
        let reservations: Rc<RefCell<Vec<Reservations>>> = Rc::new(RefCell::new(reservations));
        let portal = PORTAL.parse().expect("an address");
        let attentions = Rc::new(RefCell::new(Attentions::new(plan.initiators.len(), units)));
        let is_calm = plan.is_calm();
        let meter = Rc::new(RefCell::new(Meter::new(plan.limited, u64::from(plan.crashes) + 1)));
        let place = place(&plan, portal);
        let initiator = |(index, protocol): (usize, &Protocol)| {
            let host = plan.cores + index;
            let kernel = Kernel::new(host, net.clone(), 64 << 20, None, 0);
            let mut habits = habits(&mut net.borrow_mut().rng, plan.orders, plan.others);
            plan.quarrel.iter().for_each(|quarrel| quarrel.shape(&mut habits));
            plan.chain.iter().for_each(|chain| chain.shape(&mut habits));
            plan.ethernet.iter().for_each(|segment| segment.shape(&mut habits));
            if is_calm {
                // What a reset or PREEMPT AND ABORT has ended has no answer, and many long commands take
                // their time.
                (habits.resets, habits.orders, habits.longer) = (0, 0, 0);
            }
            cuts.of_habits(&mut habits);
            let (registers, attentions) = (registers.clone(), attentions.clone());
            let (reservations, meter) = (reservations.clone(), meter.clone());
            let checks = Checks { index, registers, attentions, reservations, meter };
            let one = Initiator::new(host, kernel, net.clone(), checks, place.clone(), habits, *protocol);
            if plan.has_paths() { one.session_of(plan.cores, index) } else { one }
        };
        let atas = join(&plan, cuts, &net, &registers, &reservations, &place);
        let guest = Guest::of(&plan, &net, attentions.clone(), portal);
        World {
            atas,
            rogue: rogue(&plan, &net),
            guest,
            thin: plan.thin.map(|thin| Measurements::new(thin, seed, attentions.clone())),
            initiators: plan.initiators.iter().enumerate().map(initiator).collect(),
            net,
            registers,
            reservations,
            directory,
            front,
            back,
            opening: None,
            fault_micros: plan.fault_micros,
            turns: 0,
            plan,
        }
    }

    /// Gives everybody a turn now.
    fn wake_all(&mut self) {
        self.front.wake(&self.net);
        let initiators = self.initiators.iter().map(|initiator| initiator.host);
        let guest = self.guest.as_ref().map(|guest| guest.host);
        let rogue = self.rogue.as_ref().map(|rogue| rogue.host).or(guest);
        let atas = self.atas.iter().map(|ata| ata.host);
        let mut net = self.net.borrow_mut();
        let now = net.now;
        initiators.chain(rogue).chain(atas).for_each(|host| net.wake(host, now));
    }

    /// The target is killed, with or without losing power, and restarted with what its disks have kept.
    fn crash(&mut self, lives: u32) -> Result<(), String> {
        self.front.die();
        let loses_power = {
            let net = &mut *self.net.borrow_mut();
            let (now, loses_power) = (net.now, net.rng.bool());
            net.trace.note(now, &[u64::from(loses_power)], || {
                if loses_power { "power fails" } else { "the target is killed" }.to_owned()
            });
            net.kill(PORTAL.parse().expect("an address"));
            net.kill(rogue::address());
            net.ethernet.iter_mut().for_each(|ethernet| ethernet.kill(MAC));
            self.registers.borrow_mut().crash(now, loses_power && self.back.is_none());
            self.atas.iter_mut().for_each(|ata| ata.restarted(now));
            self.reservations.borrow_mut().iter_mut().for_each(Reservations::restarted);
            self.directory.crash(loses_power);
            loses_power
        };
        let disks = match &mut self.back {
            None => lose(&mut self.net.borrow_mut(), loses_power).0,
            Some(back) => {
                back.caller_dies(&self.plan, loses_power);
                Vec::new()
            }
        };
        self.check_losses()?;
        self.open()?;
        let opened = self.back.as_ref().zip(self.opening.take());
        self.front = start(&self.plan, &self.net, &self.directory, opened, disks, lives);
        self.back.iter_mut().for_each(Back::caller_lives);
        let now = self.net.borrow().now;
        self.thin.iter_mut().for_each(|thin| thin.restarted(now));
        self.wake_all();
        Ok(())
    }

    /// The target, which is dead, opens the second daemon's units that it has.
    fn open(&mut self) -> Result<(), String> {
        let Some(back) = &self.back else { return Ok(()) };
        let opening = self.opening.insert(back.opens(&self.plan, &self.directory));
        let host = opening.host;
        let until = {
            let net = &mut *self.net.borrow_mut();
            net.wake(host, net.now);
            net.now.after(PATIENCE)
        };
        let is_open = |world: &mut World| {
            world.opening.as_ref().is_some_and(Opening::is_done)
                && world.back.as_ref().is_some_and(Back::lives)
        };
        match self.run_until(until, is_open)? {
            true => Ok(()),
            false => {
                let of_back = self.status_of_back();
                let seconds = PATIENCE.as_secs();
                Err(format!("{seconds} s are not enough until the target has opened its units{of_back}"))
            }
        }
    }

    fn status_of_back(&mut self) -> String {
        self.back.as_mut().map_or_else(String::new, |back| format!("\nbehind it {}", back.status()))
    }

    fn run(&mut self) -> Result<(), String> {
        self.wake_all();
        self.plan_fault();
        if self.thin.is_some() {
            let net = &mut *self.net.borrow_mut();
            net.at(net.now, Event::Step { number: 0 });
        }
        for life in 1..=self.plan.crashes + 1 {
            let until = self.net.borrow().now.after(self.plan.work);
            let dies = life <= self.plan.crashes && self.net.borrow_mut().rng.bool();
            if dies {
                // In the middle of saving something, if it saves that much.
                self.directory.dies_after(self.net.borrow_mut().rng.u32(1..40));
            }
            self.run_until(until, |world| {
                world.has_done(u64::from(life) * EFFORT_MAX) || dies && world.directory.has_died()
            })?;
            if life <= self.plan.crashes {
                self.crash(life)?;
            }
        }
        (self.fault_micros, self.thin) = (None, None);
        self.net.borrow_mut().faults = Faults::NONE;
        self.net.borrow_mut().ethernet.iter_mut().for_each(|ethernet| ethernet.hazards = Hazards::NONE);
        self.rogue.iter_mut().for_each(Rogue::slow_down);
        self.directory.heal();
        self.back.iter_mut().for_each(|back| back.heal(&self.plan));
        self.aim(Aim::Settle, "what was begun ends", |world| {
            let is_settled = world.guest.iter().all(Guest::is_settled);
            is_settled
                && world.initiators.iter().all(Initiator::is_settled)
                && world.atas.iter().all(Ata::is_settled)
        })?;
        self.rogue.iter_mut().for_each(Rogue::leave);
        self.aim(Aim::Leave, "all sessions end", |world| {
            world.initiators.iter().all(Initiator::is_gone)
                && world.rogue.as_ref().is_none_or(Rogue::is_gone)
                && world.guest.iter().all(Guest::is_gone)
                && world.front.is_alone(!world.atas.is_empty())
        })?;
        self.front.is_clean(self.back.is_some())?;
        self.front.stop(&self.net);
        self.aim(Aim::Leave, "the cores end", |world| world.front.is_over())?;
        if let Some(back) = &mut self.back {
            // Its process ends, with whatever its sessions were sending.
            self.front.die();
            back.is_left(&self.plan);
            self.aim(Aim::Leave, "the second daemon is left", |world| {
                world.back.as_mut().is_some_and(Back::is_alone)
            })?;
        }
        self.back.as_mut().map_or(Ok(()), Back::is_clean)
    }

    /// Whether the initiators have done this much.
    fn has_done(&self, effort: u64) -> bool {
        let of_one = |initiator: &Initiator| initiator.commands + initiator.blocks / 16;
        let of_atas = self.atas.iter().map(|ata| ata.commands + ata.blocks / 16).sum::<u64>();
        // In a chain most may be lost with their connections, again and again.
        let begun = self.back.as_ref().map_or(0, |_| self.registers.borrow().begun_blocks / 16);
        begun.max(of_atas + self.initiators.iter().map(of_one).sum::<u64>()) >= effort
    }

    /// Runs until this holds, which must be soon.
    fn aim(&mut self, aim: Aim, what: &str, is_done: impl FnMut(&mut World) -> bool) -> Result<(), String> {
        self.initiators.iter_mut().for_each(|initiator| initiator.aim = aim);
        self.atas.iter_mut().for_each(|ata| ata.aim = aim);
        self.guest.iter_mut().for_each(|guest| guest.aim = aim);
        let until = self.net.borrow().now.after(PATIENCE);
        if self.run_until(until, is_done)? {
            return Ok(());
        }
        let status: Vec<String> = self
            .initiators
            .iter()
            .map(Initiator::status)
            .chain(self.atas.iter().map(Ata::status))
            .chain(self.guest.iter().map(Guest::status))
            .collect();
        let (status, in_use, of_back) = (status.join("\n"), self.front.status(), self.status_of_back());
        Err(format!("{} s are not enough until {what}\n{status}\n{in_use}{of_back}", PATIENCE.as_secs()))
    }

    fn check_losses(&mut self) -> Result<(), String> {
        let net = &mut *self.net.borrow_mut();
        if let Some(number) = net.ethernet.as_ref().and_then(|ethernet| ethernet.late) {
            return Err(format!("write {number} is executed after its interface was removed"));
        }
        for unit in net.forgotten.drain(..) {
            self.registers.borrow_mut().forget_losses(unit);
        }
        for loss in net.losses.drain(..) {
            let words = [loss.unit as u64, loss.block as u64, u64::from(loss.is_gone)];
            net.trace.note(net.now, &words, || {
                let what = if loss.is_gone { "loses" } else { "will not keep" };
                format!("the disk of unit {} {what} block {}", loss.unit, loss.block)
            });
            self.registers.borrow_mut().lose(net.now, &loss)?;
        }
        Ok(())
    }

    fn who(&self, host: usize) -> Who {
        let (cores, initiators) = (self.plan.cores, self.initiators.len());
        match host.checked_sub(cores) {
            None => Who::Core,
            Some(number) if number < initiators => Who::Initiator(number),
            Some(number) => match number - initiators {
                0 => Who::Worker,
                1 => Who::Rogue,
                number if number - 2 < self.atas.len() => Who::Ata(number - 2),
                _ => Who::Back,
            },
        }
    }

    fn count_turn(&mut self) -> Result<(), String> {
        self.turns += 1;
        if self.turns <= TURNS_MAX {
            return Ok(());
        }
        Err(format!("the cores had {TURNS_MAX} turns, and have not finished: one of them spins"))
    }
}
