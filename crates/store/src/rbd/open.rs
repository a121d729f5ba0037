//! Opening an image, with helpful error messages.

use super::roles::{self, Roles};
use super::sys::{self, Cluster, Image, Pool, c_text};
use super::{Client, Probe, RbdStore, luks};
use crate::bounded::Bounded;
use crate::calls::{Mailbox, Shared};
use crate::error::OpenError;
use config::names::identity;
use config::{Access, RbdImage};
use rustix::io::Errno;
use scsi::storage::Identity;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// How long connecting waits for a monitor, in seconds; the default is five minutes.
const CONNECT_SECONDS: &CStr = c"15";

/// How long an operation waits for the cluster: as for the target of a remote unit.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

/// Options of librbd that an image or a pool may override, the required values, and what would happen
/// otherwise.
const NEEDED: [(&CStr, &CStr, &str); 4] = [
    (c"rbd_cache", c"false", LOSES_WRITES),
    (c"rbd_persistent_cache_mode", c"disabled", LOSES_WRITES),
    (c"rbd_non_blocking_aio", c"true", "a core could block on the cluster"),
    (c"rbd_blocklist_on_break_lock", c"true", LANDS_LATE),
];
const LOSES_WRITES: &str = "acknowledged writes could be lost";
const LANDS_LATE: &str = "writes of a client whose lock was broken could overwrite newer ones";

/// How long a gateway stays fenced, which is a year: one that was paused must not write when it continues.
/// librbd's default is an hour; what Ceph 16 sends for `rbd_blocklist_expire_seconds` is refused by its own
/// monitors.
pub(super) const BLOCKLIST_SECONDS: u32 = 31_536_000;

/// For librados: a call that timed out before its request could be written after newer ones.
const OSD_TIMEOUT: (&CStr, &CStr) = (c"rados_osd_op_timeout", c"0");

/// How an image is used.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Writes are not allowed.
    pub read_only: bool,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The unit's names are derived from the image: the same, whatever serves it.
    pub names_unit: bool,
    /// How long an operation waits for the cluster.
    pub give_up_after: Duration,
    /// With [`Access::All`]: how long a call that changes the image takes before it is stuck (see
    /// [`crate::lane::Failover::is_stuck`]).
    pub stuck_after: Duration,
    /// Gateways share it: it is opened without the lock, and accepts no operations until it is promoted, or
    /// has caught up (see [`crate::lane::Failover`]).
    pub access: Option<Access>,
}

impl Options {
    /// For blocks of this size.
    pub fn new(block_bytes: u32, read_only: bool) -> Options {
        Options {
            read_only,
            block_bytes,
            names_unit: false,
            give_up_after: GIVE_UP_AFTER,
            stuck_after: GIVE_UP_AFTER,
            access: None,
        }
    }
}

/// Why no image can be opened here, including missing files; the cluster is not contacted.
///
/// # Errors
/// With the fix.
pub fn examine(image: &RbdImage) -> Result<(), OpenError> {
    library(image)?;
    for (what, path) in [("conf", &image.conf), ("keyring", &image.keyring)] {
        if let Some(path) = path
            && let Err(error) = std::fs::File::open(path)
        {
            let problem = format!("{}: {error}", path.display());
            return Err(OpenError::new(image, problem, format!("name a file that can be read with {what}=")));
        }
    }
    luks::passphrase(image).map(drop)
}

