//! Opening a file or block device, with helpful error messages.

use super::claim::{self, Claim, patiently};
use super::syncs::Syncs;
use super::unmapped::Unmapped;
use super::{FileStore, Grain, Kind, Shape, probe};
use crate::error::OpenError;
use crate::extents::Extents;
use crate::occupied::Occupied;
use crate::pool::Pool;
use crate::stripes::{GRANULE_BYTES, Stripes};
use crate::zeros::Zeros;
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The smallest block of a disk.
const BLOCK_BYTES_MIN: u64 = 512;

/// How large a file should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Any size.
    Any,
    /// It has this size, or is created with it if it does not exist.
    Exactly(u64),
    /// The same, but it may be larger.
    AtLeast(u64),
}

impl Asked {
    fn bytes(self) -> Option<u64> {
        match self {
            Asked::Any => None,
            Asked::Exactly(bytes) | Asked::AtLeast(bytes) => Some(bytes),
        }
    }
}

/// Opens a file as a disk with blocks of `block_bytes`. With a `size` it is created if it does not exist, as
/// one hole.
pub fn open(
    path: &Path,
    size: Option<u64>,
    block_bytes: u32,
    claim: Claim,
) -> Result<Arc<FileStore>, OpenError> {
    open_counted(path, size.map_or(Asked::Any, Asked::Exactly), block_bytes, claim, Arc::default())
}

/// Why a file would not open with these arguments; locks of other processes are not checked.
pub fn examine(path: &Path, size: Option<u64>, block_bytes: u32, claim: Claim) -> Result<(), OpenError> {
    let read_only = claim.is_read_only();
    let metadata = match (std::fs::metadata(path), size) {
        (Ok(metadata), _) => metadata,
        (Err(error), Some(_)) if error.kind() == ErrorKind::NotFound && !read_only => {
            let directory = accessible(directory_of(path), Access::WRITE_OK | Access::EXEC_OK);
            return directory.map_err(|error| cannot_create(path, &error));
        }
        (Err(error), _) => return Err(failed(path, &error, Kind::File, claim)),
    };
    check_kind(path, &metadata)?;
    accessible(path, access(read_only)).map_err(|error| failed(path, &error, Kind::File, claim))?;
    check_same(path, metadata.len(), size)?;
    check_size(path, Kind::File, metadata.len(), block_bytes)
}

/// Why a block device would not open with these arguments; whether others use it is not checked.
pub fn examine_block(path: &Path, claim: Claim) -> Result<(), OpenError> {
    let not_opened = |error: io::Error| failed(path, &error, Kind::Block, claim);
    check_block(path, &std::fs::metadata(path).map_err(not_opened)?)?;
    accessible(path, access(claim.is_read_only())).map_err(not_opened)
}

fn access(read_only: bool) -> Access {
    if read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK }
}

fn accessible(path: &Path, access: Access) -> io::Result<()> {
    Ok(accessat(CWD, path, access, AtFlags::EACCESS)?)
}

/// The same; its losses are counted in `losses`.
pub fn open_counted(
    path: &Path,
    asked: Asked,
    block_bytes: u32,
    claim: Claim,
    losses: Arc<AtomicU64>,
) -> Result<Arc<FileStore>, OpenError> {
    let (read_only, size) = (claim.is_read_only(), asked.bytes());
    if let Some(size) = size {
        check_asked(path, size, block_bytes)?;
    }
    let not_opened = |error: io::Error| failed(path, &error, Kind::File, claim);
    let file = match (std::fs::metadata(path), size) {
        (Ok(metadata), _) => {
            check_kind(path, &metadata)?;
            options(read_only).open(path).map_err(not_opened)?
        }
        (Err(error), Some(size)) if error.kind() == ErrorKind::NotFound && !read_only => create(path, size)?,
        (Err(error), _) => return Err(not_opened(error)),
    };
    claim::lock(path, &file, claim)?;
    let found = probe::size(&file, Kind::File).map_err(not_opened)?;
    if !matches!(asked, Asked::AtLeast(bytes) if found > bytes) {
        check_same(path, found, size)?;
    }
    finish(path, file, Kind::File, block_bytes, claim, losses)
}

/// Opens a block device as a disk with blocks of `block_bytes`. For writing, nothing else may have claimed
/// it: it must not be mounted or part of a volume.
pub fn open_block(path: &Path, block_bytes: u32, claim: Claim) -> Result<Arc<FileStore>, OpenError> {
    open_block_counted(path, block_bytes, claim, Arc::default())
}

