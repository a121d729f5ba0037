//! Connections that move to another core: after their login, and later when moving a running session evens
//! out the load.
//!
//! A running session is drained first. Only data that its tasks still await is read, and successful responses
//! are held back: an initiator that has as much in flight as it wants then sends nothing new. When no task is
//! left, the responses are sent together; when they have been sent, and no receive is in flight, the
//! connection is a plain value. The receive completes with the initiator's next command, which stays unread
//! for the other core. A session that does not get there soon stays.
//!
//! Nothing misses a session that moves:
//! - Nothing is addressed to a task or function of it (answers of homes, operations of stores): it has none.
//! - A reinstatement is addressed to the core that the registry names. The entry is changed and the
//!   connection posted under one lock: a core that reads the new entry posts behind the connection, and one
//!   that has read the old entry has taken it over, so that the session ends where it is.
//! - What a unit's home publishes goes to every core, once all have applied what came before: the two cores
//!   differ by one at most. So it is when the connection arrives, too: the old core posts it before it confirms
//!   that it has applied the next publication, without which there is none after that, and a mailbox is one
//!   queue. If the new core is ahead, it notifies the nexus of what it missed; if the old one was, the session
//!   waits until the new core has caught up, and is not notified twice. It has no task that the publication
//!   could abort.
//! - What is served changes on every core, one after another. A session from a core that was ahead waits; one
//!   from a core that was behind gets its LUNs again, or ends here if it may no longer exist.
//! - TARGET COLD RESET goes to every core, and each counts them: a session arrives with the count of the core
//!   that it left.
//! - The daemon's stop goes to every core. Once notified, a core moves no more sessions. One that arrives at
//!   such a core is asked to log out there, or is ended before any byte of it is processed if the core had
//!   already reported that it has no sessions left.

use super::Drain;
use crate::balance::{Due, Session};
use crate::core::connection::{COLD_RESET, Connection, MADE_ROOM, Phase, REINSTATED, STOPS};
use crate::core::lun::LunState;
use crate::core::session::session_name;
use crate::core::task::to_wire;
use crate::core::{Core, LOGOUT_SECONDS};
use crate::message::{Facts, Message, MigratingConnection, Way};
use crate::slots::Key;
use proto::services::{self, Down, TaskId};
use proto::time::Time;
use reactor::io::Io;
use scsi::Ending;
use scsi::attention::UnitAttention;
use scsi::command::Status;
use std::time::Duration;

/// How long a session may take to become idle before the move is abandoned.
const DRAIN_WITHIN: Duration = Duration::from_millis(100);

/// How long a session that has moved, or could not, stays where it is.
const REST: Duration = Duration::from_secs(10);

impl<I: Io> Core<I> {
    /// Begins to move a running session to another core, once it becomes idle. False: not now.
    pub(in crate::core) fn begin_move(&mut self, key: Key, to: usize) -> bool {
        if to == self.me || self.migration.drain.is_some() || self.stop.has_begun() || !self.may_move(key) {
            return false;
        }
        let until = self.io.now().after(DRAIN_WITHIN);
        self.migration.drain = Some(Drain { key, until, to, endings: Vec::new() });
        self.set_phase(key, Phase::Draining);
        true
    }

    /// The same for one of this core's sessions.
    pub(crate) fn move_nth(&mut self, nth: usize, to: usize) -> bool {
        let sessions = self.keys_where(|conn| conn.phase == Phase::Serving);
        sessions.get(nth).is_some_and(|key| self.begin_move(*key, to))
    }

    /// Moves a session when this core is much busier than another.
    pub(in crate::core) fn balance(&mut self, now: Time) {
        let worked = || self.io.processor_time().saturating_sub(self.poller.spun());
        match self.migration.meter.tick(now, worked, &self.shared.board, self.me) {
            Due::Nothing => {}
            Due::Count => {
                let connections = &mut self.connections;
                self.active.each_busy(connections, |conn| {
                    conn.load.past_work = std::mem::take(&mut conn.load.work);
                });
            }
            Due::Decide => {
                let keys = self.keys_where(|conn| conn.phase == Phase::Serving && conn.load.past_work > 0);
                let blocked: Vec<Key> = self
                    .tasks
                    .iter()
                    .filter(|(_, task)| task.blocks_move())
                    .map(|(_, task)| task.origin)
                    .collect();
                let load = |key: &Key| self.session_load(*key, now, &blocked);
                let sessions: Vec<Session> = keys.iter().map(load).collect();
                if let Some((index, to)) =
                    self.migration.meter.choose_move(&self.shared.board, self.me, &sessions)
                {
                    self.begin_move(keys[index], to);
                }
            }
        }
    }

    fn session_load(&self, key: Key, now: Time, blocked: &[Key]) -> Session {
        let Some(conn) = self.connections.get(key) else { return Session { work: 0, cores: Vec::new() } };
        let moves = conn.machine.is_movable() && conn.load.rests_until <= now && !blocked.contains(&key);
        let cores = match conn.facts.portal() {
            Some(portal) if moves => self.served.cores_of(portal),
            Some(_) | None => &[],
        };
        let cores = cores.iter().filter_map(|core| self.core_index(*core)).collect();
        Session { work: conn.load.past_work, cores }
    }

