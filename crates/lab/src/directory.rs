//! Folders that are removed again.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A new folder that only this user may enter; it is removed when this is dropped.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Makes one in another folder. What is there already is not touched.
    pub fn make(inside: &Path, what: &str) -> Result<Directory, String> {
        let path = inside.join(format!("lunette-{what}-{:016x}", fastrand::u64(..)));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Directory(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
