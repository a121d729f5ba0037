//! Whose world a seed makes: that of one target, or of gateways.

use fastrand::Rng;

/// Apart from what else a seed decides.
const SALT: u64 = 0x6761_7465_7761_7900;
const RARE: u64 = 0x7261_7265_6772_6f00;

/// Whether there are gateways in the world of this seed.
pub(crate) fn has_gateways(seed: u64) -> bool {
    Rng::with_seed(seed ^ SALT).u32(0..12) == 0
}

/// Whether these are all active at the same time.
pub(crate) fn are_all_active(seed: u64) -> bool {
    Rng::with_seed(seed ^ SALT ^ 1).bool()
}

/// What decides whether something that is rare elsewhere is common in a world of gateways: below 16.
pub(crate) fn sixteenth(seed: u64) -> u32 {
    Rng::with_seed(seed ^ RARE).u32(0..16)
}

/// Whether OSDs get maps late, while what gateways have sent hangs.
pub(crate) fn have_late_maps(seed: u64) -> bool {
    are_all_active(seed) && (1..4).contains(&sixteenth(seed))
}
