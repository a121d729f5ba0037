//! Where a daemon's admin interface is, and a connection to it.

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where a daemon is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A socket in the file system.
    Socket(PathBuf),
    /// Unencrypted.
    Http(Host),
    /// With TLS.
    Https(Host),
}

/// A host and a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Host {
    /// A name, or an address without brackets.
    pub(super) name: String,
    port: u16,
}

impl Place {
    /// Parses `--admin`; the error is the problem and the fix.
    pub(super) fn parse(text: &str) -> Result<Place, (&'static str, &'static str)> {
        match text.split_once("://") {
            None => Ok(Place::Socket(text.into())),
            Some(("http", rest)) => Host::parse(rest).map(Place::Http),
            Some(("https", rest)) => Host::parse(rest).map(Place::Https),
            Some(_) => {
                let fix = "write the path of a socket, http://HOST:PORT or https://HOST:PORT";
                Err(("the scheme is neither http nor https", fix))
            }
        }
    }
}

impl Host {
    fn parse(text: &str) -> Result<Host, (&'static str, &'static str)> {
        let form = "write HOST:PORT after the scheme, such as storage1:9260 or [2001:db8::1]:9260";
        let parts = text.strip_suffix('/').unwrap_or(text).rsplit_once(':');
        let (name, port) = parts.ok_or(("the port is missing", form))?;
        let port = port.parse().map_err(|_| ("the port is not a number up to 65535", form))?;
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_good = admin::is_host(bare.unwrap_or(name)) && bare.is_some() == text.starts_with('[');
        if !is_good || (bare.is_none() && name.contains(':')) {
            return Err(("the host is neither a name nor an address", form));
        }
        Ok(Host { name: bare.unwrap_or(name).into(), port })
    }

    /// Its addresses, at least one.
    pub(super) fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let addresses: Vec<SocketAddr> = (self.name.as_str(), self.port).to_socket_addrs()?.collect();
        match addresses.is_empty() {
            true => Err(io::Error::other("that host has no address")),
            false => Ok(addresses),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Socket(path) => path.display().fmt(f),
            Place::Http(host) => write!(f, "http://{host}"),
            Place::Https(host) => write!(f, "https://{host}"),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

/// A connection with a deadline for the whole exchange.
pub(super) struct Timed {
    socket: Box<dyn Socket>,
    deadline: Instant,
}

impl Timed {
    /// Connects to a socket in the file system.
    pub(super) fn unix(path: &Path, deadline: Instant) -> io::Result<Timed> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let address = SocketAddrUnix::new(path)?;
        loop {
            // A daemon that does not accept may have a full queue (unix(7)).
            set_socket_timeout(&socket, Timeout::Send, Some(left(deadline)?))?;
            match connect(&socket, &address) {
                // With a timeout it is not restarted after signal handlers (signal(7)).
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => return Ok(Timed { socket: Box::new(UnixStream::from(socket)), deadline }),
            }
        }
    }

    /// Connects to the first address that answers; each gets a share of the time.
    pub(super) fn tcp(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Timed> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for (address, others) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
            match left(deadline).and_then(|time| TcpStream::connect_timeout(address, time / others)) {
                Ok(stream) => return Ok(Timed { socket: Box::new(stream), deadline }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.limit(left(self.deadline)?)?;
        self.socket.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.limit(left(self.deadline)?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

trait Socket: Read + Write {
    /// How long the next call may wait.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Socket for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::Signal;
    use nix::unistd::{Pid, gettid};
    use rustix::net::{accept, bind, listen};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    #[test]
    fn a_peer_that_does_not_accept_or_answer_is_waited_for_until_the_deadline() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("admin.sock");
        let silent = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let silent = silent.expect("a socket");
        bind(&silent, &SocketAddrUnix::new(&path).expect("a path")).expect("a free place");
        listen(&silent, 0).expect("it listens");
        let connected = || Timed::unix(&path, Instant::now() + Duration::from_millis(100));
        let mut first = connected().expect("there is room for one");
        assert_eq!(connected().err().map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        let unanswered = first.read(&mut [0]).expect_err("nobody answers").kind();
        assert!(matches!(unanswered, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{unanswered}");
    }

    #[test]
    fn a_signal_that_is_handled_does_not_end_the_wait_for_room() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("admin.sock");
        let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let full = full.expect("a socket");
        bind(&full, &SocketAddrUnix::new(&path).expect("a path")).expect("a free place");
        listen(&full, 0).expect("it listens");
        let connected = || Timed::unix(&path, Instant::now() + Duration::from_secs(60));
        let first = connected().expect("there is room for one");
        let handled = Arc::new(AtomicBool::new(false));
        let registered = signal_hook::flag::register(signal_hook::consts::SIGWINCH, handled.clone());
        let registered = registered.expect("a handler");
        let (to, from) = mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                to.send((gettid(), pthread_self())).expect("somebody waits for it");
                connected().map(drop)
            });
            let (thread, handle) = from.recv().expect("its thread runs");
            while !sleeps(thread) {
                std::thread::yield_now();
            }
            pthread_kill(handle, Signal::SIGWINCH).expect("it waits");
            while !handled.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            accept(&full).expect("the first one");
            second.join().expect("no panic").expect("there is room again");
        });
        drop(first);
        signal_hook::low_level::unregister(registered);
    }

    /// Whether a thread of this process is blocked (proc_pid_stat(5)).
    fn sleeps(thread: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it runs");
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }

    #[test]
    fn a_place_is_a_path_or_a_host_with_a_port_and_is_shown_as_it_is_written() {
        for text in ["/run/a.sock", "a.sock", "http://localhost:1", "https://[::1]:9260", "https://a.b:80"] {
            assert_eq!(Place::parse(text).expect(text).to_string(), text);
        }
        let name = |text| match Place::parse(text) {
            Ok(Place::Https(host)) => host.name,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(name("https://[::1]:9260/"), "::1");
        for (text, what) in [
            ("ftp://h:1", "the scheme is neither"),
            ("http://h", "the port is missing"),
            ("http://h:1/v1", "the port is not a number"),
            ("http://h:70000", "the port is not a number"),
            ("http://::1:80", "the host is neither a name"),
            ("https://[::1:80", "the host is neither a name"),
            ("https://a b:80", "the host is neither a name"),
            ("https://:80", "the host is neither a name"),
        ] {
            assert!(Place::parse(text).expect_err(text).0.starts_with(what), "{text}");
        }
    }
}
