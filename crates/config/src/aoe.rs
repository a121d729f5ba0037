//! ATA over Ethernet: the interfaces that serve it, and the units' addresses.

use super::checks::{cores, limit, required, unique};
use super::model::{AOE_INTERFACES_MAX, AoeInterface, Lun};
use super::problems::{Collector, Fault};
use super::raw::*;
use std::collections::{BTreeMap, BTreeSet};
use wire::aoe::{Address, Mac};

/// Longest interface name in bytes (IFNAMSIZ, less the terminating zero).
const INTERFACE_NAME_MAX: usize = 15;
/// Most addresses in a list.
const MACS_MAX: usize = 4096;

/// The only block size that initiators support (AoEr11 section 3).
const BLOCK_BYTES: u32 = 512;

impl Lun {
    /// Its address, if it is exported over AoE. The block size of a remote unit is known only once it is
    /// open.
    pub fn export(&self) -> Option<Address> {
        self.aoe.filter(|_| self.block_bytes == BLOCK_BYTES)
    }
}

/// All interfaces.
pub(super) fn interfaces(
    raw: &[RawAoe],
    usable: &[usize],
    problems: &mut Collector<'_>,
) -> Option<Vec<AoeInterface>> {
    limit(raw.iter().map(|interface| &interface.place), AOE_INTERFACES_MAX, problems);
    let mut names = BTreeMap::new();
    let mut interfaces = Vec::new();
    for raw in raw {
        let name = required(&raw.interface, &raw.place, "interface", problems).and_then(|at| {
            let name = problems.check(&at.place, interface_name(&at.value))?;
            unique(&mut names, name.clone(), &at.place, "interface", problems);
            Some(name)
        });
        let cores = cores(&raw.cores, usable, problems);
        let (allow, deny) = (macs(&raw.allow, problems), macs(&raw.deny, problems));
        let lists = allow.zip(deny);
        interfaces.push(name.zip(cores).zip(lists).map(|((name, cores), (allow, deny))| AoeInterface {
            name,
            cores,
            allow,
            deny,
        }));
    }
    interfaces.into_iter().collect()
}

/// A unit's address: `Some(None)` if it is not exported over AoE.
pub(super) fn address(raw: &RawLun, problems: &mut Collector<'_>) -> Option<Option<Address>> {
    let Some(at) = &raw.aoe else { return Some(None) };
    let parsed = at.value.parse::<Address>().ok().filter(|address| !address.is_broadcast());
    let fault = || {
        Fault::new(
            format!("`{}` is not an AoE address", at.value),
            "write SHELF.SLOT, such as 1.2, with a shelf from 0 to 65534 and a slot from 0 to 254",
        )
    };
    problems.check(&at.place, parsed.ok_or_else(fault)).map(Some)
}

/// Checks what interfaces and units must agree on.
pub(super) fn check(raw: &Raw, luns: &[Lun], problems: &mut Collector<'_>) {
    let mut addresses = BTreeMap::new();
    let exported = raw.luns.iter().zip(luns).filter_map(|(raw, lun)| Some((raw.aoe.as_ref()?, lun)));
    for (at, lun) in exported {
        if let Some(address) = lun.aoe {
            unique(&mut addresses, address, &at.place, "AoE address", problems);
        }
        if lun.block_bytes != BLOCK_BYTES {
            let fix = "AoE has 512-byte blocks only: leave out the block size, or the AoE address";
            problems.add(&at.place, Fault::new(format!("the LUN has {}-byte blocks", lun.block_bytes), fix));
        }
        if raw.aoe.is_empty() {
            let fix = "add --aoe IFACE, or an [[aoe]] table in the file";
            problems.add(&at.place, Fault::new("no interface serves AoE", fix));
        }
    }
    if let Some(interface) = raw.aoe.first()
        && raw.luns.iter().all(|lun| lun.aoe.is_none())
    {
        let fix = "give a LUN an AoE address: aoe=1.1 after --lun, aoe = \"1.1\" in the file";
        problems.add(&interface.place, Fault::new("no unit is served over AoE", fix));
    }
}

