//! One core: a pinned thread and everything it owns. One iteration of its loop is [`Core::turn`].
//!
//! The values that it is composed of own their state and know nothing of the core: each has a file here, and
//! what a core does with it is in a file below that, where its private fields are visible (`buffer.rs`,
//! `buffer/grant.rs`). Code that uses several of them has its own file (`session.rs`).

mod active;
mod agenda;
mod answers;
pub(crate) mod aoe;
mod budget;
mod buffer;
mod changes;
mod connection;
mod counting;
mod devices;
mod disconnections;
mod errors;
mod functions;
pub(crate) mod gate;
mod homes;
mod immediate_read;
mod immediate_write;
pub(crate) mod inspect;
mod kind;
mod leaving;
mod listeners;
pub(crate) mod lun;
mod migration;
mod quiescing;
mod session;
mod stall;
mod stop;
mod task;
mod throttle;
mod trace;
mod traffic;
mod unit;

#[cfg(test)]
pub(crate) use budget::TURN_BYTES;

use crate::housekeeper::Job;
use crate::message::Message;
use crate::served::Served;
use crate::shared::Shared;
use crate::slots::{Key, Slots};
use crate::units::NewUnit;
use active::ActiveConnections;
use agenda::Agenda;
use aoe::Ethernet;
use budget::Budget;
use buffer::Buffers;
use connection::{Connection, Endings};
use devices::RdmaDevices;
use functions::Functions;
use leaving::ChangesHere;
use listeners::Listeners;
use migration::Migration;
use proto::time::Time;
use reactor::io::{Completion, Io, Wait};
use reactor::mailbox::Mailbox;
use reactor::poll::{Poll, Poller, Work};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use stop::Stop;
use store::lane::{OpId, Outcome};
use task::Task;
use throttle::Throttles;
use unit::{Unit, Units};

/// A core with its kernel `I`.
/// Its fields are the parts of a core; a turn uses several of them at once.
pub(crate) struct Core<I: Io> {
    me: usize,
    io: I,
    shared: Arc<Shared<I::Line>>,
    mailbox: Mailbox<Message<I>>,
    /// Messages of this core to itself.
    own: VecDeque<Message<I>>,
    /// What is served now.
    served: Arc<Served>,
    units: Units<I>,
    connections: Slots<Connection>,
    tasks: Slots<Task>,
    functions: Functions,
    endings: Endings,
    migration: Migration,
    buffers: Buffers,
    budget: Budget,
    throttles: Throttles,
    /// `stall_timeout`.
    stall_nanos: u64,
    /// Changes of what is served that wait on this core for sessions to end or units to be reconfigured.
    changes: ChangesHere,
    agenda: Agenda,
    poller: Poller,
    active: ActiveConnections,
    next_tick: Time,
    stop: Stop,
    listeners: Listeners,
    devices: RdmaDevices,
    ethernet: Ethernet<I::Line>,
}

/// The polling mode.
fn mode(poll: config::Poll) -> Poll {
    match poll {
        config::Poll::Adaptive => Poll::Adaptive,
        config::Poll::Always => Poll::Always,
        config::Poll::Never => Poll::Never,
    }
}

/// How often deadlines of connections are checked.
const TICK: Duration = Duration::from_millis(250);
/// How long initiators get to log out when the daemon stops.
const LOGOUT_SECONDS: u16 = 3;
const LOGOUT_WITHIN: Duration = Duration::from_secs(LOGOUT_SECONDS as u64);

impl<I: Io> Core<I> {
    /// A core with its lanes, and the homes that live on it.
    pub(crate) fn new(
        me: usize,
        io: I,
        shared: Arc<Shared<I::Line>>,
        served: Arc<Served>,
        mailbox: Mailbox<Message<I>>,
        units: Vec<NewUnit<I>>,
    ) -> Self {
        let poller = Poller::new(mode(shared.config.poll));
        let stall_nanos = shared.config.stall_timeout.as_nanos() as u64;
        let ethernet = Ethernet::new(&served, shared.config.cores[me]);
        Core {
            me,
            io,
            served,
            shared,
            mailbox,
            own: VecDeque::new(),
            units: Units::new(units.into_iter().map(|unit| Unit::new(unit, me)).collect()),
            connections: Slots::with_capacity(64),
            tasks: Slots::with_capacity(1024),
            functions: Functions::default(),
            endings: Endings::default(),
            migration: Migration::default(),
            buffers: Buffers::default(),
            budget: Budget::new(),
            throttles: Throttles::default(),
            stall_nanos,
            changes: ChangesHere::default(),
            agenda: Agenda::new(),
            poller,
            active: ActiveConnections::new(),
            next_tick: Time(0),
            stop: Stop::default(),
            listeners: Listeners::default(),
            devices: RdmaDevices::default(),
            ethernet,
        }
    }

