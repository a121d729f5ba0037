//! A LUN that comes and goes, or is replaced, while the target serves others, and its user. Operations begun
//! on it end, those begun after its removal do not reach it, and when its removal is done no core has its
//! store any more. Initiators with other LUNs of the target notice only that their LUNs have changed. Between
//! these changes others are made: a target and a portal of the guest's alone come and go, the guest is
//! admitted there or not, or may only read, the portal's group changes its asymmetric access state, and the
//! LUN changes its properties; nobody else notices any of that. The AoE interface, if there is one, changes
//! too: once it is gone, what was sent to it before takes no effect any more, and its users continue when it
//! comes back. When a change that revokes the right to write is done, nothing from those who lost it is
//! written any more.

mod slow;
mod states;

use super::{MAC, Plan, TARGET};
use crate::attention::Attentions;
use crate::initiator::carrier::Carrier;
use crate::initiator::link::Link;
use crate::initiator::{Aim, Protocol};
use crate::kernel::Kernel;
use crate::net::Shared;
use config::{
    AoeInterface, Config, Group, HugePages, Limits, Lun, PortIds, Portal, PortalGroup, StepOfChange,
    StoreSpec, Target, diff,
};
use engine::world::Cores;
use engine::{Change, Shown};
use fastrand::Rng;
use proto::iscsi::initiator::{Completion, Event, InitiatorConfig, Outcome, Request};
use proto::iscsi::login::{self, Offers};
use proto::services::{Attribute, TaskId};
use proto::time::Time;
use reactor::crc::crc32c;
use reactor::io::{self, Handle, Io, Tag, Wait};
use reactor::memory::Arena;
use slow::Slow;
use states::{GroupCommand, States};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use store::lane::Backend;
use wire::scsi::command::{Read10, Write10};
use wire::scsi::status::{BUSY, CHECK_CONDITION, GOOD, TASK_SET_FULL};
use wire::scsi::{AccessState, Command as _, code};
use wire::{Places, SenseKey};

/// Separates its choices from others made from the same seed.
const SALT: u64 = 0x6775_6573_7400_0000;
/// The other target, which only the guest uses, and its portal.
const OTHER: &str = "iqn.2026-11.io.lunette:other";
const SECOND: &str = "10.0.0.1:3261";
/// The group of that portal, whose asymmetric access state changes.
const SECOND_GROUP: u16 = 2;
const CONNECT: u64 = 3;
const LUN: u16 = 100;
const BLOCKS: u32 = 32;
const BLOCK_BYTES: u32 = 512;
const DEPTH: usize = 8;
/// How long a command may take: others reset all LUNs of the target, which no answer reports.
const PATIENCE: Duration = Duration::from_secs(3);
/// LOGICAL UNIT NOT SUPPORTED.
const NOT_SUPPORTED: u16 = code::LOGICAL_UNIT_NOT_SUPPORTED;
const WRITE_PROTECTED: u16 = code::WRITE_PROTECTED;
/// The answers of a port that is not active.
const INACTIVE: [u16; 3] = [code::ACCESS_STATE_TRANSITION, code::PORT_IN_STANDBY, code::PORT_UNAVAILABLE];

/// Its behaviour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    protocol: Protocol,
    /// Longest time between two changes.
    change_micros: u64,
    /// Longest time between two of its turns.
    pause_micros: u64,
    /// Most turns of a core for an operation of its store.
    slowness: u32,
}

/// The guest in this seed's world, if any, in place of the rogue.
pub(super) fn draw(seed: u64, plan: &Plan) -> Option<Manners> {
    let has_place = plan.chain.is_none() && plan.quarrel.is_none() && plan.rogue.is_none();
    let mut rng = Rng::with_seed(seed ^ SALT);
    (has_place && plan.crashes == 0 && rng.bool()).then(|| Manners {
        protocol: [Protocol::Iscsi, Protocol::Iser, Protocol::Srp][rng.usize(0..3)],
        change_micros: [500, 5_000, 50_000][rng.usize(0..3)],
        pause_micros: [20, 200, 2_000][rng.usize(0..3)],
        slowness: [0, 3, 40][rng.usize(0..3)],
    })
}

