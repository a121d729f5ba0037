//! The one thread that may block: keeps reservation state in the state directory, and looks whether stores changed
//! their size.

use crate::message::{Message, Origin, Waiter};
use reactor::mailbox::Sender;
use scsi::HomeRequest;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use store::lane::Store;

/// Something that blocks.
pub(crate) enum Job {
    /// Keep (or with empty bytes remove) a unit's reservation state; then [`Message::Persisted`].
    Persist {
        /// The unit.
        unit: u32,
        /// The bytes.
        state: Vec<u8>,
        /// Whom to tell.
        core: usize,
    },
    /// End.
    Stop,
}

/// What the housekeeper looks after.
pub(crate) struct Housekeeper {
    /// Where state is kept.
    pub(crate) state_dir: Option<PathBuf>,
    /// Serial numbers of the units: names of their files.
    pub(crate) serials: Vec<String>,
    /// Stores by unit; `None`: it did not open.
    pub(crate) stores: Vec<Option<Arc<dyn Store>>>,
    /// Home core of each unit.
    pub(crate) homes: Vec<usize>,
    /// To the cores.
    pub(crate) cores: Vec<Sender<Message>>,
}

/// How often stores are asked for their size.
const REFRESH: Duration = Duration::from_secs(1);

impl Housekeeper {
    /// Works until [`Job::Stop`], or until nobody can send jobs any more.
    pub(crate) fn run(self, jobs: &mpsc::Receiver<Job>) {
        let mut refresh_at = Instant::now() + REFRESH;
        loop {
            match jobs.recv_timeout(refresh_at.saturating_duration_since(Instant::now())) {
                Ok(Job::Persist { unit, state, core }) => {
                    let ok = self.persist(unit, &state);
                    self.cores[core].post(Message::Persisted { unit, ok });
                }
                Ok(Job::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.refresh();
                    refresh_at = Instant::now() + REFRESH;
                }
            }
        }
    }

    fn refresh(&self) {
        for (unit, store) in self.stores.iter().enumerate() {
            if let Some(traits) = store.as_ref().and_then(|store| store.refresh()) {
                tracing::info!(unit, size_bytes = traits.size_bytes, "the store's size changed");
                let home = self.homes[unit];
                let origin = Origin { core: home, who: Waiter::Nobody };
                let request = HomeRequest::StoreChanged(traits);
                self.cores[home].post(Message::Home { unit: unit as u32, origin, request });
            }
        }
    }

    fn persist(&self, unit: u32, state: &[u8]) -> bool {
        let Some(dir) = &self.state_dir else { return state.is_empty() };
        let path = reservations_path(dir, &self.serials[unit as usize]);
        match replace(&path, state) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "reservations could not be kept: is the state directory writable?");
                false
            }
        }
    }
}

/// Reservation state of a unit as it was kept, if there is any.
pub(crate) fn kept_reservations(state_dir: &Path, serial: &str) -> Option<Vec<u8>> {
    let path = reservations_path(state_dir, serial);
    match fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "kept reservations could not be read");
            None
        }
    }
}

fn reservations_path(dir: &Path, serial: &str) -> PathBuf {
    let safe: String = serial.bytes().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("reservations-{safe}"))
}

/// Writes beside, makes durable, renames: a crash leaves the old state or the new one.
fn replace(path: &Path, state: &[u8]) -> io::Result<()> {
    if state.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sync_parent(path),
        };
    }
    let beside = path.with_extension("new");
    let mut file = fs::File::create(&beside)?;
    file.write_all(state)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_replaced_and_removed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = reservations_path(dir.path(), "a/b");
        replace(&path, b"one").expect("written");
        replace(&path, b"two").expect("written");
        assert_eq!(kept_reservations(dir.path(), "a/b").as_deref(), Some(&b"two"[..]));
        replace(&path, b"").expect("removed");
        replace(&path, b"").expect("nothing to remove is fine");
        assert_eq!(kept_reservations(dir.path(), "a/b"), None);
    }
}