    /// Its kernel.
    pub(crate) fn io(&mut self) -> &mut I {
        &mut self.io
    }

    /// What this core has in use: stream connections, received frames, tasks, and what units still hold of
    /// connections that have ended.
    pub(crate) fn in_use(&self) -> (usize, u32, usize, usize) {
        let (sessions, frames) = self.ethernet.in_use();
        let has_ended = |(key, _): &&(Key, u64)| self.connections.get(*key).is_none();
        let marks = self.units.iter().map(|unit| unit.unsent.iter().filter(has_ended).count()).sum();
        (self.connections.len() - sessions, frames, self.tasks.len(), marks)
    }

    /// Serves until [`Message::Stop`], and until initiators have logged out or run out of time. Returns
    /// whether all stores could be flushed.
    pub(crate) fn run(mut self) -> bool {
        self.open_portals();
        let mut completions = Vec::with_capacity(256);
        let mut messages = Vec::with_capacity(64);
        while let Some(wait) = self.rest() {
            self.io.turn(wait, &mut completions);
            self.turn(&mut completions, &mut messages);
        }
        let is_flushed = self.flush_stores(&mut completions);
        self.keep_losses();
        is_flushed
    }

    /// Starts listening. Call it before the first turn.
    pub(crate) fn open_portals(&mut self) {
        self.listen_where_served();
        self.announce();
    }

    /// How long the core may sleep before its next turn; `None`: there is no next turn, and the stores are to
    /// be flushed.
    pub(crate) fn rest(&mut self) -> Option<Wait> {
        if self.is_over() {
            return None;
        }
        let wait = self.wait();
        if wait != Wait::No {
            self.ethernet.watch(&mut self.io);
        }
        Some(wait)
    }

    fn wait(&mut self) -> Wait {
        let is_ready = self.io.is_ready() || !self.own.is_empty();
        if is_ready
            || self.agenda.is_unsettled
            || !self.agenda.to_serve.is_empty()
            || !self.budget.is_idle()
            || self.may_widen()
        {
            return Wait::No;
        }
        let is_begun = self.units.used.is_empty() || self.poller.hurries();
        debug_assert!(is_begun, "a core is about to sleep before it has begun what its tasks requested");
        let now = self.io.now();
        let next = self.migration.until().map_or(self.next_tick, |until| until.min(self.next_tick));
        let until = |time: Time| time.since(now).max(Duration::from_millis(1));
        let is_timed = self.connections.len() > 0
            || self.stop.has_begun()
            || self.listeners.want_ticks()
            || self.devices.want_ticks()
            || !self.units.leaving.is_empty()
            || reactor::limited::is_owed()
            || self.agenda.has_errors
            || self.units.iter().any(|unit| unit.lane.wants_ticks());
        let timer = if is_timed {
            Some(next)
        } else {
            self.ethernet.next_interface_check(self.next_tick).map(|look| look.max(next))
        };
        let timer = timer.map(until);
        let Some(due) = self.throttles.due() else { return self.idle(now, timer) };
        let nap = due.since(now).max(throttle::NAP);
        if due <= now { Wait::No } else { self.idle(now, Some(timer.map_or(nap, |timer| timer.min(nap)))) }
    }

    fn idle(&mut self, now: Time, timer: Option<Duration>) -> Wait {
        let wait = self.poller.wait(now, timer);
        let waits_for_threads = wait == Wait::No && self.units.wait_for_threads();
        if waits_for_threads { self.poller.wait_for_threads(now, timer) } else { wait }
    }

