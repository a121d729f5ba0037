//! What is questionable about a configuration that is right in itself. Some of it every start logs; what this machine
//! lacks, `lunette check` finds before the daemon does.

use super::problems::{Collector, Fault};
use super::raw::*;
use super::*;
use crate::access;
use rdma::verbs::{DeviceFacts, Transport};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use store::{Claim, OpenError};

/// The machine's setting for transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Where ports begin that every user may listen on (ip(7)).
const PORT_FREE: u16 = 1024;

/// What no start fails for.
pub(super) fn lasting(raw: &Raw, config: &Config, problems: &mut Collector<'_>) {
    memory(raw, config, problems);
    secrets(raw, problems);
    for (raw, target) in raw.targets.iter().zip(&config.targets) {
        groups(raw, target, problems);
    }
}

/// What is not here, or not for this user.
pub(super) fn absent(raw: &Raw, config: &Config, problems: &mut Collector<'_>) {
    for (raw, lun) in raw.luns.iter().zip(&config.luns) {
        if let StoreSpec::Ram { huge_pages: HugePages::Always, .. } = lun.store {
            let place = raw.huge_pages.as_ref().map_or(&raw.place, |at| &at.place);
            problems.check(place, huge_pages(std::fs::read_to_string(HUGE_PAGES).ok().as_deref()));
        }
        if let Some(at) = [&raw.file, &raw.block, &raw.url].into_iter().flatten().next() {
            problems.check(&at.place, store(lun));
        }
    }
    for (raw, portal) in raw.portals.iter().zip(&config.portals) {
        let by_tcp = if portal.rdma == ByDevice::Only { address } else { port };
        problems.check(raw.listen.as_ref().map_or(&raw.place, |at| &at.place), by_tcp(portal.listen));
        problems.check(raw.rdma.as_ref().map_or(&raw.place, |at| &at.place), devices(portal.rdma));
    }
    for (raw, interface) in raw.aoe.iter().zip(&config.aoe) {
        problems.check(&raw.place, self::interface(&interface.name));
    }
    if let (Some(at), Some(folder)) = (&raw.state_dir, &config.state_dir) {
        problems.check(&at.place, writable(folder));
    }
    match (&raw.admin, &config.admin) {
        (Some(at), Some(AdminAddress::Tcp(listen))) => {
            problems.check(&at.place, port(*listen));
        }
        (Some(at), Some(AdminAddress::Unix(path))) => {
            problems.check(&at.place, path.parent().map_or(Ok(()), folder));
        }
        (_, None) | (None, Some(_)) => {}
    }
}

fn huge_pages(setting: Option<&str>) -> Result<(), Fault> {
    match setting {
        None => Err(Fault::new("this kernel has no transparent huge pages", "write `auto` or `never`")),
        Some(text) if text.contains("[never]") => Err(Fault::new(
            "this machine gives nobody huge pages",
            format!("as root: echo madvise > {HUGE_PAGES}"),
        )),
        Some(_) => Ok(()),
    }
}

