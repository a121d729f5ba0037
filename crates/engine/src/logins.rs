//! Unauthenticated connections: those that are logging in, discovery sessions, and those whose session has
//! ended except for its last PDU. Each kind is bounded, and a new connection is never refused for lack of
//! room: it replaces another, the oldest of those whose network has the most.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The connections that are logging in, the discovery sessions, and the connections that are parting.
#[derive(Debug)]
pub(crate) struct Logins {
    /// How many there may be of each kind.
    max: AtomicUsize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Those that have not begun a login yet.
    silent: Pool,
    /// Those that have.
    begun: Pool,
    discoveries: Pool,
    /// Those of sessions that have ended, which wait for their last PDU to leave.
    parting: Pool,
}

/// A connection's core, and whether it has a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Evictable {
    /// Its core.
    pub(crate) core: usize,
    /// It has a socket, and so a descriptor.
    pub(crate) has_socket: bool,
}

/// A connection that makes room for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Evicted {
    /// Its core.
    pub(crate) core: usize,
    /// Its serial number.
    pub(crate) serial: u64,
}

/// Connections by network. The older one is, the lower its serial number.
#[derive(Debug, Default)]
struct Pool {
    networks: BTreeMap<IpAddr, BTreeMap<u64, Evictable>>,
    count: usize,
}

impl Logins {
    /// Empty; there may be `max` of each kind.
    pub(crate) fn new(max: usize) -> Self {
        Logins { max: AtomicUsize::new(max), waiting: Mutex::default() }
    }

    /// Allows `max` of each kind from now on; existing ones stay.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Adds a connection that begins to log in. Returns the one that makes room for it.
    pub(crate) fn arrives(&self, serial: u64, from: IpAddr, evictable: Evictable) -> Option<Evicted> {
        let (mut waiting, network) = (self.lock(), network(from));
        let evicted = waiting.make_room(network, self.max());
        waiting.silent.insert(network, serial, evictable);
        evicted
    }

    /// It has begun a login.
    pub(crate) fn begins(&self, serial: u64, from: IpAddr) {
        let (mut waiting, network) = (self.lock(), network(from));
        if let Some(evictable) = waiting.silent.remove(network, serial) {
            waiting.begun.insert(network, serial, evictable);
        }
    }

    /// Its login has ended, and it has a discovery session. Returns the connection that makes room for it.
    pub(crate) fn discovers(&self, serial: u64, from: IpAddr) -> Option<Evicted> {
        let (mut waiting, network) = (self.lock(), network(from));
        // If it is already making room for others, it is on its way out.
        let evictable = waiting.forget(network, serial)?;
        waiting.discoveries.add(network, serial, evictable, self.max())
    }

    /// Its session has ended and no longer counts as one of its target's. Returns the connection that makes
    /// room for it.
    pub(crate) fn parts(&self, serial: u64, from: IpAddr, evictable: Evictable) -> Option<Evicted> {
        let (mut waiting, network) = (self.lock(), network(from));
        waiting.forget(network, serial);
        waiting.parting.add(network, serial, evictable, self.max())
    }

    /// The connection to end when descriptors run out: one that is parting, otherwise one that has not begun
    /// a login, if a quarter of those that are logging in have not, as in [`Waiting::make_room`].
    pub(crate) fn takes_one(&self) -> Option<Evicted> {
        let Waiting { silent, begun, discoveries, parting } = &mut *self.lock();
        let is_silent = silent.count >= (silent.count + begun.count).div_ceil(4);
        let rest = if is_silent { [silent, discoveries, begun] } else { [discoveries, begun, silent] };
        let mut order = [parting].into_iter().chain(rest);
        order.find_map(|pool| pool.take_oldest_of_most(|evictable| evictable.has_socket))
    }

    /// Its login, its discovery session or its parting has ended.
    pub(crate) fn ends(&self, serial: u64, from: IpAddr) {
        self.lock().forget(network(from), serial);
    }

    /// Moves a connection that is logging in to another core by `go`; false when it is making room for
    /// another, and must not move. The new core is published only after `go` has posted the connection to it.
    pub(crate) fn hand_over(&self, serial: u64, from: IpAddr, core: usize, go: impl FnOnce()) -> bool {
        let (mut waiting, network) = (self.lock(), network(from));
        let Waiting { silent, begun, .. } = &mut *waiting;
        match silent.find(network, serial).or_else(|| begun.find(network, serial)) {
            Some(evictable) => {
                evictable.core = core;
                go();
                true
            }
            None => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no holder of this lock panics")
    }
}

impl Waiting {
    /// Those that have not begun a login go first, except for a quarter reserved for them: otherwise logins
    /// that hang would leave new connections no time to begin one.
    fn make_room(&mut self, network: IpAddr, max: usize) -> Option<Evicted> {
        let of_network = share(max);
        if self.silent.count_of(network) + self.begun.count_of(network) >= of_network {
            let is_silent = self.silent.count_of(network) >= of_network.div_ceil(4);
            return if is_silent { &mut self.silent } else { &mut self.begun }.take_oldest(network);
        }
        if self.silent.count + self.begun.count < max {
            return None;
        }
        let is_silent = self.silent.count >= max.div_ceil(4);
        if is_silent { &mut self.silent } else { &mut self.begun }.take_oldest_of_most(|_| true)
    }

