//! One core's state of RDMA devices.

use super::Error;
use super::cm::{CmEvent, EventChannel, Id, forget_removed};
use super::device::Device;
use super::listener::Incoming;
use super::pair::{Depths, QueuePair};
use super::sys::RDMA_CM_EVENT_DEVICE_REMOVAL;
use reactor::io::Handle;
use reactor::memory::Arena;
use std::io;
use std::sync::{Arc, Weak};

/// The descriptor of the channel for connection events; each device has two more.
const CONNECTIONS: u32 = 0;
const PER_DEVICE: u32 = 2;
/// Tokens from here on belong to identifiers that anchor devices, not to connections.
const ANCHORS: u64 = u64::MAX - u32::MAX as u64;

/// The devices that a core's connections use. A descriptor to watch has a number. Once it is readable,
/// [`Devices::ready`] reports what has happened, and whether to watch it again.
pub struct Devices {
    channel: Arc<EventChannel>,
    /// Indexed by the numbers of their descriptors.
    devices: Vec<Slot>,
    to_watch: Vec<(u32, Handle)>,
    /// Devices that were removed, but that the library still has open.
    removed: Vec<Weak<Device>>,
}

/// A device, and whether its descriptors are watched.
enum Slot {
    Used(Arc<Device>),
    /// The device was removed. It is kept until this many descriptors are no longer watched: a watched one
    /// keeps the device from being released.
    Removed {
        _device: Arc<Device>,
        watched: u32,
    },
    Gone,
}

/// An event.
pub enum DeviceEvent {
    /// Stop watching the descriptor with this number; call [`Devices::ready`] once it is no longer watched.
    Unwatch(u32),
    /// There are completions in a connection's completion queue.
    Completed {
        /// Which connection.
        token: u64,
    },
    /// A connection has changed.
    Connection {
        /// Which connection.
        token: u64,
        /// The change.
        event: Change,
    },
    /// Something happened to a device.
    Device {
        /// The device's name.
        name: String,
        /// Text for the log.
        text: String,
        /// The device has failed.
        has_failed: bool,
    },
}

/// A change of a connection.
pub struct Change(pub(super) CmEvent);

impl Devices {
    /// No devices yet.
    ///
    /// # Errors
    /// The libraries are missing, or the kernel has no RDMA/CM.
    pub fn new() -> Result<Devices, Error> {
        let channel = EventChannel::new()?;
        let to_watch = vec![(CONNECTIONS, Handle(channel.descriptor()))];
        Ok(Devices { channel, devices: Vec::new(), to_watch, removed: Vec::new() })
    }

    /// Descriptors to watch from now on, each with its number.
    pub fn to_watch(&mut self) -> impl Iterator<Item = (u32, Handle)> {
        self.to_watch.drain(..)
    }

    /// Takes a peer's connection request; its events are reported with this token.
    ///
    /// # Errors
    /// The device cannot be used, or has no room for it. The peer was rejected.
    pub fn take(
        &mut self,
        incoming: Incoming,
        token: u64,
        depths: Depths,
        arena: &Arena,
    ) -> Result<QueuePair, Error> {
        match self.device(&incoming, arena) {
            Ok(device) => QueuePair::new(incoming, device, &self.channel, token, depths),
            Err(error) => {
                incoming.reject();
                Err(error)
            }
        }
    }

    /// The device with this name has failed, as another core has noticed: its connections end when they are
    /// polled.
    pub fn fail(&mut self, name: &str) {
        for slot in &self.devices {
            if let Slot::Used(device) = slot
                && device.name == name
            {
                device.fail();
            }
        }
    }

    /// Call it now and then while [`Devices::wants_ticks`]: makes the library release removed devices, once
    /// nothing of this core uses them any more.
    pub fn tick(&mut self) {
        let before = self.removed.len();
        self.removed.retain(|device| device.strong_count() > 0);
        if self.removed.len() < before {
            // The library is loaded: devices were found with it.
            let _ = forget_removed();
        }
    }

    /// Whether a removed device is still in use.
    pub fn wants_ticks(&self) -> bool {
        !self.removed.is_empty()
    }

