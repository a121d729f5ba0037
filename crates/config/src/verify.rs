//! Verifies the raw form into a [`Config`]: general options, portals and LUNs; targets have their own file.

use super::checks::{cores, count, limit, refuse, required, unique};
use super::machine::Machine;
use super::model::*;
use super::nbd::NbdUrl;
use super::problems::{Collector, Fault, suggest};
use super::raw::*;
use super::rbd::{self, RbdImage};
use super::url::{Url, UrlError};
use super::{access_files, aoe, cluster, limits, portal_groups, scalar, targets};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_ADDRESS: &str = "127.0.0.1:3260";
/// Supported block sizes.
const BLOCK_MIN: u64 = 512;
const BLOCK_MAX: u64 = 65536;
/// Longest unit serial number and product identification (SPC-4 sections 7.8.15 and 6.6.2).
const SERIAL_MAX: usize = 32;
const PRODUCT_MAX: usize = 16;

/// The configuration, complete if no problems are recorded.
pub(super) fn verify(raw: &mut Raw, machine: &Machine, problems: &mut Collector<'_>) -> Option<Config> {
    complete(raw, problems);
    let minute = Duration::from_secs(60);
    let login_timeout = time(&raw.login_timeout, 15, 10 * minute, problems);
    let keep_alive = time(&raw.keep_alive, 30, 60 * minute, problems);
    let stall_timeout = time(&raw.stall_timeout, 60, 60 * minute, problems);
    let logins_max = count(&raw.logins_max, 1024, 65536, problems);
    let poll = poll(&raw.poll, problems);
    let admin = match &raw.admin {
        None => Some(AdminPlace::Usual),
        Some(at) => problems.check(&at.place, scalar::admin(&at.value, &machine.base)),
    };
    let label = |at: &At<String>| problems.check(&at.place, scalar::label(&at.value));
    let admin_group = raw.admin_group.as_ref().map(label).map_or(Some(None), |group| group.map(Some));
    let admin_access = match &machine.access {
        Some(access) => Some(access.clone()),
        None => access_files::access(raw, &machine.base, problems).map(Arc::new),
    };
    let state_dir = match &raw.state_dir {
        None => Some(None),
        Some(at) => {
            let directory = scalar::path(&at.value, &machine.base, "name a directory of this machine");
            problems.check(&at.place, directory).map(Some)
        }
    };
    let cores = cores(&raw.cores, &machine.cores, problems);
    let usable = cores.as_deref().unwrap_or(&machine.cores);
    let portals = portals(&raw.portals, usable, problems);
    let portal_groups =
        portals.as_ref().and_then(|portals| portal_groups::portal_groups(raw, portals, problems));
    let luns = luns(raw, machine, problems);
    let cluster = cluster::cluster(raw, machine, problems);
    let targets = targets::targets(raw, machine, problems);
    let srp_guid = match &raw.srp_guid {
        None => Some(None),
        Some(at) => problems.check(&at.place, scalar::guid(&at.value)).map(Some),
    };
    let aoe = aoe::interfaces(&raw.aoe, usable, problems);
    if let Some(luns) = &luns {
        aoe::check(raw, luns, problems);
        cluster::check(raw, luns, problems);
    }
    if let (Some(portals), Some(targets)) = (&portals, &targets) {
        check_srp(&raw.portals, portals, targets, problems);
        check_redirects(&raw.portals, portals, targets, machine, problems);
        if let Some(groups) = &portal_groups {
            portal_groups::check_port_ids(raw, groups, portals, targets, problems);
        }
    }
    let config = Config {
        state_dir: state_dir?,
        cores: cores?,
        poll: poll?,
        admin: admin?,
        admin_group: admin_group?,
        admin_access: admin_access?,
        cluster: cluster?,
        luns: luns?,
        targets: targets?,
        portals: portals?,
        portal_groups: portal_groups?,
        aoe: aoe?,
        login_timeout: login_timeout?,
        keep_alive: keep_alive?,
        stall_timeout: stall_timeout?,
        logins_max: logins_max?,
        srp_guid: srp_guid?,
    };
    can_number_ports(&config, problems).then_some(config)
}

