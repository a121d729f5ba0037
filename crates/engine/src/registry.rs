//! Sessions of the daemon: touched at login and logout only, so a lock will do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where sessions live, and how many there are.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    sessions: Mutex<Sessions>,
    /// What sessions that are over had been told of, oldest first.
    told: Mutex<VecDeque<(SessionName, Told)>>,
    serials: AtomicU64,
}

#[derive(Debug, Default)]
struct Sessions {
    live: BTreeMap<SessionName, Place>,
    /// Those whose place was taken, with the name of their ports, until they are over.
    replaced: Vec<(SessionName, Place)>,
}

/// What makes a session unique (RFC 7143 section 4.4.3): initiator name, ISID, target. With SRP each channel is one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SessionName {
    /// The initiator's name.
    pub(crate) initiator: String,
    /// Initiator session id.
    pub(crate) isid: [u8; 6],
    /// Index of the target.
    pub(crate) target: usize,
    /// Portal group through which it came.
    pub(crate) group: u16,
    /// Serial number of a channel beside which others may be; otherwise 0.
    pub(crate) channel: u64,
}

impl SessionName {
    /// The name without what tells channels of the same two ports apart.
    fn ports(&self) -> SessionName {
        SessionName { channel: 0, ..self.clone() }
    }

    fn has_ports_of(&self, other: &SessionName) -> bool {
        let ports = |name: &SessionName| (name.isid, name.target, name.group);
        ports(self) == ports(other) && self.initiator == other.initiator
    }
}

/// Units that can lose what they acknowledged, with their losses ([`store::lane::Lane::losses`]) whose report was received.
pub(crate) type Told = Vec<(u32, u64)>;

/// Channels of one session.
pub(crate) const CHANNELS_MAX: usize = 32;
/// Sessions that are over, and of which is remembered what they were told.
const TOLD_MAX: usize = 4096;

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
    /// It has come to its end, and only waits for what is in flight.
    pub(crate) is_over: bool,
    /// The I_T nexus: the serial number of its first connection.
    pub(crate) nexus: u64,
}

/// What a session finds when it comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entered {
    /// The I_T nexus.
    pub(crate) nexus: u64,
    /// The sessions that it takes the place of, or others took before it, which must be ended.
    pub(crate) replaced: Vec<Place>,
}

