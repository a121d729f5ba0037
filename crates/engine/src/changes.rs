//! Changes of what is served, while it is served: in rounds, each acknowledged by every core before the next
//! begins.

use crate::ledger::Ledger;
use crate::message::{InterfaceMessage, Message};
use crate::meters::UnitMeter;
use crate::served::{Endpoint, Named, Parts, Segment, Served, warn_of_blocks};
use crate::state::files::Files;
use crate::stores::Opened;
use crate::units::{self, NewUnit, SLOT_BITS, slot};
use config::{AoeInterface, Config, Lun, Portal, StepOfChange, StoreSpec, Target};
use reactor::io::Io;
use reactor::mailbox::Sender;
use reactor::uring::Uring;
use scsi::unit::{Port, Unit};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long cores may take to report what they are waiting for.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A change of what is served.
#[derive(Clone, Debug)]
pub enum Change {
    /// Add a LUN and show it to targets.
    Add {
        /// The LUN; its name, serial number and AoE address must be unique.
        lun: Box<Lun>,
        /// Where it is shown.
        shown: Vec<Shown>,
    },
    /// Remove a LUN: new commands end with LOGICAL UNIT NOT SUPPORTED, running ones end normally.
    Remove {
        /// Its name.
        name: String,
    },
    /// Replace a LUN with another.
    Replace {
        /// The name of the LUN to remove.
        name: String,
        /// The new one.
        lun: Box<Lun>,
    },
}

/// Where a LUN is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The target's name.
    pub target: String,
    /// The name of one of its groups, which has its own list of LUNs; `None`: all other initiators.
    pub group: Option<String>,
    /// LUN number.
    pub number: u16,
}

/// What all cores do at the same time.
enum Round<I: Io> {
    Add(NewUnit<I>),
    Configure(Arc<[Arc<Unit>]>),
    Serve(Arc<Served>),
    Remove(u32),
}

/// The sockets of a new interface, and its number.
type Lines<I> = (Arc<Segment>, Vec<<I as Io>::Line>);

/// What is served, and the change in progress.
pub(crate) struct Changes<I: Io = Uring> {
    mail: Vec<Sender<Message<I>>>,
    /// What is to be served, as configured.
    config: Config,
    served: Arc<Served>,
    /// How many units have occupied each slot of the cores' tables.
    slots: Vec<Slot>,
    /// The units that are served, by their numbers.
    units: BTreeMap<u32, Arc<Unit>>,
    /// The numbers of the next target, portal and interface.
    next_target: usize,
    next_portal: usize,
    next_segment: usize,
    rounds: VecDeque<Round<I>>,
    /// The sockets of a new interface, handed out once all cores know of it.
    lines: Option<Lines<I>>,
    /// The acknowledgements that are outstanding, in order.
    awaited: VecDeque<Awaited>,
    /// Those that took too long and are no longer waited for.
    overtaken: Vec<Awaited>,
    /// Units that are no longer shown but have not been released yet.
    leaving: Vec<Gone>,
    /// Units released since the last [`Changes::settle`].
    released: Vec<Released>,
    /// Every store of a removed unit so far was flushed.
    is_flushed: bool,
}

/// An acknowledgement expected from all cores.
struct Awaited {
    what: Act,
    acknowledged: mpsc::Receiver<bool>,
    /// How many cores have yet to send it.
    left: usize,
    is_flushed: bool,
}

/// What cores acknowledge in a round.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Act {
    /// They serve the new snapshot. Whatever follows relies on this.
    Take,
    /// The homes of these units reconfigure them, one request after another.
    Configure(Vec<u32>),
    /// Sessions have ended, with everything that they had begun.
    End,
    /// A unit has finished what was begun, and is released.
    Release(u32),
}

/// A unit that is no longer shown.
struct Gone {
    unit: u32,
    name: String,
    serial: String,
}

/// A unit that was released.
pub(crate) struct Released {
    /// Its number.
    pub(crate) unit: u32,
    /// Its LUN's name.
    pub(crate) name: String,
    /// Whether its store was flushed.
    pub(crate) is_flushed: bool,
}

/// A slot of the cores' tables of units.
#[derive(Clone, Copy, Default)]
struct Slot {
    is_taken: bool,
    /// The generation of its unit, or of the next one.
    generation: u32,
}

