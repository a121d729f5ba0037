//! A store that is a unit of another target. Each lane has its own session with it.
//!
//! A lost target is waited for, and what was in flight is resent where that does no harm; after
//! [`RemoteOptions::initiator`]'s `give_up_after`, operations fail with [`StoreError::Unavailable`].

mod abandoned_writes;
mod backoff;
mod continuity;
mod geometry;
mod identity;
mod lane;
mod request;
mod revalidation;
mod takeover;
mod write_history;

pub use geometry::Geometry;
pub use identity::UnitIdentity;
pub use takeover::Takeover;

use crate::session::{OutageLog, Session};
use crate::{Client, Destination, InitiatorPort, Options, resolve};
use abandoned_writes::AbandonedWrites;
use config::{Url, format_size};
use continuity::Continuity;
use geometry::ModeSenseData;
use lane::RemoteLane;
use reactor::io::{Io, Tag};
use reactor::memory::Region;
#[cfg(doc)]
use scsi::storage::StoreError;
use scsi::storage::Traits;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::OpenError;
use store::lane::{Backend, Lane, Store};
use write_history::WriteHistories;

/// How often one of the lanes queries the capacity.
const PROBE: Duration = Duration::from_secs(10);

/// How a remote unit is used.
#[derive(Clone, Default, Debug)]
pub struct RemoteOptions {
    /// The sessions.
    pub initiator: Options,
    /// The block size that the unit must have; `None`: any.
    pub block_bytes: Option<u32>,
    /// Writes are not allowed.
    pub read_only: bool,
    /// The initiator ports of its lanes: each lane takes one of these, and further ones get new ports.
    pub ports: Vec<InitiatorPort>,
    /// Others may have written to it without flushing before it is opened.
    pub inherits: bool,
    /// Counts how often it lost data that was not flushed.
    pub losses: Arc<AtomicU64>,
}

/// A unit of another target, as shared by its lanes.
/// Its fields are each shared on its own: by an atomic, by a lock, or because it never changes.
pub struct RemoteStore {
    url: Url,
    addresses: Vec<Destination>,
    options: RemoteOptions,
    geometry: Geometry,
    /// Zeros for writing.
    zeros: Arc<Region>,
    /// The last known state: size in bytes, write cache enabled, write protected.
    size: AtomicU64,
    volatile_cache: AtomicBool,
    write_protected: AtomicBool,
    /// The traits that [`Store::refresh`] last reported.
    reported: Mutex<Traits>,
    /// When the capacity is queried next, in nanoseconds.
    probe_at: AtomicU64,
    /// The unit found at the last login is not the one that was opened.
    is_another: AtomicBool,
    another: Mutex<String>,
    continuity: Continuity,
    abandoned: AbandonedWrites,
    histories: WriteHistories,
    outages: OutageLog,
    /// Lanes so far.
    lanes: AtomicU64,
    /// Whether WRITE SAME is supported.
    write_same: AtomicBool,
    /// Whether blocks can be unmapped.
    discards: AtomicBool,
}

/// Has the target end everything ever sent to a unit from these ports. Blocks.
///
/// # Errors
/// When the target is unreachable or refuses, or does not prove that it has ended.
pub fn take_over(url: &Url, options: &Options, ports: Vec<InitiatorPort>) -> Result<(), OpenError> {
    if ports.is_empty() {
        return Ok(());
    }
    let fault = |problem: String, remedy: &str| OpenError {
        what: url.to_string(),
        problem: format!("writes from before this start may still be under way there: {problem}"),
        remedy: remedy.to_string(),
    };
    let addresses = resolve(url).map_err(|error| fault(error.to_string(), "check the host's name"))?;
    let unproven = "is the target running, and may this initiator use it?";
    Takeover::new(url, addresses, options, ports).run().map_err(|problem| fault(problem, unproven))
}

/// Opens a unit: logs in, and queries its properties. Blocks.
///
/// # Errors
/// When the target is unreachable or refuses, or the unit is not a disk that can be served.
pub fn open(url: &Url, options: &RemoteOptions) -> Result<Arc<RemoteStore>, OpenError> {
    let fault = |problem: String, remedy: &str| OpenError {
        what: url.to_string(),
        problem,
        remedy: remedy.to_string(),
    };
    url.check_unit().map_err(|error| fault(error.problem().to_string(), error.remedy()))?;
    let unreached = "is the target running, and may this initiator use it?";
    let addresses = resolve(url).map_err(|error| fault(error.to_string(), "check the host's name"))?;
    let mut client = Client::connect(url, &options.initiator)
        .map_err(|error| fault(error.problem().to_string(), unreached))?;
    let geometry = Geometry::query(|cdb, bytes| client.command(cdb, bytes, &[]))
        .map_err(|problem| fault(problem, "name a unit that is a disk and is ready"))?;
    if let Some(asked) = options.block_bytes.filter(|asked| *asked != geometry.block_bytes) {
        let problem = format!("its blocks have {} bytes, not {asked}", geometry.block_bytes);
        return Err(fault(problem, "give its actual block size, or none"));
    }
    let store = RemoteStore::new(url, addresses, options, geometry);
    store.map_err(|error| fault(format!("cannot reserve memory: {error}"), "raise the limit (ulimit -v)"))
}

