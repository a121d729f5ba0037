//! Changes of a running daemon's configuration.

use super::{
    ChangeError, Daemon, Leaving, NotSaved, Reports, StartError, UnitSummary, Wants, probe_if_needed, reopen,
    start_prober, summary, weak,
};
use crate::changes::{Change, Plan, Prepared, Progress, Released};
use crate::core::aoe;
use crate::events::Event;
use crate::gateways::Moving;
use crate::guid;
use crate::patience::{Patience, SLICE};
use crate::ports::Ports;
use crate::served::Endpoint;
use crate::state::files::System;
use crate::stores::Opened;
use crate::stores::opening;
use crate::stores::prober::{self, StoreProber};
use crate::stores::space::SpaceMeter;
use crate::units::NewUnit;
use config::{Config, Lun, StepOfChange, StoreSpec};
use reactor::packet;
use reactor::uring::Uring;
use std::sync::Weak;
use std::time::{Duration, Instant};
use store::lane::Store;

/// How long a core may take to begin serving a new snapshot.
const CORES_WITHIN: Duration = Duration::from_secs(5);

/// What belongs to a new unit: its summary, the prober of its store, and the store.
struct Arrival {
    summary: UnitSummary,
    prober: Option<(u32, StoreProber)>,
    store: (u32, Weak<dyn Store>),
}

impl Daemon {
    /// How long changes wait, for a caller that wants to shorten that.
    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Checks again whether anything of a completed change is outstanding, or removed units have yet to be
    /// released.
    pub fn has_leaving(&mut self) -> bool {
        if self.changes.is_under_way() {
            self.changes.proceed_without_hung();
        }
        self.settle_leaving();
        !self.leaving.is_empty() || self.changes.is_under_way()
    }

    /// Closes the stores of released units that nobody waits for, and records what was lost.
    pub(super) fn settle_leaving(&mut self) {
        for Released { unit, name, is_flushed } in self.changes.settle() {
            let released: Vec<Leaving> =
                self.leaving.extract_if(.., |leaving| leaving.unit == unit).collect();
            if released.is_empty() {
                // The caller that removed it has waited for this.
                continue;
            }
            tracing::info!(lun = %name, is_flushed, "the commands of the removed LUN have ended, and its store is closed");
            let is_in_place = self.released(released);
            let Err(why) = check_saved(is_flushed, is_in_place) else { continue };
            tracing::error!(lun = %name, "the LUN was removed: {why}");
            self.events.report(|| Event::NotSaved { lun: name, why: why.to_string() });
            self.left = self.left.and(Err(why));
        }
    }

    /// Takes one of the steps of [`config::diff`] from [`Daemon::config`] to another configuration, and
    /// returns when it is complete or has taken too long. The steps of [`config::diff`] to an earlier
    /// configuration roll back.
    ///
    /// # Errors
    /// When the step is impossible, and nothing has changed; when not all that a LUN had acknowledged is
    /// durable; or when what it removes has not ended.
    pub fn take_step(&mut self, step: &StepOfChange, to: &Config, wants: Wants) -> Result<(), ChangeError> {
        self.has_leaving();
        let plan = self.changes.plan_step(step, to).map_err(ChangeError::Refused)?;
        let about = match wants {
            Wants::Store => self.about.of_new(),
            Wants::KnownStore | Wants::Lun => self.about.clone(),
        };
        self.change(plan, wants, |lun| opening::open_all(std::slice::from_mut(lun), &about).pop())
    }

    /// Changes what is served, and returns when that is complete: a LUN is removed once all commands that had
    /// begun have ended, and its store is closed.
    ///
    /// # Errors
    /// When the change is impossible, and nothing has changed; or when not all that a LUN had acknowledged is
    /// durable.
    pub fn apply(&mut self, change: Change) -> Result<(), ChangeError> {
        let about = self.about.clone();
        self.apply_with(change, |lun| opening::open_all(std::slice::from_mut(lun), &about).pop())
    }

    /// The same, with a function that opens the store.
    pub(crate) fn apply_with(
        &mut self,
        change: Change,
        open: impl FnOnce(&mut Lun) -> Option<Opened>,
    ) -> Result<(), ChangeError> {
        self.has_leaving();
        let plan = self.changes.plan(&change).map_err(ChangeError::Refused)?;
        self.change(plan, Wants::Lun, open)
    }

