//! The daemon's counters, as JSON.

use super::tally::Tally;
use super::{metrics, sessions};
use admin::{Format, Refused};
use engine::{
    CoreReading, Counts, Failure, GatewayReading, Meters, Moved, ReservationReading, StoreState, UnitReading,
    bound_us,
};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::SenseKey;
use wire::scsi::AccessState;

/// A daemon's counters, for clients of the admin interface.
pub(crate) struct Readings {
    pub(crate) meters: Meters,
    pub(crate) sessions: engine::Sessions,
    pub(crate) tally: Arc<Tally>,
}

impl admin::Readings for Readings {
    fn luns(&self, names: &BTreeSet<&str>) -> BTreeMap<String, Map<String, Value>> {
        let named = |unit: UnitReading| (unit.name.clone(), lun(&unit));
        self.meters.units_that(|name| names.contains(name)).into_iter().map(named).collect()
    }

    fn cores(&self) -> Value {
        self.meters.cores().iter().map(core).collect()
    }

    fn metrics(&self, format: Format, with_sessions: bool) -> Result<String, Refused> {
        let sessions = if with_sessions { self.sessions.list() } else { Ok(Vec::new()) };
        let sessions = sessions.map_err(|error| sessions::why(error, 0))?;
        Ok(metrics::text(&self.meters, &self.tally, sessions, format))
    }
}

fn lun(unit: &UnitReading) -> Map<String, Value> {
    let registrations = unit.registered.iter().map(|one| {
        json!({
            "initiator": one.initiator,
            "target_port": one.target_port,
            "key": format!("{:#018x}", one.key),
            "holds": one.holds,
        })
    });
    let json = json!({
        "stats": stats(&unit.counts),
        "state": state(unit.state),
        "last_error": unit.last_error,
        "serial": unit.serial,
        "size_bytes": unit.size_bytes,
        "used_bytes": unit.used_bytes,
        "connections": unit.connections,
        "write_cache_enabled": unit.write_cache,
        "threshold_reached": unit.threshold_reached,
        "reservation": unit.reservation.as_ref().map(reservation),
        "registrations": registrations.collect::<Vec<_>>(),
        "port_groups": unit.groups.iter().map(port_group).collect::<Vec<_>>(),
        "gateway": unit.gateway.as_ref().map(gateway),
    });
    match json {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

pub(super) fn state(state: StoreState) -> &'static str {
    match state {
        StoreState::Open => "open",
        StoreState::Late => "late",
        StoreState::Failed => "failed",
    }
}

fn reservation(ReservationReading { kind, holders }: &ReservationReading) -> Value {
    json!({ "type": kind, "holders": holders })
}

fn gateway(gateway: &GatewayReading) -> Value {
    let shut_out = gateway
        .shut_out
        .iter()
        .map(|(client, at)| json!({ "client": client, "age_seconds": at.elapsed().as_secs() }));
    json!({
        "name": gateway.name,
        "role": gateway.role,
        "active": gateway.active,
        "serving": gateway.serving,
        "gateways": gateway.gateways,
        "shut_out": shut_out.collect::<Vec<_>>(),
        "fault": gateway.fault,
    })
}

fn port_group((group, state): &(u16, AccessState)) -> Value {
    json!({ "group": group, "state": state.name() })
}

fn core(core: &CoreReading) -> Value {
    json!({
        "core": core.core,
        "busy_s": core.busy.as_secs_f64(),
        "polling_s": core.polling.as_secs_f64(),
        "asleep_s": core.asleep.as_secs_f64(),
        "sessions": core.sessions,
        "tasks": core.tasks,
        "buffers_bytes": core.buffer_bytes,
        "buffers_max_bytes": core.buffer_max_bytes,
    })
}

/// Commands that have ended, of a LUN or a session.
pub(super) fn stats(counts: &Counts) -> Value {
    let errors: Map<String, Value> =
        counts.errors().map(|(failure, count)| (name(failure).to_owned(), count.into())).collect();
    json!({
        "read": moved(&counts.read),
        "write": moved(&counts.write),
        "other": { "commands": counts.other },
        "errors": errors,
    })
}

fn moved(moved: &Moved) -> Value {
    // Two lists, since a list of objects took three times the memory while an answer is built.
    let bounds: Vec<Value> = (0..moved.buckets.len()).map(|bucket| bound_us(bucket).into()).collect();
    let count_to = |all: &mut u64, more: &u64| {
        *all += more;
        Some(Value::from(*all))
    };
    let counts: Vec<Value> = moved.buckets.iter().scan(0, count_to).collect();
    json!({
        "commands": moved.commands(),
        "bytes": moved.bytes,
        "latency": { "sum_us": moved.nanos as f64 / 1e3, "le_us": bounds, "counts": counts },
    })
}

/// Why commands failed.
pub(super) fn name(failure: Failure) -> &'static str {
    match failure {
        Failure::Sense(key) => sense_key(key),
        Failure::Busy => "busy",
        Failure::ReservationConflict => "reservation_conflict",
        Failure::TaskSetFull => "task_set_full",
        Failure::Aborted => "aborted",
    }
}

/// Names from SPC-4 table 43.
fn sense_key(key: SenseKey) -> &'static str {
    match key {
        SenseKey::NoSense => "no_sense",
        SenseKey::RecoveredError => "recovered_error",
        SenseKey::NotReady => "not_ready",
        SenseKey::MediumError => "medium_error",
        SenseKey::HardwareError => "hardware_error",
        SenseKey::IllegalRequest => "illegal_request",
        SenseKey::UnitAttention => "unit_attention",
        SenseKey::DataProtect => "data_protect",
        SenseKey::BlankCheck => "blank_check",
        SenseKey::CopyAborted => "copy_aborted",
        SenseKey::AbortedCommand => "aborted_command",
        SenseKey::VolumeOverflow => "volume_overflow",
        SenseKey::Miscompare => "miscompare",
        SenseKey::Completed => "completed",
    }
}
