//! How what is served changes while it is served: in rounds, each of which every core acknowledges before the next begins.

use crate::message::Message;
use crate::served::{Served, warn_of_blocks};
use crate::state::files::Files;
use crate::stores::Opened;
use crate::units::NewUnit;
use config::{Config, Lun, StepOfChange, StoreSpec, Target};
use reactor::io::Io;
use reactor::mailbox::Sender;
use reactor::uring::Uring;
use std::collections::VecDeque;
use std::sync::{Arc, mpsc};

/// A change of what is served.
#[derive(Clone, Debug)]
pub enum Change {
    /// A LUN comes, and targets show it.
    Add {
        /// What it is; no other has its name, serial number or AoE address.
        lun: Box<Lun>,
        /// Where.
        shown: Vec<Shown>,
    },
    /// A LUN goes: new commands end with LOGICAL UNIT NOT SUPPORTED, and those that were begun end as they do.
    Remove {
        /// Its name.
        name: String,
    },
    /// A LUN goes, and another comes in its place.
    Replace {
        /// The name of the one that goes.
        name: String,
        /// What comes.
        lun: Box<Lun>,
    },
}

/// Where a LUN is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The target's name.
    pub target: String,
    /// The name of one of its groups, which has a list of its own; `None`: all others.
    pub group: Option<String>,
    /// LUN number.
    pub number: u16,
}

/// What all cores do at a time.
enum Round<I: Io> {
    Add(NewUnit<I>),
    Serve(Arc<Served>),
    Remove(u32),
}

/// A change under way, and what it changes.
pub(crate) struct Changes<I: Io = Uring> {
    mail: Vec<Sender<Message<I>>>,
    /// What is to be served, as it was asked for.
    config: Config,
    served: Arc<Served>,
    /// How many units have had each slot of the cores' tables.
    slots: Vec<Slot>,
    rounds: VecDeque<Round<I>>,
    /// Those who have yet to acknowledge the round that has begun.
    awaited: Option<(mpsc::Receiver<bool>, usize)>,
    /// Every store of a unit that has gone was flushed.
    is_flushed: bool,
}

/// A slot of the cores' tables of units.
#[derive(Clone, Copy, Default)]
struct Slot {
    is_taken: bool,
    /// Of the one who has it, or of the next.
    generation: u32,
}

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Cores are at it.
    Waits,
    /// It is done; false: a store could not be flushed.
    Done(bool),
}

impl<I: Io> Changes<I> {
    /// Of cores that serve this, which `config` asked for.
    pub(crate) fn new(mail: &[Sender<Message<I>>], served: &Arc<Served>, config: Config) -> Changes<I> {
        Changes {
            mail: mail.to_vec(),
            config,
            served: served.clone(),
            slots: vec![Slot { is_taken: true, generation: 0 }; served.units.len()],
            rounds: VecDeque::new(),
            awaited: None,
            is_flushed: true,
        }
    }

