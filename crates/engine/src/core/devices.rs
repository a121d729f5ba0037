//! The RDMA devices of a core.

mod connect;

use super::kind;
use rdma::verbs::{DeviceEvent, Devices, Error};
use reactor::io::{Handle, Io, Tag};
use std::collections::BTreeMap;

/// A core's part in serving RDMA devices.
#[derive(Default)]
pub(super) struct RdmaDevices {
    /// The devices, once there is a connection over one.
    open: Option<Devices>,
    /// Portals whose listener is watched, with the descriptor, each until the kernel has ended the watch.
    watched: BTreeMap<usize, Handle>,
    /// Portals whose device is gone: they listen again once it is back.
    deviceless: Vec<usize>,
    /// Portals whose listener failed; retried at the next tick.
    paused_portals: Vec<usize>,
    /// What has happened to devices, while it is handled.
    happened: Vec<DeviceEvent>,
}

impl RdmaDevices {
    /// Whether something has to be retried.
    pub(super) fn want_ticks(&self) -> bool {
        !self.deviceless.is_empty()
            || !self.paused_portals.is_empty()
            || self.open.as_ref().is_some_and(Devices::wants_ticks)
    }

    /// Portals where a listener other than the present one is watched.
    pub(super) fn beside(&self, there: impl Fn(usize) -> Option<Handle>) -> Vec<usize> {
        let is_there =
            |(portal, handle): (&usize, &Handle)| (there(*portal) != Some(*handle)).then_some(*portal);
        self.watched.iter().filter_map(is_there).collect()
    }

    /// Watches new descriptors.
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
