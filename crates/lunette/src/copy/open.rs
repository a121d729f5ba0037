//! Opening the two ends of a copy, and refusing what would destroy data.

use super::transfer::End;
use crate::Failure;
use bench::contents::content;
use bench::target::Opened;
use config::{NbdUrl, RbdImage, Url, parse_size};
use initiator::Options;
use initiator::remote::{self, RemoteOptions};
use reactor::uring::Uring;
use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::lane::Backend;
use store::{Claim, OpenError, nbd, rbd};

/// One end of a copy.
pub(super) struct Medium {
    /// Its name in messages, without secrets.
    pub(super) name: String,
    pub(super) end: End,
    place: Place,
}

/// An end of a copy as specified on the command line.
enum Place {
    Url(Box<Url>),
    Rbd(Box<RbdImage>),
    Nbd(Box<NbdUrl>),
    Ram(u64),
    Null(u64),
    Path(PathBuf),
}

impl Medium {
    /// Refuses disk images of other formats: copying their bytes is hardly intended.
    pub(super) fn check_format(&self) -> Result<(), Failure> {
        let Place::Path(path) = &self.place else { return Ok(()) };
        let format = store::image::format(path);
        match format.map_err(|error| Failure::failed(format!("{}: {error}", self.name)))? {
            None => Ok(()),
            Some(format) => Err(Failure::wrong_input(format!(
                "{0}: this is a {format} image, whose bytes are not those of the disk in it; convert it: qemu-img \
                 convert -f {format} -O raw {0} RAW; or add --raw to copy it as it is",
                self.name
            ))),
        }
    }

    /// Refuses a destination that contains data, which is hardly intended to be overwritten.
    pub(super) fn check_content(&self) -> Result<(), Failure> {
        if self.end.is_blank {
            return Ok(());
        }
        let opened = Opened {
            backend: self.end.store.clone(),
            name: self.name.clone(),
            block_bytes: self.end.block_bytes,
            size: self.end.store.traits().size_bytes,
        };
        match content(&opened).map_err(Failure::failed)? {
            None => Ok(()),
            Some(content) => Err(Failure::wrong_input(format!(
                "{}: it holds {content}, which the copy would overwrite; add --yes to overwrite it, or name another \
                 destination",
                self.name
            ))),
        }
    }
}

/// Opens the source.
pub(super) fn source(text: &str, pieces: u32) -> Result<Medium, Failure> {
    let place = Place::parse(text)?;
    let end = match &place {
        Place::Url(url) => open_url(url, pieces, true)?,
        Place::Rbd(image) => open_image(image, true)?,
        Place::Nbd(url) => open_export(url, true)?,
        Place::Ram(size) => open_ram(*size)?,
        Place::Null(size) => open_null(*size),
        Place::Path(path) => open_path(path, None, true)?,
    };
    Ok(Medium { name: place.name(), end, place })
}

/// Opens the destination, which must be at least as large as the source, and not in use.
pub(super) fn destination(text: &str, from: &Medium, pieces: u32) -> Result<Medium, Failure> {
    let place = Place::parse(text)?;
    let name = place.name();
    if from.place.is_same(&place) {
        return Err(Failure::wrong_input(format!("{name}: source and destination are the same")));
    }
    let size = from.end.store.traits().size_bytes;
    let end = match &place {
        Place::Url(url) => open_url(url, pieces, false)?,
        Place::Rbd(image) => open_image(image, false)?,
        Place::Nbd(url) => open_export(url, false)?,
        Place::Ram(size) => open_ram(*size)?,
        Place::Null(size) => open_null(*size),
        Place::Path(path) => open_path(path, Some(size), false)?,
    };
    let traits = end.store.traits();
    let whole = size.next_multiple_of(u64::from(end.block_bytes));
    if traits.size_bytes < whole {
        let text = format!(
            "{name}: too small: it has {} bytes, and {} has {size}; choose a larger destination",
            traits.size_bytes, from.name
        );
        return Err(Failure::wrong_input(text));
    }
    if traits.read_only {
        return Err(Failure::wrong_input(format!(
            "{name}: it is write-protected; choose another destination"
        )));
    }
    Ok(Medium { name, end, place })
}

impl Place {
    fn parse(text: &str) -> Result<Place, Failure> {
        let size = |size: &str| {
            let parsed = parse_size(size).and_then(|size| match size {
                0 => Err("the size is 0; choose a larger one".to_string()),
                size => Ok(size),
            });
            parsed.map_err(|fault| Failure::wrong_input(format!("{text}: {fault}")))
        };
        if let Some(image) = RbdImage::given(text) {
            let image =
                image.map_err(|fault| Failure::wrong_input(format!("{}; {}", fault.what, fault.fix)))?;
            return Ok(Place::Rbd(Box::new(image)));
        }
        match text.split_once(':') {
            _ if NbdUrl::is_meant(text) => {
                let url =
                    NbdUrl::parse(text).map_err(|error| Failure::wrong_input(format!("URL: {error}")))?;
                Ok(Place::Nbd(Box::new(url)))
            }
            _ if Url::is_meant(text) => {
                let url = Url::given(text).map_err(|error| Failure::wrong_input(format!("URL: {error}")))?;
                Ok(Place::Url(Box::new(url)))
            }
            Some(("ram", bytes)) => Ok(Place::Ram(size(bytes)?)),
            Some(("null", bytes)) => Ok(Place::Null(size(bytes)?)),
            Some(("file" | "block", path)) => Ok(Place::Path(path.into())),
            _ => Ok(Place::Path(text.into())),
        }
    }

