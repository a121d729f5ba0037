//! The plan of a change: its steps, described for people, and what is not allowed.

use super::{fault, refused};
use admin::{Fault, Refusal, Refused};
use config::{
    AdminAccess, ByDevice, Config, Group, Lun, Portal, PortalGroup, Preflight, StepOfChange, StoreSpec,
    Target, diff,
};
use std::fmt;
use std::fs::Metadata;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A change that is possible, as far as is known beforehand.
pub(super) struct Planned {
    /// What is removed first, including LUNs whose files are truncated.
    pub(super) leaving: Vec<Step>,
    /// What is served in between.
    pub(super) between: Config,
    pub(super) cuts: Vec<Cut>,
    /// What is added, and finally what grows, which cannot be rolled back.
    pub(super) coming: Vec<Step>,
}

impl Planned {
    /// The plan from the present configuration to the desired one; only one LUN may lose data.
    ///
    /// # Errors
    /// Why the change cannot be made.
    pub(super) fn of(
        before: Config,
        config: Config,
        may_lose_data: Option<&str>,
    ) -> Result<Planned, Refused> {
        let unless = |faults: Vec<Fault>, title: &str| match faults.is_empty() {
            true => Ok(()),
            false => Err(refused(Refusal::Conflict, title, faults)),
        };
        let cuts = cuts(&before, &config);
        let unwanted = cuts.iter().filter(|cut| may_lose_data != Some(&cut.name)).map(Cut::fault).collect();
        unless(unwanted, "data would be lost; nothing was changed")?;
        // A LUN is removed before its file is truncated, and added again afterwards.
        let gone =
            |config: Config, cut: &Cut| StepOfChange::RemoveLun(cut.name.clone()).after(&config, &config);
        let between = cuts.iter().fold(before.clone(), gone);
        let planned = |from: &Config, to: &Config| {
            let needs_restart =
                |faults| refused(Refusal::Conflict, "this needs a restart; nothing was changed", faults);
            plan(from, to).map_err(needs_restart)
        };
        let (leaving, mut coming) = (planned(&before, &between)?, planned(&between, &config)?);
        coming.sort_by_key(|step| grows(&between, &config, &step.step));
        let missing = missing(&before, &config, &coming, &engine::ThisMachine);
        unless(missing, "a LUN cannot be opened; nothing was changed")?;
        unless(taken_portals(&config, &coming), "a portal cannot be opened; nothing was changed")?;
        unless(misplaced(&before, &leaving, &coming), "data would be lost; nothing was changed")?;
        Ok(Planned { leaving, between, cuts, coming })
    }

    /// Describes all steps.
    pub(super) fn texts(&self) -> Vec<String> {
        let text = |step: &Step| step.text.clone();
        let cuts = self.cuts.iter().map(Cut::to_string);
        self.leaving.iter().map(text).chain(cuts).chain(self.coming.iter().map(text)).collect()
    }
}

/// Whether a step grows a file.
fn grows(old: &Config, new: &Config, step: &StepOfChange) -> bool {
    let StepOfChange::ChangeLun(name) = step else { return false };
    find(old, name).zip(find(new, name)).is_some_and(|(old, new)| old.store != new.store)
}

/// Portals that cannot listen. If another portal leaves the port first, that is only known then.
fn taken_portals(new: &Config, steps: &[Step]) -> Vec<Fault> {
    let leaves = |port: u16| {
        let mut all = steps.iter();
        all.any(|step| matches!(step.step, StepOfChange::RemovePortal(address) if address.port() == port))
    };
    let taken = |step: &Step| {
        let StepOfChange::AddPortal(address) = step.step else { return None };
        let by_tcp = |portal: &&Portal| portal.listen == address && portal.rdma != ByDevice::Only;
        new.portals.iter().find(by_tcp).filter(|_| !leaves(address.port()))?;
        let error = TcpListener::bind(address).err()?;
        let fix = "choose another port, or an address that an interface of this machine has";
        Some(fault(&step.text, &error.to_string(), fix))
    };
    steps.iter().filter_map(taken).collect()
}

/// One step, and its description.
pub(super) struct Step {
    /// For the engine.
    pub(super) step: StepOfChange,
    /// For people.
    pub(super) text: String,
}

