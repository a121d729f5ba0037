//! Files and block devices, over the core's [`Io`].
//!
//! A store goes either around the page cache (O_DIRECT) or through it, never both ways. Where the kernel
//! reports an alignment for direct I/O, requests that satisfy it go straight between the initiator's buffer
//! and the device, and all others go through an aligned buffer of the store, which first reads blocks that
//! they cover in part. The obvious alternative, a second descriptor without O_DIRECT for such requests, is
//! not coherent: a buffered write that shares a page (or a large folio) with a direct write in flight reads
//! the old neighbour into the page cache and writes it back later, over acknowledged data; the kernel only
//! warns ("possible data corruption due to collision with buffered I/O").
//!
//! Every operation holds its range, widened to the alignment: those that only read share it, all others hold
//! it exclusively. So no two writes interleave, a partly covered block is not changed between its reading and
//! its writing, and COMPARE AND WRITE is atomic across all cores. A long clear holds it part by part, and
//! other writes wait until all of it has ended. The kernel reports only once what the page cache has lost:
//! [`syncs`] reports it as an error to everyone who relied on it.

mod claim;
mod flight;
mod lane;
mod open;
mod probe;
mod syncs;
mod unmapped;

pub use claim::Claim;
pub use open::{Asked, examine, examine_block, on, open, open_block, open_block_counted, open_counted};

use crate::extents::Extents;
use crate::lane::{Backend, Lane, Store};
use crate::occupied::Occupied;
use crate::pool::Pool;
use crate::size::Size;
use crate::stripes::Stripes;
use crate::zeros::Zeros;
use reactor::io::{Handle, Io, Tag};
use scsi::storage::Traits;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncs::Syncs;
use unmapped::Unmapped;

/// What the file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    File,
    Block,
}

/// The alignment of requests. Buffered: 1 and 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grain {
    /// Of offset and length on the medium, and of the length of each span.
    offset: u32,
    /// Of each span in memory.
    memory: u32,
}

impl Grain {
    const BUFFERED: Grain = Grain { offset: 1, memory: 1 };

    fn is_direct(self) -> bool {
        self != Grain::BUFFERED
    }
}

/// The properties of a file or device, determined when it was opened.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kind: Kind,
    grain: Grain,
    /// The unit in which the kernel punches holes and zeroes ranges; the rest is written.
    hole_bytes: u32,
    discard_bytes: u32,
    read_only: bool,
    /// The file system keeps its files in memory.
    in_memory: bool,
    solid_state: bool,
}

/// A disk in a file or on a block device: what its lanes share.
/// Its fields are each shared between lanes by its own means.
pub struct FileStore {
    path: PathBuf,
    file: File,
    shape: Shape,
    size: AtomicU64,
    can_punch: AtomicBool,
    /// It could at the last [`Store::refresh`].
    could_punch: AtomicBool,
    can_zero: AtomicBool,
    syncs: Syncs,
    faults: AtomicU64,
    /// Since the last successful sync.
    losses_in_a_row: AtomicU64,
    stripes: Stripes,
    occupied: Occupied,
    unmapped: Unmapped,
    zeros: Zeros,
    pool: Pool,
    extents: Extents,
}

impl FileStore {
    fn handle(&self) -> Handle {
        Handle(self.file.as_raw_fd())
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Whether a durable write is a write and then one of the file's syncs: a write that syncs itself
    /// (RWF_DSYNC) would take the page cache's error from others. Direct I/O leaves nothing there, and tmpfs
    /// has nothing to write back.
    fn syncs_apart(&self) -> bool {
        !self.shape.grain.is_direct() && !self.shape.in_memory
    }
}

impl Store for FileStore {
    fn traits(&self) -> Traits {
        Traits {
            size_bytes: self.size(),
            blocks: None,
            discards: !self.shape.read_only && self.can_punch.load(Ordering::Relaxed),
            discard_granularity_bytes: self.shape.discard_bytes,
            // Keeping a write whole across a power failure would need RWF_ATOMIC.
            atomic_write_bytes_max: 0,
            compare_write_bytes_max: u32::MAX,
            volatile_cache: true,
            read_only: self.shape.read_only,
            solid_state: self.shape.solid_state,
            cryptographic_erase: false,
            identity: None,
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        let lost = |problem: String| format!("{}: {problem}", self.path.display());
        let found = probe::size(&self.file, self.shape.kind).map_err(|error| lost(error.to_string()))?;
        if found == 0 {
            return Err(lost("it is empty now: truncated, or a device without a medium".into()));
        }
        let size = found - found % u64::from(self.shape.grain.offset);
        let before = self.size.swap(size, Ordering::Relaxed);
        let punches = self.can_punch.load(Ordering::Relaxed);
        let punched = self.could_punch.swap(punches, Ordering::Relaxed);
        Ok((before != size || punched != punches).then(|| self.traits()))
    }

    fn space(&self) -> Option<(u64, u64)> {
        match self.shape.kind {
            Kind::File => probe::space(&self.file, self.size()).ok(),
            Kind::Block => None,
        }
    }

    fn misplaced(&self) -> io::Result<Option<String>> {
        let problem = probe::misplaced(&self.path, &self.file, self.shape.kind)?;
        Ok(problem.map(|problem| format!("{}: {problem}", self.path.display())))
    }

    /// What lies beyond the old end becomes durable with the next sync, as the size does.
    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        let found = probe::size(&self.file, self.shape.kind)?;
        if found > size_bytes {
            return Err(io::Error::other(format!(
                "it has {found} bytes, and a smaller size would lose data"
            )));
        }
        match self.shape.kind {
            _ if found == size_bytes => Ok(()),
            Kind::File => self.file.set_len(size_bytes),
            Kind::Block => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn describe(&self) -> String {
        let kind = match self.shape.kind {
            Kind::File => "file",
            Kind::Block => "block device",
        };
        let path = self.path.display();
        let size = Size(self.size());
        match self.shape.grain.is_direct() {
            true => format!("{kind} {path}, {size}, direct I/O in {}-byte blocks", self.shape.grain.offset),
            false => format!("{kind} {path}, {size}, through the page cache"),
        }
    }
}

impl<I: Io> Backend<I> for FileStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(lane::FileLane::new(self, tags))
    }
}
