//! The socket of a connection, over TCP or in the file system.

use config::{NbdServer, NbdUrl};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A server that has been silent this long, though nothing is owed, is sent keep-alive probes by the kernel
/// at this interval, for ten minutes: a restarted server resets the connection, and when a network comes back
/// its connections still work, whose failure would prove nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_COUNT: u32 = 120;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to the server of an export. Blocks until the deadline at most, and before that while its name
    /// is resolved, which has no deadline.
    ///
    /// # Errors
    /// When the server is unreachable.
    pub(super) fn connect(url: &NbdUrl, deadline: Instant) -> io::Result<Socket> {
        let (host, port) = match &url.server {
            NbdServer::Unix(path) => return connect_unix(path, deadline).map(Socket::Unix),
            NbdServer::Tcp(host, port) => (host.as_str(), *port),
        };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
        let socket = connect_tcp(&addresses, deadline)?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
        sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE)?;
        sockopt::set_tcp_keepcnt(&socket, KEEP_ALIVE_COUNT)?;
        Ok(Socket::Tcp(socket))
    }

    /// Reads and writes block until then at most.
    fn block_until(&self, deadline: Instant) -> io::Result<()> {
        let left = Some(left(deadline)?);
        match self {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(left).and_then(|()| socket.set_write_timeout(left))
            }
            Socket::Unix(socket) => {
                socket.set_read_timeout(left).and_then(|()| socket.set_write_timeout(left))
            }
        }
    }

    /// From now on nothing blocks.
    pub(super) fn never_block(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.set_nonblocking(true),
            Socket::Unix(socket) => socket.set_nonblocking(true),
        }
    }

    /// Ends the connection, or our half of it: input is then still received.
    pub(super) fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection has ended already.
        let _ = match self {
            Socket::Tcp(socket) => socket.shutdown(how),
            Socket::Unix(socket) => socket.shutdown(how),
        };
    }
}

/// Connects while others wait in the server's queue, which is finite.
fn connect_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left(deadline)?))?;
    net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
        Errno::AGAIN => io::Error::new(ErrorKind::TimedOut, "it does not accept connections"),
        error => error.into(),
    })?;
    Ok(socket.into())
}

/// Connects to the first address that answers; each gets a share of the time.
fn connect_tcp(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("the name has no address");
    for (address, others) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        match TcpStream::connect_timeout(address, left(deadline)? / others) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Reads and writes until a deadline at most; then they time out.
pub(super) struct Until<'a, T> {
    pub(super) inner: T,
    /// The socket.
    pub(super) socket: &'a Socket,
    pub(super) deadline: Instant,
}

impl<T> Until<'_, T> {
    fn act(&mut self, act: impl FnOnce(&mut T) -> io::Result<usize>) -> io::Result<usize> {
        self.socket.block_until(self.deadline)?;
        act(&mut self.inner).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

impl<T: Read> Read for Until<'_, T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.act(|inner| inner.read(into))
    }
}

impl<T: Write> Write for Until<'_, T> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.act(|inner| inner.write(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Time until the deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).read(into),
            Socket::Unix(socket) => (&*socket).read(into),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).write(from),
            Socket::Unix(socket) => (&*socket).write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let loopback = (Ipv4Addr::LOCALHOST, 0);
        let (full, open) = (TcpListener::bind(loopback).unwrap(), TcpListener::bind(loopback).unwrap());
        net::listen(&full, 0).unwrap();
        let addresses = [&full, &open].map(|listener| listener.local_addr().unwrap());
        // What does not fit into its queue is not answered.
        let _fill = TcpStream::connect(addresses[0]).unwrap();
        let soon = || Instant::now() + Duration::from_millis(200);
        assert!(connect_tcp(&addresses[..1], soon()).is_err(), "it is full");
        let reached = connect_tcp(&addresses, Instant::now() + Duration::from_secs(4)).unwrap();
        assert_eq!(reached.peer_addr().unwrap(), addresses[1]);
    }
}