/// The same; its losses are counted in `losses`.
pub fn open_block_counted(
    path: &Path,
    block_bytes: u32,
    claim: Claim,
    losses: Arc<AtomicU64>,
) -> Result<Arc<FileStore>, OpenError> {
    let not_opened = |error: io::Error| failed(path, &error, Kind::Block, claim);
    check_block(path, &std::fs::metadata(path).map_err(not_opened)?)?;
    let file = open_device(path, claim.is_read_only()).map_err(not_opened)?;
    finish(path, file, Kind::Block, block_bytes, claim, losses)
}

fn options(read_only: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only);
    options
}

fn open_device(path: &Path, read_only: bool) -> io::Result<File> {
    let mut options = options(read_only);
    if !read_only {
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }
    patiently(|error: &io::Error| error.kind() == ErrorKind::ResourceBusy, || options.open(path))
}

fn create(path: &Path, size: u64) -> Result<File, OpenError> {
    let file = options(false).create_new(true).open(path).map_err(|error| cannot_create(path, &error))?;
    let made = file.set_len(size).and_then(|()| file.sync_all()).and_then(|()| sync_directory(path));
    made.map_err(|error| {
        // Only a file that was created here is removed again.
        let _ = std::fs::remove_file(path);
        let problem = format!("cannot be extended to {size} bytes: {error}");
        wrong(path, &problem, "choose a smaller size or a file system that allows such files")
    })?;
    Ok(file)
}

/// The new name must survive a power failure like the data.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn finish(
    path: &Path,
    file: File,
    kind: Kind,
    block_bytes: u32,
    claim: Claim,
    losses: Arc<AtomicU64>,
) -> Result<Arc<FileStore>, OpenError> {
    let read_only = claim.is_read_only();
    let not_opened = |error: io::Error| failed(path, &error, kind, claim);
    let size = probe::size(&file, kind).map_err(not_opened)?;
    let stat = probe::statx(&file).map_err(not_opened)?;
    check_size(path, kind, size, block_bytes)?;
    let grain: Grain = probe::direct(&file, kind, &stat, size);
    let page = GRANULE_BYTES as u32;
    let hole_bytes =
        if stat.stx_blksize.is_power_of_two() { stat.stx_blksize.clamp(page, 16 * page) } else { page };
    let hole_bytes = hole_bytes.max(grain.offset);
    let can_punch = !read_only && probe::punches(&file, kind, &stat, size);
    let shape = Shape {
        kind,
        grain,
        hole_bytes,
        discard_bytes: probe::discard_bytes(kind, &stat, hole_bytes),
        read_only,
        in_memory: probe::in_memory(&file, kind),
        solid_state: probe::solid_state(kind, &stat),
    };
    made(path, file, shape, size, can_punch, losses).map_err(not_opened)
}

/// An open file as a disk; the kernel is only asked for its size: the `Io` of its lanes serves their
/// requests. `grain_bytes`: the alignment of direct I/O; 1: it goes through the page cache. Its losses are
/// counted in `losses`.
pub fn on(file: File, grain_bytes: u32, losses: Arc<AtomicU64>) -> io::Result<Arc<FileStore>> {
    let hole_bytes = (GRANULE_BYTES as u32).max(grain_bytes);
    let shape = Shape {
        kind: Kind::File,
        grain: Grain { offset: grain_bytes, memory: grain_bytes },
        hole_bytes,
        discard_bytes: hole_bytes,
        read_only: false,
        in_memory: false,
        solid_state: true,
    };
    let size = probe::size(&file, Kind::File)?;
    made(Path::new("-"), file, shape, size, true, losses)
}

fn made(
    path: &Path,
    file: File,
    shape: Shape,
    size: u64,
    can_punch: bool,
    losses: Arc<AtomicU64>,
) -> io::Result<Arc<FileStore>> {
    Ok(Arc::new(FileStore {
        path: path.to_path_buf(),
        shape,
        size: AtomicU64::new(size),
        can_punch: AtomicBool::new(can_punch),
        could_punch: AtomicBool::new(can_punch),
        can_zero: AtomicBool::new(true),
        syncs: Syncs::new(losses),
        faults: AtomicU64::new(0),
        losses_in_a_row: AtomicU64::new(0),
        stripes: Stripes::new()?,
        occupied: Occupied::default(),
        unmapped: Unmapped::default(),
        zeros: Zeros::get(),
        pool: Pool::new()?,
        extents: Extents::start()?,
        file,
    }))
}

