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
