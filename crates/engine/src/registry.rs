//! Sessions of the daemon. Only logins and logouts touch this, so a lock will do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Where sessions are, and how many there are.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    sessions: Mutex<Sessions>,
    /// Losses reported to sessions that have ended, oldest first.
    reported: Mutex<VecDeque<(SessionName, ReportedLosses)>>,
    serials: AtomicU64,
    tsih: AtomicU16,
}

#[derive(Debug, Default)]
struct Sessions {
    active: BTreeMap<SessionName, Place>,
    /// Replaced sessions, with the name of their ports, until they have ended.
    replaced: Vec<(SessionName, Place)>,
}

/// What makes a session unique (RFC 7143 section 4.4.3): initiator name, ISID, target. With SRP each channel
/// has its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SessionName {
    /// The initiator's name.
    pub(crate) initiator: String,
    /// Initiator session id.
    pub(crate) isid: [u8; 6],
    /// The target's number.
    pub(crate) target: usize,
    /// Portal group through which it came.
    pub(crate) group: u16,
    /// Serial number of a channel that allows others beside it; otherwise 0.
    pub(crate) channel: u64,
}

impl SessionName {
    /// The name without the part that distinguishes channels of the same two ports.
    fn ports(&self) -> SessionName {
        SessionName { channel: 0, ..self.clone() }
    }

    fn has_ports_of(&self, other: &SessionName) -> bool {
        let ports = |name: &SessionName| (name.isid, name.target, name.group);
        ports(self) == ports(other) && self.initiator == other.initiator
    }
}

/// Units that can lose acknowledged data, with the losses ([`store::lane::Lane::losses`]) whose report was
/// received.
pub(crate) type ReportedLosses = Vec<(u32, u64)>;

/// Channels of one session.
pub(crate) const CHANNELS_MAX: usize = 32;
/// Replaced sessions of the same ports that have not ended.
const REPLACED_MAX: usize = 2 * CHANNELS_MAX;
/// Ended sessions that are remembered for what was reported to them.
const REPORTED_MAX: usize = 4096;

/// The connection of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Its core.
    pub(crate) core: usize,
    /// Its serial number.
    pub(crate) serial: u64,
    /// The session's target session identifying handle.
    pub(crate) tsih: u16,
    /// Its connection id.
    pub(crate) cid: u16,
    /// It has ended, and only waits for what is in flight.
    pub(crate) is_over: bool,
    /// None of its tasks can take effect any more: it only has to report that and close.
    pub(crate) is_settled: bool,
    /// The I_T nexus: the serial number of its first connection.
    pub(crate) nexus: u64,
}

/// The result of entering a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entered {
    /// The I_T nexus.
    pub(crate) nexus: u64,
    /// The sessions that it replaces, or that others replaced before it, which must be ended.
    pub(crate) replaced: Vec<Place>,
}

