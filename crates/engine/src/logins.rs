//! Connections that nobody vouches for: those that log in, and discovery sessions. Both are bounded, and a newcomer is never
//! turned away for want of room: it takes the place of another, the oldest of those whose network has the most.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard};

/// The connections that log in, and the discovery sessions.
#[derive(Debug)]
pub(crate) struct Logins {
    /// How many may log in, and how many discovery sessions there may be.
    max: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Those that have not begun a login yet.
    silent: Pool,
    /// Those that have.
    begun: Pool,
    discoveries: Pool,
}

/// A connection that makes room for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Evicted {
    /// Its core.
    pub(crate) core: usize,
    /// Its serial number.
    pub(crate) serial: u64,
}

/// Connections by network, each with the core that it is on. Serial numbers rise with age.
#[derive(Debug, Default)]
struct Pool {
    networks: BTreeMap<IpAddr, BTreeMap<u64, usize>>,
    count: usize,
}

impl Logins {
    /// None; so many may log in at once, and so many discovery sessions may there be.
    pub(crate) fn new(max: usize) -> Self {
        Logins { max, waiting: Mutex::default() }
    }

    /// A connection that begins to log in, and which other makes room for it.
    pub(crate) fn arrives(&self, serial: u64, from: IpAddr, core: usize) -> Option<Evicted> {
        let (mut waiting, network) = (self.lock(), network(from));
        let evicted = waiting.make_room(network, self.max);
        waiting.silent.insert(network, serial, core);
        evicted
    }

    /// It has begun a login.
    pub(crate) fn begins(&self, serial: u64, from: IpAddr) {
        let (mut waiting, network) = (self.lock(), network(from));
        if let Some(core) = waiting.silent.remove(network, serial) {
            waiting.begun.insert(network, serial, core);
        }
    }

    /// Its login is over, for a discovery session; and which other makes room for it.
    pub(crate) fn discovers(&self, serial: u64, from: IpAddr, core: usize) -> Option<Evicted> {
        let (mut waiting, network) = (self.lock(), network(from));
        waiting.forget(network, serial);
        let pool = &mut waiting.discoveries;
        let evicted = match pool.count_of(network) >= share(self.max) {
            true => pool.take_oldest(network),
            false if pool.count >= self.max => pool.take_oldest_of_most(),
            false => None,
        };
        pool.insert(network, serial, core);
        evicted
    }

    /// Which connection goes when there is a want of what all share: one that has not begun a login, if a quarter of those that
    /// log in have not, as in [`Waiting::make_room`].
    pub(crate) fn takes_one(&self) -> Option<Evicted> {
        let Waiting { silent, begun, discoveries } = &mut *self.lock();
        let is_silent = silent.count >= (silent.count + begun.count).div_ceil(4);
        let order = if is_silent { [silent, discoveries, begun] } else { [discoveries, begun, silent] };
        order.into_iter().find_map(Pool::take_oldest_of_most)
    }

    /// Its login or discovery session is over.
    pub(crate) fn ends(&self, serial: u64, from: IpAddr) {
        self.lock().forget(network(from), serial);
    }