/// The progress of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It is in progress.
    Waits,
    /// It is done; false: a store could not be flushed.
    Done(bool),
}

impl<I: Io> Changes<I> {
    /// For cores that serve `served`, with these units, as configured by `config`.
    pub(crate) fn new(
        mail: &[Sender<Message<I>>],
        served: &Arc<Served>,
        units: &[NewUnit<I>],
        config: Config,
    ) -> Changes<I> {
        let units = units.iter().map(|unit| (unit.view.unit.index, unit.view.unit.clone())).collect();
        Changes {
            mail: mail.to_vec(),
            config,
            served: served.clone(),
            slots: vec![Slot { is_taken: true, generation: 0 }; served.units.len()],
            units,
            next_target: served.targets.len(),
            next_portal: served.endpoints.len(),
            next_segment: served.segments.len(),
            rounds: VecDeque::new(),
            lines: None,
            awaited: VecDeque::new(),
            overtaken: Vec::new(),
            leaving: Vec::new(),
            released: Vec::new(),
            is_flushed: true,
        }
    }

    /// The configuration that is served once the change in progress is complete.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The same, completed with what only stores know.
    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// A unit that is served, by its number.
    pub(crate) fn unit(&self, number: u32) -> Option<&Arc<Unit>> {
        self.units.get(&number)
    }

    /// Plans a change.
    ///
    /// # Errors
    /// When it is invalid.
    pub(crate) fn plan(&self, change: &Change) -> Result<Plan, String> {
        let mut config = self.config.clone();
        match change {
            Change::Add { lun, shown } => {
                self.is_new(lun, None)?;
                let index = config.luns.len();
                config.luns.push((**lun).clone());
                shown.iter().try_for_each(|shown| show(&mut config.targets, shown, index))?;
                Ok(self.plan_of(config, Some(&lun.name), None))
            }
            Change::Remove { name } => {
                let index = self.find(name)?;
                let config = StepOfChange::RemoveLun(name.clone()).after(&config, &config);
                Ok(self.plan_of(config, None, Some(index)))
            }
            Change::Replace { name, lun } => {
                let index = self.find(name)?;
                self.is_new(lun, Some(index))?;
                if lun.serial == config.luns[index].serial {
                    return Err(format!(
                        "LUN {} has the serial number of {name}, under which its reservations are kept: remove {name} first",
                        lun.name
                    ));
                }
                config.luns[index] = (**lun).clone();
                Ok(self.plan_of(config, Some(&lun.name), Some(index)))
            }
        }
    }

    /// Plans a step to another configuration.
    ///
    /// # Errors
    /// When it is invalid.
    pub(crate) fn plan_step(&self, step: &StepOfChange, to: &Config) -> Result<Plan, String> {
        if let StepOfChange::Restart(option) = step {
            return Err(format!("{option} takes effect at the next start only"));
        }
        let config = step.after(&self.config, to);
        let (adds, removes) = match step {
            StepOfChange::AddLun(name) => {
                let lun = config.luns.iter().find(|lun| lun.name == *name);
                self.is_new(lun.ok_or_else(|| format!("there is no LUN {name} to add"))?, None)?;
                (Some(name.as_str()), None)
            }
            StepOfChange::RemoveLun(name) => (None, Some(self.find(name)?)),
            StepOfChange::ChangeLun(name) => {
                self.find(name)?;
                (None, None)
            }
            StepOfChange::AddTarget(name)
                if self.config.targets.iter().any(|target| target.name == *name) =>
            {
                return Err(format!("target {name} already exists"));
            }
            StepOfChange::AddPortal(address) | StepOfChange::ChangePortal(address) => {
                let mut cores = config.portals.iter().flat_map(|portal| &portal.cores);
                if cores.any(|core| !config.cores.contains(core)) {
                    return Err(format!("portal {address} has cores that will be used only after a restart"));
                }
                (None, None)
            }
            StepOfChange::AddInterface(name) => {
                let interface = config.aoe.iter().find(|interface| interface.name == *name);
                let mut cores = interface.into_iter().flat_map(|interface| &interface.cores);
                if cores.any(|core| !config.cores.contains(core)) {
                    return Err(format!("interface {name} has cores that will be used only after a restart"));
                }
                (None, None)
            }
            _ => (None, None),
        };
        let mut plan = self.plan_of(config, adds, removes);
        self.plan_endpoints(step, &mut plan);
        if let StepOfChange::AddInterface(name) = step {
            plan.attaches = plan.config.aoe.iter().position(|interface| interface.name == *name);
        }
        if let StepOfChange::ChangeLun(name) = step {
            plan.changes = self.served.find(name).map(|index| self.served.units[index]);
        }
        Ok(plan)
    }

