//! Ceph RBD images, through librbd.
//!
//! All lanes use one open image. An operation is one or a few calls of librbd, which completes them on its
//! own threads; the lane finds them in its mailbox, whose event the core watches. librbd's cache is off: what
//! has completed is on the OSDs.
//!
//! A call cannot be recalled, and hangs while the cluster is unreachable. So an operation that makes no
//! progress for [`Options::give_up_after`] fails with [`StoreError::Unavailable`], and its call keeps its
//! blocks locked until it has ended: a late write still precedes anything newer. Until then the store is
//! lost, and gets no more work. librbd resends what the OSDs have not answered, so that it ends when they are
//! back.
//!
//! An image with the feature exclusive-lock is locked as long as it is open for writing. Writes of a killed
//! process can no longer take effect once the next one serves the image: librbd breaks the lock of a dead
//! client, and has the cluster fence it.
//!
//! An image shared by gateways is opened without the lock, which is taken and released by the gateways'
//! decision ([`roles`]). If all of them access it at once, what an operation may change is reported only when
//! its call has ended, or the cluster refuses it.

mod extents;
mod luks;
pub(crate) mod open;
pub mod roles;
pub(crate) mod sys;

pub use open::{Options, examine, open};

use crate::bounded::Bounded;
use crate::calls::{Call, CallLane, Mailbox, Medium, Shared, Work};
use crate::lane::{Backend, Lane, Store};
use crate::rados::SILENCE;
use crate::range::Range;
use crate::size::Size;
use config::RbdImage;
use extents::Extents;
use reactor::io::{Io, Tag};
use roles::Roles;
use rustix::io::Errno;
#[cfg(doc)]
use scsi::storage::StoreError;
use scsi::storage::{Found, Identity, Traits};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};
use sys::Image;

/// How often the cluster is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes that such a probe reads.
const PROBE_BYTES: usize = 512;

/// The most bytes cleared by one call.
const CLEAR_BYTES: u64 = 64 << 20;

/// The same of an encrypted image, for which librbd writes encrypted zeros.
const CLEAR_ENCRYPTED_BYTES: u64 = 4 << 20;

/// The size that every librbd compares and writes atomically.
const SECTOR_BYTES: u64 = 512;

/// The alignment recommended for UNMAP: the unit in which BlueStore, by default, and the kernel's rbd
/// deallocate space.
const DISCARD_BYTES: u32 = 64 << 10;

/// An image, as shared by its lanes.
/// Its fields are the client, what it may do, and what is known of the image.
pub struct RbdStore {
    name: String,
    place: RbdImage,
    options: Options,
    /// Read for each call, which is cheap beside what librbd does for it, and written when the client is
    /// replaced.
    open: RwLock<Client>,
    roles: Roles,
    /// Changes of them: one at a time.
    changes: Bounded,
    /// For threads that do what may hang.
    itself: Weak<RbdStore>,
    shared: Arc<Shared>,
    size: AtomicU64,
    /// A range of this size and alignment is in one object.
    stripe_unit: u64,
    /// Whether librbd compares and writes more than a sector atomically, as far as is known.
    swaps_objects: AtomicBool,
    compare_write_bytes_max: u32,
    read_only: bool,
    /// Unique names for its unit.
    id: Option<Identity>,
    probe: Mutex<Probe>,
    /// The last probe failed, or has not been answered for too long.
    is_lost: AtomicBool,
}

/// This process as a client of the cluster, until it is replaced.
struct Client {
    /// `None` when it is closed.
    image: Option<Arc<Image>>,
    number: u64,
    address: String,
    extents: Extents,
}

/// The probe of the cluster: one at a time.
struct Probe {
    mail: Arc<Mailbox>,
    /// When it was sent.
    asked: Option<Instant>,
    next: Instant,
    /// The result of the last one.
    failed: Option<String>,
}

