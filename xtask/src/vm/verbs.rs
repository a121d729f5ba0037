//! The scenarios in which the daemon is in the guest, and has an RDMA device there.

use super::rig;
use super::scenario::Scenario;
use crate::command::{command, lunette, succeed};
use std::io;
use std::path::Path;

/// The scripts, behind what they share.
pub(super) const ISER: &str =
    concat!(include_str!("../../vm/verbs.sh"), include_str!("../../vm/verbs_iser.sh"));
pub(super) const SRP: &str =
    concat!(include_str!("../../vm/verbs.sh"), include_str!("../../vm/verbs_srp.sh"));
pub(super) const OUTAGE: &str =
    concat!(include_str!("../../vm/verbs.sh"), include_str!("../../vm/verbs_outage.sh"));
pub(super) const LIST: &str =
    concat!(include_str!("../../vm/verbs.sh"), include_str!("../../vm/verbs_list.sh"));

/// Puts the daemon into the guest, where the scenario has it there.
pub(super) fn put_daemon(scenario: Scenario, below: &Path) -> io::Result<()> {
    if !matches!(
        scenario,
        Scenario::VerbsIser | Scenario::VerbsSrp | Scenario::VerbsOutage | Scenario::VerbsList
    ) {
        return Ok(());
    }
    let folder = below.join(rig::PROGRAMS_FOLDER);
    std::fs::create_dir_all(&folder)?;
    let mut strip = command("strip");
    strip.arg("-o").arg(folder.join("lunette")).arg(lunette());
    succeed(&mut strip).map_err(io::Error::other)
}