/// Adds and removes the LUN, and uses it: a scripted peer's machine and session, and what is expected of it.
/// Its fields are a scripted session and what is expected of each step.
pub(crate) struct Guest {
    pub(crate) kernel: Kernel,
    pub(crate) host: usize,
    pub(crate) aim: Aim,
    net: Shared,
    attentions: Rc<RefCell<Attentions>>,
    manners: Manners,
    portal: SocketAddr,
    lun: Lun,
    /// The store currently or last served.
    store: Option<Arc<Slow>>,
    /// The store of a LUN being removed.
    leaving: Option<Arc<Slow>>,
    /// A change is in progress.
    is_changing: bool,
    /// How many changes there were.
    changes: u64,
    /// The number of the change that added the current LUN.
    current: u64,
    change_at: Time,
    /// Remaining steps to another configuration.
    steps: VecDeque<StepOfChange>,
    /// That configuration.
    to: Option<Config>,
    /// The second portal, if it exists.
    door: Option<Handle>,
    /// The other target exists, and the guest may log in.
    has_other: bool,
    /// The AoE interface, if there is one, and what has just happened to it.
    interfaces: Vec<AoeInterface>,
    interface: Option<Interface>,
    /// It is removed by this step, and it is being or was removed.
    leaves: bool,
    is_away: bool,
    /// What may be written, when no change is in progress.
    rights: Rights,
    states: States,
    /// The possible content of each block.
    blocks: Vec<Vec<u64>>,
    writes: u64,
    link: Option<Link>,
    /// It is logged in to the other target.
    is_other: bool,
    /// It goes there once it has nothing outstanding: the other target's sessions do not reinstate those of
    /// the first.
    wants_other: bool,
    links: u64,
    is_connecting: bool,
    /// The connection is ending.
    is_ending: bool,
    commands: Vec<Command>,
    /// Writes that were outstanding when their connection ended, until the next one has logged in.
    lost: Vec<Lost>,
    completions: Vec<io::Completion>,
}

/// A change of an AoE interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interface {
    /// It is no longer served.
    Left,
    /// It is served again.
    Joined,
}

/// Who may write to the LUN: users of the first target, and of the other.
#[derive(Clone, Copy, Debug, Default)]
struct Rights {
    of_first: bool,
    of_other: bool,
    /// The other target's portal is active.
    is_active: bool,
}

impl Rights {
    fn of(self, is_other: bool) -> bool {
        if is_other { self.of_other && self.is_active } else { self.of_first }
    }

    fn may_access(self, is_other: bool) -> bool {
        !is_other || self.is_active
    }
}

/// A write of unknown outcome.
struct Lost {
    block: u32,
    number: u64,
    is_other: bool,
}

/// An outstanding command.
struct Command {
    task: TaskId,
    began: Time,
    block: u32,
    /// It was sent to the other target.
    is_other: bool,
    /// The number that it writes, if it is a write.
    writes: Option<u64>,
    place: Places,
    /// It concerns group states.
    order: Option<GroupCommand>,
    /// The number of changes before it began, and whether the LUN was there with no change in progress.
    changes: u64,
    /// The same for commands that set states.
    era: u64,
    is_settled: bool,
    is_there: Option<bool>,
}