    /// The plan for a configuration in which the LUN named `adds` is new, and the one at `removes` is removed.
    fn plan_of(&self, config: Config, adds: Option<&str>, removes: Option<usize>) -> Plan {
        let mut served = config.clone();
        served.srp_guid = self.served.config.srp_guid;
        for lun in &mut served.luns {
            if let Some(index) = self.served.find(&lun.name).filter(|_| adds != Some(&lun.name)) {
                as_found(lun, &self.served.config.luns[index]);
            }
        }
        let adds = adds.and_then(|name| config.luns.iter().position(|lun| lun.name == name));
        let endpoints = self.served.endpoints.clone();
        Plan { config, served, adds, removes, changes: None, endpoints, opens: None, attaches: None }
    }

    /// The listeners of the portals, as [`StepOfChange::after`] has them.
    fn plan_endpoints(&self, step: &StepOfChange, plan: &mut Plan) {
        let now = &self.config.portals;
        match step {
            StepOfChange::RemovePortal(address) => {
                if let Some(index) = now.iter().rposition(|portal| portal.listen == *address) {
                    plan.endpoints.remove(index);
                }
            }
            StepOfChange::AddPortal(_) if plan.config.portals.len() > now.len() => {
                plan.opens = Some((now.len(), self.next_portal));
            }
            StepOfChange::ChangePortal(_) => {
                let is_other = |(before, after): (&Portal, &Portal)| before.rdma != after.rdma;
                let index = now.iter().zip(&plan.config.portals).position(is_other);
                plan.opens = index.map(|index| (index, plan.endpoints[index].number));
            }
            _ => {}
        }
    }

    /// Prepares what a plan needs, with the store of a new LUN, the listener of a new portal, or the sockets
    /// of a new interface. Nothing changes yet.
    ///
    /// # Errors
    /// When there are too many LUNs.
    pub(crate) fn prepare(
        &self,
        plan: Plan,
        opened: Option<&Opened<I>>,
        endpoint: Option<Endpoint>,
        lines: Vec<I::Line>,
        files: &dyn Files,
    ) -> Result<Prepared<I>, String> {
        let Plan { config, served, adds, removes, changes, mut endpoints, opens, attaches } = plan;
        let added = adds.map(|_| self.next_number()).transpose()?;
        let number = |(index, lun): (usize, &Lun)| match added {
            Some(number) if adds == Some(index) => number,
            Some(_) | None => {
                let before = self.served.find(&lun.name).expect("what does not come was there before");
                self.served.units[before]
            }
        };
        let units: Vec<u32> = served.luns.iter().enumerate().map(number).collect();
        if let (Some((index, _)), Some(endpoint)) = (opens, endpoint) {
            let endpoint = Arc::new(endpoint);
            match endpoints.get_mut(index) {
                Some(place) => *place = endpoint,
                None => endpoints.push(endpoint),
            }
        }
        let named = |target: &Target| {
            let before = self.served.targets.iter().find(|named| named.name == target.name);
            let new = || Arc::new(Named { number: self.next_target, name: target.name.clone() });
            before.cloned().unwrap_or_else(new)
        };
        let targets = served.targets.iter().map(named).collect();
        let exported = served.luns.iter().zip(&units).filter(|(lun, _)| lun.export().is_some());
        let is_new = |number: &u32| self.units.get(number).is_some_and(|unit| !unit.exported);
        let exported = exported.map(|(_, number)| *number).filter(is_new);
        let ledgers = exported.map(|number| (number, Arc::new(Ledger::new()))).collect();
        let segments: Vec<Arc<Segment>> =
            served.aoe.iter().map(|interface| self.segment(interface)).collect();
        let lines = attaches.map(|index| (segments[index].clone(), lines));
        let parts = Parts { config: served, units, targets, endpoints, segments, ledgers };
        let served = self.served.next(parts);
        let mut ports = served.ports.of_luns();
        let (early, late) = self.configured(&served, &ports, changes);
        let mut unit = None;
        let mut fit = Ok(());
        if let (Some(index), Some(number), Some(opened)) = (adds, added, opened) {
            warn_of_blocks(&served.config.luns[index]);
            let ports = ports.swap_remove(index);
            let (new, is_fit) = NewUnit::of(&served.config, index, number, opened, ports, files);
            (unit, fit) = (Some(new), is_fit);
        }
        let gone = removes.map(|index| self.served.units[index]);
        Ok(Prepared { config, served, unit, lines, early, late, gone, added, fit })
    }