/// The steps from `old` to `new`.
///
/// # Errors
/// Changes that need a restart, or would lose data without permission.
fn plan(old: &Config, new: &Config) -> Result<Vec<Step>, Vec<Fault>> {
    let steps = diff(old, new);
    let comes =
        |name: &str| steps.iter().any(|step| matches!(step, StepOfChange::AddLun(new) if new == name));
    let fault = |step: &StepOfChange| match step {
        StepOfChange::Restart(option) => Some(Fault {
            place: (*option).into(),
            what: "this takes effect only at the next start".into(),
            fix: "restart the daemon, or revert this".into(),
        }),
        StepOfChange::RemoveLun(name) if comes(name) && is_memory(old, name) => Some(Fault {
            place: format!("LUN {name}"),
            what: "it is in memory, and its replacement would be empty".into(),
            fix: "give the new one another name if the old contents may be lost, or revert this".into(),
        }),
        _ => None,
    };
    let faults: Vec<Fault> = steps.iter().filter_map(fault).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    let described = |step: StepOfChange| Step { text: text(&step, old, new), step };
    Ok(steps.into_iter().map(described).collect())
}

/// New LUNs that cannot be opened, as far as is known before anything is changed.
fn missing(old: &Config, new: &Config, steps: &[Step], preflight: &dyn Preflight) -> Vec<Fault> {
    // The store of a LUN that is removed is locked until then.
    let is_ours = |lun: &Lun| old.luns.iter().any(|other| path(other).is_some() && path(other) == path(lun));
    let missing = |step: &Step| {
        let StepOfChange::AddLun(name) = &step.step else { return None };
        let lun = find(new, name).filter(|lun| !is_ours(lun))?;
        let fault = preflight.store(lun).err()?;
        Some(Fault { place: step.text.clone(), what: fault.what, fix: fault.fix })
    };
    steps.iter().filter_map(missing).collect()
}

/// LUNs that would be reopened with another file: theirs was deleted, moved or replaced meanwhile, and would
/// be lost when it is closed.
fn misplaced(old: &Config, leaving: &[Step], coming: &[Step]) -> Vec<Fault> {
    let comes = |name: &str| coming.iter().any(|step| step.step == StepOfChange::AddLun(name.into()));
    let misplaced = |step: &Step| {
        let StepOfChange::RemoveLun(name) = &step.step else { return None };
        let path = find(old, name).filter(|_| comes(name)).and_then(path)?;
        let what = match path.metadata() {
            Ok(found) if is_open_here(path, &found) => return None,
            Ok(_) => {
                "another file is at its path now; the daemon would lose the one that it serves".to_owned()
            }
            Err(error) => {
                format!("its file is no longer at its path ({error}), and would be replaced by a new one")
            }
        };
        let fix = format!("put the file back to {}, or remove the LUN and add another one", path.display());
        Some(Fault { place: format!("LUN {name}"), what, fix })
    };
    leaving.iter().chain(coming).filter_map(misplaced).collect()
}

/// Whether this process has the file open that a path leads to. Only files opened by that name are checked: others may be on
/// file systems that do not answer.
fn is_open_here(path: &Path, file: &Metadata) -> bool {
    let (Ok(path), Ok(entries)) = (path.canonicalize(), std::fs::read_dir("/proc/self/fd")) else {
        return false;
    };
    let is_named =
        |entry: &std::fs::DirEntry| std::fs::read_link(entry.path()).is_ok_and(|name| name == path);
    let is_it = |open: Metadata| (open.dev(), open.ino()) == (file.dev(), file.ino());
    let mut named = entries.flatten().filter(is_named);
    named.any(|entry| std::fs::metadata(entry.path()).is_ok_and(is_it))
}

/// A file that shrinks.
pub(super) struct Cut {
    /// The LUN's name.
    pub(super) name: String,
    /// The file.
    pub(super) path: PathBuf,
    /// Its new size.
    pub(super) size_bytes: u64,
}

impl Cut {
    /// Why it cannot be truncated.
    pub(super) fn fault(&self) -> Fault {
        Fault {
            place: format!("LUN {}", self.name),
            what: "it would become smaller, and lose the data beyond its new end".into(),
            fix: "use lunette lun resize with --yes-lose-data if that is intended".into(),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "truncate {} to {} bytes", self.path.display(), self.size_bytes)
    }
}

