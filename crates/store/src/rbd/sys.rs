//! librados and librbd through their C interfaces (`rados/librados.h`, `rbd/librbd.h`), loaded when the first
//! image is opened: nothing is linked to them, and everything without Ceph works without them. All `unsafe`
//! of this crate is here.
//!
//! A call of librbd cannot be recalled, and hangs as long as its cluster does. So it owns its bytes: a
//! [`Call`] belongs to librbd from [`Image::start`] until it is returned, whatever happens to the lane that
//! started it, and never names the arena.
#![allow(unsafe_code, reason = "the interfaces are C")]

mod objects;

pub(crate) use objects::Watch;

use crate::calls::{Call, Work};
use libloading::os::unix::{Library as Shared, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const LOCK_EXCLUSIVE: c_uint = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the range stays allocated.
const ZEROES_THICK: c_int = 1;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_OBJECT_MAP`.
const FEATURE_OBJECT_MAP: u64 = 1 << 3;
/// The most options of an image's effective configuration that are requested.
const OPTIONS_MAX: usize = 1024;
/// The longest identifier of an image or cluster, with its end.
const ID_BYTES: usize = 128;

type Handle = *mut c_void;
type Callback = unsafe extern "C" fn(Handle, *mut c_void);
/// The callback of `rbd_diff_iterate2`.
type ExtentCallback = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;
/// `rados_watchcb2_t`.
type NoticeCallback = unsafe extern "C" fn(*mut c_void, u64, u64, u64, *mut c_void, usize);
/// `rados_watcherrcb_t`.
type LossCallback = unsafe extern "C" fn(*mut c_void, u64, c_int);

/// `rbd_config_option_t`.
#[repr(C)]
struct ConfigOption {
    name: *mut c_char,
    value: *mut c_char,
    source: c_uint,
}

/// `rbd_encryption_luks1_format_options_t`, and of LUKS2 as well.
#[repr(C)]
struct LuksOptions {
    /// Only used when an image is formatted.
    algorithm: c_uint,
    passphrase: *const c_char,
    passphrase_len: usize,
}

/// A version of LUKS: a `rbd_encryption_format_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Luks {
    One = 0,
    Two = 1,
}

macro_rules! functions {
    (
        $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?, in $library:ident;)*
        [$($newer:ident: fn($($parameter:ty),*) -> $answer:ty, in $its_library:ident;)*]
    ) => {
        /// The functions of both libraries, by name; those that not every version has are optional.
        pub(crate) struct Library {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $($newer: Option<unsafe extern "C" fn($($parameter),*) -> $answer>,)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                // librbd needs librados, and finds the same one.
                let (rados, rbd) = (open(RADOS)?, open(RBD)?);
                let of = |which| match which { Which::Rados => &rados, Which::Rbd => &rbd };
                let functions = Library {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the function of this name has this type in Ceph's headers, whose ABI is
                        // versioned by the number in the file's name; it has only had functions added since.
                        let found = unsafe {
                            of(Which::$library)
                                .get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(name.as_bytes())
                        };
                        *found.map_err(|error| error.to_string())?
                    },)*
                    $($newer: {
                        let name = concat!(stringify!($newer), "\0");
                        // SAFETY: as above.
                        let found = unsafe {
                            of(Which::$its_library)
                                .get::<unsafe extern "C" fn($($parameter),*) -> $answer>(name.as_bytes())
                        };
                        found.ok().map(|function| *function)
                    },)*
                };
                // They stay loaded: their threads and functions run until the process ends.
                let _ = (rados.into_raw(), rbd.into_raw());
                Ok(functions)
            }
        }
    };
}

enum Which {
    Rados,
    Rbd,
}