fn interface_name(name: &str) -> Result<String, Fault> {
    let is_odd = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    match name {
        "" | "." | ".." => {}
        _ if name.len() <= INTERFACE_NAME_MAX && !name.contains(is_odd) => return Ok(name.to_owned()),
        _ => {}
    }
    let fix = "use a name that `ip link` shows, such as eth0";
    Err(Fault::new(format!("`{name}` is not the name of a network interface"), fix))
}

fn macs(raw: &Option<Vec<At<String>>>, problems: &mut Collector<'_>) -> Option<BTreeSet<Mac>> {
    let list = raw.as_deref().unwrap_or_default();
    limit(list.iter().map(|at| &at.place), MACS_MAX, problems);
    let mac = |at: &At<String>| {
        let fault = || {
            let fix = "write six bytes in hexadecimal, such as 52:54:00:12:34:56";
            Fault::new(format!("`{}` is not an Ethernet address", at.value), fix)
        };
        problems.check(&at.place, at.value.parse::<Mac>().map_err(|_| fault()))
    };
    list.iter().map(mac).collect::<Vec<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use std::path::Path;

    const TARGET: &str = "[[target]]\nname = 'iqn.2026-11.a:x'\n";

    fn parse(text: &str) -> Result<Config, String> {
        Config::from_toml(text, Path::new("lunette.toml")).map_err(|problems| problems.to_string())
    }

    fn problems(text: &str) -> String {
        parse(text).expect_err("it is wrong")
    }

    #[test]
    fn units_are_served_by_aoe_beside_or_without_targets() {
        let aoe = "aoe = [{ interface = 'eth1', allow = ['52:54:00:12:34:56'] }]\nlun = [{ ram = '1G', aoe = '1.2' }]\n";
        let config = parse(aoe).expect("AoE alone");
        assert!(config.targets.is_empty() && config.portals.is_empty());
        let interface = &config.aoe[0];
        assert_eq!((interface.name.as_str(), &interface.cores), ("eth1", &config.cores));
        let mac = |text: &str| text.parse().expect("an address");
        assert!(interface.admits(mac("52:54:00:12:34:56")) && !interface.admits(mac("52:54:00:12:34:57")));
        assert_eq!(config.luns[0].aoe.map(|address| address.to_string()).as_deref(), Some("1.2"));
        let both = parse(&format!("{aoe}{TARGET}")).expect("both");
        assert_eq!((both.portals.len(), both.targets[0].luns.len()), (1, 1));
    }

    #[test]
    fn a_unit_elsewhere_that_has_other_blocks_is_not_served() {
        let aoe = "aoe = [{ interface = 'eth1' }]\nlun = [{ ram = '1G', aoe = '1.2' }]\n";
        let mut lun = parse(aoe).expect("AoE alone").luns.remove(0);
        assert_eq!(lun.export(), lun.aoe);
        lun.block_bytes = 4096;
        assert_eq!(lun.export(), None);
    }

    #[test]
    fn each_fault_has_its_fix() {
        let lun =
            |rest: &str| format!("aoe = [{{ interface = 'eth1' }}]\nlun = [{{ ram = '1G', {rest} }}]\n");
        for (text, remedy) in [
            (lun("aoe = '1'"), "write SHELF.SLOT"),
            (lun("aoe = '65535.1'"), "write SHELF.SLOT"),
            (lun("aoe = '1.255'"), "write SHELF.SLOT"),
            (lun("aoe = '1.1', block_size = 4096"), "512-byte blocks only"),
            (lun("name = 'a'"), "no unit is served over AoE"),
            (format!("lun = [{{ ram = '1G', aoe = '1.1' }}]\n{TARGET}"), "no interface serves AoE"),
            (lun("aoe = '1.1' }, { ram = '1G', aoe = '1.1'"), "already used"),
            (lun("aoe = '1.1'").replace("eth1", "a/b"), "`ip link`"),
            (lun("aoe = '1.1'").replace("eth1'", "eth1', deny = ['1:2:3']"), "52:54:00:12:34:56"),
        ] {
            let problems = problems(&text);
            assert!(problems.contains(remedy), "{text}\n{problems}");
        }
    }
}
