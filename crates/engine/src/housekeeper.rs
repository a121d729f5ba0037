//! The thread for blocking work: it saves reservation state in the state directory, and reopens network
//! interfaces.

use crate::message::{InterfaceMessage, Message};
use crate::shared::Shared;
use crate::state::StateSaver;
use crate::state::files::Files;
use config::AoeInterface;
use config::names::identity;
use reactor::io::Io;
use reactor::mailbox::Sender;
use reactor::packet::{Line, Socket};
use reactor::uring::Uring;
use scsi::{Damaged, Home};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How soon a failed save in the state directory is retried.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// A job that blocks.
pub(crate) enum Job<L: Line = Socket> {
    /// Save a unit's reservation state (remove it if the bytes are empty); then send [`Message::Persisted`].
    Persist {
        /// The unit.
        unit: u32,
        /// Its serial number, which names the file.
        serial: String,
        /// The bytes.
        state: Vec<u8>,
        /// What it records has already happened: if it cannot be saved now, it is saved later.
        is_final: bool,
        /// The core that gets the answer.
        core: usize,
    },
    /// Record that a unit's store has lost acknowledged data: the next process must report another generation
    /// of the store's cache than this one did.
    KeepLoss {
        /// The unit's serial number, which names the file.
        serial: String,
    },
    /// Open an interface that was removed or has changed; then send [`InterfaceMessage::Opened`].
    OpenInterface {
        /// The interface.
        interface: AoeInterface,
        /// Its number.
        number: usize,
        /// The core that gets the answer.
        core: usize,
    },
    /// Close a socket of an interface.
    Close(L),
    /// End.
    Stop,
}

/// The housekeeper.
pub(crate) struct Housekeeper<I: Io = Uring> {
    /// Where state is saved.
    state_dir: Option<PathBuf>,
    /// The cores' mailboxes.
    cores: Vec<Sender<Message<I>>>,
}

impl<I: Io> Housekeeper<I> {
    /// For what cores share; it posts to them by `mail`.
    pub(crate) fn new(shared: &Shared<I::Line>, mail: &[Sender<Message<I>>]) -> Housekeeper<I> {
        Housekeeper { state_dir: shared.config.state_dir.clone(), cores: mail.to_vec() }
    }

    /// Works until [`Job::Stop`], or until all senders are gone. Returns whether everything saved is durable.
    pub(crate) fn run(self, jobs: &mpsc::Receiver<Job<I::Line>>) -> bool {
        let mut state_saver = StateSaver::default();
        let mut settle_at = Instant::now();
        loop {
            let job = if state_saver.is_settled() {
                settle_at = Instant::now() + RETRY_EVERY;
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                // Even when other units' jobs never cease.
                jobs.recv_timeout(settle_at.saturating_duration_since(Instant::now()))
            };
            match job {
                Ok(job) => {
                    if !self.act(&mut state_saver, job) {
                        state_saver.settle();
                        return state_saver.is_settled();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    state_saver.settle();
                    settle_at = Instant::now() + RETRY_EVERY;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    state_saver.settle();
                    return state_saver.is_settled();
                }
            }
        }
    }

    /// Does a job. Returns false for [`Job::Stop`].
    pub(crate) fn act(&self, state_saver: &mut StateSaver, job: Job<I::Line>) -> bool {
        match job {
            Job::Persist { unit, serial, state, is_final, core } => {
                let ok = self.persist(state_saver, &serial, &state, is_final);
                self.cores[core].post(Message::Persisted { unit, ok });
            }
            Job::KeepLoss { serial } => self.keep_loss(state_saver, &serial),
            Job::OpenInterface { interface, number, core } => {
                let message = InterfaceMessage::Opened(I::Line::open(
                    &crate::core::aoe::setup(&interface),
                    interface.cores.len(),
                ));
                self.cores[core].post(Message::Interface { number, message });
            }
            Job::Close(socket) => drop(socket),
            Job::Stop => return false,
        }
        true
    }

    fn keep_loss(&self, state_saver: &mut StateSaver, serial: &str) {
        let Some(dir) = &self.state_dir else { return };
        let path = losses_path(dir, serial);
        // Any change will do: the generation only has to differ.
        let before = state_saver.read(&path).unwrap_or_default();
        let next = u128::from_be_bytes(identity(&String::from_utf8_lossy(&before)).naa);
        if let Err(error) = state_saver.replace(&path, format!("{next:032x}\n").as_bytes(), true) {
            reactor::limited!(
                "losses that could not be saved",
                tracing::Level::ERROR,
                path = %path.display(),
                %error,
                "a loss of writes could not be recorded: is the state directory writable?"
            );
        }
    }

    fn persist(&self, state_saver: &mut StateSaver, serial: &str, state: &[u8], is_final: bool) -> bool {
        let Some(dir) = &self.state_dir else { return state.is_empty() };
        let path = reservations_path(dir, serial);
        let Err(error) = state_saver.replace(&path, state, is_final) else { return true };
        reactor::limited!(
            "reservations that could not be saved",
            tracing::Level::ERROR,
            path = %path.display(),
            %error,
            "reservations could not be saved: is the state directory writable?"
        );
        if !state_saver.is_settled() {
            reactor::limited!(
                "saved state that may not be durable",
                tracing::Level::ERROR,
                path = %path.display(),
                "the previous state still applies, but a power failure may lose it: it is rewritten until it is durable"
            );
        }
        false
    }
}

/// Restores the saved state of a unit to its home, if there is any.
///
/// # Errors
/// When it may exist but cannot be read, or is damaged: the unit must not be served, since an initiator that
/// was fenced off could write, or the half-done result of a SANITIZE or FORMAT UNIT could be read.
pub(crate) fn restore(
    home: &mut Home,
    files: &dyn Files,
    state_dir: &Path,
    serial: &str,
) -> Result<(), String> {
    let path = reservations_path(state_dir, serial);
    let unusable = |what: String, cure: &str| {
        Err(format!(
            "{}: saved reservations {what}; {cure}, or remove it to discard them and any failed SANITIZE or FORMAT \
             UNIT, and start again",
            path.display()
        ))
    };
    match files.read(&path) {
        Ok(kept) => match home.restore(&kept) {
            Ok(()) => {
                for port in home.policy().reservations.gone_ports() {
                    tracing::warn!(
                        path = %path.display(),
                        %port,
                        "saved registrations belong to a target port that no longer exists: they stay, but no session \
                         can use them; restore the target and portal group, or PREEMPT or CLEAR them"
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
    path_of("reservations", dir, serial)
}

/// The file that changes when a unit's store has lost something.
pub(crate) fn losses_path(dir: &Path, serial: &str) -> PathBuf {
    path_of("losses", dir, serial)
}

/// A unit's file of this kind.
pub(crate) fn path_of(kind: &str, dir: &Path, serial: &str) -> PathBuf {
    let safe: String = serial.bytes().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("{kind}-{safe}"))
}
