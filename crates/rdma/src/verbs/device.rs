//! A device as used by one core: with the core's arena registered, and a completion channel.

use super::cm::Id;
use super::library::{Library, library};
use super::sys::*;
use super::{Error, last, set_nonblocking};
use reactor::memory::Arena;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use wire::{BufferId, Span};

/// A device, and one core's objects on it.
pub(super) struct Device {
    pub library: &'static Library,
    pub context: NonNull<IbvContext>,
    pub name: String,
    pub is_iwarp: bool,
    pub pd: NonNull<Opaque>,
    pub completions: NonNull<IbvCompChannel>,
    pub limits: Limits,
    pub calls: Calls,
    pub memory: Registered,
    region: NonNull<IbvMr>,
    /// The device has reported a fatal error.
    failed: Arc<AtomicBool>,
    /// While an identifier is bound to the device, librdmacm keeps it open, even after its removal.
    _anchor: Id,
}

// SAFETY: libibverbs's functions may be called from any thread; what this owns is destroyed once, by its
// `drop`.
unsafe impl Send for Device {}
// SAFETY: as above; only an atomic in it changes.
unsafe impl Sync for Device {}

/// The limits of a queue pair on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub work: u32,
    pub completions: u32,
    /// Places per work request, and per RDMA Read.
    pub places: usize,
    pub read_places: usize,
    /// RDMA Reads at a time, served and issued.
    pub reads_served: u8,
    pub reads_made: u8,
    pub send_with_invalidate: bool,
    pub fast_registration: bool,
    pub shared_receives: bool,
}

impl Limits {
    pub(super) fn of(attr: &IbvDeviceAttr) -> Limits {
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        let few = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        let manages_memory = attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0;
        let places = usize::try_from(attr.max_sge).unwrap_or(0).max(1);
        Limits {
            work: number(attr.max_qp_wr),
            completions: number(attr.max_cqe),
            places,
            // InfiniBand devices leave it zero when reads have no limit of their own.
            read_places: usize::try_from(attr.max_sge_rd)
                .ok()
                .filter(|max| *max > 0)
                .unwrap_or(places)
                .min(places),
            reads_served: few(attr.max_qp_rd_atom),
            reads_made: few(attr.max_qp_init_rd_atom),
            send_with_invalidate: manages_memory,
            fast_registration: manages_memory,
            shared_receives: attr.max_srq > 0,
        }
    }
}

/// The calls of the datapath, which the device's driver provides.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    pub poll_cq: unsafe extern "C" fn(*mut IbvCq, i32, *mut IbvWc) -> i32,
    pub req_notify_cq: unsafe extern "C" fn(*mut IbvCq, i32) -> i32,
    pub post_send: unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> i32,
    pub post_recv: unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> i32,
}

impl Calls {
    fn of(context: NonNull<IbvContext>) -> Option<Calls> {
        // SAFETY: the device is open; its table was filled in when it was opened, and is not modified.
        let ops = unsafe { &context.as_ref().ops };
        Some(Calls {
            poll_cq: ops.poll_cq?,
            req_notify_cq: ops.req_notify_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
        })
    }
}

impl Device {
    /// The device that an identifier is bound to, for a core with this arena.
    pub(super) fn new(anchor: Id, arena: &Arena) -> Result<Arc<Device>, Error> {
        let library = library()?;
        let no_device = || Error::Unfit("a connection without a device".into());
        let context = NonNull::new(anchor.context()).ok_or_else(no_device)?;
        let name = name(context);
        let calls = Calls::of(context).ok_or_else(|| Error::Unfit(format!("{name} cannot be used")))?;
        let attr = attributes(library, context)?;
        // SAFETY: the device is open.
        let pd = NonNull::new(unsafe { (library.ibv_alloc_pd)(context.as_ptr()) });
        let pd = pd.ok_or_else(|| last("creating a protection domain"))?;
        // SAFETY: as above.
        let completions = NonNull::new(unsafe { (library.ibv_create_comp_channel)(context.as_ptr()) });
        let Some(completions) = completions else {
            let error = last("creating a completion channel");
            // SAFETY: nothing was created in it.
            unsafe { (library.ibv_dealloc_pd)(pd.as_ptr()) };
            return Err(error);
        };
        let (base, bytes) = arena.extent();
        // SAFETY: the arena's memory is mapped there. The kernel pins its pages until they are deregistered,
        // even if the arena should be dropped first; the module's rules limit what a device accesses.
        let region = NonNull::new(unsafe {
            (library.ibv_reg_mr)(pd.as_ptr(), base.cast(), bytes, IBV_ACCESS_LOCAL_WRITE)
        });
        let Some(region) = region else {
            let error = last("registering a core's buffers (is LimitMEMLOCK, ulimit -l, large enough?)");
            // SAFETY: both were created above, and nothing depends on them.
            unsafe {
                (library.ibv_destroy_comp_channel)(completions.as_ptr());
                (library.ibv_dealloc_pd)(pd.as_ptr());
            }
            return Err(error);
        };
        // SAFETY: the region was created above.
        let lkey = unsafe { region.as_ref().lkey };
        let device = Device {
            library,
            context,
            name,
            is_iwarp: is_iwarp(context),
            pd,
            completions,
            limits: Limits::of(&attr),
            calls,
            memory: Registered { arena: arena.id(), base: base.expose_provenance() as u64, lkey },
            region,
            failed: failed(context),
            _anchor: anchor,
        };
        set_nonblocking(device.completions_descriptor())?;
        set_nonblocking(device.events_descriptor())?;
        Ok(Arc::new(device))
    }

    /// Readable when there are completions.
    pub(super) fn completions_descriptor(&self) -> i32 {
        // SAFETY: the channel lives as long as this does.
        unsafe { self.completions.as_ref().fd }
    }

