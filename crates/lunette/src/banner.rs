//! What `serve` prints when it is ready: what is served, and lines to paste into initiators.

use config::{ByDevice, Config, Group, Poll, Portal, Target, show_cores};
use engine::daemon::UnitSummary;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;

/// What is known only once the daemon runs.
pub(crate) struct Running<'a> {
    /// Bound address of each portal, in the configuration's order.
    pub(crate) addresses: &'a [SocketAddr],
    /// Each LUN as it was opened, in the configuration's order.
    pub(crate) units: &'a [UnitSummary],
    /// The name of this machine, for portals that listen on all addresses.
    pub(crate) host: &'a str,
    /// The GUID of SRP target ports, if there are any.
    pub(crate) srp_guid: Option<u64>,
    /// Where the admin interface is.
    pub(crate) admin: Option<&'a str>,
}

/// The banner.
pub(crate) fn banner(config: &Config, running: &Running<'_>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut out, config, running);
    out
}

fn write_all(out: &mut String, config: &Config, running: &Running<'_>) -> fmt::Result {
    let poll = match config.poll {
        Poll::Adaptive => "",
        Poll::Always => ", always polling",
        Poll::Never => ", never polling",
    };
    let cores = if let [core] = config.cores.as_slice() {
        format!("core {core}")
    } else {
        format!("{} cores ({})", config.cores.len(), show_cores(&config.cores))
    };
    writeln!(out, "Lunette {} serves on {cores}{poll}.", env!("CARGO_PKG_VERSION"))?;
    if let Some(place) = running.admin {
        writeln!(out, "Admin {place}")?;
    }
    for target in &config.targets {
        write_target(out, config, target, running)?;
        write_connecting(out, config, target, running)?;
    }
    write_aoe(out, config, running)?;
    write!(out, "\nReady. Stop with Ctrl-C.\n")
}

/// The units that are served by AoE.
fn write_aoe(out: &mut String, config: &Config, running: &Running<'_>) -> fmt::Result {
    if config.aoe.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nATA over Ethernet")?;
    for (lun, unit) in config.luns.iter().zip(running.units) {
        let Some(address) = lun.aoe else { continue };
        for interface in &config.aoe {
            writeln!(out, "  URL aoe://{}/{address}", interface.name)?;
        }
        match &unit.failed {
            Some(reason) => writeln!(out, "  {address}  {}: NOT READY: {reason}", lun.name)?,
            None => writeln!(out, "  {address}  {}: {}, serial {}", lun.name, unit.store, unit.serial)?,
        }
        writeln!(out, "\n  Linux    modprobe aoe; the disk is /dev/etherd/e{address}")?;
    }
    Ok(())
}

fn write_target(out: &mut String, config: &Config, target: &Target, running: &Running<'_>) -> fmt::Result {
    writeln!(out, "\nTarget {}", target.name)?;
    for (index, address) in addresses(target, running) {
        let (host, port) = reachable(address, running.host);
        let by_devices = match config.portals.get(index).map(|portal| portal.rdma) {
            Some(ByDevice::Too) => ", also by RDMA devices",
            Some(ByDevice::Only) => ", by RDMA devices only",
            Some(ByDevice::No) | None => "",
        };
        writeln!(out, "  portal {address}{by_devices}")?;
        if offers_iscsi(config, index) {
            writeln!(out, "  URL iscsi://{host}:{port}/{}/{}", target.name, first_lun(target))?;
        }
        if let Some(guid) = srp_guid(config, target, running, index) {
            writeln!(out, "  URL srp://{host}:{port}/{guid:016x}/{}", first_lun(target))?;
        }
    }
    write_luns(out, "  ", config, &target.luns, running)?;
    for group in &target.groups {
        writeln!(out, "  group {}{}", group.name, rules(group))?;
        write_luns(out, "    ", config, group.luns.as_deref().unwrap_or_default(), running)?;
    }
    Ok(())
}

fn write_luns(
    out: &mut String,
    indent: &str,
    config: &Config,
    luns: &[(u16, usize)],
    running: &Running<'_>,
) -> fmt::Result {
    for (number, index) in luns {
        let (Some(lun), Some(unit)) = (config.luns.get(*index), running.units.get(*index)) else { continue };
        write!(out, "{indent}LUN {number}  {}: ", lun.name)?;
        if let Some(reason) = &unit.failed {
            writeln!(out, "NOT READY: {reason}")?;
            continue;
        }
        write!(out, "{}, {}-byte blocks, serial {}", unit.store, unit.block_bytes, unit.serial)?;
        let traits = [
            (lun.read_only, "read-only"),
            (!lun.write_cache, "no write cache"),
            (!unit.thin, "thick"),
            (lun.removable, "removable"),
        ];
        traits.iter().filter(|(is, _)| *is).try_for_each(|(_, word)| write!(out, ", {word}"))?;
        writeln!(out)?;
    }
    Ok(())
}

