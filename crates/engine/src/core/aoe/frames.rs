//! How frames are received and sent, and how they open sessions.

use super::{BUFFERS, FIRMWARE, SESSIONS_MAX, THROTTLED_FRAMES_MAX, counts};
use crate::core::connection::{Connection, Phase};
use crate::core::lun::LunState;
use crate::core::{Core, kind};
use crate::events::Event;
use crate::message::{Facts, Way};
use crate::ports;
use crate::slots::Key;
use crate::transport::Transport;
use proto::aoe::target::{self, Counts, Kind, RequestInfo, Target};
use proto::services::Session;
use proto::time::{Stamp, Time};
use reactor::io::Io;
use reactor::limited;
use reactor::packet::Packets;
use reactor::packet::aoe;
use scsi::{NexusId, NexusUnit};
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;
use wire::Span;
use wire::aoe::{Address, Mac, sectors_per_frame};

/// The only LUN of a session.
const LUN: u16 = 0;
/// A session that has been silent this long is ended.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// The longest request that is answered without a session: a config query, with its string.
const QUERY_BYTES_MAX: usize = 1100;

impl<I: Io> Core<I> {
    /// Serves interfaces, by number, on these sockets.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn serve_interfaces(&mut self, lines: Vec<(usize, I::Line)>) -> std::io::Result<()> {
        for (number, line) in lines {
            let packets = Packets::new(line, self.io.arena())?;
            if let Some(segment) = self.served.segment(number) {
                self.ethernet.add(segment.clone(), packets);
            }
        }
        Ok(())
    }

    /// Announces which units are exported.
    pub(in crate::core) fn announce(&mut self) {
        (0..self.ethernet.interfaces.len()).for_each(|index| self.announce_on(index));
        self.flush_interfaces();
    }

    /// The same on one interface, if this is the core that announces there.
    pub(super) fn announce_on(&mut self, index: usize) {
        let served = self.served.clone();
        let interface = &mut self.ethernet.interfaces[index];
        let cores = &interface.segment.interface.cores;
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

    /// Exports were added or removed: ends sessions with units that are no longer exported here, and
    /// announces all.
    pub(in crate::core) fn serve_exports(&mut self) {
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

    /// The watch for frames has ended: a frame has arrived.
    pub(in crate::core) fn frames_arrived(&mut self, opening_number: u32) {
        if let Some(interface) = self.ethernet.interface_by_opening(opening_number) {
            (interface.is_watched, interface.is_woken) = (false, true);
        }
        self.settle_retired();
    }

    /// The watch for room has ended: more can be sent.
    pub(in crate::core) fn send_room_freed(&mut self, opening_number: u32) {
        if let Some(interface) = self.ethernet.interface_by_opening(opening_number) {
            (interface.awaits_room, interface.owes) = (false, true);
        }
        self.settle_retired();
    }

    /// Handles the frames that have arrived. Returns whether there were any.
    #[inline(never)]
    pub(in crate::core) fn take_frames(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.ethernet.interfaces.len() {
            self.ethernet.interfaces[index].packets.receive(self.io.arena());
            let before = any;
            while let Some((frame, received_at)) = self.ethernet.interfaces[index].packets.stamped_frame() {
                any = true;
                if !self.take_frame(index, frame, received_at) {
                    self.ethernet.interfaces[index].packets.release(frame);
                }
            }
            let interface = &mut self.ethernet.interfaces[index];
            if std::mem::take(&mut interface.is_woken)
                && any == before
                && let Err(error) = interface.packets.take_error()
                && !self.is_outdated(index)
            {
                limited!("faults of interfaces", Level::WARN, "AoE: {error}");
            }
        }
        any
    }

    /// Handles one frame. Returns whether it stays in its slot.
    fn take_frame(&mut self, index: usize, frame: Span, received_at: Stamp) -> bool {
        // Frames that are not AoE, or are truncated, are normal on a shared segment.
        let Ok(info) = target::classify(self.io.arena().bytes(frame)) else { return false };
        let served = &self.ethernet.interfaces[index].segment.interface;
        if self.stop.has_begun() || !served.admits(info.from) {
            return false;
        }
        match info.kind {
            Kind::Query => {
                self.answer_query(index, &info, frame);
                false
            }
            Kind::Session => self.session_frame(index, &info, frame, received_at),
        }
    }

    fn answer_query(&mut self, index: usize, info: &RequestInfo, frame: Span) {
        let mut request = [0; QUERY_BYTES_MAX];
        let bytes = self.io.arena().bytes(frame);
        let len = bytes.len().min(QUERY_BYTES_MAX);
        request[..len].copy_from_slice(&bytes[..len]);
        let served = self.served.clone();
        for (address, unit) in served.exports.iter().filter(|(address, _)| info.to.covers(**address)) {
            let view = &self.units[*unit].view;
            if !view.policy.export.may_see(info.from) {
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

    fn session_frame(&mut self, index: usize, info: &RequestInfo, frame: Span, received_at: Stamp) -> bool {
        let Some(key) = self.session(index, info) else { return false };
        let now = self.io.now();
        let room = self.ethernet.interfaces[index].room();
        let bytes = self.io.arena().bytes(frame);
        let is_served =
            |conn: &&mut Connection| conn.phase == Phase::Serving && conn.closing.lingering.is_empty();
        let Some(conn) = self.connections.get_mut(key).filter(is_served) else {
            self.count_dropped(index, info);
            return false;
        };
        // The access list may have been edited since the session began.
        let may_see = |lun: &LunState| self.units[lun.unit].view.policy.export.may_see(info.from);
        let (Some(target), true) = (conn.machine.aoe_mut(), conn.luns.iter().all(may_see)) else {
            return false;
        };
        // Its WRITE would wait behind others. The initiator retransmits it.
        let waits =
            conn.luns.iter().any(|lun| lun.throttle.as_ref().is_some_and(|throttle| throttle.holds_any()));
        let is_full = waits && self.ethernet.interfaces[index].throttled >= THROTTLED_FRAMES_MAX;
        target.limit_frames(if is_full { 0 } else { room });
        let stays = target.receive(now, received_at, bytes, frame);
        conn.framed_at = now;
        self.mark_dirty(key);
        stays
    }

    /// The session that a frame belongs to.
    fn session(&mut self, index: usize, info: &RequestInfo) -> Option<Key> {
        if let Some(key) = self.ethernet.interfaces[index].sessions.get(&(info.from, info.to)) {
            return Some(*key);
        }
        let unit = *self.served.exports.get(&info.to)?;
        if !self.units[unit].view.policy.export.may_see(info.from) {
            return None;
        }
        if self.ethernet.lingers(index, info) {
            self.count_dropped(index, info);
            return None;
        }
        if self.ethernet.interfaces[index].sessions.len() >= SESSIONS_MAX {
            self.end_most_silent(index);
            return None;
        }
        Some(self.new_session(index, info.from, info.to, unit))
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
        let name = interface.name();
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
        let way = Way::Interface { opening_number: interface.opening_number, from };
        let mut facts = Facts::new(serial, way, &self.served, self.io.now());
        facts.session = Some(Arc::new(session));
        facts.is_admitted = true;
        if let Some(session) = facts.peer() {
            let core = self.shared.config.cores[self.me];
            self.shared.events.report(|| Event::SessionBegun { session, transport: "AoE", core });
        }
        let mut target = Target::new(config);
        self.ethernet.recall(index, from, address, &mut target);
        let machine = Transport::Aoe(Box::new(target));
        let mut conn = Connection::new(machine, facts, Phase::Serving, None);
        // What was reported to an earlier session is unknown: a spurious unit attention is better than silent
        // loss.
        conn.luns.push(LunState {
            number: LUN,
            hidden: None,
            unit,
            nexus,
            losses: 0,
            received: 0,
            reported_at: None,
            throttle: None,
        });
        conn.framed_at = self.io.now();
        let key = self.connections.insert(conn);
        self.ethernet.interfaces[index].sessions.insert((from, address), key);
        self.move_load(key, Some(self.me));
        self.set_limits(key);
        key
    }

    /// A task begins to wait for a limit, or stops: if it is a WRITE of AoE, it holds a frame.
    pub(in crate::core) fn count_throttled(&mut self, key: Key, is_there: bool) {
        let Some(task) = self.tasks.get(key).filter(|task| task.command.write_bytes > 0) else { return };
        let way = self.connections.get(task.origin).map(|conn| conn.facts.way);
        if let Some(Way::Interface { opening_number, .. }) = way
            && let Some(interface) = self.ethernet.interface_by_opening(opening_number)
        {
            interface.throttled = if is_there { interface.throttled + 1 } else { interface.throttled - 1 };
        }
    }

    /// An aborted task has not ended yet. AoE initiators retransmit within milliseconds, and the copy must
    /// not reach the medium after that, or after their next writes: until it ends, nothing is accepted from
    /// them.
    pub(in crate::core) fn outlive(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key) else { return };
        if let Some(conn) = self.connections.get_mut(task.origin)
            && matches!(conn.machine, Transport::Aoe(_))
        {
            conn.closing.lingering.push(key);
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
            self.gone(key, "its slot was needed, and it had been silent the longest");
        }
    }

    /// Ends sessions that have been silent too long.
    pub(in crate::core) fn end_idle_sessions(&mut self, now: Time) {
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

    /// Sends what a session owes, and releases the frames that it no longer uses. Returns whether it has to
    /// wait for a slot.
    #[inline(never)]
    pub(in crate::core) fn send_frames(&mut self, key: Key) -> bool {
        let Some(conn) = self.connections.get_mut(key) else { return false };
        let Way::Interface { opening_number, .. } = conn.facts.way else { return false };
        let Some(target) = conn.machine.aoe_mut() else { return false };
        if let Some(retired) =
            self.ethernet.retired.iter_mut().find(|retired| retired.opening_number == opening_number)
        {
            retired.end(target);
            return false;
        }
        let mut interfaces = self.ethernet.interfaces.iter_mut();
        let Some(interface) = interfaces.find(|interface| interface.opening_number == opening_number) else {
            return false;
        };
        while let Some(frame) = target.freed() {
            interface.packets.release(frame);
        }
        interface.owes |= aoe::queue(&mut interface.packets, self.io.arena(), |arena, slot| {
            target.transmit().map(|frame| aoe::copy_frame(arena, &frame, &[], slot))
        });
        let is_crowded = target.owes() && !interface.packets.has_slot();
        if is_crowded && !interface.crowded.contains(&key) {
            interface.crowded.push(key);
        }
        is_crowded
    }

    /// Hands all frames of this turn to the kernel.
    #[inline(never)]
    pub(in crate::core) fn flush_interfaces(&mut self) {
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
                // Initiators retransmit their requests.
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

    /// The session has ended, and its connection is quiet. Logs what it has counted since the last report.
    pub(in crate::core) fn forget_session(&mut self, key: Key, way: Way, counts: Counts) {
        let Way::Interface { opening_number, .. } = way else { return };
        if let Some(interface) = self.ethernet.interface_by_opening(opening_number) {
            let ended = interface.sessions.extract_if(.., |_, session| *session == key);
            for ((from, address), _) in ended {
                counts::report(counts, from, address, &interface.segment.interface.name);
            }
        }
        self.settle_retired();
    }
}
