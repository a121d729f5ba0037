//! Where a core listens.

mod accept;

use proto::time::Time;
use reactor::io::{Handle, Io};
use std::collections::BTreeMap;

/// A connection whose descriptor is one of those that the daemon reserves. Another connection is ended to
/// free its own for it, and one more if that takes too long; where there is none, the new connection is
/// refused. Until then its portal accepts no more, so there is at most one such connection per portal.
#[derive(Debug)]
struct AwaitingDescriptor {
    portal: usize,
    socket: Handle,
    /// When another connection is ended, if the first has not closed by then.
    until: Time,
}

/// A portal where a connection could not be accepted.
#[derive(Debug)]
struct PausedPortal {
    portal: usize,
    /// When it tries again, unless a descriptor becomes free before.
    until: Time,
}

/// Where this core listens.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// Portals where it accepts connections, with the listening socket, each until the kernel has ended that.
    listens: BTreeMap<usize, Handle>,
    /// Connections that wait for a descriptor.
    awaiting_descriptor: Vec<AwaitingDescriptor>,
    /// Portals where a connection could not be accepted, to be retried later.
    paused_portals: Vec<PausedPortal>,
}

impl Listeners {
    /// Portals where it accepts on a socket other than the present one.
    pub(super) fn beside(&self, there: impl Fn(usize) -> Option<Handle>) -> Vec<usize> {
        let is_there =
            |(portal, handle): (&usize, &Handle)| (there(*portal) != Some(*handle)).then_some(*portal);
        self.listens.iter().filter_map(is_there).collect()
    }

    /// Whether something has to be retried.
    pub(super) fn want_ticks(&self) -> bool {
        !self.paused_portals.is_empty() || !self.awaiting_descriptor.is_empty()
    }

    /// Portals where something has to be retried, or where a connection should have made room by now.
    fn due(&mut self, now: Time) -> Vec<usize> {
        let retries: Vec<PausedPortal> =
            self.paused_portals.extract_if(.., |paused| paused.until <= now).collect();
        let late = self.awaiting_descriptor.iter().filter(|newcomer| newcomer.until <= now);
        retries.iter().map(|paused| paused.portal).chain(late.map(|newcomer| newcomer.portal)).collect()
    }

    /// This core stops accepting at some portals. Returns the sockets that wait there, to be closed.
    fn leave(&mut self, is_lost: impl Fn(usize) -> bool) -> Vec<Handle> {
        self.paused_portals.retain(|paused| !is_lost(paused.portal));
        self.awaiting_descriptor
            .extract_if(.., |newcomer| is_lost(newcomer.portal))
            .map(|newcomer| newcomer.socket)
            .collect()
    }

    /// The daemon stops: connections that wait are closed.
    pub(super) fn close<I: Io>(&mut self, io: &mut I) {
        for AwaitingDescriptor { socket, .. } in self.awaiting_descriptor.drain(..) {
            io.close(socket);
        }
    }
}
