//! Kinds of worlds, by which seeds can be selected: some faults can only be found in few of them.

use super::plan::Plan;
use crate::quarrels::Quarrel;
use crate::seeds;
use fastrand::Rng;

/// Worlds with this feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Worlds {
    /// Several daemons that share a unit.
    Gateways,
    /// The same, of which all are active at the same time.
    AllActive,
    /// The same, in which what gateways have sent hangs, and OSDs get maps late.
    LateMaps,
    /// A second daemon.
    Chain,
    /// A LUN that comes and goes.
    Guest,
    /// Initiators of AoE.
    Aoe,
    /// The same, with an interface of the target that comes and goes.
    Interfaces,
    /// A unit with limits.
    Limits,
    /// A unit with a threshold of used space.
    Thin,
    /// Quarrels about a unit, by RESERVE.
    Unit,
    /// Quarrels about a block, by COMPARE AND WRITE.
    Block,
    /// Quarrels about registrations.
    Registration,
    /// Sessions that arrive while cores are stalled.
    Session,
    /// Little memory.
    Memory,
    /// A target that is killed.
    Crashes,
    /// Disks that fail.
    Faults,
    /// Sessions that move to other cores.
    Moves,
}

impl Worlds {
    /// Whether this seed's world is one of them.
    pub fn have(self, seed: u64) -> bool {
        let gateways = match self {
            Worlds::Gateways => Some(true),
            Worlds::AllActive => Some(seeds::are_all_active(seed)),
            Worlds::LateMaps => Some(seeds::have_late_maps(seed)),
            _ => None,
        };
        if seeds::has_gateways(seed) || gateways.is_some() {
            return seeds::has_gateways(seed) && gateways == Some(true);
        }
        let plan = Plan::new(seed, &mut Rng::with_seed(seed));
        match self {
            Worlds::Gateways | Worlds::AllActive | Worlds::LateMaps => false,
            Worlds::Chain => plan.chain.is_some(),
            Worlds::Guest => plan.guest.is_some(),
            Worlds::Aoe => plan.ethernet.is_some(),
            Worlds::Interfaces => plan.ethernet.is_some() && plan.guest.is_some(),
            Worlds::Limits => plan.limited.is_some(),
            Worlds::Thin => plan.thin.is_some(),
            Worlds::Unit => plan.quarrel == Some(Quarrel::Unit),
            Worlds::Block => plan.quarrel == Some(Quarrel::Block),
            Worlds::Registration => plan.quarrel == Some(Quarrel::Registration),
            Worlds::Session => plan.quarrel == Some(Quarrel::Session),
            Worlds::Memory => plan.quarrel == Some(Quarrel::Memory),
            Worlds::Crashes => plan.crashes > 0,
            Worlds::Faults => plan.faults.can_fail(),
            Worlds::Moves => plan.cores > 1 && plan.moves > 0,
        }
    }
}
