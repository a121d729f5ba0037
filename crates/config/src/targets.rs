//! Builds targets from the raw form: which LUNs they expose, through which portals, and to whom.

use super::checks::{count, limit, refuse, required, unique};
use super::limits;
use super::machine::Machine;
use super::model::*;
use super::private::read_secret;
use super::problems::{Collector, Fault, suggest};
use super::raw::*;
use super::scalar;
use proto::iscsi::chap::Algorithm;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// Minimum length of a CHAP secret: at least 96 bits (RFC 7143 section 9.2.1).
const SECRET_MIN: usize = 12;
const SECRET_MAX: usize = 255;
/// Maximum length of a CHAP name and of an alias, in bytes (RFC 7143 section 6.1: text values end at 255).
const TEXT_MAX: usize = 255;

/// Maximum length of a group's name.
const GROUP_NAME_MAX: usize = 64;

/// All targets.
pub(super) fn targets(raw: &Raw, machine: &Machine, problems: &mut Collector<'_>) -> Option<Vec<Target>> {
    limit(raw.targets.iter().map(|t| &t.place), TARGETS_MAX, problems);
    let mut names = BTreeMap::new();
    let mut secrets = Secrets::default();
    let index = Index::of(raw);
    let mut targets = Vec::new();
    for target in &raw.targets {
        targets.push(one_target(target, &index, machine, &mut names, &mut secrets, problems));
    }
    secrets.check_roles(problems);
    targets.into_iter().collect()
}

/// Lookup tables for the references of targets.
struct Index<'a> {
    /// LUN names and their positions in the list.
    luns: BTreeMap<&'a str, usize>,
    lun_count: usize,
    /// Names and addresses of portals, in order.
    portals: Vec<(Option<&'a str>, Option<SocketAddr>)>,
    only_target: bool,
}