impl Guest {
    /// The guest of this plan, if it has one.
    pub(super) fn of(
        plan: &Plan,
        net: &Shared,
        attentions: Rc<RefCell<Attentions>>,
        portal: SocketAddr,
    ) -> Option<Guest> {
        let manners = plan.guest?;
        let host = plan.cores + plan.initiators.len() + 1;
        let store = StoreSpec::Ram { size: u64::from(BLOCKS * BLOCK_BYTES), huge_pages: HugePages::Never };
        Some(Guest {
            kernel: Kernel::new(host, net.clone(), 64 << 20, None, 0),
            host,
            aim: Aim::Work,
            net: net.clone(),
            attentions,
            manners,
            portal,
            lun: Lun { store, aoe: None, ..plan.config().luns.swap_remove(0) },
            store: None,
            leaving: None,
            is_changing: false,
            changes: 0,
            current: 0,
            change_at: Time(0),
            steps: VecDeque::new(),
            to: None,
            door: None,
            has_other: false,
            interfaces: plan.config().aoe,
            interface: None,
            leaves: false,
            is_away: false,
            rights: Rights::default(),
            states: States::default(),
            blocks: Vec::new(),
            writes: 0,
            link: None,
            is_other: false,
            wants_other: false,
            links: 0,
            is_connecting: false,
            is_ending: false,
            commands: Vec::new(),
            lost: Vec::new(),
            completions: Vec::new(),
        })
    }

    /// How many configuration changes it has made.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// What happened to the AoE interface in its last turn.
    pub(super) fn interface(&mut self) -> Option<Interface> {
        self.interface.take()
    }