/// Whether there are enough relative target port identifiers for all target ports.
fn can_number_ports(config: &Config, problems: &mut Collector<'_>) -> bool {
    let ports = config.target_ports().len();
    let can = ports <= usize::from(u16::MAX);
    if !can {
        let place = Place { path: "target".into(), offset: Some(0) };
        let what = format!("there are {ports} target ports, one for each target, portal group and protocol");
        problems
            .add(&place, Fault::new(what, format!("at most {} can be numbered; set `portals`", u16::MAX)));
    }
    can
}

/// Fills in defaults, and reports what only a person can fill in.
fn complete(raw: &mut Raw, problems: &mut Collector<'_>) {
    let is_aoe_alone = raw.targets.is_empty() && !raw.aoe.is_empty();
    if !is_aoe_alone {
        complete_portals(raw);
    }
    for (index, lun) in raw.luns.iter_mut().enumerate() {
        lun.name.get_or_insert_with(|| default_lun_name(index, &lun.place));
    }
    let missing = [("lun", raw.luns.is_empty()), ("target", raw.targets.is_empty() && !is_aoe_alone)];
    for (name, _) in missing.iter().filter(|(_, missing)| *missing) {
        let place = Place { path: (*name).into(), offset: Some(0) };
        problems.add(
            &place,
            Fault::new("there are none, so nothing would be served", format!("add a [[{name}]] table")),
        );
    }
}

/// Adds the default portal if there is none.
pub(super) fn complete_portals(raw: &mut Raw) {
    if raw.portals.is_empty() {
        raw.portals = vec![RawPortal::at(DEFAULT_ADDRESS)];
    }
}

/// The default name of a LUN.
pub(super) fn default_lun_name(index: usize, place: &Place) -> At<String> {
    At::new(format!("lun{index}"), place)
}

fn time(text: &Text, default: u64, most: Duration, problems: &mut Collector<'_>) -> Option<Duration> {
    match text {
        None => Some(Duration::from_secs(default)),
        Some(at) => problems.check(&at.place, scalar::duration(&at.value, Duration::from_secs(1), most)),
    }
}

fn poll(text: &Text, problems: &mut Collector<'_>) -> Option<Poll> {
    let Some(at) = text else { return Some(Poll::Adaptive) };
    let poll = match at.value.as_str() {
        "adaptive" => Ok(Poll::Adaptive),
        "always" => Ok(Poll::Always),
        "never" => Ok(Poll::Never),
        other => {
            let fix = "choose adaptive, always or never";
            Err(Fault::new(format!("`{other}` is not a polling mode"), fix))
        }
    };
    problems.check(&at.place, poll)
}

fn portals(raw: &[RawPortal], usable: &[usize], problems: &mut Collector<'_>) -> Option<Vec<Portal>> {
    limit(raw.iter().map(|p| &p.place), PORTALS_MAX, problems);
    let (mut seen, mut names) = (BTreeMap::new(), BTreeMap::new());
    let mut portals = Vec::new();
    for portal in raw {
        if let Some(at) = &portal.name
            && let Some(name) = problems.check(&at.place, scalar::label(&at.value))
        {
            unique(&mut names, name, &at.place, "portal name", problems);
        }
        let listen = required(&portal.listen, &portal.place, "listen", problems).and_then(|at| {
            let listen = problems.check(&at.place, scalar::listen(&at.value))?;
            // Port 0 is any free port, so two of them do not collide.
            if listen.port() != 0 {
                unique(&mut seen, listen, &at.place, "address", problems);
            }
            Some(listen)
        });
        let cores = cores(&portal.cores, usable, problems);
        let group = count(&portal.group, 1, u64::from(u16::MAX), problems);
        let group = group.and_then(|group| u16::try_from(group).ok());
        let mut transports = transports(portal, problems);
        let rdma = transports.map_or(ByDevice::No, |transports| rdma(portal, transports, problems));
        if let (ByDevice::Only, Some(at), Some(transports)) = (rdma, &portal.rdma, &mut transports) {
            alone(&at.place, portal, listen, transports, problems);
        }
        let drain = drain(&portal.drain, problems);
        let redirect = redirect(&portal.redirect, listen, problems);
        portals.push(listen.zip(cores).zip(group).zip(transports).zip(drain).zip(redirect).map(
            |(((((listen, cores), group), transports), drain), redirect)| Portal {
                name: portal.name.as_ref().map(|at| at.value.clone()),
                listen,
                cores,
                group,
                transports,
                rdma,
                drain,
                redirect,
            },
        ));
    }
    portals.into_iter().collect()
}