impl<'a> Index<'a> {
    fn of(raw: &'a Raw) -> Index<'a> {
        let named =
            |(index, lun): (usize, &'a RawLun)| lun.name.as_ref().map(|at| (at.value.as_str(), index));
        let portal = |portal: &'a RawPortal| {
            let name = portal.name.as_ref().map(|at| at.value.as_str());
            (name, portal.listen.as_ref().and_then(|at| scalar::listen(&at.value).ok()))
        };
        Index {
            luns: raw.luns.iter().enumerate().filter_map(named).collect(),
            lun_count: raw.luns.len(),
            portals: raw.portals.iter().map(portal).collect(),
            only_target: raw.targets.len() == 1,
        }
    }
}

fn one_target(
    raw: &RawTarget,
    index: &Index<'_>,
    machine: &Machine,
    names: &mut BTreeMap<String, Place>,
    secrets: &mut Secrets,
    problems: &mut Collector<'_>,
) -> Option<Target> {
    let name = required(&raw.name, &raw.place, "name", problems).and_then(|at| {
        let name = problems.check(&at.place, scalar::iscsi_name(&at.value))?;
        unique(names, name.clone(), &at.place, "target name", problems);
        Some(name)
    });
    let alias = match &raw.alias {
        None => Some(None),
        Some(at) => problems.check(&at.place, plain_text(&at.value)).map(Some),
    };
    let sessions_max = count(&raw.sessions_max, 256, 65536, problems);
    let queue_depth = limits::queue_depth(&raw.queue_depth, problems);
    let portals = portals(raw, index, problems);
    let luns = target_luns(raw, index, problems);
    limit(raw.groups.iter().map(|g| &g.place), GROUPS_MAX, problems);
    let mut labels = BTreeMap::new();
    let mut groups = Vec::new();
    for group in &raw.groups {
        groups.push(one_group(group, index, machine, &mut labels, secrets, problems));
    }
    let groups = groups.into_iter().collect::<Option<Vec<Group>>>();
    Some(Target {
        name: name?,
        alias: alias?,
        sessions_max: sessions_max?,
        queue_depth: queue_depth?,
        portals: portals?,
        luns: luns?,
        groups: groups?,
    })
}

fn portals(raw: &RawTarget, index: &Index<'_>, problems: &mut Collector<'_>) -> Option<Vec<usize>> {
    let Some(list) = &raw.portals else { return Some((0..index.portals.len()).collect()) };
    let mut found = Vec::new();
    let mut complete = true;
    for at in list {
        let address = scalar::listen(&at.value).ok();
        let meant = |(name, listen): &(Option<&str>, Option<SocketAddr>)| {
            *name == Some(at.value.as_str()) || (address.is_some() && *listen == address)
        };
        let before = found.len();
        found.extend(
            index.portals.iter().enumerate().filter(|(_, portal)| meant(portal)).map(|(index, _)| index),
        );
        if found.len() == before {
            complete = false;
            let show = |(name, listen): &(Option<&str>, Option<SocketAddr>)| {
                name.map(str::to_string).or_else(|| listen.map(|listen| listen.to_string()))
            };
            let known: Vec<String> = index.portals.iter().filter_map(show).collect();
            let what = format!("there is no portal `{}`", at.value);
            problems.add(&at.place, Fault::new(what, suggest(&at.value, known.iter().map(String::as_str))));
        }
    }
    if list.is_empty() {
        let fault =
            Fault::new("a target without portals cannot be reached", "remove this to use all portals");
        problems.add(&raw.place.inner("portals"), fault);
        return None;
    }
    found.sort_unstable();
    found.dedup();
    complete.then_some(found)
}

fn target_luns(
    raw: &RawTarget,
    index: &Index<'_>,
    problems: &mut Collector<'_>,
) -> Option<Vec<(u16, usize)>> {
    if let Some(list) = &raw.luns {
        return lun_list(list, index, problems);
    }
    let needed = raw.groups.is_empty() || raw.groups.iter().any(|g| g.luns.is_none() && !is_on(&g.deny));
    if !needed {
        return Some(Vec::new());
    }
    if index.only_target {
        return Some((0..=LUN_NUMBER_MAX).zip(0..index.lun_count).collect());
    }
    let fault = Fault::new("with several targets each must name its LUNs", "add `luns = [\"name\"]`");
    problems.add(&raw.place.inner("luns"), fault);
    None
}

fn lun_list(
    list: &[RawLunRef],
    index: &Index<'_>,
    problems: &mut Collector<'_>,
) -> Option<Vec<(u16, usize)>> {
    let (mut numbers, mut used) = (BTreeMap::new(), BTreeMap::new());
    let mut luns = Vec::new();
    for (position, entry) in list.iter().enumerate() {
        let number_place = entry.number.as_ref().map_or(&entry.place, |at| &at.place);
        let number = entry.number.as_ref().map_or_else(|| position.to_string(), |at| at.value.clone());
        let number = problems.check(number_place, scalar::number(&number, 0, u64::from(LUN_NUMBER_MAX)));
        let number = number.and_then(|number| u16::try_from(number).ok());
        let lun =
            required(&entry.lun, &entry.place, "lun", problems).and_then(|at| find_lun(at, index, problems));
        let both = number.zip(lun);
        if let Some((number, lun)) = both {
            unique(&mut numbers, number, number_place, &format!("LUN number ({number})"), problems);
            unique(&mut used, lun, &entry.place, "LUN", problems);
        }
        luns.push(both);
    }
    let mut luns = luns.into_iter().collect::<Option<Vec<_>>>()?;
    luns.sort_unstable();
    Some(luns)
}

fn find_lun(at: &At<String>, index: &Index<'_>, problems: &mut Collector<'_>) -> Option<usize> {
    let found = index.luns.get(at.value.as_str()).copied();
    if found.is_none() {
        let fix = suggest(&at.value, index.luns.keys().copied());
        problems.add(&at.place, Fault::new(format!("there is no LUN `{}`", at.value), fix));
    }
    found
}

fn one_group(
    raw: &RawGroup,
    index: &Index<'_>,
    machine: &Machine,
    labels: &mut BTreeMap<String, Place>,
    secrets: &mut Secrets,
    problems: &mut Collector<'_>,
) -> Option<Group> {
    let name = required(&raw.name, &raw.place, "name", problems).and_then(|at| {
        let name = problems.check(&at.place, scalar::printable(&at.value, GROUP_NAME_MAX))?;
        unique(labels, name.clone(), &at.place, "group name", problems);
        Some(name)
    });
    let who = |key| raw.place.inner(key);
    let initiators = each(&raw.initiators, &who("initiators"), scalar::initiator_pattern, problems);
    let networks = each(&raw.networks, &who("networks"), scalar::network, problems);
    let luns = match &raw.luns {
        None => Some(None),
        Some(list) => lun_list(list, index, problems).map(Some),
    };
    let chap = match &raw.chap {
        None => Some(None),
        Some(chap) => one_chap(chap, machine, secrets, problems).map(Some),
    };
    let limits = limits::limits(&raw.limits, &raw.place, problems);
    let queue_depth = limits::queue_depth(&raw.queue_depth, problems);
    if is_on(&raw.deny) {
        let vain = "a group that denies its members shows them nothing";
        refuse(&raw.read_only, vain, problems);
        let RawLimits { iops_max, iops_burst, bytes_per_second_max, bytes_burst } = &raw.limits;
        [iops_max, iops_burst, bytes_per_second_max, bytes_burst, &raw.queue_depth]
            .into_iter()
            .for_each(|limit| refuse(limit, vain, problems));
        let places =
            [raw.luns.as_ref().map(|_| raw.place.inner("luns")), raw.chap.as_ref().map(|c| c.place.clone())];
        for place in places.iter().flatten() {
            problems.add(place, Fault::new(vain, "remove this"));
        }
    }
    Some(Group {
        name: name?,
        initiators: initiators?,
        networks: networks?,
        deny: is_on(&raw.deny),
        read_only: is_on(&raw.read_only),
        luns: luns?,
        chap: chap?,
        queue_depth: queue_depth?,
        limits: limits?,
    })
}

/// The criteria for membership in a group. An empty list could mean everybody or nobody: it must not expose a
/// disk.
fn each<T>(
    list: &Option<Vec<At<String>>>,
    place: &Place,
    parse: impl Fn(&str) -> Result<T, Fault>,
    problems: &mut Collector<'_>,
) -> Option<Vec<T>> {
    if list.as_ref().is_some_and(Vec::is_empty) {
        let fix = "remove the group or set `deny = true` to admit no one; remove this key to admit everyone";
        problems.add(place, Fault::new("an empty list matches no one", fix));
        return None;
    }
    let all: Vec<Option<T>> =
        list.iter().flatten().map(|at| problems.check(&at.place, parse(&at.value))).collect();
    all.into_iter().collect()
}

fn one_chap(
    raw: &RawChap,
    machine: &Machine,
    secrets: &mut Secrets,
    problems: &mut Collector<'_>,
) -> Option<Chap> {
    let user = required(&raw.user, &raw.place, "user", problems);
    let user = user.and_then(|at| problems.check(&at.place, plain_text(&at.value)));
    let secret = secret([&raw.secret, &raw.secret_file], ["secret", "secret_file"], raw, machine, problems);
    if let Some(at) = &secret {
        secrets.initiators.push(at.clone());
    }
    let wants_mutual =
        [&raw.mutual_user, &raw.mutual_secret, &raw.mutual_secret_file].iter().any(|t| t.is_some());
    let mutual = if wants_mutual {
        let name = required(&raw.mutual_user, &raw.place, "mutual_user", problems);
        let name = name.and_then(|at| problems.check(&at.place, plain_text(&at.value)));
        let (options, keys) =
            ([&raw.mutual_secret, &raw.mutual_secret_file], ["mutual_secret", "mutual_secret_file"]);
        let secret = self::secret(options, keys, raw, machine, problems);
        if let Some(at) = &secret {
            secrets.targets.push(at.clone());
        }
        name.zip(secret).map(|(name, at)| Some((name, at.value)))
    } else {
        Some(None)
    };
    let algorithms = algorithms(raw, problems);
    Some(Chap { user: user?, secret: secret?.value, mutual: mutual?, algorithms: algorithms? })
}

fn algorithms(raw: &RawChap, problems: &mut Collector<'_>) -> Option<Vec<Algorithm>> {
    let Some(list) = &raw.algorithms else { return Some(Vec::new()) };
    if list.is_empty() {
        let fault = Fault::new("an empty list accepts nothing", "remove this key to accept all");
        problems.add(&raw.place.inner("algorithms"), fault);
        return None;
    }
    let mut seen = BTreeMap::new();
    let algorithm = |at: &At<String>| {
        let Some(algorithm) = Algorithm::named(&at.value) else {
            let what = format!("`{}` is not a CHAP algorithm", at.value);
            let fix = suggest(&at.value, Algorithm::ALL.map(Algorithm::name));
            problems.add(&at.place, Fault::new(what, fix));
            return None;
        };
        unique(&mut seen, algorithm.number(), &at.place, "algorithm", problems);
        Some(algorithm)
    };
    // All of them, so that every fault is reported at once.
    let all: Vec<Option<Algorithm>> = list.iter().map(algorithm).collect();
    all.into_iter().collect()
}

/// The secret in the file itself, or in a file of its own: exactly one of the two.
fn secret(
    [inline, file]: [&Text; 2],
    [inline_key, file_key]: [&str; 2],
    raw: &RawChap,
    machine: &Machine,
    problems: &mut Collector<'_>,
) -> Option<At<Vec<u8>>> {
    let (at, bytes) = match (inline, file) {
        (Some(at), None) => (at, at.value.clone().into_bytes()),
        (None, Some(at)) => {
            (at, problems.check(&at.place, read_secret(Path::new(&at.value), &machine.base, file_key))?)
        }
        (Some(_), Some(at)) => {
            let what = format!("the secret is given twice, by {inline_key} and by {file_key}");
            problems.add(&at.place, Fault::new(what, "keep one of them"));
            return None;
        }
        (None, None) => {
            let fix = format!("add `{file_key} = \"path\"` or `{inline_key} = \"...\"`");
            problems.add(&raw.place.inner(inline_key), Fault::new("this is missing", fix));
            return None;
        }
    };
    if !(SECRET_MIN..=SECRET_MAX).contains(&bytes.len()) {
        let what =
            format!("the secret has {} bytes; CHAP secrets have {SECRET_MIN} to {SECRET_MAX}", bytes.len());
        problems.add(&at.place, Fault::new(what, "use 16 random characters; Windows accepts 12 to 16"));
        return None;
    }
    Some(At::new(bytes, &at.place))
}

/// Secrets by the role that they authenticate.
#[derive(Default)]
struct Secrets {
    initiators: Vec<At<Vec<u8>>>,
    targets: Vec<At<Vec<u8>>>,
}

impl Secrets {
    /// No secret may serve both roles (RFC 7143 section 9.2.1): it would allow a reflection attack.
    fn check_roles(&self, problems: &mut Collector<'_>) {
        let owners: BTreeMap<&[u8], &Place> =
            self.initiators.iter().map(|at| (at.value.as_slice(), &at.place)).collect();
        for at in &self.targets {
            if let Some(other) = owners.get(at.value.as_slice()) {
                let what =
                    format!("this secret also authenticates initiators, in {}", problems.locate(other));
                problems.add(&at.place, Fault::new(what, "use different secrets for the two directions"));
            }
        }
    }
}

fn is_on(switch: &Switch) -> bool {
    switch.as_ref().is_some_and(|at| at.value)
}

/// Text that can be the value of a login key.
fn plain_text(text: &str) -> Result<String, Fault> {
    if (1..=TEXT_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(text.into());
    }
    Err(Fault::new(
        format!("{text:?} is empty, too long, or has characters that are not allowed"),
        format!(
            "use 1 to \
    {TEXT_MAX} bytes of plain text"
        ),
    ))
}