/// Files to be truncated: those of LUNs whose `size` this changes.
fn cuts(old: &Config, new: &Config) -> Vec<Cut> {
    let changed =
        |lun: &Lun| find(new, &lun.name).map(|after| &after.store).filter(|after| **after != lun.store);
    let cut = |lun: &Lun| match changed(lun) {
        Some(StoreSpec::File { path: after, size: Some(size) }) if path(lun) == Some(after) => {
            // A missing file is not truncated.
            let is_smaller = after.metadata().is_ok_and(|found| *size < found.len());
            is_smaller.then(|| Cut { name: lun.name.clone(), path: after.clone(), size_bytes: *size })
        }
        _ => None,
    };
    old.luns.iter().filter_map(cut).collect()
}

fn text(step: &StepOfChange, old: &Config, new: &Config) -> String {
    match step {
        StepOfChange::Restart(option) => format!("restart for {option}"),
        StepOfChange::Settings => format!("change {} for all sessions", settings(old, new).join(", ")),
        StepOfChange::AdminAccess => access(&old.admin_access, &new.admin_access).join(", "),
        StepOfChange::RemoveTarget(name) => format!("remove target {name}; its sessions end"),
        StepOfChange::Hide { target, lun } => format!("hide LUN {lun} from initiators of {target}"),
        StepOfChange::RemovePortal(address) => format!("stop listening on {address}"),
        StepOfChange::RemoveInterface(name) => format!("stop serving AoE on {name}; its sessions end"),
        StepOfChange::AddInterface(name) => format!("serve AoE on {name}"),
        StepOfChange::ChangeInterface(name) => format!("change which hosts are served over AoE on {name}"),
        StepOfChange::RemoveLun(name) => {
            let lost = if is_memory(old, name) { "; its contents, in memory, are lost" } else { "" };
            format!("remove LUN {name} ({}){lost}", store(old, name))
        }
        StepOfChange::AddLun(name) => format!("add LUN {name} ({})", store(new, name)),
        StepOfChange::ChangeLun(name) => {
            let both = find(old, name).zip(find(new, name));
            let what = both.map_or_else(Vec::new, |(old, new)| properties(old, new));
            format!("change {} of LUN {name}", what.join(", "))
        }
        StepOfChange::ChangePortalGroup(tag) => {
            let what = portal_group(old.portal_group(*tag), new.portal_group(*tag));
            format!("portal group {tag}: {}", what.join(", "))
        }
        StepOfChange::AddPortal(address) => format!("listen on {address}"),
        StepOfChange::ChangePortal(address) => {
            let of =
                |config: &'_ Config| config.portals.iter().find(|portal| portal.listen == *address).cloned();
            let what = of(old).zip(of(new)).map_or_else(Vec::new, |(old, new)| portal(&old, &new));
            format!("change {} of portal {address}", what.join(", "))
        }
        StepOfChange::AddTarget(name) => format!("add target {name}"),
        StepOfChange::ChangeTarget(name) => {
            let of = |config: &'_ Config| config.targets.iter().find(|target| target.name == *name).cloned();
            let what = of(old)
                .zip(of(new))
                .map_or_else(Vec::new, |(before, after)| target(old, &before, new, &after));
            format!("target {name}: {}", what.join(", "))
        }
    }
}

/// The names of keys that differ.
fn differing<'a>(all: impl IntoIterator<Item = (&'a str, bool)>) -> Vec<String> {
    all.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name.to_owned()).collect()
}

fn settings(old: &Config, new: &Config) -> Vec<String> {
    differing([
        ("poll", old.poll == new.poll),
        ("login_timeout", old.login_timeout == new.login_timeout),
        ("keep_alive", old.keep_alive == new.keep_alive),
        ("stall_timeout", old.stall_timeout == new.stall_timeout),
        ("logins_max", old.logins_max == new.logins_max),
    ])
}

