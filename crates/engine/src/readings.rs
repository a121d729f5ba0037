//! Readings of a unit and of a core: counters, and the current state.

use crate::counters::Counts;
use scsi::reservation::holders::{Holders, Registered};
use std::time::{Duration, Instant};
use wire::scsi::AccessState;

/// The state of a unit's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreState {
    /// It is serving.
    Open,
    /// It has not been opened since the unit was added.
    Late,
    /// It was serving, but has failed.
    Failed,
}

/// A reading of a unit.
#[derive(Clone, Debug)]
pub struct UnitReading {
    /// The LUN's name in the configuration.
    pub name: String,
    /// Its commands.
    pub counts: Counts,
    /// The state of its store.
    pub state: StoreState,
    /// Why it last failed to serve.
    pub last_error: Option<String>,
    /// Its current serial number: a medium with its own reports that once its store is open.
    pub serial: String,
    /// Its current size; `None`: its store has not opened yet.
    pub size_bytes: Option<u64>,
    /// The space used by its store, if watched.
    pub used_bytes: Option<u64>,
    /// How many connections to its store's server are open, if that is an NBD server.
    pub connections: Option<usize>,
    /// The current WCE bit of its caching mode page.
    pub write_cache: bool,
    /// Whether its threshold is exceeded; `None`: no `warn_at` is configured.
    pub threshold_reached: Option<bool>,
    /// Its reservation.
    pub reservation: Option<ReservationReading>,
    /// The registered initiators.
    pub registered: Vec<Registered>,
    /// Its target port groups, by tag, and their asymmetric access states.
    pub groups: Vec<(u16, AccessState)>,
    /// This gateway and the others, if several share it.
    pub gateway: Option<GatewayReading>,
}

/// What a gateway knows about a unit that several share.
#[derive(Clone, Debug)]
pub struct GatewayReading {
    /// Its name.
    pub name: String,
    /// Its role for the unit: active, standby or transitioning.
    pub role: &'static str,
    /// The active gateway; where all are, the one that executes what changes the unit.
    pub active: Option<String>,
    /// The gateways that access the medium.
    pub serving: Vec<String>,
    /// All gateways that serve the unit, or did.
    pub gateways: Vec<String>,
    /// The clients most recently fenced by it since it started, and when.
    pub shut_out: Vec<(String, Instant)>,
    /// Why it cannot become or stay active, if so.
    pub fault: Option<String>,
}

/// A reservation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservationReading {
    /// The type of a persistent reservation, or the kind.
    pub kind: &'static str,
    /// Initiator ports.
    pub holders: Vec<String>,
}

/// A reading of a core, since the daemon started.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CoreReading {
    /// Its number.
    pub core: usize,
    /// How long it was working, or waiting for a processor.
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
    /// Total bytes of its I/O buffers.
    pub buffer_max_bytes: u64,
}

/// Looks up the initiator of a nexus, behind a lock that logins also take.
pub(crate) type Initiators<'a> = &'a dyn Fn(u64) -> Option<String>;

/// The reservation in force.
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
