//! Bytes that others may write concurrently: other cores, the kernel, a device.
//!
//! Rust and LLVM have no copy whose races are defined, and one of single atomic bytes would be slow. So these
//! functions pass the bytes to the C library through a pointer that is opaque to the compiler: its accesses
//! are the machine's, each a relaxed atomic one, and racing accesses leave a mixture of bytes.

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

/// Shorter copies are done as usual: small blocks are the ones that are read again soon.
#[cfg(any(target_arch = "x86_64", test))]
const STREAM_BYTES_MIN: usize = 16 * 1024;
/// Bytes copied per iteration of the loop, and the alignment of the target.
#[cfg(target_arch = "x86_64")]
const STEP: usize = 64;

/// Copies like [`copy`], to large memory that is not read again soon: long copies bypass the cache. A copy
/// through the cache reads each line of the target from memory first, only to overwrite it.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(super) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_BYTES_MIN && from.addr().abs_diff(to.addr()) >= len {
        let head = to.addr().wrapping_neg() % STEP;
        let body = (len - head) / STEP * STEP;
        // SAFETY: all three parts lie within the ranges, which are good by contract, and the second is aligned to STEP, is
        // a multiple of it and not empty.
        unsafe {
            copy(from, to, head);
            stream(from.add(head), to.add(head), body);
            copy(from.add(head + body), to.add(head + body), len - head - body);
        }
        return;
    }
    // SAFETY: as in the contract.
    unsafe { copy(from, to, len) };
}

/// Copies by non-temporal stores. In assembly, for the reason above.
///
/// # Safety
/// As for [`copy`]; the ranges do not overlap, `to` is aligned to 16 bytes, `len` is a multiple of [`STEP`] and not 0.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the loop reads `len` bytes at `from` and writes as many at `to`. The fence orders these stores before all later
    // ones, as others expect of any store.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movntdq [{to}], {a}",
            "movntdq [{to} + 16], {b}",
            "movntdq [{to} + 32], {c}",
            "movntdq [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {len}, 64",
            "jnz 2b",
            "sfence",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_past_the_cache_is_all_there_and_nothing_else_changes() {
        let from: Vec<u8> = (0..80_000u32).map(|n| ((n * 31) >> 3) as u8 | 1).collect();
        for len in [0, 1, 4096, STREAM_BYTES_MIN - 1, STREAM_BYTES_MIN, STREAM_BYTES_MIN + 1, 65_536, 65_599]
        {
            for (skip, at) in [(0, 0), (48, 0), (0, 1), (7, 63), (1, 64), (3, 17)] {
                let mut to = vec![0; len + at + 1];
                // SAFETY: both ranges lie within their vectors, of which nobody else has a reference meanwhile.
                unsafe { copy_past_cache(from[skip..].as_ptr(), to[at..].as_mut_ptr(), len) };
                assert!(to[at..at + len] == from[skip..skip + len], "{len} bytes from {skip} to {at}");
                assert!(to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0));
            }
        }
        let mut overlapping = from.clone();
        let bytes = overlapping.as_mut_ptr();
        // SAFETY: as above; they may overlap.
        unsafe { copy_past_cache(bytes, bytes.add(100), 70_000) };
        assert!(overlapping[100..70_100] == from[..70_000]);
    }
}