    /// A descriptor with this number is readable. Returns it to be watched again; `None`: stop watching it.
    pub fn ready(&mut self, number: u32, happened: &mut Vec<DeviceEvent>) -> Option<Handle> {
        if number == CONNECTIONS {
            return self.connections_changed(happened);
        }
        let index = (number - 1) / PER_DEVICE;
        let is_completions = (number - 1).is_multiple_of(PER_DEVICE);
        let slot = self.devices.get_mut(index as usize)?;
        let used = match slot {
            Slot::Used(device) => device,
            Slot::Removed { watched, .. } => {
                *watched -= 1;
                if *watched == 0 {
                    *slot = Slot::Gone;
                }
                return None;
            }
            Slot::Gone => return None,
        };
        let broken = match is_completions {
            true => loop {
                match used.completed() {
                    Ok(token) => happened.push(DeviceEvent::Completed { token }),
                    Err(error) => break error,
                }
            },
            false => loop {
                match used.event() {
                    Ok(None) => {}
                    Ok(Some(text)) => {
                        let (name, has_failed) = (used.name.clone(), used.has_failed());
                        happened.push(DeviceEvent::Device { name, text, has_failed });
                    }
                    Err(error) => break error,
                }
            },
        };
        if broken.kind() == io::ErrorKind::WouldBlock {
            let descriptor =
                if is_completions { used.completions_descriptor() } else { used.events_descriptor() };
            return Some(Handle(descriptor));
        }
        // The device was removed.
        self.removed(index as usize, Some(number), happened);
        None
    }

    fn connections_changed(&mut self, happened: &mut Vec<DeviceEvent>) -> Option<Handle> {
        loop {
            match self.channel.next() {
                Ok((id, event)) => {
                    // SAFETY: the identifier is alive: the library reports no events for destroyed ones, and
                    // only this thread destroys those of this channel.
                    let token = unsafe { (*id).context.addr() as u64 };
                    match token.checked_sub(ANCHORS) {
                        None => happened.push(DeviceEvent::Connection { token, event: Change(event) }),
                        Some(index) if event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL => {
                            self.removed(index as usize, None, happened);
                        }
                        Some(_) => {}
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Some(Handle(self.channel.descriptor()));
                }
                Err(error) => {
                    let text = format!("connection events can no longer be read: {error}");
                    happened.push(DeviceEvent::Device { name: "RDMA/CM".into(), text, has_failed: true });
                    return None;
                }
            }
        }
    }

    /// The device's connections get the removal as an event of their own, and hold the device until they have
    /// ended. `unwatched` is not watched any more.
    fn removed(&mut self, index: usize, unwatched: Option<u32>, happened: &mut Vec<DeviceEvent>) {
        let Some(slot) = self.devices.get_mut(index) else { return };
        let Slot::Used(device) = slot else { return };
        let text = format!("{}: the device was removed", device.name);
        happened.push(DeviceEvent::Device { name: device.name.clone(), text, has_failed: true });
        self.removed.push(Arc::downgrade(device));
        let first = first_number(index);
        let watched = (first..first + PER_DEVICE).filter(|number| Some(*number) != unwatched);
        let before = happened.len();
        happened.extend(watched.map(DeviceEvent::Unwatch));
        *slot = Slot::Removed { _device: device.clone(), watched: (happened.len() - before) as u32 };
    }

    /// The device on which a peer's request arrived, with the core's arena registered.
    fn device(&mut self, incoming: &Incoming, arena: &Arena) -> Result<Arc<Device>, Error> {
        let context = incoming.id.context();
        let known = self.devices.iter().find_map(|slot| match slot {
            Slot::Used(device) => Some(device).filter(|device| device.context.as_ptr() == context),
            Slot::Removed { .. } | Slot::Gone => None,
        });
        if let Some(device) = known {
            return Ok(device.clone());
        }
        let mut anchor = Id::new(&self.channel)?;
        // With the scope ID of a link-local address.
        let mut address = incoming.addresses.0;
        address.set_port(0);
        anchor.bind(address)?;
        if anchor.context() != context {
            return Err(Error::Unfit("several devices have the address that it connected to".into()));
        }
        let index = self.devices.len();
        anchor.set_token(ANCHORS + index as u64);
        let device = Device::new(anchor, arena)?;
        // Numbers are not reused: a descriptor of an earlier device may still be reported.
        let number = first_number(index);
        self.to_watch.push((number, Handle(device.completions_descriptor())));
        self.to_watch.push((number + 1, Handle(device.events_descriptor())));
        self.devices.push(Slot::Used(device.clone()));
        Ok(device)
    }
}

/// The first number of a device's descriptors.
fn first_number(index: usize) -> u32 {
    CONNECTIONS + 1 + index as u32 * PER_DEVICE
}
