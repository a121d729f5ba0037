//! Files named by a configuration: secrets, which only their owner may access, and others.

use super::problems::Fault;
use super::scalar;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Largest file with a secret, in bytes.
const SECRET_MAX: u64 = 4096;

/// The first line of a file that only its owner may read.
pub(super) fn read_secret(path: &Path, base: &Path, key: &str) -> Result<Vec<u8>, Fault> {
    let named = Named::open(path, base, key)?;
    named.check_private()?;
    let mut bytes = Vec::new();
    (&named.file).take(SECRET_MAX).read_to_end(&mut bytes).map_err(|error| named.unreadable(&error))?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(line.strip_suffix(b"\r").unwrap_or(line).to_vec())
}

/// A file named by an option.
pub(super) struct Named<'a> {
    pub(super) path: PathBuf,
    key: &'a str,
    file: File,
}

impl<'a> Named<'a> {
    /// Opens it; a relative path starts at `base`.
    pub(super) fn open(path: &Path, base: &Path, key: &'a str) -> Result<Named<'a>, Fault> {
        let path = scalar::path(path, base, "name a file of this machine")?;
        // Checked before opening, because opening a FIFO waits for a writer.
        if !std::fs::metadata(&path).map_err(|error| unreadable(&path, key, &error))?.is_file() {
            return Err(Fault::new(format!("{} is not a file", path.display()), format!("change {key}")));
        }
        let file = File::open(&path).map_err(|error| unreadable(&path, key, &error))?;
        Ok(Named { path, key, file })
    }

    /// Refuses a file that users other than its owner can access.
    pub(super) fn check_private(&self) -> Result<(), Fault> {
        let mode = self.file.metadata().map_err(|error| self.unreadable(&error))?.permissions().mode();
        if mode & 0o077 == 0 {
            return Ok(());
        }
        let shown = self.path.display();
        let what = format!("users other than its owner can access {shown} (mode {:o})", mode & 0o777);
        Err(Fault::new(what, format!("chmod 600 {shown}")))
    }

    /// Its whole content, up to this many bytes.
    pub(super) fn read(&self, bytes_max: u64) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        (&self.file).take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| self.unreadable(&error))?;
        if u64::try_from(bytes.len()).is_ok_and(|read| read > bytes_max) {
            let what = format!("{} is larger than {bytes_max} bytes", self.path.display());
            return Err(Fault::new(what, format!("fix the file or change {}", self.key)));
        }
        Ok(bytes)
    }

    fn unreadable(&self, error: &io::Error) -> Fault {
        unreadable(&self.path, self.key, error)
    }
}

fn unreadable(path: &Path, key: &str, error: &io::Error) -> Fault {
    Fault::new(format!("cannot read {}: {error}", path.display()), format!("fix the file or change {key}"))
}