functions! {
    rados_create2: fn(*mut Handle, *const c_char, *const c_char, u64) -> c_int, in Rados;
    rados_conf_read_file: fn(Handle, *const c_char) -> c_int, in Rados;
    rados_conf_set: fn(Handle, *const c_char, *const c_char) -> c_int, in Rados;
    rados_connect: fn(Handle) -> c_int, in Rados;
    rados_cluster_fsid: fn(Handle, *mut c_char, usize) -> c_int, in Rados;
    rados_shutdown: fn(Handle), in Rados;
    rados_getaddrs: fn(Handle, *mut *mut c_char) -> c_int, in Rados;
    rados_buffer_free: fn(*mut c_char), in Rados;
    rados_blocklist_add: fn(Handle, *mut c_char, u32) -> c_int, in Rados;
    rados_wait_for_latest_osdmap: fn(Handle) -> c_int, in Rados;
    rados_ioctx_create: fn(Handle, *const c_char, *mut Handle) -> c_int, in Rados;
    rados_ioctx_set_namespace: fn(Handle, *const c_char), in Rados;
    rados_set_pool_full_try: fn(Handle), in Rados;
    rados_ioctx_destroy: fn(Handle), in Rados;
    rados_aio_create_completion2: fn(*mut c_void, Option<Callback>, *mut Handle) -> c_int, in Rados;
    rados_aio_wait_for_complete: fn(Handle) -> c_int, in Rados;
    rados_aio_get_return_value: fn(Handle) -> c_int, in Rados;
    rados_aio_get_version: fn(Handle) -> u64, in Rados;
    rados_aio_release: fn(Handle), in Rados;
    rados_aio_read: fn(Handle, *const c_char, Handle, *mut c_char, usize, u64) -> c_int, in Rados;
    rados_create_write_op: fn() -> Handle, in Rados;
    rados_write_op_create: fn(Handle, c_int, *const c_char), in Rados;
    rados_write_op_assert_version: fn(Handle, u64), in Rados;
    rados_write_op_write_full: fn(Handle, *const c_char, usize), in Rados;
    rados_aio_write_op_operate: fn(Handle, Handle, Handle, *const c_char, *mut c_void, c_int) -> c_int, in Rados;
    rados_release_write_op: fn(Handle), in Rados;
    rados_watch3: fn(Handle, *const c_char, *mut u64, NoticeCallback, LossCallback, u32, *mut c_void) -> c_int, in Rados;
    rados_unwatch2: fn(Handle, u64) -> c_int, in Rados;
    rados_watch_flush: fn(Handle) -> c_int, in Rados;
    rados_notify2: fn(Handle, *const c_char, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int, in Rados;
    rados_notify_ack: fn(Handle, *const c_char, u64, u64, *const c_char, c_int) -> c_int, in Rados;
    rbd_open: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int, in Rbd;
    rbd_open_read_only: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int, in Rbd;
    rbd_close: fn(Handle) -> c_int, in Rbd;
    rbd_get_size: fn(Handle, *mut u64) -> c_int, in Rbd;
    rbd_get_id: fn(Handle, *mut c_char, usize) -> c_int, in Rbd;
    rbd_get_features: fn(Handle, *mut u64) -> c_int, in Rbd;
    rbd_get_stripe_unit: fn(Handle, *mut u64) -> c_int, in Rbd;
    rbd_snap_get_id: fn(Handle, *const c_char, *mut u64) -> c_int, in Rbd;
    rbd_lock_acquire: fn(Handle, c_uint) -> c_int, in Rbd;
    rbd_lock_release: fn(Handle) -> c_int, in Rbd;
    rbd_is_exclusive_lock_owner: fn(Handle, *mut c_int) -> c_int, in Rbd;
    rbd_lock_get_owners: fn(Handle, *mut c_uint, *mut *mut c_char, *mut usize) -> c_int, in Rbd;
    rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, usize), in Rbd;
    rbd_lock_break: fn(Handle, c_uint, *const c_char) -> c_int, in Rbd;
    rbd_flush: fn(Handle) -> c_int, in Rbd;
    rbd_config_image_list: fn(Handle, *mut ConfigOption, *mut c_int) -> c_int, in Rbd;
    rbd_config_image_list_cleanup: fn(*mut ConfigOption, c_int), in Rbd;
    rbd_aio_create_completion: fn(*mut c_void, Callback, *mut Handle) -> c_int, in Rbd;
    rbd_aio_get_return_value: fn(Handle) -> isize, in Rbd;
    rbd_aio_release: fn(Handle), in Rbd;
    rbd_aio_read: fn(Handle, u64, usize, *mut c_char, Handle) -> c_int, in Rbd;
    rbd_aio_write: fn(Handle, u64, usize, *const c_char, Handle) -> c_int, in Rbd;
    rbd_aio_write_zeroes: fn(Handle, u64, usize, Handle, c_int, c_int) -> c_int, in Rbd;
    rbd_aio_compare_and_write: fn(Handle, u64, usize, *const c_char, *const c_char, Handle, *mut u64, c_int) -> isize, in Rbd;
    rbd_compare_and_write: fn(Handle, u64, usize, *const c_char, *const c_char, *mut u64, c_int) -> isize, in Rbd;
    rbd_diff_iterate2: fn(Handle, *const c_char, u64, u64, u8, u8, ExtentCallback, *mut c_void) -> c_int, in Rbd;
    rbd_aio_flush: fn(Handle, Handle) -> c_int, in Rbd;
    rbd_read: fn(Handle, u64, usize, *mut c_char) -> isize, in Rbd;
    [rbd_encryption_load: fn(Handle, c_uint, *mut LuksOptions, usize) -> c_int, in Rbd;]
}

