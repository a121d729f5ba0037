//! What the tests with real rings share.

use reactor::io::{Completion, Handle, Io, Tag, Wait};
use reactor::memory::Arena;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use wire::Places;

/// A ring with 16 MiB of buffers.
pub(crate) fn ring() -> Uring {
    ring_with(16 << 20, Waker::new().unwrap())
}

pub(crate) fn ring_with(arena_bytes: u64, waker: Waker) -> Uring {
    Uring::new(Arena::new(arena_bytes).unwrap(), waker).unwrap()
}

/// Turns until `count` completions have arrived.
pub(crate) fn complete(ring: &mut Uring, count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    while completions.len() < count {
        ring.turn(Wait::Forever, &mut completions);
    }
    assert_eq!(completions.len(), count);
    completions
}

/// Turns until the one request in flight has completed.
pub(crate) fn complete_one(ring: &mut Uring) -> Completion {
    complete(ring, 1)[0]
}

/// A place filled with these bytes.
pub(crate) fn filled(ring: &mut Uring, bytes: &[u8]) -> Places {
    let places = ring.arena().take(bytes.len() as u32).unwrap();
    let mut at = 0;
    for span in places.iter() {
        let end = at + span.len as usize;
        ring.arena().bytes_mut(span).copy_from_slice(&bytes[at..end]);
        at = end;
    }
    places
}

/// The bytes in a place.
pub(crate) fn content(ring: &mut Uring, places: &Places) -> Vec<u8> {
    let arena = ring.arena();
    places.iter().flat_map(|span| arena.bytes(span).to_vec()).collect()
}

/// Bytes without a short period.
pub(crate) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn handle(of: &impl AsRawFd) -> Handle {
    Handle(of.as_raw_fd())
}

/// A connected pair of TCP sockets.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.set_nodelay(true).unwrap();
    theirs.set_nodelay(true).unwrap();
    (ours, theirs)
}

pub(crate) const TAG: Tag = Tag(77);

/// Whether the other side has closed or reset the connection.
pub(crate) fn is_closed(result: std::io::Result<usize>) -> bool {
    match result {
        Ok(bytes) => bytes == 0,
        Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
    }
}
