//! Connections on this core: accepted, logged in, moved to their home core, served, closed.

use super::answers::Answers;
use super::buffer::{Buffers, Share};
use super::immediate_read::Occupant;
use super::quiesce::Quiescing;
use super::session::{LunState, session_name};
use super::stall::Pace;
use super::task::Task;
use super::{Core, kind};
use crate::message::{Asker, Facts, Message, Waiter, Way};
use crate::slots::{Key, Slots};
use crate::transport::Transport;
use config::Config;
use proto::aoe::target::Target;
use proto::services::{Down, TaskId, Withdrawal};
use proto::time::Time;
use reactor::io::{Handle, Io, Tag};
use reactor::limited;
use reactor::stream::{InFlight, Stream};
use scsi::home::Aborted;
use scsi::nexus::Reach;
use scsi::{HomeRequest, NexusId, NexusUnit};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::Level;
use tracing::field::DisplayValue;
use wire::Span;

/// One connection on its core.
pub(super) struct Connection {
    pub(super) machine: Transport,
    /// `None`: an RDMA device carries it.
    pub(super) stream: Option<Stream>,
    pub(super) facts: Facts,
    /// The I_T nexus.
    pub(super) nexus: NexusId,
    /// LUNs that the session sees, by number.
    pub(super) luns: Vec<LunState>,
    /// Their eight bytes, for REPORT LUNS.
    pub(super) lun_list: Vec<u64>,
    /// The snapshot of what is served that they are of, once the session has got them.
    pub(super) served: Option<u64>,
    /// How it reaches units, by their numbers, for EXTENDED COPY.
    pub(super) reach: Vec<(u32, Reach)>,
    /// Tasks by the transport's slot.
    tasks: Vec<Option<(u16, Occupant)>>,
    /// What needs neither task nor slot.
    pub(super) answers: Answers,
    pub(super) phase: Phase,
    /// The initiator has begun a login, and that is noted.
    pub(super) has_begun: bool,
    pub(super) to_serve: bool,
    pub(super) to_flush: bool,
    /// When a closing connection is cut off, whether or not the peer has taken what was on its way.
    cut_at: Option<Time>,
    /// Aborted tasks whose storage operation or home has not come back: of a connection that ends, or of AoE.
    pub(super) lingering: Vec<Key>,
    /// Answers of homes that its end waits for: they have yet to forget what its nexus, which is lost, held, or to do what its
    /// task management functions ask for.
    homes: usize,
    /// Sessions that this one takes the place of, and that are not over yet.
    pub(super) predecessors: usize,
    /// The core whose load counts it.
    pub(super) counted: Option<usize>,
    /// The portal where a newcomer waits for its descriptor.
    pub(super) makes_room_at: Option<usize>,
    /// When a discovery session is ended.
    pub(super) expires: Option<Time>,
    /// What its tasks hold of the core's buffers.
    pub(super) share: Share,
    /// Its initiator may send nothing until there is room for data that comes unasked.
    pub(super) is_narrow: bool,
    /// What tasks that have ended have left with the transport.
    pub(super) quiescing: Vec<Quiescing>,
    /// How much data of its commands is on its way, and how fast it moves.
    pub(super) pace: Pace,
    /// When a frame of AoE last arrived.
    pub(super) framed_at: Time,
    /// What it did since the window of time began, and in the one before.
    pub(super) work: u64,
    pub(super) past_work: u64,
    /// It has moved, or could not: it is left alone so long.
    pub(super) rests_until: Time,
}

/// What is left on this core of the sessions of a target that TARGET COLD RESET has ended.
#[derive(Debug)]
struct ClosingTarget {
    asker: Asker,
    /// Their connections.
    connections: Vec<Key>,
}

/// Ends of sessions that somebody waits for.
#[derive(Debug)]
pub(super) struct Endings {
    /// How many times all sessions of each target were ended here.
    pub(super) closings: Vec<u64>,
    /// Targets whose sessions were ended, and of which something is left here.
    closing_targets: Vec<ClosingTarget>,
    /// Connections that end because their session is reinstated: serial number, and who waits for it where.
    pub(super) reinstatements: Vec<(u64, usize, Key)>,
}