/// Describes the properties of a group.
fn rules(group: &Group) -> String {
    let rules = [(group.deny, "refused"), (group.read_only, "read-only"), (group.chap.is_some(), "CHAP")];
    let words: Vec<&str> = rules.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word).collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
}

fn write_connecting(
    out: &mut String,
    config: &Config,
    target: &Target,
    running: &Running<'_>,
) -> fmt::Result {
    write_srp(out, config, target, running)?;
    let name = &target.name;
    let mut with_names = addresses(target, running).filter(|(index, _)| offers_iscsi(config, *index));
    let Some((_, address)) = with_names.next() else { return Ok(()) };
    let ((host, port), lun) = (reachable(address, running.host), first_lun(target));
    if target.groups.iter().any(|group| group.chap.is_some()) {
        writeln!(out, "\n  CHAP is required: docs/connecting.md shows how to set user and secret.")?;
    }
    writeln!(out, "\n  Linux    iscsiadm -m discovery -t sendtargets -p {host}:{port}")?;
    writeln!(out, "           iscsiadm -m node -T {name} -p {host}:{port} --login")?;
    writeln!(
        out,
        "  QEMU     qemu-system-x86_64 -drive file=iscsi://{host}:{port}/{name}/{lun},format=raw,if=virtio"
    )?;
    let address = host.trim_matches(['[', ']']);
    writeln!(
        out,
        "  Windows  New-IscsiTargetPortal -TargetPortalAddress {address} -TargetPortalPortNumber {port}"
    )?;
    writeln!(out, "           Connect-IscsiTarget -NodeAddress {name}")
}

/// The line for Linux's ib_srp, for each portal through which SRP reaches this target.
fn write_srp(out: &mut String, config: &Config, target: &Target, running: &Running<'_>) -> fmt::Result {
    for (index, address) in addresses(target, running) {
        let Some(guid) = srp_guid(config, target, running, index) else { continue };
        let (host, port) = reachable(address, running.host);
        writeln!(out, "\n  Linux, SRP (HCA: a name in that directory, such as srp-siw0-1)")?;
        writeln!(
            out,
            "           echo id_ext={guid:016x},ioc_guid={guid:016x},dest={host}:{port} \
             > /sys/class/infiniband_srp/HCA/add_target"
        )?;
    }
    Ok(())
}

/// The target's name in SRP, if the portal leads to it.
fn srp_guid(config: &Config, target: &Target, running: &Running<'_>, portal: usize) -> Option<u64> {
    let offers_srp = config.portals.get(portal)?.transports.srp;
    let first = config.targets.iter().find(|target| target.portals.contains(&portal))?;
    running.srp_guid.filter(|_| offers_srp && first.name == target.name)
}

fn offers_iscsi(config: &Config, portal: usize) -> bool {
    let offers = |portal: &Portal| portal.transports.any_iscsi() && portal.rdma != ByDevice::Only;
    config.portals.get(portal).is_some_and(offers)
}

/// Its portals with their bound addresses.
fn addresses(target: &Target, running: &Running<'_>) -> impl Iterator<Item = (usize, SocketAddr)> {
    target.portals.iter().filter_map(|portal| Some((*portal, *running.addresses.get(*portal)?)))
}

/// The lowest LUN number of the first list that has any.
fn first_lun(target: &Target) -> u16 {
    let groups = target.groups.iter().filter_map(|group| group.luns.as_ref());
    [&target.luns].into_iter().chain(groups).flatten().map(|(number, _)| *number).next().unwrap_or(0)
}

