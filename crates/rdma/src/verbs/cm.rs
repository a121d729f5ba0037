//! Connection identifiers (`rdma_cm_id`), and the event channels that report their events.

use super::library::{Library, library};
use super::sys::*;
use super::{Error, done, last, set_nonblocking};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::{self, NonNull};
use std::sync::Arc;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// An event channel of identifiers.
pub(super) struct EventChannel {
    library: &'static Library,
    channel: NonNull<RdmaEventChannel>,
}

// SAFETY: the channel is a descriptor and no more; librdmacm reads from it and counts events under its own locks.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// An event of an identifier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CmEvent {
    /// The library's number for it.
    pub kind: i32,
    /// Why it failed: an error number, or the reason of a rejection.
    pub status: i32,
    /// The private data that the peer has sent with it.
    pub private_data: Vec<u8>,
    /// RDMA Reads that the peer wants to issue at a time, and those that it serves.
    pub reads_wanted: u8,
    pub reads_served: u8,
}

impl EventChannel {
    pub(super) fn new() -> Result<Arc<EventChannel>, Error> {
        let library = library()?;
        // SAFETY: the call takes no arguments.
        let channel = unsafe { (library.rdma_create_event_channel)() };
        let Some(channel) = NonNull::new(channel) else {
            return Err(last("opening an RDMA event channel (is the module rdma_ucm loaded?)"));
        };
        let channel = EventChannel { library, channel };
        set_nonblocking(channel.descriptor())?;
        Ok(Arc::new(channel))
    }

    pub(super) fn descriptor(&self) -> i32 {
        // SAFETY: the channel lives as long as this does.
        unsafe { self.channel.as_ref().fd }
    }

    /// The oldest event, with its identifier: a new one, to be owned by [`Id`], when a peer requests a
    /// connection. An error: there is none now, or the channel is broken.
    pub(super) fn next(&self) -> std::io::Result<(*mut RdmaCmId, CmEvent)> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive; the library writes the event's address.
        if unsafe { (self.library.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut event) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the event is the library's, and valid until it is acknowledged, below. It concerns a
        // connection, since no other identifiers are created, so `conn` is the union's active field.
        let (id, copy) = unsafe {
            let event = &*event;
            let conn = &event.conn;
            let len = usize::from(conn.private_data_len);
            let private_data = match conn.private_data.is_null() {
                true => Vec::new(),
                false => std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec(),
            };
            let (reads_wanted, reads_served) = (conn.responder_resources, conn.initiator_depth);
            let copy =
                CmEvent { kind: event.event, status: event.status, private_data, reads_wanted, reads_served };
            (event.id, copy)
        };
        // SAFETY: the event was returned by the call above, and nothing refers to it any more.
        unsafe { (self.library.rdma_ack_cm_event)(event) };
        Ok((id, copy))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: all identifiers of the channel are destroyed, since each holds it by `Arc`; its events are
        // acknowledged.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel.as_ptr()) }
    }
}

/// An identifier: to a connection what a socket is to TCP.
pub(super) struct Id {
    library: &'static Library,
    id: NonNull<RdmaCmId>,
    /// Destroyed after the identifier.
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm's functions may be called from any thread, and this is the only owner of the identifier.
unsafe impl Send for Id {}

impl Id {
    /// One that is not bound yet.
    pub(super) fn new(channel: &Arc<EventChannel>) -> Result<Id, Error> {
        let library = channel.library;
        let mut id = ptr::null_mut();
        // SAFETY: the channel is alive; the library writes the identifier's address.
        let made = unsafe {
            let channel = channel.channel.as_ptr();
            (library.rdma_create_id)(channel, &raw mut id, ptr::null_mut(), RDMA_PS_TCP)
        };
        done("creating an RDMA identifier", made)?;
        let id = NonNull::new(id).ok_or_else(|| last("creating an RDMA identifier"))?;
        Ok(Id { library, id, channel: channel.clone() })
    }

    /// Takes ownership of the new identifier of an event on this channel.
    ///
    /// # Safety
    /// It was returned by [`EventChannel::next`] of this channel for a connection request, and is passed only
    /// once.
    pub(super) unsafe fn asked(channel: &Arc<EventChannel>, id: *mut RdmaCmId) -> Option<Id> {
        Some(Id { library: channel.library, id: NonNull::new(id)?, channel: channel.clone() })
    }

    pub(super) fn as_ptr(&self) -> *mut RdmaCmId {
        self.id.as_ptr()
    }

    /// The device; null as long as there is none.
    pub(super) fn context(&self) -> *mut IbvContext {
        // SAFETY: the identifier lives as long as this does.
        unsafe { self.id.as_ref().verbs }
    }

    /// Sets the token returned with its events.
    pub(super) fn set_token(&mut self, token: u64) {
        // SAFETY: the identifier is alive, and the field is its user's.
        unsafe { self.id.as_mut().context = ptr::without_provenance_mut(token as usize) }
    }

    /// Moves its events to another channel.
    pub(super) fn migrate(&mut self, channel: &Arc<EventChannel>) -> Result<(), Error> {
        // SAFETY: identifier and channel are alive; all events of the identifier are acknowledged.
        let moved = unsafe { (self.library.rdma_migrate_id)(self.as_ptr(), channel.channel.as_ptr()) };
        done("moving a connection to another core", moved)?;
        self.channel = channel.clone();
        Ok(())
    }