    /// The segment of an interface that is to be served.
    fn segment(&self, interface: &AoeInterface) -> Arc<Segment> {
        let before = self.served.segments.iter().find(|segment| segment.interface.name == interface.name);
        let number = before.map_or(self.next_segment, |segment| segment.number);
        Arc::new(Segment { number, interface: interface.clone() })
    }

    /// The units to reconfigure before this is served (because of new ports or changed settings; always the
    /// one that the step changes), and those to reconfigure after it (because of removed ports).
    fn configured(&self, served: &Served, ports: &[Vec<Port>], changes: Option<u32>) -> (Units, Units) {
        let (mut early, mut late) = (Vec::new(), Vec::new());
        for ((lun, number), ports) in served.config.luns.iter().zip(&served.units).zip(ports) {
            let Some(before) = self.units.get(number) else { continue };
            let after = units::configured(before, &served.config, lun, ports.clone());
            let mut all = ports.clone();
            all.extend(before.ports.iter().filter(|port| !ports.contains(port)).cloned());
            all.sort_by_key(|port| port.relative_id);
            let first = units::configured(before, &served.config, lun, all);
            if units::differ(before, &first) || changes == Some(*number) {
                early.push(Arc::new(first.clone()));
            }
            if units::differ(&first, &after) {
                late.push(Arc::new(after));
            }
        }
        (early, late)
    }

    /// Begins a prepared change.
    pub(crate) fn begin(&mut self, prepared: Prepared<I>) {
        let Prepared { config, served, unit, lines, early, late, gone, added, .. } = prepared;
        if let Some(number) = added {
            let slot = slot(number);
            self.slots.resize(self.slots.len().max(slot + 1), Slot::default());
            self.slots[slot].is_taken = true;
        }
        let numbers =
            |all: &[usize], next: usize| all.iter().map(|number| number + 1).max().unwrap_or(0).max(next);
        let targets: Vec<usize> = served.targets.iter().map(|target| target.number).collect();
        let portals: Vec<usize> = served.endpoints.iter().map(|endpoint| endpoint.number).collect();
        self.next_target = numbers(&targets, self.next_target);
        self.next_portal = numbers(&portals, self.next_portal);
        let segments: Vec<usize> = served.segments.iter().map(|segment| segment.number).collect();
        self.next_segment = numbers(&segments, self.next_segment);
        self.lines = lines;
        self.units.extend(unit.iter().map(|unit| (unit.view.unit.index, unit.view.unit.clone())));
        self.units.extend(early.iter().chain(&late).map(|unit| (unit.index, unit.clone())));
        gone.iter().for_each(|unit| self.begin_removal(*unit));
        (self.config, self.served) = (config, Arc::new(served));
        let configure = |units: Units| (!units.is_empty()).then(|| Round::Configure(units.into()));
        self.rounds.extend(unit.map(Round::Add));
        self.rounds.extend(configure(early));
        self.rounds.push_back(Round::Serve(self.served.clone()));
        self.rounds.extend(configure(late));
        self.rounds.extend(gone.map(Round::Remove));
    }

    /// Begins to remove a unit.
    fn begin_removal(&mut self, unit: u32) {
        self.units.remove(&unit);
        let index = self.served.units.iter().position(|other| *other == unit);
        let lun = index.map(|index| &self.served.config.luns[index]);
        self.leaving.extend(lun.map(|lun| Gone { unit, name: lun.name.clone(), serial: lun.serial.clone() }));
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        self.served.find(name).ok_or_else(|| format!("there is no LUN {name}"))
    }