/// Opens an image; blocks.
///
/// # Errors
/// When librbd is missing, the cluster is unreachable or refuses, there is no such image, or another client
/// writes to it.
pub fn open(place: &RbdImage, options: Options) -> Result<Arc<RbdStore>, OpenError> {
    examine(place)?;
    let read_only = options.read_only || place.snapshot.is_some();
    let (image, client) = open_client(place, options)?;
    if !read_only && options.access.is_none() {
        lock(place, &image)?;
    }
    let asked = |what: &'static str| {
        move |error: i32| fault(place, format!("cannot read {what}: {}", text(error)), SEE_CEPH)
    };
    let size = image.size().map_err(asked("its size"))?;
    check_size(place, size, options.block_bytes)?;
    let stripe_unit = image.stripe_unit().map_err(asked("its striping"))?.max(1);
    let compare_write_bytes_max = match options.access {
        // What librbd cannot do in one step, the lane does in several, as the only writer.
        None | Some(Access::One) => u32::MAX,
        Some(Access::All) => swapped_bytes(&image, options.block_bytes, stripe_unit)
            .map_err(asked("how much of it can be compared and written"))?,
    };
    let is_named = options.names_unit || options.access.is_some();
    let id = is_named.then(|| name(place, &image)).transpose().map_err(asked("its identifier"))?;
    let no_memory =
        |error| fault(place, format!("cannot reserve memory: {error}"), "raise the limits (ulimit -v, -n)");
    let mail = Mailbox::new().map_err(no_memory)?;
    let shared = Shared::new().map_err(no_memory)?;
    Ok(Arc::new_cyclic(|itself| RbdStore {
        itself: itself.clone(),
        name: place.to_string(),
        place: place.clone(),
        options,
        open: RwLock::new(Client::new(image, 0, client)),
        roles: Roles::new(options.access),
        changes: Bounded::new(roles::PATIENCE, 1),
        shared,
        size: AtomicU64::new(size),
        stripe_unit,
        swaps_objects: AtomicBool::new(true),
        compare_write_bytes_max,
        read_only,
        id,
        probe: Mutex::new(Probe { mail, asked: None, next: Instant::now(), failed: None }),
        is_lost: AtomicBool::new(false),
    }))
}

pub(super) const SEE_CEPH: &str = "see the state of the cluster (ceph -s)";

fn library(place: &RbdImage) -> Result<&'static sys::Library, OpenError> {
    sys::library().map_err(|missing| {
        let remedy = "install Ceph's client libraries (Debian, Ubuntu: apt install librbd1; Fedora, RHEL: dnf install librbd1)";
        fault(place, format!("librbd cannot be loaded ({missing})"), remedy)
    })
}

/// The image, opened by a new client and found safe to use, and the client's address; it is not locked.
pub(super) fn open_client(place: &RbdImage, options: Options) -> Result<(Image, String), OpenError> {
    let read_only = options.read_only || place.snapshot.is_some();
    let image = open_image(place, read_only)?;
    check_options(place, &image)?;
    check_features(place, &image, options.access.filter(|_| !read_only))?;
    luks::load(place, &image)?;
    let client = image
        .cluster()
        .address()
        .map_err(|error| fault(place, format!("its client's address: {}", text(error)), SEE_CEPH))?;
    Ok((image, client))
}

/// The pool of an image.
pub(crate) fn find_pool(place: &RbdImage, cluster: Cluster) -> Result<Pool, OpenError> {
    let namespace = place.namespace.as_deref().map(|name| c_name(place, name)).transpose()?;
    cluster.pool(&c_name(place, &place.pool)?, namespace.as_deref()).map_err(|error| {
        match Errno::from_raw_os_error(error) {
            Errno::NOENT => fault(
                place,
                format!("there is no pool {}", place.pool),
                "name an existing one (ceph osd pool ls)",
            ),
            _ => fault(place, format!("pool {}: {}", place.pool, text(error)), SEE_CEPH),
        }
    })
}

fn c_name(place: &RbdImage, name: &str) -> Result<CString, OpenError> {
    c_text(name).map_err(|_| fault(place, "a name has a NUL character", "correct the name"))
}

fn open_image(place: &RbdImage, read_only: bool) -> Result<Image, OpenError> {
    let needed = NEEDED.map(|(option, value, _)| (option, value));
    let pool = find_pool(place, connect(place, &[&needed[..], &[OSD_TIMEOUT]].concat())?)?;
    let snapshot = place.snapshot.as_deref().map(|name| c_name(place, name)).transpose()?;
    pool.image(&c_name(place, &place.image)?, snapshot.as_deref(), read_only).map_err(|error| {
        let pool_name = match &place.namespace {
            Some(namespace) => format!("{}/{namespace}", place.pool),
            None => place.pool.clone(),
        };
        match (Errno::from_raw_os_error(error), &place.snapshot) {
            (Errno::NOENT, None) => {
                let remedy = format!(
                    "create it (rbd create --size 10G {pool_name}/{}), or name another (rbd ls {pool_name})",
                    place.image
                );
                fault(place, "there is no such image", &remedy)
            }
            (Errno::NOENT, Some(_)) => {
                let remedy = format!(
                    "name an existing one (rbd ls {pool_name}; rbd snap ls {pool_name}/{})",
                    place.image
                );
                fault(place, "there is no such image, or it has no such snapshot", &remedy)
            }
            (Errno::PERM | Errno::ACCESS, _) => fault(place, text(error), CAPS),
            _ => fault(place, text(error), SEE_CEPH),
        }
    })
}

