//! Lists the devices and their capabilities.

use super::device::{Limits, attributes, text};
use super::library::{Library, library};
use super::pair::INLINE_BYTES;
use super::sys::*;
use super::{Error, last};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

/// A device.
/// Its fields are the attributes that are reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// Its name, like `rxe0`.
    pub name: String,
    /// Its transport.
    pub transport: Transport,
    /// Its GUID.
    pub node_guid: u64,
    /// Firmware version; empty if it has none.
    pub firmware: String,
    /// Its ports, from number 1.
    pub ports: Vec<PortFacts>,
    /// Most queue pairs.
    pub queue_pairs: u32,
    /// Work requests per queue pair.
    pub work: u32,
    /// Entries per completion queue.
    pub completions: u32,
    /// Places per work request.
    pub places: u32,
    /// Places per RDMA Read.
    pub read_places: u32,
    /// RDMA Reads per connection at a time: served.
    pub reads_served: u32,
    /// The same: issued.
    pub reads_made: u32,
    /// Most bytes of a message that are copied when it is posted; `None`: unknown, since no queue pair could
    /// be created.
    pub inline_bytes: Option<u32>,
    /// A message can invalidate a peer's STag.
    pub send_with_invalidate: bool,
    /// Memory is registered by work requests.
    pub fast_registration: bool,
    /// Receives per shared receive queue; zero: not supported.
    pub shared_receives: u32,
}

/// A device of which only the name is known.
#[derive(Debug)]
pub struct Unknown {
    /// Its name.
    pub name: String,
    /// Why.
    pub error: Error,
}

/// The transport of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// InfiniBand, on its own links or over Ethernet (RoCE).
    InfiniBand,
    /// iWARP.
    Iwarp,
    /// Another.
    Other,
}

/// A port of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortFacts {
    /// Its number.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// The largest payload of a packet in bytes.
    pub mtu_bytes: u32,
}

/// State of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// There is no link.
    Down,
    /// The link waits for a subnet manager.
    Init,
    /// The same, armed.
    Armed,
    /// Active.
    Active,
    /// Active until now.
    ActiveDefer,
    /// A number that is not in the standard.
    Unknown,
}

/// The link layer of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet,
    /// Not specified.
    Unspecified,
}

/// All devices, each with its capabilities, or why they are unknown.
///
/// # Errors
/// The libraries are missing, or the system does not list its devices.
pub fn survey() -> Result<Vec<Result<DeviceFacts, Unknown>>, Error> {
    let library = library()?;
    let mut count = 0;
    // SAFETY: the library writes their number.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(last("listing RDMA devices (is the module ib_uverbs loaded?)"));
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has this many devices; they are valid until it is freed, below.
    let facts = unsafe {
        let facts = (0..count).filter_map(|index| NonNull::new(*list.add(index)));
        let facts = facts.map(|device| examine(library, device)).collect();
        (library.ibv_free_device_list)(list);
        facts
    };
    Ok(facts)
}

/// # Safety
/// The device is in a list that is not freed meanwhile.
unsafe fn examine(library: &'static Library, device: NonNull<IbvDevice>) -> Result<DeviceFacts, Unknown> {
    // SAFETY: guaranteed by the caller; names are null-terminated.
    let (name, transport) = unsafe { (text(device.as_ref().name.as_ptr()), device.as_ref().transport_type) };
    // SAFETY: guaranteed by the caller.
    let Some(context) = NonNull::new(unsafe { (library.ibv_open_device)(device.as_ptr()) }) else {
        return Err(Unknown { name, error: last("opening it (may this user use /dev/infiniband/uverbs*?)") });
    };
    let facts = attributes(library, context).map(|attr| facts(library, context, &attr, &name, transport));
    // SAFETY: it was opened above, and everything created on it is destroyed.
    unsafe { (library.ibv_close_device)(context.as_ptr()) };
    facts.map_err(|error| Unknown { name, error })
}

fn facts(
    library: &Library,
    context: NonNull<IbvContext>,
    attr: &IbvDeviceAttr,
    name: &str,
    transport: i32,
) -> DeviceFacts {
    let limits = Limits::of(attr);
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    // SAFETY: the library null-terminates it, and it was zeros before.
    let firmware = unsafe { text(attr.fw_ver.as_ptr()) };
    DeviceFacts {
        name: name.to_string(),
        transport: Transport::of(transport),
        node_guid: u64::from_be(attr.node_guid),
        firmware,
        ports: (1..=attr.phys_port_cnt).filter_map(|number| port(library, context, number)).collect(),
        queue_pairs: number(attr.max_qp),
        work: limits.work,
        completions: limits.completions,
        places: limits.places as u32,
        read_places: limits.read_places as u32,
        reads_served: limits.reads_served.into(),
        reads_made: limits.reads_made.into(),
        inline_bytes: inline_bytes(library, context),
        send_with_invalidate: limits.send_with_invalidate,
        fast_registration: limits.fast_registration,
        shared_receives: if attr.max_srq > 0 { number(attr.max_srq_wr) } else { 0 },
    }
}

