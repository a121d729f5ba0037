//! The GUID of our SRP target ports: configured, or generated once and saved.

use crate::state::StateSaver;
use config::names::OUI;
use std::io;
use std::path::Path;

/// The file in the state directory.
const FILE: &str = "srp-guid";

/// The GUID that was saved, or a new one, which is saved if there is a state directory.
///
/// # Errors
/// A message with the fix, when the file may exist but cannot be read, or cannot be written.
pub(crate) fn find_or_make(state_dir: Option<&Path>) -> Result<u64, String> {
    let Some(dir) = state_dir else {
        let guid = make()?;
        tracing::warn!(
            "SRP target ports are named {guid:016x} until the daemon ends: set --srp-guid or --state-dir to keep the name"
        );
        return Ok(guid);
    };
    let path = dir.join(FILE);
    let fault = |what: String| {
        format!("{}: {what}; give --srp-guid, or remove the file for a new name", path.display())
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let guid = config::parse_guid(text.trim_end());
            guid.map_err(|_| fault("the SRP GUID file is damaged".into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let guid = make()?;
            let written = StateSaver::default().replace(&path, format!("{guid:016x}\n").as_bytes(), false);
            written.map_err(|error| fault(format!("the SRP GUID cannot be saved: {error}")))?;
            Ok(guid)
        }
        Err(error) => Err(fault(format!("the SRP GUID cannot be read: {error}"))),
    }
}

/// An EUI-64 that belongs to nobody: random except for the OUI, which is locally administered.
fn make() -> Result<u64, String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random bits for the SRP GUID: {error}"))?;
    bytes[..OUI.len()].copy_from_slice(&OUI);
    Ok(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guid_is_created_once_and_saved() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let guid = find_or_make(Some(dir.path())).expect("a GUID");
        assert_eq!(guid >> 40, 0x024c75);
        assert_eq!(find_or_make(Some(dir.path())), Ok(guid));
        assert_ne!(find_or_make(None), find_or_make(None));
        std::fs::write(dir.path().join(FILE), "no GUID").expect("written");
        let fault = find_or_make(Some(dir.path())).expect_err("damaged");
        assert!(fault.contains("srp-guid: the SRP GUID file is damaged"), "{fault}");
    }
}