impl Endings {
    pub(super) fn new(targets: usize) -> Endings {
        Endings { closings: vec![0; targets], closing_targets: Vec::new(), reinstatements: Vec::new() }
    }
}

/// What a command is work for apart from its data, in bytes of data.
const COMMAND_WORK: u64 = 16 << 10;

/// How long a peer may take to receive the last that a closing connection owes.
const CUT_AFTER: Duration = Duration::from_secs(1);

/// Why a session ends.
pub(super) const REINSTATED: &str = "its session was reinstated by a new login";
pub(super) const OVERTAKEN: &str = "a newer login of the same session waits in its place";
pub(super) const NO_ROOM: &str = "the target has no room for another session (sessions_max)";
pub(super) const MADE_ROOM: &str = "it made room for others that log in (logins_max)";
pub(super) const PARTED: &str = "it was over, and its connection made room for others";
pub(super) const STOPS: &str = "the daemon stops";
pub(super) const COLD_RESET: &str = "an initiator asked for TARGET COLD RESET";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Logging in, or a discovery session.
    Login,
    /// Its login is granted, and answered when none of the sessions that it takes the place of can write any more.
    Parked,
    /// On its way to that core as soon as nothing is in flight.
    Leaving(usize),
    /// Came here from another core, which has applied what this one has yet to apply.
    Arriving,
    /// Serving.
    Serving,
    /// Is to move: what is in flight ends, and nothing new is taken that this does not need.
    Draining,
    /// The session ends: waits until none of its tasks can take effect any more.
    Ending,
    /// What its machine says last is on its way.
    Parting,
    /// Over; waits until nothing is in flight.
    Closing,
}

impl Connection {
    pub(super) fn new(machine: Transport, facts: Facts, phase: Phase, stream: Option<Stream>) -> Self {
        Connection {
            machine,
            stream,
            nexus: NexusId(facts.serial),
            facts,
            luns: Vec::new(),
            lun_list: Vec::new(),
            served: None,
            reach: Vec::new(),
            tasks: Vec::new(),
            answers: Answers::default(),
            phase,
            has_begun: false,
            to_serve: false,
            to_flush: false,
            cut_at: None,
            lingering: Vec::new(),
            homes: 0,
            predecessors: 0,
            counted: None,
            makes_room_at: None,
            expires: None,
            share: Share::default(),
            is_narrow: false,
            quiescing: Vec::new(),
            pace: Pace::default(),
            framed_at: Time(0),
            work: 0,
            past_work: 0,
            rests_until: Time(0),
        }
    }

    /// Something happened to it: it is fed, and then may owe something.
    pub(super) fn mark_dirty(&mut self, key: Key, to_serve: &mut Vec<Key>, to_flush: &mut Vec<Key>) {
        if !std::mem::replace(&mut self.to_serve, true) {
            to_serve.push(key);
        }
        if !std::mem::replace(&mut self.to_flush, true) {
            to_flush.push(key);
        }
    }

    /// Its initiator may send no more than there is room for.
    pub(super) fn limit_window(&mut self, key: Key, whole_bytes: u64, buffers: &mut Buffers) {
        if self.machine.limit_window(self.share.window(whole_bytes))
            && !std::mem::replace(&mut self.is_narrow, true)
        {
            buffers.narrow.push(key);
            buffers.room_seen = buffers.room_seen.min(whole_bytes);
        }
    }

    /// Who is in a slot of the transport.
    pub(super) fn occupant(&self, wire: TaskId) -> Option<Occupant> {
        let (generation, occupant) = self.tasks.get(usize::from(wire.slot)).copied().flatten()?;
        (generation == wire.generation).then_some(occupant)
    }

    /// The task in a slot of the transport.
    pub(super) fn task(&self, wire: TaskId) -> Option<Key> {
        self.occupant(wire)?.task()
    }

    pub(super) fn occupy(&mut self, wire: TaskId, occupant: Occupant) {
        let slot = usize::from(wire.slot);
        if self.tasks.len() <= slot {
            self.tasks.resize(slot + 1, None);
        }
        self.tasks[slot] = Some((wire.generation, occupant));
    }

