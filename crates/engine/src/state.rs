//! Files of the state directory. Each is replaced as a whole, durably, or stays as it was.

pub(crate) mod files;

use files::{Files, System};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Saves state; empty state is no file. Once creating, renaming or removing a file could not be made durable,
/// it is unknown what is there after a power failure: the intended content is then written again until it is
/// durable.
pub(crate) struct StateSaver {
    files: Box<dyn Files>,
    /// Files whose content on disk may differ, with the content that they should have.
    unsettled: BTreeMap<PathBuf, Vec<u8>>,
}

impl Default for StateSaver {
    fn default() -> StateSaver {
        StateSaver::new(Box::new(System))
    }
}

impl StateSaver {
    /// Saves state in these files.
    pub(crate) fn new(files: Box<dyn Files>) -> StateSaver {
        StateSaver { files, unsettled: BTreeMap::new() }
    }

    /// The files that it saves state in.
    pub(crate) fn files(&self) -> &dyn Files {
        &*self.files
    }

    /// Replaces a file's state. If that fails, the intended content is still the old state, or, when
    /// `is_final`, the new state.
    ///
    /// # Errors
    /// When the new state is not durable.
    pub(crate) fn replace(&mut self, path: &Path, state: &[u8], is_final: bool) -> io::Result<()> {
        let wanted = match self.unsettled.get(path) {
            _ if is_final => state.to_vec(),
            Some(held) => held.clone(),
            None => self.read(path)?,
        };
        let outcome = self.write(path, state);
        match outcome {
            Ok(()) => _ = self.unsettled.remove(path),
            Err(_) => {
                self.unsettled.insert(path.to_path_buf(), wanted);
                self.settle();
            }
        }
        outcome
    }

    /// Retries what could not be made durable.
    pub(crate) fn settle(&mut self) {
        for (path, state) in std::mem::take(&mut self.unsettled) {
            match self.write(&path, &state) {
                Ok(()) => reactor::limited!(
                    "saved state that is durable",
                    tracing::Level::WARN,
                    path = %path.display(),
                    "the saved state is durable"
                ),
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "the saved state is still not durable");
                    self.unsettled.insert(path, state);
                }
            }
        }
    }

    /// Whether every file has its intended content.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Writes a new file, makes it durable, renames it: a crash leaves the old state or the new one.
    fn write(&self, path: &Path, state: &[u8]) -> io::Result<()> {
        let sync_parent = || path.parent().map_or(Ok(()), |parent| self.files.sync_directory(parent));
        if state.is_empty() {
            return match self.files.remove(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => sync_parent(),
            };
        }
        if self.read(path)? != state {
            let beside = path.with_extension("new");
            let mut file = self.files.create(&beside)?;
            file.write_all(state)?;
            file.sync()?;
            self.files.rename(&beside, path)?;
        }
        sync_parent()
    }

    /// A file's state; empty if there is no file.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.files.read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            state => state,
        }
    }
}

/// Creates the state directory, durably, with any missing directories above it.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    let made: Vec<&Path> =
        directory.ancestors().take_while(|directory| is_named(directory) && !directory.exists()).collect();
    fs::create_dir_all(directory)?;
    made.iter()
        .filter_map(|directory| directory.parent())
        .try_for_each(|directory| System.sync_directory(directory))
}