fn drain(text: &Text, problems: &mut Collector<'_>) -> Option<Option<Duration>> {
    let Some(at) = text else { return Some(None) };
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(3600));
    problems.check(&at.place, scalar::duration(&at.value, least, most)).map(Some)
}

/// The redirect address: one that initiators can connect to, and not the portal's own.
fn redirect(
    text: &Text,
    listen: Option<SocketAddr>,
    problems: &mut Collector<'_>,
) -> Option<Option<SocketAddr>> {
    let Some(at) = text else { return Some(None) };
    let address = problems.check(&at.place, scalar::listen(&at.value))?;
    if address.ip().is_unspecified() || address.port() == 0 || Some(address) == listen {
        let what = format!("logins cannot be redirected to `{}`", at.value);
        let fix = "write the address and port of another portal, here or on another machine";
        problems.add(&at.place, Fault::new(what, fix));
        return None;
    }
    Some(Some(address))
}

/// When logins are redirected to a portal of this daemon, that portal must accept them, or initiators would
/// go in circles, or be refused.
fn check_redirects(
    raw: &[RawPortal],
    portals: &[Portal],
    targets: &[Target],
    machine: &Machine,
    problems: &mut Collector<'_>,
) {
    let addresses: Vec<SocketAddr> = portals.iter().map(|portal| portal.listen).collect();
    for (index, (raw, portal)) in raw.iter().zip(portals).enumerate() {
        let (Some(at), Some(address)) = (&raw.redirect, portal.redirect) else { continue };
        // A portal that listens on all addresses has only those of this machine.
        let is_here = |to: &usize| addresses[*to] == address || machine.has(address.ip());
        let Some(to) = portal_of(&addresses, address).filter(is_here) else { continue };
        let Portal { drain, redirect, transports, .. } = &portals[to];
        let lacks = |target: &&Target| target.portals.contains(&index) && !target.portals.contains(&to);
        let unserved = targets.iter().find(lacks).map(|target| format!("does not serve {}", target.name));
        let why = match (drain, redirect) {
            (Some(_), _) if to == index => Some("is an address of this portal, which is drained".to_owned()),
            (Some(_), _) => Some("is drained".to_owned()),
            (None, Some(next)) if *next != address => Some("redirects them, too".to_owned()),
            (None, _) if !transports.any_iscsi() => Some("accepts no iSCSI logins".to_owned()),
            (None, _) => unserved,
        };
        if let Some(why) = why {
            let what = format!("logins cannot be redirected to `{}`, which {why}", at.value);
            let fix = if to == index {
                "write the address of another portal, here or on another machine, or remove `redirect`"
            } else {
                "write the address of a portal that accepts them, or change that one first"
            };
            problems.add(&at.place, Fault::new(what, fix));
        }
    }
}

fn transports(portal: &RawPortal, problems: &mut Collector<'_>) -> Option<Transports> {
    let Some(named) = &portal.transports else { return Some(Transports::DEFAULT) };
    let mut transports = Transports { iscsi: false, iser: false, srp: false };
    let mut are_known = true;
    for name in named {
        match name.value.as_str() {
            "iscsi" => transports.iscsi = true,
            "iser" => transports.iser = true,
            "srp" => transports.srp = true,
            other => {
                are_known = false;
                let fault = Fault::new(
                    format!("`{other}` is not a transport"),
                    suggest(other, ["iscsi", "iser", "srp"]),
                );
                problems.add(&name.place, fault);
            }
        }
    }
    if named.is_empty() {
        let fix = "name one, or leave the key out for iscsi and iser";
        problems.add(&portal.place.inner("transports"), Fault::new("a portal without a transport", fix));
    }
    (are_known && !named.is_empty()).then_some(transports)
}

/// How RDMA devices listen: `--rdma` applies to all portals with a protocol that they carry.
fn rdma(portal: &RawPortal, transports: Transports, problems: &mut Collector<'_>) -> ByDevice {
    let Some(at) = portal.rdma.as_ref().filter(|at| at.value != ByDevice::No) else { return ByDevice::No };
    let carries = transports.iser || transports.srp;
    if !carries && at.place.offset.is_some() {
        let fix = "add \"iser\" or \"srp\" to its `transports`, or leave `rdma` out";
        problems.add(&at.place, Fault::new("this portal offers no protocol for RDMA devices", fix));
    }
    if carries { at.value } else { ByDevice::No }
}

