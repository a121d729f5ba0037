//! How TCP connections are accepted, and held while there is no descriptor for them.

use super::{AwaitingDescriptor, PausedPortal};
use crate::core::connection::Phase;
use crate::core::connection::ending::log_refusal;
use crate::core::{Core, kind};
use crate::message::{Facts, Message, Way};
use crate::transport::Transport;
use proto::time::Time;
use reactor::io::{Errno, Handle, Io, Tag};
use reactor::limited;
use rustix::io::Errno as Code;
use std::collections::BTreeSet;
use std::time::Duration;
use tracing::Level;

/// How long a connection may take to close when it has to make room for another.
const ROOM_WITHIN: Duration = Duration::from_secs(2);

/// Why a connection is refused.
const NO_DESCRIPTOR: &str = "the limit of open files is reached, except for those that the daemon reserves \
(LimitNOFILE, ulimit -n)";

impl<I: Io> Core<I> {
    /// The core that accepts for a portal.
    pub(in crate::core) fn acceptor(&self, portal: usize) -> Option<usize> {
        let cores = self.served.cores_of(portal);
        cores.first().and_then(|first| self.core_index(*first))
    }

    pub(in crate::core) fn core_index(&self, core: usize) -> Option<usize> {
        self.shared.config.cores.iter().position(|number| *number == core)
    }

    /// The socket on which this core accepts at a portal.
    fn accepts_by(&self, portal: usize) -> Option<Handle> {
        let is_ours = self.acceptor(portal) == Some(self.me);
        self.served.endpoint(portal).filter(|_| is_ours).and_then(|endpoint| endpoint.handle)
    }

    /// Listens on a portal, if this is the core that accepts for it.
    pub(in crate::core) fn listen(&mut self, portal: usize) {
        if let Some(listener) = self.accepts_by(portal)
            && !self.stop.has_begun()
            && !self.listeners.listens.contains_key(&portal)
        {
            self.listeners.listens.insert(portal, listener);
            self.listeners.paused_portals.retain(|paused| paused.portal != portal);
            self.io.accept(listener, accept_tag(portal));
        }
    }

    /// Portals were added or removed, or moved between cores: this core listens where it should, and soon
    /// nowhere else.
    pub(in crate::core) fn listen_where_served(&mut self) {
        let served = self.served.clone();
        let all = served.endpoints.iter().map(|endpoint| endpoint.number);
        let ours: BTreeSet<usize> = all.filter(|portal| self.acceptor(*portal) == Some(self.me)).collect();
        for portal in self.listeners.beside(|portal| self.accepts_by(portal)) {
            self.io.unwatch(accept_tag(portal));
        }
        for socket in self.listeners.leave(|portal| !ours.contains(&portal)) {
            self.io.close(socket);
        }
        self.leave_devices(&ours);
        for portal in ours {
            self.listen(portal);
            self.listen_by_device(portal);
        }
    }

    /// Whether this core still listens where it should not.
    pub(in crate::core) fn still_listens(&self) -> bool {
        !self.listeners.beside(|portal| self.accepts_by(portal)).is_empty()
            || !self.devices.beside(|portal| self.device_listener(portal)).is_empty()
    }

    pub(in crate::core) fn accepted(&mut self, portal: usize, result: Result<u32, Errno>) {
        let by = self.listeners.listens.remove(&portal);
        if by != self.accepts_by(portal) {
            // It was to stop here, and nothing is accepted on this socket any more.
            result.into_iter().for_each(|handle| self.io.close(Handle(handle as i32)));
            self.listen(portal);
            return self.acknowledge_changes();
        }
        match result {
            Ok(handle) => self.descriptor_assigned(portal, Handle(handle as i32)),
            // It was to stop listening here, and is now to listen again.
            Err(error) if error.0 == Code::CANCELED.raw_os_error() => self.listen(portal),
            Err(error) if !self.stop.has_begun() => self.not_accepted(portal, error),
            Err(_) => {}
        }
    }

