//! Connections over RDMA devices: requested at a listener, placed on a core before they are accepted, and
//! served there. Events of devices and connections arrive through descriptors that the ring watches.

use super::{asked_tag, watch, watch_tag};
use crate::core::Core;
use crate::core::connection::ending::log_refusal;
use crate::core::connection::{Connection, Phase};
use crate::message::{Facts, Message, Way};
use crate::slots::Key;
use crate::transport::{DEPTHS, DeviceChannel, Transport};
use rdma::verbs::{Arrival, DeviceEvent, Error, Incoming};
use reactor::io::{Handle, Io};
use reactor::limited;
use std::collections::BTreeSet;
use tracing::Level;

impl<I: Io> Core<I> {
    /// The descriptor of the RDMA listener that this core watches at a portal.
    pub(in crate::core) fn device_listener(&self, portal: usize) -> Option<Handle> {
        let is_ours = self.acceptor(portal) == Some(self.me);
        let endpoint = self.served.endpoint(portal).filter(|_| is_ours)?;
        endpoint.by_device.as_ref().map(|listener| listener.handle())
    }

    /// Watches the RDMA listener of a portal, if this is the core that accepts for it.
    pub(in crate::core) fn listen_by_device(&mut self, portal: usize) {
        if let Some(listener) = self.device_listener(portal)
            && !self.stop.has_begun()
            && !self.devices.watched.contains_key(&portal)
        {
            self.devices.watched.insert(portal, listener);
            self.io.watch(listener, asked_tag(portal));
        }
    }

    /// This core accepts RDMA connections at these portals only.
    pub(in crate::core) fn leave_devices(&mut self, ours: &BTreeSet<usize>) {
        for portal in self.devices.beside(|portal| self.device_listener(portal)) {
            self.io.unwatch(asked_tag(portal));
        }
        self.devices.deviceless.retain(|portal| ours.contains(portal));
        self.devices.paused_portals.retain(|portal| ours.contains(portal));
    }

    /// The listener of a portal has an event.
    pub(in crate::core) fn asked(&mut self, portal: usize) {
        let by = self.devices.watched.remove(&portal);
        if by != self.device_listener(portal) {
            // It was to stop on this core.
            self.listen_by_device(portal);
            return self.acknowledge_changes();
        }
        let Some(endpoint) = self.served.endpoint(portal).cloned() else { return };
        let Some(listener) = &endpoint.by_device else { return };
        let address = endpoint.address;
        loop {
            match listener.next_arrival() {
                Arrival::Asked(incoming) if self.stop.has_begun() => incoming.reject(),
                Arrival::Asked(incoming) => {
                    let core = self.place_new(portal);
                    self.post(core, Message::Arrive { portal, incoming });
                }
                Arrival::Removed => {
                    tracing::warn!("{address}: the RDMA device that listened there was removed");
                    self.devices.deviceless.push(portal);
                }
                Arrival::Nothing => return self.listen_by_device(portal),
                Arrival::Broken(error) => {
                    limited!(
                        "RDMA listeners that failed",
                        Level::ERROR,
                        "{address}: events of RDMA devices cannot be read: {error}"
                    );
                    return self.devices.paused_portals.push(portal);
                }
            }
        }
    }

    /// Listens again where a device is back, and where something has failed.
    pub(in crate::core) fn relisten(&mut self) {
        if let Some(devices) = &mut self.devices.open {
            devices.tick();
        }
        for portal in std::mem::take(&mut self.devices.paused_portals) {
            self.listen_by_device(portal);
        }
        let served = &self.served;
        self.devices.deviceless.retain(|portal| {
            let Some(endpoint) = served.endpoint(*portal) else { return false };
            let Some(listener) = &endpoint.by_device else { return false };
            let is_back = listener.relisten().is_ok();
            if is_back {
                tracing::info!("{}: an RDMA device listens again", endpoint.address);
            }
            !is_back
        });
    }

