//! Network interfaces that disappear and return, or get another MTU or address: the sockets on them are
//! reopened. The first core of an interface checks it (an [`InterfaceWatch`]). When the sockets no longer
//! work, each core releases its own: it stops receiving from it and ends the sessions. Only when all have
//! confirmed that does the housekeeper open new ones, since that takes the kernel tens of milliseconds. So no
//! frame is handled twice, from an old socket and from a new one; and a session stays on the core that it was
//! on, as the fanout hashes initiator and unit, and cores have their sockets in the same order.
//!
//! Tasks of a session that has ended may still be in a store, which may be writing from the frame that they
//! arrived in. So the slots and the sessions' names are kept until those tasks have ended
//! ([`super::Ethernet`]); a session of the same name cannot begin before that.

use super::{Answered, Ethernet, Interface, InterfaceWatch, SESSIONS_MAX, State};
use crate::core::{Core, kind};
use crate::housekeeper::Job;
use crate::message::{InterfaceMessage, Message, Way};
use crate::slots::Key;
use config::AoeInterface;
use proto::aoe::target::{COPIES_WITHIN, RequestInfo, Target};
use proto::services::Down;
use proto::time::Time;
use reactor::io::Io;
use reactor::limited;
use reactor::packet::{Line, NoRoom, Packets};
use std::io;
use std::time::Duration;
use tracing::Level;
use wire::aoe::{Address, Mac};

/// How often a served interface is checked. The socket itself reports removal at once.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How many earlier openings of an interface a core keeps for tasks that are still in a store. While there
/// are more, it is not reopened: a store that hangs costs no more memory, however often the interface
/// changes.
const RETIRED_MAX: usize = 1;

impl<L: Line> Interface<L> {
    /// Nothing more of a session is sent, and its frames are released.
    pub(super) fn end(&mut self, target: &mut Target) {
        while target.transmit().is_some() {}
        while let Some(frame) = target.freed() {
            self.packets.release(frame);
        }
    }
}

impl<L: Line> Ethernet<L> {
    /// When [`Core::check_interfaces`] has to be called next, if ever; the core's next tick is then.
    pub(in crate::core) fn next_interface_check(&self, next_tick: Time) -> Option<Time> {
        let is_away = |watch: &InterfaceWatch| matches!(watch.state, State::Closed);
        if !self.waiting_for_slots.is_empty() || self.interface_watches.iter().any(is_away) {
            return Some(next_tick);
        }
        self.interface_watches.iter().map(|watch| watch.check_at).min()
    }

    /// Whether the session that a frame is for has the name of one that lingers on an earlier opening.
    pub(super) fn lingers(&self, interface: usize, info: &RequestInfo) -> bool {
        let name = (info.from, info.to);
        let here = self.interfaces[interface].name();
        self.retired.iter().any(|retired| retired.name() == here && retired.sessions.contains_key(&name))
    }

    /// A session begins: it gets what an earlier one of its name answered.
    pub(super) fn recall(&mut self, interface: usize, from: Mac, to: Address, target: &mut Target) {
        let name = (self.interfaces[interface].name(), from, to);
        let is_it =
            |answered: &Answered| (&*answered.segment.interface.name, answered.from, answered.to) == name;
        let found = self.answered.iter().position(is_it);
        if let Some(answered) = found.and_then(|position| self.answered.remove(position)) {
            target.recall(answered.written);
        }
    }
}

impl<I: Io> Core<I> {
    /// Checks interfaces, and retries those that are missing.
    pub(in crate::core) fn check_interfaces(&mut self, now: Time) {
        if self.stop.has_begun() {
            return;
        }
        self.ethernet.answered.retain(|answered| answered.until > now);
        for (number, socket) in std::mem::take(&mut self.ethernet.waiting_for_slots) {
            self.serve_interface(number, socket);
        }
        for position in 0..self.ethernet.interface_watches.len() {
            let watch = &mut self.ethernet.interface_watches[position];
            // A missing interface is retried at each tick.
            if now >= watch.check_at || matches!(watch.state, State::Closed) {
                watch.check_at = now.after(CHECK_EVERY);
                self.check_interface(position);
            }
        }
    }

