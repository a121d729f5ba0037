//! What a seed makes of gateways and of what goes wrong with them.

use super::quarrels::{self, Quarrel};
use crate::initiator::{Habits, Protocol};
use crate::net::Odds;
use crate::seeds;
use crate::world::Cuts;
use config::Access;
use fastrand::Rng;
use std::time::Duration;

/// How long a fence may take until all OSDs have its map, as gateways are configured.
pub(super) const OSD_MAP_DELAY: Duration = Duration::from_secs(7);

/// What a seed makes of the world.
/// Its fields are the choices that a seed makes, one for each.
pub(super) struct Plan {
    /// What is common there.
    pub(super) quarrel: Option<Quarrel>,
    /// How many gateways access the image at a time.
    pub(super) access: Access,
    /// Of each gateway.
    pub(super) cores: Vec<usize>,
    /// How fast the clock of each is, in thousandths.
    pub(super) speeds: Vec<u64>,
    /// Clocks stand still in pauses.
    pub(super) stands: bool,
    pub(super) initiators: Vec<Protocol>,
    pub(super) blocks: u32,
    pub(super) osds: usize,
    pub(super) takeover: Duration,
    pub(super) odds: Odds,
    /// How often a core moves a session, of 1000 turns.
    pub(super) moves: u32,
    /// Between two faults of the network, at most; `None`: there are none.
    pub(super) fault_micros: Option<u64>,
    /// Between two mishaps of gateways, at most.
    pub(super) mishap_millis: Option<u64>,
    /// Of 1000 messages to the cluster so many take seconds.
    pub(super) slow: u32,
    /// Of 1000 requests to OSDs so many take up to so long, while others overtake them.
    pub(super) sluggish: (u32, Duration),
    /// How long an OSD may not hear of a map, at most.
    pub(super) deaf_micros: u64,
    /// How often an OSD sends the sender of a request its map, of 1000 times.
    pub(super) shares: u32,
    pub(super) orders: u32,
    pub(super) others: u32,
    pub(super) resets: u32,
    /// Orders are mostly PREEMPT AND ABORT.
    pub(super) preempts: bool,
    /// How often an initiator wants its gateway to be the active one, of 1000 turns.
    pub(super) wants: u32,
    /// Several initiators are sessions of one.
    pub(super) has_twins: bool,
    pub(super) pause_micros: u64,
    /// How long an initiator begins nothing after it has, at most.
    pub(super) thinks: Duration,
    pub(super) work: Duration,
}

impl Plan {
    pub(super) fn new(seed: u64, rng: &mut Rng) -> Plan {
        let odds = Odds {
            cut: [0, 20, 300][rng.usize(0..3)],
            late: [0, 5, 50][rng.usize(0..3)],
            slow: 0,
            short: 0,
            pause: [0, 0, 2][rng.usize(0..3)],
        };
        let is_for_all = seeds::are_all_active(seed);
        // Two of them know of each other's fences, and have those waited for that the third one must catch up with.
        let gateways = if rng.u32(0..4) < if is_for_all { 3 } else { 1 } { 3 } else { 2 };
        let quarrel = quarrels::draw(seed);
        // An initiator that leaves one of three comes to one that need not be the one that fences it.
        let gateways = if quarrel == Some(Quarrel::Maps) { 3 } else { gateways };
        let initiators = rng.usize(1..=4);
        let protocol = |rng: &mut Rng| if rng.u32(0..4) == 0 { Protocol::Iser } else { Protocol::Iscsi };
        let access = if seeds::are_all_active(seed) { Access::All } else { Access::One };
        let mut plan = Plan {
            quarrel,
            access,
            cores: (0..gateways).map(|_| rng.usize(1..=3)).collect(),
            speeds: (0..gateways).map(|_| [1000, 1000, 800, 900, 1100, 1200][rng.usize(0..6)]).collect(),
            stands: rng.bool(),
            initiators: (0..initiators).map(|_| protocol(rng)).collect(),
            blocks: [8, 64, 512][rng.usize(0..3)],
            osds: rng.usize(1..=3),
            takeover: Duration::from_secs([1, 2, 5][rng.usize(0..3)]),
            odds,
            moves: [0, 0, 5][rng.usize(0..3)],
            fault_micros: [None, Some(2_000_000), Some(20_000_000)][rng.usize(0..3)],
            mishap_millis: [None, Some(1_500), Some(6_000), Some(15_000)][rng.usize(0..4)],
            slow: [0, 0, 1, 5][rng.usize(0..4)],
            sluggish: ([0, 20, 100][rng.usize(0..3)], Duration::from_millis(200)),
            shares: 500,
            deaf_micros: [1_000, 100_000, 5_000_000, 60_000_000][rng.usize(0..4)],
            orders: [0, 50, 200, 500][rng.usize(0..4)],
            others: [0, 20, 200][rng.usize(0..3)],
            resets: [0, 2, 20][rng.usize(0..3)],
            preempts: rng.u32(0..3) == 0,
            wants: [0, 0, 5, 50][rng.usize(0..4)],
            has_twins: rng.bool(),
            pause_micros: [30_000, 150_000, 600_000][rng.usize(0..3)],
            thinks: Duration::ZERO,
            work: Duration::from_secs(rng.u64(10..90)),
        };
        if plan.is_for_all() {
            plan.is_shared_by_all(rng);
        }
        if plan.preempts {
            // Few of them at the same time, or nobody would know who was preempted.
            plan.orders = plan.orders.min(30);
            plan.sluggish.0 = 100;
        }
        if rng.bool() {
            // Beyond this, they count as hanging.
            plan.sluggish.1 = plan.takeover * 4 / 5;
        }
        if let Some(quarrel) = quarrel {
            quarrel.shape(&mut plan, rng);
        }
        plan
    }

