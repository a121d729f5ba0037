//! Connections over an RDMA device: the same machines, over verbs.

use super::RECEIVES_MAX;
use crate::access::ConfiguredAccess;
use crate::events::Refusal;
use proto::iser::target::Target as IserTarget;
use proto::services::{Down, Up};
use proto::srp::target::Target as SrpTarget;
use proto::time::Time;
use rdma::Channel;
use rdma::verbs::{Change, Depths, QueuePair};
use reactor::io::Io;
use reactor::memory::Arena;
use std::net::SocketAddr;
use std::sync::Arc;

/// What one connection may have posted. Each command takes one or two work requests, more where a device
/// reads into few places at a time.
pub(crate) const DEPTHS: Depths = Depths { work: 512, receives: RECEIVES_MAX };

/// Events that one connection gets per turn, so that a loud peer does not starve the others.
const EVENTS_MAX: u32 = 256;

/// The machine of one connection, with its queue pair.
pub(crate) struct DeviceChannel {
    carried: Carried,
    /// Events that were reported in this turn.
    events: u32,
}

enum Carried {
    Iser(Box<Channel<IserTarget, QueuePair>>),
    Srp(Box<Channel<SrpTarget, QueuePair>>),
}

/// Does the same with either machine.
macro_rules! each {
    ($of:expr, $channel:ident => $act:expr) => {
        match $of {
            Carried::Iser($channel) => $act,
            Carried::Srp($channel) => $act,
        }
    };
}

impl DeviceChannel {
    /// For a connection that a peer requests, `from` there on this `portal`.
    pub(crate) fn new(
        pair: QueuePair,
        is_srp: bool,
        access: Arc<ConfiguredAccess>,
        from: SocketAddr,
        portal: SocketAddr,
        now: Time,
    ) -> DeviceChannel {
        let (iscsi, srp) = (access.iscsi_config(), access.srp_config());
        let carried = match is_srp {
            false => {
                let target = IserTarget::new(iscsi, pair.depths().receives, access, from, portal, now);
                Carried::Iser(Box::new(Channel::accepting(pair, target)))
            }
            true => {
                let target = SrpTarget::new(srp, access, from, portal, now);
                Carried::Srp(Box::new(Channel::accepting(pair, target)))
            }
        };
        DeviceChannel { carried, events: 0 }
    }

    /// Passes a call down from the engine.
    pub(crate) fn down(&mut self, now: Time, down: Down) {
        each!(&mut self.carried, channel => channel.machine_mut().down(now, down));
    }

    /// As [`super::Transport::limit_window`].
    pub(super) fn limit_window(&mut self, commands: u32) -> bool {
        match &mut self.carried {
            Carried::Iser(channel) => channel.machine_mut().limit_window(commands),
            Carried::Srp(_) => false,
        }
    }

    /// The oldest event for the engine. If there is none, posts what is owed, in one batch, and handles what
    /// has arrived.
    pub(crate) fn poll<I: Io>(&mut self, io: &mut I) -> Option<Up> {
        let may_report = self.events < EVENTS_MAX;
        let up = each!(&mut self.carried, channel => {
            let next = if may_report { channel.event() } else { None };
            next.or_else(|| {
                channel.run(io.now(), io.arena());
                if may_report { channel.event() } else { None }
            })
        });
        self.events += u32::from(up.is_some());
        up
    }

    /// The turn has ended: in the next one the connection may have its share again.
    pub(crate) fn end_turn(&mut self) {
        self.events = 0;
    }

    /// Something has completed.
    pub(crate) fn completed(&mut self) {
        each!(&mut self.carried, channel => channel.pair_mut().completed());
    }

    /// The connection has changed.
    pub(crate) fn changed(&mut self, change: Change) {
        each!(&mut self.carried, channel => channel.pair_mut().changed(change));
    }

    /// With `true`, messages wait from now on.
    pub(crate) fn hold(&mut self, hold: bool) {
        each!(&mut self.carried, channel => channel.pair_mut().hold(hold));
    }

    /// Whether it waits for memory, or has had its share of this turn: it is to be polled again in the next.
    pub(crate) fn wants_more(&self) -> bool {
        self.events >= EVENTS_MAX || each!(&self.carried, channel => channel.wants_more())
    }

    /// When [`DeviceChannel::tick`] wants to be called next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        each!(&self.carried, channel => channel.deadline())
    }

    /// Time has reached the deadline.
    pub(crate) fn tick(&mut self, now: Time) {
        each!(&mut self.carried, channel => channel.tick(now));
    }

    /// The connection is to end.
    pub(crate) fn shut_down(&mut self, now: Time) {
        each!(&mut self.carried, channel => channel.shut_down(now, "closed by this side"));
    }

    /// Whether the connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        each!(&self.carried, channel => channel.is_over())
    }

    /// Releases its memory.
    pub(crate) fn close(self, arena: &mut Arena) {
        each!(self.carried, channel => channel.close(arena));
    }

    /// The machine of SRP.
    pub(super) fn srp_mut(&mut self) -> Option<&mut SrpTarget> {
        match &mut self.carried {
            Carried::Iser(_) => None,
            Carried::Srp(channel) => Some(channel.machine_mut()),
        }
    }

    /// Whether it speaks SRP.
    pub(crate) fn is_srp(&self) -> bool {
        match self.carried {
            Carried::Iser(_) => false,
            Carried::Srp(_) => true,
        }
    }

    /// As [`super::Transport::has_begun`].
    pub(super) fn has_begun(&self) -> bool {
        each!(&self.carried, channel => channel.machine().has_begun())
    }

    /// As [`super::Transport::refusal`].
    pub(super) fn refusal(&self) -> Option<Refusal> {
        each!(&self.carried, channel => channel.machine().refusal().map(Refusal::from))
    }

    /// For the log.
    pub(crate) fn name(&self) -> &'static str {
        match self.carried {
            Carried::Iser(_) => "iSER, device",
            Carried::Srp(_) => "SRP, device",
        }
    }
}
