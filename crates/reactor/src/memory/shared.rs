//! Bytes that others may write meanwhile: other cores, the kernel, a device.
//!
//! Rust and LLVM have no copy whose races are defined, and one of single atomic bytes would be slow. So these functions
//! hand the bytes to the C library by a pointer that the compiler cannot look through: its accesses are those of the
//! machine, each a relaxed atomic one, and who races leaves a mixture of bytes.

use std::ffi::{c_int, c_void};

type Move = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type Fill = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;

static MOVE: Move = libc::memmove;
static FILL: Fill = libc::memset;

/// Copies `len` bytes; the ranges may overlap.
///
/// # Safety
/// `len` bytes at `from` may be read and `len` bytes at `to` written, and nobody has a reference to bytes that this, or
/// who races with it, writes.
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the static is initialized; the ranges are good by contract. A volatile read yields a function that the
    // compiler does not know, so it cannot assume that nobody else accesses these bytes.
    unsafe { (&raw const MOVE).read_volatile()(to.cast(), from.cast(), len) };
}

/// Writes `len` zeros.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(super) unsafe fn fill_zero(at: *mut u8, len: usize) {
    // SAFETY: as in `copy`.
    unsafe { (&raw const FILL).read_volatile()(at.cast(), 0, len) };
}
