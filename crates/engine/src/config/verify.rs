//! From what is written to a [`Config`] in which every reference holds, or all that is wrong with it.

use super::raw::{RawChap, RawConfig, RawGroup, RawLun, RawMapping, RawPortal, RawTarget};
use super::spec::parse_size;
use super::{Chap, Config, Group, Lun, Network, Poll, Portal, Problem, Problems, StoreSpec, Target};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Where portals listen unless told otherwise.
pub(super) const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3260);
/// The highest LUN number: flat space addressing has 14 bits (SAM-5 section 4.7.7).
pub(super) const LUN_MAX: u16 = 16383;
/// The longest iSCSI name, in bytes (RFC 7143 section 4.2.7.2).
const NAME_BYTES_MAX: usize = 223;
/// The shortest CHAP secret, in bytes: 96 bits (RFC 7143 section 9.2.1).
const SECRET_BYTES_MIN: usize = 12;

/// Where the raw configuration comes from: for the places in errors, and for relative paths.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// A file with this text, in this directory.
    File { text: &'a str, dir: &'a Path },
    /// The command line, with these LUN SPECs.
    Options { specs: &'a [String] },
}

/// Verifies.
pub(super) fn verify(raw: RawConfig, source: Source<'_>) -> Result<Config, Problems> {
    let mut check = Check { source, problems: Vec::new() };
    let config = check.config(raw);
    if check.problems.is_empty() { Ok(config) } else { Err(Problems(check.problems)) }
}

