//! What the engine needs of the file system that its state directory is on, as a trait: the simulator's loses power.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Files of a directory; as [`std::fs`] has them.
pub trait Files: Send {
    /// All bytes of a file.
    ///
    /// # Errors
    /// Of [`fs::read`].
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Makes a file, or empties it.
    ///
    /// # Errors
    /// Of [`File::create`].
    fn create(&self, path: &Path) -> io::Result<Box<dyn Created>>;

    /// Gives a file another name, in the place of whatever has it.
    ///
    /// # Errors
    /// Of [`fs::rename`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Of [`fs::remove_file`].
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes durable what a directory lists.
    ///
    /// # Errors
    /// Of fsync(2).
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub trait Created: Write {
    /// Makes durable what it holds.
    ///
    /// # Errors
    /// Of fsync(2).
    fn sync(&self) -> io::Result<()>;
}

/// Those of the system.
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
