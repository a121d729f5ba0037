//! Units that are added and removed while others are served.
//!
//! A unit is added before it is shown to any initiator: each core takes its part (`add_unit`), and then the
//! new snapshot (`change_served`), by which sessions get their LUNs. Removal is the reverse: no initiator is
//! shown the unit any more, so that commands to it end with LOGICAL UNIT NOT SUPPORTED; each core finishes
//! what had begun, and reports that to the unit's home; and when nothing is in progress anywhere, including
//! the home itself, the home flushes the store and has all cores release the unit. Each step is acknowledged
//! by every core before the next begins ([`crate::changes`]), so cores differ by one step at most.
//!
//! Nothing needs a unit after its release:
//! - Tasks, borrowed data and buffers refer to it. A core is quiet when it has none of them, and it gets
//!   none, as no session has such a LUN. A session that moves here from a core that is behind loses the LUN
//!   on arrival ([`super::migration`]).
//! - A session may end afterwards and ask the home to forget its nexus: that is answered whether or not the
//!   unit exists.
//! - Data that an aborted READ has borrowed from the store is sent to the end, as PDUs must be whole. The
//!   core is not quiet before that, nor while RDMA of commands that have ended is in progress.
//! - A lane may have outstanding completions that no longer matter (a watch): they find no unit.

use super::connection::Connection;
use super::homes::HomeUnit;
use super::leaving::{Flush, Leaving, Stage};
use super::lun::{NO_LUN, NO_UNIT};
use super::task::Task;
use super::unit::{Unit, Units};
use super::{Core, kind, mode};
use crate::message::{Done, Message, Waiter};
use crate::served::{Delta, Served};
use crate::slots::Key;
use crate::transport::Transport;
use crate::units::NewUnit;
use reactor::io::Io;
use scsi::HomeRequest;
use scsi::storage::StoreError;
use std::sync::{Arc, mpsc};
use store::lane::{Op, Outcome, Submitted};

impl<I: Io> Units<I> {
    /// Begins to remove a unit.
    fn leave(&mut self, number: u32, done: Done) {
        if let Some(unit) = self.get_mut(number) {
            unit.leaving = Some(Leaving { done, stage: Stage::Ending });
            self.leaving.push(number);
        }
    }
}

impl<I: Io> Core<I> {
    /// Adds a unit. It is not shown to any initiator yet.
    pub(super) fn add_unit(&mut self, unit: NewUnit<I>, done: &Done) {
        self.units.insert(Unit::new(unit, self.me));
        let _ = done.send(true);
    }

    /// Reconfigures the units whose homes are here; `done` when every core has applied that.
    pub(super) fn configure(&mut self, units: &[Arc<scsi::Unit>], done: Done) {
        let is_here =
            |unit: &&Arc<scsi::Unit>| self.units.get(unit.index).is_some_and(|unit| unit.home.is_some());
        let here: Vec<Arc<scsi::Unit>> = units.iter().filter(is_here).cloned().collect();
        let number = self.changes.begin(done, here.len(), Vec::new(), Vec::new());
        for unit in here {
            self.ask_home(unit.index, Waiter::Configuration(number), HomeRequest::Configure(unit));
        }
        self.acknowledge_changes();
    }

    /// A unit was reconfigured.
    pub(super) fn configured(&mut self, change: u64) {
        self.changes.configured(change);
        self.acknowledge_changes();
    }

    /// Serves this from now on: sessions get their LUNs, and those that may not stay are ended. `taken`
    /// acknowledges that; `done` acknowledges that everything that had to end has ended.
    pub(super) fn change_served(&mut self, served: Arc<Served>, taken: &Done, done: Done) {
        let before = std::mem::replace(&mut self.served, served);
        let served = self.served.clone();
        for (unit, ledger) in &served.ledgers {
            if let Some(unit) = self.units.get_mut(*unit) {
                unit.ledger.get_or_insert_with(|| ledger.clone());
            }
        }
        self.stall_nanos = served.config.stall_timeout.as_nanos() as u64;
        self.poller.set_mode(mode(served.config.poll));
        self.shared.logins.set_max(served.config.logins_max);
        if before.config.portals != served.config.portals {
            self.listen_where_served();
        }
        let mut ended = Vec::new();
        for key in self.concerned() {
            match self.connections.get(key).and_then(|conn| conn.revocation_reason(&served)) {
                Some(why) => {
                    self.disconnect_with_notice(key, why);
                    ended.push(key);
                }
                None => {
                    self.catch_up_with_served(key);
                    self.request_logout(key);
                }
            }
        }
        for key in self.relimited() {
            self.set_limits(key);
        }
        self.serve_arrivals();
        if served.delta.interfaces_changed {
            ended.extend(self.change_interfaces());
        }
        if served.delta.exports_changed {
            self.serve_exports();
        }
        let _ = taken.send(true);
        if served.delta.concerns_sessions() {
            self.refuse_hidden();
            self.restrict_copies();
        }
        let begun = self.unentitled(&before);
        self.changes.begin(done, 0, ended, begun);
        self.acknowledge_changes();
    }

