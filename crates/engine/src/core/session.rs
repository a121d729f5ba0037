//! Sessions: how a login turns a connection into one, and what happens to those that it replaces.

use super::Core;
use super::connection::{Connection, MADE_ROOM, NO_ROOM, OVERTAKEN, PARTED, Phase, REINSTATED};
use super::lun::{LunState, NO_LUN, NO_UNIT};
use crate::access::Login;
use crate::events::Event;
use crate::logins::{Evictable, Evicted};
use crate::message::{Facts, Message, Waiter, Way};
use crate::registry::{Place, SessionName};
use crate::served::{Named, Served};
use crate::slots::Key;
use config::{ByDevice, Group, Portal, Transports};
use proto::services::{Down, Session, Withdrawal};
use reactor::io::Io;
use reactor::limited;
use scsi::attention::UnitAttention;
use scsi::nexus::Reach;
use scsi::{HomeRequest, NexusId, NexusUnit};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::Level;
use wire::scsi::lun;

/// How long a discovery session may last.
pub(super) const DISCOVERY_WITHIN: Duration = Duration::from_secs(60);

/// Why a login is refused that began before access was changed.
const CHANGED: &str = "access was changed meanwhile";

impl Connection {
    /// Hides LUNs that are not in this list from the session. Returns the units of those that it loses.
    fn hide(&mut self, luns: &[(u16, usize)], units: &[u32]) -> Vec<u32> {
        let is_shown = |lun: &LunState| {
            luns.iter().any(|(number, index)| (*number, units[*index]) == (lun.number, lun.unit))
        };
        let gone = self.luns.iter_mut().filter(|lun| lun.number != NO_LUN && !is_shown(lun));
        gone.map(|lun| {
            lun.hidden = Some(std::mem::replace(&mut lun.number, NO_LUN));
            lun.unit
        })
        .collect()
    }

    /// Whether this portal no longer admits it.
    fn is_barred(&self, portal: &Portal) -> bool {
        let Transports { iscsi, iser, srp } = portal.transports;
        let is_offered = match (self.machine.is_srp(), self.machine.is_rdma()) {
            (true, _) => srp,
            (false, true) => iser,
            (false, false) => iscsi,
        };
        !is_offered
    }

    /// Whether the transport that it came over is no longer served at this portal: RDMA devices, or TCP.
    fn is_cut_off(&self, portal: &Portal) -> bool {
        portal.rdma == if self.machine.is_device() { ByDevice::No } else { ByDevice::Only }
    }

    /// Why a session that has logged in must end, if it must.
    pub(super) fn revocation_reason(&self, served: &Served) -> Option<&'static str> {
        let (session, number) = (self.facts.session.as_deref()?, self.facts.target_number()?);
        let Way::Portal { number: portal, from, .. } = self.facts.way else { return None };
        if self.facts.epoch > served.epoch {
            return None;
        }
        let Some(index) = served.target(number) else { return Some("its target was removed") };
        let Some((portal, listens)) = served.portal(portal) else { return Some("its portal was removed") };
        if self.is_barred(listens) {
            return Some("its portal no longer offers its transport");
        }
        if self.is_cut_off(listens) {
            return Some("its portal no longer serves RDMA devices or TCP (rdma)");
        }
        let target = &served.config.targets[index];
        if !target.portals.contains(&portal) {
            return Some("its target is no longer reached through its portal");
        }
        // Its I_T nexus includes the target port of this group (RFC 7143 section 4.2.7.1), and reservations
        // identify it by that.
        if listens.group != self.facts.group {
            return Some("its portal belongs to another group now");
        }
        if self.machine.is_srp() && served.config.srp_target(portal) != Some(index) {
            return Some("its portal leads to another target");
        }
        match target.group_of(&session.initiator, from.ip()) {
            Some(group) if group.deny => Some("a group of its target denies it"),
            None if !target.groups.is_empty() => Some("no group of its target matches it any longer"),
            Some(_) | None => None,
        }
    }

    /// Tasks name LUNs by index. An index is free again when its unit has been released; or for the same
    /// unit, if it was hidden and is no longer used (`is_used`), or only by commands that named this number.
    fn add_lun(&mut self, lun: LunState, is_first: bool, is_used: impl Fn(usize) -> bool) {
        let is_hidden = |other: &LunState| other.number == NO_LUN && other.unit == lun.unit;
        let may_come_back = |(place, other): (usize, &LunState)| {
            let is_same = other.hidden == Some(lun.number) || !is_used(place);
            (is_hidden(other) && is_same).then_some(place)
        };
        let mut places = self.luns.iter().enumerate().filter(|_| !is_first);
        if let Some(place) = places.find_map(may_come_back) {
            let place = &mut self.luns[place];
            let throttle = place.throttle.take();
            *place = LunState { throttle, ..lun };
            return;
        }
        match self.luns.iter_mut().find(|lun| !is_first && lun.unit == NO_UNIT) {
            Some(place) => *place = lun,
            None => self.luns.push(lun),
        }
    }

    /// The session's LUNs have changed.
    fn luns_changed(&mut self) {
        let attention = UnitAttention::LunsChanged;
        for lun in self.luns.iter_mut().filter(|lun| lun.number != NO_LUN) {
            lun.nexus.establish(attention);
        }
        if let Some(lun) = self.lun_list.first() {
            self.machine.notify_event(*lun, attention.check().encode_as(false));
        }
    }
}

