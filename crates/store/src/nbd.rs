//! Exports of NBD servers: nbdkit, qemu-nbd, qemu-storage-daemon.
//!
//! All lanes use one connection, since servers guarantee consistency across several only where they say so.
//! An operation is one or a few calls, which own their bytes; whichever lane finds that replies have arrived
//! handles them for all.
//!
//! A server that does not answer is waited for: its connection is kept, operations fail with
//! [`StoreError::Unavailable`] after [`Options::give_up_after`], and their calls keep their blocks locked
//! until the server has answered them, or has ended the connection. Only then are they resent, on the next
//! one.

mod connection;
mod lane;
mod lingering;
mod open;
mod socket;
mod stream;

pub use open::{inspect, open};

use crate::calls::{Call, Medium, Shared};
use crate::lane::{Backend, Lane, Store};
use crate::size::Size;
use connection::Connection;
use lane::NbdLane;
use reactor::io::{Io, Tag};
#[cfg(doc)]
use scsi::storage::StoreError;
use scsi::storage::{CHUNK_BYTES, Found, Traits};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wire::nbd::transmission::{ROTATIONAL, SEND_FLUSH};

/// How long an operation waits for the server: as for the target of a remote unit.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

/// The most bytes that one request clears.
const CLEAR_BYTES: u64 = 64 << 20;

/// How an export is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Writes are not allowed.
    pub read_only: bool,
    /// Bytes of a block; `None`: the server's.
    pub block_bytes: Option<u32>,
    /// How long an operation waits for the server.
    pub give_up_after: Duration,
    /// Counts how often it may have lost data that was not flushed.
    pub losses: Arc<AtomicU64>,
}

impl Options {
    /// For blocks of this size.
    pub fn new(block_bytes: Option<u32>, read_only: bool) -> Options {
        Options { read_only, block_bytes, give_up_after: GIVE_UP_AFTER, losses: Arc::default() }
    }
}

/// An export, as shared by its lanes.
pub struct NbdStore {
    connection: Arc<Connection>,
    /// The traits that [`Store::refresh`] last reported.
    reported: Mutex<Traits>,
}

impl NbdStore {
    fn new(connection: Arc<Connection>) -> Arc<NbdStore> {
        let store = NbdStore { connection, reported: Mutex::new(Traits::NONE) };
        *store.reported.lock().unwrap_or_else(PoisonError::into_inner) = store.traits();
        Arc::new(store)
    }

    /// The smallest block that the server accepts, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.connection.block_minimum()
    }
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        lingering::keep(&self.connection);
    }
}

impl Medium for NbdStore {
    fn shared(&self) -> &Arc<Shared> {
        &self.connection.shared
    }

    fn size(&self) -> u64 {
        self.connection.size()
    }

    fn is_read_only(&self) -> bool {
        self.connection.is_read_only()
    }

    fn is_lost(&self) -> bool {
        self.connection.is_lost()
    }

    fn give_up_after(&self) -> Duration {
        self.connection.options.give_up_after
    }

    /// Where the server cannot clear, zeros are written.
    fn clear_bytes(&self) -> u64 {
        if self.connection.clears() { CLEAR_BYTES } else { CHUNK_BYTES.into() }
    }

    fn extent(&self, offset: u64) -> Option<Found> {
        let is_known = !self.connection.allocates();
        is_known.then(|| Found::Extent { mapped: true, len: self.size() - offset })
    }

    fn start(&self, call: Box<Call>) -> Result<(), Box<Call>> {
        self.connection.start(call);
        Ok(())
    }

    fn withdraw(&self, number: u64) {
        self.connection.withdraw(number);
    }
}

impl Store for NbdStore {
    fn traits(&self) -> Traits {
        let connection = &self.connection;
        let (flags, read_only) = (connection.flags(), connection.is_read_only());
        Traits {
            size_bytes: connection.size(),
            blocks: None,
            discards: connection.clears() && !read_only,
            discard_granularity_bytes: connection.block_preferred(),
            atomic_write_bytes_max: 0,
            compare_write_bytes_max: u32::MAX,
            volatile_cache: flags & SEND_FLUSH != 0 && !read_only,
            read_only,
            solid_state: flags & ROTATIONAL == 0,
            cryptographic_erase: false,
            identity: None,
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        self.connection.tick();
        if let Some(problem) = self.connection.problem() {
            return Err(format!("{}: {problem}", self.connection.url()));
        }
        let traits = self.traits();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((std::mem::replace(&mut *reported, traits) != traits).then_some(traits))
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.connection.url(), Size(self.size()))
    }
}

impl<I: Io> Backend<I> for NbdStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(NbdLane::new(self, tags))
    }
}