    fn may_move(&self, key: Key) -> bool {
        let serves = |conn: &Connection| {
            conn.phase == Phase::Serving && conn.facts.target.is_some() && conn.machine.is_movable()
        };
        self.connections.get(key).is_some_and(serves)
            && !self.functions.are_of(key)
            && !self.tasks.iter().any(|(_, task)| task.origin == key && task.blocks_move())
    }

    /// Whether a response must not be sent before its connection is at rest. A failed command may have data
    /// to come, which can be discarded only once the initiator gets the status.
    pub(in crate::core) fn holds_back(
        &mut self,
        connection: Option<Key>,
        task: TaskId,
        ending: Ending,
    ) -> bool {
        let Some(drain) = &mut self.migration.drain else { return false };
        let holds = Some(drain.key) == connection && ending.status == Status::Good;
        if holds {
            drain.endings.push((task, to_wire(ending)));
            // It may have been the last that the drain waited for, in a turn in which nothing arrives for the
            // connection.
            let key = drain.key;
            self.mark_dirty(key);
        }
        holds
    }

    /// The end of a turn for a connection that is being drained.
    pub(in crate::core) fn drain_on(&mut self, key: Key) {
        let Some(drain) = self.migration.drain.as_mut().filter(|drain| drain.key == key) else { return };
        let is_busy = |conn: &Connection| {
            conn.is_in_payload() || conn.immediate_reads(None).next().is_some() || !conn.answers.have_left()
        };
        if self.connections.get(key).is_some_and(is_busy)
            || self.tasks.iter().any(|(_, task)| task.origin == key)
        {
            return;
        }
        let (to, endings) = (drain.to, std::mem::take(&mut drain.endings));
        self.release(key, endings);
        self.set_phase(key, Phase::Leaving(to));
    }

    fn release(&mut self, key: Key, endings: Vec<(TaskId, services::Ending)>) {
        for (task, ending) in endings {
            self.down(Some(key), Down::End { task, ending });
        }
    }

    /// Abandons the drain of a connection, if it was being drained: it is served here.
    pub(in crate::core) fn stay(&mut self, key: Key) {
        let Some(drain) = self.migration.drain.take_if(|drain| drain.key == key) else { return };
        self.release(key, drain.endings);
        self.set_phase(key, Phase::Serving);
    }

    /// Cancels the move of a session, if one is under way: it is served here.
    pub(in crate::core) fn cancel_move(&mut self) {
        if let Some(key) = self.migration.drain.as_ref().map(|drain| drain.key) {
            self.stay(key);
        }
    }

    /// Abandons a drain that takes too long.
    #[cold]
    pub(in crate::core) fn end_drain(&mut self, now: Time) {
        let Some(key) = self.migration.drain.as_ref().map(|drain| drain.key) else { return };
        self.stay(key);
        if let Some(conn) = self.connections.get_mut(key) {
            conn.load.rests_until = now.after(REST);
            tracing::debug!("session {} stays on its core: it did not become idle", conn.facts.serial);
        }
    }

    /// The connection is at rest: it moves to its core, unless its session was reinstated meanwhile.
    pub(in crate::core) fn leave(&mut self, key: Key, to: usize) {
        let Some(conn) = self.connections.get(key) else { return };
        let name = session_name(&conn.facts);
        let (Some(session), Some(target), Some(name)) =
            (conn.facts.session.clone(), conn.facts.target.clone(), name)
        else {
            return self.leave_early(key, to);
        };
        if self.stop.has_begun() {
            return self.serve_here(key);
        }
        let (serial, from) = (conn.facts.serial, conn.facts.way);
        let was_served = self.migration.drain.take_if(|drain| drain.key == key).is_some();
        let shared = self.shared.clone();
        if !shared.registry.hand_over(&name, serial, to, || self.send_off(key, to)) {
            return self.gone(key, REINSTATED);
        }
        if was_served {
            let cores = &shared.config.cores;
            reactor::limited!(
                "sessions that moved",
                tracing::Level::INFO,
                initiator = %session.initiator,
                %from,
                target = target.name,
                "session {serial} moved from core {} to core {}",
                cores[self.me],
                cores[to]
            );
        }
    }

    /// The same before it has logged in.
    fn leave_early(&mut self, key: Key, to: usize) {
        let Some(Facts { serial, way, .. }) = self.connections.get(key).map(|conn| &conn.facts) else {
            return;
        };
        let Way::Portal { from, .. } = *way else { return };
        let (shared, serial) = (self.shared.clone(), *serial);
        if self.stop.has_begun() {
            self.gone(key, STOPS);
        } else if !shared.logins.hand_over(serial, from.ip(), to, || self.send_off(key, to)) {
            self.gone(key, MADE_ROOM);
        }
    }