    /// Whose data has left; a READ whose data was lent ends with it.
    pub(super) fn pushed(&mut self, wire: TaskId) -> Option<Occupant> {
        let occupant = self.occupant(wire)?;
        if let Occupant::ImmediateRead { moving, .. } = occupant {
            self.tasks[usize::from(wire.slot)] = None;
            self.pace.end(moving);
        }
        Some(occupant)
    }

    /// READs without a task for this unit, or for any: what was lent by it, or read to which buffer.
    pub(super) fn immediate_reads(
        &self,
        unit: Option<u32>,
    ) -> impl Iterator<Item = (TaskId, u32, Option<Span>)> {
        (0..).zip(&self.tasks).filter_map(move |(slot, occupant)| match occupant {
            Some((generation, Occupant::ImmediateRead { unit: of, buffer, .. }))
                if unit.is_none_or(|unit| unit == *of) =>
            {
                Some((TaskId { slot, generation: *generation }, *of, *buffer))
            }
            Some(_) | None => None,
        })
    }

    pub(super) fn vacate(&mut self, wire: TaskId) {
        // What was lent ends as if it had left.
        if let Some(Occupant::Task(_)) = self.pushed(wire) {
            self.tasks[usize::from(wire.slot)] = None;
        }
    }

    /// Whether the initiator should have taken data that was lent.
    pub(super) fn is_lent_late(&self, now: Time) -> bool {
        let send = self.in_flight();
        let lent = self.tasks.iter().flatten().filter_map(|(_, occupant)| match occupant {
            Occupant::ImmediateRead { moving, .. } => Some(*moving),
            Occupant::Task(_) => None,
        });
        lent.chain(self.answers.moving()).any(|moving| self.pace.is_late(moving, send, now))
    }

    /// Whether data must be copied before it is sent: with a data digest, the bytes that are summed must be the
    /// bytes that are sent, even while another initiator overwrites the block; and a device knows no store's memory.
    pub(super) fn copies_reads(&self) -> bool {
        self.machine.sums_payload() || self.machine.is_device()
    }

    /// Whether the initiator owes it the rest of what it has begun to send, or was asked for.
    pub(super) fn awaits_data(&self, tasks: &Slots<Task>) -> bool {
        let awaits = |key: Key| tasks.get(key).is_some_and(Task::awaits_data);
        let mut own = self.tasks.iter().flatten().filter_map(|(_, occupant)| occupant.task());
        self.is_in_payload() || own.any(awaits)
    }

    /// Whether a part of a payload was read, and not yet all of it.
    pub(super) fn is_in_payload(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_in_payload)
    }

    /// Whether all that it owes has left.
    pub(super) fn has_sent(&self) -> bool {
        !self.machine.owes() && self.stream.as_ref().is_none_or(Stream::has_sent)
    }

    /// Whether it serves, and has nothing to do before something comes.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_stream_at_rest = self.stream.as_ref().is_some_and(Stream::is_at_rest);
        self.phase == Phase::Serving && is_stream_at_rest && self.machine.is_at_rest()
    }

    /// Whether nothing is in flight: it may be closed.
    fn is_quiet(&mut self) -> bool {
        let is_over = self.machine.device_mut().is_none_or(|channel| channel.is_over())
            && self.machine.aoe_mut().is_none_or(|target| target.is_idle());
        is_over && self.stream.as_ref().is_none_or(Stream::quiet)
    }

    pub(super) fn in_flight(&self) -> Option<InFlight> {
        self.stream.as_ref().and_then(Stream::in_flight)
    }

    /// Ends it: what is in flight ends soon.
    pub(super) fn shut_down<I: Io>(&mut self, io: &mut I) {
        self.machine.shut_down(self.stream.as_mut(), io);
    }

    /// Whether nothing of its session, which has ended, can take effect any more.
    pub(super) fn is_settled(&self) -> bool {
        self.lingering.is_empty() && self.homes == 0
    }

    /// Whether its session has come to its end.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::Parting | Phase::Closing)
    }

    /// Whether it has neither a task nor data that was lent.
    pub(super) fn is_vacant(&self) -> bool {
        self.tasks.iter().all(Option::is_none) && self.answers.have_left()
    }

    /// Whether a deadline has passed.
    pub(super) fn is_due(&self, now: Time) -> bool {
        let deadline = if self.phase == Phase::Closing { self.cut_at } else { self.machine.deadline() };
        deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// Counts a command that has come, for the log and as work of its connection.
pub(super) fn note_command(facts: &mut Facts, work: &mut u64, read_bytes: u32, write_bytes: u32) {
    facts.tally.add(read_bytes, write_bytes);
    *work += COMMAND_WORK + u64::from(read_bytes) + u64::from(write_bytes);
}

/// Whom a line of the log is about.
struct Peer<'a> {
    serial: u64,
    initiator: &'a str,
    from: Way,
    portal: Option<DisplayValue<SocketAddr>>,
    target: Option<&'a str>,
}

