//! Where a core listens.

mod accept;

use proto::time::Time;
use reactor::io::{Handle, Io};

/// A connection whose descriptor is one of those that the daemon keeps for itself. Another connection ends to give it its own,
/// and one more if that takes too long; where there is none, the newcomer is refused. Until then its portal accepts no more, so
/// there is one such connection per portal at most.
#[derive(Debug)]
struct Newcomer {
    portal: usize,
    socket: Handle,
    /// When another connection is asked for, should this one not have ended.
    until: Time,
}

/// A portal where a connection could not be accepted.
#[derive(Debug)]
struct PausedPortal {
    portal: usize,
    /// When it tries again, unless there is a descriptor before.
    until: Time,
}

/// Where this core listens.
#[derive(Debug)]
pub(super) struct Listeners {
    /// Portals where it waits for a connection.
    listens: Vec<bool>,
    /// Connections that wait for a descriptor.
    newcomers: Vec<Newcomer>,
    /// Portals where a connection could not be accepted, to be tried again in a while.
    paused_portals: Vec<PausedPortal>,
}

impl Listeners {
    pub(super) fn new(portals: usize) -> Listeners {
        Listeners { listens: vec![false; portals], newcomers: Vec::new(), paused_portals: Vec::new() }
    }

    /// Whether something is to be tried again.
    pub(super) fn want_ticks(&self) -> bool {
        !self.paused_portals.is_empty() || !self.newcomers.is_empty()
    }

    /// Portals where something is to be tried again, or where a connection should have made room by now.
    fn due(&mut self, now: Time) -> Vec<usize> {
        let again: Vec<PausedPortal> =
            self.paused_portals.extract_if(.., |paused| paused.until <= now).collect();
        let late = self.newcomers.iter().filter(|newcomer| newcomer.until <= now);
        again.iter().map(|paused| paused.portal).chain(late.map(|newcomer| newcomer.portal)).collect()
    }

    /// Nobody is held any more when the daemon stops.
    pub(super) fn close<I: Io>(&mut self, io: &mut I) {
        for Newcomer { socket, .. } in self.newcomers.drain(..) {
            io.close(socket);
        }
    }
}
