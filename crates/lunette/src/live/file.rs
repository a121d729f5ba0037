//! The configuration file, replaced in one step: readers see the old text or the new one.

use reactor::random;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// A new text in a file beside it, durable; it is removed unless it replaces the file.
pub(super) struct Replacement {
    file: PathBuf,
    beside: PathBuf,
}

impl Replacement {
    /// Writes a text beside the file that a path leads to, with the same owner and mode.
    pub(super) fn prepare(path: &Path, text: &str) -> io::Result<Replacement> {
        let file = fs::canonicalize(path)?;
        let found = file.metadata()?;
        // A unique name: in containers, process numbers are always the same.
        let mut name = OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        name.push(format!(".{:08x}{:08x}", random::bits(), random::bits()));
        let beside = file.with_file_name(name);
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        let replacement = Replacement { file, beside };
        // Only root may change the owner. The group must still be able to read it, and no other group may.
        let _ = fchown(&new, Some(found.uid()), None);
        fchown(&new, None, Some(found.gid()))?;
        new.set_permissions(fs::Permissions::from_mode(found.mode() & 0o7777))?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        Ok(replacement)
    }

    /// Replaces the file, if it still has the text `before`.
    pub(super) fn commit(self, before: &str) -> io::Result<()> {
        if fs::read_to_string(&self.file)? != before {
            return Err(io::Error::other("someone else has changed it meanwhile"));
        }
        fs::rename(&self.beside, &self.file)?;
        let directory = self.file.parent().map(File::open).transpose();
        if let Err(error) =
            directory.and_then(|directory| directory.map_or(Ok(()), |directory| directory.sync_all()))
        {
            let file = self.file.display();
            tracing::warn!(
                "{file} has been replaced, but a power failure may bring the old one back: {error}"
            );
        }
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.beside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_it_is_or_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        Replacement::prepare(&link, "new").unwrap().commit("old").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
        Replacement::prepare(&file, "newer").unwrap().commit("old").unwrap_err();
        drop(Replacement::prepare(&file, "newer").unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside it");
    }
}
