//! ATA over Ethernet: frames come to the core that the interface's fanout gives them to, and go to the session of their
//! initiator with the unit; there is no login, so the first frame makes it.

mod counts;
mod ledger;
mod order;
mod reopen;
#[cfg(test)]
mod tests;

pub(super) use ledger::Claim;
pub(crate) use ledger::Ledger;
pub(super) use reopen::interface_watches;
use reopen::{Answered, InterfaceWatch};

use super::connection::{Connection, Phase};
use super::session::LunState;
use super::{Core, kind};
use crate::message::{Facts, Way};
use crate::ports;
use crate::slots::Key;
use crate::transport::Transport;
use config::AoeInterface;
use proto::aoe::target::{self, Counts, Export, Kind, Sight, Target};
use proto::services::Session;
use proto::time::{Stamp, Time};
use reactor::io::{Io, Tag};
use reactor::limited;
use reactor::packet::aoe::{self, FLAGS, HEADERS_BYTES, SHELF, SLOT, SOURCE};
use reactor::packet::{Condition, Field, Line, Packets, Setup};
use scsi::{NexusId, NexusUnit};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;
use wire::Span;
use wire::aoe::{Address, ETHERTYPE, Header, MTU_MIN, Mac, sectors_per_frame};

/// This core's part of an interface, from its opening until its socket no longer works.
struct Interface<L: Line> {
    /// Its index in the configuration.
    index: usize,
    /// The number of the opening: no other of this core has it.
    opening: u32,
    packets: Packets<L>,
    sessions: BTreeMap<(Mac, Address), Key>,
    /// The kernel reports when a frame has arrived.
    is_watched: bool,
    /// It has reported that in this turn.
    is_woken: bool,
    /// Frames are to be sent at the end of the turn.
    owes: bool,
    /// The kernel reports when it can take more of what is queued.
    awaits_room: bool,
    /// Sessions that found no slot to send from.
    crowded: Vec<Key>,
    /// When its counts were last reported, and how many frames the kernel had dropped by then.
    reported_at: Time,
    dropped: u64,
}

impl<L: Line> Interface<L> {
    /// A unit as it is seen here.
    fn export<'a>(&self, address: Address, config: &'a [u8]) -> Export<'a> {
        Export {
            address,
            ours: Mac(self.packets.mac()),
            config,
            buffers: BUFFERS,
            sectors_max: sectors_per_frame(self.packets.mtu()),
            firmware: FIRMWARE,
        }
    }

    /// Frames that each session may hold: fewer, the more others hold, so that whoever comes finds room while a store is
    /// slow; and some are left for what is answered at once.
    fn room(&self) -> u16 {
        self.packets.free().saturating_sub(FRAMES_FOR_ALL) as u16
    }

    /// How many sessions there are.
    fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Frames that were received and not given back.
    fn held(&self) -> u32 {
        SLOTS_OF_INTERFACE - self.packets.free()
    }

    /// Of a watch on it.
    fn tag(&self, kind: u64) -> Tag {
        Tag(kind << kind::SHIFT | u64::from(self.opening) << 32)
    }
}

/// What this core has to do with Ethernet.
pub(super) struct Ethernet<L: Line> {
    /// Interfaces that serve AoE.
    interfaces: Vec<Interface<L>>,
    /// Earlier openings of interfaces, until nothing is left of their sessions.
    retired: Vec<Interface<L>>,
    /// How many there were.
    openings: u32,
    /// Interfaces that this core looks at for all.
    interface_watches: Vec<InterfaceWatch>,
    /// Interfaces, by their index, that have yet to be notified that this core has released them.
    letting_go: Vec<usize>,
    /// What was answered there lately.
    answered: VecDeque<Answered>,
    /// Sockets of interfaces that there was no memory for: tried again with the next tick.
    waiting_for_slots: Vec<(usize, L)>,
    /// Tasks that wait until others have changed the same blocks, oldest first.
    overlapping: Vec<Key>,
}

