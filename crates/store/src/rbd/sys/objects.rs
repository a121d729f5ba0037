//! Objects of a pool: read, replaced only if unchanged, watched, and their watchers notified.

use super::{Handle, Library, Pool, checked};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const CREATE_EXCLUSIVE: c_int = 1;

impl Pool {
    /// The client.
    pub(crate) fn cluster(&self) -> &super::Cluster {
        &self.cluster
    }

    fn library(&self) -> &'static Library {
        self.cluster.library
    }

    /// Reads up to this many bytes of an object, and its version; blocks.
    pub(crate) fn read(&self, object: &CStr, bytes_max: usize) -> Result<(u64, Vec<u8>), i32> {
        let mut bytes = vec![0; bytes_max];
        let into = bytes.as_mut_ptr().cast::<c_char>();
        let (len, version) = self.operate(|completion| {
            // SAFETY: the handles are alive, the name is null-terminated, and the bytes stay valid until the
            // operation has ended, which is awaited.
            unsafe {
                (self.library().rados_aio_read)(self.pool, object.as_ptr(), completion, into, bytes_max, 0)
            }
        })?;
        bytes.truncate(len as usize);
        Ok((version, bytes))
    }

    /// Replaces all of an object if it has this version, or creates it if there is none; returns its new
    /// version. Blocks.
    pub(crate) fn replace(&self, object: &CStr, expected: Option<u64>, bytes: &[u8]) -> Result<u64, i32> {
        let library = self.library();
        // SAFETY: it has no conditions; it is released below.
        let operation = unsafe { (library.rados_create_write_op)() };
        // SAFETY: the operation was created above; the library copies the bytes.
        unsafe {
            match expected {
                None => (library.rados_write_op_create)(operation, CREATE_EXCLUSIVE, null()),
                Some(version) => (library.rados_write_op_assert_version)(operation, version),
            }
            (library.rados_write_op_write_full)(operation, bytes.as_ptr().cast(), bytes.len());
        }
        let replaced = self.operate(|completion| {
            // SAFETY: the handles are alive, the name is null-terminated, and the operation stays valid until
            // it has ended, which is awaited.
            unsafe {
                (library.rados_aio_write_op_operate)(
                    operation,
                    self.pool,
                    completion,
                    object.as_ptr(),
                    null_mut(),
                    0,
                )
            }
        });
        // SAFETY: it has ended, or was not begun.
        unsafe { (library.rados_release_write_op)(operation) };
        replaced.map(|(_, version)| version)
    }

    /// Starts an operation and waits for its end; returns its result, and the object's version.
    fn operate(&self, start: impl FnOnce(Handle) -> c_int) -> Result<(c_int, u64), i32> {
        let (library, mut completion) = (self.library(), null_mut());
        // SAFETY: the library writes the handle; it is released below.
        checked(unsafe { (library.rados_aio_create_completion2)(null_mut(), None, &raw mut completion) })?;
        let result = checked(start(completion)).and_then(|_| {
            // SAFETY: the operation has begun, and its completion is ours.
            let (returned, version) = unsafe {
                (library.rados_aio_wait_for_complete)(completion);
                let returned = (library.rados_aio_get_return_value)(completion);
                (returned, (library.rados_aio_get_version)(completion))
            };
            checked(returned).map(|returned| (returned, version))
        });
        // SAFETY: it is ours; it has ended, or was not begun.
        unsafe { (library.rados_aio_release)(completion) };
        result
    }

    /// Notifies the watchers of an object, and waits until all have acknowledged that or the time has passed; blocks.
    pub(crate) fn notify(&self, object: &CStr, timeout_ms: u64) -> Result<(), i32> {
        let (mut reply, mut len) = (null_mut(), 0);
        let library = self.library();
        // SAFETY: the handle is alive, the name is null-terminated, and the library writes a buffer that it
        // allocated.
        let notified = unsafe {
            (library.rados_notify2)(
                self.pool,
                object.as_ptr(),
                null(),
                0,
                timeout_ms,
                &raw mut reply,
                &raw mut len,
            )
        };
        // SAFETY: the buffer was allocated by the library, or is null.
        unsafe { (library.rados_buffer_free)(reply) };
        checked(notified).map(drop)
    }
}

/// Handles notifications, and the loss of the watch, on a thread of the library: it must not block.
struct Context {
    pool: Arc<Pool>,
    object: std::ffi::CString,
    on_notice: Box<dyn Fn() + Send + Sync>,
    on_loss: Box<dyn Fn(i32) + Send + Sync>,
}

/// A watch of an object. Dropping it ends the watch, which blocks.
pub(crate) struct Watch {
    cookie: u64,
    context: *mut Context,
}

// SAFETY: librados' handles may be used by all threads at the same time, and what is called is `Sync`.
unsafe impl Send for Watch {}

impl Watch {
    /// Watches an object, which must exist; blocks. The cluster drops the watch when this client is silent
    /// for this long.
    pub(crate) fn new(
        pool: &Arc<Pool>,
        object: &CStr,
        timeout_seconds: u32,
        on_notice: Box<dyn Fn() + Send + Sync>,
        on_loss: Box<dyn Fn(i32) + Send + Sync>,
    ) -> Result<Watch, i32> {
        let context = Context { pool: pool.clone(), object: object.to_owned(), on_notice, on_loss };
        let context = Box::into_raw(Box::new(context));
        let mut cookie = 0;
        let watch = pool.library().rados_watch3;
        // SAFETY: the handle is alive, the name is null-terminated, and the context is valid until the watch
        // has ended.
        let watched = unsafe {
            let (object, cookie) = (object.as_ptr(), &raw mut cookie);
            watch(pool.pool, object, cookie, noticed, lost, timeout_seconds, context.cast())
        };
        match checked(watched) {
            Ok(_) => Ok(Watch { cookie, context }),
            Err(error) => {
                // SAFETY: a refused watch makes no callbacks, once those already begun have returned.
                unsafe {
                    (pool.library().rados_watch_flush)(pool.cluster.cluster);
                    drop(Box::from_raw(context));
                }
                Err(error)
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the context is valid until the watch has ended and its callbacks have returned: it is freed
        // only then.
        unsafe {
            let pool = (*self.context).pool.clone();
            let _ = (pool.library().rados_unwatch2)(pool.pool, self.cookie);
            (pool.library().rados_watch_flush)(pool.cluster.cluster);
            drop(Box::from_raw(self.context));
        }
    }
}

/// A notification for the watchers.
unsafe extern "C" fn noticed(
    context: *mut c_void,
    notice: u64,
    cookie: u64,
    _from: u64,
    _data: *mut c_void,
    _len: usize,
) {
    // SAFETY: the context is valid as long as the watch, to which [`Watch::new`] passed it.
    let context = unsafe { &*context.cast::<Context>() };
    let (pool, object) = (&context.pool, context.object.as_ptr());
    // SAFETY: the handle is alive, the name is null-terminated; the call does not wait for the answer.
    unsafe { (pool.library().rados_notify_ack)(pool.pool, object, notice, cookie, null(), 0) };
    (context.on_notice)();
}

/// The watch is lost: notifications may have been missed.
unsafe extern "C" fn lost(context: *mut c_void, _cookie: u64, error: c_int) {
    // SAFETY: as above.
    let context = unsafe { &*context.cast::<Context>() };
    (context.on_loss)(error.saturating_neg());
}