    fn change(
        &mut self,
        mut plan: Plan,
        wants: Wants,
        open: impl FnOnce(&mut Lun) -> Option<Opened>,
    ) -> Result<(), ChangeError> {
        if self.skip_hanging().is_none() {
            return Err(ChangeError::Refused("a core has not applied the previous change yet".into()));
        }
        let opened = plan.adds().and_then(open);
        if let Some(why) = opened.as_ref().and_then(|opened| opened.failed.as_ref())
            && wants != Wants::Lun
        {
            return Err(ChangeError::Refused(why.clone()));
        }
        let endpoint =
            self.bind_endpoint(&mut plan).map_err(|error| ChangeError::Refused(error.to_string()))?;
        let changes = plan.changes(self.changes.served());
        let changed = changes.map(|(unit, _)| unit);
        let resized = changes.filter(|_| wants != Wants::Lun).and_then(|(unit, lun)| self.grows(unit, lun));
        let lines = plan.attaches().map(|new| packet::open(&aoe::setup(new), new.cores.len())).transpose();
        let lines =
            lines.map_err(|error| ChangeError::Refused(format!("AoE on {error}")))?.unwrap_or_default();
        let prepared = self
            .changes
            .prepare(plan, opened.as_ref(), endpoint, lines, &System)
            .map_err(ChangeError::Refused)?;
        if let Some((prober, size_bytes)) = resized {
            self.probers[prober].1.grow(size_bytes, &self.patience).map_err(ChangeError::Refused)?;
        }
        let gone = prepared.gone.and_then(|unit| Some((unit, self.serial(unit)?)));
        let adds =
            self.arrival(&prepared, opened).map_err(|error| ChangeError::Refused(error.to_string()))?;
        let meter = prepared.meter();
        if let Some((unit, _)) = &gone {
            self.gateways.withdraw(*unit);
        }
        self.changes.begin(prepared);
        let (is_flushed, unended) = self.finish();
        let served = self.changes.served().clone();
        self.units.retain(|unit| served.find(&unit.name).is_some());
        self.meters.change(meter, |name| served.find(name).is_some());
        if let Some(Arrival { summary, prober, store }) = adds {
            self.units.retain(|unit| unit.name != summary.name);
            self.units.push(summary);
            self.stores.retain(|(_, store)| store.strong_count() > 0);
            self.stores.push(store);
            prober.iter().for_each(|(_, prober)| prober.begin());
            self.probers.extend(prober);
        }
        self.addresses = served.endpoints.iter().map(|endpoint| endpoint.address).collect();
        self.srp_guid = served.config.srp_guid;
        // In the order of the configuration.
        self.units.sort_by_key(|unit| served.find(&unit.name));
        changed.iter().for_each(|unit| self.refresh_summary(*unit));
        let is_in_place = gone.is_none_or(|(unit, serial)| self.unit_removed(unit, serial));
        match (unended, check_saved(is_flushed, is_in_place)) {
            (Some(what), Ok(())) => Err(ChangeError::StillEnding(what)),
            (Some(what), Err(lost)) => Err(ChangeError::StillEnding(format!("{what}; {lost}"))),
            (None, kept) => kept.map_err(ChangeError::NotSaved),
        }
    }

    /// Makes this gateway the active one for a shared LUN. Other changes need not wait for that.
    ///
    /// # Errors
    /// When there is no such LUN, or no other gateway serves it.
    pub fn activate(&self, lun: &str) -> Result<Moving, String> {
        let served = self.changes.served();
        match served.find(lun) {
            Some(index) => self.gateways.activate(served.units[index]),
            None => Err("there is no such LUN".into()),
        }
    }

    /// Whether this gateway's target ports, as configured by `to`, have a group or an identifier of another gateway's:
    /// the LUN, and what they have in common, unless they have something in common now.
    pub fn clash(&self, to: &Config) -> Option<(String, String)> {
        let served = self.changes.served();
        let ports = Ports::of(to, Some(&served.ports)).of_luns();
        to.luns.iter().zip(&ports).find_map(|(lun, after)| {
            let number = served.units[served.find(&lun.name)?];
            let before = &self.changes.unit(number)?.ports;
            Some((lun.name.clone(), self.gateways.clash(number, before, after)?))
        })
    }

    /// The serial number of a unit that is served.
    fn serial(&self, unit: u32) -> Option<String> {
        self.changes.unit(unit).map(|unit| unit.serial.clone())
    }

    /// What belongs to the new unit, if there is one.
    fn arrival(
        &mut self,
        prepared: &Prepared<Uring>,
        opened: Option<Opened>,
    ) -> Result<Option<Arrival>, StartError> {
        let Some((number, opened)) = prepared.added.zip(opened) else { return Ok(None) };
        let served = prepared.served();
        let index = served.units.iter().position(|unit| *unit == number).expect("it is to be served");
        let lun = &served.config.luns[index];
        let prober = probe_if_needed(
            &served.config,
            lun,
            number,
            &opened,
            &prepared.fit,
            Reports { mail: &self.mail, events: &self.events },
        )?;
        let home = NewUnit::<Uring>::home_core(number, &served.config);
        if let Some(unit) = prepared.unit() {
            self.gateways.start(lun, unit, &opened, home, &self.mail).map_err(StartError)?;
        }
        Ok(Some(Arrival { summary: summary(lun, &opened), prober, store: (number, weak(&opened)) }))
    }