    /// Sessions that may be offered something different from the previous snapshot, or may not stay.
    fn concerned(&self) -> Vec<Key> {
        let Delta { targets_changed, unchanged, .. } = &self.served.delta;
        if !targets_changed {
            return Vec::new();
        }
        let is_concerned = |conn: &Connection| {
            let target = conn.facts.target_number();
            target.is_some_and(|number| !unchanged.contains(&number)) && !conn.has_ended()
        };
        self.keys_where(is_concerned)
    }

    /// Sessions of AoE with units whose limit has changed.
    fn relimited(&self) -> Vec<Key> {
        let units = &self.served.delta.relimited;
        if units.is_empty() {
            return Vec::new();
        }
        self.keys_where(|conn| {
            matches!(conn.machine, Transport::Aoe(_)) && conn.luns.iter().any(|lun| units.contains(&lun.unit))
        })
    }

    /// Copies outlive their commands and act on what their sessions may access: a unit that these may no
    /// longer use ends them.
    fn restrict_copies(&mut self) {
        for (_, task) in self.tasks.iter_mut() {
            if let Some(conn) = self.connections.get(task.origin) {
                task.reach_as(&conn.reach);
            }
        }
    }

    /// Ends tasks that wait at LUNs which are no longer shown to their sessions. Tasks of a removed unit end
    /// normally, before its release.
    fn refuse_hidden(&mut self) {
        let is_hidden = |task: &Task| {
            let conn = self.connections.get(task.origin);
            conn.and_then(|conn| conn.luns.get(task.lun)).is_some_and(|lun| lun.number == NO_LUN)
        };
        let is_meant =
            |task: &Task| !task.has_begun() && is_hidden(task) && self.served.units.contains(&task.unit);
        let meant = self.tasks.iter().filter(|(_, task)| is_meant(task));
        let meant: Vec<Key> = meant.map(|(key, _)| key).collect();
        meant.into_iter().for_each(|key| self.refuse_hidden_unit(key));
    }

    /// Acknowledges changes that are complete here: no command of a session that was ended for them, or that
    /// lost a right by them, can take effect any more; this core listens where it should; and units are
    /// reconfigured.
    pub(super) fn acknowledge_changes(&mut self) {
        if self.changes.under_way.is_empty() || (!self.stop.has_begun() && self.still_listens()) {
            return;
        }
        let (connections, tasks) = (&self.connections, &self.tasks);
        let is_settled = |key: &Key| connections.get(*key).is_none_or(Connection::is_settled);
        let has_ended = |key: &Key| tasks.get(*key).is_none();
        self.changes.under_way.retain(|change| {
            let is_due = change.units == 0
                && change.sessions.iter().all(is_settled)
                && change.tasks.iter().all(has_ended);
            if is_due {
                let _ = change.done.send(true);
            }
            !is_due
        });
    }

    /// The units still used by sessions that were ended for a change, or that lost a right to them.
    pub(super) fn report_awaited(&self, to: &mpsc::Sender<Vec<u32>>) {
        let sessions = self.changes.under_way.iter().flat_map(|change| &change.sessions);
        let sessions = sessions.filter_map(|key| self.connections.get(*key));
        let lingering = sessions.flat_map(|conn| &conn.closing.lingering);
        let unentitled = self.changes.under_way.iter().flat_map(|change| &change.tasks);
        let tasks = lingering.chain(unentitled).filter_map(|key| self.tasks.get(*key));
        let _ = to.send(tasks.flat_map(Task::units).collect());
    }

    /// Begins to remove a unit that is no longer shown.
    pub(super) fn remove_unit(&mut self, number: u32, done: Done) {
        self.units.leave(number, done);
        self.settle_leaving();
    }

    /// Continues with units that are being removed, as far as what had begun has ended.
    pub(super) fn settle_leaving(&mut self) {
        for number in self.units.leaving.clone() {
            match self.units.get(number).and_then(|unit| unit.leaving.as_ref()).map(|leaving| leaving.stage) {
                Some(Stage::Ending) if self.is_quiesced(number) => {
                    self.set_stage(number, Stage::Quiesced);
                    self.post(self.units[number].home_core, Message::UnitQuiesced { unit: number });
                }
                Some(Stage::Closing(is_flushed)) => self.close_unit(number, is_flushed),
                Some(Stage::Ending | Stage::Quiesced) | None => {}
            }
            self.flush_leaving(number);
        }
    }

