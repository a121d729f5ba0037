//! The meters of a running daemon's units and cores, which other threads read without involving the cores.

use crate::counters::{Count, Counters, Counts};
use crate::readings::{CoreReading, GatewayReading, Initiators, StoreState, UnitReading, reservation};
use crate::registry::Registry;
use scsi::View;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use store::lane::Store;

/// The counters of a unit, and what its home published last.
#[derive(Debug)]
pub(crate) struct UnitMeter {
    name: String,
    /// Those of each core, which allocates them itself: memory is on the NUMA node of the thread that touches
    /// it first.
    cores: Vec<OnceLock<Arc<Counters>>>,
    /// Changed only by its home's core, when that publishes.
    published: Mutex<Published>,
    /// The reading of its thread, if gateways share it.
    gateway: Option<Arc<Mutex<Option<GatewayReading>>>>,
    store: Weak<dyn Store>,
}

#[derive(Clone, Debug)]
struct Published {
    view: View,
    /// Its store has been open at some time.
    was_open: bool,
    /// Why it was last not open.
    last_error: Option<Arc<str>>,
}

impl UnitMeter {
    pub(crate) fn new(
        name: &str,
        view: View,
        cores: usize,
        gateway: Option<Arc<Mutex<Option<GatewayReading>>>>,
        store: Weak<dyn Store>,
    ) -> UnitMeter {
        let mut published = Published { view: view.clone(), was_open: false, last_error: None };
        published.take(view);
        let cores = (0..cores).map(|_| OnceLock::new()).collect();
        UnitMeter { name: name.into(), cores, published: Mutex::new(published), gateway, store }
    }

    /// The counters of this core, which has to be the calling thread.
    pub(crate) fn on(&self, core: usize) -> Arc<Counters> {
        self.cores[core].get_or_init(Arc::default).clone()
    }

    /// Takes what its home has published.
    pub(crate) fn publish(&self, view: View) {
        self.lock().take(view);
    }

    /// What all cores have counted.
    pub(crate) fn counts(&self) -> Counts {
        let mut all = Counts::default();
        self.cores.iter().filter_map(OnceLock::get).for_each(|counters| all.add(&counters.read()));
        all
    }

