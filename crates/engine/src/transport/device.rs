//! Connections that have come by an RDMA device: the same machines, over verbs.

use super::RECEIVES_MAX;
use crate::access::Directory;
use proto::iscsi::target::TargetConfig;
use proto::iser::target::Target as IserTarget;
use proto::srp::target::Target as SrpTarget;
use proto::time::Time;
use proto::verbs::{Down, Up};
use rdma::Channel;
use rdma::verbs::{Change, Depths, QueuePair};
use reactor::io::Io;
use reactor::memory::Arena;
use std::net::SocketAddr;
use std::sync::Arc;

/// What one connection may have posted. Each command takes one or two work requests, more where a device reads to few
/// places at a time.
pub(crate) const DEPTHS: Depths = Depths { work: 512, receives: RECEIVES_MAX };

/// The machine of one connection, with its queue pair.
pub(crate) enum DeviceChannel {
    /// iSER.
    Iser(Channel<IserTarget, QueuePair>),
    /// SRP.
    Srp(Channel<SrpTarget, QueuePair>),
}

/// Does the same with either.
macro_rules! each {
    ($of:expr, $channel:ident => $act:expr) => {
        match $of {
            DeviceChannel::Iser($channel) => $act,
            DeviceChannel::Srp($channel) => $act,
        }
    };
}

impl DeviceChannel {
    /// For a connection that a peer asks for, `from` there on this `portal`.
    pub(crate) fn new(
        pair: QueuePair,
        is_srp: bool,
        access: Arc<Directory>,
        from: SocketAddr,
        portal: SocketAddr,
        now: Time,
    ) -> DeviceChannel {
        let (iscsi, srp): (TargetConfig, _) = (access.iscsi_config(), access.srp_config());
        match is_srp {
            false => DeviceChannel::Iser(Channel::asked_by(
                pair,
                IserTarget::new(iscsi, access, from, portal, now),
            )),
            true => {
                DeviceChannel::Srp(Channel::asked_by(pair, SrpTarget::new(srp, access, from, portal, now)))
            }
        }
    }

    /// Takes a verb from above.
    pub(crate) fn down(&mut self, now: Time, down: Down) {
        each!(self, channel => channel.machine_mut().down(now, down));
    }

    /// Takes what has come, posts what is owed, and returns the oldest event for the layer above.
    pub(crate) fn poll<I: Io>(&mut self, io: &mut I) -> Option<Up> {
        each!(self, channel => {
            channel.run(io.now(), io.arena());
            channel.event()
        })
    }

    /// Something has completed.
    pub(crate) fn completed(&mut self) {
        each!(self, channel => channel.pair_mut().completed());
    }

    /// The connection has changed.
    pub(crate) fn changed(&mut self, change: Change) {
        each!(self, channel => channel.pair_mut().changed(change));
    }

    /// With `true`, messages wait from now on.
    pub(crate) fn hold(&mut self, hold: bool) {
        each!(self, channel => channel.pair_mut().hold(hold));
    }

    /// Whether it waits for memory: it is to be polled again in the next turn.
    pub(crate) fn wants_more(&self) -> bool {
        each!(self, channel => channel.wants_more())
    }

    /// When [`DeviceChannel::tick`] wants to be called next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        each!(self, channel => channel.deadline())
    }

    /// Time has reached the deadline.
    pub(crate) fn tick(&mut self, now: Time) {
        each!(self, channel => channel.tick(now));
    }

    /// The connection is to end.
    pub(crate) fn shut_down(&mut self, now: Time) {
        each!(self, channel => channel.shut_down(now, "closed by this side"));
    }

    /// Whether the connection is no more.
    pub(crate) fn is_over(&self) -> bool {
        each!(self, channel => channel.is_over())
    }

    /// Gives its memory back.
    pub(crate) fn close(self, arena: &mut Arena) {
        each!(self, channel => channel.close(arena));
    }

    /// Whether it speaks SRP.
    pub(crate) fn is_srp(&self) -> bool {
        match self {
            DeviceChannel::Iser(_) => false,
            DeviceChannel::Srp(_) => true,
        }
    }

    /// For the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            DeviceChannel::Iser(_) => "iSER, device",
            DeviceChannel::Srp(_) => "SRP, device",
        }
    }
}