/// The target has as many sessions as it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl Registry {
    /// A serial number that no other connection has or had.
    pub(crate) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether a session of this name fits into `max` of its target, counting those that have ended but whose
    /// tasks may still take effect; all channels between the same two ports count as one.
    pub(crate) fn has_room(&self, name: &SessionName, max: usize) -> bool {
        self.lock().has_room(name, max)
    }

    /// The session with this name.
    pub(crate) fn find(&self, name: &SessionName) -> Option<Place> {
        self.lock().active.get(name).copied()
    }

    /// A handle that no session has.
    pub(crate) fn new_tsih(&self) -> u16 {
        // Zero is reserved for "new session" (RFC 7143 section 11.12.6). Sessions are found by name: if all
        // handles are in use, a duplicate does no harm.
        for _ in 0..=u16::MAX {
            let tsih = self.tsih.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if tsih != 0 && !self.has_tsih(tsih) {
                return tsih;
            }
        }
        1
    }

    /// Whether a session has this handle.
    fn has_tsih(&self, tsih: u16) -> bool {
        self.lock().active.values().any(|place| place.tsih == tsih)
    }

    /// The number of channels between the same two ports, whichever channel `name` is.
    pub(crate) fn channels(&self, name: &SessionName) -> usize {
        self.lock().active.keys().filter(|other| other.has_ports_of(name)).count()
    }

    /// Enters a session. It replaces all that have its ports, unless it is a channel beside others: then it
    /// shares their nexus, and also waits for the sessions that they replace.
    ///
    /// # Errors
    /// When the target already has `max` others, or the session [`CHANNELS_MAX`] channels: some may have been
    /// added since this one's login was granted. Or when [`REPLACED_MAX`] replaced sessions have not ended.
    pub(crate) fn enter(&self, name: SessionName, place: Place, max: usize) -> Result<Entered, Full> {
        let mut sessions = self.lock();
        let is_alone = name.channel == 0;
        let is_replaced = |other: &SessionName| is_alone && other.has_ports_of(&name);
        let channels = sessions.active.keys().filter(|other| other.has_ports_of(&name)).count();
        let ports = name.ports();
        let is_crowded =
            sessions.replaced.iter().filter(|(other, _)| *other == ports).count() >= REPLACED_MAX;
        if !sessions.has_room(&name, max) || is_crowded || (!is_alone && channels >= CHANNELS_MAX) {
            return Err(Full);
        }
        let displaced: Vec<SessionName> =
            sessions.active.keys().filter(|other| is_replaced(other)).cloned().collect();
        for other in displaced {
            if let Some(old) = sessions.active.remove(&other) {
                sessions.replaced.push((ports.clone(), old));
            }
        }
        let of_ports = sessions.replaced.iter().filter(|(other, _)| *other == ports);
        let replaced = of_ports.map(|(_, old)| *old).collect();
        let beside =
            sessions.active.iter().find(|(other, place)| other.has_ports_of(&name) && !place.is_over);
        let nexus = beside.map_or(place.nexus, |(_, place)| place.nexus);
        sessions.active.insert(name, Place { nexus, ..place });
        Ok(Entered { nexus, replaced })
    }

    /// The session has ended. Returns whether its nexus is lost, too.
    pub(crate) fn ends(&self, name: &SessionName, serial: u64, nexus: u64) -> bool {
        let mut sessions = self.lock();
        if let Some(own) = sessions.active.get_mut(name).filter(|place| place.serial == serial) {
            own.is_over = true;
        }
        !sessions.active.values().any(|place| place.nexus == nexus && !place.is_over)
    }

    /// None of its tasks can take effect any more: another session may take its place before it has closed.
    pub(crate) fn settles(&self, name: &SessionName, serial: u64) {
        let mut sessions = self.lock();
        let Sessions { active, replaced } = &mut *sessions;
        let places = active.get_mut(name).into_iter().chain(replaced.iter_mut().map(|(_, place)| place));
        for place in places.filter(|place| place.serial == serial) {
            place.is_settled = true;
        }
    }

    /// Moves the session's connection to another core by `go`; false when it was reinstated, and must not move. The
    /// new core is published only after `go` has posted the connection to it.
    pub(crate) fn hand_over(&self, name: &SessionName, serial: u64, core: usize, go: impl FnOnce()) -> bool {
        match self.lock().active.get_mut(name).filter(|entry| entry.serial == serial) {
            Some(entry) => {
                entry.core = core;
                go();
                true
            }
            None => false,
        }
    }

    /// The session has ended, unless another has taken its name.
    pub(crate) fn leave(&self, name: &SessionName, serial: u64) {
        let mut sessions = self.lock();
        if sessions.active.get(name).is_some_and(|place| place.serial == serial) {
            sessions.active.remove(name);
        }
        sessions.replaced.retain(|(_, place)| place.serial != serial);
    }

    /// Remembers the losses reported to a session that has ended: it may come back to flush what it wrote.
    pub(crate) fn remember(&self, name: &SessionName, reported: ReportedLosses) {
        if reported.is_empty() {
            return;
        }
        let mut all = self.reported.lock().expect("no holder of this lock panics");
        let name = name.ports();
        all.retain(|(other, _)| *other != name);
        if all.len() == REPORTED_MAX {
            all.pop_front();
        }
        all.push_back((name, reported));
    }

    /// The losses that were reported to an earlier session of this name.
    pub(crate) fn recall(&self, name: &SessionName) -> ReportedLosses {
        let all = self.reported.lock().expect("no holder of this lock panics");
        all.iter()
            .find(|(other, _)| *other == name.ports())
            .map(|(_, reported)| reported.clone())
            .unwrap_or_default()
    }

    /// The serial numbers of all sessions that have not ended, and their cores.
    pub(crate) fn active(&self) -> Vec<(u64, usize)> {
        let sessions = self.lock();
        let active = sessions.active.values().filter(|place| !place.is_over);
        active.map(|place| (place.serial, place.core)).collect()
    }

    /// The initiator of a nexus, if it has a session.
    pub(crate) fn initiator(&self, nexus: u64) -> Option<String> {
        let sessions = self.lock();
        let found = sessions.active.iter().find(|(_, place)| place.nexus == nexus);
        found.map(|(name, _)| name.initiator.clone())
    }

    /// All sessions.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<Place> {
        self.lock().active.values().copied().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().expect("no holder of this lock panics")
    }
}

