//! What is measured on this machine.

use super::goals::MORE_CORES;
use std::fmt::Write as _;

/// What is measured on every machine.
pub(super) const PLAN: &str = include_str!("../../performance.toml");
/// Fewer cannot show whether twice the cores do twice the work: each connection uses one on both sides.
pub(super) const CORES_MIN: usize = 4;

/// The plan for a machine with this many cores.
pub(super) fn plan(cores: usize) -> String {
    let mut plan = PLAN.to_owned();
    if cores >= CORES_MIN {
        let connections = cores / 2;
        let list = |from: usize| {
            (from..from + connections).map(|core| core.to_string()).collect::<Vec<_>>().join(", ")
        };
        let _ = write!(
            plan,
            "\n[[scheduling]]\nname = \"spinning on all\"\ntarget_cores = [{}]\ntarget_poll = \"always\"\n\
             cores = [{}]\npoll = \"always\"\n\n[[matrix]]\ntitle = \"{MORE_CORES}\"\nscheduling = \"spinning on all\"\n\
             targets = [\"Lunette\"]\nrw = \"read\"\nbs = \"4K\"\niodepth = 32\nnumjobs = {connections}\n",
            list(0),
            list(connections)
        );
    }
    plan
}
