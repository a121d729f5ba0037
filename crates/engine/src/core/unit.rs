//! What a core knows about logical units. All cores use the same numbers for them.

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

/// One unit on this core, with all that the core keeps of it.
/// Its fields are added, replaced and removed as one value.
pub(super) struct Unit<I: Io> {
    /// The number that all cores know it by.
    number: u32,
    /// The LUN's name in the configuration, for the log.
    pub(super) name: String,
    /// Its store can lose acknowledged data.
    pub(super) can_lose: bool,
    /// Its store's cache outlives the process, and a loss has to be recorded, which it has not been yet.
    pub(super) keeps_losses: bool,
    /// What its commands access.
    pub(super) view: View,
    /// The way into its store.
    pub(super) lane: Box<dyn Lane<I>>,
    /// Orders its tasks.
    pub(super) gate: Gate,
    /// The core where its home is.
    pub(super) home_core: usize,
    /// Its home, if that is here.
    pub(super) home: Option<HomeUnit>,
    /// The publication that this core applied last.
    pub(super) published: Option<Arc<Publish>>,
    /// The core's buffers that its tasks hold.
    pub(super) held: Held,
    /// The blocks that AoE is changing, if it is exported over AoE.
    pub(super) ledger: Option<Arc<Ledger>>,
    /// Connections that may still be sending data that an aborted READ borrowed from the store, each until
    /// this many of its batches have been sent.
    pub(super) unsent: Vec<(Key, u64)>,
    /// Commands that ended here with an error since the last report, and the sense data of the last one.
    pub(super) errors: Option<(u64, Sense)>,
    /// Counters of its commands on this core.
    pub(super) counters: Arc<Counters>,
    /// Its counters that any thread may read.
    pub(super) meter: Arc<UnitMeter>,
    /// It is no longer shown.
    pub(super) leaving: Option<Leaving>,
    /// The channel to its thread, if gateways share it.
    pub(super) gateway: Option<mpsc::Sender<GatewayEvent>>,
}

impl<I: Io> Unit<I> {
    /// A unit as it is added to this core.
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

    /// The number that all cores know it by.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The ledger of its changes; AoE has sessions only with units that have one.
    pub(super) fn ledger(&self) -> &Ledger {
        self.ledger.as_ref().expect("only exported units have sessions")
    }
}

impl<I: Io> Unit<I> {
    /// Whether its store can be flushed: it has not failed, and has not passed to another gateway, before
    /// which it was flushed.
    pub(super) fn takes_flush(&self) -> bool {
        let policy = &self.view.policy;
        policy.failed.is_none() && !policy.groups.are_standby()
    }

    /// Reports those of the operations that are final flushes; returns how many there were.
    pub(super) fn report_flushes(&self, done: &mut Vec<(OpId, Outcome)>, has_flushed: &mut bool) -> usize {
        let flushes = done.drain(..).filter(|(id, _)| *id == kind::FINAL_FLUSH);
        flushes.map(|(_, outcome)| *has_flushed &= self.report_flush(outcome)).count()
    }

    /// Whether its store was flushed at the end; failures are logged.
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
    /// Those that are being removed.
    pub(super) leaving: Vec<u32>,
    /// Publications that tasks keep from being complete here.
    pub(super) publications: Vec<Publication>,
    /// The core's buffers that tasks of nonexistent LUNs hold.
    nowhere: Held,
}

impl<I: Io> Units<I> {
    /// These units, each in the slot of its number.
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

    /// The unit, if it still exists.
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

    /// The core's buffers that a unit's tasks hold, or those of nonexistent LUNs.
    pub(super) fn held_mut(&mut self, number: u32) -> &mut Held {
        match self.slots.get_mut(slot(number)) {
            Some(Some(unit)) if unit.number == number => &mut unit.held,
            Some(_) | None => &mut self.nowhere,
        }
    }

    /// A unit's lane, which is then flushed at the end of the turn.
    pub(super) fn lane(&mut self, number: u32) -> &mut dyn Lane<I> {
        if !self.used.contains(&number) {
            self.used.push(number);
        }
        &mut *self[number].lane
    }

    /// How many slots there are, for iterating while units are added and removed.
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

/// For a unit that certainly exists, since a task of it does.
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