/// A portal without a TCP listener: it cannot offer iSCSI over TCP, nor have TCP choose its port.
fn alone(
    place: &Place,
    portal: &RawPortal,
    listen: Option<SocketAddr>,
    transports: &mut Transports,
    problems: &mut Collector<'_>,
) {
    if portal.transports.is_some() && transports.iscsi {
        let fix = "leave \"iscsi\" out of its `transports`, or write `rdma = true`";
        problems.add(place, Fault::new("iSCSI needs TCP, on which this portal does not listen", fix));
    }
    if listen.is_some_and(|listen| listen.port() == 0) {
        problems.add(
            place,
            Fault::new("RDMA devices alone cannot choose a free port", "write a port in `listen`"),
        );
    }
    transports.iscsi = false;
}

/// SRP has one target port per portal, through which it reaches the first target that has the portal.
fn check_srp(raw: &[RawPortal], portals: &[Portal], targets: &[Target], problems: &mut Collector<'_>) {
    for (index, (portal, raw)) in portals.iter().zip(raw).enumerate() {
        if portal.transports.srp && !targets.iter().any(|target| target.portals.contains(&index)) {
            let fix = "name the portal among the `portals` of the target that SRP initiators should reach";
            problems.add(&raw.place, Fault::new("a portal with SRP that no target uses", fix));
        }
    }
}

fn luns(raw: &Raw, machine: &Machine, problems: &mut Collector<'_>) -> Option<Vec<Lun>> {
    limit(raw.luns.iter().map(|l| &l.place), LUNS_MAX, problems);
    let (mut names, mut serials, mut paths) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut luns = Vec::new();
    for raw in &raw.luns {
        let lun = lun(raw, machine, problems);
        if let Some(lun) = &lun {
            unique(&mut names, lun.name.clone(), place_or(raw.name.as_ref(), &raw.place), "name", problems);
            unique(
                &mut serials,
                lun.serial.clone(),
                place_or(raw.serial.as_ref(), &raw.place),
                "serial number",
                problems,
            );
            if let StoreSpec::File { path, .. } | StoreSpec::Block { path } = &lun.store {
                unique(
                    &mut paths,
                    path.clone(),
                    place_or(raw.file.as_ref().or(raw.block.as_ref()), &raw.place),
                    "path",
                    problems,
                );
            }
        }
        luns.push(lun);
    }
    luns.into_iter().collect()
}

fn lun(raw: &RawLun, machine: &Machine, problems: &mut Collector<'_>) -> Option<Lun> {
    let name = required(&raw.name, &raw.place, "name", problems)
        .and_then(|at| problems.check(&at.place, scalar::label(&at.value)));
    let block_bytes = block_size(&raw.block_size, BLOCK_MIN, BLOCK_MIN, "block size", problems);
    let physical = block_bytes.and_then(|logical| {
        let default = if logical == BLOCK_MIN { 4096 } else { logical };
        block_size(&raw.physical_block_size, default, logical, "physical block size", problems)
    });
    let store = store(raw, machine, block_bytes, problems);
    let serial = text(&raw.serial, SERIAL_MAX, problems);
    let product = text(&raw.product, PRODUCT_MAX, problems);
    let aoe = aoe::address(raw, problems);
    let limits = limits::limits(&raw.limits, &raw.place, problems);
    let warn_at = limits::warn_at(raw, problems);
    let on = |switch: &Switch, default| switch.as_ref().map_or(default, |at| at.value);
    let (name, store) = name.zip(store)?;
    let is_memory = matches!(store, StoreSpec::Ram { .. } | StoreSpec::Null { .. });
    let serial_lasts = !is_memory || raw.serial.is_some();
    let serial = match serial? {
        Some(serial) => serial,
        None => problems.check(&raw.place, derived_serial(&name, &store, machine))?,
    };
    Some(Lun {
        block_bytes: u32::try_from(block_bytes?).ok()?,
        physical_block_bytes: u32::try_from(physical?).ok()?,
        serial,
        serial_lasts,
        product: product?.unwrap_or_else(|| "Virtual Disk".into()),
        read_only: on(&raw.read_only, false),
        write_cache: on(&raw.write_cache, true),
        thin: on(&raw.thin, true),
        warn_at: warn_at?,
        removable: on(&raw.removable, false),
        aoe: aoe?,
        limits: limits?,
        access: raw.access.as_ref().and_then(|at| cluster::access(&at.value)),
        name,
        store,
    })
}