    fn read(&self, initiators: Initiators<'_>) -> UnitReading {
        let counts = self.counts();
        // The home's core publishes behind this lock, and must not wait for what follows.
        let Published { view, was_open, last_error } = self.lock().clone();
        let serial = view.serial().to_owned();
        let View { unit, policy } = view;
        let holders = policy.reservations.holders();
        let state = match (&policy.failed, was_open) {
            (None, _) => StoreState::Open,
            (Some(_), false) => StoreState::Late,
            (Some(_), true) => StoreState::Failed,
        };
        UnitReading {
            name: self.name.clone(),
            counts,
            state,
            last_error: last_error.as_deref().map(str::to_owned),
            serial,
            size_bytes: (state != StoreState::Late).then_some(policy.traits.size_bytes),
            used_bytes: unit.space.as_ref().and_then(|space| space.used_bytes()),
            connections: self.store.upgrade().and_then(|store| store.open_connections()),
            write_cache: policy.modes.write_cache,
            threshold_reached: unit.warn_at.map(|_| policy.threshold_reached),
            reservation: reservation(&holders, initiators),
            registered: holders.registered,
            groups: policy.groups.states().collect(),
            gateway: self
                .gateway
                .as_ref()
                .and_then(|gateway| gateway.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Published {
    fn take(&mut self, view: View) {
        match &view.policy.failed {
            Some(error) => self.last_error = Some(error.clone()),
            None => self.was_open = true,
        }
        self.view = view;
    }
}

/// The meter of a core.
#[derive(Debug, Default)]
pub(crate) struct CoreMeter {
    /// Nanoseconds of work.
    busy: Count,
    /// Nanoseconds of turns that found nothing.
    polling: Count,
    /// How long it had been spinning at its last report.
    spun: Count,
    /// Nanoseconds of sleep at the last reading: later readings have no less.
    asleep: AtomicU64,
    pub(crate) tasks: Count,
    pub(crate) buffer_bytes: Count,
}

impl CoreMeter {
    /// Reports how long the core's thread has had or waited for a processor since it began, and how long it
    /// was spinning. Two clocks measure these, so their difference can shrink: what was once counted stays
    /// counted.
    pub(crate) fn worked(&self, worked: Duration, spun: Duration) {
        let [worked, spun] = [worked, spun].map(|time| time.as_nanos() as u64);
        let more = worked.saturating_sub(self.busy.get() + self.polling.get());
        let polled = spun.saturating_sub(self.spun.get()).min(more);
        self.busy.add(more - polled);
        self.polling.add(polled);
        self.spun.set(spun);
    }

    /// How long it was busy, polling and asleep until now. It reports with some delay.
    fn times(&self, elapsed: Duration) -> [Duration; 3] {
        let (busy, polling) = (self.busy.get(), self.polling.get());
        let asleep = (elapsed.as_nanos() as u64).saturating_sub(busy + polling);
        let before = self.asleep.fetch_max(asleep, Ordering::Relaxed);
        [busy, polling, asleep.max(before)].map(Duration::from_nanos)
    }
}

/// The meters of a daemon, for any thread.
#[derive(Clone)]
pub struct Meters {
    units: Arc<Mutex<Vec<Arc<UnitMeter>>>>,
    cores: Arc<[CoreMeter]>,
    /// The numbers of the cores.
    numbers: Arc<[usize]>,
    registry: Arc<Registry>,
    begin: Instant,
    buffer_max_bytes: u64,
}

impl Meters {
    pub(crate) fn new(
        units: Vec<Arc<UnitMeter>>,
        cores: &Arc<[CoreMeter]>,
        numbers: &[usize],
        registry: &Arc<Registry>,
        buffer_max_bytes: u64,
    ) -> Meters {
        let (cores, registry) = (cores.clone(), registry.clone());
        let begin = Instant::now();
        Meters {
            units: Arc::new(Mutex::new(units)),
            cores,
            numbers: numbers.into(),
            registry,
            begin,
            buffer_max_bytes,
        }
    }

    /// Keeps the units that are served; a new one replaces another of the same name.
    pub(crate) fn change(&self, comes: Option<Arc<UnitMeter>>, is_served: impl Fn(&str) -> bool) {
        let mut units = self.lock();
        let is_new = |unit: &UnitMeter| comes.as_ref().is_some_and(|new| new.name == unit.name);
        units.retain(|unit| is_served(&unit.name) && !is_new(unit));
        units.extend(comes);
    }

    /// Units.
    pub fn units(&self) -> Vec<UnitReading> {
        self.units_that(|_| true)
    }

    /// The units with certain names.
    pub fn units_that(&self, is_seen: impl Fn(&str) -> bool) -> Vec<UnitReading> {
        let units: Vec<_> = self.lock().iter().filter(|unit| is_seen(&unit.name)).cloned().collect();
        units.iter().map(|unit| unit.read(&|nexus| self.registry.initiator(nexus))).collect()
    }

    /// Cores.
    pub fn cores(&self) -> Vec<CoreReading> {
        let live = self.registry.active();
        let elapsed = self.begin.elapsed();
        let read = |(index, (core, meter)): (usize, (&usize, &CoreMeter))| {
            let [busy, polling, asleep] = meter.times(elapsed);
            CoreReading {
                core: *core,
                busy,
                polling,
                asleep,
                sessions: live.iter().filter(|(_, at)| *at == index).count(),
                tasks: meter.tasks.get(),
                buffer_bytes: meter.buffer_bytes.get(),
                buffer_max_bytes: self.buffer_max_bytes,
            }
        };
        self.numbers.iter().zip(&*self.cores).enumerate().map(read).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<UnitMeter>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::initiator::{Initiator, Login};
    use crate::testing::{HeldStore, serve};
    use scsi::storage::Identity;
    use std::cell::Cell;
    use wire::scsi::command::Reserve6;

    #[test]
    fn nothing_is_locked_that_a_core_wants_while_a_unit_is_read() {
        let (daemon, url) = serve(1, &[HeldStore::new()], |_| {});
        let mut holder = Initiator::login(&url, &Login::named("holder")).expect("a session");
        holder.ready(0).expect("the unit is ready");
        holder.read(0, Reserve6::ZERO, 0).expect("an answer");
        let unit = daemon.meters().lock()[0].clone();
        let asked = Cell::new(0);
        let initiators = |_| {
            asked.set(asked.get() + 1);
            assert!(unit.published.try_lock().is_ok(), "its home would wait");
            None
        };
        let reservation = unit.read(&initiators).reservation.expect("it is reserved");
        assert_eq!((reservation.kind, reservation.holders.len(), asked.get()), ("RESERVE", 0, 1));
        drop(holder);
        daemon.stop().expect("every core ends in order");
    }

    #[test]
    fn a_unit_is_listed_by_the_serial_number_that_its_medium_brought() {
        let (daemon, _) = serve(1, &[HeldStore::new()], |_| {});
        let unit = daemon.meters().lock()[0].clone();
        let mut view = unit.lock().view.clone();
        let own = Identity { serial: *b"0123456789abcdef", naa: [0x61; 16], eui: [2; 8] };
        Arc::make_mut(&mut view.policy).traits.identity = Some(own);
        unit.publish(view);
        assert_eq!(daemon.meters().units()[0].serial.as_bytes(), own.serial);
        daemon.stop().expect("every core ends in order");
    }

    #[test]
    fn only_requested_units_are_read() {
        let (daemon, _) = serve(1, &[HeldStore::new(), HeldStore::new()], |_| {});
        let meters = daemon.meters();
        let all: Vec<String> = meters.units().into_iter().map(|unit| unit.name).collect();
        assert_eq!(all.len(), 2);
        let some = meters.units_that(|name| name == all[1]);
        assert_eq!(some.iter().map(|unit| &unit.name).collect::<Vec<_>>(), [&all[1]]);
        daemon.stop().expect("every core ends in order");
    }

    #[test]
    fn no_time_of_a_core_ever_shrinks() {
        let meter = CoreMeter::default();
        let micros = Duration::from_micros;
        // Worked, spun, elapsed: the spinning is reported late, by a clock that ran on while others had the
        // processor, then back.
        let reported = [
            (100, 20, 100),
            (110, 80, 120),
            (110, 140, 150),
            (105, 139, 150),
            (300, 150, 300),
            (300, 150, 900),
        ];
        let mut last = [Duration::ZERO; 3];
        for (worked, spun, elapsed) in reported {
            let between = meter.times(micros(elapsed));
            meter.worked(micros(worked), micros(spun));
            let times = meter.times(micros(elapsed));
            for (before, after) in [(last, between), (between, times)] {
                assert!(
                    before.iter().zip(after).all(|(before, after)| *before <= after),
                    "{before:?} {after:?}"
                );
            }
            last = times;
        }
        assert_eq!(last[..2], [micros(259), micros(41)]);
        assert_eq!(last[2], micros(600));
    }
}