/// The libraries, loaded once; if loading fails, it is not retried.
///
/// # Errors
/// What is missing, in the loader's words.
pub(crate) fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(String::as_str)
}

fn open(library: &str) -> Result<Shared, String> {
    // SAFETY: the libraries' initialisers are those that every program linked against them runs before
    // `main`.
    let opened = unsafe { Shared::open(Some(library), RTLD_NOW) };
    opened.map_err(|error| error.to_string())
}

/// Zero or more, or the negative number of an error.
fn checked(result: c_int) -> Result<c_int, i32> {
    if result < 0 { Err(result.saturating_neg()) } else { Ok(result) }
}

/// A client of a cluster; not connected at first.
pub(crate) struct Cluster {
    library: &'static Library,
    cluster: Handle,
}

// SAFETY: librados' handles may be used by all threads at the same time (`rados/librados.h`).
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// The client with this name, such as `client.admin`.
    pub(crate) fn new(library: &'static Library, client: &CStr) -> Result<Cluster, i32> {
        let mut cluster = null_mut();
        // SAFETY: the strings are null-terminated, and the library writes the handle.
        checked(unsafe { (library.rados_create2)(&raw mut cluster, c"ceph".as_ptr(), client.as_ptr(), 0) })?;
        Ok(Cluster { library, cluster })
    }

    /// Reads a configuration file; `None`: from Ceph's usual places.
    pub(crate) fn read_file(&self, path: Option<&CStr>) -> Result<(), i32> {
        let path = path.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the handle is alive, and the path is null-terminated or null.
        checked(unsafe { (self.library.rados_conf_read_file)(self.cluster, path) }).map(drop)
    }

    /// Sets an option of the configuration.
    pub(crate) fn set(&self, option: &CStr, value: &CStr) -> Result<(), i32> {
        // SAFETY: the handle is alive, and the strings are null-terminated.
        checked(unsafe { (self.library.rados_conf_set)(self.cluster, option.as_ptr(), value.as_ptr()) })
            .map(drop)
    }

    /// Connects; blocks.
    pub(crate) fn connect(&self) -> Result<(), i32> {
        // SAFETY: the handle is alive.
        checked(unsafe { (self.library.rados_connect)(self.cluster) }).map(drop)
    }

    /// The identifier of the cluster.
    pub(crate) fn fsid(&self) -> Result<String, i32> {
        text(|bytes, len| {
            // SAFETY: the handle is alive, and the library writes at most `len` bytes.
            unsafe { (self.library.rados_cluster_fsid)(self.cluster, bytes, len) }
        })
    }

    /// This client's address, as in a blocklist.
    pub(crate) fn address(&self) -> Result<String, i32> {
        let mut address = null_mut();
        // SAFETY: the handle is alive, and the library writes a string that it allocated.
        checked(unsafe { (self.library.rados_getaddrs)(self.cluster, &raw mut address) })?;
        // SAFETY: the string is null-terminated, and is freed below.
        let owned = unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned();
        // SAFETY: it was allocated by the library.
        unsafe { (self.library.rados_buffer_free)(address) };
        Ok(owned)
    }

    /// Has the OSDs refuse what the client at this address sends; blocks until the monitors have agreed.
    pub(crate) fn blocklist(&self, client: &CStr, seconds: u32) -> Result<(), i32> {
        let client = client.as_ptr().cast_mut();
        // SAFETY: the handle is alive; the string is null-terminated, and the library only reads it.
        checked(unsafe { (self.library.rados_blocklist_add)(self.cluster, client, seconds) }).map(drop)
    }

    /// Waits until this client has the monitors' latest map of the OSDs.
    pub(crate) fn wait_for_latest_map(&self) -> Result<(), i32> {
        // SAFETY: the handle is alive.
        checked(unsafe { (self.library.rados_wait_for_latest_osdmap)(self.cluster) }).map(drop)
    }

    /// A pool, and a namespace in it.
    pub(crate) fn pool(self, name: &CStr, namespace: Option<&CStr>) -> Result<Pool, i32> {
        let mut pool = null_mut();
        // SAFETY: the handle is alive, the name is null-terminated, and the library writes the handle.
        checked(unsafe { (self.library.rados_ioctx_create)(self.cluster, name.as_ptr(), &raw mut pool) })?;
        // If a pool is full, operations fail, instead of waiting for space. SAFETY: the handle was created
        // above.
        unsafe { (self.library.rados_set_pool_full_try)(pool) };
        if let Some(namespace) = namespace {
            // SAFETY: the handle was created above, and the name is null-terminated.
            unsafe { (self.library.rados_ioctx_set_namespace)(pool, namespace.as_ptr()) };
        }
        Ok(Pool { pool, cluster: self })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: its pools have been closed: each holds its cluster.
        unsafe { (self.library.rados_shutdown)(self.cluster) }
    }
}

