//! Whose world a seed makes: that of one target, or of gateways.

use fastrand::Rng;

/// Apart from what else a seed decides.
const SALT: u64 = 0x6761_7465_7761_7900;

/// Whether there are gateways in the world of this seed.
pub(crate) fn has_gateways(seed: u64) -> bool {
    Rng::with_seed(seed ^ SALT).u32(0..12) == 0
}

/// Whether these are all active at the same time.
pub(crate) fn are_all_active(seed: u64) -> bool {
    Rng::with_seed(seed ^ SALT ^ 1).bool()
}
