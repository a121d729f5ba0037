//! Opens what is to be measured: units of other targets, files, block devices, memory.

use crate::job::Job;
use crate::run;
use config::{NbdUrl, RbdImage, Url};
use initiator::remote::{self, RemoteOptions};
use reactor::uring::Uring;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use store::lane::Backend;
use store::{Claim, OpenError};

/// How targets are opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetOptions {
    /// Read-only: a device may then be in use elsewhere.
    pub read_only: bool,
    /// Create a missing file, with this size.
    pub create: Option<u64>,
    /// Operations and offsets will be multiples of this, in bytes; 0: unknown.
    pub grain: u32,
    /// Options for remote units.
    pub initiator: initiator::Options,
    /// Request header digests, and data digests, even if the URL does not.
    pub digests: (bool, bool),
}

impl TargetOptions {
    /// The options for a job.
    pub fn of(job: &Job) -> TargetOptions {
        let depth = u16::try_from(run::depth(job)).unwrap_or(u16::MAX);
        let offset = job.offset.trailing_zeros().min(job.bs.trailing_zeros()).min(16);
        TargetOptions {
            read_only: !run::writes(job),
            create: None,
            grain: if job.offset.is_multiple_of(job.bs.max(1).into()) { job.bs } else { 1 << offset },
            initiator: initiator::Options {
                queue_depth: depth,
                unsolicited_data: job.immediate_data,
                ..initiator::Options::default()
            },
            digests: job.digests,
        }
    }
}

/// An open target.
#[derive(Clone)]
pub struct Opened {
    /// The store.
    pub backend: Arc<dyn Backend<Uring>>,
    /// The target as given.
    pub name: String,
    /// Operations are multiples of this, in bytes.
    pub block_bytes: u32,
    /// Its size, in bytes.
    pub size: u64,
}

/// Why a target did not open: which one, what is wrong, and how to fix it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetError(String);

