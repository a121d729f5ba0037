//! Warnings about a configuration that is valid in itself. Some are logged at every start; what this machine
//! lacks, `lunette check` finds before the daemon does.

use super::groups::matches;
use super::memory;
use super::model::*;
use super::preflight::Preflight;
use super::problems::{Collector, Fault};
use super::raw::*;
use super::scalar::format_size;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Warnings that do not depend on the machine.
pub(super) fn lasting(raw: &Raw, config: &Config, problems: &mut Collector<'_>) {
    memory(raw, config, problems);
    secrets(raw, problems);
    admin_access(raw, config, problems);
    if let Some(cluster) = raw.cluster.as_ref().filter(|_| !config.luns.iter().any(|lun| lun.is_shared())) {
        let what = "no LUN is shared between gateways";
        problems
            .add(&cluster.place, Fault::new(what, "set access = \"one\" for shared LUNs, or remove this"));
    }
    for (raw, target) in raw.targets.iter().zip(&config.targets) {
        groups(raw, target, problems);
    }
}

/// Warnings about what the machine lacks, or does not permit.
pub(super) fn absent(raw: &Raw, config: &Config, preflight: &dyn Preflight, problems: &mut Collector<'_>) {
    for (raw, lun) in raw.luns.iter().zip(&config.luns) {
        if let StoreSpec::Ram { huge_pages: HugePages::Always, .. } = lun.store {
            let place = raw.huge_pages.as_ref().map_or(&raw.place, |at| &at.place);
            problems.check(place, preflight.huge_pages());
        }
        if let Some(at) = [&raw.file, &raw.block, &raw.url, &raw.rbd].into_iter().flatten().next() {
            problems.check(&at.place, preflight.store(lun));
        }
    }
    if let (Some(raw), Some(cluster)) = (&raw.cluster, &config.cluster) {
        let at = [&raw.conf, &raw.keyring].into_iter().flatten().next();
        problems.check(at.map_or(&raw.place, |at| &at.place), preflight.cluster(cluster));
    }
    for (raw, portal) in raw.portals.iter().zip(&config.portals) {
        let place = raw.listen.as_ref().map_or(&raw.place, |at| &at.place);
        problems.check(place, preflight.address(portal.listen, portal.rdma));
        problems.check(raw.rdma.as_ref().map_or(&raw.place, |at| &at.place), preflight.devices(portal.rdma));
    }
    for (raw, interface) in raw.aoe.iter().zip(&config.aoe) {
        problems.check(&raw.place, preflight.interface(&interface.name));
    }
    if let (Some(at), Some(directory)) = (&raw.state_dir, &config.state_dir) {
        problems.check(&at.place, writable(preflight, directory));
    }
    match (&raw.admin, &config.admin) {
        (Some(at), AdminPlace::At(AdminAddress::Tcp(listen))) => {
            problems.check(&at.place, preflight.address(*listen, ByDevice::No));
        }
        (Some(at), AdminPlace::At(AdminAddress::Unix(path))) => {
            problems.check(&at.place, path.parent().map_or(Ok(()), |path| preflight.directory(path)));
        }
        (_, AdminPlace::Usual | AdminPlace::Nowhere) | (None, AdminPlace::At(_)) => {}
    }
}

/// A directory that is created if it does not exist.
fn writable(preflight: &dyn Preflight, path: &Path) -> Result<(), Fault> {
    path.ancestors().find(|path| path.exists()).map_or(Ok(()), |path| preflight.directory(path))
}

/// RAM disks larger than the memory: as they fill up, the kernel kills the daemon.
fn memory(raw: &Raw, config: &Config, problems: &mut Collector<'_>) {
    let disks = raw.luns.iter().zip(&config.luns).filter_map(|(raw, lun)| match lun.store {
        StoreSpec::Ram { size, .. } => Some((size, raw.ram.as_ref()?)),
        StoreSpec::Null { .. }
        | StoreSpec::File { .. }
        | StoreSpec::Block { .. }
        | StoreSpec::Remote { .. }
        | StoreSpec::Nbd { .. }
        | StoreSpec::Rbd { .. } => None,
    });
    let disks: Vec<(u64, &At<String>)> = disks.collect();
    let all = disks.iter().fold(0, |all: u64, (size, _)| all.saturating_add(*size));
    let Some(((_, largest), room)) = disks.iter().max_by_key(|(size, _)| *size).zip(memory::room()) else {
        return;
    };
    if all > room.bytes {
        let what = format!(
            "disks in memory have {} together, and this process may use {} ({}): if they fill up, the kernel kills it",
            format_size(all),
            rounded(room.bytes),
            room.said_by.display()
        );
        problems.add(
            &largest.place,
            Fault::new(what, "choose smaller sizes, or raise the limit (MemoryMax= of systemd)"),
        );
    }
}