    fn forget(&mut self, network: IpAddr, serial: u64) -> Option<Evictable> {
        let Waiting { silent, begun, discoveries, parting } = self;
        [silent, begun, discoveries, parting].into_iter().find_map(|pool| pool.remove(network, serial))
    }
}

impl Pool {
    fn count_of(&self, network: IpAddr) -> usize {
        self.networks.get(&network).map_or(0, BTreeMap::len)
    }

    fn find(&mut self, network: IpAddr, serial: u64) -> Option<&mut Evictable> {
        self.networks.get_mut(&network)?.get_mut(&serial)
    }

    /// Adds one, of `max` in all. Returns the one that makes room for it.
    fn add(&mut self, network: IpAddr, serial: u64, evictable: Evictable, max: usize) -> Option<Evicted> {
        let evicted = match self.count_of(network) >= share(max) {
            true => self.take_oldest(network),
            false if self.count >= max => self.take_oldest_of_most(|_| true),
            false => None,
        };
        self.insert(network, serial, evictable);
        evicted
    }

    fn insert(&mut self, network: IpAddr, serial: u64, evictable: Evictable) {
        self.networks.entry(network).or_default().insert(serial, evictable);
        self.count += 1;
    }

    fn remove(&mut self, network: IpAddr, serial: u64) -> Option<Evictable> {
        let members = self.networks.get_mut(&network)?;
        let evictable = members.remove(&serial)?;
        if members.is_empty() {
            self.networks.remove(&network);
        }
        self.count -= 1;
        Some(evictable)
    }

    fn take_oldest(&mut self, network: IpAddr) -> Option<Evicted> {
        let serial = *self.networks.get(&network)?.first_key_value()?.0;
        self.take(network, serial)
    }

    /// The oldest matching connection of the network that has the most of them.
    fn take_oldest_of_most(&mut self, which: impl Fn(&Evictable) -> bool) -> Option<Evicted> {
        let such = |(network, members): (&IpAddr, &BTreeMap<u64, Evictable>)| {
            let mut such =
                members.iter().filter(|(_, evictable)| which(evictable)).map(|(serial, _)| *serial);
            let oldest = such.next()?;
            Some((such.count(), Reverse(oldest), *network))
        };
        let (_, Reverse(serial), network) = self.networks.iter().filter_map(such).max()?;
        self.take(network, serial)
    }

    fn take(&mut self, network: IpAddr, serial: u64) -> Option<Evicted> {
        let Evictable { core, .. } = self.remove(network, serial)?;
        Some(Evicted { core, serial })
    }
}

/// How many of `max` one network may have.
fn share(max: usize) -> usize {
    max.div_ceil(2)
}

/// What counts as one peer: an IPv4 address, or an IPv6 network of one host, which has any number of
/// addresses.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVICTABLE: Evictable = Evictable { core: 0, has_socket: true };

    fn ip(address: &str) -> IpAddr {
        address.parse().expect("an address")
    }

    fn evicted(serial: u64) -> Option<Evicted> {
        Some(Evicted { core: 0, serial })
    }

    #[test]
    fn the_oldest_silent_connection_of_the_loudest_network_makes_room() {
        let (logins, loud, other) = (Logins::new(8), ip("192.0.2.1"), ip("192.0.2.2"));
        for serial in 1..=4 {
            assert_eq!(logins.arrives(serial, loud, EVICTABLE), None);
        }
        assert_eq!(logins.arrives(5, loud, EVICTABLE), evicted(1), "half of them are an address's share");
        logins.begins(2, loud);
        assert_eq!(logins.arrives(6, loud, EVICTABLE), evicted(3), "who has begun a login stays");
        for serial in 7..=10 {
            assert_eq!(logins.arrives(serial, ip(&format!("192.0.2.{serial}")), EVICTABLE), None);
        }
        assert_eq!(logins.arrives(11, other, EVICTABLE), evicted(4), "those of who has the most go first");
        logins.ends(4, loud);
        logins.ends(11, other);
        assert_eq!(logins.arrives(12, other, EVICTABLE), None, "one is gone");
        assert_eq!(logins.arrives(13, other, EVICTABLE), evicted(5));
    }