impl TargetError {
    fn new(name: &str, problem: impl fmt::Display, remedy: &str) -> TargetError {
        TargetError(format!("{name}: {problem}; {remedy}"))
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TargetError {}

impl From<OpenError> for TargetError {
    fn from(error: OpenError) -> TargetError {
        TargetError(error.to_string())
    }
}

/// Block size of targets without blocks of their own.
const BLOCK_BYTES: u32 = 512;

/// Opens `iscsi://...`, `iser://...` or `srp://...` (each lane then has its own session), `rbd:POOL/IMAGE`,
/// `nbd://...`, `ram:SIZE`, `null:SIZE`, or the path of a file or block device.
///
/// # Errors
/// When it does not exist, may not be used, or its blocks are larger than the grain.
pub fn open(text: &str, options: &TargetOptions) -> Result<Opened, TargetError> {
    let (backend, block_bytes): (Arc<dyn Backend<Uring>>, u32) = match text.split_once(':') {
        _ if Url::is_meant(text) => open_unit(text, options)?,
        _ if NbdUrl::is_meant(text) => open_export(text, options)?,
        Some(("rbd", _)) => (open_image(text, options)?, BLOCK_BYTES),
        Some(("ram", size)) => (store::open_ram(parse_size(text, size)?)?, BLOCK_BYTES),
        Some(("null", size)) => (store::open_null(parse_size(text, size)?), BLOCK_BYTES),
        _ => open_path(text, options)?,
    };
    if !options.grain.is_multiple_of(block_bytes) {
        let problem = format!("its blocks have {block_bytes} bytes");
        return Err(TargetError::new(
            &Url::shown(text),
            problem,
            "choose --bs and --offset that are multiples of that",
        ));
    }
    let size = backend.traits().size_bytes;
    Ok(Opened { backend, name: Url::shown(text), block_bytes, size })
}

fn open_unit(text: &str, options: &TargetOptions) -> Result<(Arc<dyn Backend<Uring>>, u32), TargetError> {
    let fault =
        |error: config::UrlError| TargetError::new("the URL of a unit", error.problem(), error.remedy());
    let mut url = Url::given(text).map_err(fault)?;
    url.digests(options.digests.0, options.digests.1).map_err(fault)?;
    let options = RemoteOptions {
        initiator: options.initiator.clone(),
        block_bytes: None,
        read_only: options.read_only,
        ..RemoteOptions::default()
    };
    let store = remote::open(&url, &options)?;
    let block_bytes = store.geometry().block_bytes;
    Ok((store, block_bytes))
}

fn open_export(text: &str, options: &TargetOptions) -> Result<(Arc<dyn Backend<Uring>>, u32), TargetError> {
    let url = NbdUrl::parse(text)
        .map_err(|error| TargetError::new("the URL of an export", error.problem(), error.remedy()))?;
    let store = store::nbd::open(&url, store::nbd::Options::new(None, options.read_only))?;
    let block_bytes = store.block_bytes().max(BLOCK_BYTES);
    Ok((store, block_bytes))
}

fn open_image(text: &str, options: &TargetOptions) -> Result<Arc<dyn Backend<Uring>>, TargetError> {
    let fault = |fault: config::ImageFault| TargetError::new("the image", fault.what, fault.fix);
    let image = RbdImage::given(text).expect("it begins with rbd:").map_err(fault)?;
    Ok(store::rbd::open(&image, store::rbd::Options::new(BLOCK_BYTES, options.read_only))?)
}

fn parse_size(name: &str, text: &str) -> Result<u64, TargetError> {
    let size =
        config::parse_size(text).map_err(|error| TargetError::new(name, error, "for example ram:1G"))?;
    match size {
        0 => Err(TargetError::new(name, "it has no size", "give one, such as ram:1G")),
        size => Ok(size),
    }
}

fn open_path(text: &str, options: &TargetOptions) -> Result<(Arc<dyn Backend<Uring>>, u32), TargetError> {
    let path = Path::new(text);
    let claim = Claim::to_use(options.read_only);
    let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    if !is_device {
        return Ok((store::open_file(path, options.create, BLOCK_BYTES, claim)?, BLOCK_BYTES));
    }
    let sector =
        File::open(path).and_then(|file| Ok(rustix::fs::ioctl_blksszget(&file)?)).map_err(|error| {
            TargetError::new(text, error, "allow this user to read and write it, or name another")
        })?;
    Ok((store::open_block(path, sector, claim)?, sector))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Rw, Style};

    fn fault(text: &str) -> String {
        let Err(error) = open(text, &TargetOptions::default()) else { panic!("{text} opened") };
        error.to_string()
    }

    #[test]
    fn memory_is_opened_by_size() {
        let opened = open("ram:1M", &TargetOptions::default()).unwrap();
        assert_eq!((opened.size, opened.block_bytes, opened.name.as_str()), (1 << 20, 512, "ram:1M"));
        assert_eq!(open("null:1T", &TargetOptions::default()).unwrap().size, 1 << 40);
    }

    #[test]
    fn files_are_opened_or_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let name = path.to_str().unwrap();
        assert!(fault(name).contains("No such file"));
        let made = TargetOptions { create: Some(1 << 20), ..TargetOptions::default() };
        assert_eq!(open(name, &made).unwrap().size, 1 << 20);
        let read_only = TargetOptions { read_only: true, ..TargetOptions::default() };
        assert!(open(name, &read_only).unwrap().backend.traits().read_only);
    }

    #[test]
    fn faults_name_the_target_and_the_fix() {
        assert!(fault("ram:").contains("for example ram:1G"));
        assert!(fault("ram:0").contains("no size"));
        assert!(fault("null:12X").contains("null:12X"));
        assert!(fault("/dev/null").contains("not a regular file"));
        assert!(fault("iscsi://me%secret@127.0.0.1/iqn.2026-11.x:y/lun").starts_with("the URL of a unit: "));
    }

    #[test]
    fn a_job_says_how_its_targets_are_opened() {
        let job = Job { bs: 4096, offset: 1024, rw: Rw::RandRead, ..Job::default() };
        let options = TargetOptions::of(&job);
        assert_eq!((options.read_only, options.grain, options.initiator.queue_depth), (true, 1024, 32));
        let style = Style::Outstanding { reads: 200, writes: 1 };
        let options = TargetOptions::of(&Job { bs: 4608, offset: 9216, style, ..Job::default() });
        assert_eq!((options.read_only, options.grain, options.initiator.queue_depth), (false, 4608, 201));
        let Err(error) = open("ram:1M", &TargetOptions { grain: 100, ..options }) else {
            panic!("it opened")
        };
        assert!(error.to_string().contains("its blocks have 512 bytes"), "{error}");
    }
}
