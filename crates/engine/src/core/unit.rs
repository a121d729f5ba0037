//! What a core knows about logical units. All cores use the same numbers for them.

use super::buffer::Held;
use super::gate::Gate;
use super::homes::{HomeUnit, Publication};
use super::kind;
use super::leaving::Leaving;
use crate::counters::Counters;
use crate::gateway_handle::GatewayEvent;
use crate::ledger::Ledger;
use crate::meters::UnitMeter;
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
        policy.failed.is_none() && policy.serves()
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
    /// Those whose lanes waited for threads when they were used last.
    threaded: Vec<u32>,
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
            threaded: Vec::new(),
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
        self.threaded.retain(|threaded| *threaded != number);
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

    /// Its lane was used: whether threads carry out what it has begun is checked before the core spins.
    pub(super) fn check_threads(&mut self, number: u32) {
        if self[number].lane.waits_for_threads() && !self.threaded.contains(&number) {
            self.threaded.push(number);
        }
    }

    /// Whether threads carry out operations of any lane. Those of units that are not used are not asked: a core that
    /// spins does this in each turn.
    pub(super) fn wait_for_threads(&mut self) -> bool {
        let mut threaded = std::mem::take(&mut self.threaded);
        threaded.retain(|number| self.get(*number).is_some_and(|unit| unit.lane.waits_for_threads()));
        self.threaded = threaded;
        !self.threaded.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::files::System;
    use crate::stores::Opened;
    use config::{Config, ServeOptions};
    use reactor::io::Completion;
    use reactor::uring::Uring;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use store::lane::{Op, Submitted};
    use wire::Span;

    /// A lane that counts how often it is asked whether it waits for threads.
    #[derive(Clone, Default)]
    struct Asked {
        waits: Arc<AtomicBool>,
        count: Arc<AtomicUsize>,
    }

    impl Asked {
        fn count(&self) -> usize {
            self.count.load(Ordering::Relaxed)
        }
    }

    impl Lane<Uring> for Asked {
        fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
            None
        }

        fn submit(&mut self, _io: &mut Uring, _id: OpId, _op: &Op) -> Submitted {
            Submitted::Later
        }

        fn completed(&mut self, _io: &mut Uring, _completion: Completion, _done: &mut Vec<(OpId, Outcome)>) {}

        fn flush(&mut self, _io: &mut Uring, _done: &mut Vec<(OpId, Outcome)>) -> bool {
            false
        }

        fn waits_for_threads(&self) -> bool {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.waits.load(Ordering::Relaxed)
        }

        fn in_flight(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_core_that_spins_asks_only_units_that_wait_for_threads_whether_they_still_do() {
        const UNITS: usize = 8;
        let options = ServeOptions {
            lun: vec!["ram:1M".into(); UNITS],
            cores: Some("0".into()),
            ..ServeOptions::default()
        };
        let config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
        let opened = || Opened::<Uring> {
            store: store::open_ram(1 << 20).expect("memory"),
            failed: None,
            losses: Arc::default(),
            space: Arc::default(),
            gateway: None,
        };
        let (new, _) = NewUnit::all(&config, &[(); UNITS].map(|()| opened()), &System);
        let mut units = Units::new(new.into_iter().map(|unit| Unit::new(unit, 0)).collect());
        let asked = [(); UNITS].map(|()| Asked::default());
        for (number, lane) in (0..).zip(&asked) {
            units[number].lane = Box::new(lane.clone());
        }
        let counts = || asked.each_ref().map(Asked::count);

        asked[3].waits.store(true, Ordering::Relaxed);
        [3, 4, 3].into_iter().for_each(|number| units.check_threads(number));
        let before = counts();
        for _ in 0..10 {
            assert!(units.wait_for_threads());
        }
        asked[3].waits.store(false, Ordering::Relaxed);
        for _ in 0..10 {
            assert!(!units.wait_for_threads());
        }
        let mut expected = before;
        expected[3] += 11;
        assert_eq!(counts(), expected);

        asked[3].waits.store(true, Ordering::Relaxed);
        units.check_threads(3);
        units.remove(3);
        assert!(!units.wait_for_threads());
    }
}
