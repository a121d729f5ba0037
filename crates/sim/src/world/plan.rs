//! A seed's choices about the world: units, cores, initiators, and what goes wrong.

use super::chain::{self, Chain};
use super::guest;
use super::thin::{self, Thin};
use super::{PORTAL, TARGET, UNITS_MAX};
use crate::ata;
use crate::disk::{Cache, Faults};
use crate::ethernet::{self, Segment};
use crate::initiator::{Protocol, SRP_GUID};
use crate::kernel::GRAIN_BYTES_MAX;
use crate::limits::{self, Limited};
use crate::net::Odds;
use crate::quarrels::{self, Quarrel};
use crate::register::BLOCK_BYTES;
use crate::rogue::{self, Manners};
use crate::transports;
use config::{Config, StoreSpec};
use fastrand::Rng;
use std::path::Path;
use std::time::Duration;

/// Connections may reserve half; running commands get some of what remains after 40 MiB are kept for others.
const ARENA_BYTES_MIN: u64 = 96 << 20;
/// When no connection reserves any: 12 MiB for running commands.
const SCARCE_BYTES: u64 = 52 << 20;

/// What a unit is stored in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Memory,
    Device,
    /// With direct I/O of this alignment, or through the page cache.
    File(u32),
}

/// A seed's choices about the world.
/// Its fields are the choices that a seed makes, one for each.
pub(super) struct Plan {
    pub(super) kinds: Vec<Kind>,
    /// How often the target is killed.
    pub(super) crashes: u32,
    pub(super) cores: usize,
    /// Each initiator's protocol.
    pub(super) initiators: Vec<Protocol>,
    pub(super) rogue: Option<Manners>,
    /// A LUN comes and goes.
    pub(super) guest: Option<guest::Manners>,
    pub(super) ethernet: Option<Segment>,
    /// The target's units are served by another daemon.
    pub(super) chain: Option<Chain>,
    pub(super) quarrel: Option<Quarrel>,
    /// A unit with a threshold of used space.
    pub(super) thin: Option<Thin>,
    /// A unit with a rate limit.
    pub(super) limited: Option<Limited>,
    pub(super) blocks: u32,
    pub(super) arena_bytes: u64,
    pub(super) odds: Odds,
    /// How much longer a turn of a core takes than on a fast one.
    pub(super) slowness: u32,
    /// How often a core moves a session, in 1000 turns.
    pub(super) moves: u32,
    /// Longest time between two network faults; `None`: there are none.
    pub(super) fault_micros: Option<u64>,
    pub(super) faults: Faults,
    /// How often PERSISTENT RESERVE OUT is sent, in 1000 turns of an initiator.
    pub(super) orders: u32,
    /// How often COMPARE AND WRITE, UNMAP, VERIFY or WRITE SAME is sent, in 1000 commands.
    pub(super) others: u32,
    /// How often an operation in the state directory fails, in 1000.
    pub(super) directory_fails: u32,
    pub(super) work: Duration,
}

impl Kind {
    pub(super) fn cache(self) -> Cache {
        match self {
            Kind::Memory | Kind::Device => Cache::Device,
            Kind::File(1) => Cache::Pages,
            Kind::File(_) => Cache::Disk,
        }
    }
}

impl Plan {
    pub(super) fn new(seed: u64, rng: &mut Rng) -> Plan {
        let odds = Odds {
            cut: [0, 20, 300][rng.usize(0..3)],
            late: [0, 5, 50][rng.usize(0..3)],
            slow: [0, 2, 20][rng.usize(0..3)],
            short: [0, 20][rng.usize(0..2)],
            pause: [0, 0, 2][rng.usize(0..3)],
        };
        let units = rng.usize(1..=UNITS_MAX);
        let mut kind = || match rng.u32(0..3) {
            0 => Kind::Memory,
            1 => Kind::Device,
            _ => Kind::File([1, 512, GRAIN_BYTES_MAX][rng.usize(0..3)]),
        };
        let mut kinds: Vec<Kind> = (0..units).map(|_| kind()).collect();
        // Only then do cores know their load well enough to move sessions.
        let is_long = rng.u32(0..12) == 0;
        let can_crash = !kinds.contains(&Kind::Memory);
        let chain = chain::draw(seed, &mut kinds);
        let cores_max = chain.as_ref().map_or(usize::MAX, Chain::cores_max);
        let is_chained = chain.is_some();
        let eons = if is_chained { 4 } else { 1 };
        let limited = limits::draw(seed, units).filter(|_| !is_chained);
        let mut plan = Plan {
            limited,
            quarrel: quarrels::draw(seed).filter(|_| !is_chained),
            crashes: if can_crash { rng.u32(0..3) } else { 0 },
            chain,
            kinds,
            cores: rng.usize(1..=4).min(cores_max),
            initiators: transports::draw(seed, rng.usize(1..=5)),
            rogue: rogue::draw(seed),
            guest: None,
            thin: None,
            ethernet: ethernet::draw(seed).filter(|_| !is_chained),
            blocks: [8, 64, 2048][rng.usize(0..3)],
            arena_bytes: [48 << 20, 128 << 20, 128 << 20][rng.usize(0..3)],
            odds,
            slowness: if is_long { 30 } else { 1 },
            moves: [0, 1, 10][rng.usize(0..3)],
            fault_micros: [None, Some(20_000), Some(200_000)][rng.usize(0..3)],
            faults: Faults::draw(rng),
            orders: [0, 0, 5, 50][rng.usize(0..4)],
            others: [0, 20, 200][rng.usize(0..3)],
            directory_fails: [0, 0, 50][rng.usize(0..3)],
            // A session with the second daemon takes its time to recover.
            work: Duration::from_millis(if is_long { rng.u64(2000..5000) } else { rng.u64(20..400) * eons }),
        };
        if !is_chained {
            plan.arena_bytes = plan.arena_bytes.max(ARENA_BYTES_MIN);
        }
        plan.quarrels();
        plan.guest = guest::draw(seed, &plan);
        plan.thin = thin::draw(seed, &plan);
        plan
    }

