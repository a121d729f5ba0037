//! Where the admin interface listens: an address, or a socket in the file system that exists while its daemon
//! runs.

use config::AdminAddress;
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fmt;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pending connections.
const BACKLOG: i32 = 64;
/// How many attempts are made to lock a socket's path, and the pause between them.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Why the admin interface cannot listen: where, what is wrong, and how to fix it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BindError(String);

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BindError {}

/// A bound address or socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Socket,
    file: Option<SocketFile>,
    shown: String,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Binds it. A dead daemon's socket is replaced; one still in use is not.
    ///
    /// # Errors
    /// When it is in use, or cannot be created.
    pub fn bind(address: &AdminAddress) -> Result<Listener, BindError> {
        match address {
            AdminAddress::Unix(path) => bind_unix(path)
                .map_err(|(what, fix)| BindError(format!("admin socket {}: {what}; {fix}", path.display()))),
            AdminAddress::Tcp(address) => {
                if !address.ip().is_loopback() {
                    tracing::warn!(%address, "the admin interface is reachable from other machines, and anyone can read it");
                }
                let bound = TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    let shown = listener.local_addr()?.to_string();
                    Ok(Listener { socket: Socket::Tcp(listener), file: None, shown })
                });
                bound.map_err(|error| {
                    let fix = "choose another port, or port 0 for any free one, with --admin";
                    BindError(format!("admin interface on {address}: {error}; {fix}"))
                })
            }
        }
    }
}

/// Where groups of users are listed (group(5)).
const GROUPS: &str = "/etc/group";

impl Listener {
    /// Lets the users of a group use the socket as well; no effect on an address.
    ///
    /// # Errors
    /// When there is no such group, or the socket's group cannot be changed.
    pub fn admit(&self, group: &str) -> Result<(), BindError> {
        let Some(file) = &self.file else { return Ok(()) };
        let given = group_id(&fs::read_to_string(GROUPS).unwrap_or_default(), group)
            .ok_or_else(|| format!("there is no group {group}; name one of {GROUPS} in admin_group"))
            .and_then(|id| {
                // Members of the group may use it only once it belongs to the group.
                chown(&file.path, None, Some(id))
                    .and_then(|()| fs::set_permissions(&file.path, fs::Permissions::from_mode(0o660)))
                    .map_err(|error| {
                        format!("it cannot be given to group {group}: {error}; start the daemon as a member of the group")
                    })
            });
        given.map_err(|why| BindError(format!("admin socket {}: {why}", file.path.display())))
    }
}

impl Listener {
    /// Makes a user the socket's owner, who may then use and remove it; no effect on an address.
    ///
    /// # Errors
    /// When that requires root.
    pub fn give_to(&self, uid: u32) -> Result<(), BindError> {
        let Some(file) = self.file.as_ref().filter(|file| file.is_there()) else { return Ok(()) };
        let given =
            lchown(&file.path, Some(uid), None).and_then(|()| lchown(lock_path(&file.path), Some(uid), None));
        given.map_err(|error| {
            let path = file.path.display();
            BindError(format!(
                "admin socket {path}: it cannot be given to user {uid}: {error}; start the daemon as root"
            ))
        })
    }
}

/// A group's ID, from its name or number.
fn group_id(groups: &str, name: &str) -> Option<u32> {
    let listed = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    listed.or_else(|| name.parse().ok())
}

impl Listener {
    /// What the banner shows: a path, or a URL with the port that was bound.
    pub(crate) fn shown(&self, is_encrypted: bool) -> String {
        match &self.socket {
            Socket::Unix(_) => self.shown.clone(),
            Socket::Tcp(_) if is_encrypted => format!("https://{}", self.shown),
            Socket::Tcp(_) => format!("http://{}", self.shown),
        }
    }
}