    /// Whether everything begun has ended.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_changing && !self.is_away && self.commands.is_empty()
    }

    /// Whether nothing of it is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_settled() && self.link.is_none() && !self.is_connecting
    }

    pub(crate) fn status(&self) -> String {
        let (commands, changes) = (self.commands.len(), self.changes);
        format!("the guest has {commands} commands, is in change {changes}: {}", self.is_changing)
    }

    /// Its turn.
    ///
    /// # Errors
    /// When a check fails.
    pub(crate) fn turn(&mut self, cores: &mut Cores<Kernel>) -> Result<(), String> {
        let mut completions = std::mem::take(&mut self.completions);
        self.kernel.turn(Wait::No, &mut completions);
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        let now = self.kernel.now();
        if let Some(number) = self.store.iter().chain(&self.leaving).find_map(|store| store.broken()) {
            return Err(format!("write {number} is done after a change that took the right to it"));
        }
        self.change(now, cores)?;
        self.talk(now)?;
        let pause = self.net.borrow_mut().nanos(10_000, self.manners.pause_micros * 1000);
        self.net.borrow_mut().wake(self.host, now.after(pause));
        Ok(())
    }

    /// Continues a change, or begins one.
    fn change(&mut self, now: Time, cores: &mut Cores<Kernel>) -> Result<(), String> {
        if self.is_changing {
            let Some(is_flushed) = cores.go_on_changing() else { return Ok(()) };
            self.settle_interface();
            if !self.steps.is_empty() {
                return self.step(now, cores);
            }
            self.is_changing = false;
            self.settle_doors(cores);
            self.settle_rights(cores);
            self.attentions.borrow_mut().luns_have_changed(now);
            self.note(now, 0, || "the guest's change is done".into());
            if !is_flushed {
                return Err("a store in memory was not flushed".into());
            }
            if let Some(gone) = self.leaving.take()
                && Arc::strong_count(&gone) > 1
            {
                return Err("a LUN has gone, and somebody has its store".into());
            }
            self.change_at = now.after(self.net.borrow_mut().nanos(0, self.manners.change_micros * 1000));
            // Otherwise it would stay with the first target, which is never removed.
            self.wants_other = self.has_other && !self.is_other && self.net.borrow_mut().rng.u32(..4) == 0;
        }
        if self.aim != Aim::Work {
            // AoE users wait for it.
            let may_begin = self.is_away && !self.states.is_being_set();
            return if may_begin { self.configure(now, cores) } else { Ok(()) };
        }
        if now < self.change_at || self.states.is_being_set() {
            return Ok(());
        }
        if self.net.borrow_mut().rng.bool() {
            return self.configure(now, cores);
        }
        let goes_for_good = self.net.borrow_mut().rng.bool();
        let comes = self.store.is_none() || !goes_for_good;
        let next = comes.then(|| Slow::new(self.manners.slowness, self.net.borrow_mut().rng.u64(..)));
        let (name, new) = (name(self.current), name(self.changes + 1));
        let lun = Box::new(Lun { name: new.clone(), serial: new, ..self.lun.clone() });
        let change = match (&self.store, &next) {
            (None, _) => {
                let shown = vec![Shown { target: TARGET.into(), group: None, number: LUN }];
                Change::Add { lun, shown }
            }
            (Some(_), None) => Change::Remove { name },
            (Some(_), Some(_)) => Change::Replace { name, lun },
        };
        self.changes += 1;
        self.current = self.changes;
        self.is_changing = true;
        self.note(now, self.changes, || format!("the guest's change {}: {change:?}", self.changes));
        self.attentions.borrow_mut().luns_change(now);
        self.leaving = std::mem::replace(&mut self.store, next.clone());
        self.blocks = vec![vec![0]; BLOCKS as usize];
        // What is in flight may reach the LUN that has this number then.
        for Lost { block, number, .. } in self.under_way() {
            self.blocks[block as usize].push(number);
        }
        let opened = next.map(|store| (store as Arc<dyn Backend<Kernel>>, Arc::default()));
        cores.begin_change(&change, opened)
    }

    /// Begins to change the guest's other settings.
    fn configure(&mut self, now: Time, cores: &mut Cores<Kernel>) -> Result<(), String> {
        let mut to = cores.config().clone();
        let mut rng = Rng::with_seed(self.net.borrow_mut().rng.u64(..));
        to.targets.retain(|target| target.name != OTHER);
        to.portals.truncate(1);
        to.portal_groups.clear();
        let name = name(self.current);
        let lun = to.luns.iter().position(|lun| lun.name == name);
        if let Some(lun) = lun.and_then(|lun| to.luns.get_mut(lun)) {
            lun.product = ["One", "Another"][rng.usize(..2)].into();
            (lun.write_cache, lun.removable) = (rng.bool(), rng.bool());
            lun.read_only = rng.u32(..4) == 0;
        }
        if rng.u32(..4) > 0 {
            let listen = SECOND.parse().expect("an address");
            to.portals.push(Portal { listen, group: SECOND_GROUP, ..to.portals[0].clone() });
            let state = AccessState::ALL[rng.usize(..AccessState::ALL.len())];
            let (preferred, explicit, port_ids) = (rng.bool(), rng.bool(), PortIds::ALL);
            to.portal_groups.push(PortalGroup { tag: SECOND_GROUP, state, preferred, explicit, port_ids });
            let deny = rng.u32(..4) == 0;
            let group = Group {
                name: "all".into(),
                initiators: Vec::new(),
                networks: Vec::new(),
                deny,
                read_only: rng.u32(..3) == 0,
                luns: None,
                chap: None,
                queue_depth: None,
                limits: Limits::default(),
            };
            let luns = lun.map(|lun| (LUN, lun)).into_iter().collect();
            let groups = if rng.bool() { vec![group] } else { Vec::new() };
            let other =
                Target { name: OTHER.into(), luns, portals: vec![1], groups, ..to.targets[0].clone() };
            to.targets.extend((rng.u32(..4) > 0).then_some(other));
        }
        to.logins_max += rng.usize(..3);
        let stays = self.interfaces.is_empty() || self.aim != Aim::Work || rng.u32(..4) > 0;
        to.aoe = if stays { self.interfaces.clone() } else { Vec::new() };
        self.steps = diff(cores.config(), &to).into();
        self.to = Some(to);
        if self.steps.is_empty() {
            return Ok(());
        }
        self.changes += 1;
        (self.is_changing, self.has_other) = (true, false);
        // What was refused a while ago may still be in flight, and is allowed if it arrives late enough.
        self.store.iter().for_each(|store| store.admit_all());
        self.step(now, cores)
    }

    /// Begins the next step of such a change.
    fn step(&mut self, now: Time, cores: &mut Cores<Kernel>) -> Result<(), String> {
        if self.slows_disks(now) {
            return Ok(());
        }
        let (Some(step), Some(to)) = (self.steps.pop_front(), &self.to) else { return Ok(()) };
        let (net, door) = (&self.net, &mut self.door);
        match &step {
            StepOfChange::RemoveInterface(_) => (self.leaves, self.is_away) = (true, true),
            StepOfChange::AddInterface(_) => {
                (self.is_away, self.interface) = (false, Some(Interface::Joined))
            }
            _ => {}
        }
        let begun = cores.begin_step(
            &step,
            to,
            |address| {
                let handle = net.borrow_mut().listen(address);
                *door = Some(handle);
                handle
            },
            |setup, cores| {
                let mut net = net.borrow_mut();
                Ok(net.ethernet.as_mut().expect("there was one").open(MAC, setup, cores))
            },
        );
        self.note(now, self.changes, || format!("the guest's step {}: {step:?}", self.changes));
        begun
    }

    /// A step is done: if it has removed the interface, nothing is received from there any more.
    fn settle_interface(&mut self) {
        if std::mem::take(&mut self.leaves) {
            let net = &mut *self.net.borrow_mut();
            net.slow_since = None;
            net.ethernet.iter_mut().for_each(|ethernet| ethernet.leave(MAC));
            self.interface = Some(Interface::Left);
        }
    }

    /// A change is done: removed portals are no longer listened on.
    fn settle_doors(&mut self, cores: &Cores<Kernel>) {
        let config = cores.config();
        if let Some(door) = self.door.take_if(|_| config.portals.len() == 1) {
            self.net.borrow_mut().close(door);
        }
        let others = config.targets.iter().filter(|target| target.name == OTHER);
        self.has_other = others.flat_map(|target| &target.groups).all(|group| !group.deny)
            && config.targets.iter().any(|target| target.name == OTHER);
    }

    /// A change is done: what was sent before by those who may not write now is no longer executed.
    fn settle_rights(&mut self, cores: &Cores<Kernel>) {
        let config = cores.config();
        let name = name(self.current);
        let of_first = config.luns.iter().any(|lun| lun.name == name && !lun.read_only);
        let mut others = config.targets.iter().filter(|target| target.name == OTHER);
        let may_all = |target: &Target| target.groups.iter().all(|group| !group.deny && !group.read_only);
        self.states.configured(config, self.current, self.has_other);
        let is_active = self.states.is_active() != Some(false);
        self.rights = Rights { of_first, of_other: of_first && others.any(may_all), is_active };
        self.bar();
    }

    /// What is outstanding must no longer be executed where writing is not allowed.
    fn bar(&self) {
        let Some(store) = &self.store else { return };
        let barred = self.under_way().into_iter().filter(|write| !self.rights.of(write.is_other));
        barred.for_each(|write| store.bar(write.number));
    }

    /// Writes that may still be executed.
    fn under_way(&self) -> Vec<Lost> {
        let of = |command: &Command| {
            let Command { block, is_other, writes, .. } = *command;
            writes.map(|number| Lost { block, number, is_other })
        };
        let lost = self.lost.iter().map(|write| Lost { ..*write });
        self.commands.iter().filter_map(of).chain(lost).collect()
    }

    fn connect(&mut self) {
        self.links += 1;
        (self.is_connecting, self.wants_other) = (true, false);
        self.is_other = self.has_other && self.net.borrow_mut().rng.u32(..4) > 0;
        let portal = if self.is_other { SECOND.parse().expect("an address") } else { self.portal };
        self.kernel.connect(portal, Tag(self.links << 2 | CONNECT));
    }

    fn completed(&mut self, completion: io::Completion) {
        let (number, kind) = (completion.tag.0 >> 2, completion.tag.0 & 3);
        if kind == CONNECT {
            self.is_connecting = false;
            if let Ok(socket) = completion.result {
                let socket = Handle(socket as i32);
                let config = config(self.host, if self.is_other { OTHER } else { TARGET });
                let machine =
                    Carrier::new(self.manners.protocol, config, self.host, socket, &mut self.kernel);
                self.link = Some(Link::new(machine, number, socket));
            }
        } else if let Some(link) = self.link.as_mut().filter(|link| link.number == number) {
            link.completed(&mut self.kernel, kind, completion.result);
        }
    }

    fn talk(&mut self, now: Time) -> Result<(), String> {
        if self.link.is_none() && !self.is_connecting && self.aim != Aim::Leave {
            self.connect();
        }
        while let Some(link) = &mut self.link {
            let is_more = link.feed(&mut self.kernel);
            while let Some(event) = self.link.as_mut().and_then(Link::poll) {
                match event {
                    Event::Ready(_) => {
                        self.link.iter_mut().for_each(|link| link.is_ready = true);
                        self.lost.clear();
                    }
                    Event::Gone { .. } => self.end(),
                    Event::Completed(completion) => self.ended(&completion)?,
                    _ => {}
                }
            }
            if !is_more || self.is_ending {
                break;
            }
        }
        if self.commands.iter().any(|command| now.since(command.began) > PATIENCE) {
            self.end();
        }
        let is_ready = self.link.as_ref().is_some_and(|link| link.is_ready) && !self.is_ending;
        if is_ready && (self.aim == Aim::Leave || self.wants_other && self.commands.is_empty()) {
            self.end();
        } else if is_ready && !self.wants_other && self.aim == Aim::Work && self.commands.len() < DEPTH {
            self.ask(now);
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        link.tick(now);
        link.flush(&mut self.kernel);
        if self.is_ending && link.is_quiet() {
            self.is_ending = false;
            self.link.take().into_iter().for_each(|link| link.close(&mut self.kernel));
            for command in std::mem::take(&mut self.commands) {
                self.kernel.arena().give(&command.place);
                let Command { block, is_other, writes, order, .. } = command;
                if matches!(order, Some(GroupCommand::Set(_))) {
                    self.states.lose();
                    self.rights.is_active = true;
                }
                self.lost.extend(writes.map(|number| Lost { block, number, is_other }));
            }
        }
        Ok(())
    }

    /// The connection ends. What is outstanding may be executed or not, but no longer once the next one has
    /// logged in.
    fn end(&mut self) {
        if let Some(link) = self.link.as_mut().filter(|_| !self.is_ending) {
            self.is_ending = true;
            link.shut_down(&mut self.kernel);
        }
    }

    /// Sets the state of the second portal's group, or has states reported.
    fn order(&mut self, now: Time) {
        let state = AccessState::ALL[self.net.borrow_mut().rng.usize(..AccessState::ALL.len())];
        let is_report = self.is_changing || self.states.is_being_set() || self.net.borrow_mut().rng.bool();
        let order = if is_report { GroupCommand::Report } else { GroupCommand::Set(state) };
        let bytes = if is_report { states::REPORT_BYTES } else { states::LIST_BYTES };
        let Some(place) = self.kernel.arena().take(bytes) else { return };
        let (read, write) = match order {
            GroupCommand::Report => (place, Places::EMPTY),
            GroupCommand::Set(state) => {
                let list = states::list(state);
                let mut rest = &list[..];
                for span in place.iter() {
                    let bytes = self.kernel.arena().bytes_mut(span);
                    let (these, others) = rest.split_at(bytes.len());
                    bytes.copy_from_slice(these);
                    rest = others;
                }
                (Places::EMPTY, place)
            }
        };
        let lun = u64::from(LUN) << 48;
        let request = Request { lun, attribute: Attribute::Simple, cdb: order.cdb(), read, write };
        let task = self.link.as_mut().and_then(|link| link.machine.submit(request));
        let Some(task) = task else { return self.kernel.arena().give(&place) };
        if !is_report {
            self.states.begin();
            // As with a change: what was refused may still be in flight.
            self.rights.is_active = true;
            self.store.iter().for_each(|store| store.admit_all());
            self.bar();
        }
        self.note(now, self.states.era, || format!("the guest: {order:?}"));
        self.commands.push(Command { order: Some(order), ..self.command(task, now, place) });
    }

    /// A command being sent now.
    fn command(&self, task: TaskId, began: Time, place: Places) -> Command {
        // The other target may not yet expose a LUN that exists.
        let is_known = !self.is_changing && (!self.is_other || self.store.is_none());
        Command {
            task,
            began,
            block: BLOCKS,
            is_other: self.is_other,
            writes: None,
            place,
            order: None,
            changes: self.changes,
            era: self.states.era,
            is_settled: !self.is_changing,
            is_there: is_known.then_some(self.store.is_some()),
        }
    }

    /// Reads or writes a block that has nothing outstanding.
    fn ask(&mut self, now: Time) {
        if self.net.borrow_mut().rng.u32(..12) == 0 {
            return self.order(now);
        }
        let (block, writes) = {
            let rng = &mut self.net.borrow_mut().rng;
            (rng.u32(0..BLOCKS), rng.bool())
        };
        if self.commands.iter().any(|command| command.block == block) {
            return;
        }
        let Some(place) = self.kernel.arena().take(BLOCK_BYTES) else { return };
        self.writes += u64::from(writes);
        let writes = writes.then_some(self.writes);
        if let Some(number) = writes {
            fill(self.kernel.arena(), &place, number);
        }
        let cdb =
            if writes.is_some() { Write10::new(block, 1).to_cdb() } else { Read10::new(block, 1).to_cdb() };
        let (read, write) = if writes.is_some() { (Places::EMPTY, place) } else { (place, Places::EMPTY) };
        let request = Request { lun: u64::from(LUN) << 48, attribute: Attribute::Simple, cdb, read, write };
        let task = self.link.as_mut().and_then(|link| link.machine.submit(request));
        let Some(task) = task else { return self.kernel.arena().give(&place) };
        if let (Some(number), Some(may_be)) = (writes, self.blocks.get_mut(block as usize)) {
            may_be.push(number);
        }
        let is_other = self.is_other;
        if let (Some(number), false, Some(store)) =
            (writes, self.is_changing || self.rights.of(is_other), &self.store)
        {
            store.bar(number);
        }
        self.commands.push(Command { block, writes, ..self.command(task, now, place) });
    }

    /// A command concerning states has ended.
    fn order_ended(
        &mut self,
        command: &Command,
        order: GroupCommand,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let reported = states::reported(self.kernel.arena(), &command.place);
        let is_known = command.changes == self.changes && command.is_settled && !self.is_changing;
        let Outcome::Status { status, sense } = outcome else {
            if order != GroupCommand::Report {
                self.states.lose();
            }
            return Ok(());
        };
        let (key, code) = sense.as_ref().map_or((None, 0), |sense| (sense.key(), sense.code()));
        if order == GroupCommand::Report {
            let is_same = is_known && command.era == self.states.era && !self.states.is_being_set();
            let is_there = self.store.is_some() && *status == GOOD && is_same;
            return if is_there { self.states.check(&reported) } else { Ok(()) };
        }
        self.states.ended(order, *status, key, code)?;
        self.rights.is_active = self.states.is_active() != Some(false);
        self.bar();
        Ok(())
    }

    /// A command has ended.
    fn ended(&mut self, completion: &Completion) -> Result<(), String> {
        let Some(at) = self.commands.iter().position(|command| command.task == completion.task) else {
            return Err("a command of the guest ended twice".into());
        };
        let command = self.commands.swap_remove(at);
        if let Some(order) = command.order {
            let outcome = self.order_ended(&command, order, &completion.outcome);
            self.kernel.arena().give(&command.place);
            return outcome;
        }
        let found = number(self.kernel.arena(), &command.place);
        self.kernel.arena().give(&command.place);
        let Outcome::Status { status, sense } = completion.outcome else { return Ok(()) };
        let (key, code) = sense.as_ref().map_or((None, 0), |sense| (sense.key(), sense.code()));
        let is_same = command.changes == self.changes;
        // Nothing that began with the previous change has been changed since.
        let may_write = self.rights.of(command.is_other);
        let may_access = self.rights.may_access(command.is_other);
        let is_of_state = self.states.is_active().is_some() && command.era == self.states.era;
        let is_known =
            is_same && command.is_settled && !self.is_changing && (!command.is_other || is_of_state);
        let block = self.blocks.get_mut(command.block as usize).filter(|_| is_same);
        match (status, command.is_there.filter(|_| is_same), command.writes, block) {
            (GOOD, Some(false), ..) => Err("a LUN that has gone does a command".into()),
            (GOOD, ..) if is_known && !may_access => Err("a port that is not active does a command".into()),
            (CHECK_CONDITION, ..) if INACTIVE.contains(&code) => match is_known && may_access {
                true => Err("a port that is active does not do a command".into()),
                false => Ok(()),
            },
            (CHECK_CONDITION, Some(true), Some(_), _) if code == WRITE_PROTECTED && may_write => {
                Err("a LUN that may be written is write protected".into())
            }
            (GOOD, Some(true), Some(_), _) if !may_write => {
                Err("a LUN that may only be read is written".into())
            }
            (GOOD, Some(true), Some(number), Some(may_be)) => {
                *may_be = vec![number];
                Ok(())
            }
            (GOOD, Some(true), None, Some(may_be)) if !found.is_some_and(|found| may_be.contains(&found)) => {
                Err(format!("block {} has {found:?}, and may have {may_be:?}", command.block))
            }
            (GOOD | BUSY | TASK_SET_FULL, ..) => Ok(()),
            (CHECK_CONDITION, Some(true), ..) if code == NOT_SUPPORTED => {
                Err("a LUN that is there is not supported".into())
            }
            (CHECK_CONDITION, ..) if code == NOT_SUPPORTED || key == Some(SenseKey::UnitAttention) => Ok(()),
            (CHECK_CONDITION, ..) if key == Some(SenseKey::AbortedCommand) => Ok(()),
            (CHECK_CONDITION, ..) if code == WRITE_PROTECTED && command.writes.is_some() => Ok(()),
            _ => Err(format!("a command of the guest ended with status {status:#04x}, {code:04x}")),
        }
    }

    fn note(&self, now: Time, word: u64, text: impl FnOnce() -> String) {
        self.net.borrow_mut().trace.note(now, &[self.host as u64, word], text);
    }
}

fn name(change: u64) -> String {
    format!("GUEST-{change}")
}

fn fill(arena: &mut Arena, place: &Places, number: u64) {
    for span in place.iter() {
        arena.bytes_mut(span).as_chunks_mut().0.iter_mut().for_each(|word| *word = number.to_le_bytes());
    }
}

/// The number that a block contains, if it is a single one.
fn number(arena: &mut Arena, place: &Places) -> Option<u64> {
    let mut number = None;
    for span in place.iter() {
        for word in arena.bytes(span).as_chunks().0 {
            let word = u64::from_le_bytes(*word);
            if *number.get_or_insert(word) != word {
                return None;
            }
        }
    }
    number
}

fn config(host: usize, target: &str) -> InitiatorConfig {
    let plan = login::Plan {
        initiator: format!("iqn.2026-11.io.lunette:guest-{host}"),
        alias: None,
        target: Some(target.into()),
        isid: [0x80, 0, 0, 0, 0, 1],
        chap: None,
        offers: Offers::default(),
        text_bytes: 8192,
    };
    let (login_within, idle) = (Duration::from_secs(6), Duration::from_secs(5));
    InitiatorConfig { plan, queue_depth: DEPTH as u16, login_within, idle, crc32c }
}
