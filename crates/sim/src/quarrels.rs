//! Worlds where all quarrel about the same: half of those that have no second daemon.

use crate::initiator::Habits;
use fastrand::Rng;
use std::time::Duration;

/// Apart from what else a seed decides.
const SALT: u64 = 0x7175_6172_7265_6c00;

/// What they quarrel about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quarrel {
    /// Who has the unit, by RESERVE.
    Unit,
    /// Who replaces a block, by COMPARE AND WRITE.
    Block,
    /// Who is preempted.
    Registration,
    /// A core: sessions come while it stands still, when the target was started again, and disks lose what was written before.
    Session,
    /// Memory: little is there, and long writes that come unasked wait for ORDERED commands.
    Memory,
}

/// Whether they do in the world of this seed.
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
    /// What an initiator does more often.
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