    /// Whether no other LUN has its name, serial number or AoE address.
    fn is_new(&self, lun: &Lun, but: Option<usize>) -> Result<(), String> {
        let others = self.served.config.luns.iter().enumerate().filter(|(index, _)| Some(*index) != but);
        for (_, other) in others {
            let is_same_place = lun.aoe.is_some() && lun.aoe == other.aoe;
            if lun.name == other.name || lun.serial == other.serial || is_same_place {
                return Err(format!(
                    "LUN {} has the name, serial number or AoE address of {}",
                    lun.name, other.name
                ));
            }
        }
        match self.leaving.iter().find(|gone| gone.serial == lun.serial) {
            Some(Gone { name, .. }) => Err(format!(
                "LUN {name}, which had this serial number, is being removed, but its commands have not ended yet"
            )),
            None => Ok(()),
        }
    }

    /// The number of the next unit: the first free slot, and its generation.
    fn next_number(&self) -> Result<u32, String> {
        let free = self.slots.iter().position(|slot| !slot.is_taken);
        let slot = free.unwrap_or(self.slots.len());
        let generation = self.slots.get(slot).map_or(0, |slot| slot.generation);
        let number = (generation & GENERATION_MASK) << SLOT_BITS | slot as u32;
        if slot >= 1 << SLOT_BITS { Err("there are too many LUNs".into()) } else { Ok(number) }
    }

    /// Continues with what cores have acknowledged since.
    pub(crate) fn poll(&mut self) -> Progress {
        loop {
            while let Some(awaited) = self.awaited.front_mut() {
                if !awaited.is_over() {
                    return Progress::Waits;
                }
                if let Some(awaited) = self.awaited.pop_front() {
                    self.is_flushed &= awaited.is_flushed;
                    self.release(&awaited);
                }
            }
            match self.rounds.pop_front() {
                Some(round) => self.begin_round(round),
                None => break,
            }
        }
        self.attach();
        Progress::Done(std::mem::replace(&mut self.is_flushed, true))
    }

    /// The first core of a new interface gets its sockets, and hands them out.
    fn attach(&mut self) {
        let Some((segment, lines)) = self.lines.take() else { return };
        let first = segment.interface.cores.first();
        let core = self.config.cores.iter().position(|core| Some(core) == first);
        if let Some(mail) = core.and_then(|core| self.mail.get(core)) {
            let message = InterfaceMessage::Opened(Ok(lines));
            mail.post(Message::Interface { number: segment.number, message });
        }
    }

    /// Continues without waiting for units and sessions that hang; they end in their own time. Later changes
    /// do not depend on them: a unit is released once nothing is in progress there, a home handles one
    /// request after another, and sessions' tasks hold what they need.
    pub(crate) fn proceed_without_hung(&mut self) -> Progress {
        loop {
            let progress = self.poll();
            match self.awaited.pop_front() {
                Some(awaited) if awaited.what != Act::Take => self.overtaken.push(awaited),
                Some(awaited) => self.awaited.push_front(awaited),
                None => return progress,
            }
            if self.awaited.front().is_some_and(|awaited| awaited.what == Act::Take) {
                return progress;
            }
        }
    }

    /// Waits for an acknowledgement, for `at_most`. False: no core is left to send one.
    pub(crate) fn wait(&mut self, at_most: Duration) -> bool {
        let Some(awaited) = self.awaited.front_mut() else { return true };
        let heard = awaited.acknowledged.recv_timeout(at_most);
        awaited.count(heard.ok());
        heard != Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Whether some core does not serve the new snapshot yet; the rest of the change cannot begin before.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.awaited.is_empty() || !self.rounds.is_empty() || self.lines.is_some()
    }

    /// The units released since the last call, including those that were no longer waited for.
    pub(crate) fn settle(&mut self) -> Vec<Released> {
        let over: Vec<Awaited> = self.overtaken.extract_if(.., |awaited| awaited.is_over()).collect();
        over.iter().for_each(|awaited| self.release(awaited));
        std::mem::take(&mut self.released)
    }

    /// Whether a removed unit has not been released yet.
    pub(crate) fn is_leaving(&self, unit: u32) -> bool {
        self.leaving.iter().any(|gone| gone.unit == unit)
    }