impl<L: Line> Ethernet<L> {
    pub(super) fn new(interface_watches: Vec<InterfaceWatch>) -> Ethernet<L> {
        Ethernet {
            interfaces: Vec::new(),
            retired: Vec::new(),
            openings: 0,
            interface_watches,
            letting_go: Vec::new(),
            answered: VecDeque::new(),
            waiting_for_slots: Vec::new(),
            overlapping: Vec::new(),
        }
    }

    /// Sessions, and frames that were received and not given back.
    pub(super) fn in_use(&self) -> (usize, u32) {
        let openings = || self.interfaces.iter().chain(&self.retired);
        (openings().map(Interface::sessions).sum(), openings().map(Interface::held).sum())
    }

    /// Serves an interface of the configuration, by its index.
    fn add(&mut self, index: usize, packets: Packets<L>) {
        self.openings = (self.openings + 1) % kind::NUMBERS;
        self.interfaces.push(Interface {
            index,
            opening: self.openings,
            packets,
            sessions: BTreeMap::new(),
            is_watched: false,
            is_woken: false,
            owes: false,
            awaits_room: false,
            crowded: Vec::new(),
            reported_at: Time(0),
            dropped: 0,
        });
    }

    /// Has the kernel wake this core when a frame comes: before it sleeps.
    pub(super) fn watch<I: Io<Line = L>>(&mut self, io: &mut I) {
        for interface in &mut self.interfaces {
            if interface.packets.has_room() && !std::mem::replace(&mut interface.is_watched, true) {
                io.watch_peers(interface.packets.handle(), interface.tag(kind::FRAMES));
            }
        }
    }

    /// An opening of an interface, by its number.
    fn opening(&mut self, number: u32) -> Option<&mut Interface<L>> {
        let mut all = self.interfaces.iter_mut().chain(&mut self.retired);
        all.find(|interface| interface.opening == number)
    }
}

/// The only LUN of a session.
const LUN: u16 = 0;

/// Commands that an initiator may have in flight: the buffer count of AoEr11.
const BUFFERS: u16 = 64;
/// Sessions on one interface of a core. When there are more, the one is ended that has been silent the
/// longest, but none whose writes may still be repeated: initiators with ever new addresses do not evict the
/// names of others.
const SESSIONS_MAX: usize = 256;
/// A session that is silent for so long is ended.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Frames of one interface that a core has in its hands, in each direction.
const SLOTS_OF_INTERFACE: u32 = 256;
/// Those of them that no session holds.
const FRAMES_FOR_ALL: u32 = 32;
/// The longest request that is looked at without a session: a config query, with its string.
const QUERY_BYTES_MAX: usize = 1100;
/// What the answer to a config query calls our version.
const FIRMWARE: u16 = 1;

impl<I: Io> Core<I> {
    /// Serves interfaces of the configuration, by their index, with these lines.
    ///
    /// # Errors
    /// When there is too little memory.
    pub(crate) fn serve_interfaces(&mut self, lines: Vec<(usize, I::Line)>) -> std::io::Result<()> {
        for (index, line) in lines {
            let packets = Packets::new(line, self.io.arena())?;
            self.ethernet.add(index, packets);
        }
        Ok(())
    }

    /// Announces which units exist.
    pub(super) fn announce(&mut self) {
        (0..self.ethernet.interfaces.len()).for_each(|index| self.announce_on(index));
        self.flush_interfaces();
    }

    /// The same on one interface, if this is the core that does.
    fn announce_on(&mut self, index: usize) {
        let served = self.served.clone();
        let interface = &mut self.ethernet.interfaces[index];
        let cores = &self.shared.config.aoe[interface.index].cores;
        if cores.first() != Some(&self.shared.config.cores[self.me]) {
            return;
        }
        for (address, unit) in &served.exports {
            let Some(slot) = interface.packets.slot() else { break };
            let export = interface.export(*address, &self.units[*unit].view.policy.export.config);
            let announcement = target::announce(&export, self.io.arena().bytes_mut(slot));
            interface.owes |= announcement.is_some();
            interface.packets.queue(slot, announcement.map_or(0, |len| len as u32));
        }
    }

