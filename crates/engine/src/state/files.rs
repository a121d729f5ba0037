//! What the engine needs of the file system with its state directory, as a trait: in the simulator it loses
//! power.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Files of a directory, as in [`std::fs`].
pub trait Files: Send {
    /// All bytes of a file.
    ///
    /// # Errors
    /// Of [`fs::read`].
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Creates a file, or truncates it.
    ///
    /// # Errors
    /// Of [`File::create`].
    fn create(&self, path: &Path) -> io::Result<Box<dyn Created>>;

    /// Renames a file, replacing whatever has that name.
    ///
    /// # Errors
    /// Of [`fs::rename`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Of [`fs::remove_file`].
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory's entries durable.
    ///
    /// # Errors
    /// Of fsync(2).
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub trait Created: Write {
    /// Makes its content durable.
    ///
    /// # Errors
    /// Of fsync(2).
    fn sync(&self) -> io::Result<()>;
}

/// The system's files.
#[derive(Debug)]
pub(crate) struct System;

impl Files for System {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Created>> {
        Ok(Box::new(File::create(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        File::open(path)?.sync_all()
    }
}

impl Created for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}
