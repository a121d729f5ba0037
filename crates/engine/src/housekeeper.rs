//! The thread that does what blocks: it keeps reservation state in the state directory, and opens network interfaces
//! again.

use crate::config::AoeInterface;
use crate::message::{InterfaceMessage, Message};
use reactor::mailbox::Sender;
use reactor::packet::Socket;
use scsi::{Damaged, Home};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

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
    /// Open an interface that was removed, or has changed; then [`InterfaceMessage::Opened`].
    OpenInterface {
        /// The interface.
        interface: AoeInterface,
        /// Its index in the configuration.
        index: usize,
        /// Whom to tell.
        core: usize,
    },
    /// Close a socket of one.
    Close(Socket),
    /// End.
    Stop,
}

/// What the housekeeper looks after.
pub(crate) struct Housekeeper {
    /// Where state is kept.
    pub(crate) state_dir: Option<PathBuf>,
    /// Serial numbers of the units: names of their files.
    pub(crate) serials: Vec<String>,
    /// To the cores.
    pub(crate) cores: Vec<Sender<Message>>,
}

impl Housekeeper {
    /// Works until [`Job::Stop`], or until nobody can send jobs any more.
    pub(crate) fn run(self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Persist { unit, state, core } => {
                    let ok = self.persist(unit, &state);
                    self.cores[core].post(Message::Persisted { unit, ok });
                }
                Job::OpenInterface { interface, index, core } => {
                    let message = InterfaceMessage::Opened(crate::core::open(&interface));
                    self.cores[core].post(Message::Interface { index, message });
                }
                Job::Close(socket) => drop(socket),
                Job::Stop => return,
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

/// Gives the home of a unit the state that was kept of it, if there is any.
///
/// # Errors
/// When it may be there but cannot be read, or is damaged: the unit must not be served, since an initiator that was
/// fenced off could write, or what a SANITIZE left half done be read.
pub(crate) fn restore(home: &mut Home, state_dir: &Path, serial: &str) -> Result<(), String> {
    let path = reservations_path(state_dir, serial);
    let unusable = |what: String, cure: &str| {
        Err(format!(
            "{}: kept reservations {what}; {cure}, or remove it to forget them and whether a SANITIZE failed, and \
             start again",
            path.display()
        ))
    };
    match fs::read(&path) {
        Ok(kept) => match home.restore(&kept) {
            Ok(()) => {
                for port in home.policy().reservations.gone_ports() {
                    tracing::warn!(
                        path = %path.display(),
                        %port,
                        "kept registrations are of a target port that is not there any more: they stay, but no session \
                         can use them; bring the target and portal group back, or PREEMPT or CLEAR them"
                    );
                }
                Ok(())
            }
            Err(Damaged) => unusable("are damaged".into(), "restore the file"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => unusable(format!("cannot be read: {error}"), "make the file readable"),
    }
}

fn reservations_path(dir: &Path, serial: &str) -> PathBuf {
    let safe: String = serial.bytes().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("reservations-{safe}"))
}

/// Writes beside, makes durable, renames: a crash leaves the old state or the new one.
pub(crate) fn replace(path: &Path, state: &[u8]) -> io::Result<()> {
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
        assert_eq!(fs::read(&path).expect("kept"), b"two");
        replace(&path, b"").expect("removed");
        replace(&path, b"").expect("nothing to remove is fine");
        assert!(!path.exists());
    }
}
