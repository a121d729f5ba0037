//! Socket operations that need a raw handle.

use crate::io::Handle;
use rustix::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections that the kernel completes before they are accepted.
const BACKLOG: i32 = 1024;

/// Listens on an address. An IPv6 address accepts only IPv6 connections, so that `0.0.0.0` and `[::]` can be
/// used together.
///
/// # Errors
/// As the operating system reports: address in use, not available, not permitted.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bind(address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// The listening sockets that a service manager has opened for this process, each with its name
/// (sd_listen_fds(3)). Only the first call, which must come before anything else opens a descriptor, returns
/// them.
///
/// # Errors
/// When the descriptors do not match the environment, or are not listening TCP sockets.
pub fn inherited() -> io::Result<Vec<(String, TcpListener)>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let passed = sd_notify::listen_fds_with_names()?;
    passed.map(|(number, name)| listening(number, &name).map(|socket| (name, socket))).collect()
}

fn listening(number: i32, name: &str) -> io::Result<TcpListener> {
    // SAFETY: LISTEN_PID names this process, so these descriptors were opened for it before its program began, and they are open,
    // as they have just been marked close-on-exec; nothing else owns them, since this is reached once for each.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    if !sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens) {
        return Err(io::Error::other(format!("descriptor {number} ({name}) is not a listening socket")));
    }
    let socket = TcpListener::from(socket);
    socket
        .local_addr()
        .map_err(|error| io::Error::other(format!("descriptor {number} ({name}): {error}")))?;
    // The ring waits for connections.
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Checks whether an address could be listened on now. Nobody can connect meanwhile.
///
/// # Errors
/// As [`listen`].
pub fn may_listen(address: SocketAddr) -> io::Result<()> {
    bind(address).map(drop)
}

fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Connections of a daemon that ran here before do not prevent it.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// The handle of a listening socket, which must stay open as long as the handle is used.
pub fn handle(listener: &TcpListener) -> Handle {
    Handle(listener.as_raw_fd())
}

/// Local and peer address of a connected socket.
///
/// # Errors
/// When the socket is no longer connected.
pub(crate) fn addresses(socket: Handle) -> io::Result<(SocketAddr, SocketAddr)> {
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

/// Another descriptor of a socket: the lowest free one.
///
/// # Errors
/// When none is.
pub(crate) fn duplicate(socket: Handle) -> io::Result<Handle> {
    // SAFETY: the handle is an open socket of the caller, who does not close it during this call.
    let fd = unsafe { BorrowedFd::borrow_raw(socket.0) };
    Ok(Handle(rustix::io::fcntl_dupfd_cloexec(fd, 0)?.into_raw_fd()))
}

/// What fits into one TCP segment of a connected socket's path, in bytes.
pub(crate) fn segment_bytes(socket: Handle) -> u32 {
    /// What every IPv4 path carries (RFC 9293 section 3.7.1).
    const LEAST: u32 = 536;
    let (mut bytes, mut len) = (0u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, and how many to `len`.
    let result = unsafe {
        let (bytes, len) = ((&raw mut bytes).cast(), &raw mut len);
        libc::getsockopt(socket.0, libc::IPPROTO_TCP, libc::TCP_MAXSEG, bytes, len)
    };
    if result == 0 { bytes.max(LEAST) } else { LEAST }
}

/// Ends a connected socket whose owner is dropped without a ring; otherwise it is [`crate::io::Io::close`].
pub fn close(socket: Handle) {
    // SAFETY: the handle is an open socket of the caller, who does not use it any more. A request that is still in
    // flight holds the socket on its own, and its buffers are kept by its ring.
    unsafe {
        let _ = rustix::net::shutdown(BorrowedFd::borrow_raw(socket.0), rustix::net::Shutdown::Both);
        rustix::io::close(socket.0);
    }
}