/// A pool of a cluster. Dropped before its cluster: fields are, in this order, after the value itself.
pub(crate) struct Pool {
    pool: Handle,
    cluster: Cluster,
}

// SAFETY: as of clusters.
unsafe impl Send for Pool {}
// SAFETY: as of clusters.
unsafe impl Sync for Pool {}

impl Pool {
    /// Opens an image, or a snapshot of it; blocks.
    pub(crate) fn image(self, name: &CStr, snapshot: Option<&CStr>, read_only: bool) -> Result<Image, i32> {
        let library = self.cluster.library;
        let open = if read_only { library.rbd_open_read_only } else { library.rbd_open };
        let (mut image, snapshot) = (null_mut(), snapshot.map_or(std::ptr::null(), CStr::as_ptr));
        // SAFETY: the handle is alive, the names are null-terminated or null, and the library writes the
        // handle.
        checked(unsafe { open(self.pool, name.as_ptr(), &raw mut image, snapshot) })?;
        Ok(Image { image, pool: self })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: its image has been closed: it holds its pool.
        unsafe { (self.cluster.library.rados_ioctx_destroy)(self.pool) }
    }
}

/// An open image. Dropping it closes it, which waits for its calls.
pub(crate) struct Image {
    image: Handle,
    pool: Pool,
}

