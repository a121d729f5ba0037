//! SCSI target ports: one for each protocol in each portal group of a target. iSCSI over TCP and iSER are one protocol
//! here, and so are all channels of SRP.

use config::names::srp_port;
use config::{Config, PortIds, TargetPort};
use scsi::unit::{Port, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The identifier of no port, which AoE has (SPC-4 section 7.8.6.7 counts from 1).
pub(crate) const NO_PORT: u16 = 0;

/// All target ports.
pub(crate) struct Ports {
    /// By the index of their target.
    of_targets: BTreeMap<usize, Vec<Port>>,
    /// The targets that include each LUN, for whatever group.
    targets_of_luns: Vec<Vec<usize>>,
}

impl Ports {
    /// The ports of a configuration. A port's identifier is derived from its name, so that it stays the same
    /// when others are added or removed: initiators know paths by it, and reservations are saved by it. Ports
    /// that existed before keep theirs in any case.
    pub(crate) fn of(config: &Config, before: Option<&Ports>) -> Ports {
        let mut all = named(config);
        let earlier = before.into_iter().flat_map(|ports| ports.of_targets.values().flatten());
        let earlier = earlier.map(|port| (port.name.as_str(), port.relative_id)).collect();
        number(&mut all, &earlier, |group| config.portal_group(group).port_ids);
        let mut of_targets: BTreeMap<usize, Vec<Port>> = BTreeMap::new();
        all.into_iter().for_each(|(target, port)| of_targets.entry(target).or_default().push(port));
        let mut targets_of_luns = vec![Vec::new(); config.luns.len()];
        for (index, target) in config.targets.iter().enumerate() {
            let grouped = target.groups.iter().filter_map(|group| group.luns.as_ref()).flatten();
            let served: BTreeSet<usize> = target.luns.iter().chain(grouped).map(|(_, lun)| *lun).collect();
            served.into_iter().for_each(|lun| targets_of_luns[lun].push(index));
        }
        Ports { of_targets, targets_of_luns }
    }

    /// Relative target port identifier of a target reached through a portal group over SRP or iSCSI.
    pub(crate) fn relative_id(&self, target: usize, group: u16, is_srp: bool) -> u16 {
        let is_it =
            |port: &&Port| port.group == group && matches!(port.protocol, Protocol::Srp { .. }) == is_srp;
        self.of_targets
            .get(&target)
            .and_then(|ports| ports.iter().find(is_it))
            .map_or(NO_PORT, |port| port.relative_id)
    }

    /// The ports of a target.
    pub(crate) fn of_target(&self, target: usize) -> &[Port] {
        self.of_targets.get(&target).map_or(&[], Vec::as_slice)
    }

    /// The targets that include a LUN, for whatever group.
    pub(crate) fn targets_of(&self, lun: usize) -> &[usize] {
        &self.targets_of_luns[lun]
    }

    /// The ports through which each LUN is reached, in the order of their identifiers.
    pub(crate) fn of_luns(&self) -> Vec<Vec<Port>> {
        let of = |targets: &Vec<usize>| {
            let mut ports: Vec<Port> = self.of_these(targets.iter().copied()).cloned().collect();
            ports.sort_by_key(|port| port.relative_id);
            ports
        };
        self.targets_of_luns.iter().map(of).collect()
    }

    /// The ports of a LUN's targets that do not show it to an initiator, by their identifiers, in ascending order.
    pub(crate) fn hidden(&self, config: &Config, lun: usize, initiator: &str, from: IpAddr) -> Vec<u16> {
        let is_shown = |target: &usize| {
            let target = &config.targets[*target];
            let group = target.group_of(initiator, from);
            let luns = group.and_then(|group| group.luns.as_ref()).unwrap_or(&target.luns);
            let is_admitted = group.map_or(target.groups.is_empty(), |group| !group.deny);
            is_admitted && luns.iter().any(|(_, shown)| *shown == lun)
        };
        let hidden = self.targets_of_luns[lun].iter().filter(|target| !is_shown(target));
        let mut ids: Vec<u16> = self.of_these(hidden.copied()).map(|port| port.relative_id).collect();
        ids.sort_unstable();
        ids
    }

    /// The ports of these targets.
    fn of_these(&self, targets: impl Iterator<Item = usize>) -> impl Iterator<Item = &Port> {
        targets.filter_map(|target| self.of_targets.get(&target)).flatten()
    }
}

/// All of them, without their identifiers, in the order of their names.
fn named(config: &Config) -> Vec<(usize, Port)> {
    let name = |made: TargetPort| {
        let TargetPort { target, group, is_srp } = made;
        let device = &config.targets[target].name;
        let port = if is_srp {
            let identifier = srp_port(config.srp_guid.unwrap_or_default());
            port(format!("{device},srp,0x{group:04x}"), group, device, Protocol::Srp { identifier })
        } else {
            port(format!("{device},t,0x{group:04x}"), group, device, Protocol::Iscsi)
        };
        (target, port)
    };
    let mut ports: Vec<(usize, Port)> = config.target_ports().into_iter().map(name).collect();
    ports.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    ports
}

fn port(name: String, group: u16, device: &str, protocol: Protocol) -> Port {
    Port { relative_id: NO_PORT, group, name, device: device.to_owned(), protocol }
}

/// Gives each port the number that its name hashes to among those of its group, or the next free one. There
/// must be no more ports than numbers.
fn number(ports: &mut [(usize, Port)], earlier: &BTreeMap<&str, u16>, of_group: impl Fn(u16) -> PortIds) {
    let mut taken = BTreeSet::new();
    for (_, port) in &mut *ports {
        port.relative_id = earlier.get(port.name.as_str()).copied().unwrap_or(NO_PORT);
        taken.insert(port.relative_id);
    }
    // Ports that may have any number come last.
    let mut unnumbered: Vec<&mut Port> =
        ports.iter_mut().map(|(_, port)| port).filter(|port| port.relative_id == NO_PORT).collect();
    unnumbered.sort_by_key(|port| of_group(port.group) == PortIds::ALL);
    for port in unnumbered {
        // FNV-1a of 32 bits, folded. It must never change.
        let hash = port
            .name
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let hash = (hash >> 16) as u16 ^ hash as u16;
        // Ports that keep their numbers may use some of a new range.
        let mut ids = from_hash(of_group(port.group), hash).chain(from_hash(PortIds::ALL, hash));
        let id = ids.find(|id| taken.insert(*id)).expect("there are numbers enough");
        port.relative_id = id;
    }
}

/// These numbers, starting with the one that a hash selects.
fn from_hash(ids: PortIds, hash: u16) -> impl Iterator<Item = u16> {
    let PortIds { first, last } = ids;
    let count = u32::from(last - first) + 1;
    let is_one = (first..=last).contains(&hash);
    let start = if is_one { u32::from(hash - first) } else { u32::from(hash) % count };
    (0..count).map(move |number| first + ((start + number) % count) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const PORTALS: &str = "
        srp_guid = '0123456789abcdef'
        portal = [
            { listen = '192.0.2.1:1' },
            { listen = '192.0.2.2:1' },
            { listen = '192.0.2.3:1', group = 2 },
            { listen = '192.0.2.4:1', transports = ['iscsi', 'srp'] },
        ]
        lun = [{ ram = '1M', name = 'disk' }]";

    fn config(targets: &[&str]) -> Config {
        let target = |name: &&str| format!("\n[[target]]\nname = 'iqn.2026-11.a:{name}'\nluns = ['disk']");
        parsed(&targets.iter().map(target).collect::<String>())
    }

    fn parsed(targets: &str) -> Config {
        let text = PORTALS.to_owned() + targets;
        Config::from_toml(&text, Path::new("lunette.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn ports_of(config: &Config) -> Vec<Port> {
        Ports::of(config, None).of_luns().remove(0)
    }

    fn numbers(config: &Config) -> Vec<(String, u16)> {
        let mut ports: Vec<_> =
            ports_of(config).into_iter().map(|port| (port.name, port.relative_id)).collect();
        ports.sort();
        ports
    }

    #[test]
    fn each_protocol_of_a_group_is_a_port_of_its_own() {
        let config = config(&["disk"]);
        let names: Vec<String> = numbers(&config).into_iter().map(|(name, _)| name).collect();
        let suffixes = [",srp,0x0001", ",t,0x0001", ",t,0x0002"];
        assert_eq!(names, suffixes.map(|suffix| format!("iqn.2026-11.a:disk{suffix}")));
        let ports = [(0, false), (1, false), (2, false), (3, false), (3, true)].map(|(portal, is_srp)| {
            Ports::of(&config, None).relative_id(0, config.portals[portal].group, is_srp)
        });
        assert!(ports[0] == ports[1] && ports[0] == ports[3], "one group");
        assert!(ports[0] != ports[2] && ports[0] != ports[4] && ports[2] != ports[4], "{ports:?}");
        assert!(ports.iter().all(|port| *port != NO_PORT));
        let guid = 0x0123_4567_89ab_cdef_u64.to_be_bytes();
        let srp = ports_of(&config).into_iter().find(|port| port.relative_id == ports[4]).expect("a port");
        assert_eq!(srp.protocol, Protocol::Srp { identifier: [guid, guid].concat().try_into().unwrap() });
    }

    #[test]
    fn a_port_keeps_its_number_when_targets_come_and_go() {
        let alone = numbers(&config(&["disk"]));
        let among = numbers(&config(&["a", "disk", "z"]));
        assert!(alone.iter().filter(|(name, _)| name.contains(",t,")).all(|port| among.contains(port)));
        let first = ("iqn.2026-11.a:disk,t,0x0001".to_owned(), 39092);
        assert!(alone.contains(&first), "the numbers must stay forever: {alone:?}");
    }

    #[test]
    fn ports_of_targets_that_do_not_show_the_lun_are_hidden() {
        let target = |(name, rule): (&str, &str)| {
            let group = format!("group = [{{ name = 'g', initiators = ['*:host']{rule} }}]");
            format!("\n[[target]]\nname = 'iqn.2026-11.a:{name}'\nluns = ['disk']\n{group}")
        };
        let rules = [("shown", ", read_only = true"), ("denied", ", deny = true"), ("empty", ", luns = []")];
        let open = "\n[[target]]\nname = 'iqn.2026-11.a:open'\nluns = ['disk']".to_owned();
        let config = parsed(&(open + &rules.map(target).concat()));
        let seen = |initiator: &str| {
            let ports = Ports::of(&config, None);
            let hidden = ports.hidden(&config, 0, initiator, IpAddr::from([192, 0, 2, 9]));
            let mut names: Vec<String> = ports.of_luns()[0]
                .iter()
                .filter(|port| !hidden.contains(&port.relative_id))
                .map(|port| port.device.rsplit_once(':').unwrap_or_default().1.to_owned())
                .collect();
            names.sort();
            names.dedup();
            names
        };
        assert_eq!(seen("iqn.2026-11.a:host"), ["open", "shown"]);
        assert_eq!(seen("iqn.2026-11.a:stranger"), ["open"]);
    }

    #[test]
    fn gateways_with_ranges_of_their_own_have_no_number_in_common() {
        let gateway = |tag: u16, ids: &str| {
            let group = format!("\n[[portal_group]]\ngroup = {tag}\nport_ids = '{ids}'");
            let targets =
                (0..8).map(|n| format!("\n[[target]]\nname = 'iqn.2026-11.a:{n}'\nluns = ['disk']"));
            let portals = PORTALS.replace("group = 2", &format!("group = {tag}"));
            let text = portals + &targets.collect::<String>() + &group;
            let config = Config::from_toml(&text, Path::new("lunette.toml"));
            let config = config.unwrap_or_else(|problems| panic!("{problems}"));
            let ports = ports_of(&config).into_iter().filter(|port| port.group == tag);
            ports.map(|port| port.relative_id).collect::<Vec<u16>>()
        };
        let (one, other) = (gateway(2, "100-107"), gateway(3, "200-299"));
        assert_eq!(one, (100..108).collect::<Vec<u16>>());
        assert!(other.len() == 8 && other.iter().all(|id| (200..300).contains(id)), "{other:?}");
    }

    #[test]
    fn names_of_one_hash_have_different_numbers() {
        let mut ports: Vec<_> =
            (0..3).map(|index| (index, port("same".into(), 1, "device", Protocol::Iscsi))).collect();
        number(&mut ports, &BTreeMap::new(), |_| PortIds::ALL);
        let ids: Vec<u16> = ports.iter().map(|(_, port)| port.relative_id).collect();
        assert_eq!(ids, [ids[0], ids[0] + 1, ids[0] + 2]);
    }
}