    /// Readable on an event of the device. All cores have the same.
    pub(super) fn events_descriptor(&self) -> i32 {
        // SAFETY: the device is open.
        unsafe { self.context.as_ref().async_fd }
    }

    /// The token of the oldest completion queue with an event.
    pub(super) fn completed(&self) -> io::Result<u64> {
        let (mut queue, mut token) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive; the library writes queue and token.
        let got = unsafe {
            (self.library.ibv_get_cq_event)(self.completions.as_ptr(), &raw mut queue, &raw mut token)
        };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the queue is alive: the library reports no events for destroyed ones, and only this thread
        // destroys them.
        unsafe { (self.library.ibv_ack_cq_events)(queue, 1) };
        Ok(token.addr() as u64)
    }

    /// Reads the oldest event of the device; returns its text, if it is of interest.
    pub(super) fn event(&self) -> io::Result<Option<String>> {
        let mut event = MaybeUninit::<IbvAsyncEvent>::uninit();
        // SAFETY: the device is open; the library writes the event.
        if unsafe { (self.library.ibv_get_async_event)(self.context.as_ptr(), event.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has initialised it.
        let mut event = unsafe { event.assume_init() };
        let kind = event.event_type;
        // SAFETY: the event is the one returned above; it is acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        if kind == IBV_EVENT_DEVICE_FATAL {
            self.fail();
        }
        // SAFETY: the library returns a static string, for any number.
        let text = unsafe { text((self.library.ibv_event_type_str)(kind)) };
        Ok((kind != IBV_EVENT_COMM_EST).then(|| format!("{}: {text}", self.name)))
    }

    /// Marks the device as failed.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether the device has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// An arena as registered with a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    pub arena: BufferId,
    pub base: u64,
    pub lkey: u32,
}

impl Registered {
    /// The place of a span.
    pub(super) fn place(&self, span: Span) -> IbvSge {
        assert!(span.buffer == self.arena, "{span:?} is not of the arena that the device knows");
        IbvSge { addr: self.base + span.offset, length: span.len, lkey: self.lkey }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: queues hold this by `Arc`, so there are none any more; each object is destroyed once. The
        // device is still open, thanks to the anchor. After a removal all of these calls fail: the kernel has
        // already destroyed the objects.
        unsafe {
            (self.library.ibv_dereg_mr)(self.region.as_ptr());
            (self.library.ibv_destroy_comp_channel)(self.completions.as_ptr());
            (self.library.ibv_dealloc_pd)(self.pd.as_ptr());
        }
    }
}

/// A device's attributes.
pub(super) fn attributes(library: &Library, context: NonNull<IbvContext>) -> Result<IbvDeviceAttr, Error> {
    let mut attr = MaybeUninit::<IbvDeviceAttr>::zeroed();
    // SAFETY: the device is open, and there is room for what the library writes. Zeros are valid for all
    // fields.
    let (result, attr) = unsafe {
        let result = (library.ibv_query_device)(context.as_ptr(), attr.as_mut_ptr());
        (result, attr.assume_init())
    };
    match result {
        0 => Ok(attr),
        errno => {
            Err(Error::System { what: "querying a device", error: io::Error::from_raw_os_error(errno.abs()) })
        }
    }
}

fn name(context: NonNull<IbvContext>) -> String {
    // SAFETY: the device is open, so its description is alive, whose name is null-terminated.
    unsafe { text((*context.as_ref().device).name.as_ptr()) }
}

fn is_iwarp(context: NonNull<IbvContext>) -> bool {
    // SAFETY: as above.
    unsafe { (*context.as_ref().device).transport_type == IBV_TRANSPORT_IWARP }
}

/// A string returned by the libraries.
///
/// # Safety
/// It is null, or null-terminated.
pub(super) unsafe fn text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The failure flag of a device: only one core gets the event, and all must see it.
fn failed(context: NonNull<IbvContext>) -> Arc<AtomicBool> {
    static FAILED: Mutex<BTreeMap<usize, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    // Flags that nobody uses any more belong to devices that may have been removed.
    failed.retain(|_, flag| Arc::strong_count(flag) > 1);
    failed.entry(context.as_ptr().addr()).or_default().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> IbvDeviceAttr {
        // SAFETY: zeros are valid for all fields.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    #[test]
    fn limits_are_those_of_the_device() {
        let rxe = IbvDeviceAttr {
            max_qp_wr: 1 << 20,
            max_cqe: 32_767,
            device_cap_flags: 0x0122_3c76,
            max_sge: 32,
            max_sge_rd: 32,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            max_srq: 917_503,
            ..attributes()
        };
        let limits = Limits::of(&rxe);
        assert_eq!(
            (limits.work, limits.completions, limits.places, limits.read_places),
            (1 << 20, 32_767, 32, 32)
        );
        assert_eq!((limits.reads_served, limits.reads_made), (128, 128));
        assert!(limits.send_with_invalidate && limits.fast_registration && limits.shared_receives);
    }

    #[test]
    fn what_a_device_does_not_report_is_small() {
        let poor = IbvDeviceAttr { max_sge: 6, max_qp_rd_atom: 4096, ..attributes() };
        let limits = Limits::of(&poor);
        assert_eq!((limits.places, limits.read_places), (6, 6));
        assert_eq!((limits.reads_served, limits.reads_made), (255, 0));
        assert!(!limits.send_with_invalidate && !limits.shared_receives);
        let none = Limits::of(&IbvDeviceAttr { max_sge_rd: 9, max_qp_wr: -1, ..attributes() });
        assert_eq!((none.places, none.read_places, none.work), (1, 1, 0));
    }
}