fn port(library: &Library, context: NonNull<IbvContext>, number: u8) -> Option<PortFacts> {
    let mut attr = MaybeUninit::<IbvPortAttr>::zeroed();
    // SAFETY: the device is open, and there is room for what the library writes. Zeros are valid for all fields.
    let (result, attr) = unsafe {
        let result = (library.ibv_query_port)(context.as_ptr(), number, attr.as_mut_ptr());
        (result, attr.assume_init())
    };
    (result == 0).then(|| PortFacts {
        number,
        state: PortState::of(attr.state),
        link_layer: LinkLayer::of(attr.link_layer),
        mtu_bytes: mtu_bytes(attr.active_mtu),
    })
}

/// The limit of a queue pair is known only once one is created.
fn inline_bytes(library: &Library, context: NonNull<IbvContext>) -> Option<u32> {
    // SAFETY: the device is open. What is created is destroyed below, in reverse order.
    unsafe {
        let pd = NonNull::new((library.ibv_alloc_pd)(context.as_ptr()))?;
        let completions = (library.ibv_create_cq)(context.as_ptr(), 2, ptr::null_mut(), ptr::null_mut(), 0);
        let found = NonNull::new(completions).and_then(|completions| {
            let found = INLINE_BYTES.into_iter().find_map(|bytes| take(library, pd, completions, bytes));
            (library.ibv_destroy_cq)(completions.as_ptr());
            found
        });
        (library.ibv_dealloc_pd)(pd.as_ptr());
        found
    }
}

/// How many inline bytes a queue pair gets that requests this many.
///
/// # Safety
/// Protection domain and completion queue are alive, and of one device.
unsafe fn take(
    library: &Library,
    pd: NonNull<Opaque>,
    completions: NonNull<IbvCq>,
    bytes: u32,
) -> Option<u32> {
    let mut attr = IbvQpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: completions.as_ptr(),
        recv_cq: completions.as_ptr(),
        srq: ptr::null_mut(),
        cap: IbvQpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: bytes,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 1,
    };
    // SAFETY: guaranteed by the caller; the library reads and writes the attributes. The queue pair is
    // destroyed at once.
    unsafe {
        let pair = NonNull::new((library.ibv_create_qp)(pd.as_ptr(), &raw mut attr))?;
        (library.ibv_destroy_qp)(pair.as_ptr());
    }
    Some(attr.cap.max_inline_data)
}

impl Transport {
    fn of(number: i32) -> Transport {
        match number {
            IBV_TRANSPORT_IB => Transport::InfiniBand,
            IBV_TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::Other,
        }
    }
}

impl PortState {
    fn of(number: i32) -> PortState {
        match number {
            1 => PortState::Down,
            2 => PortState::Init,
            3 => PortState::Armed,
            4 => PortState::Active,
            5 => PortState::ActiveDefer,
            _ => PortState::Unknown,
        }
    }
}

impl LinkLayer {
    fn of(number: u8) -> LinkLayer {
        match number {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        }
    }
}

/// `enum ibv_mtu`.
fn mtu_bytes(number: i32) -> u32 {
    match number {
        1..=5 => 128 << number,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_numbers_are_those_of_the_header() {
        assert_eq!([1, 3, 5].map(mtu_bytes), [256, 1024, 4096]);
        assert_eq!([0, 6, -1].map(mtu_bytes), [0, 0, 0]);
        assert_eq!((PortState::of(4), PortState::of(1)), (PortState::Active, PortState::Down));
        assert_eq!((PortState::of(0), PortState::of(9)), (PortState::Unknown, PortState::Unknown));
        assert_eq!((LinkLayer::of(1), LinkLayer::of(2)), (LinkLayer::InfiniBand, LinkLayer::Ethernet));
        assert_eq!((Transport::of(0), Transport::of(1)), (Transport::InfiniBand, Transport::Iwarp));
        assert_eq!(Transport::of(-1), Transport::Other);
    }
}