/// An approximate size, such as `1.9 GiB`.
fn rounded(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Secrets in a file that users other than its owner can access.
fn secrets(raw: &Raw, problems: &mut Collector<'_>) {
    let Some(path) = problems.path() else { return };
    let mode = path.metadata().map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o077 == 0 {
        return;
    }
    let groups = raw.targets.iter().flat_map(|target| &target.groups);
    let chap = groups.filter_map(|group| group.chap.as_ref());
    let inline = chap.flat_map(|chap| [&chap.secret, &chap.mutual_secret]).flatten();
    let has_secret = |url: &&At<String>| {
        let user = url.value.rsplit_once('@').is_some_and(|(user, _)| user.contains('%'));
        user || url.value.contains("target_password=")
    };
    let urls = raw.luns.iter().filter_map(|lun| lun.url.as_ref()).filter(has_secret);
    let shown = path.display().to_string();
    for at in inline.chain(urls) {
        let what = format!(
            "a secret in a file that users other than its owner can access (mode {:o})",
            mode & 0o777
        );
        problems.add(&at.place, Fault::new(what, format!("chmod 600 {shown}, or give secret_file")));
    }
}

/// Tokens and certificates without effect, and tokens sent unencrypted.
fn admin_access(raw: &Raw, config: &Config, problems: &mut Collector<'_>) {
    let useless = match &config.admin {
        AdminPlace::At(AdminAddress::Tcp(address)) => {
            let is_safe = config.admin_access.identity.is_some() || address.ip().is_loopback();
            if let Some(at) = raw.admin_token_file.as_ref().filter(|_| !is_safe) {
                let what = format!(
                    "tokens travel to {address} unencrypted: anyone who can read the traffic can use them"
                );
                let set = match is_option(&at.place) {
                    true => "add --admin-certificate and --admin-key",
                    false => "set admin_certificate and admin_key",
                };
                let fix = format!("{set}, or listen on a loopback address and reach it through ssh -L");
                problems.add(&at.place, Fault::new(what, fix));
            }
            return;
        }
        AdminPlace::Nowhere => "this has no effect without an admin interface",
        AdminPlace::Usual | AdminPlace::At(AdminAddress::Unix(_)) => "this has no effect on a socket",
    };
    for at in [&raw.admin_token_file, &raw.admin_certificate, &raw.admin_key].into_iter().flatten() {
        let fix = match is_option(&at.place) {
            true => "give --admin an address and a port, or leave this out",
            false => "set admin to an address and a port, or remove this",
        };
        problems.add(&at.place, Fault::new(useless, fix));
    }
}

/// Whether it is a command-line option, where its fix belongs as well.
fn is_option(place: &Place) -> bool {
    place.offset.is_none()
}

/// Groups whose members all match an earlier one.
fn groups(raw: &RawTarget, target: &Target, problems: &mut Collector<'_>) {
    for (index, (raw_group, group)) in raw.groups.iter().zip(&target.groups).enumerate() {
        let Some(first) = target.groups.iter().take(index).position(|before| covers(before, group)) else {
            continue;
        };
        let place = |raw: &RawGroup| raw.name.as_ref().map_or(raw.place.clone(), |at| at.place.clone());
        let before = raw.groups.get(first).map_or(String::new(), |raw| problems.locate(&place(raw)));
        let what = format!(
            "this group is never reached: `{}`, at {before}, matches all of its members first",
            target.groups[first].name
        );
        problems.add(&place(raw_group), Fault::new(what, "move it before that one, or remove it"));
    }
}

/// Whether a group matches every initiator that the other one matches; `false` if in doubt.
fn covers(group: &Group, other: &Group) -> bool {
    let is_all = |pattern: &String| pattern.chars().all(|c| c == '*');
    // A pattern treated as a name: its `*` stands for any length, which `?` does not match.
    let holds = |pattern: &String, name: &String| {
        pattern == name || (matches(pattern, name) && !(name.contains('*') && pattern.contains('?')))
    };
    let names = group.initiators.is_empty()
        || group.initiators.iter().any(is_all)
        || !other.initiators.is_empty()
            && other
                .initiators
                .iter()
                .all(|name| group.initiators.iter().any(|pattern| holds(pattern, name)));
    let is_within = |network: &Network| {
        let fits = |wide: &Network| {
            wide.prefix <= network.prefix
                && wide.address.is_ipv4() == network.address.is_ipv4()
                && wide.contains(network.address)
        };
        group.networks.iter().any(fits)
    };
    let all = |bits: &str| bits.parse().is_ok_and(|address| is_within(&Network { address, prefix: 0 }));
    let networks = group.networks.is_empty()
        || (all("0.0.0.0") && all("::"))
        || !other.networks.is_empty() && other.networks.iter().all(is_within);
    names && networks
}
