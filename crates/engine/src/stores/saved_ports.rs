//! The initiator ports of a remote unit's lanes, saved in the state directory: whichever process serves the
//! unit next, also after a kill, has the target end what was sent from one of them
//! ([`initiator::remote::take_over`]).

use crate::housekeeper::path_of;
use crate::state::StateSaver;
use crate::state::files::Files;
use initiator::InitiatorPort;
use reactor::io::Io;
use std::io;
use std::path::{Path, PathBuf};

/// The file of a unit: a line for each port.
pub struct SavedPorts {
    path: PathBuf,
}

impl SavedPorts {
    /// The file of the unit with this serial number.
    pub fn new(state_dir: &Path, serial: &str) -> SavedPorts {
        SavedPorts { path: path_of("initiator-ports", state_dir, serial) }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All ports from which commands may have been sent that have not ended.
    ///
    /// # Errors
    /// When the file may exist but cannot be read, or is damaged: a message.
    pub fn read(&self, files: &dyn Files) -> Result<Vec<InitiatorPort>, String> {
        match files.read(&self.path) {
            Ok(bytes) => parse(&bytes).ok_or_else(|| "the saved initiator ports are damaged".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(format!("the saved initiator ports cannot be read: {error}")),
        }
    }

    /// Saves these, durably, replacing all others: nothing may be sent from these before, and all that was
    /// sent from the others must have ended.
    ///
    /// # Errors
    /// When they are not durable.
    pub fn replace(&self, files: Box<dyn Files>, ports: &[InitiatorPort]) -> io::Result<()> {
        let lines = ports.iter().map(|InitiatorPort { name, isid: [a, b, c, d, e, f] }| {
            format!("{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x} {name}\n")
        });
        StateSaver::new(files).replace(&self.path, lines.collect::<String>().as_bytes(), false)
    }

    /// Ports of this name for `lanes` lanes: the saved ones, completed with new ones.
    pub fn choose<I: Io>(saved: &[InitiatorPort], name: &str, lanes: usize) -> Vec<InitiatorPort> {
        let known = saved.iter().filter(|port| port.name == name).cloned();
        known.chain(std::iter::repeat_with(|| InitiatorPort::fresh::<I>(name.into()))).take(lanes).collect()
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<InitiatorPort>> {
    let port = |line: &str| {
        let (isid, name) = line.split_once(' ')?;
        let digits = isid.len() == 12 && isid.bytes().all(|digit| digit.is_ascii_hexdigit());
        let isid = u64::from_str_radix(isid, 16).ok().filter(|_| digits)?;
        let [_, _, isid @ ..] = isid.to_be_bytes();
        (!name.is_empty()).then(|| InitiatorPort { name: name.into(), isid })
    };
    std::str::from_utf8(bytes).ok()?.lines().map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::files::System;
    use reactor::uring::Uring;

    #[test]
    fn ports_of_earlier_processes_are_found_and_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let saved = SavedPorts::new(dir.path(), "A/1");
        assert_eq!(saved.read(&System), Ok(Vec::new()));
        let three = SavedPorts::choose::<Uring>(&[], "iqn.2026-11.io.lunette:a", 3);
        saved.replace(Box::new(System), &three).unwrap();
        assert_eq!(saved.read(&System), Ok(three.clone()));
        assert_eq!(SavedPorts::new(dir.path(), "A/2").read(&System), Ok(Vec::new()), "another unit");
        assert_eq!(SavedPorts::choose::<Uring>(&three, "iqn.2026-11.io.lunette:a", 2), three[..2]);
        let four = SavedPorts::choose::<Uring>(&three, "iqn.2026-11.io.lunette:a", 4);
        assert_eq!(four[..3], three);
        assert!(!three.contains(&four[3]));
        let other = SavedPorts::choose::<Uring>(&three, "iqn.2026-11.io.lunette:b", 1);
        assert_eq!(other[0].name, "iqn.2026-11.io.lunette:b");
    }

    #[test]
    fn damaged_saved_ports_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let saved = SavedPorts::new(dir.path(), "S");
        for damaged in ["80000000000 a\n", "+80000000000 a\n", "800000000001\n", "800000000001 \n", "\n"] {
            std::fs::write(saved.path(), damaged).unwrap();
            assert!(saved.read(&System).is_err(), "{damaged:?}");
        }
    }
}
