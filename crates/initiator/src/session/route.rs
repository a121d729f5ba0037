//! The addresses of a target, and where a login is sent.

use crate::Destination;
use proto::iscsi::login::Elsewhere;
use std::borrow::Cow;

/// How often one login may be redirected.
const REDIRECTIONS_MAX: u8 = 4;

/// Each login begins at an address of the target, whatever redirected the one before (RFC 7143 section 11.13.5).
#[derive(Debug)]
pub(super) struct Route {
    addresses: Vec<Destination>,
    /// Counts logins.
    logins: usize,
    /// The address at which the last one has begun.
    address: Option<Destination>,
    /// Redirections of the current one.
    redirections: u8,
    /// The address of the last of them.
    redirected_to: Option<Elsewhere>,
    /// It has not been followed yet.
    is_pending: bool,
}

impl Route {
    /// These addresses in turn.
    pub(super) fn new(addresses: Vec<Destination>) -> Route {
        Route { addresses, logins: 0, address: None, redirections: 0, redirected_to: None, is_pending: false }
    }

    /// Where the next login begins.
    pub(super) fn next(&mut self) -> Option<Destination> {
        self.arrived();
        let next = self.logins % self.addresses.len().max(1);
        self.logins = self.logins.wrapping_add(1);
        self.address = self.addresses.get(next).cloned();
        self.address.clone()
    }

    /// The target redirects the current login.
    pub(super) fn redirected(&mut self, to: Elsewhere) {
        (self.redirected_to, self.is_pending) = (Some(to), true);
    }

    /// Where the current login continues, if it was redirected and that has not happened too often.
    pub(super) fn follow(&mut self) -> Option<Elsewhere> {
        if !self.is_pending || self.redirections == REDIRECTIONS_MAX {
            return None;
        }
        self.is_pending = false;
        self.redirections += 1;
        self.redirected_to.clone()
    }

    /// The one of several addresses that this login uses: another one than the last.
    pub(super) fn one_of<T>(&self, addresses: Vec<T>) -> Option<T> {
        let nth = self.logins.wrapping_sub(1) % addresses.len().max(1);
        addresses.into_iter().nth(nth)
    }

    /// The current login has succeeded.
    pub(super) fn arrived(&mut self) {
        (self.redirections, self.redirected_to, self.is_pending) = (0, None, false);
    }

    /// The current login has failed, for this reason; returns the whole of it.
    pub(super) fn failed<'a>(&mut self, reason: &'a str) -> Cow<'a, str> {
        let whole = match &self.redirected_to {
            Some(to) if self.is_pending => {
                format!("redirected more than {REDIRECTIONS_MAX} times, last to {to}").into()
            }
            Some(to) => format!("redirected to {to}: {reason}").into(),
            None => Cow::Borrowed(reason),
        };
        self.arrived();
        whole
    }

    /// From now on all logins begin where the last one did.
    pub(super) fn stay(&mut self) {
        self.addresses = self.address.clone().into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn each_login_begins_at_the_next_address_whatever_redirected_the_last_one() {
        let own = [1, 2].map(|port| Destination::Address(address(port)));
        let mut route = Route::new(own.to_vec());
        for redirections in [0, 1, 3] {
            for begin in &own {
                assert_eq!(route.next().as_ref(), Some(begin));
                for port in 0..redirections {
                    let to = Elsewhere::Address(address(10 + port));
                    route.redirected(to.clone());
                    assert_eq!(route.follow(), Some(to));
                    assert_eq!(route.follow(), None, "once");
                }
            }
        }
    }

    #[test]
    fn a_login_that_is_redirected_again_and_again_fails() {
        let mut route = Route::new(vec![Destination::Address(address(1))]);
        route.next();
        assert_eq!(route.failed("refused"), "refused");
        for _ in 0..2 {
            for _ in 0..REDIRECTIONS_MAX {
                route.redirected(Elsewhere::Address(address(2)));
                assert!(route.follow().is_some());
            }
            route.redirected(Elsewhere::Address(address(3)));
            assert_eq!(route.follow(), None);
            assert_eq!(route.failed("moved"), "redirected more than 4 times, last to 192.0.2.1:3");
        }
        route.redirected(Elsewhere::Address(address(2)));
        route.follow();
        assert_eq!(route.failed("refused"), "redirected to 192.0.2.1:2: refused");
        assert_eq!(route.failed("refused"), "refused", "the next login");
    }
}