/// Disks in memory that fill up end the daemon where there is less memory.
fn memory(raw: &Raw, config: &Config, problems: &mut Collector<'_>) {
    let disks = raw.luns.iter().zip(&config.luns).filter_map(|(raw, lun)| match lun.store {
        StoreSpec::Ram { size, .. } => Some((size, raw.ram.as_ref()?)),
        StoreSpec::Null { .. }
        | StoreSpec::File { .. }
        | StoreSpec::Block { .. }
        | StoreSpec::Remote { .. } => None,
    });
    let disks: Vec<(u64, &At<String>)> = disks.collect();
    let all = disks.iter().fold(0, |all: u64, (size, _)| all.saturating_add(*size));
    let Some(((_, largest), room)) = disks.iter().max_by_key(|(size, _)| *size).zip(crate::memory::room())
    else {
        return;
    };
    if all > room.bytes {
        let what = format!(
            "disks in memory have {} together, and this process may use {} ({}): when they fill, the kernel ends it",
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

/// `1.9 GiB`, of a size that is not round.
fn rounded(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Secrets in a file that others than its owner may use.
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
        let what = format!("a secret in a file that others than its owner may use (mode {:o})", mode & 0o777);
        problems.add(&at.place, Fault::new(what, format!("chmod 600 {shown}, or give secret_file")));
    }
}

/// Groups whose members all match one before.
fn groups(raw: &RawTarget, target: &Target, problems: &mut Collector<'_>) {
    for (index, (raw_group, group)) in raw.groups.iter().zip(&target.groups).enumerate() {
        let Some(first) = target.groups.iter().take(index).position(|before| covers(before, group)) else {
            continue;
        };
        let place = |raw: &RawGroup| raw.name.as_ref().map_or(raw.place.clone(), |at| at.place.clone());
        let before = raw.groups.get(first).map_or(String::new(), |raw| problems.locate(&place(raw)));
        let what = format!(
            "this group is never reached: all that it matches, `{}` matches first, at {before}",
            target.groups[first].name
        );
        problems.add(&place(raw_group), Fault::new(what, "move it before that one, or remove it"));
    }
}

/// Whether a group matches every initiator that the other one matches; in doubt, it does not.
fn covers(group: &Group, other: &Group) -> bool {
    let is_all = |pattern: &String| pattern.chars().all(|c| c == '*');
    // A pattern as a name: its `*` stands for any length, which `?` does not match.
    let holds = |pattern: &String, name: &String| {
        pattern == name || (access::matches(pattern, name) && !(name.contains('*') && pattern.contains('?')))
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
                && access::contains(wide, network.address)
        };
        group.networks.iter().any(fits)
    };
    let all = |bits: &str| bits.parse().is_ok_and(|address| is_within(&Network { address, prefix: 0 }));
    let networks = group.networks.is_empty()
        || (all("0.0.0.0") && all("::"))
        || !other.networks.is_empty() && other.networks.iter().all(is_within);
    names && networks
}

fn store(lun: &Lun) -> Result<(), Fault> {
    let fault = |error: OpenError| Fault::new(format!("{}: {}", error.what, error.problem), error.remedy);
    let claim = Claim::to_serve(lun.read_only);
    match &lun.store {
        StoreSpec::File { path, size } => {
            store::file::examine(path, *size, lun.block_bytes, claim).map_err(fault)?;
            match store::image::format(path) {
                Ok(Some(format)) => Err(Fault::new(image_problem(path, format), IMAGE_REMEDY)),
                // What cannot be read was found before; what is not there is made.
                Ok(None) | Err(_) => Ok(()),
            }
        }
        StoreSpec::Block { path } => store::file::examine_block(path, claim).map_err(fault),
        StoreSpec::Remote { url, .. } if url.protocol == crate::initiator::url::Protocol::Aoe => {
            interface(&url.host)
        }
        StoreSpec::Remote { .. } | StoreSpec::Null { .. } | StoreSpec::Ram { .. } => Ok(()),
    }
}

/// Whether this machine has an address.
fn address(listen: SocketAddr) -> Result<(), Fault> {
    // With the scope of a link-local address, without which it cannot be bound (RFC 4007 section 6).
    let mut any_port = listen;
    any_port.set_port(0);
    let bound = UdpSocket::bind(any_port);
    bound.map(drop).map_err(|error| {
        let ip = listen.ip();
        let what = match error.kind() {
            ErrorKind::AddrNotAvailable => format!("this machine does not have the address {ip}"),
            _ => format!("{ip} cannot be listened on: {error}"),
        };
        Fault::new(what, "choose one that `ip address` shows, or 0.0.0.0 or [::] for all")
    })
}

/// Whether this user may listen there, and nobody does.
fn port(listen: SocketAddr) -> Result<(), Fault> {
    address(listen)?;
    reactor::net::may_listen(listen).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            let fix =
                format!("choose a port from {PORT_FREE}, or give it the capability CAP_NET_BIND_SERVICE");
            Fault::new(format!("this user may not listen on port {}", listen.port()), fix)
        }
        ErrorKind::AddrInUse => Fault::new(
            format!("port {} is in use now, by a running daemon?", listen.port()),
            "if not by one with this very file, choose another, or end who has it (`ss -ltnp`)",
        ),
        _ => Fault::new(format!("{listen} cannot be listened on: {error}"), "choose another address"),
    })
}

