//! How what is served changes while it is served: in rounds, each of which every core acknowledges before the next begins.

use crate::message::Message;
use crate::served::Served;
use crate::state::files::Files;
use crate::stores::Opened;
use crate::units::NewUnit;
use config::Lun;
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
    /// Of cores that serve this.
    pub(crate) fn new(mail: &[Sender<Message<I>>], served: &Arc<Served>) -> Changes<I> {
        Changes {
            mail: mail.to_vec(),
            served: served.clone(),
            slots: vec![Slot { is_taken: true, generation: 0 }; served.units.len()],
            rounds: VecDeque::new(),
            awaited: None,
            is_flushed: true,
        }
    }

    /// What is served when all is done that was begun.
    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Begins a change; `opened` is the store of the LUN that comes. The number of the unit that goes, and of the one that
    /// comes; and why that one is not to be served whatever its store says.
    ///
    /// # Errors
    /// When it cannot be; then nothing has changed.
    pub(crate) fn begin(
        &mut self,
        change: &Change,
        opened: Option<&Opened<I>>,
        files: &dyn Files,
    ) -> Result<Begun, String> {
        let (goes, comes) = match change {
            Change::Add { lun, .. } => (None, Some(lun)),
            Change::Remove { name } => (Some(self.find(name)?), None),
            Change::Replace { name, lun } => (Some(self.find(name)?), Some(lun)),
        };
        let number = comes.map(|_| self.next_number()).transpose()?;
        let served = match (change, goes, number) {
            (Change::Add { lun, shown }, _, Some(number)) => {
                self.is_new(lun, None)?;
                self.served.with((**lun).clone(), number, shown)?
            }
            (Change::Replace { lun, .. }, Some(index), Some(number)) => {
                self.is_new(lun, Some(index))?;
                self.served.replacing(index, (**lun).clone(), number)
            }
            (_, Some(index), _) => self.served.without(index),
            (Change::Add { .. } | Change::Replace { .. } | Change::Remove { .. }, ..) => {
                unreachable!("what comes has a number, and what goes a place")
            }
        };
        let gone = goes.map(|index| self.served.units[index]);
        let mut fit = Ok(());
        if let (Some(number), Some(opened)) = (number, opened) {
            let index = served.units.iter().position(|unit| *unit == number).expect("it is served");
            let ports = served.ports.of_luns().swap_remove(index);
            let (unit, is_fit) = NewUnit::of(&served.config, index, number, opened, ports, files);
            fit = is_fit;
            self.slots[slot(number)].is_taken = true;
            self.rounds.push_back(Round::Add(unit));
        }
        self.served = Arc::new(served);
        self.rounds.push_back(Round::Serve(self.served.clone()));
        self.rounds.extend(gone.map(Round::Remove));
        Ok(Begun { gone, come: number, fit })
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
    fn next_number(&mut self) -> Result<u32, String> {
        let slot = match self.slots.iter().position(|slot| !slot.is_taken) {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
        };
        let number = (self.slots[slot].generation & GENERATION_MASK) << SLOT_BITS | slot as u32;
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

/// What a change that has begun concerns.
pub(crate) struct Begun {
    /// The unit that goes.
    pub(crate) gone: Option<u32>,
    /// The one that comes.
    pub(crate) come: Option<u32>,
    /// Whether that can be served.
    pub(crate) fit: Result<(), String>,
}

/// A unit's number is a slot of the cores' tables, and above it how many units had that before: 28 bits, as a completion's
/// tag has room for.
const SLOT_BITS: u32 = 15;
const GENERATION_MASK: u32 = (1 << 13) - 1;

/// The slot that a unit's number says.
pub(crate) fn slot(number: u32) -> usize {
    (number & ((1 << SLOT_BITS) - 1)) as usize
}
