//! How connections begin, end and close.

use super::{Activity, COLD_RESET, ClosingTarget, Connection, Phase, REINSTATED, STOPS};
use crate::core::lun::LunState;
use crate::core::session::session_name;
use crate::core::task::Task;
use crate::core::{Core, kind};
use crate::events::{Event, Events, Refusal};
use crate::message::{Facts, Message, Requester, Waiter, Way};
use crate::slots::Key;
use crate::transport::Transport;
use proto::aoe::target::Target;
use proto::services::{Down, Withdrawal};
use proto::time::Time;
use reactor::io::{Handle, Io, Tag};
use reactor::limited;
use reactor::stream::Stream;
use scsi::home::Aborted;
use scsi::{HomeRequest, NexusUnit};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::Level;
use tracing::field::DisplayValue;

/// How long a peer may take to receive what a closing connection still owes it.
const CUT_AFTER: Duration = Duration::from_secs(1);

/// What a log line calls a peer.
struct Peer<'a> {
    serial: u64,
    initiator: &'a str,
    from: Way,
    portal: Option<DisplayValue<SocketAddr>>,
    target: Option<&'a str>,
}

/// Logs an attempt that was refused before any login.
pub(in crate::core) fn log_refusal(from: &Way, reason: &str) {
    let portal = from.portal().map(tracing::field::display);
    limited!("refused logins", Level::WARN, portal, "{from}: refused, {reason}");
}

/// Logs that a session has ended, with what it did; or a login, with where it came from and what is known of
/// it.
fn log_end(facts: &Facts, now: Time, reason: &str) {
    let Facts { serial, way: from, tally, .. } = facts;
    let portal = from.portal().map(tracing::field::display);
    let session = facts.session.as_deref();
    let target = facts.target.as_ref().map(|target| target.name.as_str());
    let Some(session) = session.filter(|_| facts.is_admitted) else {
        let initiator = session.map(|session| session.initiator.as_str());
        return limited!(
            "logins that ended",
            Level::WARN,
            initiator,
            %from,
            portal,
            target,
            "login ended: {reason}"
        );
    };
    limited!(
        "ends of sessions", 200 at once, Level::INFO,
        initiator = %session.initiator,
        %from,
        portal,
        target,
        seconds = now.since(tally.since).as_secs(),
        commands = tally.commands,
        read_bytes = tally.read_bytes,
        write_bytes = tally.write_bytes,
        "session {serial} ended: {reason}"
    );
}

/// Publishes the event that a session, or a login, has ended.
fn report_end(events: &Events, conn: &Connection, now: Time, reason: &str) {
    let Connection { facts, machine, .. } = conn;
    let Some(session) = facts.peer().filter(|_| facts.is_admitted) else {
        return events
            .report(|| Event::LoginRefused { why: machine.refusal().unwrap_or(Refusal::Unfinished) });
    };
    events.report(|| Event::SessionEnded {
        session,
        transport: machine.name(),
        reason: reason.to_owned(),
        age: now.since(facts.tally.since),
        commands: facts.tally.commands,
        read_bytes: facts.tally.read_bytes,
        write_bytes: facts.tally.write_bytes,
    });
}

impl<I: Io> Core<I> {
    pub(in crate::core) fn install(
        &mut self,
        machine: Transport,
        facts: Facts,
        phase: Phase,
        socket: Handle,
        unread: Vec<u8>,
    ) -> Key {
        let me = &mut self.connections;
        let key = me.insert_with(|key| {
            let stream = Stream::new(socket, tag(kind::RECV, key), tag(kind::SEND, key), unread);
            Connection::new(machine, facts, phase, Some(stream))
        });
        self.mark_dirty(key);
        key
    }

    pub(in crate::core) fn set_phase(&mut self, key: Key, phase: Phase) {
        if let Some(conn) = self.connections.get_mut(key) {
            conn.phase = phase;
        }
        self.mark_dirty(key);
    }

