//! Exports of NBD servers: nbdkit, qemu-nbd, qemu-storage-daemon.
//!
//! Lanes share one connection, or several if the server guarantees consistency across them. An operation is
//! one or a few calls, which own their bytes; whichever lane finds that replies have arrived handles them for
//! all.
//!
//! A server that does not answer is waited for: its connection is kept, operations fail with
//! [`StoreError::Unavailable`] after [`Options::give_up_after`], and their calls keep their blocks locked
//! until the server has answered them, or has ended the connection. Only then are they resent, on the next
//! one.

mod common;
mod connection;
mod connections;
mod lane;
mod lingering;
mod open;
mod socket;
mod stream;

pub use open::{inspect, open};

use crate::lane::{Backend, Lane, Store};
use crate::size::Size;
use connections::Connections;
use lane::NbdLane;
use reactor::io::{Io, Tag};
#[cfg(doc)]
use scsi::storage::StoreError;
use scsi::storage::Traits;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wire::nbd::transmission::{ROTATIONAL, SEND_FLUSH};

/// How long an operation waits for the server: as for the target of a remote unit.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

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
    connections: Connections,
    /// The traits that [`Store::refresh`] last reported.
    reported: Mutex<Traits>,
}

impl NbdStore {
    fn new(connections: Connections) -> Arc<NbdStore> {
        let store = NbdStore { connections, reported: Mutex::new(Traits::NONE) };
        *store.reported.lock().unwrap_or_else(PoisonError::into_inner) = store.traits();
        Arc::new(store)
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.connections.common.open()
    }

    /// The smallest block that the server accepts, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.connections.common.block_minimum
    }
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        self.connections.iter().for_each(lingering::keep);
    }
}

impl Store for NbdStore {
    fn traits(&self) -> Traits {
        let common = &self.connections.common;
        let (flags, read_only) = (common.flags(), common.is_read_only());
        Traits {
            size_bytes: common.size(),
            blocks: None,
            discards: common.clears() && !read_only,
            discard_granularity_bytes: common.block_preferred,
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
        self.connections.tick();
        if let Some(problem) = self.connections.problem() {
            return Err(format!("{}: {problem}", self.connections.common.url));
        }
        let traits = self.traits();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((std::mem::replace(&mut *reported, traits) != traits).then_some(traits))
    }

    fn open_connections(&self) -> Option<usize> {
        Some(self.connections())
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.connections.common.url, Size(self.connections.common.size()))
    }
}

impl<I: Io> Backend<I> for NbdStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(NbdLane::new(self, tags))
    }
}
