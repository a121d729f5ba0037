//! A listening address.

use super::Error;
use super::cm::{CmEvent, EventChannel, Id, forget_removed};
use super::sys::*;
use reactor::io::Handle;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Pending connection requests.
const BACKLOG: i32 = 128;

/// Listens for connection requests.
pub struct Listener {
    address: SocketAddr,
    channel: Arc<EventChannel>,
    /// `None`: its device was removed.
    id: Mutex<Option<Id>>,
}

/// An event of a listener.
pub enum Arrival {
    /// A peer requests a connection.
    Asked(Box<Incoming>),
    /// The device was removed: there are no more requests until [`Listener::relisten`] succeeds.
    Removed,
    /// Nothing for now.
    Nothing,
    /// The listener has failed.
    Broken(io::Error),
}

/// A connection request. If it is dropped, the peer gets no answer and times out.
pub struct Incoming {
    pub(super) id: Id,
    pub(super) asked: CmEvent,
    /// Local and peer address.
    pub addresses: (SocketAddr, SocketAddr),
}

impl Incoming {
    /// Whether its private data is an SRP login. That of iSER has four bytes or none (RFC 7145 section 5.1),
    /// followed by zeros, since InfiniBand's messages have private data of fixed length.
    pub fn asks_for_srp(&self) -> bool {
        is_srp(&self.asked.private_data)
    }

    /// Rejects it, without private data.
    pub fn reject(mut self) {
        // A peer that is gone needs no answer.
        let _ = self.id.reject(&[]);
    }
}

fn is_srp(private_data: &[u8]) -> bool {
    const ISER_BYTES: usize = 4;
    private_data.iter().skip(ISER_BYTES).any(|byte| *byte != 0)
}

impl Listener {
    /// Listens on an address, on the device that has it or on all.
    ///
    /// # Errors
    /// The libraries are missing, no device has the address, or it is in use.
    pub fn new(address: SocketAddr) -> Result<Listener, Error> {
        let channel = EventChannel::new()?;
        let id = listen(&channel, address)?;
        Ok(Listener { address, channel, id: Mutex::new(Some(id)) })
    }

    /// Readable when there is an event.
    pub fn handle(&self) -> Handle {
        Handle(self.channel.descriptor())
    }

    /// The next event.
    pub fn next_arrival(&self) -> Arrival {
        loop {
            let (id, event) = match self.channel.next() {
                Ok(heard) => heard,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Arrival::Nothing,
                Err(error) => return Arrival::Broken(error),
            };
            match event.kind {
                RDMA_CM_EVENT_CONNECT_REQUEST => {
                    // SAFETY: the event is a connection request on this channel, and such an event brings a
                    // new identifier.
                    let Some(id) = (unsafe { Id::asked(&self.channel, id) }) else { continue };
                    let Some(addresses) = id.addresses() else { continue };
                    return Arrival::Asked(Box::new(Incoming { id, asked: event, addresses }));
                }
                RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    let mut own = self.id.lock().unwrap_or_else(PoisonError::into_inner);
                    // An event of a requested connection that is on its way to its core: that core will find
                    // out.
                    if own.as_ref().is_some_and(|own| own.as_ptr() == id) {
                        *own = None;
                        return Arrival::Removed;
                    }
                }
                _ => {}
            }
        }
    }

    /// Listens again after the device was removed.
    ///
    /// # Errors
    /// As [`Listener::new`]: the device is not back yet.
    pub fn relisten(&self) -> Result<(), Error> {
        forget_removed()?;
        let id = listen(&self.channel, self.address)?;
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
        Ok(())
    }
}

fn listen(channel: &Arc<EventChannel>, address: SocketAddr) -> Result<Id, Error> {
    let mut id = Id::new(channel)?;
    id.listen(address, BACKLOG)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_distinguishes_iser_from_srp() {
        let mut padded = [0; 56];
        assert!(!is_srp(&[]) && !is_srp(&padded));
        padded[0] = 0xc0;
        assert!(!is_srp(&padded) && !is_srp(&[0x80, 0, 0, 0]));
        // A login's descriptor formats.
        padded[9] = 6;
        assert!(is_srp(&padded));
    }
}
