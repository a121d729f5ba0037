//! The scenarios with the daemon in the guest, most of them with an RDMA device there.

use super::rig;
use super::scenario::{Scenario, scenario};
use crate::command::{command, succeed};
use std::io;
use std::path::Path;

/// A scenario whose script follows the one shared by all of these.
macro_rules! inside {
    ($name:literal, $script:literal) => {
        Scenario {
            is_inside: true,
            ..scenario($name, concat!(include_str!("../../vm/verbs.sh"), include_str!($script)))
        }
    };
}

pub(super) const ISER: Scenario = inside!("verbs_iser", "../../vm/verbs_iser.sh");
pub(super) const SRP: Scenario = inside!("verbs_srp", "../../vm/verbs_srp.sh");
pub(super) const TABLES: Scenario = inside!("verbs_tables", "../../vm/verbs_tables.sh");
pub(super) const SIW: Scenario = inside!("verbs_siw", "../../vm/verbs_siw.sh");
pub(super) const OUTAGE: Scenario = inside!("verbs_outage", "../../vm/verbs_outage.sh");
/// Two portals as paths of different priority, without a device.
pub(super) const ALUA: Scenario = inside!("alua", "../../vm/alua.sh");
/// Without a device.
pub(super) const LIVE: Scenario = inside!("live", "../../vm/live.sh");
pub(super) const LIST: Scenario = inside!("verbs_list", "../../vm/verbs_list.sh");

/// Installs the daemon in the guest, for the scenarios that have it there.
pub(super) fn install_daemon(scenario: &Scenario, program: &Path, below: &Path) -> io::Result<()> {
    if !scenario.is_inside {
        return Ok(());
    }
    let directory = below.join(rig::PROGRAMS_DIRECTORY);
    std::fs::create_dir_all(&directory)?;
    let mut strip = command("strip");
    strip.arg("-o").arg(directory.join("lunette")).arg(program);
    succeed(&mut strip).map_err(io::Error::other)
}