    /// Units have come or gone: sessions with those that are not here any more end, and all are announced.
    pub(super) fn serve_exports(&mut self) {
        let exports = &self.served.exports;
        let unit =
            |key: &Key| self.connections.get(*key).and_then(|conn| conn.luns.first()).map(|lun| lun.unit);
        let sessions = self.ethernet.interfaces.iter().flat_map(|interface| &interface.sessions);
        let gone = sessions.filter(|((_, address), key)| exports.get(address).copied() != unit(key));
        let gone: Vec<Key> = gone.map(|(_, key)| *key).collect();
        for key in gone {
            self.gone(key, "its unit was removed");
        }
        self.announce();
    }

    /// The watch has ended: a frame has come.
    pub(super) fn frames_came(&mut self, opening: u32) {
        if let Some(interface) = self.ethernet.opening(opening) {
            (interface.is_watched, interface.is_woken) = (false, true);
        }
        self.settle_retired();
    }

    /// The other one is: more can be sent.
    pub(super) fn room_came(&mut self, opening: u32) {
        if let Some(interface) = self.ethernet.opening(opening) {
            (interface.awaits_room, interface.owes) = (false, true);
        }
        self.settle_retired();
    }

    /// Takes the frames that have come. Whether there were any.
    pub(super) fn take_frames(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.ethernet.interfaces.len() {
            self.ethernet.interfaces[index].packets.receive(self.io.arena());
            let before = any;
            while let Some((frame, came)) = self.ethernet.interfaces[index].packets.stamped_frame() {
                any = true;
                if !self.take_frame(index, frame, came) {
                    self.ethernet.interfaces[index].packets.release(frame);
                }
            }
            let interface = &mut self.ethernet.interfaces[index];
            if std::mem::take(&mut interface.is_woken)
                && any == before
                && let Err(error) = interface.packets.trouble()
                && !self.is_outdated(index)
            {
                limited!("faults of interfaces", Level::WARN, "AoE: {error}");
            }
        }
        any
    }

    /// Takes one frame. Whether it stays where it is.
    fn take_frame(&mut self, index: usize, frame: Span, came: Stamp) -> bool {
        // What is not AoE, or not whole, is nobody's concern on a shared segment.
        let Ok(sight) = target::look(self.io.arena().bytes(frame)) else { return false };
        let config = &self.shared.config.aoe[self.ethernet.interfaces[index].index];
        if self.stop.has_begun() || !config.admits(sight.from) {
            return false;
        }
        match sight.kind {
            Kind::Query => {
                self.answer_query(index, &sight, frame);
                false
            }
            Kind::Session => self.session_frame(index, &sight, frame, came),
        }
    }

    fn answer_query(&mut self, index: usize, sight: &Sight, frame: Span) {
        let mut request = [0; QUERY_BYTES_MAX];
        let bytes = self.io.arena().bytes(frame);
        let len = bytes.len().min(QUERY_BYTES_MAX);
        request[..len].copy_from_slice(&bytes[..len]);
        let served = self.served.clone();
        for (address, unit) in served.exports.iter().filter(|(address, _)| sight.to.covers(**address)) {
            let view = &self.units[*unit].view;
            if !view.policy.export.may_see(sight.from) {
                continue;
            }
            let interface = &mut self.ethernet.interfaces[index];
            let Some(slot) = interface.packets.slot() else { return };
            let export = interface.export(*address, &view.policy.export.config);
            let answer = target::answer_query(&request[..len], &export, self.io.arena().bytes_mut(slot));
            interface.owes |= answer.is_some();
            interface.packets.queue(slot, answer.map_or(0, |len| len as u32));
        }
    }

    fn session_frame(&mut self, index: usize, sight: &Sight, frame: Span, came: Stamp) -> bool {
        let Some(key) = self.session(index, sight) else { return false };
        let now = self.io.now();
        let room = self.ethernet.interfaces[index].room();
        let bytes = self.io.arena().bytes(frame);
        let is_served = |conn: &&mut Connection| conn.phase == Phase::Serving && conn.lingering.is_empty();
        let Some(conn) = self.connections.get_mut(key).filter(is_served) else {
            self.count_dropped(index, sight);
            return false;
        };
        // The list may have been edited since the session began.
        let may_see = |lun: &LunState| self.units[lun.unit].view.policy.export.may_see(sight.from);
        let (Some(target), true) = (conn.machine.aoe_mut(), conn.luns.iter().all(may_see)) else {
            return false;
        };
        target.limit_frames(room);
        let stays = target.receive(now, came, bytes, frame);
        conn.framed_at = now;
        self.mark_dirty(key);
        stays
    }