    #[test]
    fn logins_that_hang_leave_room_for_newcomers() {
        let logins = Logins::new(8);
        for serial in 1..=8 {
            let from = ip(&format!("192.0.2.{serial}"));
            assert_eq!(logins.arrives(serial, from, EVICTABLE), None);
            logins.begins(serial, from);
        }
        assert_eq!(logins.arrives(9, ip("192.0.2.9"), EVICTABLE), evicted(1));
        assert_eq!(logins.arrives(10, ip("192.0.2.10"), EVICTABLE), evicted(2));
        assert_eq!(
            logins.arrives(11, ip("192.0.2.11"), EVICTABLE),
            evicted(9),
            "two silent ones are a quarter"
        );
    }

    #[test]
    fn one_host_of_ipv6_is_one_network_whatever_its_address() {
        let logins = Logins::new(2);
        assert_eq!(logins.arrives(1, ip("2001:db8::1"), EVICTABLE), None);
        assert_eq!(logins.arrives(2, ip("2001:db8::ffff:2"), EVICTABLE), evicted(1));
        assert_eq!(logins.arrives(3, ip("2001:db8:0:1::1"), EVICTABLE), None);
        assert_eq!(network(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }

    #[test]
    fn discovery_sessions_have_a_bound_of_their_own() {
        let (logins, loud, other) = (Logins::new(2), ip("192.0.2.1"), ip("192.0.2.2"));
        for (serial, expected) in [(1, None), (2, evicted(1)), (3, evicted(2))] {
            assert_eq!(logins.arrives(serial, loud, EVICTABLE), None);
            logins.begins(serial, loud);
            assert_eq!(logins.discovers(serial, loud), expected);
        }
        let discovers = |serial, from| {
            logins.arrives(serial, from, EVICTABLE);
            logins.discovers(serial, from)
        };
        assert_eq!(discovers(4, other), None);
        assert_eq!(discovers(5, ip("192.0.2.3")), evicted(3));
        logins.ends(4, other);
        assert_eq!(discovers(6, other), None);
    }

    #[test]
    fn silent_connections_are_evicted_first_then_idle_discoveries_then_logins() {
        let (logins, from) = (Logins::new(8), ip("192.0.2.1"));
        for serial in 1..=3 {
            logins.arrives(serial, from, EVICTABLE);
        }
        logins.begins(1, from);
        logins.discovers(2, from);
        for serial in [3, 2, 1] {
            assert_eq!(logins.takes_one(), evicted(serial));
        }
        assert_eq!(logins.takes_one(), None);
    }

    #[test]
    fn a_new_connection_is_not_evicted_before_hung_logins() {
        let (logins, from) = (Logins::new(64), ip("192.0.2.1"));
        for serial in 1..=4 {
            logins.arrives(serial, from, EVICTABLE);
            logins.begins(serial, from);
        }
        logins.arrives(5, ip("192.0.2.2"), EVICTABLE);
        assert_eq!(logins.takes_one(), evicted(1));
        assert_eq!(logins.takes_one(), evicted(5), "now it is one of four");
    }

    #[test]
    fn an_evicted_connection_does_not_move() {
        let (logins, from) = (Logins::new(1), ip("192.0.2.1"));
        logins.arrives(1, from, EVICTABLE);
        assert!(logins.hand_over(1, from, 3, || {}));
        assert_eq!(logins.arrives(2, from, EVICTABLE), Some(Evicted { core: 3, serial: 1 }));
        assert!(!logins.hand_over(1, from, 2, || unreachable!("it does not move")));
    }

    #[test]
    fn an_evicted_connection_is_not_counted_twice() {
        let (logins, from) = (Logins::new(2), ip("192.0.2.1"));
        logins.arrives(1, from, EVICTABLE);
        assert_eq!(logins.takes_one(), evicted(1));
        assert_eq!(logins.discovers(1, from), None);
        assert_eq!(logins.takes_one(), None, "it goes already");
    }

    #[test]
    fn parting_connections_are_evicted_first_and_are_bounded() {
        let (logins, from) = (Logins::new(4), ip("192.0.2.1"));
        logins.arrives(1, from, EVICTABLE);
        for (serial, expected) in [(2, None), (3, None), (4, evicted(2))] {
            assert_eq!(logins.parts(serial, from, EVICTABLE), expected);
        }
        logins.ends(4, from);
        for serial in [3, 1] {
            assert_eq!(logins.takes_one(), evicted(serial));
        }
    }

    #[test]
    fn a_connection_without_a_descriptor_is_not_evicted_for_one() {
        let (logins, loud, other) = (Logins::new(8), ip("192.0.2.1"), ip("192.0.2.2"));
        for serial in 1..=3 {
            logins.arrives(serial, loud, Evictable { core: 0, has_socket: false });
        }
        logins.arrives(4, other, EVICTABLE);
        assert_eq!(logins.takes_one(), evicted(4));
        assert_eq!(logins.takes_one(), None);
    }
}
