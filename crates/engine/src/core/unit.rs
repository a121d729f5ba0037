//! What a core knows of logical units. All cores know the same units by the same numbers.

use super::buffer::Held;
use super::gate::Gate;
use super::homes::{HomeUnit, Publication};
use super::kind;
use super::leaving::Leaving;
use crate::counters::Counters;
use crate::ledger::Ledger;
use crate::meters::UnitMeter;
use crate::seat::GatewayEvent;
use crate::slots::Key;
use crate::units::{NewUnit, slot};
use reactor::io::Io;
use scsi::{Publish, View};
use std::ops::{Index, IndexMut};
use std::sync::{Arc, mpsc};
use store::lane::{Lane, OpId, Outcome};
use wire::Sense;

/// One unit on this core: all that the core keeps of it.
/// Its fields come and go together: a unit is added, replaced and removed as one value.
pub(super) struct Unit<I: Io> {
    /// What all cores know it by.
    number: u32,
    /// The LUN's name in the configuration, for the log.
    pub(super) name: String,
    /// Its store can lose what it acknowledged.
    pub(super) can_lose: bool,
    /// Its store's cache outlives the process, and that it lost something is to be kept, which it is not yet.
    pub(super) keeps_losses: bool,
    /// What its commands look at.
    pub(super) view: View,
    /// The way into its store.
    pub(super) lane: Box<dyn Lane<I>>,
    /// What keeps ordered tasks apart from all others.
    pub(super) gate: Gate,
    /// The core of its home.
    pub(super) home_core: usize,
    /// Its home, if that is here.
    pub(super) home: Option<HomeUnit>,
    /// What this core applied last.
    pub(super) published: Option<Arc<Publish>>,
    /// What its tasks hold of the core's buffers.
    pub(super) held: Held,
    /// What AoE changes of it, if it exports it.
    pub(super) ledger: Option<Arc<Ledger>>,
    /// Connections that may send on what a READ that was aborted was lent of the store's memory, each until so many of its
    /// batches have left.
    pub(super) unsent: Vec<(Key, u64)>,
    /// Commands that ended here with an error, since that was last reported, and what the last one got.
    pub(super) errors: Option<(u64, Sense)>,
    /// What its commands on this core did.
    pub(super) counters: Arc<Counters>,
    /// What anybody may read of it.
    pub(super) meter: Arc<UnitMeter>,
    /// Nobody is shown it any more.
    pub(super) leaving: Option<Leaving>,
    /// The way to its thread, if gateways share it.
    pub(super) gateway: Option<mpsc::Sender<GatewayEvent>>,
}

impl<I: Io> Unit<I> {
    /// A unit as it begins on this core.
    pub(super) fn new(unit: NewUnit<I>, me: usize) -> Unit<I> {
        let NewUnit { name, can_lose, view, store, home_core, home, ledger, meter, gateway } = unit;
        let number = view.unit.index;
        Unit {
            number,
            name,
            can_lose,
            keeps_losses: can_lose && view.unit.ptpl_capable && !view.unit.remote,
            view,
            lane: store.lane(kind::lane_tags(number)),
            gate: Gate::default(),
            home_core,
            home: home.map(HomeUnit::new),
            published: None,
            held: Held::default(),
            ledger,
            unsent: Vec::new(),
            errors: None,
            counters: meter.on(me),
            meter,
            leaving: None,
            gateway,
        }
    }

    /// What all cores know it by.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// That of its changes; only units that AoE exports have sessions there.
    pub(super) fn ledger(&self) -> &Ledger {
        self.ledger.as_ref().expect("only exported units have sessions")
    }
}

impl<I: Io> Unit<I> {
    /// Whether its store can be flushed: it has not failed, and no other gateway has it by now, for which it was flushed.
    pub(super) fn takes_flush(&self) -> bool {
        let policy = &self.view.policy;
        policy.failed.is_none() && !policy.groups.are_standby()
    }

    /// Reports those operations that are final flushes; returns how many there were.
    pub(super) fn report_flushes(&self, done: &mut Vec<(OpId, Outcome)>, has_flushed: &mut bool) -> usize {
        let flushes = done.drain(..).filter(|(id, _)| *id == kind::FINAL_FLUSH);
        flushes.map(|(_, outcome)| *has_flushed &= self.report_flush(outcome)).count()
    }

