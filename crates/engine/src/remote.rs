//! A store that is a unit of another target. Each lane is a session of its own with it.
//!
//! A target that is lost is waited for, and what was in flight is sent again where that does no harm; after
//! [`RemoteOptions::initiator`]'s `give_up_after` operations fail with [`StoreError::Unavailable`].

mod geometry;
mod lane;
mod request;

pub use geometry::Geometry;

use crate::config::format_size;
use crate::initiator::session::Session;
use crate::initiator::{Client, Options, Url};
use lane::RemoteLane;
use reactor::io::Tag;
use reactor::memory::Region;
use reactor::uring::Uring;
#[cfg(doc)]
use scsi::storage::StoreError;
use scsi::storage::Traits;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store::OpenError;
use store::lane::{Backend, Lane, Store};

/// How often one of the lanes asks for the capacity.
const PROBE: Duration = Duration::from_secs(10);

/// How a remote unit is used.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RemoteOptions {
    /// The sessions.
    pub initiator: Options,
    /// The block size that the unit must have; `None`: whatever it has.
    pub block_bytes: Option<u32>,
    /// Nothing is to be written.
    pub read_only: bool,
}

/// A unit of another target.
pub struct RemoteStore {
    url: Url,
    addresses: Vec<SocketAddr>,
    options: RemoteOptions,
    geometry: Geometry,
    /// Zeros, to be written.
    zeros: Arc<Region>,
    /// Size in bytes as it was last seen, and as [`Store::refresh`] last told.
    size: AtomicU64,
    told: AtomicU64,
    /// When the capacity is to be asked for next, in nanoseconds.
    probe_at: AtomicU64,
    /// The unit turned out to have another block size than at first.
    is_another: AtomicBool,
    /// Whether WRITE SAME works.
    write_same: AtomicBool,
}

/// Opens a unit: logs in, and learns what it is. Blocks.
///
/// # Errors
/// When the target is not reached or refuses, or the unit is no disk that can be served.
pub fn open(url: &Url, options: &RemoteOptions) -> Result<Arc<RemoteStore>, OpenError> {
    let fault = |problem: String, remedy: &str| OpenError {
        what: url.to_string(),
        problem,
        remedy: remedy.to_string(),
    };
    if url.target.is_none() || url.lun.is_none() {
        return Err(fault("the URL names no unit".into(), "write iscsi://HOST/TARGET/LUN"));
    }
    let unreached = "is the target running, and may this initiator use it?";
    let addresses = url.resolve().map_err(|error| fault(error.to_string(), "check the host's name"))?;
    let mut client = Client::connect(url, &options.initiator)
        .map_err(|error| fault(error.problem().to_string(), unreached))?;
    let geometry = Geometry::learn(&mut client)
        .map_err(|problem| fault(problem, "name a unit that is a disk and ready"))?;
    if let Some(asked) = options.block_bytes.filter(|asked| *asked != geometry.block_bytes) {
        let problem = format!("its blocks have {} bytes, not {asked}", geometry.block_bytes);
        return Err(fault(problem, "leave the block size out"));
    }
    let zeros = Region::map(u64::from(lane::PIECE_BYTES_MAX))
        .map_err(|error| fault(format!("cannot reserve memory: {error}"), "raise the limit (ulimit -v)"))?;
    let size = geometry.traits.size_bytes;
    Ok(Arc::new(RemoteStore {
        url: url.clone(),
        addresses,
        options: options.clone(),
        write_same: AtomicBool::new(true),
        geometry,
        zeros,
        size: AtomicU64::new(size),
        told: AtomicU64::new(size),
        probe_at: AtomicU64::new(0),
        is_another: AtomicBool::new(false),
    }))
}

impl RemoteStore {
    /// What the unit was when it was opened.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn traits_of(&self, size_bytes: u64) -> Traits {
        let traits = self.geometry.traits;
        Traits { size_bytes, read_only: traits.read_only || self.options.read_only, ..traits }
    }

    /// The unit says that it has so many blocks of this size.
    fn capacity_seen(&self, blocks: u64, block_bytes: u32) {
        if block_bytes != self.geometry.block_bytes {
            return self.is_another.store(true, Ordering::Relaxed);
        }
        self.size.store(blocks.saturating_mul(u64::from(block_bytes)), Ordering::Relaxed);
    }
}

impl Store for RemoteStore {
    fn traits(&self) -> Traits {
        self.traits_of(self.size.load(Ordering::Relaxed))
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        if self.is_another.load(Ordering::Relaxed) {
            return Err("the remote unit has another block size now: serve it anew".into());
        }
        let size = self.size.load(Ordering::Relaxed);
        Ok((self.told.swap(size, Ordering::Relaxed) != size).then(|| self.traits_of(size)))
    }

    fn describe(&self) -> String {
        let size = format_size(self.size.load(Ordering::Relaxed));
        format!("{}, {size}, {}", self.url, self.geometry.name)
    }
}

impl Backend<Uring> for RemoteStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<Uring>> {
        let session =
            Session::new(self.url.clone(), self.addresses.clone(), self.options.initiator.clone(), tags);
        match session {
            Ok(session) => Box::new(RemoteLane::new(self, session)),
            Err(error) => {
                tracing::error!(store = %self.url, %error, "no session can be made");
                Box::new(store::FailedLane)
            }
        }
    }
}