    /// The session that a frame belongs to.
    fn session(&mut self, index: usize, sight: &Sight) -> Option<Key> {
        if let Some(key) = self.ethernet.interfaces[index].sessions.get(&(sight.from, sight.to)) {
            return Some(*key);
        }
        let unit = *self.served.exports.get(&sight.to)?;
        if !self.units[unit].view.policy.export.may_see(sight.from) {
            return None;
        }
        if self.ethernet.lingers(index, sight) {
            self.count_dropped(index, sight);
            return None;
        }
        if self.ethernet.interfaces[index].sessions.len() >= SESSIONS_MAX {
            self.end_most_silent(index);
            return None;
        }
        Some(self.new_session(index, sight.from, sight.to, unit))
    }

    fn new_session(&mut self, index: usize, from: Mac, address: Address, unit: u32) -> Key {
        let interface = &self.ethernet.interfaces[index];
        let config = target::Config {
            address,
            ours: Mac(interface.packets.mac()),
            peer: from,
            buffers: BUFFERS,
            sectors_max: sectors_per_frame(interface.packets.mtu()),
            firmware: FIRMWARE,
            crc32c: reactor::crc::crc32c,
        };
        let name = &self.shared.config.aoe[interface.index].name;
        let serial = self.shared.registry.next_serial();
        let session = Session {
            initiator: from.to_string(),
            alias: None,
            target: None,
            isid: [0; 6],
            tsih: 0,
            cid: 0,
            keeps_others: false,
            negotiated: Vec::new(),
            transport_id: wire::scsi::transport_id::aoe_port(from).to_vec(),
        };
        limited!(
            "sessions that logged in", 200 at once, Level::INFO,
            initiator = %from,
            interface = %name,
            address = %address,
            core = self.shared.config.cores[self.me],
            transport = "AoE",
            "session {serial} has begun"
        );
        let nexus = NexusUnit::new(NexusId(serial), session.transport_id.clone(), ports::NO_PORT, false);
        let way = Way::Interface { opening: interface.opening, from };
        let mut facts = Facts::new(serial, way, self.io.now());
        facts.session = Some(Arc::new(session));
        facts.is_admitted = true;
        let mut target = Target::new(config);
        self.ethernet.recall(index, from, address, &mut target);
        let machine = Transport::Aoe(Box::new(target));
        let mut conn = Connection::new(machine, facts, Phase::Serving, None);
        // What was reported to an earlier session is unknown: a false alarm is better than silent loss.
        conn.luns.push(LunState {
            number: LUN,
            hidden: None,
            unit,
            nexus,
            losses: 0,
            received: 0,
            reported_at: None,
            line: None,
        });
        conn.framed_at = self.io.now();
        let key = self.connections.insert(conn);
        self.ethernet.interfaces[index].sessions.insert((from, address), key);
        self.move_load(key, Some(self.me));
        self.set_limits(key);
        key
    }