/// An optional INQUIRY text: `None` if invalid, `Some(None)` if absent.
fn text(raw: &Text, most: usize, problems: &mut Collector<'_>) -> Option<Option<String>> {
    match raw {
        None => Some(None),
        Some(at) => problems.check(&at.place, scalar::printable(&at.value, most)).map(Some),
    }
}

fn block_size(raw: &Text, default: u64, least: u64, what: &str, problems: &mut Collector<'_>) -> Option<u64> {
    let Some(at) = raw else { return Some(default) };
    let bytes = problems.check(&at.place, scalar::size(&at.value))?;
    if !bytes.is_power_of_two() || !(least..=BLOCK_MAX).contains(&bytes) {
        let fix = format!("choose a power of two from {least} to {BLOCK_MAX}");
        problems.add(&at.place, Fault::new(format!("`{}` is not a {what}", at.value), fix));
        return None;
    }
    Some(bytes)
}

fn store(
    raw: &RawLun,
    machine: &Machine,
    block: Option<u64>,
    problems: &mut Collector<'_>,
) -> Option<StoreSpec> {
    let kinds = [&raw.ram, &raw.null, &raw.file, &raw.block, &raw.url, &raw.rbd];
    let mut given = kinds.into_iter().flatten();
    if given.next().is_none() && !problems.has(&raw.place) {
        problems.add(
            &raw.place,
            Fault::new("the LUN has no store", "add one of ram, null, file, block, url, rbd"),
        );
    }
    for at in given {
        problems.add(
            &at.place,
            Fault::new("the LUN has more than one store", "keep one of ram, null, file, block, url, rbd"),
        );
    }
    if raw.file.is_none() {
        refuse(&raw.size, "only a file takes a size", problems);
    }
    if raw.rbd.is_none() {
        let options = [&raw.conf, &raw.client, &raw.keyring, &raw.luks_passphrase_file];
        options.into_iter().for_each(|option| refuse(option, "only a Ceph image (rbd) has this", problems));
    }
    if raw.ram.is_none() {
        refuse(&raw.huge_pages, "only a disk in memory has this", problems);
    }
    if let Some(at) = &raw.ram {
        let pages = huge_pages(&raw.huge_pages, problems);
        let size = size(at, block, problems);
        return size.zip(pages).map(|(size, huge_pages)| StoreSpec::Ram { size, huge_pages });
    }
    if let Some(at) = &raw.null {
        return size(at, block, problems).map(|size| StoreSpec::Null { size });
    }
    if let Some(at) = &raw.block {
        return path("block", at, machine, problems).map(|path| StoreSpec::Block { path });
    }
    if let Some(at) = &raw.url {
        let asked = raw.block_size.as_ref().and(block).and_then(|bytes| u32::try_from(bytes).ok());
        return problems.check(&at.place, remote(&at.value, asked, &machine.base));
    }
    if let Some(at) = &raw.rbd {
        return image(raw, at, machine, problems);
    }
    let path = path("file", raw.file.as_ref()?, machine, problems);
    let size = match &raw.size {
        None => Some(None),
        Some(at) => size(at, block, problems).map(Some),
    };
    path.zip(size).map(|(path, size)| StoreSpec::File { path, size })
}

fn image(
    raw: &RawLun,
    at: &At<String>,
    machine: &Machine,
    problems: &mut Collector<'_>,
) -> Option<StoreSpec> {
    let image = RbdImage::parse(&at.value).map_err(|fault| Fault::new(fault.what, fault.fix));
    let image = problems.check(&at.place, image);
    let mut file = |option: &Text| match option {
        None => Some(None),
        Some(at) => {
            let instead = "name a file";
            problems.check(&at.place, scalar::path(Path::new(&at.value), &machine.base, instead)).map(Some)
        }
    };
    let (conf, keyring, passphrase) = (file(&raw.conf), file(&raw.keyring), file(&raw.luks_passphrase_file));
    let client = raw.client.as_ref().map(|at| rbd::client(&at.value));
    let image =
        RbdImage { conf: conf?, client, keyring: keyring?, luks_passphrase_file: passphrase?, ..image? };
    let image = Box::new(image);
    Some(StoreSpec::Rbd { image, names_unit: raw.serial.is_none() })
}

