//! Readings of a unit and of a core: counters, and the current state.

use crate::counters::Counts;
use scsi::reservation::holders::{Holders, Registered};
use std::time::{Duration, Instant};
use wire::scsi::AccessState;

/// Whether a unit's store serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreState {
    /// It does.
    Open,
    /// It has not opened since the unit was added.
    Late,
    /// It did, but has failed.
    Failed,
}

/// A reading of a unit.
#[derive(Clone, Debug)]
pub struct UnitReading {
    /// The LUN's name in the configuration.
    pub name: String,
    /// Commands.
    pub counts: Counts,
    /// Whether its store serves.
    pub state: StoreState,
    /// Why it last did not.
    pub last_error: Option<String>,
    /// Its current serial number: a medium with its own reports that when its store opens.
    pub serial: String,
    /// Its current size; `None`: its store has not opened yet.
    pub size_bytes: Option<u64>,
    /// The space that its store takes, where that is watched.
    pub used_bytes: Option<u64>,
    /// The current WCE bit of its caching mode page.
    pub write_cache: bool,
    /// Whether its threshold is reached; `None`: no `warn_at` is configured.
    pub threshold_reached: Option<bool>,
    /// Its reservation.
    pub reservation: Option<ReservationReading>,
    /// The registered initiators.
    pub registered: Vec<Registered>,
    /// Its target port groups, by tag, and their asymmetric access states.
    pub groups: Vec<(u16, AccessState)>,
    /// This gateway and the others, where several share it.
    pub gateway: Option<GatewayReading>,
}

/// What a gateway knows of a unit that several share.
#[derive(Clone, Debug)]
pub struct GatewayReading {
    /// Its name.
    pub name: String,
    /// Its role for the unit: active, standby or transitioning.
    pub role: &'static str,
    /// The gateway that is active.
    pub active: Option<String>,
    /// All that serve the unit, or did.
    pub gateways: Vec<String>,
    /// The clients that it most recently had the cluster block since it started, and when.
    pub shut_out: Vec<(String, Instant)>,
    /// Why it cannot become or stay active.
    pub fault: Option<String>,
}

/// A reservation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservationReading {
    /// The type of a persistent one, or its kind.
    pub kind: &'static str,
    /// Initiator ports.
    pub holders: Vec<String>,
}

/// A reading of a core, since the daemon started.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CoreReading {
    /// Its number.
    pub core: usize,
    /// How long it worked, or waited for a processor.
    pub busy: Duration,
    /// How long it polled without finding work.
    pub polling: Duration,
    /// How long it slept.
    pub asleep: Duration,
    /// Sessions of targets that it serves.
    pub sessions: usize,
    /// Commands in flight that need a task.
    pub tasks: u64,
    /// Bytes of its I/O buffers in use.
    pub buffer_bytes: u64,
    /// Bytes of its I/O buffers.
    pub buffer_max_bytes: u64,
}

/// Looks up the initiator of a nexus, behind a lock that logins also take.
pub(crate) type Initiators<'a> = &'a dyn Fn(u64) -> Option<String>;

/// The reservation that is in force.
pub(crate) fn reservation(holders: &Holders, initiators: Initiators<'_>) -> Option<ReservationReading> {
    let Holders { persistent, registered, reserved, list } = holders;
    if !list.is_empty() {
        let holders = list.iter().map(ToString::to_string).collect();
        return Some(ReservationReading { kind: "AoE reserve list", holders });
    }
    if let Some(nexus) = reserved {
        let holders = initiators(nexus.0).into_iter().collect();
        return Some(ReservationReading { kind: "RESERVE", holders });
    }
    let holds = registered.iter().filter(|one| one.holds);
    persistent
        .map(|kind| ReservationReading { kind, holders: holds.map(|one| one.initiator.clone()).collect() })
}
