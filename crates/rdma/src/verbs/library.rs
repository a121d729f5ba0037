//! The libraries, loaded when they are first needed: nothing is linked against them, and everything except
//! RDMA devices works without them.

use super::sys::*;
use libloading::os::unix::{Library as Shared, RTLD_NOW};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

const VERBS: &str = "libibverbs.so.1";
const RDMA_CM: &str = "librdmacm.so.1";

/// A library is missing or too old.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    library: &'static str,
    reason: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RDMA devices cannot be used: {} cannot be loaded ({}); install rdma-core's libraries (Debian, Ubuntu: apt \
             install libibverbs1 librdmacm1 ibverbs-providers; Fedora, RHEL: dnf install libibverbs librdmacm)",
            self.library, self.reason
        )
    }
}

impl std::error::Error for Missing {}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?, in $library:ident;)*) => {
        /// The functions of both libraries, by name.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Library, Missing> {
                let (verbs, cm) = (open(VERBS)?, open(RDMA_CM)?);
                let names = |library: Which| match library {
                    Which::Verbs => (&verbs, VERBS),
                    Which::Cm => (&cm, RDMA_CM),
                };
                let functions = Library {
                    $($name: {
                        let (shared, library) = names(Which::$library);
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the function of this name has this type in the headers of rdma-core, whose
                        // ABI is versioned (the 1 in the file's name) and has not changed.
                        let found = unsafe {
                            shared.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(name.as_bytes())
                        };
                        *found.map_err(|error| Missing { library, reason: error.to_string() })?
                    },)*
                };
                // They stay loaded: their functions are called until the process ends.
                let _ = (verbs.into_raw(), cm.into_raw());
                Ok(functions)
            }
        }
    };
}

enum Which {
    Verbs,
    Cm,
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut IbvDevice, in Verbs;
    ibv_free_device_list: fn(*mut *mut IbvDevice), in Verbs;
    ibv_open_device: fn(*mut IbvDevice) -> *mut IbvContext, in Verbs;
    ibv_close_device: fn(*mut IbvContext) -> c_int, in Verbs;
    ibv_query_device: fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int, in Verbs;
    ibv_query_port: fn(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int, in Verbs;
    ibv_alloc_pd: fn(*mut IbvContext) -> *mut Opaque, in Verbs;
    ibv_dealloc_pd: fn(*mut Opaque) -> c_int, in Verbs;
    ibv_reg_mr: fn(*mut Opaque, *mut c_void, usize, c_int) -> *mut IbvMr, in Verbs;
    ibv_dereg_mr: fn(*mut IbvMr) -> c_int, in Verbs;
    ibv_create_comp_channel: fn(*mut IbvContext) -> *mut IbvCompChannel, in Verbs;
    ibv_destroy_comp_channel: fn(*mut IbvCompChannel) -> c_int, in Verbs;
    ibv_create_cq: fn(*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq, in Verbs;
    ibv_destroy_cq: fn(*mut IbvCq) -> c_int, in Verbs;
    ibv_get_cq_event: fn(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int, in Verbs;
    ibv_ack_cq_events: fn(*mut IbvCq, c_uint), in Verbs;
    ibv_create_qp: fn(*mut Opaque, *mut IbvQpInitAttr) -> *mut IbvQp, in Verbs;
    ibv_destroy_qp: fn(*mut IbvQp) -> c_int, in Verbs;
    ibv_get_async_event: fn(*mut IbvContext, *mut IbvAsyncEvent) -> c_int, in Verbs;
    ibv_ack_async_event: fn(*mut IbvAsyncEvent), in Verbs;
    ibv_event_type_str: fn(c_int) -> *const c_char, in Verbs;
    ibv_wc_status_str: fn(c_int) -> *const c_char, in Verbs;
    rdma_get_devices: fn(*mut c_int) -> *mut *mut IbvContext, in Cm;
    rdma_free_devices: fn(*mut *mut IbvContext), in Cm;
    rdma_create_event_channel: fn() -> *mut RdmaEventChannel, in Cm;
    rdma_destroy_event_channel: fn(*mut RdmaEventChannel), in Cm;
    rdma_create_id: fn(*mut RdmaEventChannel, *mut *mut RdmaCmId, *mut c_void, c_int) -> c_int, in Cm;
    rdma_destroy_id: fn(*mut RdmaCmId) -> c_int, in Cm;
    rdma_migrate_id: fn(*mut RdmaCmId, *mut RdmaEventChannel) -> c_int, in Cm;
    rdma_set_option: fn(*mut RdmaCmId, c_int, c_int, *mut c_void, usize) -> c_int, in Cm;
    rdma_bind_addr: fn(*mut RdmaCmId, *const c_void) -> c_int, in Cm;
    rdma_listen: fn(*mut RdmaCmId, c_int) -> c_int, in Cm;
    rdma_create_qp: fn(*mut RdmaCmId, *mut Opaque, *mut IbvQpInitAttr) -> c_int, in Cm;
    rdma_destroy_qp: fn(*mut RdmaCmId), in Cm;
    rdma_accept: fn(*mut RdmaCmId, *const RdmaConnParam) -> c_int, in Cm;
    rdma_reject: fn(*mut RdmaCmId, *const c_void, u8) -> c_int, in Cm;
    rdma_disconnect: fn(*mut RdmaCmId) -> c_int, in Cm;
    rdma_get_cm_event: fn(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int, in Cm;
    rdma_ack_cm_event: fn(*mut RdmaCmEvent) -> c_int, in Cm;
}

/// The libraries, loaded once; if loading fails, it is not retried.
pub(super) fn library() -> Result<&'static Library, Missing> {
    static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

fn open(library: &'static str) -> Result<Shared, Missing> {
    // SAFETY: the libraries' initialisers are those that every program linked against them runs before
    // `main`.
    let opened = unsafe { Shared::open(Some(library), RTLD_NOW) };
    opened.map_err(|error| Missing { library, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_reported_with_its_remedy() {
        let missing =
            open("libibverbs-that-is-not-there.so.1").expect_err("there is no such library").to_string();
        assert!(missing.contains("libibverbs-that-is-not-there.so.1 cannot be loaded"), "{missing}");
        assert!(missing.contains("apt install libibverbs1 librdmacm1 ibverbs-providers"), "{missing}");
    }
}