struct Check<'a> {
    source: Source<'a>,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn wrong(&mut self, place: &str, what: impl Into<String>) {
        self.problems.push(Problem { place: place.to_owned(), what: what.into() });
    }

    /// `kind[n] (line l)`, or the option.
    fn place<T>(&self, kind: &str, index: usize, entry: &Spanned<T>) -> String {
        match self.source {
            Source::File { text, .. } => {
                let before = text.get(..entry.span().start).unwrap_or_default();
                format!("{kind}[{index}] (line {})", before.matches('\n').count() + 1)
            }
            Source::Options { specs } => match specs.get(index).filter(|_| kind == "lun") {
                Some(spec) => format!("--lun {spec}"),
                None => format!("--{kind}"),
            },
        }
    }

    fn path(&self, path: PathBuf) -> PathBuf {
        match self.source {
            Source::File { dir, .. } => dir.join(path),
            Source::Options { .. } => path,
        }
    }

    fn config(&mut self, raw: RawConfig) -> Config {
        let usable = reactor::topology::usable_cores().unwrap_or_else(|_| vec![0]);
        let cores = self.cores("cores", raw.cores.as_deref(), &usable);
        let poll = match raw.poll.as_deref() {
            None | Some("adaptive") => Poll::Adaptive,
            Some("always") => Poll::Always,
            Some("never") => Poll::Never,
            Some(other) => {
                self.wrong("poll", format!("`{other}` is none of adaptive, always, never"));
                Poll::Adaptive
            }
        };
        let mut portals = Vec::new();
        let mut portal_names = Vec::new();
        for (index, entry) in raw.portals.into_iter().enumerate() {
            let place = self.place("portal", index, &entry);
            let entry = entry.into_inner();
            portal_names.push(entry.name.clone().unwrap_or_else(|| entry.listen.clone()));
            let portal = self.portal(&place, &entry, &cores);
            if portals.iter().any(|other: &Portal| other.listen == portal.listen && portal.listen.port() != 0)
            {
                self.wrong(&place, format!("another portal listens on {} already", portal.listen));
            }
            portals.push(portal);
        }
        if portals.is_empty() {
            portals.push(Portal { listen: LISTEN, cores: cores.clone(), group: 1 });
            portal_names.push(LISTEN.to_string());
        }
        let luns = self.luns(raw.luns);
        let mut targets: Vec<Target> = Vec::new();
        for (index, entry) in raw.targets.into_iter().enumerate() {
            let place = self.place("target", index, &entry);
            let target = self.target(&place, entry.into_inner(), &luns, &portal_names);
            if targets.iter().any(|other| other.name == target.name) {
                self.wrong(&place, format!("another target is named {} already", target.name));
            }
            targets.push(target);
        }
        if targets.is_empty() {
            self.wrong("target", "there is no target; add one: [[target]] with name and luns");
        }
        Config {
            cores,
            poll,
            state_dir: raw.state_dir.map(|dir| self.path(dir)),
            luns,
            targets,
            portals,
            login_timeout: Duration::from_secs(self.seconds("login_timeout_s", raw.login_timeout_s, 15)),
            keep_alive: Duration::from_secs(self.seconds("keep_alive_s", raw.keep_alive_s, 30)),
            logins_max: raw.logins_max.unwrap_or(1024).max(1),
        }
    }

    fn seconds(&mut self, place: &str, given: Option<u64>, default: u64) -> u64 {
        match given {
            Some(0) => {
                self.wrong(place, "0 seconds is no time; use 1 or more");
                default
            }
            Some(seconds) => seconds,
            None => default,
        }
    }

    /// `all`, or numbers and ranges: `0,2-3`.
    fn cores(&mut self, place: &str, list: Option<&str>, usable: &[usize]) -> Vec<usize> {
        let Some(list) = list.filter(|list| *list != "all") else { return usable.to_vec() };
        let mut cores = Vec::new();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
                (Ok(first), Ok(last)) if first <= last && last < 4096 => cores.extend(first..=last),
                _ => self.wrong(
                    place,
                    format!("`{part}` is no core or range of cores; write a list like 0,2-3, or all"),
                ),
            }
        }
        cores.sort_unstable();
        cores.dedup();
        for core in &cores {
            if !usable.contains(core) {
                let have: Vec<String> = usable.iter().map(usize::to_string).collect();
                self.wrong(place, format!("core {core} cannot be used here; there are {}", have.join(",")));
            }
        }
        if cores.is_empty() { usable.to_vec() } else { cores }
    }

    fn portal(&mut self, place: &str, raw: &RawPortal, cores: &[usize]) -> Portal {
        let listen = parse_listen(&raw.listen).unwrap_or_else(|error| {
            self.wrong(&format!("{place}.listen"), error);
            LISTEN
        });
        let cores = match raw.cores.as_deref() {
            Some(list) => self.cores(&format!("{place}.cores"), Some(list), cores),
            None => cores.to_vec(),
        };
        if raw.group == Some(0) {
            self.wrong(&format!("{place}.group"), "portal groups are numbered from 1");
        }
        Portal { listen, cores, group: raw.group.unwrap_or(1).max(1) }
    }

    fn luns(&mut self, raw: Vec<Spanned<RawLun>>) -> Vec<Lun> {
        let mut luns: Vec<Lun> = Vec::new();
        for (index, entry) in raw.into_iter().enumerate() {
            let place = self.place("lun", index, &entry);
            let lun = self.lun(&place, index, entry.into_inner());
            for other in &luns {
                if other.name == lun.name {
                    self.wrong(
                        &place,
                        format!("another LUN is named {} already; give it another name=", lun.name),
                    );
                } else if other.serial == lun.serial {
                    self.wrong(
                        &place,
                        format!(
                            "LUN {} has the serial {} already; serials must differ",
                            other.name, lun.serial
                        ),
                    );
                }
            }
            luns.push(lun);
        }
        luns
    }

    fn lun(&mut self, place: &str, index: usize, raw: RawLun) -> Lun {
        let block_bytes = self.block_size(place, "block size (bs)", raw.block_size.as_deref(), 512);
        let default = if block_bytes < 4096 { 4096 } else { block_bytes };
        let physical =
            self.block_size(place, "physical block size (pbs)", raw.physical_block_size.as_deref(), default);
        if physical < block_bytes {
            self.wrong(
                place,
                format!("the physical block size {physical} is below the block size {block_bytes}"),
            );
        }
        let name = raw.name.clone().unwrap_or_else(|| format!("lun{index}"));
        let store = self.store(place, &raw, block_bytes);
        let serial = raw.serial.unwrap_or_else(|| default_serial(&name, &store));
        if serial.is_empty() || serial.len() > 32 || !serial.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.wrong(
                place,
                format!("serial `{serial}` must be 1 to 32 printable ASCII characters without spaces"),
            );
        }
        let product = raw.product.unwrap_or_else(|| "Virtual Disk".to_owned());
        if product.is_empty()
            || product.len() > 16
            || !product.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        {
            self.wrong(place, format!("product `{product}` must be 1 to 16 printable ASCII characters"));
        }
        Lun {
            name,
            store,
            block_bytes,
            physical_block_bytes: physical.max(block_bytes),
            serial,
            product,
            read_only: raw.read_only.unwrap_or(false),
            write_cache: raw.write_cache.unwrap_or(true),
            thin: raw.thin.unwrap_or(true),
            removable: raw.removable.unwrap_or(false),
        }
    }

    fn block_size(&mut self, place: &str, what: &str, text: Option<&str>, default: u32) -> u32 {
        let Some(text) = text else { return default };
        match parse_size(text).map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)) {
            Ok(bytes) if (512..=65536).contains(&bytes) && bytes.is_power_of_two() => bytes,
            Ok(_) => {
                self.wrong(place, format!("{what} {text} must be a power of two from 512 to 65536"));
                default
            }
            Err(error) => {
                self.wrong(place, format!("{what}: {error}"));
                default
            }
        }
    }

    fn store(&mut self, place: &str, raw: &RawLun, block_bytes: u32) -> StoreSpec {
        let kinds = [raw.ram.is_some(), raw.null.is_some(), raw.file.is_some(), raw.block.is_some()];
        if kinds.iter().filter(|given| **given).count() != 1 {
            self.wrong(place, "a LUN has exactly one of ram, null, file, block");
            return StoreSpec::Null { size: u64::from(block_bytes) };
        }
        let has_size = raw.file.is_some();
        if raw.size.is_some() && !has_size {
            self.wrong(
                place,
                "size belongs to file; ram and null carry theirs themselves, block devices have one",
            );
        }
        if let Some(text) = &raw.ram {
            return StoreSpec::Ram { size: self.size(place, text, block_bytes) };
        }
        if let Some(text) = &raw.null {
            return StoreSpec::Null { size: self.size(place, text, block_bytes) };
        }
        if let Some(path) = &raw.file {
            self.check_path(place, path);
            let size = raw.size.as_ref().map(|text| self.size(place, text, block_bytes));
            return StoreSpec::File { path: self.path(path.clone()), size };
        }
        let path = raw.block.clone().unwrap_or_default();
        self.check_path(place, &path);
        StoreSpec::Block { path: self.path(path) }
    }

    fn check_path(&mut self, place: &str, path: &Path) {
        if path.as_os_str().is_empty() {
            self.wrong(place, "the path is empty");
        }
    }

    fn size(&mut self, place: &str, text: &str, block_bytes: u32) -> u64 {
        let block_bytes = u64::from(block_bytes);
        match parse_size(text) {
            Ok(0) => self.wrong(place, "the size is 0"),
            Ok(bytes) if bytes % block_bytes != 0 => {
                self.wrong(place, format!("size {text} is not a multiple of the block size {block_bytes}"));
            }
            Ok(bytes) => return bytes,
            Err(error) => self.wrong(place, error),
        }
        block_bytes
    }

    fn target(&mut self, place: &str, raw: RawTarget, luns: &[Lun], portal_names: &[String]) -> Target {
        let name = raw.name.to_lowercase();
        if let Err(error) = check_name(&name) {
            self.wrong(&format!("{place}.name"), error);
        }
        let portals = match raw.portals {
            None => (0..portal_names.len()).collect(),
            Some(wanted) => {
                let mut portals = Vec::new();
                for wanted in wanted {
                    match portal_names.iter().position(|name| *name == wanted) {
                        Some(index) => portals.push(index),
                        None => self.wrong(
                            &format!("{place}.portals"),
                            format!("there is no portal `{wanted}`; there are {}", portal_names.join(", ")),
                        ),
                    }
                }
                if portals.is_empty() {
                    self.wrong(&format!("{place}.portals"), "the target can be reached through no portal");
                }
                portals
            }
        };
        let mapped = self.mappings(&format!("{place}.luns"), &raw.luns, luns);
        let mut groups = Vec::new();
        for (index, entry) in raw.groups.into_iter().enumerate() {
            let place = format!("{place}.{}", self.place("group", index, &entry));
            groups.push(self.group(&place, entry.into_inner(), luns));
        }
        if raw.sessions_max == Some(0) {
            self.wrong(
                &format!("{place}.sessions_max"),
                "with 0 nobody could log in; leave it out for the default",
            );
        }
        Target {
            name,
            alias: raw.alias,
            sessions_max: raw.sessions_max.unwrap_or(16384),
            portals,
            luns: mapped,
            groups,
        }
    }

    fn mappings(&mut self, place: &str, raw: &[RawMapping], luns: &[Lun]) -> Vec<(u16, usize)> {
        let mut mapped: Vec<(u16, usize)> = Vec::new();
        for mapping in raw {
            if mapping.number > LUN_MAX {
                self.wrong(place, format!("LUN number {} is above {LUN_MAX}", mapping.number));
            }
            if mapped.iter().any(|(number, _)| *number == mapping.number) {
                self.wrong(place, format!("LUN number {} is given twice", mapping.number));
            }
            match luns.iter().position(|lun| lun.name == mapping.lun) {
                Some(index) => mapped.push((mapping.number, index)),
                None => {
                    let names: Vec<&str> = luns.iter().map(|lun| lun.name.as_str()).collect();
                    self.wrong(
                        place,
                        format!("there is no LUN `{}`; there are {}", mapping.lun, names.join(", ")),
                    );
                }
            }
        }
        mapped.sort_unstable();
        mapped
    }

    fn group(&mut self, place: &str, raw: RawGroup, luns: &[Lun]) -> Group {
        let mut networks = Vec::new();
        for text in &raw.networks {
            match parse_network(text) {
                Some(network) => networks.push(network),
                None => self.wrong(
                    &format!("{place}.networks"),
                    format!(
                        "`{text}` is no network; write ADDRESS/PREFIX with host bits zero, like 192.0.2.0/24"
                    ),
                ),
            }
        }
        let chap = raw.chap.and_then(|chap| self.chap(&format!("{place}.chap"), chap));
        let luns = raw.luns.map(|list| self.mappings(&format!("{place}.luns"), &list, luns));
        Group {
            name: raw.name,
            initiators: raw.initiators,
            networks,
            deny: raw.deny,
            read_only: raw.read_only,
            luns,
            chap,
        }
    }

    fn chap(&mut self, place: &str, raw: RawChap) -> Option<Chap> {
        let secret = self.secret(&format!("{place}.secret"), raw.secret, raw.secret_file)?;
        let mutual = match raw.mutual_user {
            None if raw.mutual_secret.is_some() || raw.mutual_secret_file.is_some() => {
                self.wrong(place, "mutual_secret needs mutual_user beside it");
                None
            }
            None => None,
            Some(user) => {
                let place = format!("{place}.mutual_secret");
                let own = self.secret(&place, raw.mutual_secret, raw.mutual_secret_file)?;
                if own == secret {
                    // RFC 7143 section 9.2.1: the same secret both ways allows reflection.
                    self.wrong(&place, "must differ from secret");
                }
                Some((user, own))
            }
        };
        Some(Chap { user: raw.user, secret, mutual })
    }

    fn secret(&mut self, place: &str, inline: Option<String>, file: Option<PathBuf>) -> Option<Vec<u8>> {
        let secret = match (inline, file) {
            (Some(secret), None) => secret.into_bytes(),
            (None, Some(path)) => match read_secret(&self.path(path)) {
                Ok(secret) => secret,
                Err(error) => {
                    self.wrong(place, error);
                    return None;
                }
            },
            _ => {
                self.wrong(
                    place,
                    "give exactly one: the secret itself, or the file that holds it (..._file)",
                );
                return None;
            }
        };
        if secret.len() < SECRET_BYTES_MIN {
            self.wrong(
                place,
                format!("the secret is shorter than {SECRET_BYTES_MIN} bytes (RFC 7143 section 9.2.1)"),
            );
        }
        Some(secret)
    }
}