    fn send_off(&mut self, key: Key, to: usize) {
        self.move_load(key, Some(to));
        let Some(mut conn) = self.remove_connection(key) else { return };
        assert!(conn.is_vacant(), "what is in flight ends before its connection moves");
        conn.luns.iter_mut().for_each(LunState::leave_core);
        let stream = conn.stream.expect("what a device carries does not move");
        let (socket, unread) = stream.detach(&mut self.io);
        let closings = conn.facts.target.as_ref().map_or(0, |target| self.endings.closings(target));
        let migrating = MigratingConnection {
            machine: conn.machine,
            socket,
            unread,
            facts: conn.facts,
            luns: conn.luns,
            lun_list: conn.lun_list,
            served: conn.served,
            reach: conn.reach,
            closings,
        };
        self.post(to, Message::Migrate(Box::new(migrating)));
    }

    /// A connection that has moved here.
    pub(in crate::core) fn accept_migrating(&mut self, migrating: MigratingConnection) {
        let MigratingConnection { machine, socket, unread, facts, luns, lun_list, served, reach, closings } =
            migrating;
        let target = facts.target.clone();
        let phase = if target.is_some() { Phase::Arriving } else { Phase::Login };
        let key = self.install(machine, facts, phase, socket, unread);
        let Some(conn) = self.connections.get_mut(key) else { return };
        // The core that sent it here has counted it already.
        conn.load.core = Some(self.me);
        if phase == Phase::Login {
            if self.stop.has_begun() {
                self.gone(key, STOPS);
            }
            return;
        }
        (conn.luns, conn.lun_list, conn.served, conn.reach) = (luns, lun_list, served, reach);
        // Units may have been released here as well.
        let units = &self.units;
        conn.luns.iter_mut().filter(|lun| units.get(lun.unit).is_none()).for_each(LunState::forget);
        conn.load.rests_until = self.io.now().after(REST);
        let why = conn.revocation_reason(&self.served);
        self.catch_up_with_served(key);
        self.catch_up(key);
        self.serve_arrivals();
        if target.is_some_and(|target| closings < self.endings.closings(&target)) {
            self.gone(key, COLD_RESET);
        } else if let Some(why) = why {
            self.disconnect_with_notice(key, why);
        } else if self.stop.is_drained() {
            // The other cores have been notified that no more writes come from here.
            self.gone(key, STOPS);
        } else if self.stop.has_begun() {
            self.down(Some(key), Down::RequestLogout { within_seconds: LOGOUT_SECONDS });
        } else {
            self.request_logout(key);
        }
    }

    /// The session has just logged in, and is served on this core.
    pub(in crate::core) fn serve_here(&mut self, key: Key) {
        self.set_phase(key, Phase::Serving);
        if self.stop.has_begun() {
            self.down(Some(key), Down::RequestLogout { within_seconds: LOGOUT_SECONDS });
        } else {
            self.request_logout(key);
        }
    }

    /// Notifies a session that has moved here of what this core had already applied, and the one that it left
    /// had not.
    fn catch_up(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        for lun in &mut conn.luns {
            let Some(unit) = self.units.get(lun.unit) else { continue };
            let policy = &unit.view.policy;
            if lun.nexus.access_epoch >= policy.epoch {
                continue;
            }
            debug_assert_eq!(
                lun.nexus.access_epoch + 1,
                policy.epoch,
                "cores differ by one publication at most"
            );
            lun.nexus.sync(policy);
            let attentions = unit.published.iter().flat_map(|publish| &publish.attentions);
            // It had no commands that could have been cleared.
            for (who, attention) in attentions.filter(|(_, what)| *what != UnitAttention::CommandsCleared) {
                if who.includes(&lun.nexus) {
                    lun.nexus.establish(*attention);
                }
            }
        }
    }

    /// Serves the sessions that came from cores that were ahead, once this one has caught up.
    pub(in crate::core) fn serve_arrivals(&mut self) {
        let (units, now) = (&self.units, self.served.epoch);
        let is_ahead = |lun: &LunState| {
            units.get(lun.unit).is_some_and(|unit| lun.nexus.access_epoch > unit.view.policy.epoch)
        };
        let is_level = |conn: &Connection| {
            conn.facts.epoch <= now
                && conn.served.is_none_or(|epoch| epoch <= now)
                && !conn.luns.iter().any(is_ahead)
        };
        let level = self.keys_where(|conn| conn.phase == Phase::Arriving && is_level(conn));
        for key in level {
            self.set_phase(key, Phase::Serving);
        }
    }

    #[cfg(test)]
    pub(in crate::core) fn move_serial(&mut self, serial: u64, to: usize) {
        let key = self.connections.iter().find(|(_, conn)| conn.facts.serial == serial).map(|(key, _)| key);
        if let Some(key) = key {
            self.begin_move(key, to);
        }
    }
}

#[cfg(test)]
mod tests;