    /// Describes what is outstanding.
    pub(crate) fn waits_for(&mut self) -> Vec<String> {
        let all = self.awaited.iter_mut().chain(&mut self.overtaken);
        let left: Vec<Act> = all.filter_map(|one| (!one.is_over()).then(|| one.what.clone())).collect();
        let mut names: Vec<String> = left.iter().flat_map(|act| self.names_of(act)).collect();
        names.sort();
        names.dedup();
        if names.is_empty() { vec!["sessions that end".into()] } else { names }
    }

    fn names_of(&self, act: &Act) -> Vec<String> {
        let name = |unit: &u32| {
            let index = self.served.units.iter().position(|other| other == unit);
            let gone = || self.leaving.iter().find(|gone| gone.unit == *unit).map(|gone| &gone.name);
            let name = index.map(|index| &self.served.config.luns[index].name).or_else(gone);
            name.map(|name| format!("LUN {name}"))
        };
        match act {
            Act::Take => vec!["a core that does not answer".into()],
            Act::Configure(units) => units.iter().filter_map(name).collect(),
            Act::Release(unit) => name(unit).into_iter().collect(),
            Act::End => {
                let (to, units) = mpsc::channel();
                self.mail.iter().for_each(|mail| mail.post(Message::ReportAwaited { to: to.clone() }));
                drop(to);
                let mut all = Vec::new();
                while let Ok(units) = units.recv_timeout(ANSWER_WITHIN) {
                    all.extend(units.iter().filter_map(name));
                }
                all
            }
        }
    }

    /// All cores have acknowledged `awaited`: if that released a unit, its slot is free.
    fn release(&mut self, awaited: &Awaited) {
        let Act::Release(unit) = awaited.what else { return };
        let slot = &mut self.slots[slot(unit)];
        (slot.is_taken, slot.generation) = (false, slot.generation + 1);
        let gone = self.leaving.extract_if(.., |gone| gone.unit == unit);
        let is_flushed = awaited.is_flushed;
        self.released.extend(gone.map(|gone| Released { unit, name: gone.name, is_flushed }));
    }

    fn begin_round(&mut self, mut round: Round<I>) {
        let ((taken, all_taken), (done, all_done)) = (mpsc::channel(), mpsc::channel());
        for (core, mail) in self.mail.iter().enumerate() {
            let (taken, done) = (taken.clone(), done.clone());
            mail.post(match &mut round {
                Round::Add(unit) => Message::AddUnit { unit: Box::new(unit.on(core)), done: taken },
                Round::Configure(units) => Message::Configure { units: units.clone(), done },
                Round::Serve(served) => Message::Serve { served: served.clone(), taken, done },
                Round::Remove(unit) => Message::RemoveUnit { unit: *unit, done },
            });
        }
        let left = self.mail.len();
        let mut awaits = |what, acknowledged| {
            self.awaited.push_back(Awaited { what, acknowledged, left, is_flushed: true });
        };
        match round {
            Round::Add(_) => awaits(Act::Take, all_taken),
            Round::Configure(units) => {
                awaits(Act::Configure(units.iter().map(|unit| unit.index).collect()), all_done);
            }
            Round::Serve(_) => {
                awaits(Act::Take, all_taken);
                awaits(Act::End, all_done);
            }
            Round::Remove(unit) => awaits(Act::Release(unit), all_done),
        }
    }
}

impl Awaited {
    /// Whether all cores have acknowledged it.
    fn is_over(&mut self) -> bool {
        while self.left > 0 {
            match self.acknowledged.try_recv() {
                Ok(is_flushed) => self.count(Some(is_flushed)),
                Err(_) => return false,
            }
        }
        true
    }

    fn count(&mut self, heard: Option<bool>) {
        if let Some(is_flushed) = heard {
            self.left -= 1;
            self.is_flushed &= is_flushed;
        }
    }
}