const CAPS: &str = "give the client the rights of a writer (ceph auth caps client.NAME mon 'profile rbd' osd 'profile rbd pool=POOL')";

/// A client of the cluster, with these options.
pub(crate) fn connect(place: &RbdImage, options: &[(&CStr, &CStr)]) -> Result<Cluster, OpenError> {
    let library = library(place)?;
    let client = format!("client.{}", place.client.as_deref().unwrap_or("admin"));
    let failed =
        |what: &str, error: i32, remedy: &str| fault(place, format!("{what}: {}", text(error)), remedy);
    let unnamed = |error| failed(&client, error, "correct client=");
    let cluster = Cluster::new(library, &c_text(client.as_str()).map_err(unnamed)?).map_err(unnamed)?;
    let conf = place.conf.as_ref().map(|path| c_text(path.as_os_str().as_bytes())).transpose();
    let conf = conf.map_err(|error| failed("conf", error, "correct conf="))?;
    cluster.read_file(conf.as_deref()).map_err(|error| {
        let path =
            place.conf.as_ref().map_or("/etc/ceph/ceph.conf".into(), |path| path.display().to_string());
        failed(&path, error, "name the cluster's configuration with conf=")
    })?;
    let set = |option: &CStr, value: &CStr| match cluster.set(option, value) {
        // An older librbd does not have all of them.
        Err(error) if error != Errno::NOENT.raw_os_error() => {
            Err(failed(&option.to_string_lossy(), error, SEE_CEPH))
        }
        Ok(()) | Err(_) => Ok(()),
    };
    if let Some(keyring) = &place.keyring {
        let path = c_text(keyring.as_os_str().as_bytes())
            .map_err(|error| failed("keyring", error, "correct keyring="))?;
        set(c"keyring", &path)?;
    }
    options.iter().try_for_each(|(option, value)| set(option, value))?;
    set(c"client_mount_timeout", CONNECT_SECONDS)?;
    cluster.connect().map_err(|error| match Errno::from_raw_os_error(error) {
        Errno::TIMEDOUT => fault(
            place,
            "no monitor of the cluster answers",
            "are the monitors running, and reached from here (mon_host in the cluster's configuration, TCP 3300 and 6789)?",
        ),
        Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP => fault(
            place,
            format!("the cluster does not admit {client}: {}", text(error)),
            "name a client with client=, and the file with its key with keyring= (/etc/ceph/ceph.client.NAME.keyring)",
        ),
        _ => failed("connecting", error, SEE_CEPH),
    })?;
    Ok(cluster)
}

/// Whether what librbd acknowledges is on the OSDs, and it never blocks the caller.
fn check_options(place: &RbdImage, image: &Image) -> Result<(), OpenError> {
    for (option, wanted, otherwise) in NEEDED {
        let name = option.to_string_lossy();
        let found = image
            .option(option)
            .map_err(|error| fault(place, format!("{name}: {}", text(error)), SEE_CEPH))?;
        if let Some(found) = found.filter(|found| found.as_bytes() != wanted.to_bytes()) {
            let problem = format!("its own configuration, or its pool's, has {name} = {found}: {otherwise}");
            let remedy =
                format!("remove it (rbd config image rm POOL/IMAGE {name}; rbd config pool rm POOL {name})");
            return Err(fault(place, problem, &remedy));
        }
    }
    Ok(())
}

fn has(place: &RbdImage, feature: Result<bool, i32>) -> Result<bool, OpenError> {
    feature.map_err(|error| fault(place, format!("its features: {}", text(error)), SEE_CEPH))
}

/// Whether the image has the features that gateways need, and none with which they could lose data.
fn check_features(place: &RbdImage, image: &Image, access: Option<Access>) -> Result<(), OpenError> {
    let Some(access) = access else { return Ok(()) };
    let has_lock = has(place, image.has_lock())?;
    let has_map = has(place, image.has_object_map())?;
    match (access, has_lock) {
        (Access::One, false) => {
            let remedy = "enable it (rbd feature enable POOL/IMAGE exclusive-lock)";
            Err(fault(place, "it has no exclusive lock, which gateways need", remedy))
        }
        // librbd would answer from it after another gateway has broken the lock, and has written there.
        (Access::One, true) if has_map => {
            let problem = "it has the feature object-map, with which a gateway that was replaced may read what is older than \
            its successor's writes";
            let remedy = "disable it (rbd feature disable POOL/IMAGE fast-diff object-map, without fast-diff if rbd info does \
            not show that)";
            Err(fault(place, problem, remedy))
        }
        (Access::All, true) => {
            let problem =
                "it has the feature exclusive-lock, with which only one gateway at a time can write to it";
            let remedy = "disable it (rbd feature disable POOL/IMAGE fast-diff object-map exclusive-lock, without \
            those that rbd info does not show), or write access = \"one\"";
            Err(fault(place, problem, remedy))
        }
        (Access::One, true) | (Access::All, false) => Ok(()),
    }
}

