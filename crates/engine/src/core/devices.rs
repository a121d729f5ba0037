//! The RDMA devices of a core.

mod connect;

use super::kind;
use rdma::verbs::{Devices, Error, Happened};
use reactor::io::{Handle, Io, Tag};
use std::collections::BTreeMap;

/// What this core has to do with RDMA devices.
#[derive(Default)]
pub(super) struct DeviceDesk {
    /// The devices, once there is a connection by one.
    open: Option<Devices>,
    /// Portals whose listener is watched, and by which descriptor, each until the kernel has ended that.
    watched: BTreeMap<usize, Handle>,
    /// Portals whose device is gone: once it is back it listens again.
    deviceless: Vec<usize>,
    /// Portals whose listener failed; tried again with the next tick.
    paused_portals: Vec<usize>,
    /// What has happened to devices, while it is looked at.
    happened: Vec<Happened>,
}

impl DeviceDesk {
    /// Whether something is to be tried again.
    pub(super) fn want_ticks(&self) -> bool {
        !self.deviceless.is_empty()
            || !self.paused_portals.is_empty()
            || self.open.as_ref().is_some_and(Devices::wants_ticks)
    }

    /// Portals where a listener is watched that is not the one there.
    pub(super) fn beside(&self, there: impl Fn(usize) -> Option<Handle>) -> Vec<usize> {
        let is_there =
            |(portal, handle): (&usize, &Handle)| (there(*portal) != Some(*handle)).then_some(*portal);
        self.watched.iter().filter_map(is_there).collect()
    }

    /// Watches descriptors that have come.
    fn watch<I: Io>(&mut self, io: &mut I) {
        for (number, descriptor) in self.open.iter_mut().flat_map(Devices::to_watch) {
            watch(io, number, descriptor);
        }
    }

    /// All devices.
    ///
    /// # Errors
    /// When none are available.
    fn devices(&mut self) -> Result<&mut Devices, Error> {
        match &mut self.open {
            Some(devices) => Ok(devices),
            none => Ok(none.insert(Devices::new()?)),
        }
    }
}

fn watch<I: Io>(io: &mut I, number: u32, descriptor: Handle) {
    io.watch_peers(descriptor, watch_tag(number));
}

fn asked_tag(portal: usize) -> Tag {
    Tag(kind::ASKED << kind::SHIFT | (portal as u64) << 32)
}

fn watch_tag(number: u32) -> Tag {
    Tag(kind::DEVICE << kind::SHIFT | u64::from(number) << 32)
}
