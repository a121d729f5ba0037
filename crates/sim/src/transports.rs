//! The protocol of each initiator.

use crate::initiator::Protocol;
use fastrand::Rng;

/// Separates its choices from others made from the same seed.
const SALT: u64 = 0x7472_616e_7370_6f72;

/// Each initiator's protocol: only iSCSI in half of all worlds.
pub(crate) fn draw(seed: u64, initiators: usize) -> Vec<Protocol> {
    let mut rng = Rng::with_seed(seed ^ SALT);
    let is_mixed = rng.bool();
    let mut one = || match rng.u32(0..3) {
        0 if is_mixed => Protocol::Iscsi,
        1 if is_mixed => Protocol::Iser,
        2 if is_mixed => Protocol::Srp,
        _ => Protocol::Iscsi,
    };
    (0..initiators).map(|_| one()).collect()
}
