//! The socket of a connection, over TCP or in the file system.

use config::{NbdServer, NbdUrl};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A server that says nothing for so long, though nothing is owed, is asked by the kernel whether it is there, and as often again
/// after each silence; then it is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_COUNT: u32 = 3;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to the server of an export. Blocks, for TCP until the deadline at most.
    ///
    /// # Errors
    /// When the server is not reached.
    pub(super) fn connect(url: &NbdUrl, deadline: Instant) -> io::Result<Socket> {
        let (host, port) = match &url.server {
            NbdServer::Unix(path) => return UnixStream::connect(path).map(Socket::Unix),
            NbdServer::Tcp(host, port) => (host.as_str(), *port),
        };
        let mut failed = io::Error::other("the name has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(deadline)?) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    sockopt::set_socket_keepalive(&socket, true)?;
                    sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
                    sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE)?;
                    sockopt::set_tcp_keepcnt(&socket, KEEP_ALIVE_COUNT)?;
                    return Ok(Socket::Tcp(socket));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Until then, reading and writing block.
    pub(super) fn block_until(&self, deadline: Instant) -> io::Result<()> {
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

    /// Ends the connection, or our half of it: then what comes is still received.
    pub(super) fn shutdown(&self, how: Shutdown) {
        // It fails only when the connection has ended already.
        let _ = match self {
            Socket::Tcp(socket) => socket.shutdown(how),
            Socket::Unix(socket) => socket.shutdown(how),
        };
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