    /// Listens on an address; an IPv6 one accepts IPv6 connections only, as our TCP listeners do.
    pub(super) fn listen(&mut self, address: SocketAddr, backlog: i32) -> Result<(), Error> {
        for option in [RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY] {
            let mut on = 1i32;
            // SAFETY: the identifier is alive, and the value is an int, as both options require.
            let set = unsafe {
                let (value, bytes) = ((&raw mut on).cast(), size_of::<i32>());
                (self.library.rdma_set_option)(self.as_ptr(), RDMA_OPTION_ID, option, value, bytes)
            };
            done("setting an option of the listener", set)?;
        }
        self.bind(address)?;
        // SAFETY: the identifier is alive.
        done("listening", unsafe { (self.library.rdma_listen)(self.as_ptr(), backlog) })
    }

    /// Binds it to the device that has the address.
    pub(super) fn bind(&mut self, address: SocketAddr) -> Result<(), Error> {
        let address = socket_address(address);
        // SAFETY: the identifier is alive, and the address has the system's layout.
        let bound = unsafe { (self.library.rdma_bind_addr)(self.as_ptr(), (&raw const address).cast()) };
        done("finding the RDMA device that has the address", bound)
    }

    /// Local and peer address.
    pub(super) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: the identifier is alive; the library has filled in its addresses.
        let addr = unsafe { &self.id.as_ref().route.addr };
        Some((read_address(&addr.src)?, read_address(&addr.dst)?))
    }

    pub(super) fn reject(&mut self, private_data: &[u8]) -> Result<(), Error> {
        let len = u8::try_from(private_data.len()).unwrap_or(0);
        // SAFETY: the identifier is alive; `len` bytes of private data are valid.
        let rejected =
            unsafe { (self.library.rdma_reject)(self.as_ptr(), private_data.as_ptr().cast(), len) };
        done("rejecting a connection", rejected)
    }

    /// `reads`: RDMA Reads at a time, served and issued.
    pub(super) fn accept(&mut self, private_data: &[u8], reads: (u8, u8)) -> Result<(), Error> {
        let param = RdmaConnParam {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len()).unwrap_or(0),
            responder_resources: reads.0,
            initiator_depth: reads.1,
            flow_control: 1,
            retry_count: 7,
            // Our credits are posted receives; a peer that gets receiver-not-ready retries until there are
            // some.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: the identifier is alive and has a queue pair; the private data is valid during the call.
        done("accepting a connection", unsafe { (self.library.rdma_accept)(self.as_ptr(), &raw const param) })
    }

    /// Stops its queue pair, and notifies the peer.
    pub(super) fn disconnect(&mut self) {
        // SAFETY: the identifier is alive. The call fails when there is no connection (any more).
        unsafe { (self.library.rdma_disconnect)(self.as_ptr()) };
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: this is the only owner; its queue pair, if it had one, is destroyed; its events are
        // acknowledged.
        unsafe { (self.library.rdma_destroy_id)(self.as_ptr()) };
    }
}

/// Makes librdmacm list the devices, so that it closes removed ones: a software device's driver waits for
/// that.
pub(super) fn forget_removed() -> Result<(), Error> {
    let library = library()?;
    // SAFETY: the list is freed at once, and none of it is used.
    unsafe {
        let devices = (library.rdma_get_devices)(ptr::null_mut());
        if !devices.is_null() {
            (library.rdma_free_devices)(devices);
        }
    }
    Ok(())
}

/// As `struct sockaddr_in` or `struct sockaddr_in6`.
fn socket_address(address: SocketAddr) -> SockaddrStorage {
    let mut storage = SockaddrStorage([0; 128]);
    let bytes = &mut storage.0;
    let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => bytes[4..8].copy_from_slice(&v4.ip().octets()),
        SocketAddr::V6(v6) => {
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    storage
}

fn read_address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let bytes = &storage.0;
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        AF_INET => {
            let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
            Some(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(ip), port)))
        }
        AF_INET6 => {
            let (flow, scope) = (bytes[4..8].try_into().ok()?, bytes[24..28].try_into().ok()?);
            let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
            let address = SocketAddrV6::new(
                Ipv6Addr::from(ip),
                port,
                u32::from_be_bytes(flow),
                u32::from_ne_bytes(scope),
            );
            // A dual-stack listener reports IPv4 this way.
            Some(match address.ip().to_ipv4_mapped() {
                Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
                None => SocketAddr::V6(address),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_laid_out_as_the_system_has_them() {
        let v4 = socket_address("192.0.2.1:3260".parse().expect("an address"));
        assert_eq!(v4.0[..8], [2, 0, 0x0c, 0xbc, 192, 0, 2, 1]);
        for text in ["192.0.2.1:3260", "[2001:db8::1]:1", "[fe80::1%3]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(read_address(&socket_address(address)), Some(address), "{text}");
        }
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:5".parse().expect("an address");
        assert_eq!(read_address(&socket_address(mapped)), "192.0.2.1:5".parse().ok());
        assert_eq!(read_address(&SockaddrStorage([0; 128])), None);
    }
}
