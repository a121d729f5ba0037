//! Where a core listens.

mod accept;

use proto::time::Time;
use reactor::io::{Handle, Io};
use std::collections::BTreeMap;

/// A connection whose descriptor is one of those that the daemon keeps for itself. Another connection ends to give it its own,
/// and one more if that takes too long; where there is none, the new connection is refused. Until then its portal accepts no more, so
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
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// Portals where it waits for a connection, and by what, each until the kernel has ended that.
    listens: BTreeMap<usize, Handle>,
    /// Connections that wait for a descriptor.
    newcomers: Vec<Newcomer>,
    /// Portals where a connection could not be accepted, to be tried again in a while.
    paused_portals: Vec<PausedPortal>,
}

impl Listeners {
    /// Portals where it waits for a connection, but not by what is there for that.
    pub(super) fn beside(&self, there: impl Fn(usize) -> Option<Handle>) -> Vec<usize> {
        let is_there =
            |(portal, handle): (&usize, &Handle)| (there(*portal) != Some(*handle)).then_some(*portal);
        self.listens.iter().filter_map(is_there).collect()
    }

    /// Whether something is to be tried again.
    pub(super) fn want_ticks(&self) -> bool {
        !self.paused_portals.is_empty() || !self.newcomers.is_empty()
    }

    /// Portals where something is to be tried again, or where a connection should have made room by now.
    fn due(&mut self, now: Time) -> Vec<usize> {
        let retries: Vec<PausedPortal> =
            self.paused_portals.extract_if(.., |paused| paused.until <= now).collect();
        let late = self.newcomers.iter().filter(|newcomer| newcomer.until <= now);
        retries.iter().map(|paused| paused.portal).chain(late.map(|newcomer| newcomer.portal)).collect()
    }

    /// Portals where this core does not accept any more: those who wait there, to be closed.
    fn leave(&mut self, is_lost: impl Fn(usize) -> bool) -> Vec<Handle> {
        self.paused_portals.retain(|paused| !is_lost(paused.portal));
        self.newcomers
            .extract_if(.., |newcomer| is_lost(newcomer.portal))
            .map(|newcomer| newcomer.socket)
            .collect()
    }

    /// Nobody is held any more when the daemon stops.
    pub(super) fn close<I: Io>(&mut self, io: &mut I) {
        for Newcomer { socket, .. } in self.newcomers.drain(..) {
            io.close(socket);
        }
    }
}