impl<I: Io> Core<I> {
    /// A session has finished its login: it gets its LUNs, ends the session that it reinstates, and moves to
    /// its core.
    pub(super) fn ready(&mut self, key: Key, session: Session) {
        let served = self.served.clone();
        let Some(conn) = self.connections.get_mut(key) else { return };
        let Way::Portal { number: portal, from, local } = conn.facts.way else { return };
        // Names do not depend on case (RFC 3722); the configuration has them in lower case.
        let named = |name: &String| {
            served.config.targets.iter().position(|target| target.name.eq_ignore_ascii_case(name))
        };
        let is_srp = conn.machine.is_srp();
        let target = match is_srp {
            true => served.portal(portal).and_then(|(portal, _)| served.config.srp_target(portal)),
            false => session.target.as_ref().and_then(named),
        };
        let target = target.map(|index| served.targets[index].clone());
        let before = conn.facts.access.take();
        let is_granted = target.as_ref().zip(before).is_some_and(|(target, before)| {
            let (initiator, from) = (&session.initiator, from.ip());
            let login = Login { initiator, from, local, target: &target.name, is_srp };
            Arc::ptr_eq(&before, &served.access) || served.access.grants_as(&before, &login)
        });
        let is_refused = !is_granted && (is_srp || session.target.is_some());
        let session = Arc::new(session);
        (conn.facts.target, conn.facts.epoch) = (target.clone(), served.epoch);
        conn.facts.session = Some(session.clone());
        let facts = conn.facts.clone();
        let moves = target.is_some() && conn.machine.is_movable();
        if is_refused {
            return self.refuse(key, Withdrawal::Unavailable, CHANGED);
        }
        let core = if moves { self.place(portal) } else { self.me };
        match target {
            Some(target) => self.enter(key, &target, &facts, &session, core),
            None => self.discover(key, &facts, from),
        }
    }

    /// Adds a session to those of its target. It waits for those that it replaces.
    fn enter(&mut self, key: Key, target: &Named, facts: &Facts, session: &Session, core: usize) {
        let shared = self.shared.clone();
        let (Some(name), Some(index)) = (session_name(facts), self.served.target(target.number)) else {
            return;
        };
        let (serial, tsih, cid) = (facts.serial, session.tsih, session.cid);
        let place =
            Place { core: self.me, serial, tsih, cid, is_over: false, is_settled: false, nexus: serial };
        let sessions_max = self.served.config.targets[index].sessions_max;
        let Ok(entered) = shared.registry.enter(name, place, sessions_max) else {
            return self.refuse(key, Withdrawal::NoRoom, NO_ROOM);
        };
        let Some(conn) = self.connections.get_mut(key) else { return };
        if let Way::Portal { from, .. } = facts.way {
            // From now on it counts as one of its target's sessions.
            shared.logins.ends(serial, from.ip());
        }
        conn.nexus = NexusId(entered.nexus);
        conn.login.predecessors = entered.replaced.len();
        for old in &entered.replaced {
            limited!(
                "sessions that reinstate others", 200 at once, Level::INFO,
                initiator = %session.initiator,
                "session {serial} reinstates session {}",
                old.serial
            );
            // Through the mailbox even to this core: the old session may be in it, on its way here.
            let message = Message::Reinstate { serial: old.serial, core: self.me, waiting_login: key };
            self.mailbox.post(old.core, message);
        }
        match entered.replaced.is_empty() {
            true => self.admit(key, core),
            false => self.set_phase(key, Phase::AwaitingReinstatement),
        }
    }

