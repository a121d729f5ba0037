//! What the kernel reports about a file or block device.

use super::{Grain, Kind};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The largest alignment with which direct I/O is used: a lane's buffer must hold several such blocks.
const GRAIN_BYTES_MAX: u32 = 64 << 10;

/// Size in bytes. A block device has none in its metadata, but an end.
pub(super) fn size(file: &File, kind: Kind) -> io::Result<u64> {
    match kind {
        Kind::File => Ok(file.metadata()?.len()),
        Kind::Block => {
            let mut file = file;
            file.seek(SeekFrom::End(0))
        }
    }
}

/// Bytes that a file of this size takes of its file system, and how many more it can take.
pub(super) fn space(file: &File, size: u64) -> io::Result<(u64, u64)> {
    /// What st_blocks counts in (stat(3type)).
    const BLOCK_BYTES: u64 = 512;
    let (found, system) = (file.metadata()?, rustix::fs::fstatvfs(file)?);
    let used = found.blocks().saturating_mul(BLOCK_BYTES).min(size);
    Ok((used, (size - used).min(system.f_bavail.saturating_mul(system.f_frsize))))
}

/// Why the path no longer leads to this file or device. An open file outlives its name, and accepts writes
/// and flushes as before: nothing shows until it is closed, and everything is lost.
pub(super) fn misplaced(path: &Path, file: &File, kind: Kind) -> io::Result<Option<&'static str>> {
    let opened = match file.metadata() {
        // It was deleted on the NFS server.
        Err(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => return Ok(Some(DELETED)),
        opened => opened?,
    };
    let is_here = match std::fs::metadata(path) {
        Ok(found) => match kind {
            Kind::File => (found.dev(), found.ino()) == (opened.dev(), opened.ino()),
            Kind::Block => found.file_type().is_block_device() && found.rdev() == opened.rdev(),
        },
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => false,
        Err(error) => return Err(error),
    };
    Ok(match kind {
        Kind::File if opened.nlink() == 0 => Some(DELETED),
        Kind::File if !is_here => Some(
            "the served file is no longer at this path, and still takes writes: move it back, or configure its new \
             path before a restart; another file at this path is not served until then",
        ),
        Kind::Block if !is_here => Some(
            "the served device is no longer at this path, and still takes writes while it exists: restore its node, \
             or configure its new path before a restart; another device at this path is not served until then",
        ),
        Kind::File | Kind::Block => None,
    })
}

const DELETED: &str = "the served file was deleted: all of its data is lost when the daemon ends; copy it through an \
initiator before that; a new file at this path is not served until a restart";

pub(super) fn statx(file: &File) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    Ok(rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted)?)
}

/// Switches the file to direct I/O if its alignment is known, not too large, and divides the size.
pub(super) fn direct(file: &File, kind: Kind, stat: &Statx, size: u64) -> Grain {
    let is_reported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && stat.stx_dio_offset_align != 0;
    let grain = match (is_reported, kind) {
        (true, _) => Grain { offset: stat.stx_dio_offset_align, memory: stat.stx_dio_mem_align },
        (false, Kind::Block) => match rustix::fs::ioctl_blksszget(file) {
            Ok(sector) => Grain { offset: sector, memory: sector },
            Err(_) => return Grain::BUFFERED,
        },
        (false, Kind::File) => return Grain::BUFFERED,
    };
    let bearable = |bytes: u32| bytes.is_power_of_two() && bytes <= GRAIN_BYTES_MAX;
    if !bearable(grain.offset) || !bearable(grain.memory) || !size.is_multiple_of(u64::from(grain.offset)) {
        return Grain::BUFFERED;
    }
    let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::empty());
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => grain,
        Err(_) => Grain::BUFFERED,
    }
}

/// Whether the data is on tmpfs. A device's node is there, too, but not its data.
pub(super) fn in_memory(file: &File, kind: Kind) -> bool {
    /// TMPFS_MAGIC (statfs(2)).
    const TMPFS: u64 = 0x0102_1994;
    kind == Kind::File && rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type as u64 == TMPFS)
}

/// Whether holes can be punched: tried beyond the end of a file, where there is nothing to lose.
pub(super) fn punches(file: &File, kind: Kind, stat: &Statx, size: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match kind {
        Kind::File => rustix::fs::fallocate(file, flags, size.next_multiple_of(1 << 20), 4096).is_ok(),
        Kind::Block => ["discard_max_bytes", "write_zeroes_max_bytes"]
            .iter()
            .all(|name| queue(kind, stat, name).is_some_and(|bytes| bytes > 0)),
    }
}

/// Discard granularity in bytes, at least one page or block.
pub(super) fn discard_bytes(kind: Kind, stat: &Statx, hole_bytes: u32) -> u32 {
    let reported = match kind {
        Kind::File => 0,
        Kind::Block => queue(kind, stat, "discard_granularity").unwrap_or(0),
    };
    u32::try_from(reported).unwrap_or(u32::MAX).max(hole_bytes)
}

/// Whether the disk under the file does not rotate; also true if unknown.
pub(super) fn solid_state(kind: Kind, stat: &Statx) -> bool {
    queue(kind, stat, "rotational") != Some(1)
}

/// A number from the request queue's directory in sysfs; a partition's is its disk's.
fn queue(kind: Kind, stat: &Statx, name: &str) -> Option<u64> {
    let (major, minor) = match kind {
        Kind::File => (stat.stx_dev_major, stat.stx_dev_minor),
        Kind::Block => (stat.stx_rdev_major, stat.stx_rdev_minor),
    };
    ["queue", "../queue"].iter().find_map(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/{name}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_in_memory_but_the_data_of_a_device_is_not_where_its_node_is() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        assert!(in_memory(&file, Kind::File));
        assert!(!in_memory(&file, Kind::Block));
        assert!(!in_memory(&tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap(), Kind::File));
    }
}
