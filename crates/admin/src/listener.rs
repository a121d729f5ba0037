//! The place where the admin interface is reached: an address, or a socket in the file system that lives as long as
//! its daemon.

use engine::config::AdminAddress;
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fmt;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How often, and how far apart, the folder of a socket is tried to be locked.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Why the admin interface cannot be there: what, where, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BindError(String);

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BindError {}

/// A bound place. Dropping it removes a socket's file.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Socket,
    _file: Option<SocketFile>,
    shown: String,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Takes the place. A socket whose daemon is gone is replaced; one that is served is not.
    ///
    /// # Errors
    /// When somebody else has the place, or it cannot be made.
    pub fn bind(address: &AdminAddress) -> Result<Listener, BindError> {
        match address {
            AdminAddress::Unix(path) => bind_unix(path)
                .map_err(|(what, fix)| BindError(format!("admin socket {}: {what}; {fix}", path.display()))),
            AdminAddress::Tcp(address) => {
                if !address.ip().is_loopback() {
                    tracing::warn!(%address, "the admin interface may be reached from other machines, and asks nobody who they are");
                }
                let bound = TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    let shown = format!("http://{}", listener.local_addr()?);
                    Ok(Listener { socket: Socket::Tcp(listener), _file: None, shown })
                });
                bound.map_err(|error| {
                    let fix = "choose another port, or port 0 for any free one, with --admin";
                    BindError(format!("admin interface on {address}: {error}; {fix}"))
                })
            }
        }
    }
}

/// What people are told: a path, or a URL with the port that was really bound.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// What is wrong, and how to mend it.
type Fault = (String, &'static str);

fn bind_unix(path: &Path) -> Result<Listener, Fault> {
    const FOLDER: &str = "make the folder, or choose another path with --admin";
    let folder = path.parent().unwrap_or(Path::new("/"));
    // Two daemons that start at once must not take each other's new socket for a dead one.
    let _lock = lock(folder)?;
    let io_fault = |error: io::Error| (error.to_string(), FOLDER);
    let socket = match bound(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_dead(path)?;
            bound(path)
        }
        other => other,
    };
    let socket = socket.map_err(io_fault)?;
    let file = SocketFile::of(path).map_err(io_fault)?;
    let shown = path.display().to_string();
    Ok(Listener { socket: Socket::Unix(UnixListener::from(socket)), _file: Some(file), shown })
}

/// Holds a folder for this process until it is dropped.
fn lock(folder: &Path) -> Result<OwnedFd, Fault> {
    let fault = |error: rustix::io::Errno| {
        (
            format!("folder {}: {error}", folder.display()),
            "make the folder, or choose another path with --admin",
        )
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(fault)?;
    for _ in 1..LOCK_TRIES {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(folder),
            Err(_) => std::thread::sleep(LOCK_PAUSE),
        }
    }
    flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(fault)?;
    Ok(folder)
}

/// A listening socket at the path, which only its owner may connect to from the first moment on: the file gets the
/// socket's mode when it is made.
fn bound(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Removes what is at the path if it is a socket that nobody serves.
fn remove_dead(path: &Path) -> Result<(), Fault> {
    const OTHER: &str = "choose another path with --admin";
    let found = fs::symlink_metadata(path).map_err(|error| (error.to_string(), OTHER))?;
    if !found.file_type().is_socket() {
        return Err(("something that is not a socket is there already".into(), OTHER));
    }
    let tried = SocketAddrUnix::new(path).and_then(|address| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address)
    });
    match tried {
        Err(rustix::io::Errno::CONNREFUSED) => {}
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            return Err((
                "another process serves it".into(),
                "stop that one, or choose another path with --admin",
            ));
        }
        Err(error) => return Err((error.to_string(), OTHER)),
    }
    fs::remove_file(path).map_err(|error| (format!("a dead one cannot be removed: {error}"), OTHER))
}

/// A socket's file, told from others that take its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let found = fs::symlink_metadata(path)?;
        Ok(SocketFile { path: path.into(), identity: (found.dev(), found.ino()) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = match SocketFile::identity_at(&self.path) {
            Some(identity) if identity == self.identity => fs::remove_file(&self.path),
            Some(_) | None => Ok(()),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, path = %self.path.display(), "the admin socket could not be removed");
        }
    }
}

impl SocketFile {
    fn identity_at(path: &Path) -> Option<(u64, u64)> {
        fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
    }
}