    /// A unit was reconfigured: updates its summary, and measures the space that its store takes if `warn_at`
    /// is known now.
    fn refresh_summary(&mut self, number: u32) {
        let served = self.changes.served();
        let Some(index) = served.units.iter().position(|unit| *unit == number) else { return };
        let store = self.stores.iter().find(|(other, _)| *other == number);
        let Some(store) = store.and_then(|(_, store)| store.upgrade()) else { return };
        let (lun, traits) = (&served.config.luns[index], store.traits());
        if let Some(unit) = self.units.iter_mut().find(|unit| unit.name == lun.name) {
            (unit.size_bytes, unit.thin) = (traits.size_bytes, lun.thin && traits.discards);
        }
        let Some(space) = self.changes.unit(number).and_then(|unit| unit.space.clone()) else { return };
        if let Some((_, prober)) = self.probers.iter().find(|(other, _)| *other == number) {
            return prober.measure_space(space);
        }
        let reports = Reports { mail: &self.mail, events: &self.events };
        match start_prober(&served.config, lun, number, store, None, Some(SpaceMeter::new(space)), reports) {
            Ok(prober) => self.probers.extend(prober.inspect(|(_, prober)| prober.begin())),
            Err(error) => tracing::error!(lun = %lun.name, "its warn_at has no effect: {error}"),
        }
    }

    /// Waits until the change is complete, but no longer than `patience`. Returns whether removed stores were
    /// flushed, and what has not ended.
    fn finish(&mut self) -> (bool, Option<String>) {
        let until = self.patience.begin();
        loop {
            if let Progress::Done(is_flushed) = self.changes.poll() {
                return (is_flushed, None);
            }
            if self.patience.is_over(until) || !self.changes.wait(SLICE) {
                break;
            }
        }
        let is_flushed = self.skip_hanging().unwrap_or(true);
        let names = self.changes.waits_for().join(", ");
        let why = match self.patience.has_ended() {
            true => "the daemon ends".to_owned(),
            false => format!("it has taken longer than {} s", self.patience.limit.as_secs()),
        };
        let what = format!(
            "{why}: commands are still in flight on {names} (a store that does not answer, or a SANITIZE)"
        );
        (is_flushed, Some(what))
    }

    /// Stops waiting for what hangs. Returns whether stores that were removed meanwhile were flushed; `None`:
    /// a core does not serve the new snapshot.
    fn skip_hanging(&mut self) -> Option<bool> {
        let until = Instant::now() + CORES_WITHIN;
        loop {
            if let Progress::Done(is_flushed) = self.changes.proceed_without_hung() {
                return Some(is_flushed);
            }
            if self.patience.has_ended() || Instant::now() >= until || !self.changes.wait(SLICE) {
                return None;
            }
        }
    }

    /// A unit was removed: its store is closed, or will be. Returns whether it still is where its path leads,
    /// as far as is known.
    fn unit_removed(&mut self, unit: u32, serial: String) -> bool {
        let prober = self.probers.iter().position(|(other, _)| *other == unit);
        let prober = prober.map(|index| self.probers.swap_remove(index).1);
        let leaving = Leaving { unit, serial, prober };
        if self.changes.is_leaving(unit) {
            self.leaving.push(leaving);
            return true;
        }
        self.released(vec![leaving])
    }

    /// These stores are no longer used. Returns whether they are where their paths lead, as far as is known.
    fn released(&self, units: Vec<Leaving>) -> bool {
        units.iter().for_each(|unit| self.about.closed(&unit.serial));
        prober::end(units.into_iter().filter_map(|unit| unit.prober).collect())
    }

    /// Opens the portal that a plan needs.
    fn bind_endpoint(&self, plan: &mut Plan) -> Result<Option<Endpoint>, StartError> {
        let Some((portal, number, before)) = plan.opens() else { return Ok(None) };
        let is_srp = portal.transports.srp;
        let endpoint = reopen(portal, number, before)?;
        if is_srp && plan.srp_guid().is_none() {
            let state_dir = self.changes.config().state_dir.as_deref();
            *plan.srp_guid() = Some(guid::find_or_make(state_dir).map_err(StartError)?);
        }
        Ok(Some(endpoint))
    }

    /// The prober of a file that is to grow, and its new size.
    fn grows(&self, unit: u32, lun: &Lun) -> Option<(usize, u64)> {
        let StoreSpec::File { size: Some(size), .. } = lun.store else { return None };
        let before = self.changes.served().find(&lun.name)?;
        let is_other = self.changes.served().config.luns[before].store != lun.store;
        let prober = self.probers.iter().position(|(probed, _)| *probed == unit)?;
        is_other.then_some((prober, size))
    }
}

/// Checks that what was written to a removed store is where it will be looked for.
fn check_saved(is_flushed: bool, is_in_place: bool) -> Result<(), NotSaved> {
    match (is_flushed, is_in_place) {
        (false, _) => Err(NotSaved::NotFlushed),
        (true, false) => Err(NotSaved::Misplaced),
        (true, true) => Ok(()),
    }
}