    /// What is to be served when all is done that was begun, as it was asked for.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The same with what only stores know.
    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// What a change makes of what is served.
    ///
    /// # Errors
    /// When it cannot be made.
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
                        "LUN {} has the serial number of {name}, by which its reservations are kept: remove {name} before",
                        lun.name
                    ));
                }
                config.luns[index] = (**lun).clone();
                Ok(self.plan_of(config, Some(&lun.name), Some(index)))
            }
        }
    }

    /// What a step to another configuration makes of what is served.
    ///
    /// # Errors
    /// When it cannot be taken.
    pub(crate) fn plan_step(&self, step: &StepOfChange, to: &Config) -> Result<Plan, String> {
        is_live(step, &self.config, to)?;
        let config = step.after(&self.config, to);
        match step {
            StepOfChange::AddLun(name) => {
                let lun = config.luns.iter().find(|lun| lun.name == *name);
                let lun = lun.ok_or_else(|| format!("there is no LUN {name} to add"))?;
                self.is_new(lun, None)?;
                let name = lun.name.clone();
                Ok(self.plan_of(config, Some(&name), None))
            }
            StepOfChange::RemoveLun(name) => {
                let index = self.find(name)?;
                Ok(self.plan_of(config, None, Some(index)))
            }
            _ => Ok(self.plan_of(config, None, None)),
        }
    }

    /// Of a configuration in which the LUN named `comes` is another than any before, and the one at `goes` is no more.
    fn plan_of(&self, config: Config, comes: Option<&str>, goes: Option<usize>) -> Plan {
        let mut served = config.clone();
        for lun in &mut served.luns {
            if let Some(index) = self.served.find(&lun.name).filter(|_| comes != Some(&lun.name)) {
                as_found(lun, &self.served.config.luns[index]);
            }
        }
        let comes = comes.and_then(|name| config.luns.iter().position(|lun| lun.name == name));
        Plan { config, served, comes, goes }
    }

    /// Makes ready what a plan takes, with the store of the LUN that comes. Nothing has changed.
    ///
    /// # Errors
    /// When there are too many LUNs.
    pub(crate) fn prepare(
        &self,
        plan: Plan,
        opened: Option<&Opened<I>>,
        files: &dyn Files,
    ) -> Result<Prepared<I>, String> {
        let Plan { config, served, comes, goes } = plan;
        let come = comes.map(|_| self.next_number()).transpose()?;
        let number = |(index, lun): (usize, &Lun)| match come {
            Some(number) if comes == Some(index) => number,
            Some(_) | None => {
                let before = self.served.find(&lun.name).expect("what does not come was there before");
                self.served.units[before]
            }
        };
        let units = served.luns.iter().enumerate().map(number).collect();
        let served = self.served.next(served, units);
        let mut unit = None;
        let mut fit = Ok(());
        if let (Some(index), Some(number), Some(opened)) = (comes, come, opened) {
            warn_of_blocks(&served.config.luns[index]);
            let ports = served.ports.of_luns().swap_remove(index);
            let (new, is_fit) = NewUnit::of(&served.config, index, number, opened, ports, files);
            (unit, fit) = (Some(new), is_fit);
        }
        let gone = goes.map(|index| self.served.units[index]);
        Ok(Prepared { config, served, unit, gone, come, fit })
    }

    /// Begins what was prepared.
    pub(crate) fn begin(&mut self, prepared: Prepared<I>) {
        let Prepared { config, served, unit, gone, come, .. } = prepared;
        if let Some(number) = come {
            let slot = slot(number);
            self.slots.resize(self.slots.len().max(slot + 1), Slot::default());
            self.slots[slot].is_taken = true;
        }
        (self.config, self.served) = (config, Arc::new(served));
        self.rounds.extend(unit.map(Round::Add));
        self.rounds.push_back(Round::Serve(self.served.clone()));
        self.rounds.extend(gone.map(Round::Remove));
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        self.served.find(name).ok_or_else(|| format!("there is no LUN {name}"))
    }

    /// Whether no other LUN but this one has anything of it that is a LUN's own.
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
        Ok(())
    }

    /// The number of the next unit: the first slot that is free, and how many had it before.
    fn next_number(&self) -> Result<u32, String> {
        let free = self.slots.iter().position(|slot| !slot.is_taken);
        let slot = free.unwrap_or(self.slots.len());
        let generation = self.slots.get(slot).map_or(0, |slot| slot.generation);
        let number = (generation & GENERATION_MASK) << SLOT_BITS | slot as u32;
        if slot >= 1 << SLOT_BITS { Err("there are too many LUNs".into()) } else { Ok(number) }
    }

    /// Goes on with what cores have acknowledged.
    pub(crate) fn poll(&mut self) -> Progress {
        self.go_on(|acknowledged| acknowledged.try_recv().ok())
    }

    /// Goes on until all is done, or no core is there to acknowledge anything.
    pub(crate) fn finish(&mut self) -> Progress {
        self.go_on(|acknowledged| acknowledged.recv().ok())
    }

    fn go_on(&mut self, mut hear: impl FnMut(&mpsc::Receiver<bool>) -> Option<bool>) -> Progress {
        loop {
            while let Some((acknowledged, left)) = &mut self.awaited {
                let Some(is_flushed) = hear(acknowledged) else { return Progress::Waits };
                self.is_flushed &= is_flushed;
                *left -= 1;
                if *left == 0 {
                    self.awaited = None;
                }
            }
            match self.rounds.pop_front() {
                Some(round) => self.begin_round(round),
                None => return Progress::Done(std::mem::replace(&mut self.is_flushed, true)),
            }
        }
    }

    fn begin_round(&mut self, mut round: Round<I>) {
        let (done, acknowledged) = mpsc::channel();
        for (core, mail) in self.mail.iter().enumerate() {
            let done = done.clone();
            mail.post(match &mut round {
                Round::Add(unit) => Message::AddUnit { unit: Box::new(unit.on(core)), done },
                Round::Serve(served) => Message::Serve { served: served.clone(), done },
                Round::Remove(unit) => Message::RemoveUnit { unit: *unit, done },
            });
        }
        if let Round::Remove(unit) = round {
            // Nobody takes the slot before this round is over.
            let slot = &mut self.slots[slot(unit)];
            (slot.is_taken, slot.generation) = (false, slot.generation + 1);
        }
        self.awaited = Some((acknowledged, self.mail.len()));
    }
}