    /// Counts the connection on core `to` from now on, so that the next placement includes it.
    pub(in crate::core) fn move_load(&mut self, key: Key, to: Option<usize>) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        if let Some(from) = std::mem::replace(&mut conn.load.core, to) {
            self.shared.loads[from].fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(to) = to {
            self.shared.loads[to].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn peer(&self, key: Key) -> Option<Peer<'_>> {
        let facts = &self.connections.get(key)?.facts;
        Some(Peer {
            serial: facts.serial,
            initiator: facts.session.as_deref().map_or("-", |session| session.initiator.as_str()),
            from: facts.way,
            portal: facts.way.portal().map(tracing::field::display),
            target: facts.target.as_ref().map(|target| target.name.as_str()),
        })
    }

    /// The peer violated the standard, and its session continues.
    pub(in crate::core) fn refused(&self, key: Key, reason: &str) {
        let Some(Peer { serial, initiator, from, portal, target }) = self.peer(key) else { return };
        limited!(
            "refusals of sessions", Level::WARN,
            initiator,
            %from,
            portal,
            target,
            "session {serial} refused: {reason}"
        );
    }

    /// An invariant of ours does not hold on one connection, which ends for it: the others continue.
    pub(in crate::core) fn faulty(&self, key: Key, what: &str) {
        let Some(Peer { serial, initiator, from, portal, target }) = self.peer(key) else { return };
        limited!(
            "bugs in Lunette", Level::ERROR,
            initiator,
            %from,
            portal,
            target,
            "session {serial} ends because of a bug in Lunette {}: {what}; please report this line and what the \
             initiator was doing",
            env!("CARGO_PKG_VERSION")
        );
    }

    /// The connection has ended: its tasks end, and it closes when nothing is in flight.
    pub(in crate::core) fn gone(&mut self, key: Key, reason: &str) {
        self.stay(key);
        let Some(conn) = self.connections.get_mut(key) else { return };
        if conn.phase == Phase::Closing {
            return;
        }
        let has_ended = conn.has_ended();
        conn.login.expires = None;
        conn.phase = Phase::Closing;
        conn.closing.cut_at = Some(self.io.now().after(CUT_AFTER));
        let reason = conn.closing.why.unwrap_or(reason);
        log_end(&conn.facts, self.io.now(), reason);
        report_end(&self.shared.events, conn, self.io.now(), reason);
        if let Way::Portal { from, .. } = conn.facts.way {
            self.shared.logins.ends(conn.facts.serial, from.ip());
        }
        if !has_ended {
            self.end_tasks(key);
        }
        self.note_answered(key);
        self.mark_dirty(key);
    }

    /// The session ends, and its initiator gets the response when none of its tasks can take effect any more.
    pub(in crate::core) fn leaving(&mut self, key: Key) {
        self.stay(key);
        if self.connections.get(key).is_some_and(|conn| !conn.has_ended()) {
            tracing::debug!(
                session = self.connections.get(key).map(|conn| conn.facts.serial),
                "the session is to end"
            );
            self.set_phase(key, Phase::Ending);
            self.end_tasks(key);
        }
    }

    /// None of the tasks of an ending session can take effect any more: its machine may respond.
    pub(in crate::core) fn part(&mut self, key: Key) {
        let Some(conn) = self.connections.get(key) else { return };
        if let Some(name) = session_name(&conn.facts) {
            self.shared.registry.settles(&name, conn.facts.serial);
        }
        let is_reinstated =
            self.endings.reinstatements.iter().any(|(serial, ..)| *serial == conn.facts.serial);
        self.down(Some(key), Down::Close);
        self.set_phase(key, Phase::Parting);
        self.parts(key);
        if is_reinstated {
            self.gone(key, REINSTATED);
        }
    }

    /// The session has ended: its tasks are aborted, and its nexus is lost with its last channel.
    fn end_tasks(&mut self, key: Key) {
        let Some(conn) = self.connections.get(key) else { return };
        let (serial, nexus) = (conn.facts.serial, conn.nexus);
        let name = session_name(&conn.facts);
        let units = conn.luns.iter().map(|lun| lun.unit);
        let units: Vec<u32> = units.filter(|unit| self.units.get(*unit).is_some()).collect();
        let tasks = conn.tasks.iter().flatten().filter_map(|(_, occupant)| occupant.task());
        // A copy that has outlived its command: only this session could query or abort it, and it must not
        // overwrite what its initiator writes when it is back. Sessions with such tasks do not move: all are
        // on this core.
        let detached = |task: &Task| task.origin == key && task.detached_nexus().is_some();
        let detached = self.tasks.iter().filter(|(_, task)| detached(task)).map(|(key, _)| key);
        let tasks: Vec<Key> = tasks.chain(detached).collect();
        for task in tasks {
            self.abort(task, Some(Aborted::Silently));
        }
        self.abort_immediate_reads(key, None, Aborted::Silently);
        self.forget_answers(key);
        let ours = |task: &Task| task.aborted && task.origin == key;
        let lingering: Vec<(Key, u32)> =
            self.tasks.iter().filter(|(_, task)| ours(task)).map(|(key, task)| (key, task.unit)).collect();
        let has_lost = name.is_some_and(|name| self.shared.registry.ends(&name, serial, nexus.0));
        // What it has requested of homes, such as a reset, must not end commands of the session that comes
        // after it.
        let mut homes = if self.stop.is_drained() { 0 } else { self.await_functions(key) };
        for unit in units.into_iter().filter(|_| has_lost) {
            // Others do not wait for a home that is held up, such as by a reset of a store that hangs; nor
            // for one that may be gone once this core has reported that nothing is left of the session.
            let may_hold = self.units[unit].view.policy.may_be_held_by(nexus)
                || lingering.iter().any(|(_, other)| *other == unit);
            let awaits = may_hold && !self.stop.is_drained();
            homes += usize::from(awaits);
            let who = if awaits { Waiter::Connection(key) } else { Waiter::Nobody };
            self.ask_home(unit, who, HomeRequest::NexusLost(nexus));
        }
        if let Some(conn) = self.connections.get_mut(key) {
            conn.closing.lingering = lingering.into_iter().map(|(task, _)| task).collect();
            conn.closing.homes = homes;
        }
    }

    /// A home has released what the nexus of an ended session held, or has done what its connection requested
    /// before.
    pub(in crate::core) fn home_released(&mut self, key: Key) {
        if let Some(conn) = self.connections.get_mut(key) {
            conn.closing.homes -= 1;
        }
        self.mark_dirty(key);
        self.answer_closing();
    }

    /// The connection has ended on this core, with nothing under way.
    pub(in crate::core) fn remove_connection(&mut self, key: Key) -> Option<Connection> {
        self.units.iter_mut().for_each(|unit| unit.unsent.retain(|(other, _)| *other != key));
        let conn = self.connections.remove(key)?;
        Some(Connection { activity: Activity::default(), ..conn })
    }

    pub(in crate::core) fn close_when_quiet(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        if !conn.is_quiet() || !conn.is_settled() {
            return;
        }
        self.move_load(key, None);
        let Some(mut conn) = self.remove_connection(key) else { return };
        if let Some(stream) = conn.stream {
            stream.close(&mut self.io);
        }
        self.notify_room_made(conn.closing.makes_room_at);
        let counts = conn.machine.aoe_mut().map(Target::take_counts).unwrap_or_default();
        conn.machine.close(self.io.arena());
        self.forget_session(key, conn.facts.way, counts);
        self.release_all_quiescing(key, &conn.quiescing);
        self.report_usage();
        if let Some(name) = session_name(&conn.facts) {
            let can_lose = |lun: &&LunState| self.units.get(lun.unit).is_some_and(|unit| unit.can_lose);
            let commands = conn.facts.tally.commands;
            let received = conn.luns.iter().filter(can_lose);
            let received = received.map(|lun| (lun.unit, lun.received_by(commands))).collect();
            self.shared.registry.remember(&name, received);
            self.shared.registry.leave(&name, conn.facts.serial);
        }
        for index in 0..self.endings.reinstatements.len() {
            let (serial, core, waiting_login) = self.endings.reinstatements[index];
            if serial == conn.facts.serial {
                self.post(core, Message::Reinstated { waiting_login });
            }
        }
        self.endings.reinstatements.retain(|(serial, ..)| *serial != conn.facts.serial);
        self.endings.disconnections.ended(conn.facts.serial);
        if conn.login.predecessors > 0 {
            for core in 0..self.cores() {
                // Behind the requests to end these, which went through the mailbox even to this core.
                self.mailbox.post(core, Message::LoginAbandoned { core: self.me, waiting_login: key });
            }
        }
    }

    /// An aborted task has really ended.
    pub(in crate::core) fn connection_settled(&mut self, task: Key) {
        for key in self.keys_where(|conn| conn.closing.lingering.contains(&task)) {
            if let Some(conn) = self.connections.get_mut(key) {
                conn.closing.lingering.retain(|other| *other != task);
            }
            self.mark_dirty(key);
        }
        self.answer_closing();
    }

    pub(in crate::core) fn tick_connection(&mut self, key: Key, now: Time) {
        if let Some(conn) = self.connections.get_mut(key) {
            if conn.closing.cut_at.is_some_and(|at| at <= now) {
                conn.shut_down(&mut self.io);
            }
            if conn.phase != Phase::Closing || conn.machine.is_device() {
                conn.machine.tick(now);
            }
            self.mark_dirty(key);
            self.poll_machine(key);
        }
    }

    /// Ends all sessions of the target except the requester's: the function is answered first, when no task
    /// of the others can take effect any more.
    pub(in crate::core) fn close_target(&mut self, target: usize, requester: Requester) {
        *self.endings.closings.entry(target).or_default() += 1;
        let mut keys = self.keys_where(|conn| conn.facts.target_number() == Some(target));
        keys.retain(|key| requester.core != self.me || requester.connection != *key);
        for key in &keys {
            self.end_for_all(*key, COLD_RESET);
        }
        self.endings.closing_targets.push(ClosingTarget { requester, connections: keys });
        self.answer_closing();
    }

    /// Ends all sessions that are shown a unit, as another gateway serves it now.
    pub(in crate::core) fn end_sessions_of(&mut self, unit: u32) {
        for key in self.keys_where(|conn| conn.luns.iter().any(|lun| lun.unit == unit)) {
            self.end_for_all(key, "another gateway serves its unit");
        }
    }

    /// Ends a connection like all others of its target; a login that waits for one is answered.
    fn end_for_all(&mut self, key: Key, reason: &str) {
        match self.connections.get(key).map(|conn| conn.phase) {
            Some(Phase::AwaitingReinstatement) => self.refuse(key, Withdrawal::Unavailable, reason),
            Some(_) | None => self.gone(key, reason),
        }
    }

    /// Ends a session that the configuration no longer admits: its initiator is notified where the protocol
    /// can.
    pub(in crate::core) fn disconnect_with_notice(&mut self, key: Key, reason: &'static str) {
        if let Some(conn) = self.connections.get_mut(key) {
            conn.closing.why = Some(reason);
        }
        match self.connections.get(key).map(|conn| conn.phase) {
            Some(Phase::Serving | Phase::Draining) => self.leaving(key),
            Some(Phase::Login | Phase::AwaitingReinstatement | Phase::Leaving(_) | Phase::Arriving) => {
                self.end_for_all(key, reason);
            }
            Some(Phase::Ending | Phase::Parting | Phase::Closing) | None => {}
        }
    }

    /// Asks the initiator of a session to log out, if its portal is drained: once, unless an earlier deadline
    /// than before applies. The machine ends what has not logged out in time.
    pub(in crate::core) fn request_logout(&mut self, key: Key) {
        let now = self.io.now();
        let Some(conn) = self.connections.get_mut(key) else { return };
        let portal = conn.facts.portal().and_then(|number| self.served.portal(number));
        let Some(within) = portal.and_then(|(_, portal)| portal.drain) else { return };
        let (by, is_here) =
            (now.after(within), matches!(conn.phase, Phase::Arriving | Phase::Serving | Phase::Draining));
        if !is_here || conn.facts.leaves_by.is_some_and(|before| before <= by) {
            return;
        }
        conn.facts.leaves_by = Some(by);
        self.stay(key);
        let within_seconds = u16::try_from(within.as_secs()).unwrap_or(u16::MAX).max(1);
        if let Some(Peer { serial, initiator, from, portal, target }) = self.peer(key) {
            limited!(
                "sessions that are asked to log out", 200 at once, Level::INFO,
                initiator,
                %from,
                portal,
                target,
                "session {serial} is asked to log out within {within_seconds} s: its portal is being drained"
            );
        }
        self.down(Some(key), Down::RequestLogout { within_seconds });
    }

    fn answer_closing(&mut self) {
        self.acknowledge_changes();
        let connections = &self.connections;
        let is_settled = |key: &Key| connections.get(*key).is_none_or(Connection::is_settled);
        let is_over = |closing: &ClosingTarget| closing.connections.iter().all(is_settled);
        let over: Vec<ClosingTarget> =
            self.endings.closing_targets.extract_if(.., |closing| is_over(closing)).collect();
        for ClosingTarget { requester, .. } in over {
            self.post(requester.core, Message::TargetClosed(requester));
        }
    }

    pub(in crate::core) fn request_all_logouts(&mut self, within_seconds: u16) {
        for key in self.keys_where(|conn| matches!(conn.phase, Phase::Arriving | Phase::Serving)) {
            self.down(Some(key), Down::RequestLogout { within_seconds });
        }
        for key in self.keys_where(|conn| conn.phase == Phase::Login) {
            self.down(Some(key), Down::Close);
        }
    }

    /// The time to log out has passed: what is left ends. Sessions end as usual, with their machines' last
    /// output; how long they wait for a store is limited there.
    pub(in crate::core) fn close_all(&mut self) {
        for key in self.keys_where(|_| true) {
            match self.connections.get(key).map(|conn| conn.phase) {
                Some(Phase::Arriving | Phase::Serving | Phase::Draining) => self.leaving(key),
                Some(Phase::Login | Phase::AwaitingReinstatement | Phase::Leaving(_) | Phase::Parting) => {
                    self.end_for_all(key, STOPS);
                }
                Some(Phase::Ending | Phase::Closing) | None => {}
            }
        }
    }

    pub(in crate::core) fn keys_where(&self, which: impl Fn(&Connection) -> bool) -> Vec<Key> {
        self.connections.iter().filter(|(_, conn)| which(conn)).map(|(key, _)| key).collect()
    }

    /// The nexus that a task belongs to.
    pub(in crate::core) fn nexus_of<'a>(&'a self, task: &'a Task) -> Option<&'a NexusUnit> {
        let Some(connection) = task.connection else { return task.detached_nexus() };
        let conn = self.connections.get(connection)?;
        conn.luns.iter().find(|lun| lun.unit == task.unit).map(|lun| &lun.nexus)
    }
}

fn tag(kind: u64, key: Key) -> Tag {
    Tag(kind << kind::SHIFT | u64::from(key.index & 0x0fff_ffff) << 32 | u64::from(key.generation))
}