    pub(in crate::core) fn interface_message(&mut self, number: usize, message: InterfaceMessage<I::Line>) {
        let watch = self.ethernet.interface_watches.iter().position(|watch| watch.number == number);
        match (message, watch) {
            (InterfaceMessage::Check, Some(position)) => self.check_interface(position),
            (InterfaceMessage::Close, _) => self.close_interface(number),
            (InterfaceMessage::Closed, Some(position)) => self.interface_closed(position),
            (InterfaceMessage::Opened(opened), Some(position)) => self.interface_opened(position, opened),
            (InterfaceMessage::Serve(socket), _) => self.serve_interface(number, *socket),
            // It is no longer served.
            (InterfaceMessage::Opened(opened), None) => {
                opened.into_iter().flatten().for_each(|socket| self.close_line(socket));
            }
            (InterfaceMessage::Check | InterfaceMessage::Closed, None) => {}
        }
    }

    /// A socket of an interface reports an error. Returns whether that is because the socket no longer works,
    /// of which the first core is then notified.
    pub(super) fn is_outdated(&mut self, interface: usize) -> bool {
        let interface = &self.ethernet.interfaces[interface];
        let is_outdated = interface.packets.outdated().is_some();
        let segment = interface.segment.clone();
        if is_outdated && let Some(first) = segment.interface.cores.first() {
            self.notify_interface(segment.number, *first, InterfaceMessage::Check);
        }
        is_outdated
    }

    fn check_interface(&mut self, position: usize) {
        let number = self.ethernet.interface_watches[position].number;
        let Some(segment) = self.served.segment(number).cloned() else { return };
        match self.ethernet.interface_watches[position].state {
            State::Served => {
                let own =
                    self.ethernet.interfaces.iter().find(|interface| interface.segment.number == number);
                let waiting_for_slots =
                    || self.ethernet.waiting_for_slots.iter().find(|(of, _)| *of == number);
                let outdated = match own {
                    Some(own) => own.packets.outdated(),
                    None => waiting_for_slots().and_then(|(_, socket)| socket.outdated()),
                };
                if let Some(reason) = outdated {
                    self.close_on_all_cores(position, reason);
                }
            }
            State::Closed if !self.stop.has_begun() => {
                let interface = segment.interface.clone();
                let job = Job::OpenInterface { interface, number, core: self.me };
                // The housekeeper ends only with the process.
                let _ = self.shared.housekeeper.send(job);
                self.ethernet.interface_watches[position].state = State::Opening;
            }
            State::Closing(_) | State::Closed | State::Opening => {}
        }
    }

    /// Has all cores of an interface release it.
    fn close_on_all_cores(&mut self, position: usize, reason: String) {
        tracing::warn!("AoE on {reason}; its sessions end, and it will be served again as soon as possible");
        let watch = &mut self.ethernet.interface_watches[position];
        let Some(segment) = self.served.segment(watch.number).cloned() else { return };
        watch.state = State::Closing(segment.interface.cores.len());
        watch.reason = Some(reason);
        for core in &segment.interface.cores {
            self.notify_interface(segment.number, *core, InterfaceMessage::Close);
        }
    }

    /// Stops receiving and sending on an interface.
    fn close_interface(&mut self, number: usize) {
        self.retire_interface(number, "its network interface was removed or replaced");
        self.ethernet.releasing.push(number);
        self.settle_retired();
    }

    /// Stops receiving and sending on an interface. Returns its sessions.
    pub(super) fn retire_interface(&mut self, number: usize, reason: &str) -> Vec<Key> {
        let mut sessions = Vec::new();
        let waiting: Vec<_> =
            self.ethernet.waiting_for_slots.extract_if(.., |(of, _)| *of == number).collect();
        waiting.into_iter().for_each(|(_, socket)| self.close_line(socket));
        let is_it = |interface: &Interface<I::Line>| interface.segment.number == number;
        if let Some(position) = self.ethernet.interfaces.iter().position(is_it) {
            let interface = self.ethernet.interfaces.remove(position);
            for (kind, is_watched) in
                [(kind::FRAMES, interface.is_watched), (kind::ROOM, interface.awaits_room)]
            {
                if is_watched {
                    self.io.unwatch(interface.tag(kind));
                }
            }
            sessions.extend(interface.sessions.values());
            self.ethernet.retired.push(interface);
            sessions.iter().for_each(|key| self.end_session(*key, reason));
        }
        sessions
    }

    /// A session ends: what it received in this turn does not become tasks.
    pub(super) fn end_session(&mut self, key: Key, reason: &str) {
        self.gone(key, reason);
        self.down(Some(key), Down::Close);
    }