/// Logs that somebody may not even log in.
pub(super) fn log_refusal(from: &Way, reason: &str) {
    let portal = from.portal().map(tracing::field::display);
    limited!("refused logins", Level::WARN, portal, "{from}: refused, {reason}");
}

/// Logs that a session has ended, and what it did; or a login, and where, and whose if that is known.
fn log_end(facts: &Facts, config: &Config, now: Time, reason: &str) {
    let Facts { serial, way: from, tally, .. } = facts;
    let portal = from.portal().map(tracing::field::display);
    let session = facts.session.as_deref();
    let target = facts.target.map(|target| config.targets[target].name.as_str());
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

impl<I: Io> Core<I> {
    pub(super) fn install(
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

    pub(super) fn set_phase(&mut self, key: Key, phase: Phase) {
        if let Some(conn) = self.connections.get_mut(key) {
            conn.phase = phase;
        }
        self.mark_dirty(key);
    }

    /// Counts the connection on core `to` from now on, so that what is placed next knows of it.
    pub(super) fn move_load(&mut self, key: Key, to: Option<usize>) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        if let Some(from) = std::mem::replace(&mut conn.counted, to) {
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
            target: facts.target.map(|target| self.shared.config.targets[target].name.as_str()),
        })
    }

    /// The peer broke the standard and is served on.
    pub(super) fn refused(&self, key: Key, reason: &str) {
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

    /// An invariant of ours does not hold on one connection, which ends for it: the others go on.
    pub(super) fn faulty(&self, key: Key, what: &str) {
        let Some(Peer { serial, initiator, from, portal, target }) = self.peer(key) else { return };
        limited!(
            "faults of this program", Level::ERROR,
            initiator,
            %from,
            portal,
            target,
            "session {serial} ends by a fault of this program, Lunette {}: {what}; please report this line and what the \
             initiator was doing",
            env!("CARGO_PKG_VERSION")
        );
    }

    /// The connection has ended: its tasks end, and it closes when nothing is in flight.
    pub(super) fn gone(&mut self, key: Key, reason: &str) {
        self.stay(key);
        let Some(conn) = self.connections.get_mut(key) else { return };
        if conn.phase == Phase::Closing {
            return;
        }
        let has_ended = conn.has_ended();
        conn.expires = None;
        conn.phase = Phase::Closing;
        conn.cut_at = Some(self.io.now().after(CUT_AFTER));
        log_end(&conn.facts, &self.shared.config, self.io.now(), reason);
        if let Way::Portal { from, .. } = conn.facts.way {
            self.shared.logins.ends(conn.facts.serial, from.ip());
        }
        if !has_ended {
            self.end_tasks(key);
        }
        self.note_answered(key);
        self.mark_dirty(key);
    }

    /// The session ends, and its initiator is notified when none of its tasks can take effect any more.
    pub(super) fn leaving(&mut self, key: Key) {
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

    /// None of the tasks of a session that ends can take effect any more: its machine may say so.
    pub(super) fn part(&mut self, key: Key) {
        let Some(conn) = self.connections.get(key) else { return };
        if let Some(name) = session_name(&conn.facts, &self.shared.config) {
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

    /// The session has come to its end: its tasks are aborted, and its nexus is lost with its last channel.
    fn end_tasks(&mut self, key: Key) {
        let Some(conn) = self.connections.get(key) else { return };
        let (serial, nexus) = (conn.facts.serial, conn.nexus);
        let name = session_name(&conn.facts, &self.shared.config);
        let units = conn.luns.iter().map(|lun| lun.unit);
        let units: Vec<u32> = units.filter(|unit| self.units.get(*unit).is_some()).collect();
        let tasks = conn.tasks.iter().flatten().filter_map(|(_, occupant)| occupant.task());
        // A copy that has outlived its command: only this session could ask after it or abort it, and it must not write
        // over what its initiator writes when it is back. Sessions with such tasks do not move: all are on this core.
        let detached = |task: &super::Task| task.origin == key && task.detached_nexus().is_some();
        let detached = self.tasks.iter().filter(|(_, task)| detached(task)).map(|(key, _)| key);
        let tasks: Vec<Key> = tasks.chain(detached).collect();
        for task in tasks {
            self.abort(task, Some(Aborted::Silently));
        }
        self.abort_lent(key, None, Aborted::Silently);
        self.forget_answers(key);
        let ours = |task: &super::Task| task.aborted && task.origin == key;
        let lingering: Vec<(Key, u32)> =
            self.tasks.iter().filter(|(_, task)| ours(task)).map(|(key, task)| (key, task.unit)).collect();
        let has_lost = name.is_some_and(|name| self.shared.registry.ends(&name, serial, nexus.0));
        // What it has asked homes for, a reset say, must not end commands of the session that comes after it.
        let mut homes = if self.stop.is_drained() { 0 } else { self.await_functions(key) };
        for unit in units.into_iter().filter(|_| has_lost) {
            // Nobody else waits for a home that is held up, by a reset of a store that hangs, say; nor for one that may have
            // gone, once this core has said that nothing is left of it.
            let may_hold = self.units[unit].view.policy.may_be_held_by(nexus)
                || lingering.iter().any(|(_, other)| *other == unit);
            let awaits = may_hold && !self.stop.is_drained();
            homes += usize::from(awaits);
            let who = if awaits { Waiter::Connection(key) } else { Waiter::Nobody };
            self.ask_home(unit, who, HomeRequest::NexusLost(nexus));
        }
        if let Some(conn) = self.connections.get_mut(key) {
            conn.lingering = lingering.into_iter().map(|(task, _)| task).collect();
            conn.homes = homes;
        }
    }

    /// A home has forgotten what the nexus of a session that has ended held, or has done what its connection asked for before.
    pub(super) fn home_let_go(&mut self, key: Key) {
        if let Some(conn) = self.connections.get_mut(key) {
            conn.homes -= 1;
        }
        self.mark_dirty(key);
        self.answer_closing();
    }

    /// The connection is no more on this core, where nothing of it is under way.
    pub(super) fn remove_connection(&mut self, key: Key) -> Option<Connection> {
        self.units.iter_mut().for_each(|unit| unit.unsent.retain(|(other, _)| *other != key));
        self.connections.remove(key)
    }

    pub(super) fn close_when_quiet(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        if !conn.is_quiet() || !conn.is_settled() {
            return;
        }
        self.move_load(key, None);
        let Some(mut conn) = self.remove_connection(key) else { return };
        if let Some(stream) = conn.stream {
            stream.close(&mut self.io);
        }
        self.notify_room_made(conn.makes_room_at);
        let counts = conn.machine.aoe_mut().map(Target::take_counts).unwrap_or_default();
        conn.machine.close(self.io.arena());
        self.forget_session(key, conn.facts.way, counts);
        self.release_all_quiescing(key, &conn.quiescing);
        if let Some(name) = session_name(&conn.facts, &self.shared.config) {
            let can_lose = |lun: &&LunState| self.units.get(lun.unit).is_some_and(|unit| unit.can_lose);
            let commands = conn.facts.tally.commands;
            let received = conn.luns.iter().filter(can_lose);
            let received = received.map(|lun| (lun.unit, lun.received_by(commands))).collect();
            self.shared.registry.remember(&name, received);
            self.shared.registry.leave(&name, conn.facts.serial);
        }
        for index in 0..self.endings.reinstatements.len() {
            let (serial, core, parked) = self.endings.reinstatements[index];
            if serial == conn.facts.serial {
                self.post(core, Message::Reinstated { parked });
            }
        }
        self.endings.reinstatements.retain(|(serial, ..)| *serial != conn.facts.serial);
        if conn.predecessors > 0 {
            for core in 0..self.cores() {
                // Behind what asked for the end of these, which went through the mailbox even to this core.
                self.mailbox.post(core, Message::Forsaken { core: self.me, parked: key });
            }
        }
    }

    /// An aborted task is really gone.
    pub(super) fn connection_settled(&mut self, task: Key) {
        for key in self.keys_where(|conn| conn.lingering.contains(&task)) {
            if let Some(conn) = self.connections.get_mut(key) {
                conn.lingering.retain(|other| *other != task);
            }
            self.mark_dirty(key);
        }
        self.answer_closing();
    }

    pub(super) fn tick_connection(&mut self, key: Key, now: Time) {
        if let Some(conn) = self.connections.get_mut(key) {
            if conn.cut_at.is_some_and(|at| at <= now) {
                conn.shut_down(&mut self.io);
            }
            if conn.phase != Phase::Closing || conn.machine.is_device() {
                conn.machine.tick(now);
            }
            self.mark_dirty(key);
            self.poll_machine(key);
        }
    }

    /// All sessions of the target end, but for the one that asked for it: that is answered first, when no task of the
    /// others can take effect any more.
    pub(super) fn close_target(&mut self, target: usize, asker: Asker) {
        self.endings.closings[target] += 1;
        let mut keys = self.keys_where(|conn| conn.facts.target == Some(target));
        keys.retain(|key| asker.core != self.me || asker.connection != *key);
        for key in &keys {
            self.end_for_all(*key, COLD_RESET);
        }
        self.endings.closing_targets.push(ClosingTarget { asker, connections: keys });
        self.answer_closing();
    }

    /// Ends a connection as all others of its target, with an answer to a login that waits for one.
    fn end_for_all(&mut self, key: Key, reason: &str) {
        match self.connections.get(key).map(|conn| conn.phase) {
            Some(Phase::Parked) => self.refuse(key, Withdrawal::Unavailable, reason),
            Some(_) | None => self.gone(key, reason),
        }
    }

    fn answer_closing(&mut self) {
        let connections = &self.connections;
        let is_settled = |key: &Key| connections.get(*key).is_none_or(Connection::is_settled);
        let is_over = |closing: &ClosingTarget| closing.connections.iter().all(is_settled);
        let over: Vec<ClosingTarget> =
            self.endings.closing_targets.extract_if(.., |closing| is_over(closing)).collect();
        for ClosingTarget { asker, .. } in over {
            self.post(asker.core, Message::TargetClosed(asker));
        }
    }

    pub(super) fn say_goodbye(&mut self, within_seconds: u16) {
        for key in self.keys_where(|conn| matches!(conn.phase, Phase::Arriving | Phase::Serving)) {
            self.down(Some(key), Down::Goodbye { within_seconds });
        }
        for key in self.keys_where(|conn| conn.phase == Phase::Login) {
            self.down(Some(key), Down::Close);
        }
    }

    /// The time to log out has passed: what is left ends. Sessions end as they do before, and their machines speak last; how
    /// long these wait for a store is theirs to bound.
    pub(super) fn close_all(&mut self) {
        for key in self.keys_where(|_| true) {
            match self.connections.get(key).map(|conn| conn.phase) {
                Some(Phase::Arriving | Phase::Serving | Phase::Draining) => self.leaving(key),
                Some(Phase::Login | Phase::Parked | Phase::Leaving(_) | Phase::Parting) => {
                    self.end_for_all(key, STOPS);
                }
                Some(Phase::Ending | Phase::Closing) | None => {}
            }
        }
    }

    pub(super) fn keys_where(&self, which: impl Fn(&Connection) -> bool) -> Vec<Key> {
        self.connections.iter().filter(|(_, conn)| which(conn)).map(|(key, _)| key).collect()
    }

    /// The nexus that a task belongs to.
    pub(super) fn nexus_of<'a>(&'a self, task: &'a super::Task) -> Option<&'a NexusUnit> {
        let Some(connection) = task.connection else { return task.detached_nexus() };
        let conn = self.connections.get(connection)?;
        conn.luns.iter().find(|lun| lun.unit == task.unit).map(|lun| &lun.nexus)
    }
}

fn tag(kind: u64, key: Key) -> Tag {
    Tag(kind << kind::SHIFT | u64::from(key.index & 0x0fff_ffff) << 32 | u64::from(key.generation))
}