    /// One turn: completions, messages, then everything that became ready is sent together. What most turns
    /// do not need is kept out of line, so that they do not pay for its stack frame and registers.
    pub(crate) fn turn(&mut self, completions: &mut Vec<Completion>, messages: &mut Vec<Message<I>>) {
        self.agenda.is_unsettled = false;
        let mut work = if self.run_all() | self.run_throttles() { Work::Own } else { Work::None };
        for &completion in &*completions {
            work = work.max(kind::work(completion.tag));
            self.dispatch(completion);
        }
        completions.clear();
        if self.ethernet.has_interfaces() && self.take_frames() {
            work = work.max(Work::Frames);
        }
        self.mailbox.drain(messages);
        if !messages.is_empty() {
            work = Work::Other;
            messages.drain(..).for_each(|message| self.message(message));
        }
        loop {
            self.serve_all();
            self.settle_turn();
            self.recheck_windows();
            if self.agenda.to_serve.is_empty() && self.own.is_empty() {
                break;
            }
        }
        let now = self.io.now();
        if now >= self.next_tick {
            self.tick(now);
        }
        if self.migration.is_late(now) {
            self.end_drain(now);
        }
        self.flush_all();
        if self.ethernet.has_interfaces() {
            self.flush_interfaces();
        }
        self.poller.turned(now, work);
        if std::mem::take(&mut self.agenda.has_sent) {
            // A send is work, whether it is reported at once or by a completion: the core must not go to
            // sleep sooner because of it.
            self.poller.sent(now);
            // Data that has been sent may have given tasks their next step, and others their buffers.
            self.agenda.is_unsettled = !self.units.used.is_empty()
                || !self.buffers.starved.is_empty()
                || !self.agenda.to_flush.is_empty();
        }
        if work != Work::None {
            self.io.worked();
        }
    }

    /// Reports what the core has in use: at each tick, and when a connection, perhaps the last one, has
    /// ended.
    fn report_usage(&mut self) {
        let meter = &self.shared.meters[self.me];
        meter.worked(self.io.processor_time(), self.poller.spun());
        meter.tasks.set(self.tasks.len() as u64);
        meter.buffer_bytes.set(self.io.arena().in_use());
    }

    fn settle_turn(&mut self) {
        if !self.units.leaving.is_empty() {
            self.settle_leaving();
        }
        while let Some(message) = self.own.pop_front() {
            self.message(message);
        }
        if self.units.used.is_empty() {
            self.poller.hurry(false);
        } else {
            self.flush_lanes();
        }
        if !self.buffers.starved.is_empty() {
            self.feed_starved();
            // Operations that finish now may have freed a buffer that others wait for.
            if self.flush_lanes() && !self.buffers.starved.is_empty() {
                self.poller.hurry(true);
            }
        }
    }

    #[inline]
    fn dispatch(&mut self, completion: Completion) {
        let tag = completion.tag.0;
        let key = Key { index: kind::index(tag), generation: tag as u32 };
        match tag >> kind::SHIFT {
            kind::RECV => self.received(key, completion.result),
            kind::SEND => _ = self.sent(key, completion.result),
            _ => self.dispatch_other(completion),
        }
    }

    /// Completions that do not belong to a stream.
    #[inline(never)]
    fn dispatch_other(&mut self, completion: Completion) {
        let index = kind::index(completion.tag.0);
        match completion.tag.0 >> kind::SHIFT {
            kind::ACCEPT => self.accepted(index as usize, completion.result),
            // A lane that has been closed may have had a watch.
            kind::LANE if self.units.get(index).is_none() => {}
            kind::LANE => {
                let mut done = std::mem::take(&mut self.agenda.done);
                self.units.lane(index).completed(&mut self.io, completion, &mut done);
                self.finish_ops(index, &mut done);
                self.agenda.done = done;
            }
            kind::DEVICE => self.device_ready(index),
            kind::ASKED => self.asked(index as usize),
            kind::FRAMES => self.frames_arrived(index),
            kind::ROOM => self.send_room_freed(index),
            other => unreachable!("a completion of kind {other}"),
        }
    }

    /// Ends the turn for every lane that was used in it or still waits for another core. Returns whether any
    /// operation finished.
    fn flush_lanes(&mut self) -> bool {
        let mut index = 0;
        let mut has_finished = false;
        while let Some(unit) = self.units.used.get(index).copied() {
            let mut done = std::mem::take(&mut self.agenda.done);
            let waits = self.units[unit].lane.flush(&mut self.io, &mut done);
            self.units.check_threads(unit);
            if waits {
                index += 1;
            } else {
                self.units.used.swap_remove(index);
            }
            has_finished |= !done.is_empty();
            self.finish_ops(unit, &mut done);
            self.agenda.done = done;
        }
        self.poller.hurry(!self.units.used.is_empty());
        has_finished
    }

    fn finish_ops(&mut self, unit: u32, done: &mut Vec<(OpId, Outcome)>) {
        for (id, outcome) in done.drain(..) {
            if outcome.is_err() {
                self.keep_losses();
            }
            match id {
                kind::FINAL_FLUSH => {}
                kind::LEAVING_FLUSH => self.leaving_flushed(unit, outcome),
                _ => self.op_finished(id, outcome),
            }
        }
    }