impl RbdStore {
    fn open(&self) -> RwLockReadGuard<'_, Client> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_mut(&self) -> RwLockWriteGuard<'_, Client> {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn image(&self) -> Arc<Image> {
        self.open().image()
    }

    /// Sends a probe, and reports the result of the last one. Does not block.
    fn probe(&self) -> Result<(), String> {
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mut arrived = Vec::new();
        probe.mail.take(&mut arrived);
        let open = self.open();
        for call in arrived.into_iter().filter(|call| call.client == open.number) {
            self.notice_fence(&call);
            probe.asked = None;
            probe.failed =
                u32::try_from(-call.answer).ok().filter(|number| *number != 0).map(open::error_text);
        }
        if probe.asked.is_none() && now >= probe.next {
            let mut call = Call::new(&probe.mail);
            call.work = Work::Read { offset: 0 };
            call.data.resize(PROBE_BYTES.min(usize::try_from(self.size()).unwrap_or(PROBE_BYTES)), 0);
            if open.start(call).is_ok() {
                (probe.asked, probe.next) = (Some(now), now + PROBE_INTERVAL);
            }
        }
        let silence = probe.asked.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked));
        let is_silent = silence >= self.options.give_up_after;
        self.is_lost.store(is_silent || probe.failed.is_some(), Ordering::Relaxed);
        let lost = |problem: &str| Err(format!("{}: {problem}", self.name));
        match &probe.failed {
            Some(problem) => lost(problem),
            None if is_silent || self.shared.has_abandoned_of(open.number) => lost(SILENCE),
            None => Ok(()),
        }
    }

    fn is_encrypted(&self) -> bool {
        self.place.luks_passphrase_file.is_some()
    }

    fn notice_fence(&self, call: &Call) {
        if call.answer == -i64::from(Errno::SHUTDOWN.raw_os_error()) {
            self.roles.notice_fence();
        }
    }

    /// Whether the last probe is unanswered.
    fn is_asking(&self) -> bool {
        self.probe.lock().unwrap_or_else(PoisonError::into_inner).asked.is_some()
    }
}

impl Client {
    fn new(image: Image, number: u64, address: String) -> Client {
        Client { image: Some(Arc::new(image)), number, address, extents: Extents::default() }
    }

    fn image(&self) -> Arc<Image> {
        self.image.clone().expect("it is closed when its store is dropped")
    }

    /// Has a thread find what is allocated.
    fn find(&self, mut call: Box<Call>) -> Result<(), Box<Call>> {
        call.client = self.number;
        self.extents.start(self.image(), call)
    }

    /// Gives a call to librbd.
    fn start(&self, mut call: Box<Call>) -> Result<(), Box<Call>> {
        call.client = self.number;
        self.image.as_ref().expect("it is closed when its store is dropped").start(call)
    }
}

impl Medium for RbdStore {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn is_lost(&self) -> bool {
        self.roles.are_lost(&self.shared) || self.is_lost.load(Ordering::Relaxed)
    }

    fn give_up_after(&self) -> Duration {
        self.options.give_up_after
    }

    fn has_other_writers(&self) -> bool {
        self.roles.are_for_all()
    }

    fn client(&self) -> u64 {
        self.roles.client()
    }

    fn has_abandoned(&self, client: u64) -> bool {
        self.roles.have_abandoned(client)
    }

    fn stuck_after(&self) -> Duration {
        self.options.stuck_after
    }

    fn clear_bytes(&self) -> u64 {
        if self.is_encrypted() { CLEAR_ENCRYPTED_BYTES } else { CLEAR_BYTES }
    }

    /// Nothing of an encrypted image is known to be a hole: an object's holes may be decrypted like data, and
    /// which offsets librbd reports depends on its version.
    fn extent(&self, offset: u64) -> Option<Found> {
        let len = self.size().saturating_sub(offset);
        self.is_encrypted().then_some(Found::Extent { mapped: true, len })
    }

    /// Whether librbd compares and writes a range atomically: all of it must be in one object, or, with an
    /// older librbd, in one sector. Where it finds a difference, it asserts that as many bytes from there on,
    /// counted from the start of the object, are in one stripe unit: they are if two such ranges fit.
    fn swaps(&self, range: Range) -> bool {
        let unit = if self.swaps_objects.load(Ordering::Relaxed) { self.stripe_unit } else { SECTOR_BYTES };
        range.len <= self.stripe_unit / 2 && range.offset / unit == range.end().saturating_sub(1) / unit
    }

    /// An older librbd supports only one sector.
    fn swaps_less(&self) {
        self.swaps_objects.store(false, Ordering::Relaxed);
    }