/// What a change makes of what is served.
pub(crate) struct Plan {
    /// As it was asked for.
    config: Config,
    /// The same with what only stores know.
    served: Config,
    /// The LUN of it that comes.
    comes: Option<usize>,
    /// The LUN that goes, among those that are served now.
    goes: Option<usize>,
}

impl Plan {
    /// The LUN that comes, whose store may know more of it.
    pub(crate) fn comes(&mut self) -> Option<&mut Lun> {
        self.comes.and_then(|index| self.served.luns.get_mut(index))
    }
}

/// A change that can begin.
pub(crate) struct Prepared<I: Io> {
    config: Config,
    served: Served,
    unit: Option<NewUnit<I>>,
    /// The unit that goes.
    pub(crate) gone: Option<u32>,
    /// The one that comes.
    pub(crate) come: Option<u32>,
    /// Whether that can be served, whatever its store says.
    pub(crate) fit: Result<(), String>,
}

impl<I: Io> Prepared<I> {
    /// What is served then.
    pub(crate) fn served(&self) -> &Served {
        &self.served
    }
}

/// Whether a step can be taken while others are served.
fn is_live(step: &StepOfChange, now: &Config, to: &Config) -> Result<(), String> {
    let later = |what: &str| Err(format!("{what} takes effect at the next start only"));
    match step {
        StepOfChange::Hide { .. } | StepOfChange::RemoveLun(_) | StepOfChange::AddLun(_) => Ok(()),
        StepOfChange::ChangeTarget(name) => {
            let next = step.after(now, to);
            let bare = |config: &Config| {
                let mut target = config.targets.iter().find(|target| target.name == *name).cloned()?;
                target.luns.clear();
                target.groups.iter_mut().filter_map(|group| group.luns.as_mut()).for_each(Vec::clear);
                Some(target)
            };
            if bare(now) == bare(&next) { Ok(()) } else { later(&format!("the change of target {name}")) }
        }
        StepOfChange::Restart(option) => later(option),
        StepOfChange::Settings => later("the change of timeouts, limits or polling"),
        StepOfChange::ChangeLun(name) => later(&format!("the change of LUN {name}")),
        StepOfChange::RemoveTarget(name) | StepOfChange::AddTarget(name) => later(&format!("target {name}")),
        StepOfChange::RemovePortal(address)
        | StepOfChange::AddPortal(address)
        | StepOfChange::ChangePortal(address) => later(&format!("portal {address}")),
    }
}

/// A LUN that stays has what only its store knows.
fn as_found(lun: &mut Lun, before: &Lun) {
    (lun.block_bytes, lun.physical_block_bytes) = (before.block_bytes, before.physical_block_bytes);
    if let (StoreSpec::Ram { huge_pages, .. }, StoreSpec::Ram { huge_pages: chosen, .. }) =
        (&mut lun.store, &before.store)
    {
        *huge_pages = *chosen;
    }
}

/// Has a target show a LUN.
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

/// A unit's number is a slot of the cores' tables, and above it how many units had that before: 28 bits, as a completion's
/// tag has room for.
const SLOT_BITS: u32 = 15;
const GENERATION_MASK: u32 = (1 << 13) - 1;

/// The slot that a unit's number says.
pub(crate) fn slot(number: u32) -> usize {
    (number & ((1 << SLOT_BITS) - 1)) as usize
}
