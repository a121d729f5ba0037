//! Where an iWARP device puts the data it reads: memory of one connection, from which the data is copied to
//! its place. An RDMA Read reveals the STag of its sink to the peer (RFC 5040 section 4.4), and devices
//! require that it allow the peer to write. So a sink contains only what its own peer has sent: the STag of
//! the arena, which holds the data of all connections, is never exposed.

use super::device::{Device, Registered};
use super::sys::*;
use super::{Error, last};
use reactor::memory::{LARGE_BYTES, Region};
use std::ptr::NonNull;
use std::sync::Arc;
use wire::Span;

/// Places that can be read into at a time.
const PLACES: u32 = u16::BITS;

/// Such memory: places of [`LARGE_BYTES`] each.
pub(super) struct Sink {
    // Dropped before the memory.
    _registration: Option<Registration>,
    registered: Registered,
    memory: Arc<Region>,
    /// Bit n is set while place n is free.
    free: u16,
}

struct Registration {
    device: Arc<Device>,
    region: NonNull<IbvMr>,
}

impl Sink {
    /// For a connection on this device.
    pub(super) fn new(device: &Arc<Device>) -> Result<Sink, Error> {
        let memory = map()?;
        let (base, bytes) = memory.mapping();
        // SAFETY: the memory stays mapped there until after it is deregistered. There are no references to
        // it: data is copied out.
        let region = unsafe {
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
            (device.library.ibv_reg_mr)(device.pd.as_ptr(), base.cast(), bytes, access)
        };
        let region = NonNull::new(region).ok_or_else(|| {
            last("registering a connection's buffers (is LimitMEMLOCK, ulimit -l, large enough?)")
        })?;
        // SAFETY: the region was created above.
        let lkey = unsafe { region.as_ref().lkey };
        let registered = Registered { arena: memory.id(), base: base.expose_provenance() as u64, lkey };
        let registration = Registration { device: device.clone(), region };
        Ok(Sink { _registration: Some(registration), registered, memory, free: u16::MAX })
    }

    /// One not registered with any device.
    #[cfg(test)]
    pub(super) fn unregistered(base: u64, lkey: u32) -> Sink {
        let memory = map().expect("memory");
        let registered = Registered { arena: memory.id(), base, lkey };
        Sink { _registration: None, registered, memory, free: u16::MAX }
    }

    /// How many places are free.
    pub(super) fn free(&self) -> usize {
        self.free.count_ones() as usize
    }

    /// Takes a place; there must be a free one.
    pub(super) fn take(&mut self, len: u32) -> Span {
        let index = self.free.trailing_zeros();
        assert!(index < PLACES && len <= LARGE_BYTES, "{len} bytes find no place");
        self.free &= !(1 << index);
        self.memory.span(u64::from(index * LARGE_BYTES), len).expect("the place is in the memory")
    }

    /// Releases a place.
    pub(super) fn give(&mut self, span: Span) {
        self.free |= 1 << (span.offset / u64::from(LARGE_BYTES));
    }

    /// A place as the device addresses it.
    pub(super) fn place(&self, span: Span) -> IbvSge {
        self.registered.place(span)
    }
}

fn map() -> Result<Arc<Region>, Error> {
    Region::map(u64::from(PLACES * LARGE_BYTES))
        .map_err(|error| Error::System { what: "memory for what a connection reads", error })
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it was created by `Sink::new`, and is destroyed once; the device holds what it depends on.
        unsafe { (self.device.library.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}