/// The target has as many sessions as it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl Registry {
    /// A number that no other connection has or had.
    pub(crate) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sessions of a target; all channels of the same two ports are one.
    pub(crate) fn sessions_of(&self, target: usize) -> usize {
        sessions_of(&self.lock().live, target, |_| true)
    }

    /// The session with this name.
    pub(crate) fn find(&self, name: &SessionName) -> Option<Place> {
        self.lock().live.get(name).copied()
    }

    /// Whether a session has this handle.
    pub(crate) fn has_tsih(&self, tsih: u16) -> bool {
        self.lock().live.values().any(|place| place.tsih == tsih)
    }

    /// Channels of the same two ports, of whatever channel `name` is.
    pub(crate) fn channels(&self, name: &SessionName) -> usize {
        self.lock().live.keys().filter(|other| other.has_ports_of(name)).count()
    }

    /// Enters a session. It takes the place of all that have its ports, unless it is a channel beside others: then it
    /// shares their nexus, and waits as they do for those whose place they took.
    ///
    /// # Errors
    /// When the target has `max` others already, or the session [`CHANNELS_MAX`] channels: some may have come in since
    /// this one was granted its login.
    pub(crate) fn enter(&self, name: SessionName, place: Place, max: usize) -> Result<Entered, Full> {
        let mut sessions = self.lock();
        let is_alone = name.channel == 0;
        let is_replaced = |other: &SessionName| is_alone && other.has_ports_of(&name);
        let others = sessions_of(&sessions.live, name.target, |other| !other.has_ports_of(&name));
        let channels = sessions.live.keys().filter(|other| other.has_ports_of(&name)).count();
        if others >= max || (!is_alone && channels >= CHANNELS_MAX) {
            return Err(Full);
        }
        let ports = name.ports();
        let displaced: Vec<SessionName> =
            sessions.live.keys().filter(|other| is_replaced(other)).cloned().collect();
        for other in displaced {
            if let Some(old) = sessions.live.remove(&other) {
                sessions.replaced.push((ports.clone(), old));
            }
        }
        let of_ports = sessions.replaced.iter().filter(|(other, _)| *other == ports);
        let replaced = of_ports.map(|(_, old)| *old).collect();
        let beside = sessions.live.iter().find(|(other, place)| other.has_ports_of(&name) && !place.is_over);
        let nexus = beside.map_or(place.nexus, |(_, place)| place.nexus);
        sessions.live.insert(name, Place { nexus, ..place });
        Ok(Entered { nexus, replaced })
    }

    /// The session has come to its end; whether its nexus has, too.
    pub(crate) fn ends(&self, name: &SessionName, serial: u64, nexus: u64) -> bool {
        let mut sessions = self.lock();
        if let Some(own) = sessions.live.get_mut(name).filter(|place| place.serial == serial) {
            own.is_over = true;
        }
        !sessions.live.values().any(|place| place.nexus == nexus && !place.is_over)
    }

    /// Moves the session's connection to another core by `go`; false when it was reinstated, and must not move. Nobody
    /// learns of the new core before `go` has posted the connection to it.
    pub(crate) fn hand_over(&self, name: &SessionName, serial: u64, core: usize, go: impl FnOnce()) -> bool {
        match self.lock().live.get_mut(name).filter(|entry| entry.serial == serial) {
            Some(entry) => {
                entry.core = core;
                go();
                true
            }
            None => false,
        }
    }

    /// The session is over, unless another has taken its name.
    pub(crate) fn leave(&self, name: &SessionName, serial: u64) {
        let mut sessions = self.lock();
        if sessions.live.get(name).is_some_and(|place| place.serial == serial) {
            sessions.live.remove(name);
        }
        sessions.replaced.retain(|(_, place)| place.serial != serial);
    }

    /// Remembers what a session that is over had been told: it may come back to flush what it wrote.
    pub(crate) fn remember(&self, name: &SessionName, told: Told) {
        if told.is_empty() {
            return;
        }
        let mut all = self.told.lock().expect("no holder of this lock panics");
        let name = name.ports();
        all.retain(|(other, _)| *other != name);
        if all.len() == TOLD_MAX {
            all.pop_front();
        }
        all.push_back((name, told));
    }

    /// What an earlier session with this name had been told.
    pub(crate) fn recall(&self, name: &SessionName) -> Told {
        let all = self.told.lock().expect("no holder of this lock panics");
        all.iter().find(|(other, _)| *other == name.ports()).map(|(_, told)| told.clone()).unwrap_or_default()
    }

    /// All sessions.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<Place> {
        self.lock().live.values().copied().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().expect("no holder of this lock panics")
    }
}

fn sessions_of(
    sessions: &BTreeMap<SessionName, Place>,
    target: usize,
    which: impl Fn(&SessionName) -> bool,
) -> usize {
    let names: Vec<&SessionName> =
        sessions.keys().filter(|name| name.target == target && which(name)).collect();
    // Channels of the same ports lie one behind the other.
    names.chunk_by(|one, other| one.has_ports_of(other)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> SessionName {
        SessionName { initiator: "iqn.x".into(), isid: [0; 6], target: 0, group: 1, channel: 0 }
    }

    fn place(registry: &Registry, tsih: u16) -> Place {
        let serial = registry.next_serial();
        Place { core: 0, serial, tsih, cid: 0, is_over: false, nexus: serial }
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
        assert_eq!(registry.sessions_of(0), 0);
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
        assert_eq!((registry.channels(&name()), registry.sessions_of(0)), (2, 1));
        assert!(!registry.ends(&channel(&first), first.serial, first.serial), "the second goes on");
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
    fn what_sessions_were_told_is_remembered_in_bounded_memory() {
        let registry = Registry::default();
        let named = |n: usize| SessionName { target: n, ..name() };
        registry.remember(&named(0), vec![(7, 1)]);
        registry.remember(&named(0), vec![(7, 2)]);
        registry.remember(&named(1), Told::new());
        assert_eq!(registry.recall(&named(0)), [(7, 2)]);
        assert_eq!(registry.recall(&named(1)), []);
        for n in 1..=TOLD_MAX {
            registry.remember(&named(n), vec![(0, n as u64)]);
        }
        assert_eq!(registry.recall(&named(0)), []);
        assert_eq!(registry.recall(&named(TOLD_MAX)), [(0, TOLD_MAX as u64)]);
    }
}
