//! The state directory: the files' content and the directory's entries, now and after a power failure.

use engine::world::{Created, Files};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory shared by all lives of the target.
#[derive(Clone, Debug)]
pub(crate) struct Directory(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: Rng,
    /// How often something fails, in 1000.
    fails: u32,
    /// The process dies after this many more steps.
    dies_after: Option<u32>,
    files: Vec<File>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Changes to names since the directory was last durable.
    changes: Vec<Change>,
    /// How often the power has failed.
    boots: u32,
}

#[derive(Default, Debug)]
struct File {
    bytes: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Change {
    Make(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Directory {
    pub(crate) fn new(rng: Rng, fails: u32) -> Directory {
        let (names, durable_names) = (BTreeMap::new(), BTreeMap::new());
        let (files, changes) = (Vec::new(), Vec::new());
        let state = State { rng, fails, dies_after: None, files, names, durable_names, changes, boots: 0 };
        Directory(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the process die after this many steps in this directory.
    pub(crate) fn dies_after(&self, steps: u32) {
        self.state().dies_after = Some(steps);
    }

    /// Whether it has died that way.
    pub(crate) fn has_died(&self) -> bool {
        self.state().dies_after == Some(0)
    }

    /// Stops all failures.
    pub(crate) fn heal(&self) {
        self.state().fails = 0;
    }

    /// The target is killed; with `loses_power`, only durable state is certain to remain.
    pub(crate) fn crash(&self, loses_power: bool) {
        let state = &mut *self.state();
        state.dies_after = None;
        if loses_power {
            state.lose_power();
        }
    }
}

impl State {
    /// A step of the process, which dies or fails at it.
    fn step(&mut self) -> io::Result<()> {
        if self.dies_after == Some(0) {
            return Err(io::Error::other("it is dead"));
        }
        self.dies_after = self.dies_after.map(|left| left - 1);
        if self.dies_after == Some(0) || self.fails > 0 && self.rng.u32(0..1000) < self.fails {
            return Err(io::Error::other("it fails"));
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    fn lose_power(&mut self) {
        self.boots += 1;
        // File systems preserve the order of changes to names.
        let survivors = self.rng.usize(0..=self.changes.len());
        let mut names = std::mem::take(&mut self.durable_names);
        self.changes.drain(..).take(survivors).for_each(|change| apply(&mut names, &change));
        for file in &mut self.files {
            if file.bytes != file.durable {
                file.bytes = match self.rng.u32(0..3) {
                    0 => file.durable.clone(),
                    1 => file.bytes[..self.rng.usize(0..=file.bytes.len())].to_vec(),
                    _ => vec![0; file.bytes.len()],
                };
                file.durable = file.bytes.clone();
            }
        }
        (self.names, self.durable_names) = (names.clone(), names);
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &Change) {
    match change {
        Change::Make(path, file) => _ = names.insert(path.clone(), *file),
        Change::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Change::Remove(path) => _ = names.remove(path),
    }
}

impl Files for Directory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.state();
        if path.starts_with("/proc") {
            return Ok(format!("boot {}", state.boots).into_bytes());
        }
        let file = state.names.get(path).ok_or(ErrorKind::NotFound)?;
        Ok(state.files[*file].bytes.clone())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Created>> {
        let mut state = self.state();
        state.step()?;
        let file = state.files.len();
        state.files.push(File::default());
        state.change(Change::Make(path.to_path_buf(), file));
        Ok(Box::new(Writing { directory: self.clone(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.change(Change::Rename(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        if !state.names.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        state.change(Change::Remove(path.to_path_buf()));
        Ok(())
    }

    fn sync_directory(&self, _path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.durable_names = state.names.clone();
        state.changes.clear();
        Ok(())
    }
}

/// A file being written.
struct Writing {
    directory: Directory,
    file: usize,
}

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let state = &mut *self.directory.state();
        state.step()?;
        let count = state.rng.usize(1..=bytes.len());
        state.files[self.file].bytes.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Created for Writing {
    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.directory.state();
        state.step()?;
        let file = &mut state.files[self.file];
        file.durable.clone_from(&file.bytes);
        Ok(())
    }
}
