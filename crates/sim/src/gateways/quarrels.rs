//! Worlds in which something that is rare elsewhere is common: a third of those in which all gateways are active.

use super::plan::Plan;
use super::{Scene, Step};
use crate::initiator::{Habits, Protocol};
use crate::seeds;
use fastrand::Rng;
use std::time::Duration;

/// What is common there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Quarrel {
    /// All replace the same block by COMPARE AND WRITE, each by its gateway.
    Block,
    /// What gateways have sent hangs, and lands before OSDs get the maps that would have it refused.
    Maps,
}

/// What is common in the world of this seed, if anything.
pub(super) fn draw(seed: u64) -> Option<Quarrel> {
    if seeds::have_late_maps(seed) {
        return Some(Quarrel::Maps);
    }
    (seeds::are_all_active(seed) && matches!(seeds::sixteenth(seed), 0 | 15)).then_some(Quarrel::Block)
}

impl Quarrel {
    /// Adapts the world.
    pub(super) fn shape(self, plan: &mut Plan, rng: &mut Rng) {
        match self {
            Quarrel::Block => {
                plan.blocks = 8;
                while plan.initiators.len() < 3 {
                    plan.initiators.push(Protocol::Iscsi);
                }
                (plan.orders, plan.resets, plan.preempts) = (0, 0, false);
                (plan.fault_micros, plan.mishap_millis) = (None, None);
                plan.sluggish = (500, Duration::from_millis(20));
                (plan.others, plan.pause_micros) = (800, 10_000);
                plan.work = Duration::from_secs(rng.u64(3..6));
            }
            Quarrel::Maps => {
                (plan.blocks, plan.osds) = (8, 1);
                // Requests of others would bring maps there.
                plan.initiators.truncate(rng.usize(1..=2));
                (plan.deaf_micros, plan.shares) = ([10_000_000, 60_000_000, 60_000_000][rng.usize(0..3)], 5);
                (plan.slow, plan.fault_micros) = (0, None);
                plan.takeover = Duration::from_secs(2);
                plan.mishap_millis = Some(10_000);
                // Reservations would have most writes refused, and resets would end them.
                (plan.orders, plan.resets, plan.preempts) = (0, 0, false);
                (plan.thinks, plan.pause_micros) = (Duration::from_millis(100), 50_000);
                plan.work = Duration::from_secs(rng.u64(60..180));
            }
        }
    }

    /// Adapts an initiator's behaviour.
    pub(super) fn shape_habits(self, habits: &mut Habits) {
        match self {
            Quarrel::Block => habits.duels = true,
            Quarrel::Maps => {
                habits.patience = Duration::from_secs(8);
                (habits.depth, habits.reads) = (4, 300);
                (habits.aborts, habits.logouts, habits.returns) = (0, 0, 0);
            }
        }
    }
}

impl Scene {
    /// What a gateway that is used sends to an OSD hangs: until about when it is fenced, until initiators use another one, or until
    /// they have given it up. Meanwhile another one may not see that it is fenced as well.
    pub(super) fn hang(&mut self) -> Duration {
        let (member, osd, time, blind) = {
            let rng = &mut self.net.borrow_mut().rng;
            let initiator = &self.initiators[rng.usize(0..self.initiators.len())];
            let millis = match rng.u32(0..4) {
                0 => rng.u64(0..4_000),
                1 | 2 => rng.u64(8_000..24_000),
                _ => rng.u64(24_000..70_000),
            };
            let blind = Duration::from_millis(rng.u64(0..10_000));
            let blind = if rng.u32(0..3) == 0 { blind } else { Duration::ZERO };
            let time = self.plan.takeover + Duration::from_millis(millis);
            (initiator.gateway(), rng.usize(0..self.rados.osds()), time, blind)
        };
        let client = self.members[member].image.now();
        self.hold_up(member, Some(client), osd, time);
        if !blind.is_zero() {
            self.blind((member + 1) % self.members.len(), blind);
        }
        time
    }

    /// No gateway reaches the cluster for so long that initiators give up their paths. One that is used is the last to reach it again,
    /// and the next one was started meanwhile. Returns how long that takes.
    pub(super) fn outage(&mut self) -> Duration {
        let (used, time) = {
            let rng = &mut self.net.borrow_mut().rng;
            let initiator = &self.initiators[rng.usize(0..self.initiators.len())];
            (initiator.gateway(), Duration::from_millis(rng.u64(34_000..50_000)))
        };
        let takeover = self.plan.takeover.as_nanos() as u64;
        for member in 0..self.members.len() {
            let is_next = member == (used + 1) % self.members.len();
            let (longer, begins, is_started) = {
                let net = &mut *self.net.borrow_mut();
                let longer = if member == used { takeover / 8..takeover } else { 0..takeover / 16 };
                (net.nanos(longer.start, longer.end), net.nanos(0, takeover), is_next || net.rng.bool())
            };
            self.cut_off_from_cluster(member, time + longer);
            if member != used && is_started {
                self.kill(member);
                self.later(time.saturating_sub(begins), Step::Starts { member });
            }
        }
        time
    }
}
