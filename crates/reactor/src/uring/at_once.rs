//! Files in memory: calls that transfer all their bytes before they return, and need no request.

use super::requests::vector;
use crate::io::Errno;
use crate::memory::Arena;
use std::io::{Error, ErrorKind};
use wire::Places;

/// Reads from a file into places.
pub(super) fn read(arena: &mut Arena, file: i32, at: u64, into: &Places) -> Result<u32, Errno> {
    call(arena, into, |vectors| match vectors {
        // SAFETY: as below.
        [one] => unsafe { libc::pread(file, one.iov_base, one.iov_len, at as i64) },
        // SAFETY: `call` has listed the vectors: each is a place's of a buffer in use, or of a region that is pinned, and
        // nobody has a reference to these bytes, as the arena is borrowed alone.
        _ => unsafe { libc::preadv(file, vectors.as_ptr(), vectors.len() as i32, at as i64) },
    })
}

/// Writes places to a file; `durable` as in [`crate::io::Io::write`].
pub(super) fn write(
    arena: &mut Arena,
    file: i32,
    at: u64,
    from: &Places,
    durable: bool,
) -> Result<u32, Errno> {
    let flags = if durable { libc::RWF_DSYNC } else { 0 };
    call(arena, from, |vectors| {
        // SAFETY: as in `read`; the bytes are only read.
        unsafe { libc::pwritev2(file, vectors.as_ptr(), vectors.len() as i32, at as i64, flags) }
    })
}

fn call(arena: &mut Arena, places: &Places, moves: impl Fn(&[libc::iovec]) -> isize) -> Result<u32, Errno> {
    let mut pins = Vec::new();
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; Places::MAX];
    let mut count = 0;
    for (slot, span) in vectors.iter_mut().zip(places.iter()) {
        *slot = vector(arena, &mut pins, span);
        count += 1;
    }
    loop {
        match u32::try_from(moves(&vectors[..count])).map_err(|_| Error::last_os_error()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }
}