    fn name(&self) -> String {
        match self {
            Place::Url(url) => url.to_string(),
            Place::Rbd(image) => image.to_string(),
            Place::Nbd(url) => url.to_string(),
            Place::Ram(size) => format!("ram:{size}"),
            Place::Null(size) => format!("null:{size}"),
            Place::Path(path) => path.display().to_string(),
        }
    }

    /// Whether both are the same file, device or unit, as far as their names show.
    fn is_same(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Url(a), Place::Url(b)) => {
                (&a.host, a.port, &a.target, a.lun) == (&b.host, b.port, &b.target, b.lun)
            }
            (Place::Path(a), Place::Path(b)) => match (a.metadata(), b.metadata()) {
                (Ok(a), Ok(b)) if is_block(&a) && is_block(&b) => a.rdev() == b.rdev(),
                (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
                (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
            },
            (Place::Rbd(a), Place::Rbd(b)) => a.is_same(b),
            (Place::Nbd(a), Place::Nbd(b)) => (&a.server, &a.export) == (&b.server, &b.export),
            (
                Place::Url(_)
                | Place::Rbd(_)
                | Place::Nbd(_)
                | Place::Ram(_)
                | Place::Null(_)
                | Place::Path(_),
                _,
            ) => false,
        }
    }
}

fn open_url(url: &Url, pieces: u32, read_only: bool) -> Result<End, Failure> {
    let queue_depth = u16::try_from(pieces).unwrap_or(u16::MAX);
    let initiator = Options { queue_depth, ..Options::default() };
    let options = RemoteOptions { initiator, read_only, ..RemoteOptions::default() };
    let store = remote::open(url, &options).map_err(|error| Failure::failed(&error))?;
    let geometry = store.geometry();
    Ok(End {
        block_bytes: geometry.block_bytes,
        holes_read_zeros: geometry.unmap_zeros,
        is_blank: false,
        store,
    })
}

fn open_image(image: &RbdImage, read_only: bool) -> Result<End, Failure> {
    let store = rbd::open(image, rbd::Options::new(1, read_only)).map_err(|error| Failure::failed(&error))?;
    Ok(End { store, block_bytes: 1, holes_read_zeros: true, is_blank: false })
}

fn open_export(url: &NbdUrl, read_only: bool) -> Result<End, Failure> {
    let store =
        nbd::open(url, nbd::Options::new(None, read_only)).map_err(|error| Failure::failed(&error))?;
    Ok(End { block_bytes: store.block_bytes(), store, holes_read_zeros: true, is_blank: false })
}

fn open_ram(size: u64) -> Result<End, Failure> {
    let store = store::open_ram(size).map_err(|error| Failure::failed(&error))?;
    Ok(End { store, block_bytes: 1, holes_read_zeros: true, is_blank: true })
}

fn open_null(size: u64) -> End {
    End { store: store::open_null(size), block_bytes: 1, holes_read_zeros: true, is_blank: false }
}

/// `size`: that of a file that is created if it does not exist.
fn open_path(path: &Path, size: Option<u64>, read_only: bool) -> Result<End, Failure> {
    let metadata = match (path.metadata(), size) {
        (Ok(metadata), _) => metadata,
        (Err(error), Some(size)) if error.kind() == ErrorKind::NotFound => {
            let store =
                store::open_file(path, Some(size), 1, Claim::Sole).map_err(|error| refused(&error))?;
            return Ok(End { store, block_bytes: 1, holes_read_zeros: true, is_blank: true });
        }
        (Err(error), _) => return Err(Failure::failed(format!("{}: {error}", path.display()))),
    };
    let claim = Claim::to_use(read_only);
    let (store, block_bytes): (Arc<dyn Backend<Uring>>, u32) = if is_block(&metadata) {
        let block_bytes = probe_device(path, read_only)?;
        (store::open_block(path, block_bytes, claim).map_err(|error| refused(&error))?, block_bytes)
    } else {
        (store::open_file(path, None, 1, claim).map_err(|error| refused(&error))?, 1)
    };
    // A device's unmapped ranges are only known if this process created them.
    Ok(End { store, block_bytes, holes_read_zeros: !is_block(&metadata), is_blank: false })
}

/// The device's block size, if nothing else has claimed it against this use.
fn probe_device(path: &Path, read_only: bool) -> Result<u32, Failure> {
    let mut options = OpenOptions::new();
    if !read_only {
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }
    let block_bytes =
        options.read(true).open(path).and_then(|file: File| Ok(rustix::fs::ioctl_blksszget(&file)?));
    block_bytes.map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::ResourceBusy => {
                "it is mounted or in use by another program: nothing was written; release it (umount, swapoff)"
            }
            ErrorKind::PermissionDenied => "allow this user to read and write it",
            _ => "see the kernel's log (dmesg)",
        };
        Failure::failed(format!("{}: {error}; {remedy}", path.display()))
    })
}

/// Without a store's own fixes, which are for serving it.
fn refused(error: &OpenError) -> Failure {
    Failure::failed(format!("{}: {}", error.what, error.problem))
}

fn is_block(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}