/// The serial of a LUN that has none given: the same as long as it is the same file, device or name.
fn default_serial(name: &str, store: &StoreSpec) -> String {
    let what = match store {
        StoreSpec::Null { .. } | StoreSpec::Ram { .. } => name.to_owned(),
        StoreSpec::File { path, .. } | StoreSpec::Block { path } => path.display().to_string(),
    };
    // FNV-1a, 64 bits.
    let hash = what.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016X}")
}

/// A secret from a file that nobody but its owner may read.
fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(format!("{shown} can be read by others; chmod 600 it"));
    }
    let mut secret = fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
    while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        secret.pop();
    }
    Ok(secret)
}

/// ADDRESS:PORT; the port may be left out.
pub(super) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>().ok();
    let bare =
        || text.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, LISTEN.port()));
    with_port
        .or_else(bare)
        .ok_or_else(|| format!("`{text}` is no address; write ADDRESS:PORT, like 0.0.0.0:3260 or [::]:3260"))
}

fn parse_network(text: &str) -> Option<Network> {
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().ok()?;
    let (bits, width) = match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let prefix: u8 = if prefix.is_empty() { width } else { prefix.parse().ok()? };
    let host_bits = if prefix == 0 { bits } else { bits.checked_shl(u32::from(prefix)).unwrap_or(0) };
    (prefix <= width && host_bits == 0).then_some(Network { address, prefix })
}

