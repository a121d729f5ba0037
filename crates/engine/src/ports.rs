//! SCSI target ports: one for each protocol in each portal group of a target. iSCSI over TCP and iSER are one protocol
//! here, and so are all channels of SRP.

use crate::access::{srp_port, srp_target};
use crate::config::Config;
use scsi::unit::{Port, Protocol};

/// Relative target port identifier of a target that is reached through a portal, by SRP or by iSCSI.
pub(crate) fn relative_port(config: &Config, target: usize, portal: usize, is_srp: bool) -> u16 {
    let group = config.portals[portal].group;
    let is_it = |(index, port): &&(usize, Port)| {
        *index == target && port.group == group && matches!(port.protocol, Protocol::Srp { .. }) == is_srp
    };
    all(config).iter().find(is_it).map_or(NO_PORT, |(_, port)| port.relative_id)
}

/// The identifier of no port: AoE has none (SPC-4 section 7.8.6.7 counts from 1).
pub(crate) const NO_PORT: u16 = 0;

/// The target ports through which a LUN is reached, in the order of their identifiers.
pub(crate) fn ports_of(config: &Config, lun: usize) -> Vec<Port> {
    let serves = |target: usize| {
        let target = &config.targets[target];
        let own = target.luns.iter().any(|(_, index)| *index == lun);
        let mut grouped = target.groups.iter().filter_map(|group| group.luns.as_ref()).flatten();
        own || grouped.any(|(_, index)| *index == lun)
    };
    let mut ports: Vec<Port> =
        all(config).into_iter().filter(|(target, _)| serves(*target)).map(|(_, port)| port).collect();
    ports.sort_by_key(|port| port.relative_id);
    ports
}

/// All target ports, each with the index of its target. A port's identifier comes from its name, so that it stays when
/// others come and go: initiators know paths by it, and reservations are kept by it.
fn all(config: &Config) -> Vec<(usize, Port)> {
    let mut ports = Vec::new();
    for (index, target) in config.targets.iter().enumerate() {
        for portal in &target.portals {
            let (group, transports) = (config.portals[*portal].group, config.portals[*portal].transports);
            let device = &target.name;
            if transports.any_iscsi() {
                ports
                    .push((index, port(format!("{device},t,0x{group:04x}"), group, device, Protocol::Iscsi)));
            }
            if transports.srp && srp_target(config, *portal) == Some(index) {
                let identifier = srp_port(config.srp_guid.unwrap_or_default());
                let name = format!("{device},srp,0x{group:04x}");
                ports.push((index, port(name, group, device, Protocol::Srp { identifier })));
            }
        }
    }
    ports.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    ports.dedup_by(|(_, one), (_, other)| one.name == other.name);
    number(&mut ports);
    ports
}

fn port(name: String, group: u16, device: &str, protocol: Protocol) -> Port {
    Port { relative_id: NO_PORT, group, name, device: device.to_owned(), protocol }
}

/// Gives each port the number that its name hashes to, or the next free one.
fn number(ports: &mut [(usize, Port)]) {
    let mut taken = std::collections::BTreeSet::new();
    for (_, port) in ports {
        // FNV-1a of 32 bits, folded, which must stay as it is for ever.
        let hash = port
            .name
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let mut id = (hash >> 16) as u16 ^ hash as u16;
        while id == NO_PORT || !taken.insert(id) {
            id = id.wrapping_add(1);
        }
        port.relative_id = id;
    }
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
        let text = PORTALS.to_owned() + &targets.iter().map(target).collect::<String>();
        Config::from_toml(&text, Path::new("lunette.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn named(config: &Config) -> Vec<(String, u16)> {
        let mut ports: Vec<_> =
            ports_of(config, 0).into_iter().map(|port| (port.name, port.relative_id)).collect();
        ports.sort();
        ports
    }

    #[test]
    fn each_protocol_of_a_group_is_a_port_of_its_own() {
        let config = config(&["disk"]);
        let names: Vec<String> = named(&config).into_iter().map(|(name, _)| name).collect();
        let suffixes = [",srp,0x0001", ",t,0x0001", ",t,0x0002"];
        assert_eq!(names, suffixes.map(|suffix| format!("iqn.2026-11.a:disk{suffix}")));
        let ports = [(0, false), (1, false), (2, false), (3, false), (3, true)]
            .map(|(portal, is_srp)| relative_port(&config, 0, portal, is_srp));
        assert!(ports[0] == ports[1] && ports[0] == ports[3], "one group");
        assert!(ports[0] != ports[2] && ports[0] != ports[4] && ports[2] != ports[4], "{ports:?}");
        assert!(ports.iter().all(|port| *port != NO_PORT));
        let guid = 0x0123_4567_89ab_cdef_u64.to_be_bytes();
        let srp = ports_of(&config, 0).into_iter().find(|port| port.relative_id == ports[4]).expect("a port");
        assert_eq!(srp.protocol, Protocol::Srp { identifier: [guid, guid].concat().try_into().unwrap() });
    }

    #[test]
    fn a_port_keeps_its_number_when_targets_come_and_go() {
        let alone = named(&config(&["disk"]));
        let among = named(&config(&["a", "disk", "z"]));
        assert!(alone.iter().filter(|(name, _)| name.contains(",t,")).all(|port| among.contains(port)));
        let first = ("iqn.2026-11.a:disk,t,0x0001".to_owned(), 39092);
        assert!(alone.contains(&first), "the numbers must stay for ever: {alone:?}");
    }

    #[test]
    fn names_of_one_hash_have_different_numbers() {
        let mut ports: Vec<_> =
            (0..3).map(|index| (index, port("same".into(), 1, "device", Protocol::Iscsi))).collect();
        number(&mut ports);
        let ids: Vec<u16> = ports.iter().map(|(_, port)| port.relative_id).collect();
        assert_eq!(ids, [ids[0], ids[0] + 1, ids[0] + 2]);
    }
}