/// Host and port to connect to; the host is in URL syntax.
fn reachable(address: SocketAddr, host: &str) -> (String, u16) {
    let shown = match address {
        _ if address.ip().is_unspecified() => host.to_string(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    (shown, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn shown(text: &str, addresses: &[&str], failed: Option<&str>) -> String {
        shown_with_admin(text, addresses, failed, None)
    }

    fn shown_with_admin(text: &str, addresses: &[&str], failed: Option<&str>, admin: Option<&str>) -> String {
        let config = Config::from_toml(text, Path::new("lunette.toml")).unwrap_or_else(|p| panic!("{p}"));
        let addresses: Vec<SocketAddr> = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        let unit = |lun: &config::Lun| UnitSummary {
            name: lun.name.clone(),
            store: "ram, 1 GiB".into(),
            size_bytes: 1 << 30,
            block_bytes: lun.block_bytes,
            thin: lun.thin,
            serial: lun.serial.clone(),
            failed: failed.map(str::to_string),
        };
        let units: Vec<UnitSummary> = config.luns.iter().map(unit).collect();
        let running = Running {
            addresses: &addresses,
            units: &units,
            host: "storage1",
            srp_guid: Some(0x024c_7500_0000_0001),
            admin,
        };
        let text = banner(&config, &running);
        // The first line depends on the cores of the machine that runs the test.
        text.split_once('\n').expect("several lines").1.to_string()
    }

    #[test]
    fn it_says_what_is_served_and_how_to_connect() {
        let text = "[[lun]]\nname = 'disk'\nram = '1G'\nserial = 'S1'\n[[target]]\nname = 'iqn.2026-11.a:x'";
        let expected = "
Target iqn.2026-11.a:x
  portal 127.0.0.1:40000
  URL iscsi://127.0.0.1:40000/iqn.2026-11.a:x/0
  LUN 0  disk: ram, 1 GiB, 512-byte blocks, serial S1

  Linux    iscsiadm -m discovery -t sendtargets -p 127.0.0.1:40000
           iscsiadm -m node -T iqn.2026-11.a:x -p 127.0.0.1:40000 --login
  QEMU     qemu-system-x86_64 -drive file=iscsi://127.0.0.1:40000/iqn.2026-11.a:x/0,format=raw,if=virtio
  Windows  New-IscsiTargetPortal -TargetPortalAddress 127.0.0.1 -TargetPortalPortNumber 40000
           Connect-IscsiTarget -NodeAddress iqn.2026-11.a:x

Ready. Stop with Ctrl-C.
";
        assert_eq!(shown(text, &["127.0.0.1:40000"], None), expected);
        let failed = shown(text, &["127.0.0.1:40000"], Some("no such file"));
        assert!(failed.contains("  LUN 0  disk: NOT READY: no such file\n"), "{failed}");
    }

    #[test]
    fn srp_shows_which_target_it_reaches() {
        let text = "
            portal = [{ listen = '127.0.0.1:1', transports = ['srp'], rdma = true }]
            lun = [{ ram = '1G', serial = 'S1' }]
            [[target]]
            name = 'iqn.2026-11.a:x'
            luns = ['lun0']
            [[target]]
            name = 'iqn.2026-11.a:y'
            luns = ['lun0']";
        let shown = shown(text, &["127.0.0.1:40000"], None);
        let line = "echo id_ext=024c750000000001,ioc_guid=024c750000000001,dest=127.0.0.1:40000 > /sys/class";
        let (first, second) = shown.split_once("Target iqn.2026-11.a:y").expect("two targets");
        assert!(first.contains(line) && !second.contains("id_ext"), "{shown}");
        let url = "  portal 127.0.0.1:40000, also by RDMA devices\n  URL srp://127.0.0.1:40000/024c750000000001/0\n";
        assert!(first.contains(url) && !second.contains("srp://"), "{shown}");
        assert!(!shown.contains("iscsi://") && !shown.contains("iscsiadm"), "{shown}");
    }

    #[test]
    fn where_devices_alone_listen_nothing_is_said_of_tcp() {
        let text = "
            portal = [{ listen = '127.0.0.1:1', rdma = 'only' }]
            lun = [{ ram = '1G', serial = 'S1' }]
            [[target]]
            name = 'iqn.2026-11.a:x'";
        let shown = shown(text, &["127.0.0.1:1"], None);
        assert!(shown.contains("  portal 127.0.0.1:1, by RDMA devices only\n"), "{shown}");
        assert!(!shown.contains("iscsi://") && !shown.contains("iscsiadm"), "{shown}");
    }

    #[test]
    fn the_admin_interface_comes_first() {
        let text = "[[lun]]\nram = '1G'\n[[target]]\nname = 'iqn.2026-11.a:x'";
        let shown = shown_with_admin(text, &["127.0.0.1:40000"], None, Some("http://127.0.0.1:40001"));
        assert!(shown.starts_with("Admin http://127.0.0.1:40001\n\nTarget "), "{shown}");
    }

    #[test]
    fn every_portal_and_group_is_listed() {
        let text = "
            portal = [{ listen = '0.0.0.0:1' }, { listen = '[::1]:2' }]
            lun = [{ name = 'disk', ram = '1G', serial = 'S1', thin = false, read_only = true }]
            [[target]]
            name = 'iqn.2026-11.a:x'
            luns = []
            [[target.group]]
            name = 'bad'
            deny = true
            initiators = ['iqn.bad*']
            [[target.group]]
            name = 'web'
            read_only = true
            luns = [{ number = 7, lun = 'disk' }]
            chap = { user = 'u', secret = '0123456789abcdef' }";
        let shown = shown(text, &["0.0.0.0:3260", "[::1]:3260"], None);
        for expected in [
            "  portal 0.0.0.0:3260\n  URL iscsi://storage1:3260/iqn.2026-11.a:x/7\n  portal [::1]:3260\n",
            "  group bad: refused\n",
            "  group web: read-only, CHAP\n    LUN 7  disk: ram, 1 GiB, 512-byte blocks, serial S1, read-only, thick\n",
            "CHAP is required",
            "-p storage1:3260 --login",
            "  URL iscsi://[::1]:3260/iqn.2026-11.a:x/7",
        ] {
            assert!(shown.contains(expected), "{expected} is missing in:\n{shown}");
        }
        assert!(!shown.contains("0123456789abcdef"), "no secret is shown");
    }
}