    fn set_stage(&mut self, number: u32, to: Stage) {
        if let Some(Leaving { stage, .. }) = self.units.get_mut(number).and_then(|unit| unit.leaving.as_mut())
        {
            *stage = to;
        }
    }

    /// Whether nothing of the unit is in progress on this core.
    fn is_quiesced(&mut self, number: u32) -> bool {
        // Tasks that were aborted while they waited are still queued.
        self.open_gate(number);
        let unit = &mut self.units[number];
        let connections = &self.connections;
        let is_sending = |(key, batches): &(Key, u64)| {
            let stream = connections.get(*key).and_then(|conn| conn.stream.as_ref());
            stream.is_some_and(|stream| !stream.have_left(*batches))
        };
        unit.unsent.retain(is_sending);
        let mut quiescing = connections.iter().flat_map(|(_, conn)| &conn.quiescing);
        unit.unsent.is_empty()
            && !quiescing.any(|one| one.is_of(number))
            && unit.gate.is_idle()
            && unit.held.is_empty()
            && unit.lane.in_flight() == 0
            && !self.units.publications.iter().any(|publication| publication.is_of(number))
            && !self.tasks.iter().any(|(_, task)| task.touches(number))
    }

    /// A core is quiet.
    pub(super) fn unit_quiesced(&mut self, number: u32) {
        if let Some(home) = self.units.home_mut(number) {
            home.removal.quiesced_cores += 1;
        }
        self.settle_leaving();
    }

    /// At the home of a unit that is being removed, once nothing is in progress anywhere: makes durable what
    /// was acknowledged, and releases the unit.
    fn flush_leaving(&mut self, number: u32) {
        let cores = self.cores();
        let losses = self.units.get_mut(number).map_or(0, |unit| unit.lane.losses());
        let is_idle = |home: &&mut HomeUnit| home.removal.quiesced_cores == cores && home.is_idle();
        let Some(home) = self.units.home_mut(number).filter(is_idle) else { return };
        match home.removal.flush {
            // Requests that came meanwhile, for a lost nexus, have been answered.
            Flush::Over(is_flushed) => return self.drop_unit(number, is_flushed),
            Flush::Due => home.removal.flush = Flush::Begun(losses),
            Flush::Begun(_) => return,
        }
        if !self.units[number].takes_flush() {
            let unit = &mut self.units[number];
            let is_flushed = !unit.lane.is_dirty() || unit.report_flush(Err(StoreError::Unavailable));
            return self.drop_unit(number, is_flushed);
        }
        match self.units.lane(number).submit(&mut self.io, kind::LEAVING_FLUSH, &Op::Flush) {
            Submitted::Later => {}
            Submitted::Done(outcome) => self.leaving_flushed(number, outcome),
        }
    }

    /// The store of a unit that is being removed was flushed.
    pub(super) fn leaving_flushed(&mut self, number: u32, outcome: Outcome) {
        let losses = self.units[number].lane.losses();
        let stage = self.units.home_mut(number).map(|home| home.removal.flush);
        // A flush that succeeds covers nothing that was lost before.
        let has_lost = matches!(stage, Some(Flush::Begun(before)) if before != losses);
        let outcome = if has_lost { outcome.and(Err(StoreError::WriteFailed)) } else { outcome };
        let is_flushed = self.units[number].report_flush(outcome);
        if let Some(home) = self.units.home_mut(number) {
            home.removal.flush = Flush::Over(is_flushed);
        }
        self.flush_leaving(number);
    }

    fn drop_unit(&mut self, unit: u32, is_flushed: bool) {
        // The home must not publish later requests behind this one, to cores that have released the unit.
        if let Some(unit) = self.units.get_mut(unit) {
            unit.home = None;
        }
        for core in 0..self.cores() {
            self.post(core, Message::DropUnit { unit, is_flushed });
        }
    }

    /// Nothing is in progress anywhere: the unit is released.
    pub(super) fn unit_dropped(&mut self, number: u32, is_flushed: bool) {
        self.set_stage(number, Stage::Closing(is_flushed));
        self.close_unit(number, is_flushed);
    }

    /// Closes the unit's lane, which may have to log out first.
    fn close_unit(&mut self, number: u32, is_flushed: bool) {
        if !self.units[number].lane.close(&mut self.io) {
            return;
        }
        let Some(unit) = self.units.remove(number) else { return };
        for (_, conn) in self.connections.iter_mut() {
            conn.luns.iter_mut().filter(|lun| lun.unit == number).for_each(|lun| lun.unit = NO_UNIT);
        }
        let Unit { leaving, lane, .. } = unit;
        drop(lane);
        if let Some(Leaving { done, .. }) = leaving {
            let _ = done.send(is_flushed);
        }
    }
}

mod rights;

#[cfg(test)]
mod tests;