/// Whether there is an RDMA device that listens at a portal which is meant for them.
fn devices(rdma: ByDevice) -> Result<(), Fault> {
    let takes_iwarp = match rdma {
        ByDevice::No => return Ok(()),
        ByDevice::Too => false,
        ByDevice::Only => true,
    };
    let fix = "`lunette rdma` lists those there are; without `rdma` iSER and SRP are served without one";
    let devices = rdma::verbs::survey().map_err(|error| Fault::new(error.to_string(), fix))?;
    let fits = |facts: &DeviceFacts| match facts.transport {
        Transport::InfiniBand => true,
        Transport::Iwarp => takes_iwarp,
        Transport::Other => false,
    };
    if devices.iter().flatten().any(fits) {
        return Ok(());
    }
    let what = match devices.iter().find_map(|device| device.as_ref().err()) {
        Some(unknown) => format!("RDMA device {}: {}", unknown.name, unknown.error),
        None => "this machine has no RDMA device that listens here".into(),
    };
    Err(Fault::new(what, fix))
}

fn interface(name: &str) -> Result<(), Fault> {
    let found = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .and_then(|socket| netdevice::name_to_index(socket, name));
    found.map(|_| ()).map_err(|_| {
        Fault::new(
            format!("this machine has no network interface `{name}`"),
            "`ip link` lists those there are",
        )
    })
}

/// A folder that is made if it is not there.
fn writable(path: &Path) -> Result<(), Fault> {
    path.ancestors().find(|path| path.exists()).map_or(Ok(()), folder)
}

/// A folder in which files are made.
fn folder(path: &Path) -> Result<(), Fault> {
    let shown = path.display();
    match path.metadata() {
        Err(error) => Err(Fault::new(format!("{shown}: {error}"), format!("make it: mkdir -p {shown}"))),
        Ok(metadata) if !metadata.is_dir() => {
            Err(Fault::new(format!("{shown} is no folder"), "name another"))
        }
        Ok(_) => {
            let access = accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
            access.map_err(|error| {
                let fix = format!("let this user write to {shown}, or name another folder");
                Fault::new(format!("{shown}: {error}"), fix)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv6Addr, SocketAddrV6};

    #[test]
    fn huge_pages_that_the_machine_does_not_give_are_missed() {
        assert!(huge_pages(Some("always [madvise] never\n")).is_ok());
        assert!(huge_pages(Some("[always] madvise never\n")).is_ok());
        let never = huge_pages(Some("always madvise [never]\n")).unwrap_err();
        assert!(never.fix.contains("echo madvise > /sys/kernel/mm"), "{}", never.fix);
        assert!(huge_pages(None).is_err());
    }

    /// Those of this machine that are in use, by its table (proc_net(5), if_inet6).
    #[test]
    fn a_link_local_address_with_its_scope_is_found() {
        const LINK: &str = "20";
        const TENTATIVE: u8 = 0x40;
        let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        for line in table.lines() {
            let [ip, scope_id, _, scope, flags, _] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let ip = Ipv6Addr::from(u128::from_str_radix(ip, 16).unwrap());
            let scope_id = u32::from_str_radix(scope_id, 16).unwrap();
            if scope == LINK && u8::from_str_radix(flags, 16).unwrap() & TENTATIVE == 0 {
                let found = address(SocketAddrV6::new(ip, 3260, 0, scope_id).into());
                assert!(found.is_ok(), "{line}");
            }
        }
    }
}