// SAFETY: librbd's images may be used by all threads at the same time (`rbd/librbd.h`).
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.pool.cluster
    }

    fn library(&self) -> &'static Library {
        self.pool.cluster.library
    }

    fn number(&self, get: unsafe extern "C" fn(Handle, *mut u64) -> c_int) -> Result<u64, i32> {
        let mut number = 0;
        // SAFETY: the image is open, and the library writes one number.
        checked(unsafe { get(self.image, &raw mut number) }).map(|_| number)
    }

    /// Bytes; asks the cluster only if the image has changed.
    pub(crate) fn size(&self) -> Result<u64, i32> {
        self.number(self.library().rbd_get_size)
    }

    /// A range of this size and alignment is in one object.
    pub(crate) fn stripe_unit(&self) -> Result<u64, i32> {
        self.number(self.library().rbd_get_stripe_unit)
    }

    /// The identifier, unique in the cluster.
    pub(crate) fn id(&self) -> Result<String, i32> {
        text(|bytes, len| {
            // SAFETY: the image is open, and the library writes at most `len` bytes.
            unsafe { (self.library().rbd_get_id)(self.image, bytes, len) }
        })
    }

    pub(crate) fn snapshot_id(&self, name: &CStr) -> Result<u64, i32> {
        let mut id = 0;
        // SAFETY: the image is open, the name is null-terminated, and the library writes one number.
        checked(unsafe { (self.library().rbd_snap_get_id)(self.image, name.as_ptr(), &raw mut id) })
            .map(|_| id)
    }

    /// Whether it can be locked against other clients.
    pub(crate) fn has_lock(&self) -> Result<bool, i32> {
        Ok(self.number(self.library().rbd_get_features)? & FEATURE_EXCLUSIVE_LOCK != 0)
    }

    /// Whether the client that has locked it knows which objects do not exist, and asks no OSD for these.
    pub(crate) fn has_object_map(&self) -> Result<bool, i32> {
        Ok(self.number(self.library().rbd_get_features)? & FEATURE_OBJECT_MAP != 0)
    }

    /// Locks it until it is closed: other live clients are not allowed to write. The lock of one that has
    /// died is broken, and the cluster accepts nothing from it any more. Blocks.
    pub(crate) fn lock(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        checked(unsafe { (self.library().rbd_lock_acquire)(self.image, LOCK_EXCLUSIVE) }).map(drop)
    }

    /// Releases the lock, after what was begun has ended. Blocks.
    pub(crate) fn unlock(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        checked(unsafe { (self.library().rbd_lock_release)(self.image) }).map(drop)
    }

    /// Whether this client has the lock. Blocks.
    pub(crate) fn owns_lock(&self) -> Result<bool, i32> {
        let mut owns = 0;
        // SAFETY: the image is open, and the library writes one number.
        checked(unsafe { (self.library().rbd_is_exclusive_lock_owner)(self.image, &raw mut owns) })?;
        Ok(owns != 0)
    }

    /// The address of the client that has the lock. Blocks.
    pub(crate) fn lock_owner(&self) -> Result<Option<CString>, i32> {
        let (mut mode, mut owner, mut count) = (LOCK_EXCLUSIVE, null_mut(), 1);
        // SAFETY: the image is open, and the library writes at most `count` strings, and their number.
        let found = unsafe {
            (self.library().rbd_lock_get_owners)(self.image, &raw mut mode, &raw mut owner, &raw mut count)
        };
        match checked(found) {
            Err(error) if error == rustix::io::Errno::NOENT.raw_os_error() => return Ok(None),
            result => result?,
        };
        if count == 0 {
            return Ok(None);
        }
        // SAFETY: the string is null-terminated, and is freed below.
        let owned = unsafe { CStr::from_ptr(owner) }.to_owned();
        // SAFETY: the list was allocated by the library.
        unsafe { (self.library().rbd_lock_get_owners_cleanup)(&raw mut owner, count) };
        Ok(Some(owned))
    }

    /// Breaks the lock of a client, after the cluster has fenced it. Blocks.
    pub(crate) fn break_lock(&self, owner: &CStr) -> Result<(), i32> {
        // SAFETY: the image is open, and the string is null-terminated.
        checked(unsafe { (self.library().rbd_lock_break)(self.image, LOCK_EXCLUSIVE, owner.as_ptr()) })
            .map(drop)
    }

    /// Waits for outstanding writes.
    pub(crate) fn flush(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        checked(unsafe { (self.library().rbd_flush)(self.image) }).map(drop)
    }

    /// The effective value of an option for this image, whose own configuration and whose pool's override
    /// ours.
    pub(crate) fn option(&self, name: &CStr) -> Result<Option<String>, i32> {
        let mut options: Vec<ConfigOption> = Vec::with_capacity(OPTIONS_MAX);
        let mut count = OPTIONS_MAX as c_int;
        // SAFETY: the image is open, and the library writes at most `count` options, and their number.
        let listed = unsafe {
            (self.library().rbd_config_image_list)(self.image, options.as_mut_ptr(), &raw mut count)
        };
        checked(listed)?;
        // SAFETY: this many were written.
        unsafe { options.set_len(count.max(0) as usize) };
        // SAFETY: names and values are null-terminated, and valid until the list is freed.
        let found = options.iter().find(|option| unsafe { CStr::from_ptr(option.name) } == name);
        // SAFETY: as above.
        let value =
            found.map(|option| unsafe { CStr::from_ptr(option.value) }.to_string_lossy().into_owned());
        // SAFETY: the list was allocated by the library.
        unsafe { (self.library().rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
        Ok(value)
    }

    /// Reads the image's beginning. Blocks.
    pub(crate) fn read_start(&self, bytes: &mut [u8]) -> Result<(), i32> {
        // SAFETY: the image is open, and the library writes at most `len` bytes.
        let read = unsafe {
            (self.library().rbd_read)(self.image, 0, bytes.len(), bytes.as_mut_ptr().cast::<c_char>())
        };
        match usize::try_from(read) {
            Ok(read) if read == bytes.len() => Ok(()),
            Ok(_) => Err(rustix::io::Errno::IO.raw_os_error()),
            Err(_) => Err(i32::try_from(read.saturating_neg()).unwrap_or(i32::MAX)),
        }
    }

    /// Decrypts and encrypts all data of an image formatted by LUKS from now on. Blocks, for as long as the
    /// key's derivation takes.
    pub(crate) fn load_luks(&self, version: Luks, passphrase: &[u8]) -> Result<(), i32> {
        let load = self.library().rbd_encryption_load.ok_or(rustix::io::Errno::NOSYS.raw_os_error())?;
        let (passphrase, passphrase_len) = (passphrase.as_ptr().cast::<c_char>(), passphrase.len());
        let mut options = LuksOptions { algorithm: 0, passphrase, passphrase_len };
        // SAFETY: the image is open; the library reads the options, of this size, and the passphrase.
        checked(unsafe { load(self.image, version as c_uint, &raw mut options, size_of::<LuksOptions>()) })
            .map(drop)
    }

    /// Compares the image's beginning with as many bytes, and writes these if they are equal; returns whether
    /// librbd can do that in one step. Blocks.
    pub(crate) fn swaps(&self, bytes: &[u8]) -> Result<bool, i32> {
        let (mut mismatch, data) = (0, bytes.as_ptr().cast::<c_char>());
        // SAFETY: the image is open, the library reads as many bytes, and writes one number.
        let answer = unsafe {
            (self.library().rbd_compare_and_write)(
                self.image,
                0,
                bytes.len(),
                data,
                data,
                &raw mut mismatch,
                0,
            )
        };
        let error = |answer: isize| i32::try_from(answer.saturating_neg()).unwrap_or(i32::MAX);
        match error(answer.min(0)) {
            0 => Ok(true),
            number if number == rustix::io::Errno::ILSEQ.raw_os_error() => Ok(true),
            number if number == rustix::io::Errno::INVAL.raw_os_error() => Ok(false),
            number => Err(number),
        }
    }

    /// Finds whether anything is allocated from there on, and how far that applies, within this many bytes.
    /// Blocks.
    pub(crate) fn extent(&self, offset: u64, len: u64) -> Result<(bool, u64), i32> {
        let mut extents: Vec<(u64, u64)> = Vec::new();
        // The OSDs are queried for each object, including a parent's: an object map could be outdated.
        // SAFETY: the image is open; `extent_found` gets the list, which outlives this call.
        checked(unsafe {
            (self.library().rbd_diff_iterate2)(
                self.image,
                std::ptr::null(),
                offset,
                len,
                1,
                0,
                extent_found,
                (&raw mut extents).cast(),
            )
        })?;
        extents.sort_unstable();
        let end = offset.saturating_add(len);
        let mut mapped_to = offset;
        for (start, len) in extents {
            if start > mapped_to {
                let unmapped_to = start.min(end);
                return Ok(if mapped_to > offset {
                    (true, mapped_to - offset)
                } else {
                    (false, unmapped_to - offset)
                });
            }
            mapped_to = mapped_to.max(start.saturating_add(len)).min(end);
        }
        Ok(if mapped_to > offset { (true, mapped_to - offset) } else { (false, len) })
    }

    /// Passes a call to librbd; it is returned by [`Call::answered`], on a thread of librbd.
    ///
    /// # Errors
    /// The call, when librbd did not accept it.
    pub(crate) fn start(&self, call: Box<Call>) -> Result<(), Box<Call>> {
        let library = self.library();
        let call = Box::into_raw(call);
        let mut completion = null_mut();
        // SAFETY: the library writes the handle; it calls `answered` once, with this call.
        let made = unsafe { (library.rbd_aio_create_completion)(call.cast(), answered, &raw mut completion) };
        if made < 0 {
            // SAFETY: the call was not passed on.
            return Err(unsafe { Box::from_raw(call) });
        }
        // SAFETY: the image is open: it is closed only when it is dropped, which waits for its calls. librbd
        // owns the call now, and nobody else has its bytes: they stay valid and in place until `answered`.
        // That may be called before the function returns, so the call is not accessed afterwards.
        let started = unsafe {
            let Call { work, data, mismatch, .. } = &mut *call;
            let (image, bytes, len) = (self.image, data.as_mut_ptr().cast::<c_char>(), data.len());
            match *work {
                Work::Read { offset } => (library.rbd_aio_read)(image, offset, len, bytes, completion),
                Work::Write { offset, .. } => (library.rbd_aio_write)(image, offset, len, bytes, completion),
                Work::Zero { offset, len, stays, .. } => {
                    let flags = if stays { ZEROES_THICK } else { 0 };
                    (library.rbd_aio_write_zeroes)(image, offset, len as usize, completion, flags, 0)
                }
                Work::CompareAndWrite { offset } => {
                    let half = len / 2;
                    let (compare, write) = (bytes, bytes.wrapping_add(half));
                    let at = &raw mut *mismatch;
                    (library.rbd_aio_compare_and_write)(
                        image, offset, half, compare, write, completion, at, 0,
                    ) as c_int
                }
                Work::Flush => (library.rbd_aio_flush)(image, completion),
                // There is no asynchronous call for that.
                Work::Extent { .. } => -rustix::io::Errno::NOTSUP.raw_os_error(),
            }
        };
        if started < 0 {
            // SAFETY: a call that was refused is not answered: both are ours again.
            unsafe {
                (library.rbd_aio_release)(completion);
                return Err(Box::from_raw(call));
            }
        }
        Ok(())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: nobody else has the image any more. Its calls end before this returns.
        let _ = unsafe { (self.library().rbd_close)(self.image) };
    }
}

/// A range that is allocated, or known not to be.
unsafe extern "C" fn extent_found(offset: u64, len: usize, exists: c_int, extents: *mut c_void) -> c_int {
    if exists != 0 {
        // SAFETY: it is the list that [`Image::extent`] passed, which nobody else uses meanwhile.
        unsafe { &mut *extents.cast::<Vec<(u64, u64)>>() }.push((offset, len as u64));
    }
    0
}

/// A call has ended.
unsafe extern "C" fn answered(completion: Handle, call: *mut c_void) {
    let Ok(library) = library() else { return };
    // SAFETY: librbd calls this once for each call that it accepted, with the pointer passed by
    // [`Image::start`], and has finished with its bytes; the completion is ours to release.
    let (mut call, answer) = unsafe {
        let answer = (library.rbd_aio_get_return_value)(completion);
        (library.rbd_aio_release)(completion);
        (Box::from_raw(call.cast::<Call>()), answer)
    };
    call.answer = answer as i64;
    Call::answered(call);
}

/// A string written by the library.
fn text(write: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<String, i32> {
    let mut bytes = [0u8; ID_BYTES];
    checked(write(bytes.as_mut_ptr().cast(), bytes.len()))?;
    let text = CStr::from_bytes_until_nul(&bytes).map_err(|_| libc_name_too_long())?;
    Ok(text.to_string_lossy().into_owned())
}

fn libc_name_too_long() -> i32 {
    rustix::io::Errno::NAMETOOLONG.raw_os_error()
}

/// A null-terminated string.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> Result<CString, i32> {
    CString::new(text).map_err(|_| rustix::io::Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named() {
        let missing = open("librbd-that-is-not-there.so.1").expect_err("there is no such library");
        assert!(missing.contains("librbd-that-is-not-there.so.1"), "{missing}");
    }
}