    /// Not if the client was fenced since, nor if it has lost its lock, which librbd reports as a read-only
    /// file system: nothing is written to an image that was opened read-only.
    fn accepts(&self, call: &Call) -> bool {
        let open = self.open();
        let has_lost_its_lock = call.answer == -i64::from(Errno::ROFS.raw_os_error());
        if call.client == open.number {
            self.notice_fence(call);
            let writes =
                matches!(call.work, Work::Write { .. } | Work::Zero { .. } | Work::CompareAndWrite { .. });
            let is_written = writes && call.answer >= 0;
            if has_lost_its_lock || is_written {
                self.roles.notice_lock(has_lost_its_lock);
            }
        }
        call.client == open.number && !self.roles.is_fenced() && !has_lost_its_lock
    }

    fn start(&self, call: Box<Call>) -> Result<(), Box<Call>> {
        let open = self.open();
        // A demotion waits until nothing has it open in this way.
        if !self.roles.accepts() || call.client != open.number {
            return Err(call);
        }
        match call.work {
            Work::Extent { .. } => open.find(call),
            Work::Read { .. }
            | Work::Write { .. }
            | Work::Zero { .. }
            | Work::CompareAndWrite { .. }
            | Work::Flush => open.start(call),
        }
    }

    fn withdraw(&self, number: u64) {
        self.open().extents.withdraw(number);
    }
}

impl Store for RbdStore {
    fn traits(&self) -> Traits {
        Traits {
            size_bytes: self.size(),
            blocks: None,
            // What is encrypted is overwritten instead.
            discards: !self.read_only && !self.is_encrypted(),
            discard_granularity_bytes: DISCARD_BYTES,
            atomic_write_bytes_max: 0,
            compare_write_bytes_max: self.compare_write_bytes_max,
            volatile_cache: false,
            read_only: self.read_only,
            solid_state: true,
            cryptographic_erase: false,
            identity: self.id.filter(|_| self.options.names_unit),
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        let answer = self.probe();
        // Nobody needs it now, and the gateways that decide about it probe it.
        if self.options.access.is_some() && !self.roles.accepts() {
            return Ok(None);
        }
        answer?;
        // If the image has changed, the cluster is asked for the size: that hangs while it is unreachable.
        if self.is_asking() {
            return Ok(None);
        }
        let size = self.image().size().map_err(|error| {
            format!("{}: its size cannot be read: {}", self.name, open::error_text(error.unsigned_abs()))
        })?;
        Ok((self.size.swap(size, Ordering::Relaxed) != size).then(|| self.traits()))
    }

    fn describe(&self) -> String {
        let encrypted = if self.is_encrypted() { ", encrypted by LUKS" } else { "" };
        format!("{}, {}{encrypted}", self.name, Size(self.size()))
    }
}

impl<I: Io> Backend<I> for RbdStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(CallLane::new(self, tags))
    }
}

/// Images that are being closed.
static CLOSING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Closing waits for the cluster, which may hang, and the last reference may be a core's.
impl Drop for RbdStore {
    fn drop(&mut self) {
        // An answer that arrives now, or was not handled, holds the mailbox that it is in.
        self.probe.get_mut().unwrap_or_else(PoisonError::into_inner).mail.close();
        let image = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).image.take();
        close(image);
    }
}

/// Closes an image on a thread.
fn close<I: Send + 'static>(image: Option<I>) {
    let Some(image) = image else { return };
    let count = |change: fn(&mut usize)| {
        change(&mut CLOSING.0.lock().unwrap_or_else(PoisonError::into_inner));
        CLOSING.1.notify_all();
    };
    count(|closing| *closing += 1);
    let thread = std::thread::Builder::new().name("rbd-close".into()).spawn(move || {
        drop(image);
        count(|closing| *closing -= 1);
    });
    if thread.is_err() {
        // It was closed here, by dropping the closure.
        count(|closing| *closing -= 1);
    }
}

/// Waits until the images that are no longer used are closed, for this long at most: then others may open
/// them at once. The cluster detects one that is not closed within half a minute.
pub fn wait_closed(patience: Duration) {
    let closing = CLOSING.0.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = CLOSING.1.wait_timeout_while(closing, patience, |closing| *closing > 0);
}