fn check_kind(path: &Path, metadata: &Metadata) -> Result<(), OpenError> {
    let kind = metadata.file_type();
    if kind.is_block_device() {
        return Err(wrong(path, "is a block device", "use block:PATH"));
    }
    if !kind.is_file() {
        return Err(wrong(path, "is not a regular file", "name a file"));
    }
    Ok(())
}

fn check_block(path: &Path, metadata: &Metadata) -> Result<(), OpenError> {
    match metadata.file_type().is_block_device() {
        true => Ok(()),
        false => Err(wrong(path, "is not a block device", "use file:PATH for a file")),
    }
}

/// Checks that an existing file has the requested size.
fn check_same(path: &Path, found: u64, size: Option<u64>) -> Result<(), OpenError> {
    match size {
        Some(size) if size != found => {
            let longer = || format!("leave size= out, or extend it: truncate -s {size} {}", path.display());
            let remedy = if found < size { longer() } else { "leave size= out".into() };
            Err(wrong(path, &format!("exists with {found} bytes, not {size}"), &remedy))
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks the size of a file that may have to be created.
fn check_asked(path: &Path, size: u64, block_bytes: u32) -> Result<(), OpenError> {
    let block = u64::from(block_bytes);
    if size > 0 && size.is_multiple_of(block) {
        return Ok(());
    }
    let whole = size.max(1).checked_next_multiple_of(block).unwrap_or(size / block * block);
    let remedy = format!("give {whole} bytes");
    Err(wrong(
        path,
        &format!("a size of {size} bytes is not a whole number of {block_bytes}-byte blocks"),
        &remedy,
    ))
}

fn check_size(path: &Path, kind: Kind, size: u64, block_bytes: u32) -> Result<(), OpenError> {
    if size == 0 {
        let remedy = match kind {
            Kind::File => format!("give it a size, for example: truncate -s 1G {}", path.display()),
            Kind::Block => "insert its medium, or name another device".into(),
        };
        return Err(wrong(path, "is empty", &remedy));
    }
    let block = u64::from(block_bytes);
    if !size.is_multiple_of(block) {
        let rest = size % block;
        let problem = format!("{size} bytes are {rest} more than whole blocks of {block_bytes}");
        let fits = 1 << size.trailing_zeros();
        let grown = match kind {
            Kind::File => {
                format!("extend it: truncate -s {} {}", size.next_multiple_of(block), path.display())
            }
            Kind::Block => "name another device".into(),
        };
        let remedy = match fits {
            BLOCK_BYTES_MIN.. => format!("choose blocks of {fits} bytes (bs={fits}), or {grown}"),
            _ => grown,
        };
        return Err(wrong(path, &problem, &remedy));
    }
    Ok(())
}

fn wrong(path: &Path, problem: &str, remedy: &str) -> OpenError {
    OpenError::new(path.display(), problem, remedy)
}

fn failed(path: &Path, error: &io::Error, kind: Kind, claim: Claim) -> OpenError {
    let is_written = !claim.is_read_only();
    let remedy = match error.kind() {
        ErrorKind::NotFound => match kind {
            Kind::File if is_written => "check the path, or give a size (size=) to create it",
            Kind::File => "check the path",
            Kind::Block => "check the path: lsblk lists block devices",
        },
        ErrorKind::PermissionDenied if is_written => {
            "allow this user to read and write it (chmod, chown, or the group disk), or use it read-only (ro)"
        }
        ErrorKind::PermissionDenied => "allow this user to read it (chmod, chown, or the group disk)",
        ErrorKind::ReadOnlyFilesystem => "use it read-only (ro), or remount the file system read-write",
        ErrorKind::ResourceBusy => {
            "it is mounted or in use by another program; release it (umount, swapoff, mdadm), or use it read-only (ro)"
        }
        ErrorKind::IsADirectory | ErrorKind::NotADirectory => "name a file",
        _ => "see the kernel's log (dmesg)",
    };
    OpenError::new(path.display(), error, remedy)
}

/// A file that could not be created.
fn cannot_create(path: &Path, error: &io::Error) -> OpenError {
    let directory = directory_of(path).display();
    let remedy = match error.kind() {
        ErrorKind::NotFound => format!("create its directory: mkdir -p {directory}"),
        ErrorKind::PermissionDenied => {
            format!("allow this user to create files in {directory}, or name another directory")
        }
        ErrorKind::ReadOnlyFilesystem => {
            "remount the file system read-write, or name another directory".into()
        }
        ErrorKind::NotADirectory => "name a file in a directory".into(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free some space, or name a directory elsewhere".into()
        }
        _ => "see the kernel's log (dmesg)".into(),
    };
    wrong(path, &format!("cannot be created: {error}"), &remedy)
}