impl Sessions {
    fn has_room(&self, name: &SessionName, max: usize) -> bool {
        let places = self.active.iter().chain(self.replaced.iter().map(|(ports, place)| (ports, place)));
        let names = places.filter(|(_, place)| !place.is_settled).map(|(name, _)| name);
        let others = names.filter(|other| other.target == name.target && !other.has_ports_of(name));
        others.map(|other| (&other.initiator, other.isid, other.group)).collect::<BTreeSet<_>>().len() < max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> SessionName {
        SessionName { initiator: "iqn.x".into(), isid: [0; 6], target: 0, group: 1, channel: 0 }
    }

    fn place(registry: &Registry, tsih: u16) -> Place {
        let serial = registry.next_serial();
        Place { core: 0, serial, tsih, cid: 0, is_over: false, is_settled: false, nexus: serial }
    }

    #[test]
    fn a_reinstated_session_does_not_remove_its_successor() {
        let registry = Registry::default();
        let (old, new) = (place(&registry, 1), place(&registry, 2));
        assert_eq!(registry.enter(name(), old, 1), Ok(Entered { nexus: old.serial, replaced: vec![] }));
        assert_eq!(registry.enter(name(), new, 1), Ok(Entered { nexus: new.serial, replaced: vec![old] }));
        registry.leave(&name(), old.serial);
        assert!(registry.find(&name()) == Some(new) && registry.has_tsih(2) && !registry.has_tsih(1));
        let another = SessionName { initiator: "iqn.y".into(), ..name() };
        assert_eq!(registry.enter(another.clone(), new, 1), Err(Full));
        assert!(registry.enter(SessionName { target: 1, ..another }, new, 1).is_ok());
        registry.leave(&name(), new.serial);
        assert!(registry.has_room(&name(), 1));
    }

    #[test]
    fn channels_share_a_nexus_until_the_last_has_ended() {
        let registry = Registry::default();
        let channel = |place: &Place| SessionName { channel: place.serial, ..name() };
        let (first, second, third) = (place(&registry, 0), place(&registry, 0), place(&registry, 0));
        for channel in [(channel(&first), first), (channel(&second), second)] {
            let entered = registry.enter(channel.0, channel.1, 1);
            assert_eq!(entered, Ok(Entered { nexus: first.serial, replaced: vec![] }));
        }
        assert_eq!(registry.channels(&name()), 2);
        assert!(!registry.ends(&channel(&first), first.serial, first.serial), "the second continues");
        let another = SessionName { initiator: "iqn.y".into(), ..channel(&third) };
        assert_eq!(registry.enter(another, third, 1), Err(Full));
        assert_eq!(registry.enter(channel(&third), third, 1).map(|entered| entered.nexus), Ok(first.serial));
        let alone = place(&registry, 0);
        let entered = registry.enter(name(), alone, 1).expect("the others make room");
        assert_eq!((entered.nexus, entered.replaced.len()), (alone.serial, 3));
        registry.leave(&channel(&first), first.serial);
        let beside = place(&registry, 0);
        let entered = registry.enter(channel(&beside), beside, 2).expect("a channel beside it");
        assert_eq!(
            (entered.nexus, entered.replaced.len()),
            (alone.serial, 2),
            "it waits for those that are left"
        );
        registry.ends(&channel(&beside), beside.serial, alone.serial);
        registry.leave(&channel(&beside), beside.serial);
        assert!(registry.ends(&channel(&second), second.serial, first.serial), "none has the old nexus");
        assert!(registry.ends(&name(), alone.serial, alone.serial));
        let late = place(&registry, 0);
        let entered = registry.enter(channel(&late), late, 2).map(|entered| entered.nexus);
        assert_eq!(entered, Ok(late.serial), "a nexus that has ended does not come back");
        for _ in registry.channels(&name())..CHANNELS_MAX {
            let more = place(&registry, 0);
            registry.enter(channel(&more), more, 1).expect("room for channels");
        }
        let last = place(&registry, 0);
        assert_eq!(registry.enter(channel(&last), last, 1), Err(Full));
    }

    #[test]
    fn sessions_whose_place_was_taken_count_until_they_are_over() {
        let registry = Registry::default();
        let another = SessionName { initiator: "iqn.y".into(), ..name() };
        let (old, new) = (place(&registry, 1), place(&registry, 2));
        registry.enter(name(), old, 1).expect("room");
        registry.enter(name(), new, 1).expect("it replaces the first");
        registry.leave(&name(), new.serial);
        assert!(!registry.has_room(&another, 1) && registry.has_room(&name(), 1));
        assert_eq!(registry.enter(another.clone(), new, 1), Err(Full), "the first may still write");
        let successors: Vec<Place> = (0..REPLACED_MAX).map(|_| place(&registry, 2)).collect();
        for place in &successors {
            registry.enter(name(), *place, 1).expect("each replaces the one before");
        }
        assert_eq!(registry.enter(name(), new, 1), Err(Full), "none of them has ended");
        for place in successors.iter().chain([&old]) {
            registry.leave(&name(), place.serial);
        }
        registry.enter(another, new, 1).expect("all have ended");
    }

    #[test]
    fn a_logged_out_session_occupies_no_slot_while_its_connection_closes() {
        let registry = Registry::default();
        let another = SessionName { initiator: "iqn.y".into(), ..name() };
        let (old, new) = (place(&registry, 1), place(&registry, 2));
        registry.enter(name(), old, 1).expect("room");
        registry.ends(&name(), old.serial, old.nexus);
        assert!(!registry.has_room(&another, 1), "its tasks may still take effect");
        registry.settles(&name(), old.serial);
        assert!(registry.has_room(&another, 1));
        registry.enter(another.clone(), new, 1).expect("room");
        registry.leave(&name(), old.serial);
        assert!(!registry.has_room(&name(), 1));
    }

    #[test]
    fn what_was_reported_to_sessions_is_remembered_in_bounded_memory() {
        let registry = Registry::default();
        let named = |n: usize| SessionName { target: n, ..name() };
        registry.remember(&named(0), vec![(7, 1)]);
        registry.remember(&named(0), vec![(7, 2)]);
        registry.remember(&named(1), ReportedLosses::new());
        assert_eq!(registry.recall(&named(0)), [(7, 2)]);
        assert_eq!(registry.recall(&named(1)), []);
        for n in 1..=REPORTED_MAX {
            registry.remember(&named(n), vec![(0, n as u64)]);
        }
        assert_eq!(registry.recall(&named(0)), []);
        assert_eq!(registry.recall(&named(REPORTED_MAX)), [(0, REPORTED_MAX as u64)]);
    }
}
