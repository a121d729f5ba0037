//! Worlds in which all contend for the same thing: half of those without a second daemon.

use crate::initiator::Habits;
use fastrand::Rng;
use std::time::Duration;

/// Separates its choices from others made from the same seed.
const SALT: u64 = 0x7175_6172_7265_6c00;

/// What they contend for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quarrel {
    /// Who holds the unit, by RESERVE.
    Unit,
    /// Who replaces a block, by COMPARE AND WRITE.
    Block,
    /// Who preempts whom.
    Registration,
    /// A core: sessions arrive while it is stalled, after the target was restarted, and disks lose what was
    /// written before.
    Session,
    /// Memory: it is scarce, and long unsolicited writes wait for ORDERED commands.
    Memory,
}

/// What they contend for in this seed's world, if anything.
pub(crate) fn draw(seed: u64) -> Option<Quarrel> {
    let mut rng = Rng::with_seed(seed ^ SALT);
    match rng.usize(0..8) {
        0 => Some(Quarrel::Unit),
        1 => Some(Quarrel::Block),
        2 => Some(Quarrel::Registration),
        // These move the most bytes, and so take the longest.
        3 if rng.bool() => Some(Quarrel::Memory),
        4 if rng.bool() => Some(Quarrel::Session),
        _ => None,
    }
}

impl Quarrel {
    /// Adapts an initiator's behaviour.
    pub(crate) fn shape(self, habits: &mut Habits) {
        match self {
            Quarrel::Unit => {
                habits.orders = habits.orders.max(30);
                habits.resets = habits.resets.max(2);
            }
            Quarrel::Block => {
                (habits.others, habits.duels) = (700, true);
                habits.depth = habits.depth.min(32);
            }
            Quarrel::Registration => {
                (habits.orders, habits.preempts) = (100, true);
                (habits.long, habits.aborts) = (0, habits.aborts.max(30));
                (habits.logouts, habits.returns) = (habits.logouts.max(5), habits.returns.max(5));
            }
            Quarrel::Session => habits.flushes = 200,
            Quarrel::Memory => {
                (habits.depth, habits.simple) = (128, 12);
                (habits.long, habits.longer, habits.reads) = (120, 0, 500);
                (habits.aborts, habits.resets, habits.logouts, habits.returns) = (0, 0, 0, 0);
                habits.patience = Duration::from_secs(8);
            }
        }
    }
}