fn huge_pages(text: &Text, problems: &mut Collector<'_>) -> Option<HugePages> {
    let Some(at) = text else { return Some(HugePages::default()) };
    let pages = match at.value.as_str() {
        "auto" => Ok(HugePages::Auto),
        "always" => Ok(HugePages::Always),
        "never" => Ok(HugePages::Never),
        other => {
            let fix = "write auto, always or never";
            Err(Fault::new(format!("`{other}` is not a huge page setting"), fix))
        }
    };
    problems.check(&at.place, pages)
}

fn remote(url: &str, block_bytes: Option<u32>, base: &Path) -> Result<StoreSpec, Fault> {
    let fault = |error: UrlError| Fault::new(error.problem(), error.remedy());
    if NbdUrl::is_meant(url) {
        let url = NbdUrl::parse(url).map_err(fault)?;
        return Ok(StoreSpec::Nbd { url: Box::new(url.at(base)) });
    }
    let url = Url::given_at(url, base).map_err(fault)?;
    url.check_unit().map_err(fault)?;
    Ok(StoreSpec::Remote { url: Box::new(url), block_bytes })
}

fn size(at: &At<String>, block_bytes: Option<u64>, problems: &mut Collector<'_>) -> Option<u64> {
    let bytes = problems.check(&at.place, scalar::size(&at.value))?;
    if bytes == 0 {
        problems.add(&at.place, Fault::new("the size is zero", "give at least one block, such as 1G"));
        return None;
    }
    let block = block_bytes?;
    let Some(over @ 1..) = bytes.checked_rem(block) else { return Some(bytes) };
    let what = format!("{bytes} bytes are not a whole number of {block}-byte blocks");
    let (down, up) = (bytes - over, bytes - over + block);
    let fix = if down == 0 { format!("use {up}") } else { format!("use {down} or {up}") };
    problems.add(&at.place, Fault::new(what, fix));
    None
}

fn path(kind: &str, at: &At<String>, machine: &Machine, problems: &mut Collector<'_>) -> Option<PathBuf> {
    let instead = format!("write `url` instead of `{kind}`, or on the command line the URL alone");
    problems.check(&at.place, scalar::path(Path::new(&at.value), &machine.base, &instead))
}

/// A serial number that no other unit has: initiators treat units with the same serial number as one unit
/// (multipath). A store that outlives this process gets the same one at every start, from the machine's
/// identity; memory, whose content ends with the process, a new one.
fn derived_serial(name: &str, store: &StoreSpec, machine: &Machine) -> Result<String, Fault> {
    let lasting = |own: String| match &machine.id {
        Some(id) => Ok(format!("{id}\0{own}")),
        None => Err(Fault::new(
            "no serial number can be derived here: this machine has no identity (/etc/machine-id is missing or empty), \
             and another machine could serve another disk under the same one",
            "set `serial` to a text that no other disk has, or create an identity with systemd-machine-id-setup",
        )),
    };
    let text = match store {
        StoreSpec::File { path, .. } | StoreSpec::Block { path } => lasting(path.display().to_string())?,
        StoreSpec::Remote { url, .. } => lasting(url.to_string())?,
        StoreSpec::Nbd { url } => lasting(url.to_string())?,
        // The unit gets another one, from the image, once that is open; this one identifies it locally.
        StoreSpec::Rbd { image, .. } => {
            let conf = image.conf.as_ref().map(|path| path.display().to_string());
            lasting(format!("{image}\0{}", conf.unwrap_or_default()))?
        }
        StoreSpec::Ram { .. } | StoreSpec::Null { .. } => format!("{}\0{name}", machine.process),
    };
    Ok(hashed_serial(&text))
}

/// A serial number derived from a text.
pub fn hashed_serial(text: &str) -> String {
    // FNV-1a of 64 bits, which must never change.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The option's place, or that of the table that lacks it.
fn place_or<'a>(option: Option<&'a At<String>>, table: &'a Place) -> &'a Place {
    option.map_or(table, |at| &at.place)
}