    /// A peer is served on this core, if it may log in.
    pub(in crate::core) fn arrive(&mut self, portal: usize, incoming: Incoming) {
        let (local, from) = incoming.addresses;
        let Some((_, config::Portal { transports, .. })) = self.served.portal(portal) else {
            return incoming.reject();
        };
        let is_srp = incoming.asks_for_srp();
        let (name, is_offered) = if is_srp { ("SRP", transports.srp) } else { ("iSER", transports.iser) };
        if self.stop.has_begun() {
            return incoming.reject();
        }
        let way = Way::Portal { number: portal, from, local };
        if !is_offered {
            log_refusal(&way, &format!("it speaks {name}, which this portal does not offer"));
            return incoming.reject();
        }
        let serial = self.shared.registry.next_serial();
        let facts = Facts::new(serial, way, &self.served, self.io.now());
        self.arrives(&facts, from, false);
        if let Err(error) = self.welcome_by_device(incoming, is_srp, facts) {
            self.shared.logins.ends(serial, from.ip());
            log_refusal(&way, &format!("its RDMA device cannot be used: {error}"));
        }
        self.devices.watch(&mut self.io);
    }

    fn welcome_by_device(&mut self, incoming: Incoming, is_srp: bool, facts: Facts) -> Result<(), Error> {
        let devices = match self.devices.devices() {
            Ok(devices) => devices,
            Err(error) => {
                incoming.reject();
                return Err(error);
            }
        };
        let (access, now, (local, from)) = (self.served.access.clone(), self.io.now(), incoming.addresses);
        let arena = self.io.arena();
        let key = self.connections.try_insert_with(|key| {
            let pair = devices.take(incoming, token(key), DEPTHS, arena)?;
            let channel = DeviceChannel::new(pair, is_srp, access, from, local, now);
            let transport = Transport::Device(channel);
            Ok::<_, Error>(Connection::new(transport, facts, Phase::Login, None))
        })?;
        self.mark_dirty(key);
        self.move_load(key, Some(self.me));
        Ok(())
    }

    /// Something has happened to a device, or to connections.
    pub(in crate::core) fn device_ready(&mut self, number: u32) {
        let Some(devices) = &mut self.devices.open else { return };
        let mut happened = std::mem::take(&mut self.devices.happened);
        let rearm = devices.ready(number, &mut happened);
        for happened in happened.drain(..) {
            match happened {
                DeviceEvent::Device { name, text, has_failed: true } => {
                    tracing::error!("RDMA device {text}");
                    // One core is notified.
                    for core in 0..self.cores() {
                        self.post(core, Message::DeviceFailed { name: name.clone() });
                    }
                }
                DeviceEvent::Device { text, has_failed: false, .. } => tracing::info!("RDMA device {text}"),
                DeviceEvent::Unwatch(number) => self.io.unwatch(watch_tag(number)),
                DeviceEvent::Completed { token } => self.with_channel(token, DeviceChannel::completed),
                DeviceEvent::Connection { token, event } => {
                    self.with_channel(token, |channel| channel.changed(event));
                }
            }
        }
        self.devices.happened = happened;
        if let Some(descriptor) = rearm.filter(|_| self.devices.open.is_some()) {
            watch(&mut self.io, number, descriptor);
        }
    }

    /// Its connections end.
    pub(in crate::core) fn device_failed(&mut self, name: &str) {
        let Some(devices) = &mut self.devices.open else { return };
        devices.fail(name);
        for key in self.keys_where(|conn| matches!(conn.machine, Transport::Device(_))) {
            self.mark_dirty(key);
        }
    }

    fn with_channel(&mut self, token: u64, act: impl FnOnce(&mut DeviceChannel)) {
        let key = Key { index: (token >> 32) as u32, generation: token as u32 };
        let conn = self.connections.get_mut(key);
        if let Some(channel) = conn.and_then(|conn| conn.machine.device_mut()) {
            act(channel);
            self.mark_dirty(key);
        }
    }
}

fn token(key: Key) -> u64 {
    u64::from(key.index) << 32 | u64::from(key.generation)
}