    /// Whether its store was flushed at the end; why not is logged.
    pub(super) fn report_flush(&self, outcome: Outcome) -> bool {
        if let Err(error) = outcome {
            tracing::error!(lun = %self.name, %error, "the store could not be flushed at the end");
        }
        outcome.is_ok()
    }
}

/// All units.
pub(super) struct Units<I: Io> {
    slots: Vec<Option<Unit<I>>>,
    /// Those whose lanes are to be flushed at the end of the turn.
    pub(super) used: Vec<u32>,
    /// Those that leave.
    pub(super) leaving: Vec<u32>,
    /// What was published, and tasks keep from having been applied.
    pub(super) publications: Vec<Publication>,
    /// What tasks of LUNs that do not exist hold of the core's buffers.
    nowhere: Held,
}

impl<I: Io> Units<I> {
    /// These, each with the number that it says.
    pub(super) fn new(units: Vec<Unit<I>>) -> Units<I> {
        let used = Vec::with_capacity(units.len());
        let mut all = Units {
            slots: Vec::new(),
            used,
            leaving: Vec::new(),
            publications: Vec::new(),
            nowhere: Held::default(),
        };
        units.into_iter().for_each(|unit| all.insert(unit));
        all
    }

    pub(super) fn insert(&mut self, unit: Unit<I>) {
        let slot = slot(unit.number);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        assert!(self.slots[slot].is_none(), "two units have one slot");
        self.slots[slot] = Some(unit);
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Unit<I>> {
        self.used.retain(|used| *used != number);
        self.leaving.retain(|leaving| *leaving != number);
        self.slots.get_mut(slot(number))?.take_if(|unit| unit.number == number)
    }

    /// The unit, if it is still there.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Unit<I>> {
        self.slots.get(slot(number))?.as_ref().filter(|unit| unit.number == number)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Unit<I>> {
        self.slots.get_mut(slot(number))?.as_mut().filter(|unit| unit.number == number)
    }

    /// The home of a unit, if that is here.
    pub(super) fn home_mut(&mut self, number: u32) -> Option<&mut HomeUnit> {
        self.get_mut(number)?.home.as_mut()
    }

    /// What a unit's tasks hold of the core's buffers; or those of LUNs that do not exist.
    pub(super) fn held_mut(&mut self, number: u32) -> &mut Held {
        match self.slots.get_mut(slot(number)) {
            Some(Some(unit)) if unit.number == number => &mut unit.held,
            Some(_) | None => &mut self.nowhere,
        }
    }

    /// The way into a unit's store, which is then flushed at the end of the turn.
    pub(super) fn lane(&mut self, number: u32) -> &mut dyn Lane<I> {
        if !self.used.contains(&number) {
            self.used.push(number);
        }
        &mut *self[number].lane
    }

    /// How many slots there are, for whoever goes through them while units come and go.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn in_slot(&self, slot: usize) -> Option<&Unit<I>> {
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Unit<I>> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Unit<I>> {
        self.slots.iter_mut().flatten()
    }
}

/// Of a unit that is there for certain: a task of it is.
impl<I: Io> Index<u32> for Units<I> {
    type Output = Unit<I>;

    #[inline]
    fn index(&self, number: u32) -> &Unit<I> {
        self.get(number).unwrap_or_else(|| gone(number))
    }
}

impl<I: Io> IndexMut<u32> for Units<I> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut Unit<I> {
        self.get_mut(number).unwrap_or_else(|| gone(number))
    }
}

#[cold]
fn gone(number: u32) -> ! {
    panic!("unit {number} was removed, and is used")
}

impl<I: Io> scsi::Units for Units<I> {
    fn view(&self, number: u32) -> Option<&View> {
        self.get(number).map(|unit| &unit.view)
    }

    fn find(&self, is_it: &dyn Fn(&View) -> bool) -> Option<&View> {
        self.iter().map(|unit| &unit.view).find(|view| is_it(view))
    }
}