    /// A session ends: keeps what it answered for the next one of its name.
    pub(in crate::core) fn note_answered(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        let (Way::Interface { opening_number, .. }, Some(target)) = (conn.facts.way, conn.machine.aoe_mut())
        else {
            return;
        };
        let (written, until) = (target.take_written(), self.io.now().after(COPIES_WITHIN));
        let Some(interface) = self.ethernet.interface_by_opening(opening_number) else { return };
        let segment = interface.segment.clone();
        let mut sessions = interface.sessions.iter();
        let Some((&(from, to), _)) = sessions.find(|(_, session)| **session == key) else { return };
        if self.ethernet.answered.len() >= SESSIONS_MAX {
            self.ethernet.answered.pop_front();
        }
        self.ethernet.answered.push_back(Answered { segment, from, to, written, until });
    }

    /// Releases openings that are no longer used, and notifies those that wait for that.
    pub(super) fn settle_retired(&mut self) {
        let is_watched = |retired: &Interface<I::Line>| retired.is_watched || retired.awaits_room;
        let is_over = |retired: &mut Interface<I::Line>| retired.sessions.is_empty() && !is_watched(retired);
        let over: Vec<Interface<I::Line>> = self.ethernet.retired.extract_if(.., is_over).collect();
        for retired in over {
            let line = retired.packets.close(self.io.arena());
            self.close_line(line);
        }
        for number in std::mem::take(&mut self.ethernet.releasing) {
            let Some(segment) = self.served.segment(number).cloned() else { continue };
            let is_it = |retired: &&Interface<I::Line>| retired.segment.number == number;
            match segment.interface.cores.first() {
                Some(first) if self.ethernet.retired.iter().filter(is_it).count() <= RETIRED_MAX => {
                    self.notify_interface(number, *first, InterfaceMessage::Closed);
                }
                Some(_) | None => self.ethernet.releasing.push(number),
            }
        }
    }

    /// Closes a socket where this does not stall a core.
    fn close_line(&self, line: I::Line) {
        let _ = self.shared.housekeeper.send(Job::Close(line));
    }

    fn interface_closed(&mut self, position: usize) {
        let watch = &mut self.ethernet.interface_watches[position];
        if let State::Closing(cores) = &mut watch.state {
            *cores -= 1;
            if *cores == 0 {
                watch.state = State::Closed;
                self.check_interface(position);
            }
        }
    }

    fn interface_opened(&mut self, position: usize, opened: io::Result<Vec<I::Line>>) {
        let watch = &mut self.ethernet.interface_watches[position];
        let Some(segment) = self.served.segment(watch.number).cloned() else { return };
        let AoeInterface { name, cores, .. } = &segment.interface;
        match opened {
            Ok(sockets) => {
                let again = if watch.reason.is_some() { " again" } else { "" };
                (watch.state, watch.reason) = (State::Served, None);
                if let Some(socket) = sockets.first() {
                    let mac = Mac(socket.mac());
                    tracing::info!(%mac, mtu = socket.mtu(), "AoE on {name}: it is served{again}");
                }
                for (core, socket) in cores.iter().zip(sockets) {
                    self.notify_interface(segment.number, *core, InterfaceMessage::Serve(Box::new(socket)));
                }
            }
            Err(error) => {
                let reason = error.to_string();
                watch.state = State::Closed;
                if watch.reason.as_ref() != Some(&reason) {
                    tracing::warn!("AoE on {reason}; it will be served as soon as possible");
                    watch.reason = Some(reason);
                }
            }
        }
    }

    /// Serves an interface from now on.
    fn serve_interface(&mut self, number: usize, socket: I::Line) {
        let segment = self.served.segment(number).filter(|_| !self.stop.has_begun()).cloned();
        let Some(segment) = segment else { return self.close_line(socket) };
        match Packets::new(socket, self.io.arena()) {
            Ok(packets) => {
                self.ethernet.add(segment, packets);
                self.announce_on(self.ethernet.interfaces.len() - 1);
                self.flush_interfaces();
            }
            // Frames wait in the socket's ring in the kernel: no other core may have them.
            Err(NoRoom(socket)) => {
                limited!(
                    "interfaces without memory",
                    Level::WARN,
                    "AoE on {}: too little memory is left for its frames; they will be received later",
                    segment.interface.name
                );
                self.ethernet.waiting_for_slots.push((number, socket));
            }
        }
    }

    fn notify_interface(&mut self, number: usize, core: usize, message: InterfaceMessage<I::Line>) {
        if let Some(core) = self.core_index(core) {
            self.post(core, Message::Interface { number, message });
        }
    }
}