    /// Adapts it to gateways that all access the image.
    fn is_shared_by_all(&mut self, rng: &mut Rng) {
        self.wants = 0;
        self.blocks = self.blocks.min(64);
        (self.deaf_micros, self.shares) = (5_000_000, 500);
        if rng.bool() {
            // Few requests bring maps to OSDs and clients.
            (self.deaf_micros, self.shares) = (60_000_000, 5);
            self.initiators.truncate(2);
        }
        self.mishap_millis = Some([6_000, 15_000, 30_000][rng.usize(0..3)]);
        // Hosts that leave a path have time enough to use another one.
        self.pause_micros = [50_000, 150_000, 600_000][rng.usize(0..3)];
        self.work = Duration::from_secs(rng.u64(30..150));
        self.osds = rng.usize(1..=4);
    }

    /// Whether all gateways access the image.
    pub(super) fn is_for_all(&self) -> bool {
        self.access == Access::All
    }

    /// How long a host that has left a path waits before it uses another one, if all gateways access the image: by the slowest
    /// clock, and until what is slow has arrived.
    pub(super) fn gives_up(&self) -> Option<Duration> {
        let slow = if self.slow > 0 { Duration::from_secs(60) } else { Duration::ZERO };
        self.is_for_all()
            .then(|| (self.takeover * 2 + OSD_MAP_DELAY + Duration::from_secs(3)) * 1000 / 800 + slow)
    }

    /// Leaves this out.
    pub(super) fn cut(&mut self, cuts: &Cuts) {
        let numbers = [
            ("moves", &mut self.moves),
            ("orders", &mut self.orders),
            ("others", &mut self.others),
            ("resets", &mut self.resets),
            ("wants", &mut self.wants),
        ];
        for (name, number) in numbers {
            if cuts.has(name) {
                *number = 0;
            }
        }
        if cuts.has("crashes") {
            self.mishap_millis = None;
        }
        if cuts.has("disks") {
            (self.slow, self.sluggish.0) = (0, 0);
        }
        if cuts.has("breaks") {
            self.fault_micros = None;
        }
        if cuts.has("network") {
            self.odds = Odds { cut: 0, late: 0, slow: 0, short: 0, pause: 0 };
        }
        self.cores.iter_mut().for_each(|cores| *cores = cuts.most("cores", *cores));
        self.initiators.truncate(cuts.most("initiators", self.initiators.len()));
        let micros = cuts.most("micros", self.work.as_micros() as usize);
        self.work = Duration::from_micros(micros as u64);
    }

    /// How many hosts there are: of gateways, and initiators.
    pub(super) fn hosts(&self) -> usize {
        self.first_initiator() + self.initiators.len()
    }

    pub(super) fn first_initiator(&self) -> usize {
        self.cores.iter().map(|cores| cores + 2).sum()
    }

    /// How long a unit stays where it is, whatever initiators want, if it is not left for other reasons: by the fastest clock.
    pub(super) fn stays(&self) -> Option<Duration> {
        let is_quiet = !self.is_for_all() && self.mishap_millis.is_none() && self.slow == 0;
        is_quiet.then(|| self.takeover * 6 * 1000 / 1201)
    }

    /// How an initiator behaves.
    pub(super) fn shape(&self, habits: &mut Habits) {
        // They reach one gateway only, and take long from there to others.
        (habits.resets, habits.longer) = (self.resets, 0);
        habits.depth = habits.depth.min(32);
        (habits.moves, habits.preempts) = (self.wants, self.preempts);
        (habits.orders, habits.others) = (self.orders, self.others);
        habits.pause_micros = self.pause_micros;
        habits.patience = habits.patience.max(Duration::from_millis(500));
        if let Some(quarrel) = self.quarrel {
            quarrel.shape_habits(habits);
        }
    }
}