/// What is wrong, and how to fix it.
type Fault = (String, &'static str);

fn bind_unix(path: &Path) -> Result<Listener, Fault> {
    const DIRECTORY: &str = "create the directory, or choose another path with --admin";
    // Two daemons that start at the same time must not take each other's new socket for a dead one.
    let _lock = lock(path)?;
    let io_fault = |error: io::Error| (error.to_string(), DIRECTORY);
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
    Ok(Listener { socket: Socket::Unix(UnixListener::from(socket)), file: Some(file), shown })
}

/// Reserves a socket's path for this process until dropped, by locking a file beside it that no other user
/// can open. (The directory itself could be locked by anyone who may read it.)
fn lock(path: &Path) -> Result<OwnedFd, Fault> {
    const REMEDY: &str = "create the directory, or choose another path with --admin";
    let beside = lock_path(path);
    let fault = |error: Errno| (format!("{}: {error}", beside.display()), REMEDY);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::open(&beside, flags, Mode::RUSR | Mode::WUSR).map_err(fault)?;
    for _ in 0..LOCK_TRIES {
        match flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(held),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(fault(error)),
        }
    }
    let what = format!("{}: another process has locked it", beside.display());
    Err((what, "stop that process, or choose another path with --admin"))
}

/// The lock file of a socket.
fn lock_path(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    beside.into()
}

/// A listening socket at the path, to which only its owner could ever connect: the file is created with the
/// socket's mode.
fn bound(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Removes the socket at the path if nobody serves it.
fn remove_dead(path: &Path) -> Result<(), Fault> {
    const OTHER: &str = "choose another path with --admin";
    let found = fs::symlink_metadata(path).map_err(|error| (error.to_string(), OTHER))?;
    if !found.file_type().is_socket() {
        return Err(("something that is not a socket exists there".into(), OTHER));
    }
    let tried = SocketAddrUnix::new(path).and_then(|address| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address)
    });
    match tried {
        Err(Errno::CONNREFUSED) => {}
        Ok(()) | Err(Errno::AGAIN) => {
            return Err((
                "another process serves it".into(),
                "stop that one, or choose another path with --admin",
            ));
        }
        Err(error) => return Err((error.to_string(), OTHER)),
    }
    fs::remove_file(path).map_err(|error| (format!("a stale socket cannot be removed: {error}"), OTHER))
}

/// Identifies a socket's file, to notice when another has replaced it.
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

    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "the admin socket could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn at(path: &Path) -> Result<Listener, BindError> {
        Listener::bind(&AdminAddress::Unix(path.into()))
    }

    #[test]
    fn a_socket_is_its_owner_s_and_goes_with_its_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let listener = at(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(listener.shown(false), path.to_str().unwrap());
        UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_group_may_be_let_in() {
        let groups = "root:x:0:\nstorage:x:117:a,b\n";
        assert_eq!(group_id(groups, "storage"), Some(117));
        assert_eq!((group_id(groups, "stor"), group_id(groups, "44")), (None, Some(44)));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let listener = at(&path).unwrap();
        let own = fs::symlink_metadata(&path).unwrap().gid();
        listener.admit(&own.to_string()).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, own));
        let refused = listener.admit("no-such-group").unwrap_err().to_string();
        assert!(refused.contains("there is no group no-such-group; name one of /etc/group"), "{refused}");
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "nobody removed it");
        let live = at(&path).unwrap();
        let refused = at(&path).unwrap_err().to_string();
        assert!(refused.contains("another process serves it; stop that one"), "{refused}");
        drop(live);
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_on_the_directory_blocks_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let other = fs::File::open(directory.path()).unwrap();
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        let listener = at(&path).unwrap();
        let lock = fs::symlink_metadata(directory.path().join("admin.sock.lock")).unwrap();
        assert_eq!(lock.mode() & 0o777, 0o600, "only its owner can lock it");
        drop(listener);
    }

    #[test]
    fn a_lock_is_not_made_where_a_link_leads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let elsewhere = directory.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, directory.path().join("admin.sock.lock")).unwrap();
        at(&path).unwrap_err();
        assert!(!elsewhere.exists());
    }

    #[test]
    fn nothing_else_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        fs::write(&path, "precious").unwrap();
        let refused = at(&path).unwrap_err().to_string();
        assert!(refused.contains("not a socket") && refused.contains("--admin"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        let listener = at(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(listener);
        assert!(path.exists(), "what took its place is not ours");
    }

    #[test]
    fn an_address_that_cannot_be_bound_is_named_with_a_fix() {
        let directory = tempfile::tempdir().unwrap();
        let refused = at(&directory.path().join("no/admin.sock")).unwrap_err().to_string();
        assert!(refused.contains("create the directory"), "{refused}");
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = AdminAddress::Tcp(taken.local_addr().unwrap());
        let refused = Listener::bind(&address).unwrap_err().to_string();
        assert!(refused.contains("with --admin"), "{refused}");
    }
}