    /// The sessions that this one replaces can no longer write: its login is answered, and it is served on
    /// this core. It is notified of whatever happens to its units after the answer, wherever it is by then.
    fn admit(&mut self, key: Key, core: usize) {
        self.assign_luns(key);
        self.answer_login(key, core);
        if core == self.me {
            return self.serve_here(key);
        }
        self.move_load(key, Some(core));
        self.set_phase(key, Phase::Leaving(core));
    }

    /// A discovery session begins. They need no credentials, so they are few and short.
    fn discover(&mut self, key: Key, facts: &Facts, from: SocketAddr) {
        let evicted = self.shared.logins.discovers(facts.serial, from.ip());
        self.evict(evicted, None);
        if let Some(conn) = self.connections.get_mut(key) {
            conn.login.expires = Some(self.io.now().after(DISCOVERY_WITHIN));
        }
        self.set_phase(key, Phase::Login);
        self.answer_login(key, self.me);
    }

    /// Answers a login that was granted, to be served on this core.
    fn answer_login(&mut self, key: Key, core: usize) {
        self.down(Some(key), Down::Admit);
        let Some(conn) = self.connections.get_mut(key) else { return };
        conn.facts.is_admitted = true;
        let Facts { serial, way, session: Some(session), target, .. } = &conn.facts else { return };
        let config = &self.shared.config;
        let kind = if target.is_some() { "session" } else { "discovery session" };
        let keys: Vec<String> =
            session.negotiated.iter().map(|(name, value)| format!("{name}={value}")).collect();
        limited!(
            "sessions that logged in", 200 at once, Level::INFO,
            initiator = %session.initiator,
            from = %way,
            portal = way.portal().map(tracing::field::display),
            target = target.as_ref().map_or("-", |target| target.name.as_str()),
            core = config.cores[core],
            transport = conn.machine.name(),
            keys = %keys.join(" "),
            "{kind} {serial} logged in"
        );
        let (transport, number) = (conn.machine.name(), config.cores[core]);
        if let Some(session) = conn.facts.peer() {
            self.shared.events.report(|| Event::SessionBegun { session, transport, core: number });
        }
    }

    /// Refuses a login that had been granted.
    pub(super) fn refuse(&mut self, key: Key, why: Withdrawal, reason: &str) {
        self.down(Some(key), Down::Refuse(why));
        self.gone(key, reason);
    }

    /// A connection begins to log in. Another one makes room for it if there are too many.
    pub(super) fn arrives(&mut self, facts: &Facts, from: SocketAddr, has_socket: bool) {
        let evictable = Evictable { core: self.me, has_socket };
        let evicted = self.shared.logins.arrives(facts.serial, from.ip(), evictable);
        self.evict(evicted, None);
    }

    /// The session has ended except for its last PDU, which others need not wait for: it no longer counts as
    /// one of its target's, and another closing connection makes room for it if there are too many.
    pub(super) fn parts(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        let Way::Portal { from, .. } = conn.facts.way else { return };
        let evictable = Evictable { core: self.me, has_socket: conn.stream.is_some() };
        let evicted = self.shared.logins.parts(conn.facts.serial, from.ip(), evictable);
        self.evict(evicted, None);
    }

    /// Ends a connection so that others may log in; also so that the new connection at a portal gets its
    /// descriptor.
    pub(super) fn evict(&mut self, evicted: Option<Evicted>, portal: Option<usize>) {
        if let Some(Evicted { core, serial }) = evicted {
            // Through the mailbox even to this core: the connection may be in it, on its way here.
            self.mailbox.post(core, Message::MakeRoom { serial, portal });
        }
    }

    /// Ends the connection with this serial number to make room for others, unless it has become a session of
    /// a target and not ended.
    pub(super) fn make_room(&mut self, serial: u64, portal: Option<usize>) {
        let is_meant = |conn: &Connection| {
            let may_go = conn.facts.target.is_none() || matches!(conn.phase, Phase::Parting | Phase::Closing);
            conn.facts.serial == serial && may_go
        };
        let Some(key) = self.keys_where(is_meant).pop() else { return self.notify_room_made(portal) };
        let is_session = self.connections.get(key).is_some_and(|conn| conn.facts.target.is_some());
        self.gone(key, if is_session { PARTED } else { MADE_ROOM });
        let Some(conn) = self.connections.get_mut(key) else { return };
        // Others wait, but not for a peer that does not read what it was sent.
        conn.shut_down(&mut self.io);
        // It may have been evicted twice: the first requester gets its descriptor, and the other requests
        // again.
        if conn.closing.makes_room_at.is_some() {
            return self.notify_room_made(portal);
        }
        conn.closing.makes_room_at = portal;
    }