    /// Adapts the world to its quarrel.
    fn quarrels(&mut self) {
        match self.quarrel {
            Some(Quarrel::Registration) => {
                self.blocks = 8;
                self.ethernet = None;
            }
            Some(Quarrel::Memory) => {
                (self.blocks, self.arena_bytes, self.slowness, self.crashes) = (2048, SCARCE_BYTES, 1, 0);
                self.initiators.fill(Protocol::Iscsi);
                (self.ethernet, self.rogue, self.fault_micros) = (None, None, None);
                (self.faults, self.directory_fails) = (Faults::NONE, 0);
                (self.odds.slow, self.odds.pause) = (0, 0);
                self.work = self.work.min(Duration::from_millis(20));
            }
            Some(Quarrel::Session) => {
                (self.cores, self.crashes, self.odds.pause) = (self.cores.max(2), 5, 10);
                (self.ethernet, self.rogue) = (None, None);
                self.kinds.fill(Kind::File(1));
                self.faults = Faults { sync: 300, ..Faults::NONE };
                self.work = self.work.min(Duration::from_millis(100));
            }
            // The target may see the end of a session before its initiator does.
            Some(Quarrel::Unit) => self.fault_micros = None,
            Some(Quarrel::Block) | None => {}
        }
    }

    /// Whether nothing goes wrong there, and nothing is slow.
    pub(super) fn is_calm(&self) -> bool {
        let Odds { slow, pause, .. } = self.odds;
        let has_others = self.chain.is_some() || self.ethernet.is_some();
        let has_others = has_others || self.rogue.is_some() || self.guest.is_some();
        let fails = self.faults.can_fail() || self.faults.hang > 0 || self.directory_fails > 0;
        !has_others
            && !fails
            && self.fault_micros.is_none()
            && self.limited.is_none()
            && self.crashes + slow + pause == 0
            && self.slowness == 1
    }

    /// Whether all initiators are one, with a session for each path.
    pub(super) fn has_paths(&self) -> bool {
        self.chain.as_ref().is_some_and(Chain::has_paths)
    }

    pub(super) fn config(&self) -> Config {
        let mut text = format!(
            "srp_guid = \"{SRP_GUID:016x}\"\npoll = \"never\"\nlogin_timeout = \"5s\"\nkeep_alive = 5\nstall_timeout = \"10s\"\nstate_dir = \"/state\"\n\n[[portal]]\nlisten = \"{PORTAL}\"\n\
             transports = [\"iscsi\", \"iser\", \"srp\"]\nname = \"main\"\n"
        );
        let mut names = Vec::new();
        for unit in 0..self.kinds.len() {
            let bytes = self.blocks * BLOCK_BYTES;
            let serial = serial(unit);
            text += &format!("\n[[lun]]\nname = \"unit{unit}\"\nram = \"{bytes}\"\nserial = \"{serial}\"\n");
            if let Some(Limited { iops, .. }) = self.limited.filter(|limited| limited.unit == unit) {
                text += &format!("iops_max = {iops}\n");
            }
            if self.ethernet.is_some() {
                text += &format!("aoe = \"{}.{unit}\"\n", ata::SHELF);
            }
            names.push(format!("\"unit{unit}\""));
        }
        text += &format!(
            "\n[[target]]\nname = \"{TARGET}\"\nluns = [{}]\nportals = [\"main\"]\n",
            names.join(", ")
        );
        if self.rogue.is_some() {
            text += &rogue::config_text();
        }
        if self.ethernet.is_some() {
            text += "\n[[aoe]]\ninterface = \"eth0\"\n";
        }
        let config = Config::from_toml(&text, Path::new("sim.toml"));
        let mut config = config.unwrap_or_else(|problems| panic!("{problems}"));
        config.cores = (0..self.cores).collect();
        self.stores_of(&mut config);
        if let Some(lun) = self.thin.and_then(|thin| config.luns.get_mut(thin.unit)) {
            (lun.thin, lun.warn_at) = (true, Some(100));
        }
        for portal in &mut config.portals {
            portal.cores = config.cores.clone();
        }
        for interface in &mut config.aoe {
            interface.cores = config.cores.clone();
        }
        config
    }
}

impl Plan {
    /// Gives cores the stores that were opened here.
    pub(super) fn stores_of(&self, config: &mut Config) {
        for (lun, kind) in config.luns.iter_mut().zip(&self.kinds) {
            if *kind != Kind::Memory {
                lun.store = StoreSpec::File { path: "/disk".into(), size: None };
            }
        }
    }
}

/// The serial number of a unit.
pub(super) fn serial(unit: usize) -> String {
    format!("SIM{unit}")
}