    /// An aborted task is not over yet. AoE's initiators send it again within milliseconds, and it must not come to the
    /// medium after that, or after what they write next: nothing of them is taken meanwhile.
    pub(super) fn outlive(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key) else { return };
        if let Some(conn) = self.connections.get_mut(task.origin)
            && matches!(conn.machine, Transport::Aoe(_))
        {
            conn.lingering.push(key);
        }
    }

    fn end_most_silent(&mut self, index: usize) {
        let now = self.io.now();
        let is_silent =
            |conn: &Connection| conn.is_vacant() && now.since(conn.framed_at) > target::COPIES_WITHIN;
        let silent = |key: &&Key| self.connections.get(**key).is_some_and(is_silent);
        let since = |key: &&Key| self.connections.get(**key).map(|conn| conn.framed_at);
        let sessions = &self.ethernet.interfaces[index].sessions;
        let found = sessions.values().filter(silent).min_by_key(since).copied();
        if let Some(key) = found {
            self.gone(key, "others need its place, and it was silent the longest");
        }
    }

    /// Ends the sessions that have been silent for long.
    pub(super) fn end_idle_sessions(&mut self, now: Time) {
        let is_idle = |conn: &Connection| now.since(conn.framed_at) > IDLE && conn.is_vacant();
        let idle: Vec<Key> = self
            .ethernet
            .interfaces
            .iter()
            .flat_map(|interface| interface.sessions.values())
            .filter(|key| self.connections.get(**key).is_some_and(is_idle))
            .copied()
            .collect();
        for key in idle {
            self.gone(key, &format!("it was silent for {} minutes", IDLE.as_secs() / 60));
        }
    }

    /// Sends what a session owes, and gives back the frames that it is done with. Whether it has to wait for a slot.
    pub(super) fn send_frames(&mut self, key: Key) -> bool {
        let Some(conn) = self.connections.get_mut(key) else { return false };
        let Way::Interface { opening, .. } = conn.facts.way else { return false };
        let Some(target) = conn.machine.aoe_mut() else { return false };
        if let Some(retired) = self.ethernet.retired.iter_mut().find(|retired| retired.opening == opening) {
            retired.end(target);
            return false;
        }
        let mut interfaces = self.ethernet.interfaces.iter_mut();
        let Some(interface) = interfaces.find(|interface| interface.opening == opening) else { return false };
        while let Some(frame) = target.freed() {
            interface.packets.release(frame);
        }
        interface.owes |= aoe::queue(&mut interface.packets, self.io.arena(), |arena, slot| {
            target.transmit().map(|frame| aoe::put(arena, &frame, &[], slot))
        });
        let is_crowded = target.owes() && !interface.packets.has_slot();
        if is_crowded && !interface.crowded.contains(&key) {
            interface.crowded.push(key);
        }
        is_crowded
    }

    /// Hands all frames of this turn to the kernel.
    pub(super) fn flush_interfaces(&mut self) {
        for index in 0..self.ethernet.interfaces.len() {
            let interface = &mut self.ethernet.interfaces[index];
            if !std::mem::take(&mut interface.owes) {
                continue;
            }
            match interface.packets.flush(self.io.arena()) {
                Ok(true) if !std::mem::replace(&mut interface.awaits_room, true) => {
                    self.io.watch_room(interface.packets.handle(), interface.tag(kind::ROOM));
                }
                Ok(_) => {}
                // Initiators send their requests again.
                Err(error) => {
                    interface.owes = true;
                    if !self.is_outdated(index) {
                        limited!("frames that could not be sent", Level::WARN, "AoE: {error}");
                    }
                }
            }
            if self.ethernet.interfaces[index].packets.has_slot() {
                std::mem::take(&mut self.ethernet.interfaces[index].crowded)
                    .into_iter()
                    .for_each(|key| self.mark_dirty(key));
            }
        }
    }

    /// The session has ended, and its connection is quiet. What it has counted since the last report is logged.
    pub(super) fn forget_session(&mut self, key: Key, way: Way, counts: Counts) {
        let Way::Interface { opening, .. } = way else { return };
        let shared = self.shared.clone();
        if let Some(interface) = self.ethernet.opening(opening) {
            let name = &shared.config.aoe[interface.index].name;
            for ((from, address), _) in interface.sessions.extract_if(.., |_, session| *session == key) {
                counts::report(counts, from, address, name);
            }
        }
        self.settle_retired();
    }
}

/// What is to be opened of an interface: for each core that serves it, one of its own.
pub(crate) fn setup(interface: &AoeInterface) -> Setup<'_> {
    Setup {
        interface: &interface.name,
        protocol: ETHERTYPE,
        filter: &[REQUEST],
        spread: &SESSION,
        mtu_min: MTU_MIN,
        header: HEADERS_BYTES,
        frames: SLOTS_OF_INTERFACE,
        slots: SLOTS_OF_INTERFACE,
    }
}

/// What targets take: no answers.
const REQUEST: Condition = Condition { field: FLAGS, mask: Header::RESPONSE as u32, value: 0 };
/// What identifies a session.
const SESSION: [Field; 4] = [SOURCE[0], SOURCE[1], SHELF, SLOT];