impl RemoteStore {
    /// A unit with known properties, at these addresses.
    ///
    /// # Errors
    /// When there is no memory for the zeros.
    pub fn new(
        url: &Url,
        addresses: Vec<Destination>,
        options: &RemoteOptions,
        geometry: Geometry,
    ) -> std::io::Result<Arc<RemoteStore>> {
        let zeros = Region::map(u64::from(lane::PIECE_BYTES_MAX))?;
        let traits = geometry.traits;
        let read_only = traits.read_only || options.read_only;
        let inherits = options.inherits && traits.volatile_cache && !read_only;
        Ok(Arc::new(RemoteStore {
            url: url.clone(),
            addresses,
            options: options.clone(),
            write_same: AtomicBool::new(true),
            discards: AtomicBool::new(traits.discards),
            continuity: Continuity::new(geometry.incarnation, options.losses.clone(), inherits),
            abandoned: AbandonedWrites::default(),
            histories: WriteHistories::default(),
            outages: OutageLog::default(),
            lanes: AtomicU64::new(0),
            geometry,
            zeros,
            size: AtomicU64::new(traits.size_bytes),
            volatile_cache: AtomicBool::new(traits.volatile_cache),
            write_protected: AtomicBool::new(traits.read_only),
            reported: Mutex::new(Traits { read_only, ..traits }),
            probe_at: AtomicU64::new(0),
            is_another: AtomicBool::new(false),
            another: Mutex::new(String::new()),
        }))
    }

    /// The unit's properties when it was opened.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How long an operation waits for the target.
    fn give_up_after(&self) -> Duration {
        self.url.give_up_after.unwrap_or(self.options.initiator.give_up_after)
    }

    /// Runs what may find lost writes, and logs them.
    fn losing<T>(&self, find: impl FnOnce(&Continuity) -> T) -> T {
        let before = self.continuity.losses();
        let found = find(&self.continuity);
        if self.continuity.losses() != before {
            reactor::limited!(
                "losses of remote units",
                tracing::Level::ERROR,
                store = %self.url,
                "writes that were acknowledged and not flushed may be lost: the target failed, or may have restarted"
            );
        }
        found
    }

    /// The unit reports this many blocks.
    fn capacity_seen(&self, blocks: u64) {
        let size = blocks.saturating_mul(u64::from(self.geometry.block_bytes));
        self.size.store(size, Ordering::Relaxed);
    }

    /// The unit reports these mode pages.
    fn modes_seen(&self, modes: &ModeSenseData) {
        self.volatile_cache.store(modes.write_cache, Ordering::Relaxed);
        self.write_protected.store(modes.write_protected, Ordering::Relaxed);
    }

    /// The unit behind the URL was found to be another one, for this reason, or the right one again.
    fn identified(&self, found: Result<(), String>) {
        match found {
            Ok(()) => self.is_another.store(false, Ordering::Relaxed),
            Err(reason) => {
                *self.another.lock().unwrap_or_else(PoisonError::into_inner) = reason;
                self.is_another.store(true, Ordering::Release);
            }
        }
    }
}

impl Store for RemoteStore {
    fn traits(&self) -> Traits {
        Traits {
            size_bytes: self.size.load(Ordering::Relaxed),
            discards: self.discards.load(Ordering::Relaxed),
            volatile_cache: self.volatile_cache.load(Ordering::Relaxed),
            read_only: self.write_protected.load(Ordering::Relaxed) || self.options.read_only,
            ..self.geometry.traits
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        if self.is_another.load(Ordering::Acquire) {
            return Err(self.another.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
        let traits = self.traits();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((std::mem::replace(&mut *reported, traits) != traits).then_some(traits))
    }

    fn resets(&self) -> u64 {
        self.continuity.resets()
    }

    fn describe(&self) -> String {
        let size = format_size(self.size.load(Ordering::Relaxed));
        format!("{}, {size}, {}", self.url, self.geometry.name)
    }
}

impl<I: Io> Backend<I> for RemoteStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        let options = self.options.initiator.clone();
        let session = Session::new::<I>(self.url.clone(), self.addresses.clone(), options, tags);
        let session = session.among(&self.outages).guarded();
        let id = self.lanes.fetch_add(1, Ordering::Relaxed);
        let port = usize::try_from(id).ok().and_then(|id| self.options.ports.get(id));
        let session = match port {
            Some(port) => session.of_port(port.clone()),
            None => session,
        };
        Box::new(RemoteLane::new(self, id, session))
    }
}