fn access(old: &AdminAccess, new: &AdminAccess) -> Vec<String> {
    let find =
        |access: &AdminAccess, name: &str| access.tokens.iter().find(|token| token.name == name).cloned();
    let mut all = Vec::new();
    for token in &old.tokens {
        match find(new, &token.name) {
            None => all.push(format!("remove token {}", token.name)),
            Some(after) if after != *token => all.push(format!("change token {}", token.name)),
            Some(_) => {}
        }
    }
    let comes = new.tokens.iter().filter(|token| find(old, &token.name).is_none());
    all.extend(comes.map(|token| format!("add token {}", token.name)));
    match &new.identity {
        Some(identity) if old.identity.as_ref() != Some(identity) => {
            all.push(format!(
                "use certificate {} for new admin connections",
                identity.certificate.path.display()
            ));
        }
        None if old.identity.is_some() => all.push("stop encrypting new admin connections".into()),
        Some(_) | None => {}
    }
    all
}

fn properties(old: &Lun, new: &Lun) -> Vec<String> {
    let named = differing([
        ("read_only", old.read_only == new.read_only),
        ("write_cache", old.write_cache == new.write_cache),
        ("thin", old.thin == new.thin),
        ("warn_at", old.warn_at == new.warn_at),
        ("removable", old.removable == new.removable),
        ("product", old.product == new.product),
        ("aoe", old.aoe == new.aoe),
        ("size", old.store == new.store),
        ("limits", old.limits == new.limits),
    ]);
    if named.is_empty() { vec!["properties".into()] } else { named }
}

fn portal_group(old: PortalGroup, new: PortalGroup) -> Vec<String> {
    let state = (old.state != new.state)
        .then(|| format!("change state from {} to {}", old.state.name(), new.state.name()));
    let others = differing([
        ("preferred", old.preferred == new.preferred),
        ("explicit", old.explicit == new.explicit),
        ("port_ids", old.port_ids == new.port_ids),
    ]);
    state.into_iter().chain(others.into_iter().map(|key| format!("change {key}"))).collect()
}

fn portal(old: &Portal, new: &Portal) -> Vec<String> {
    differing([
        ("name", old.name == new.name),
        ("cores", old.cores == new.cores),
        ("group", old.group == new.group),
        ("transports", old.transports == new.transports),
        ("rdma", old.rdma == new.rdma),
        ("drain", old.drain == new.drain),
        ("redirect", old.redirect == new.redirect),
    ])
}

/// The differences of a target: LUNs by number and name, the rest by key.
fn target(old: &Config, before: &Target, new: &Config, after: &Target) -> Vec<String> {
    let lists = |config: &Config, target: &Target| {
        let of = |list: &[(u16, usize)]| {
            let named =
                list.iter().filter_map(|(number, lun)| Some((*number, config.luns.get(*lun)?.name.clone())));
            named.collect::<Vec<_>>()
        };
        let groups = target
            .groups
            .iter()
            .filter_map(|group| Some((Some(group.name.clone()), of(group.luns.as_ref()?))));
        [(None, of(&target.luns))].into_iter().chain(groups).collect::<Vec<_>>()
    };
    let (lists_before, lists_after) = (lists(old, before), lists(new, after));
    let mut all = Vec::new();
    for (group, list) in &lists_after {
        let known = lists_before.iter().find(|(other, _)| other == group).map(|(_, list)| list.as_slice());
        let of = group.as_ref().map_or(String::new(), |group| format!(" for group {group}"));
        for (number, name) in list.iter().filter(|entry| !known.unwrap_or_default().contains(entry)) {
            all.push(format!("LUN {number} is {name}{of}"));
        }
    }
    let bare = |group: &Group| Group { luns: None, ..group.clone() };
    let portals = |config: &Config, target: &Target| {
        let listen = |portal: &usize| config.portals.get(*portal).map(|portal| portal.listen);
        target.portals.iter().filter_map(listen).collect::<Vec<_>>()
    };
    all.extend(differing([
        ("alias", before.alias == after.alias),
        ("sessions_max", before.sessions_max == after.sessions_max),
        ("queue_depth", before.queue_depth == after.queue_depth),
        ("portals", portals(old, before) == portals(new, after)),
        ("groups", before.groups.iter().map(bare).eq(after.groups.iter().map(bare))),
    ]));
    if all.is_empty() { vec!["LUNs removed".into()] } else { all }
}

fn is_memory(config: &Config, name: &str) -> bool {
    find(config, name).is_some_and(|lun| matches!(lun.store, StoreSpec::Ram { .. }))
}

fn store(config: &Config, name: &str) -> String {
    find(config, name).map_or(String::new(), |lun| lun.store.to_string())
}

