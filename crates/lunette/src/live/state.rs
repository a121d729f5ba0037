//! The published state of the daemon, as JSON.

use config::{
    ByDevice, Config, Group, HugePages, Limits, Lun, PortIds, Portal, PortalGroup, Rate, StoreSpec, Target,
    show_cores,
};
use engine::daemon::UnitSummary;
use proto::iscsi::chap::Algorithm;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// LUNs.
pub(super) fn luns(config: &Config, units: &[UnitSummary]) -> Vec<Value> {
    let unit = |lun: &Lun| units.iter().find(|unit| unit.name == lun.name);
    config.luns.iter().map(|lun| self::lun(lun, unit(lun))).collect()
}

fn lun(lun: &Lun, unit: Option<&UnitSummary>) -> Value {
    let huge_pages = match lun.store {
        StoreSpec::Ram { huge_pages, .. } => Some(match huge_pages {
            HugePages::Auto => "auto",
            HugePages::Always => "always",
            HugePages::Never => "never",
        }),
        StoreSpec::Null { .. }
        | StoreSpec::File { .. }
        | StoreSpec::Block { .. }
        | StoreSpec::Remote { .. }
        | StoreSpec::Nbd { .. }
        | StoreSpec::Rbd { .. } => None,
    };
    let json = json!({
        "name": lun.name,
        "store": lun.store.to_string(),
        "size_bytes": unit.filter(|unit| unit.failed.is_none()).map(|unit| unit.size_bytes),
        "block_bytes": unit.map_or(lun.block_bytes, |unit| unit.block_bytes),
        "physical_block_bytes": lun.physical_block_bytes,
        "serial": unit.map_or(&lun.serial, |unit| &unit.serial),
        "serial_lasts": lun.serial_lasts,
        "product": lun.product,
        "read_only": lun.read_only,
        "write_cache": lun.write_cache,
        "thin": unit.map_or(lun.thin, |unit| unit.thin),
        "warn_at": lun.warn_at.map(|percent| format!("{percent}%")),
        "removable": lun.removable,
        "huge_pages": huge_pages,
        "aoe": lun.aoe.map(|address| address.to_string()),
        "not_opened": unit.and_then(|unit| unit.failed.clone()),
    });
    with_limits(json, lun.limits)
}

/// The same with limits, under their names in the file.
fn with_limits(mut json: Value, limits: Limits) -> Value {
    let mut add = |most: &str, burst: &str, rate: Option<Rate>| {
        json[most] = rate.map(|rate| rate.per_second).into();
        json[burst] = rate.map(|rate| rate.burst).filter(|burst| *burst > 0).into();
    };
    add("iops_max", "iops_burst", limits.iops);
    add("bytes_per_second_max", "bytes_burst", limits.bytes);
    json
}

/// Targets with their groups.
pub(super) fn targets(config: &Config) -> Vec<Value> {
    config.targets.iter().map(|target| self::target(config, target)).collect()
}

fn target(config: &Config, target: &Target) -> Value {
    let portals = target.portals.iter().filter_map(|portal| config.portals.get(*portal));
    json!({
        "name": target.name,
        "alias": target.alias,
        "sessions_max": target.sessions_max,
        "queue_depth": target.queue_depth,
        "portals": portals.map(|portal| portal.listen.to_string()).collect::<Vec<_>>(),
        "luns": numbered(config, &target.luns),
        "groups": target.groups.iter().map(|group| self::group(config, group)).collect::<Vec<_>>(),
    })
}

fn group(config: &Config, group: &Group) -> Value {
    let network = |network: &config::Network| format!("{}/{}", network.address, network.prefix);
    let json = json!({
        "name": group.name,
        "initiators": group.initiators,
        "networks": group.networks.iter().map(network).collect::<Vec<_>>(),
        "deny": group.deny,
        "read_only": group.read_only,
        "queue_depth": group.queue_depth,
        "luns": group.luns.as_ref().map(|luns| numbered(config, luns)),
        "chap": group.chap.as_ref().map(|chap| json!({
            "user": chap.user,
            "mutual_user": chap.mutual.as_ref().map(|(user, _)| user),
            "algorithms": chap.algorithms.iter().map(|algorithm: &Algorithm| algorithm.name()).collect::<Vec<_>>(),
        })),
    });
    with_limits(json, group.limits)
}

fn numbered(config: &Config, luns: &[(u16, usize)]) -> Vec<Value> {
    let named = luns.iter().filter_map(|(number, lun)| Some((number, config.luns.get(*lun)?)));
    named.map(|(number, lun)| json!({ "number": number, "lun": lun.name })).collect()
}

/// Portals with their bound addresses.
pub(super) fn portals(config: &Config, bound: &[SocketAddr]) -> Vec<Value> {
    config.portals.iter().enumerate().map(|(index, portal)| self::portal(portal, bound.get(index))).collect()
}

/// Groups of portals.
pub(super) fn portal_groups(config: &Config) -> Vec<Value> {
    let tags: BTreeSet<u16> = config.portals.iter().map(|portal| portal.group).collect();
    tags.into_iter().map(|tag| portal_group(config, tag)).collect()
}

fn portal_group(config: &Config, tag: u16) -> Value {
    let PortalGroup { state, preferred, explicit, port_ids, .. } = config.portal_group(tag);
    let portals = config.portals.iter().filter(|portal| portal.group == tag);
    let PortIds { first, last } = port_ids;
    json!({
        "name": tag.to_string(),
        "group": tag,
        "state": state.name(),
        "preferred": preferred,
        "explicit": explicit,
        "port_ids": (port_ids != PortIds::ALL).then(|| format!("{first}-{last}")),
        "portals": portals.map(|portal| portal.listen.to_string()).collect::<Vec<_>>(),
    })
}

fn portal(portal: &Portal, bound: Option<&SocketAddr>) -> Value {
    let transports = [
        ("iscsi", portal.transports.iscsi),
        ("iser", portal.transports.iser),
        ("srp", portal.transports.srp),
    ];
    let names: Vec<&str> = transports.into_iter().filter_map(|(name, is)| is.then_some(name)).collect();
    json!({
        "name": portal.name.clone().unwrap_or_else(|| portal.listen.to_string()),
        "listen": portal.listen.to_string(),
        "address": bound.unwrap_or(&portal.listen).to_string(),
        "group": portal.group,
        "cores": show_cores(&portal.cores),
        "transports": names,
        "rdma": match portal.rdma {
            ByDevice::No => json!(false),
            ByDevice::Too => json!(true),
            ByDevice::Only => json!("only"),
        },
        "drain_s": portal.drain.map(|within| within.as_secs_f64()),
        "redirect": portal.redirect.map(|address| address.to_string()),
    })
}
