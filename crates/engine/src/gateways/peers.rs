//! What gateways know of each other by the object of the unit that they share: ports and their states, and when
//! they wait for each other.

use cluster::{Access, Port, Record};
use scsi::unit::OtherPort;
use std::collections::BTreeSet;
use wire::scsi::AccessState;

/// Whether other gateways wait for this change, or their initiators see it.
pub(super) fn concerns_others(before: &Record, after: &Record) -> bool {
    let is_released = after.active.is_none() && before.active.is_some();
    let has_new_ports = before.gateways != after.gateways;
    let exchanged = |record: &Record| (record.requests.clone(), record.replies.clone());
    // All but signs of life.
    let accesses = |record: &Record| {
        let serving = record.serving.iter();
        let serving = serving.map(|(name, one)| (name.clone(), one.client.clone(), one.applied, one.fences));
        (record.change, record.fences, record.fence.clone(), record.is_waiting, serving.collect::<Vec<_>>())
    };
    let is_known = before.next == after.next
        && before.saved == after.saved
        && exchanged(before) == exchanged(after)
        && accesses(before) == accesses(after);
    is_released || has_new_ports || !is_known
}

/// The gateways that access the medium.
pub(super) fn serving(record: &Record) -> BTreeSet<&str> {
    let active = record.active.iter().map(|holder| holder.gateway.as_str());
    record.serving.keys().map(String::as_str).chain(active).collect()
}

/// The ports of other gateways, and their states.
pub(super) fn others(record: &Record, access: Access, gateway: &str, ours: &[Port]) -> Vec<OtherPort> {
    let serving = serving(record);
    // One that serves alone begins when the clients before it are fenced.
    let is_beginning = access == Access::One && !record.fence.is_empty();
    let state = |name: &str, port: &Port| match serving.contains(name) {
        true if is_beginning => AccessState::Transitioning,
        true => AccessState::of_code(port.state).unwrap_or_default(),
        false => AccessState::Standby,
    };
    let others = record.gateways.iter().filter(|(name, _)| *name != gateway);
    let ports = others.flat_map(|(name, ports)| ports.iter().map(move |port| (name, port)));
    // Until a reload undoes the clash.
    let ports = ports.filter(|(_, port)| ours.iter().all(|ours| ours.id != port.id));
    let other = |(name, port): (&String, &Port)| OtherPort {
        relative_id: port.id,
        group: port.group,
        name: port.name.clone(),
        state: state(name, port),
    };
    ports.map(other).collect()
}

/// A unit's ports on this gateway.
pub(super) fn ports(unit: &scsi::Unit) -> Vec<Port> {
    ports_of(&unit.ports, &unit.groups)
}

/// These ports, which are active/optimized unless their groups say otherwise.
pub(super) fn ports_of(ports: &[scsi::unit::Port], groups: &[scsi::PortGroup]) -> Vec<Port> {
    let port = |port: &scsi::unit::Port| {
        let group = groups.iter().find(|group| group.tag == port.group);
        let state = group.map_or(AccessState::Optimized, |group| group.state);
        Port { id: port.relative_id, group: port.group, name: port.name.clone(), state: state.code() }
    };
    ports.iter().map(port).collect()
}

/// The identifier of another gateway's port, by its name, unless a port here has the same identifier.
pub(super) fn port_id(record: &Record, ours: &[Port], name: &str) -> Option<u16> {
    let port = record.gateways.values().flatten().find(|port| port.name == name)?;
    let is_ours = ours.iter().any(|ours| ours.id == port.id);
    (!is_ours).then_some(port.id)
}
