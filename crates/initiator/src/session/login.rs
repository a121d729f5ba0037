//! A session's connections until they are logged in.

use super::link::Link;
use super::resolving::Resolving;
use super::{ATTEMPT_BITS, CONNECT, KIND_BITS, RECV, SEND, Session, State};
use crate::Destination;
use crate::carrier::Carrier;
use crate::frames::{Frames, Tags};
use proto::iscsi::chap::{Algorithm, Challenge};
use proto::iscsi::initiator::InitiatorConfig;
use proto::iscsi::login::{Digests, Elsewhere, InitiatorChap, Offers, Plan};
use proto::time::Time;
use reactor::crc::crc32c;
use reactor::io::{Errno, Handle, Io, Tag};
use std::net::SocketAddr;

impl Session {
    /// Begins a login at the next address of the target.
    pub(super) fn connect<I: Io>(&mut self, io: &mut I) {
        let now = io.now();
        self.outage.begins(now);
        match self.route.next() {
            Some(Destination::Address(address)) => self.connect_to(io, address),
            Some(Destination::Interface(interface)) => {
                self.next_attempt();
                self.use_interface(io, &interface);
            }
            None => self.failed(now, "the target has no address"),
        }
    }

    /// Connects to an address of the target, or one to which it has redirected the login.
    pub(super) fn connect_to<I: Io>(&mut self, io: &mut I, address: SocketAddr) {
        self.next_attempt();
        io.connect(address, self.tag(CONNECT));
        self.attempts_open += 1;
        self.state = State::Connecting(io.now().after(self.options.login_within));
    }

    /// Continues where the target has redirected the login to.
    pub(super) fn follow<I: Io>(&mut self, io: &mut I, to: Elsewhere) {
        let now = io.now();
        match to {
            Elsewhere::Address(address) => self.connect_to(io, address),
            // The resolver still has an earlier one, and its thread.
            Elsewhere::Name { .. }
                if self.resolving.as_mut().is_some_and(|one| one.addresses().is_none()) =>
            {
                self.failed(now, "the resolver of names does not answer");
            }
            Elsewhere::Name { host, port } => {
                self.next_attempt();
                self.resolving = Some(Resolving::begin(host, port));
                self.state = State::Resolving(now.after(self.options.login_within));
            }
        }
    }

    /// Connects once the name is resolved.
    pub(super) fn look_for_address<I: Io>(&mut self, io: &mut I, is_late: bool) {
        let now = io.now();
        match self.resolving.as_mut().and_then(Resolving::addresses) {
            Some(found) => {
                self.resolving = None;
                match found.map(|addresses| self.route.one_of(addresses)) {
                    Ok(Some(address)) => self.connect_to(io, address),
                    Ok(None) => self.failed(now, "the name has no address"),
                    Err(error) => self.failed(now, &error.to_string()),
                }
            }
            None if is_late => self.failed(now, "the resolver of names does not answer"),
            None => {}
        }
    }

    fn next_attempt(&mut self) {
        self.attempt = (self.attempt + 1) & ((1 << ATTEMPT_BITS) - 1);
    }

    /// Begins a session over frames, which has no connection.
    fn use_interface<I: Io>(&mut self, io: &mut I, interface: &str) {
        let now = io.now();
        let tags = Tags { frames: self.tag(RECV), clock: self.tag(SEND) };
        let lane = self.left.as_ref().map(|left| left.lane.clone());
        let link = Frames::open(io, interface, tags, lane).and_then(|frames| {
            let (config, lost_after) = (self.config()?, self.options.keep_alive);
            let earlier = self.left.take().map(|left| *left.machine);
            let machine = Carrier::aoe(&self.url, &config, &frames, lost_after, earlier, io)?;
            Ok(Link::on_interface(machine, frames))
        });
        match link {
            Ok(link) => self.state = State::Connected(Box::new(link)),
            Err(error) => self.failed(now, &error.to_string()),
        }
    }

    pub(super) fn tag(&self, kind: u64) -> Tag {
        Tag(self.tags.0 + (self.attempt << KIND_BITS | kind))
    }

    /// The connection is established, or not.
    pub(super) fn connected<I: Io>(&mut self, io: &mut I, result: Result<u32, Errno>) {
        let now = io.now();
        let socket = match result {
            Ok(socket) => Handle(socket as i32),
            Err(errno) => {
                let reason = std::io::Error::from_raw_os_error(errno.0).to_string();
                return self.failed(now, &reason);
            }
        };
        match self.machine(socket, io) {
            Ok(machine) => {
                let mut link = Link::on_stream(machine, socket, self.tag(RECV), self.tag(SEND));
                link.feed(io);
                self.state = State::Connected(Box::new(link));
            }
            Err(error) => {
                io.close(socket);
                self.failed(now, &error.to_string());
            }
        }
    }

    fn machine<I: Io>(&self, socket: Handle, io: &I) -> std::io::Result<Carrier> {
        Carrier::new(&self.url, self.config()?, socket, io).map_err(std::io::Error::other)
    }

    fn config(&self) -> std::io::Result<InitiatorConfig> {
        Ok(InitiatorConfig {
            plan: self.plan()?,
            queue_depth: self.options.queue_depth,
            login_within: self.options.login_within,
            idle: self.options.keep_alive,
            crc32c,
        })
    }

    fn plan(&self) -> std::io::Result<Plan> {
        let mut random = [0; Challenge::RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let digests = |asked| if asked { Digests::Required } else { Digests::Never };
        let chap = self.url.user.clone().map(|own| InitiatorChap {
            own,
            target: self.url.target_user.clone(),
            algorithms: self.url.chap.map_or(Algorithm::ALL.to_vec(), |only| vec![only]),
            is_required: self.url.chap.is_some(),
            random,
        });
        Ok(Plan {
            initiator: self.port.name.clone(),
            alias: None,
            target: self.url.target.clone(),
            isid: self.port.isid,
            chap,
            offers: Offers {
                header_digest: digests(self.url.header_digest),
                data_digest: digests(self.url.data_digest),
                initial_r2t: !self.options.unsolicited_data,
                immediate_data: self.options.unsolicited_data,
                first_burst: 262_144,
                ..Offers::default()
            },
            text_bytes: 8192,
        })
    }

    /// There is no connection; the next attempt follows after a while.
    pub(super) fn failed(&mut self, now: Time, reason: &str) {
        let reason = self.route.failed(reason);
        self.state = State::Resting(self.outage.failed(&self.url, now, &reason));
    }
}