    /// The kernel holds the connection until the portal listens again: if this process has no descriptor
    /// left, as soon as another connection has made room, and otherwise after a while, as an immediate retry
    /// would fail. (If the whole machine has none left, another process may take what becomes free, and
    /// ending connections would end all of them.)
    fn not_accepted(&mut self, portal: usize, error: Errno) {
        limited!(
            "connections that could not be accepted",
            Level::WARN,
            "a connection could not be accepted: {}",
            std::io::Error::from_raw_os_error(error.0)
        );
        let wants_descriptor = error.0 == Code::MFILE.raw_os_error();
        let is_asked = wants_descriptor && self.ask_for_room(portal);
        let until = if is_asked { self.io.now().after(ROOM_WITHIN) } else { self.io.now() };
        self.listeners.paused_portals.push(PausedPortal { portal, until });
    }

    /// Retries what was refused a while ago, and no longer waits for a connection that should have made room
    /// by now.
    pub(in crate::core) fn retry_accepts(&mut self, now: Time) {
        for portal in self.listeners.due(now) {
            self.room_made(portal);
        }
    }

    /// The kernel assigns the lowest free descriptor, so beyond a certain one only those are left that the
    /// daemon itself needs.
    fn descriptor_assigned(&mut self, portal: usize, socket: Handle) {
        if socket.0 < self.shared.sockets_end || self.stop.has_begun() {
            self.begin_login(portal, socket);
        } else if self.ask_for_room(portal) {
            let until = self.io.now().after(ROOM_WITHIN);
            return self.listeners.awaiting_descriptor.push(AwaitingDescriptor { portal, socket, until });
        } else {
            if let Some((local, from)) = self.io.addresses(socket) {
                log_refusal(&Way::Portal { number: portal, from, local }, NO_DESCRIPTOR);
            }
            self.io.close(socket);
        }
        self.listen(portal);
    }

    /// Ends another connection to make room at a portal, if there is one to end: [`Core::room_made`] follows.
    fn ask_for_room(&mut self, portal: usize) -> bool {
        let evicted = self.shared.logins.takes_one();
        self.evict(evicted, Some(portal));
        evicted.is_some()
    }

    /// A connection that was to make room at a portal has ended.
    pub(in crate::core) fn notify_room_made(&mut self, portal: Option<usize>) {
        if let Some(portal) = portal
            && let Some(core) = self.acceptor(portal)
        {
            self.post(core, Message::RoomMade { portal });
        }
    }

    /// The new connection at a portal gets the descriptor that has become free, unless something else was
    /// faster.
    pub(in crate::core) fn room_made(&mut self, portal: usize) {
        let Some(index) =
            self.listeners.awaiting_descriptor.iter().position(|newcomer| newcomer.portal == portal)
        else {
            return self.listen(portal);
        };
        let AwaitingDescriptor { socket, .. } = self.listeners.awaiting_descriptor.swap_remove(index);
        let socket = match self.io.duplicate(socket) {
            Some(lowest) => {
                self.io.close(socket);
                lowest
            }
            None => socket,
        };
        self.descriptor_assigned(portal, socket);
    }

    fn begin_login(&mut self, portal: usize, socket: Handle) {
        let addresses = self.io.addresses(socket);
        let offered = self.served.portal(portal).map(|(_, portal)| portal.transports);
        let (Some((local, from)), Some(offered), false) = (addresses, offered, self.stop.has_begun()) else {
            return self.io.close(socket);
        };
        let way = Way::Portal { number: portal, from, local };
        let facts = Facts::new(self.shared.registry.next_serial(), way, &self.served, self.io.now());
        self.arrives(&facts, from, true);
        let access = self.served.access.clone();
        let machine = Transport::accepted(access, from, local, offered, self.io.now());
        let key = self.install(machine, facts, Phase::Login, socket, Vec::new());
        self.move_load(key, Some(self.me));
    }
}

fn accept_tag(portal: usize) -> Tag {
    Tag(kind::ACCEPT << kind::SHIFT | (portal as u64) << 32)
}
