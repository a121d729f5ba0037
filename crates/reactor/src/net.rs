//! Sockets: what only a raw handle can be asked.

use crate::io::Handle;
use rustix::fd::{AsRawFd as _, BorrowedFd};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Listens on an address.
///
/// # Errors
/// As the operating system tells: address in use, not available, not permitted.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
}

/// The handle of a listening socket, which must stay open as long as the handle is used.
pub fn handle(listener: &TcpListener) -> Handle {
    Handle(listener.as_raw_fd())
}

/// Local and peer address of a connected socket.
///
/// # Errors
/// When the socket is not connected any more.
pub fn addresses(socket: Handle) -> io::Result<(SocketAddr, SocketAddr)> {
    // SAFETY: the handle is an open socket of the caller, who does not close it during this call.
    let fd = unsafe { BorrowedFd::borrow_raw(socket.0) };
    let local = rustix::net::getsockname(fd)?;
    let peer = rustix::net::getpeername(fd)?;
    let inet = |address: rustix::net::SocketAddrAny| {
        SocketAddr::try_from(address).map_err(|_| io::Error::other("not an internet socket"))
    };
    let peer = peer.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
    Ok((inet(local)?, inet(peer)?))
}

/// Ends a connected socket whose owner goes away without a ring; elsewhere it is [`crate::io::Io::close`].
pub fn close(socket: Handle) {
    // SAFETY: the handle is an open socket of the caller, who does not use it any more. A request that is still in
    // flight holds the socket by itself, and its buffers are kept by its ring.
    unsafe {
        let _ = rustix::net::shutdown(BorrowedFd::borrow_raw(socket.0), rustix::net::Shutdown::Both);
        rustix::io::close(socket.0);
    }
}