/// Whether this is an iSCSI name (RFC 7143 section 4.2.7, RFC 3722).
fn check_name(name: &str) -> Result<(), String> {
    let hex = |text: &str, lengths: &[usize]| {
        lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | ':');
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("the name is longer than {NAME_BYTES_MAX} bytes"));
    }
    let good = if let Some(rest) = name.strip_prefix("iqn.") {
        let month = rest.get(5..7).and_then(|month| month.parse::<u8>().ok());
        let dated = rest.get(..4).is_some_and(|year| year.bytes().all(|byte| byte.is_ascii_digit()))
            && rest.get(4..5) == Some("-")
            && month.is_some_and(|month| (1..=12).contains(&month));
        dated && rest.get(7..8) == Some(".") && rest.len() > 8 && rest.chars().all(allowed)
    } else if let Some(rest) = name.strip_prefix("eui.") {
        hex(rest, &[16])
    } else if let Some(rest) = name.strip_prefix("naa.") {
        hex(rest, &[16, 32])
    } else {
        false
    };
    if good {
        return Ok(());
    }
    Err(format!(
        "`{name}` is no iSCSI name; write iqn.YYYY-MM.DOMAIN:ANYTHING in letters, digits, `-`, `.` and `:` \
         (or eui. with 16, naa. with 16 or 32 hex digits)"
    ))
}

#[cfg(test)]
mod tests;