    /// Records once that the initiator has begun its login: connections that have not make room for others
    /// first.
    #[inline(never)]
    pub(super) fn note_login(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        if let Way::Portal { from, .. } = conn.facts.way
            && !conn.login.has_begun
            && conn.machine.has_begun()
        {
            conn.login.has_begun = true;
            self.shared.logins.begins(conn.facts.serial, from.ip());
        }
    }

    /// The core with the fewest connections among those of the portal, for a connection that is counted here
    /// until its core is decided.
    pub(super) fn place(&self, portal: usize) -> usize {
        self.least_loaded(portal, 1)
    }

    /// The same for a connection that is not counted yet.
    pub(super) fn place_new(&self, portal: usize) -> usize {
        self.least_loaded(portal, 0)
    }

    fn least_loaded(&self, portal: usize, counted_here: usize) -> usize {
        let cores = self.served.cores_of(portal);
        let load = |core: usize| {
            let load = self.shared.loads[core].load(Ordering::Relaxed);
            load - if core == self.me { counted_here } else { 0 }
        };
        cores
            .iter()
            .filter_map(|core| self.core_index(*core))
            .min_by_key(|core| load(*core))
            .unwrap_or(self.me)
    }

    /// Gives the session the LUNs that it is shown by the current snapshot: before its login is answered, and
    /// whenever that changes.
    pub(super) fn assign_luns(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        let Some(session) = conn.facts.session.clone() else { return };
        let (served, config, ports) = (&self.served, &self.served.config, &self.served.ports);
        let Way::Portal { from, .. } = conn.facts.way else { return };
        let Some(target) = conn.facts.target_number().and_then(|number| served.target(number)) else {
            return;
        };
        let group = group(served, &conn.facts);
        let luns = group.and_then(|group| group.luns.as_ref()).unwrap_or(&config.targets[target].luns);
        let read_only = group.is_some_and(|group| group.read_only);
        let port = ports.relative_id(target, conn.facts.group, conn.machine.is_srp());
        let is_first = conn.served.replace(served.epoch).is_none();
        let hidden = conn.hide(luns, &served.units);
        let mut has_changed = !hidden.is_empty();
        let (nexus_id, tasks) = (conn.nexus, &self.tasks);
        let is_used = |place| tasks.iter().any(|(_, task)| task.origin == key && task.lun == place);
        let is_lost = |unit: &u32| !luns.iter().any(|(_, index)| served.units[*index] == *unit);
        let lost: Vec<u32> = hidden.into_iter().filter(is_lost).collect();
        let transport_id: Arc<[u8]> = session.transport_id.as_slice().into();
        (conn.reach, conn.lun_list) = (Vec::with_capacity(luns.len()), Vec::with_capacity(luns.len()));
        // No spare capacity: most sessions have one LUN.
        conn.luns.reserve_exact(luns.len().saturating_sub(conn.luns.len()));
        let name = session_name(&conn.facts);
        let reported = name.map(|name| self.shared.registry.recall(&name)).unwrap_or_default();
        for (number, index) in luns {
            let unit = served.units[*index];
            conn.reach.push((unit, if read_only { Reach::ReadOnly } else { Reach::Full }));
            conn.lun_list.push(lun::of_number(*number));
            let hidden = ports.hidden(config, *index, &session.initiator, from.ip());
            let is_it = |lun: &&mut LunState| !is_first && (lun.number, lun.unit) == (*number, unit);
            if let Some(lun) = conn.luns.iter_mut().find(is_it) {
                lun.nexus.change_access(read_only, &hidden);
                continue;
            }
            let mut nexus = NexusUnit::new(conn.nexus, transport_id.clone(), port, read_only);
            if is_first && conn.nexus.0 != conn.facts.serial {
                // The nexus existed before this channel of it.
                nexus.attentions.clear();
            }
            // Most LUNs of a session are in the same targets, and share the list.
            let same = conn.luns.last().map(|last| &last.nexus.hidden_ports).filter(|ids| ***ids == *hidden);
            nexus.hidden_ports = same.cloned().unwrap_or_else(|| hidden.into());
            nexus.sync(&self.units[unit].view.policy);
            // Whatever the unit owed it under another number, or before it was hidden, it still owes.
            let earlier = conn.luns.iter().find(|lun| !is_first && lun.unit == unit);
            let earlier = earlier.map(|lun| (lun.losses, lun.received, lun.reported_at));
            let before = reported.iter().find(|(other, _)| *other == unit).map(|(_, losses)| *losses);
            let (losses, received, reported_at) = earlier.unwrap_or_else(|| {
                let losses = before.unwrap_or_else(|| self.units[unit].lane.losses());
                (losses, losses, None)
            });
            let number = *number;
            let lun =
                LunState { number, hidden: None, unit, nexus, losses, received, reported_at, throttle: None };
            conn.add_lun(lun, is_first, is_used);
            has_changed |= !is_first;
        }
        if has_changed {
            conn.luns_changed();
            self.mark_dirty(key);
        }
        self.set_limits(key);
        // Its reservations (SPC-2) and its prevention of medium removal affect everyone who sees the unit.
        for unit in lost {
            self.ask_home(unit, Waiter::Nobody, HomeRequest::NexusLost(nexus_id));
        }
    }