fn path(lun: &Lun) -> Option<&Path> {
    match &lun.store {
        StoreSpec::File { path, .. } | StoreSpec::Block { path } => Some(path),
        StoreSpec::Null { .. }
        | StoreSpec::Ram { .. }
        | StoreSpec::Remote { .. }
        | StoreSpec::Nbd { .. }
        | StoreSpec::Rbd { .. } => None,
    }
}

fn find<'a>(config: &'a Config, name: &str) -> Option<&'a Lun> {
    config.luns.iter().find(|lun| lun.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(luns: &str, rest: &str) -> Config {
        let text = format!(
            "poll = 'never'\nlun = [{{ name = 'z', null = '1M' }}, {luns}]\n[[target]]\nname = 'iqn.2026-11.a:x'\n{rest}\n"
        );
        Config::from_toml(&text, Path::new("lunette.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn texts(old: &Config, new: &Config) -> Vec<String> {
        let steps = plan(old, new).unwrap_or_else(|faults| panic!("{faults:?}"));
        steps.into_iter().map(|step| step.text).collect()
    }

    const FILE: &str = "{ name = 'a', file = '/srv/a.img', serial = 'S' }";

    #[test]
    fn each_step_says_what_it_does_to_whom() {
        let old = config(FILE, "luns = ['z', 'a']");
        let new = config("{ name = 'b', null = '1M' }", "luns = ['z', { lun = 'b', number = 3 }]");
        assert_eq!(
            texts(&old, &new),
            [
                "hide LUN a from initiators of iqn.2026-11.a:x",
                "remove LUN a (file:/srv/a.img)",
                "add LUN b (null:1048576)",
                "target iqn.2026-11.a:x: LUN 3 is b",
            ]
        );
        let group = "luns = ['z']\n[[target.group]]\nname = 'g'\nluns = ['a']\n";
        assert_eq!(
            texts(&old, &config(FILE, group)),
            ["target iqn.2026-11.a:x: LUN 0 is a for group g, groups",]
        );
        let mut other = old.clone();
        other.keep_alive *= 2;
        other.luns[1].read_only = true;
        assert_eq!(texts(&old, &other), ["change keep_alive for all sessions", "change read_only of LUN a"]);
    }

    #[test]
    fn what_grows_comes_last_and_what_cannot_be_listened_on_is_found_before() {
        let (port, path) = (TcpListener::bind("127.0.0.1:0").unwrap(), Path::new("lunette.toml"));
        let address = port.local_addr().unwrap();
        let config = |size: &str, portals: &str| {
            let text = format!(
                "poll = 'never'\nportal = [{{ listen = '127.0.0.1:0' }}{portals}]\n\
                 lun = [{{ name = 'a', file = '/nowhere/a', size = '{size}', serial = 'S' }}]\n\
                 [[target]]\nname = 'iqn.2026-11.a:x'\n"
            );
            Config::from_toml(&text, path).unwrap_or_else(|problems| panic!("{problems}"))
        };
        let another = config("2M", ", { listen = '127.0.0.3:0' }");
        let planned = Planned::of(config("1M", ""), another, None).map_err(|refused| refused.faults);
        let texts = planned.unwrap_or_else(|faults| panic!("{faults:?}")).texts();
        assert_eq!(texts.first().map(String::as_str), Some("listen on 127.0.0.3:0"), "{texts:?}");
        assert_eq!(texts.last().map(String::as_str), Some("change size of LUN a"), "{texts:?}");
        let taken = config("2M", &format!(", {{ listen = '{address}' }}"));
        let refused = Planned::of(config("1M", ""), taken, None).err().expect("it is taken");
        assert_eq!(refused.faults[0].place, format!("listen on {address}"));
    }

    #[test]
    fn what_needs_a_restart_or_loses_data_is_named_and_nothing_else() {
        let old = config("{ name = 'a', ram = '1M' }", "luns = ['z', 'a']");
        let mut new = config("{ name = 'a', ram = '2M' }", "luns = ['z']");
        new.cores = vec![0, 77];
        let faults = plan(&old, &new).map(|_| ()).expect_err("not so");
        let places: Vec<String> = faults.into_iter().map(|fault| fault.place).collect();
        assert_eq!(places, ["cores", "LUN a"]);
    }
}