fn is_named(directory: &Path) -> bool {
    !directory.as_os_str().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::files::Created;
    use std::cell::Cell;
    use tempfile::TempDir;

    thread_local! {
        /// How many of the next syncs fail.
        static FAILURES: Cell<u32> = const { Cell::new(0) };
    }

    /// The system's files, in directories whose sync may fail.
    struct Failing;

    impl Files for Failing {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            System.read(path)
        }

        fn create(&self, path: &Path) -> io::Result<Box<dyn Created>> {
            System.create(path)
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            System.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            System.remove(path)
        }

        fn sync_directory(&self, directory: &Path) -> io::Result<()> {
            match FAILURES.get() {
                0 => System.sync_directory(directory),
                left => {
                    FAILURES.set(left - 1);
                    Err(io::Error::other("the directory cannot be made durable"))
                }
            }
        }
    }

    /// What a file contains; empty if there is none.
    fn read(path: &Path) -> io::Result<Vec<u8>> {
        StateSaver::default().read(path)
    }

    fn directory_with(state: &[u8]) -> (TempDir, PathBuf, StateSaver) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut state_saver = StateSaver::new(Box::new(Failing));
        state_saver.replace(&path, state, false).unwrap();
        (directory, path, state_saver)
    }

    #[test]
    fn state_is_replaced_and_removed() {
        let (_directory, path, mut state_saver) = directory_with(b"one");
        state_saver.replace(&path, b"two", false).unwrap();
        assert_eq!(read(&path).unwrap(), b"two");
        state_saver.replace(&path, b"", false).unwrap();
        state_saver.replace(&path, b"", false).unwrap();
        assert!(!path.exists() && state_saver.is_settled());
    }

    #[test]
    fn a_change_that_cannot_be_made_durable_is_rolled_back() {
        for (old, new) in [(&b"old"[..], &b"new"[..]), (b"old", b""), (b"", b"new")] {
            let (_directory, path, mut state_saver) = directory_with(old);
            FAILURES.set(1);
            state_saver.replace(&path, new, false).unwrap_err();
            assert_eq!(read(&path).unwrap(), old);
            assert!(state_saver.is_settled());
            state_saver.replace(&path, new, false).unwrap();
            assert_eq!(read(&path).unwrap(), new);
        }
    }

    #[test]
    fn a_rollback_is_retried_until_it_is_durable() {
        let (_directory, path, mut state_saver) = directory_with(b"old");
        FAILURES.set(3);
        state_saver.replace(&path, b"", false).unwrap_err();
        assert_eq!(read(&path).unwrap(), b"old", "at once for who starts anew without a power cut");
        assert!(!state_saver.is_settled());
        state_saver.settle();
        assert!(!state_saver.is_settled());
        state_saver.settle();
        assert!(state_saver.is_settled());
        assert_eq!(read(&path).unwrap(), b"old");
    }

    #[test]
    fn acknowledged_state_is_restored_however_often_something_else_fails() {
        let (directory, path, mut state_saver) = directory_with(b"old");
        FAILURES.set(2);
        state_saver.replace(&path, b"", false).unwrap_err();
        // The directory disappears, so that nothing can be restored.
        let elsewhere = directory.path().with_extension("elsewhere");
        fs::rename(directory.path(), &elsewhere).unwrap();
        state_saver.replace(&path, b"new", false).unwrap_err();
        fs::create_dir(directory.path()).unwrap();
        state_saver.settle();
        assert_eq!(read(&path).unwrap(), b"old");
        fs::remove_dir_all(elsewhere).unwrap();
    }

    #[test]
    fn a_state_that_cannot_be_rolled_back_is_saved_in_the_end() {
        let (_directory, path, mut state_saver) = directory_with(b"old");
        FAILURES.set(2);
        state_saver.replace(&path, b"new", true).unwrap_err();
        state_saver.settle();
        assert_eq!(read(&path).unwrap(), b"new");
        assert!(state_saver.is_settled());
    }

    #[test]
    fn a_final_state_is_kept_later_even_if_the_old_one_cannot_be_read() {
        let (directory, _, mut state_saver) = directory_with(b"other");
        let path = directory.path().join("unreadable");
        fs::create_dir(&path).unwrap();
        state_saver.replace(&path, b"new", false).unwrap_err();
        assert!(state_saver.is_settled(), "nothing was done");
        state_saver.replace(&path, b"new", true).unwrap_err();
        assert!(!state_saver.is_settled());
        fs::remove_dir(&path).unwrap();
        state_saver.settle();
        assert!(state_saver.is_settled());
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn directories_are_made_with_those_above_them() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a/b");
        make_directory(&deep).unwrap();
        make_directory(&deep).unwrap();
        assert!(deep.is_dir());
    }
}