    /// Updates the session's LUNs if they are from an older snapshot.
    pub(super) fn catch_up_with_served(&mut self, key: Key) {
        let Some(conn) = self.connections.get(key) else { return };
        let epoch = self.served.epoch;
        if conn.facts.epoch <= epoch && conn.served.is_some_and(|served| served < epoch) {
            self.assign_luns(key);
        }
    }

    /// This answer informs the initiator that its LUNs have changed: each I_T nexus is notified once (SPC-4
    /// section 6.33).
    pub(super) fn luns_reported(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        for lun in &mut conn.luns {
            lun.nexus.attentions.retain(|attention| *attention != UnitAttention::LunsChanged);
        }
    }

    /// Ends the connection whose session is reinstated by another.
    pub(super) fn reinstate(&mut self, serial: u64, core: usize, waiting_login: Key) {
        let old = self.connections.iter().find(|(_, conn)| conn.facts.serial == serial).map(|(key, _)| key);
        match old {
            Some(key) => {
                self.endings.reinstatements.push((serial, core, waiting_login));
                // SRP announces the end of a channel to its initiator (SRP r16a section 6.6); a reinstated
                // session of iSCSI just ends.
                let is_notified = |conn: &Connection| conn.machine.is_srp() && conn.phase != Phase::Parting;
                match self.connections.get(key) {
                    Some(conn) if conn.phase == Phase::AwaitingReinstatement => {
                        self.refuse(key, Withdrawal::NoRoom, OVERTAKEN)
                    }
                    Some(conn) if is_notified(conn) => self.leaving(key),
                    Some(_) | None => self.gone(key, REINSTATED),
                }
            }
            None => self.post(core, Message::Reinstated { waiting_login }),
        }
    }

    /// A connection that waited for sessions to end has itself ended.
    pub(super) fn login_abandoned(&mut self, core: usize, waiting_login: Key) {
        self.endings
            .reinstatements
            .retain(|(_, waits_on, waits)| (*waits_on, *waits) != (core, waiting_login));
    }

    /// A session that this one replaces has ended.
    pub(super) fn reinstated(&mut self, waiting_login: Key) {
        let Some(conn) = self.connections.get_mut(waiting_login) else { return };
        conn.login.predecessors = conn.login.predecessors.saturating_sub(1);
        // It may have ended meanwhile.
        if conn.login.predecessors > 0 || conn.phase != Phase::AwaitingReinstatement {
            return;
        }
        let moves = conn.machine.is_movable() && !self.stop.has_begun();
        let portal = conn.facts.portal().filter(|_| moves);
        let core = portal.map_or(self.me, |portal| self.place(portal));
        self.admit(waiting_login, core);
    }
}

/// The group of its target that a session belongs to, if the target has groups.
pub(super) fn group<'a>(served: &'a Served, facts: &Facts) -> Option<&'a Group> {
    let (session, target) = (facts.session.as_deref()?, facts.target_number()?);
    let Way::Portal { from, .. } = facts.way else { return None };
    served.group_of(target, &session.initiator, from.ip())
}

/// The name of a session with a target.
pub(super) fn session_name(facts: &Facts) -> Option<SessionName> {
    let (session, target) = (facts.session.as_deref()?, facts.target_number()?);
    facts.portal()?;
    Some(SessionName {
        initiator: session.initiator.to_lowercase(),
        isid: session.isid,
        target,
        group: facts.group,
        channel: if session.keeps_others { facts.serial } else { 0 },
    })
}

#[cfg(test)]
mod tests;
