//! What is made in the file system while a report is made, and removed again.

use crate::report::plan::Store;
use rustix::fs::{Advice, fadvise};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Where files in memory are.
const MEMORY: &str = "/dev/shm";
/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;

/// The files behind LUNs: made full once, kept while the report is made, removed at its end.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    made: Vec<PathBuf>,
}

impl Files {
    /// Files on disk are made in this folder.
    pub(super) fn new(directory: &Path) -> Files {
        Files { directory: directory.into(), made: Vec::new() }
    }

    /// A unit's store, as `lunette serve --lun` takes it.
    pub(super) fn lun(&mut self, store: &Store, lun: u32) -> Result<String, String> {
        match store {
            Store::Ram(_) | Store::Null(_) => Ok(store.to_string()),
            Store::Tmpfs(size) | Store::Disk(size) => {
                let path = self.file(store, *size, lun)?;
                Ok(format!("file:{}", path.display().to_string().replace('\\', "\\\\").replace(',', "\\,")))
            }
            Store::Block(path) => one(path, lun).map(|path| format!("block:{path}")),
        }
    }

    /// The same store without a target, as `lunette bench` takes it.
    pub(super) fn local(&mut self, store: &Store, lun: u32) -> Result<String, String> {
        match store {
            Store::Ram(_) | Store::Null(_) => Ok(store.to_string()),
            Store::Tmpfs(size) | Store::Disk(size) => {
                self.file(store, *size, lun).map(|path| path.display().to_string())
            }
            Store::Block(path) => one(path, lun).map(String::from),
        }
    }

    /// The same for a target that keeps everything in files: a unit in memory is a file in memory, and `None` keeps
    /// nothing.
    pub(super) fn path(&mut self, store: &Store, lun: u32) -> Result<Option<String>, String> {
        match store {
            Store::Null(_) => Ok(None),
            Store::Ram(size) => self.local(&Store::Tmpfs(*size), lun).map(Some),
            Store::Tmpfs(_) | Store::Disk(_) | Store::Block(_) => self.local(store, lun).map(Some),
        }
    }

    /// Writes what a target left in the page cache to disk, and empties the cache: else the next run would pay for it.
    pub(super) fn settle(&self, store: &Store) -> Result<(), String> {
        let paths: Vec<&Path> = match store {
            Store::Ram(_) | Store::Null(_) | Store::Tmpfs(_) => Vec::new(),
            Store::Disk(_) => {
                self.made.iter().map(PathBuf::as_path).filter(|path| !path.starts_with(MEMORY)).collect()
            }
            Store::Block(path) => vec![Path::new(path)],
        };
        paths.into_iter().try_for_each(|path| {
            let settled = File::open(path).and_then(|file| written_and_dropped(&file));
            settled.map_err(|error| format!("{}: it cannot be written to disk: {error}", path.display()))
        })
    }

    /// A file of that size without holes.
    fn file(&mut self, store: &Store, size: u64, lun: u32) -> Result<PathBuf, String> {
        let directory = match store {
            Store::Tmpfs(_) => Path::new(MEMORY),
            Store::Ram(_) | Store::Null(_) | Store::Disk(_) | Store::Block(_) => &self.directory,
        };
        let name = format!("lunette-report-{}-{size}-{lun}", std::process::id());
        let path = std::path::absolute(directory.join(name)).map_err(|error| error.to_string())?;
        if !self.made.contains(&path) {
            self.made.push(path.clone());
            let fault =
                |error| format!("{}: {error}; free some space, or choose a smaller store", path.display());
            fill(&path, size).map_err(fault)?;
        }
        Ok(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.made {
            let _ = fs::remove_file(path);
        }
    }
}

/// A new folder that only this user may enter; it is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    /// Makes one in another folder. What is there already is not touched.
    pub(super) fn make(inside: &Path, what: &str) -> Result<Directory, String> {
        let path = inside.join(format!("lunette-{what}-{:016x}", fastrand::u64(..)));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Directory(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A device is one unit.
fn one(path: &str, lun: u32) -> Result<&str, String> {
    match lun {
        0 => Ok(path),
        _ => Err(format!("{path}: it cannot be several LUNs; write luns = 1")),
    }
}

/// Bytes that no file system takes for a hole.
fn fill(path: &Path, size: u64) -> io::Result<()> {
    let mut random = fastrand::Rng::with_seed(size);
    let mut chunk = vec![0; CHUNK];
    random.fill(&mut chunk);
    let mut file = File::create(path)?;
    let mut left = size;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    written_and_dropped(&file)
}

fn written_and_dropped(file: &File) -> io::Result<()> {
    file.sync_all()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;

    #[test]
    fn files_are_full_shared_by_rows_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = Files::new(directory.path());
        let local = files.local(&Store::Disk(3 << 20), 0).unwrap();
        let length = |path: &str| fs::metadata(path).unwrap().len();
        assert_eq!(length(&local), 3 << 20);
        assert_eq!(files.lun(&Store::Disk(3 << 20), 0).unwrap(), format!("file:{local}"));
        assert_ne!(files.local(&Store::Disk(3 << 20), 1).unwrap(), local);
        let memory = files.local(&Store::Tmpfs(1 << 20), 0).unwrap();
        assert_eq!(files.path(&Store::Ram(1 << 20), 0).unwrap(), Some(memory.clone()));
        assert_eq!(files.path(&Store::Null(1 << 20), 0).unwrap(), None);
        assert!(memory.starts_with("/dev/shm/") && length(&memory) == 1 << 20);
        drop(files);
        assert!(!Path::new(&local).exists() && !Path::new(&memory).exists());
    }

    #[test]
    fn what_a_target_wrote_is_out_of_the_page_cache_for_the_next() {
        // Not in /tmp, which may be in memory.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut files = Files::new(directory.path());
        let store = Store::Disk(1 << 20);
        let path = files.local(&store, 0).unwrap();
        let mut file = File::options().read(true).write(true).open(path).unwrap();
        file.write_all(&[1; 1 << 16]).unwrap();
        let mut byte = [0];
        let mut cached =
            || preadv2(&file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT).map(|_| byte[0]);
        if cached() == Err(Errno::OPNOTSUPP) {
            return;
        }
        assert_eq!(cached(), Ok(1));
        files.settle(&store).unwrap();
        assert_eq!(cached(), Err(Errno::AGAIN));
    }

    #[test]
    fn a_device_is_one_unit() {
        let mut files = Files::new(Path::new("/"));
        let store = Store::Block("/dev/sda".into());
        assert_eq!(files.lun(&store, 0).unwrap(), "block:/dev/sda");
        assert!(files.local(&store, 1).unwrap_err().contains("luns = 1"));
    }
}
