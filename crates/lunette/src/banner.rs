//! What `serve` prints when it is ready: what is served, and lines to paste into initiators.

use engine::config::{Config, Target, format_size};
use engine::daemon::UnitSummary;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The banner; `addresses` are those of the portals, `units` those of the LUNs, in the configuration's order.
pub(crate) fn banner(config: &Config, addresses: &[SocketAddr], units: &[UnitSummary]) -> String {
    let cores: Vec<String> = config.cores.iter().map(usize::to_string).collect();
    let mut out = format!("Lunette {} serves on cores {}:\n", env!("CARGO_PKG_VERSION"), cores.join(","));
    for target in &config.targets {
        // Writing to a string cannot fail.
        let _ = write_target(&mut out, config, target, addresses, units);
    }
    out.push_str("\nReady. Stop with Ctrl-C.\n");
    out
}

fn write_target(
    out: &mut String,
    config: &Config,
    target: &Target,
    addresses: &[SocketAddr],
    units: &[UnitSummary],
) -> std::fmt::Result {
    writeln!(out, "\n{}", target.name)?;
    let name = &target.name;
    let first = target.luns.first().map_or(0, |(number, _)| *number);
    for address in target.portals.iter().filter_map(|portal| addresses.get(*portal)) {
        writeln!(out, "  portal {address}")?;
        writeln!(out, "  URL iscsi://{}/{name}/{first}", reachable(address))?;
    }
    for (number, index) in &target.luns {
        let (Some(lun), Some(unit)) = (config.luns.get(*index), units.get(*index)) else { continue };
        match &unit.failed {
            Some(reason) => writeln!(out, "  LUN {number}: {} is NOT READY: {reason}", unit.name)?,
            None => {
                let flags = [
                    (lun.read_only, ", read-only"),
                    (!lun.write_cache, ", no write cache"),
                    (lun.removable, ", removable"),
                ];
                let flags: String = flags.iter().filter(|(on, _)| *on).map(|(_, text)| *text).collect();
                writeln!(
                    out,
                    "  LUN {number}: {}, {}, {}-byte blocks, serial {}{flags}",
                    unit.store,
                    format_size(unit.size_bytes),
                    lun.block_bytes,
                    lun.serial
                )?;
            }
        }
    }
    let Some(portal) = target.portals.iter().find_map(|portal| addresses.get(*portal)).map(reachable) else {
        return Ok(());
    };
    writeln!(out, "\n  Linux:    iscsiadm -m discovery -t sendtargets -p {portal}")?;
    writeln!(out, "            iscsiadm -m node -T {name} -p {portal} --login")?;
    writeln!(
        out,
        "  QEMU:     qemu-system-x86_64 -drive file=iscsi://{portal}/{name}/{first},format=raw,if=virtio"
    )?;
    writeln!(
        out,
        "  Windows:  New-IscsiTargetPortal -TargetPortalAddress {} -TargetPortalPortNumber {}",
        portal.ip(),
        portal.port()
    )?;
    writeln!(out, "            Connect-IscsiTarget -NodeAddress {name}")
}

/// An address to connect to: a wildcard listens on loopback, too.
fn reachable(address: &SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::config::Options;

    #[test]
    fn it_says_what_is_served_and_how_to_connect() {
        let options = Options { listen: vec!["0.0.0.0:3260".into()], ..Options::default() };
        let config = Config::from_options(&options).expect("good");
        let good =
            UnitSummary { name: "lun0".into(), store: "RAM".into(), size_bytes: 1 << 30, failed: None };
        let address = "0.0.0.0:40000".parse().expect("an address");
        let text = banner(&config, &[address], std::slice::from_ref(&good));
        for expected in [
            "portal 0.0.0.0:40000\n  URL iscsi://127.0.0.1:40000/iqn.2026-11.io.lunette:disk/0\n",
            "LUN 0: RAM, 1 GiB, 512-byte blocks",
            "iscsiadm -m node -T iqn.2026-11.io.lunette:disk -p 127.0.0.1:40000 --login",
            "file=iscsi://127.0.0.1:40000/iqn.2026-11.io.lunette:disk/0,",
            "Connect-IscsiTarget",
        ] {
            assert!(text.contains(expected), "{expected} is missing in:\n{text}");
        }
        assert!(text.ends_with("Ready. Stop with Ctrl-C.\n"));
        let failed = UnitSummary { failed: Some("no such file".into()), ..good };
        assert!(banner(&config, &[address], &[failed]).contains("NOT READY: no such file"));
    }
}