    /// Moves a connection that logs in to another core by `go`; false when it has made room for another, and must not move.
    /// Nobody learns of the new core before `go` has posted the connection to it.
    pub(crate) fn hand_over(&self, serial: u64, from: IpAddr, core: usize, go: impl FnOnce()) -> bool {
        let (mut waiting, network) = (self.lock(), network(from));
        let Waiting { silent, begun, .. } = &mut *waiting;
        match silent.find(network, serial).or_else(|| begun.find(network, serial)) {
            Some(entry) => {
                *entry = core;
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
    /// Those that have not begun a login go first, but for a quarter, which is theirs: otherwise logins that hang would leave
    /// a newcomer no time to begin one.
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
        if is_silent { &mut self.silent } else { &mut self.begun }.take_oldest_of_most()
    }

    fn forget(&mut self, network: IpAddr, serial: u64) {
        for pool in [&mut self.silent, &mut self.begun, &mut self.discoveries] {
            pool.remove(network, serial);
        }
    }
}

impl Pool {
    fn count_of(&self, network: IpAddr) -> usize {
        self.networks.get(&network).map_or(0, BTreeMap::len)
    }

    fn find(&mut self, network: IpAddr, serial: u64) -> Option<&mut usize> {
        self.networks.get_mut(&network)?.get_mut(&serial)
    }

    fn insert(&mut self, network: IpAddr, serial: u64, core: usize) {
        self.networks.entry(network).or_default().insert(serial, core);
        self.count += 1;
    }

    fn remove(&mut self, network: IpAddr, serial: u64) -> Option<usize> {
        let members = self.networks.get_mut(&network)?;
        let core = members.remove(&serial)?;
        if members.is_empty() {
            self.networks.remove(&network);
        }
        self.count -= 1;
        Some(core)
    }

    fn take_oldest(&mut self, network: IpAddr) -> Option<Evicted> {
        let serial = *self.networks.get(&network)?.first_key_value()?.0;
        let core = self.remove(network, serial)?;
        Some(Evicted { core, serial })
    }

    fn take_oldest_of_most(&mut self) -> Option<Evicted> {
        let oldest =
            |members: &BTreeMap<u64, usize>| members.first_key_value().map(|(serial, _)| Reverse(*serial));
        let most = self.networks.iter().max_by_key(|(_, members)| (members.len(), oldest(members)));
        self.take_oldest(*most?.0)
    }
}

/// How many of so many one network may have.
fn share(max: usize) -> usize {
    max.div_ceil(2)
}

/// What counts as one peer: an address, with IPv6 the network of a host, which has any number of addresses.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(logins.arrives(serial, loud, 0), None);
        }
        assert_eq!(logins.arrives(5, loud, 0), evicted(1), "half of them are an address's share");
        logins.begins(2, loud);
        assert_eq!(logins.arrives(6, loud, 0), evicted(3), "who has begun a login stays");
        for serial in 7..=10 {
            assert_eq!(logins.arrives(serial, ip(&format!("192.0.2.{serial}")), 0), None);
        }
        assert_eq!(logins.arrives(11, other, 0), evicted(4), "those of who has the most go first");
        logins.ends(4, loud);
        logins.ends(11, other);
        assert_eq!(logins.arrives(12, other, 0), None, "one is gone");
        assert_eq!(logins.arrives(13, other, 0), evicted(5));
    }

    #[test]
    fn logins_that_hang_leave_room_for_newcomers() {
        let logins = Logins::new(8);
        for serial in 1..=8 {
            let from = ip(&format!("192.0.2.{serial}"));
            assert_eq!(logins.arrives(serial, from, 0), None);
            logins.begins(serial, from);
        }
        assert_eq!(logins.arrives(9, ip("192.0.2.9"), 0), evicted(1));
        assert_eq!(logins.arrives(10, ip("192.0.2.10"), 0), evicted(2));
        assert_eq!(logins.arrives(11, ip("192.0.2.11"), 0), evicted(9), "two silent ones are a quarter");
    }

    #[test]
    fn one_host_of_ipv6_is_one_network_whatever_its_address() {
        let logins = Logins::new(2);
        assert_eq!(logins.arrives(1, ip("2001:db8::1"), 0), None);
        assert_eq!(logins.arrives(2, ip("2001:db8::ffff:2"), 0), evicted(1));
        assert_eq!(logins.arrives(3, ip("2001:db8:0:1::1"), 0), None);
        assert_eq!(network(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }

    #[test]
    fn discovery_sessions_have_a_bound_of_their_own() {
        let (logins, loud, other) = (Logins::new(2), ip("192.0.2.1"), ip("192.0.2.2"));
        for (serial, expected) in [(1, None), (2, evicted(1)), (3, evicted(2))] {
            assert_eq!(logins.arrives(serial, loud, 0), None);
            logins.begins(serial, loud);
            assert_eq!(logins.discovers(serial, loud, 0), expected);
        }
        assert_eq!(logins.discovers(4, other, 0), None);
        assert_eq!(logins.discovers(5, ip("192.0.2.3"), 0), evicted(3));
        logins.ends(4, other);
        assert_eq!(logins.discovers(6, other, 0), None);
    }

    #[test]
    fn who_is_silent_goes_first_then_idle_discoveries_then_logins() {
        let (logins, from) = (Logins::new(8), ip("192.0.2.1"));
        for serial in 1..=3 {
            logins.arrives(serial, from, 0);
        }
        logins.begins(1, from);
        logins.discovers(2, from, 0);
        for serial in [3, 2, 1] {
            assert_eq!(logins.takes_one(), evicted(serial));
        }
        assert_eq!(logins.takes_one(), None);
    }

    #[test]
    fn who_has_just_come_does_not_go_before_many_logins_that_hang() {
        let (logins, from) = (Logins::new(64), ip("192.0.2.1"));
        for serial in 1..=4 {
            logins.arrives(serial, from, 0);
            logins.begins(serial, from);
        }
        logins.arrives(5, ip("192.0.2.2"), 0);
        assert_eq!(logins.takes_one(), evicted(1));
        assert_eq!(logins.takes_one(), evicted(5), "now it is one of four");
    }

    #[test]
    fn who_has_made_room_does_not_move() {
        let (logins, from) = (Logins::new(1), ip("192.0.2.1"));
        logins.arrives(1, from, 0);
        assert!(logins.hand_over(1, from, 3, || {}));
        assert_eq!(logins.arrives(2, from, 0), Some(Evicted { core: 3, serial: 1 }));
        assert!(!logins.hand_over(1, from, 2, || unreachable!("it does not move")));
    }
}
