//! Files that exist only while a report is made.

use crate::plan::Store;
use crate::testbed::Fact;
use lab::Directory;
use rustix::fs::{Advice, fadvise};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use store::Claim;
use store::lane::Store as _;

/// Where files in memory are.
const MEMORY: &str = "/dev/shm";
/// Bytes written at a time.
const CHUNK: usize = 1 << 20;

/// The files behind LUNs: written in full once, kept while the report is made, removed at its end.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    made: Vec<PathBuf>,
}

impl Files {
    /// Files on disk are created in this directory.
    pub(super) fn new(directory: &Path) -> Files {
        Files { directory: directory.into(), made: Vec::new() }
    }

    /// A unit's store, in the syntax of `lunette serve --lun`.
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

    /// The same store without a target, in the syntax of `lunette bench`.
    pub(super) fn local(&mut self, store: &Store, lun: u32) -> Result<String, String> {
        match store {
            Store::Ram(_) | Store::Null(_) => Ok(store.to_string()),
            Store::Tmpfs(size) | Store::Disk(size) => {
                self.file(store, *size, lun).map(|path| path.display().to_string())
            }
            Store::Block(path) => one(path, lun).map(String::from),
        }
    }

    /// The same for a target that stores everything in files: a unit in memory is a file in memory, and
    /// `None` means no store.
    pub(super) fn path(&mut self, store: &Store, lun: u32) -> Result<Option<String>, String> {
        match store {
            Store::Null(_) => Ok(None),
            Store::Ram(size) => self.local(&Store::Tmpfs(*size), lun).map(Some),
            Store::Tmpfs(_) | Store::Disk(_) | Store::Block(_) => self.local(store, lun).map(Some),
        }
    }

    /// The file systems of these stores, and how our targets access files there.
    pub(super) fn facts(&self, stores: &[&Store]) -> Result<Vec<Fact>, String> {
        let is_disk = |store: &&Store| matches!(store, Store::Disk(_));
        let is_tmpfs = |store: &&Store| matches!(store, Store::Tmpfs(_));
        let mut facts = Vec::new();
        if stores.iter().any(is_disk) {
            facts.push(Fact::new("Files on disk", held(&self.directory)?));
        }
        if stores.iter().any(is_tmpfs) {
            facts.push(Fact::new("Files in memory", held(Path::new(MEMORY))?));
        }
        Ok(facts)
    }

    /// Flushes what a target left in the page cache to disk, and drops the cache: otherwise the next run
    /// would pay for it.
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

    /// A file of this size without holes.
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

/// A device is a single unit.
fn one(path: &str, lun: u32) -> Result<&str, String> {
    match lun {
        0 => Ok(path),
        _ => Err(format!("{path}: it cannot be several LUNs; write luns = 1")),
    }
}

/// How files in a directory are accessed: `ext4, direct I/O in 4096-byte blocks`.
fn held(directory: &Path) -> Result<String, String> {
    let fault = |error: &dyn Display| format!("{}: {error}", directory.display());
    let place = directory.canonicalize().map_err(|error| fault(&error))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| fault(&error))?;
    let probe = Directory::make(&place, "probe")?;
    let file = store::open_file(&probe.path().join("file"), Some(1 << 20), 512, Claim::Sole);
    let description = file.map_err(|error| fault(&error))?.describe();
    let access = description.rsplit(", ").next().unwrap_or_default();
    Ok(format!("{}, {access}", file_system(&mounts, &place).unwrap_or("file system not known")))
}

/// The type of the file system that contains a path, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let around = mounts.lines().filter_map(|line| {
        let (mount, rest) = line.split_once(" - ")?;
        let mount_point = mount.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&mount_point).then_some((mount_point.len(), rest.split(' ').next()?))
    });
    // Of several mounted over each other, the last.
    around.max_by_key(|(length, _)| *length).map(|(_, name)| name)
}

/// Writes data that no file system turns into a hole.
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
    use std::process::Command;

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
        File::options().write(true).open(&path).unwrap().write_all(&[1; 1 << 16]).unwrap();
        // A read with RWF_NOWAIT would not do: it makes the kernel read ahead what it does not find.
        let cached = || {
            let fincore =
                Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES", &path]).output();
            let output = fincore.expect("fincore of util-linux");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap()
        };
        assert!(cached() >= 1 << 16);
        files.settle(&store).unwrap();
        assert_eq!(cached(), 0);
    }

    #[test]
    fn a_reader_sees_what_holds_the_files() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      30 22 0:26 / /mnt/a\\040b rw - xfs /dev/vdb rw\n\
                      31 22 0:27 / /mnt/a\\040b rw - tmpfs tmpfs rw\n";
        assert_eq!(file_system(mounts, Path::new("/mnt/a b/c")), Some("tmpfs"));
        assert_eq!(file_system(mounts, Path::new("/mnt/a")), Some("ext4"));
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path());
        let facts =
            files.facts(&[&Store::Tmpfs(1 << 20), &Store::Null(1 << 20), &Store::Disk(1 << 20)]).unwrap();
        assert_eq!((facts.len(), facts[0].name.as_str()), (2, "Files on disk"));
        assert!(facts[1].value.starts_with("tmpfs, "), "{facts:?}");
        assert!(
            facts
                .iter()
                .all(|fact| ["-byte blocks", "page cache"].iter().any(|end| fact.value.ends_with(end)))
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_device_is_one_unit() {
        let mut files = Files::new(Path::new("/"));
        let store = Store::Block("/dev/sda".into());
        assert_eq!(files.lun(&store, 0).unwrap(), "block:/dev/sda");
        assert!(files.local(&store, 1).unwrap_err().contains("luns = 1"));
    }
}