    /// An operation has failed: records what its store may have lost, so that this is known even after a
    /// kill.
    fn keep_losses(&mut self) {
        for unit in self.units.iter_mut() {
            if unit.keeps_losses && unit.lane.losses() > 0 {
                unit.keeps_losses = false;
                let serial = unit.view.unit.serial.clone();
                let _ = self.shared.housekeeper.send(Job::KeepLoss { serial });
            }
        }
    }

    /// Sends to a core, this one included.
    fn post(&mut self, core: usize, message: Message<I>) {
        if core == self.me {
            self.own.push_back(message);
        } else {
            self.mailbox.post(core, message);
        }
    }

    fn cores(&self) -> usize {
        self.shared.loads.len()
    }

    #[inline(never)]
    fn message(&mut self, message: Message<I>) {
        match message {
            Message::Migrate(migrating) => self.accept_migrating(*migrating),
            Message::Arrive { portal, incoming } => self.arrive(portal, *incoming),
            #[cfg(test)]
            Message::Move { serial, to } => self.move_serial(serial, to),
            #[cfg(test)]
            Message::Misuse { serial } => self.misuse(serial),
            Message::Home { unit, origin, request } => self.home_request(unit, origin, request),
            Message::Answer { origin, reply } => self.home_answered(origin, reply),
            Message::Publish { unit, publish, origin, home } => self.apply(unit, &publish, origin, home),
            Message::Recall { unit, origin } => self.home_recall(unit, origin),
            Message::Recalled { task } => self.recalled(task),
            Message::Applied { unit } => self.home_applied(unit),
            Message::Persisted { unit, ok } => self.home_persisted(unit, ok),
            Message::Gate { unit, gate } => self.gate_message(unit, gate),
            Message::MakeRoom { serial, portal } => self.make_room(serial, portal),
            Message::RoomMade { portal } => self.room_made(portal),
            Message::Reinstate { serial, core, waiting_login } => self.reinstate(serial, core, waiting_login),
            Message::Reinstated { waiting_login } => self.reinstated(waiting_login),
            Message::LoginAbandoned { core, waiting_login } => self.login_abandoned(core, waiting_login),
            Message::QuiesceNexus(requester, quiets) => self.quiesce_nexus(requester, quiets),
            Message::NexusQuiesced(requester) => self.nexus_quiesced(requester),
            Message::DeviceFailed { name } => self.device_failed(&name),
            Message::CloseTarget { target, requester } => self.close_target(target, requester),
            Message::TargetClosed(requester) => self.function_closed(requester),
            Message::Interface { number, message } => self.interface_message(number, message),
            Message::ChangeEnded => self.change_ended(),
            Message::AddUnit { unit, done } => self.add_unit(*unit, &done),
            Message::Configure { units, done } => self.configure(&units, done),
            Message::Serve { served, taken, done } => self.change_served(served, &taken, done),
            Message::ReportAwaited { to } => self.report_awaited(&to),
            Message::RemoveUnit { unit, done } => self.remove_unit(unit, done),
            Message::UnitQuiesced { unit } => self.unit_quiesced(unit),
            Message::DropUnit { unit, is_flushed } => self.unit_dropped(unit, is_flushed),
            Message::EndSessionsOf { unit } => self.end_sessions_of(unit),
            // The thread that waits for it may have ended.
            Message::Turn(turned) => _ = turned.send(()),
            Message::Inspect(inspection) => self.inspect(&inspection),
            Message::Disconnect { serial, done } => self.disconnect(serial, done),
            Message::Stop => self.stop(),
            Message::Drained => self.stop.core_drained(),
        }
    }

    #[inline(never)]
    fn tick(&mut self, now: Time) {
        self.next_tick = now.after(TICK);
        self.retry_accepts(now);
        self.relisten();
        let keys = self.active.take_due(now, &mut self.connections);
        self.end_stalled(&keys, now);
        self.end_idle_sessions(now);
        self.check_interfaces(now);
        self.report_counts(now);
        for key in &keys {
            if self.connections.get(*key).is_some_and(|conn| conn.is_due(now)) {
                self.tick_connection(*key, now);
            }
        }
        self.active.restore(keys);
        self.tick_lanes();
        self.balance(now);
        reactor::limited::report();
        self.report_errors();
        if self.stop.is_due(now) {
            self.close_all();
        }
        self.report_usage();
        self.settle_turn();
    }

    fn tick_lanes(&mut self) {
        let mut done = std::mem::take(&mut self.agenda.done);
        for slot in 0..self.units.slots() {
            let Some(unit) = self.units.in_slot(slot).map(Unit::number) else { continue };
            self.units[unit].lane.tick(&mut self.io, &mut done);
            self.finish_ops(unit, &mut done);
        }
        self.agenda.done = done;
    }
}