fn lock(place: &RbdImage, image: &Image) -> Result<(), OpenError> {
    if !has(place, image.has_lock())? {
        tracing::warn!(
            image = %place,
            "the image has no exclusive lock: nothing prevents writes by other clients, or late writes of a daemon \
             that was killed; rbd feature enable POOL/IMAGE exclusive-lock"
        );
        return Ok(());
    }
    image.lock().map_err(|error| match Errno::from_raw_os_error(error) {
        Errno::ROFS | Errno::BUSY | Errno::TIMEDOUT | Errno::AGAIN => fault(
            place,
            "another client has locked it",
            "stop that client (rbd status and rbd lock ls show it), or use the image read-only (ro); the lock of a \
             client that was killed ends within half a minute",
        ),
        Errno::PERM | Errno::ACCESS => fault(place, format!("it cannot be locked: {}", text(error)), CAPS),
        _ => fault(place, format!("it cannot be locked: {}", text(error)), SEE_CEPH),
    })
}

/// The most bytes that librbd compares and writes in one step: one block, or none. The same for each gateway,
/// so a longer range that this one's librbd supports does not count.
fn swapped_bytes(image: &Image, block_bytes: u32, stripe_unit: u64) -> Result<u32, i32> {
    if u64::from(block_bytes) > stripe_unit / 2 {
        return Ok(0);
    }
    if u64::from(block_bytes) <= super::SECTOR_BYTES {
        return Ok(block_bytes);
    }
    // Random, so that it is not equal, and nothing is written.
    let mut bytes = vec![0; block_bytes as usize];
    getrandom::fill(&mut bytes).map_err(|_| Errno::IO.raw_os_error())?;
    Ok(if image.swaps(&bytes)? { block_bytes } else { 0 })
}

fn check_size(place: &RbdImage, size: u64, block_bytes: u32) -> Result<(), OpenError> {
    let block = u64::from(block_bytes);
    if size > 0 && size.is_multiple_of(block) {
        return Ok(());
    }
    let problem = match size {
        0 => "it is empty".to_owned(),
        _ => format!("{size} bytes are {} more than whole blocks of {block_bytes}", size % block),
    };
    Err(fault(place, problem, "make it larger (rbd resize)"))
}

/// The names of its unit: derived from the cluster, the image and the snapshot, so that they are the same
/// wherever it is served.
pub(super) fn name(place: &RbdImage, image: &Image) -> Result<Identity, i32> {
    let snapshot = match &place.snapshot {
        Some(name) => format!("\0{}", image.snapshot_id(&c_text(name.as_str())?)?),
        None => String::new(),
    };
    let text = format!("{}\0{}{snapshot}", image.cluster().fsid()?, image.id()?);
    let serial = config::hashed_serial(&text);
    let names = identity(&serial);
    let serial = serial.as_bytes().first_chunk().copied().unwrap_or_default();
    Ok(Identity { serial, naa: names.naa, eui: names.eui })
}

/// The text of an error number.
pub(crate) fn error_text(number: u32) -> String {
    text(i32::try_from(number).unwrap_or(i32::MAX))
}

pub(super) fn text(error: i32) -> String {
    match Errno::from_raw_os_error(error) {
        // An OSD's answer to a client on the blocklist.
        Errno::SHUTDOWN => {
            "another client has broken this client's lock, and the cluster has put this client on its blocklist (ceph \
             osd blocklist ls); once the other client has ended, remove the LUN and add it again, or restart this \
             daemon: initiators may have cached older data than the other client wrote"
                .into()
        }
        error => std::io::Error::from(error).to_string(),
    }
}

pub(super) fn fault(place: &RbdImage, problem: impl std::fmt::Display, remedy: &str) -> OpenError {
    OpenError::new(place, problem, remedy)
}