/// A planned change.
pub(crate) struct Plan {
    /// The configuration.
    config: Config,
    /// The same, completed with what only stores know.
    served: Config,
    /// The LUN that it adds.
    adds: Option<usize>,
    /// The LUN that it removes, among those served now.
    removes: Option<usize>,
    /// The unit whose LUN is reconfigured.
    changes: Option<u32>,
    /// The listeners of the portals, except the one to be opened.
    endpoints: Vec<Arc<Endpoint>>,
    /// The portal to be opened, by its index in the configuration, and its number.
    opens: Option<(usize, usize)>,
    /// The new interface, among those of the configuration.
    attaches: Option<usize>,
}

impl Plan {
    /// The new LUN; its store may add details.
    pub(crate) fn adds(&mut self) -> Option<&mut Lun> {
        self.adds.and_then(|index| self.served.luns.get_mut(index))
    }

    /// The LUN that is reconfigured, with its unit's number.
    pub(crate) fn changes(&self, served: &Served) -> Option<(u32, &Lun)> {
        let number = self.changes?;
        let before = served.units.iter().position(|unit| *unit == number)?;
        let name = &served.config.luns[before].name;
        Some((number, self.served.luns.iter().find(|lun| lun.name == *name)?))
    }

    /// The portal to be opened, its number, and its present listener.
    pub(crate) fn opens(&self) -> Option<(&Portal, usize, Option<&Arc<Endpoint>>)> {
        let (index, number) = self.opens?;
        Some((self.served.portals.get(index)?, number, self.endpoints.get(index)))
    }

    /// The new interface.
    pub(crate) fn attaches(&self) -> Option<&AoeInterface> {
        self.served.aoe.get(self.attaches?)
    }

    /// The GUID of the SRP ports, which only this machine knows.
    pub(crate) fn srp_guid(&mut self) -> &mut Option<u64> {
        &mut self.served.srp_guid
    }
}

/// Units as they are on all cores.
type Units = Vec<Arc<Unit>>;

/// A change that can begin.
pub(crate) struct Prepared<I: Io> {
    config: Config,
    served: Served,
    unit: Option<NewUnit<I>>,
    lines: Option<Lines<I>>,
    /// Units that are reconfigured before that is served, and after.
    early: Units,
    late: Units,
    /// The unit that is removed.
    pub(crate) gone: Option<u32>,
    /// The one that is added.
    pub(crate) added: Option<u32>,
    /// Whether it can be served, given what its store reports.
    pub(crate) fit: Result<(), String>,
}

impl<I: Io> Prepared<I> {
    /// What will be served.
    pub(crate) fn served(&self) -> &Served {
        &self.served
    }

    /// The new unit, if there is one.
    pub(crate) fn unit(&self) -> Option<&Unit> {
        self.unit.as_ref().map(|unit| &*unit.view.unit)
    }

    /// The meter of the new unit, if there is one.
    pub(crate) fn meter(&self) -> Option<Arc<UnitMeter>> {
        self.unit.as_ref().map(|unit| unit.meter.clone())
    }
}

/// Carries over to LUNs that stay what only stores know.
fn as_found(lun: &mut Lun, before: &Lun) {
    (lun.block_bytes, lun.physical_block_bytes) = (before.block_bytes, before.physical_block_bytes);
    if let (StoreSpec::Ram { huge_pages, .. }, StoreSpec::Ram { huge_pages: chosen, .. }) =
        (&mut lun.store, &before.store)
    {
        *huge_pages = *chosen;
    }
}

/// Adds a LUN to a target.
fn show(targets: &mut [Target], shown: &Shown, index: usize) -> Result<(), String> {
    let Shown { target: name, group, number } = shown;
    let target = targets.iter_mut().find(|target| target.name == *name);
    let target = target.ok_or_else(|| format!("there is no target {name}"))?;
    let luns = match group {
        None => &mut target.luns,
        Some(group) => {
            let found = target.groups.iter_mut().find(|other| other.name == *group);
            let luns = found.and_then(|group| group.luns.as_mut());
            luns.ok_or_else(|| format!("target {name} has no group {group} with LUNs of its own"))?
        }
    };
    match luns.binary_search_by_key(number, |(number, _)| *number) {
        Ok(_) => Err(format!("LUN {number} of target {name} is taken")),
        Err(at) => {
            luns.insert(at, (*number, index));
            Ok(())
        }
    }
}

/// The generation in a unit's number, above its slot: 28 bits in all, which fit into a completion's tag.
const GENERATION_MASK: u32 = (1 << 13) - 1;
