//! A thin unit whose store takes more and less space: when that reaches the threshold, each session is notified once, and again only
//! after it has fallen by half a threshold set (SBC-4 section 4.7.3.7).

use super::{Kind, Plan};
use crate::attention::Attentions;
use crate::kernel::Kernel;
use crate::register::BLOCK_BYTES;
use engine::world::Cores;
use fastrand::Rng;
use proto::time::Time;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Separates its choices from others made from the same seed.
const SALT: u64 = 0x7468_696e_0000_0000;
/// The threshold: all of the unit, which is one threshold set.
const THRESHOLD_BYTES: u64 = 1 << 20;
/// How often it is checked whether all cores know.
const LOOK_EVERY: Duration = Duration::from_micros(20);
/// What the store may take: also within the range of the threshold.
const USED: [u64; 6] = [0, 1 << 18, 5 << 17, 7 << 17, 1 << 20, 3 << 19];

/// The thin unit in a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thin {
    pub(super) unit: usize,
    /// Longest time between two measurements.
    micros: u64,
}

/// The thin unit in this seed's world, if any.
pub(super) fn draw(seed: u64, plan: &Plan) -> Option<Thin> {
    let mut rng = Rng::with_seed(seed ^ SALT);
    let unit = rng.usize(0..plan.kinds.len());
    let is_set = u64::from(plan.blocks * BLOCK_BYTES) == THRESHOLD_BYTES;
    let has_place = is_set && plan.chain.is_none() && plan.kinds[unit] != Kind::Device;
    (has_place && rng.bool()).then(|| Thin { unit, micros: [200, 2_000, 20_000][rng.usize(0..3)] })
}

/// Its space is measured.
pub(super) struct Measurements {
    thin: Thin,
    rng: Rng,
    attentions: Rc<RefCell<Attentions>>,
    is_reached: bool,
    /// When this changed, until all cores know.
    changed: Option<Time>,
}

impl Measurements {
    pub(super) fn new(thin: Thin, seed: u64, attentions: Rc<RefCell<Attentions>>) -> Measurements {
        Measurements { thin, rng: Rng::with_seed(!seed), attentions, is_reached: false, changed: None }
    }

    /// The target was started, and has measured nothing yet.
    pub(super) fn restarted(&mut self, now: Time) {
        self.attentions.borrow_mut().space_is_measured(now);
        (self.is_reached, self.changed) = (false, None);
    }

    /// Measures, or waits until what was found is known. Returns after what time it is to be called again.
    pub(super) fn step(&mut self, now: Time, cores: &Cores<Kernel>) -> Duration {
        let unit = self.thin.unit;
        if let Some(began) = self.changed {
            if !cores.know_threshold(unit, self.is_reached) {
                return LOOK_EVERY;
            }
            self.changed = None;
            let mut attentions = self.attentions.borrow_mut();
            attentions.space_is_measured(now);
            if self.is_reached {
                attentions.threshold_is_reached(now, began, unit);
            }
        }
        let used = USED[self.rng.usize(0..USED.len())];
        let lowest = if self.is_reached { THRESHOLD_BYTES / 2 } else { THRESHOLD_BYTES };
        let is_reached = used >= lowest;
        if is_reached != self.is_reached {
            (self.is_reached, self.changed) = (is_reached, Some(now));
            if is_reached {
                self.attentions.borrow_mut().may_reach_threshold(unit);
            }
        }
        cores.space_measured(unit, used, 2 * THRESHOLD_BYTES - used);
        Duration::from_nanos(self.rng.u64(1_000..self.thin.micros * 1000))
    }
}
