//! From one configuration to another: a pure function into ordered steps.

use super::{Config, Group, Lun, Target};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// One step. Names are those of the old configuration where something goes, of the new one where something comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepOfChange {
    /// This option takes effect only at the next start.
    Restart(&'static str),
    /// Timeouts, limits or polling changed.
    Settings,
    /// End the target's sessions; it goes.
    RemoveTarget(String),
    /// The target shows the LUN to nobody any more.
    Hide {
        /// Target.
        target: String,
        /// LUN.
        lun: String,
    },
    /// Stop listening.
    RemovePortal(SocketAddr),
    /// No target shows the LUN now: close its store.
    RemoveLun(String),
    /// Open the LUN's store.
    AddLun(String),
    /// Properties changed that its sessions can live with.
    ChangeLun(String),
    /// Listen.
    AddPortal(SocketAddr),
    /// Cores or group of a portal changed, for connections to come.
    ChangePortal(SocketAddr),
    /// A new target.
    AddTarget(String),
    /// Portals, LUN lists, groups or limits of a target changed.
    ChangeTarget(String),
}

/// The steps from `old` to `new`, none if they are the same. What goes, goes from the initiator's side inwards
/// (targets, portals, LUNs); what comes, comes the other way.
pub fn diff(old: &Config, new: &Config) -> Vec<StepOfChange> {
    let mut steps = settings(old, new);
    steps.extend(leaving(old, new));
    steps.extend(coming(old, new));
    steps
}

fn settings(old: &Config, new: &Config) -> Vec<StepOfChange> {
    let mut steps = Vec::new();
    if old.cores != new.cores {
        steps.push(StepOfChange::Restart("cores"));
    }
    if old.state_dir != new.state_dir {
        steps.push(StepOfChange::Restart("state_dir"));
    }
    let of = |config: &Config| (config.poll, config.login_timeout, config.keep_alive, config.logins_max);
    if of(old) != of(new) {
        steps.push(StepOfChange::Settings);
    }
    steps
}

fn leaving(old: &Config, new: &Config) -> Vec<StepOfChange> {
    let mut steps = Vec::new();
    for target in old.targets.iter().filter(|target| find_target(new, &target.name).is_none()) {
        steps.push(StepOfChange::RemoveTarget(target.name.clone()));
    }
    for target in &old.targets {
        let Some(after) = find_target(new, &target.name) else { continue };
        let kept = shown(new, after);
        for name in shown(old, target) {
            if !kept.contains(name) || !survives(old, new, name) {
                steps.push(StepOfChange::Hide { target: target.name.clone(), lun: name.into() });
            }
        }
    }
    let addresses = counted_addresses(new);
    steps.extend(without(&counted_addresses(old), &addresses).map(StepOfChange::RemovePortal));
    for lun in old.luns.iter().filter(|lun| !survives(old, new, &lun.name)) {
        steps.push(StepOfChange::RemoveLun(lun.name.clone()));
    }
    steps
}

fn coming(old: &Config, new: &Config) -> Vec<StepOfChange> {
    let mut steps = Vec::new();
    for lun in &new.luns {
        match find_lun(old, &lun.name) {
            Some(before) if before == lun => {}
            Some(before) if same_unit(before, lun) => steps.push(StepOfChange::ChangeLun(lun.name.clone())),
            Some(_) | None => steps.push(StepOfChange::AddLun(lun.name.clone())),
        }
    }
    let before = counted_addresses(old);
    for (key, portal) in counted_addresses(new).iter().zip(&new.portals) {
        match before.iter().position(|k| k == key).and_then(|index| old.portals.get(index)) {
            None => steps.push(StepOfChange::AddPortal(portal.listen)),
            Some(before) if before != portal => steps.push(StepOfChange::ChangePortal(portal.listen)),
            Some(_) => {}
        }
    }
    for target in &new.targets {
        match find_target(old, &target.name) {
            None => steps.push(StepOfChange::AddTarget(target.name.clone())),
            Some(before) if by_name(old, before) != by_name(new, target) => {
                steps.push(StepOfChange::ChangeTarget(target.name.clone()));
            }
            Some(_) => {}
        }
    }
    steps
}

/// Whether a LUN is the same unit in both, perhaps with other properties.
fn survives(old: &Config, new: &Config, name: &str) -> bool {
    find_lun(old, name).zip(find_lun(new, name)).is_some_and(|(old, new)| same_unit(old, new))
}

/// What an initiator must not see change under a unit that it uses.
fn same_unit(old: &Lun, new: &Lun) -> bool {
    let fixed = |lun: &Lun| (lun.store.clone(), lun.block_bytes, lun.physical_block_bytes, lun.serial.clone());
    fixed(old) == fixed(new)
}

/// Names of all LUNs that a target shows to anybody.
fn shown<'a>(config: &'a Config, target: &Target) -> BTreeSet<&'a str> {
    let lists = target.groups.iter().filter_map(|group| group.luns.as_ref()).chain([&target.luns]);
    lists.flatten().filter_map(|(_, lun)| config.luns.get(*lun)).map(|lun| lun.name.as_str()).collect()
}

/// A LUN list by names, which compare across configurations.
type NamedLuns<'a> = Vec<(u16, &'a str)>;

/// A target with names in the place of indices.
#[derive(PartialEq)]
struct ByName<'a> {
    plain: Target,
    portals: Vec<(SocketAddr, usize)>,
    luns: NamedLuns<'a>,
    group_luns: Vec<Option<NamedLuns<'a>>>,
}

fn by_name<'a>(config: &'a Config, target: &Target) -> ByName<'a> {
    let named = |list: &Vec<(u16, usize)>| -> NamedLuns<'a> {
        list.iter().filter_map(|(number, lun)| Some((*number, config.luns.get(*lun)?.name.as_str()))).collect()
    };
    let addresses = counted_addresses(config);
    let mut portals: Vec<_> =
        target.portals.iter().filter_map(|portal| addresses.get(*portal).copied()).collect();
    portals.sort_unstable();
    let bare = |group: &Group| Group { luns: None, ..group.clone() };
    let groups = target.groups.iter().map(bare).collect();
    ByName {
        plain: Target { portals: Vec::new(), luns: Vec::new(), groups, ..target.clone() },
        portals,
        luns: named(&target.luns),
        group_luns: target.groups.iter().map(|group| group.luns.as_ref().map(named)).collect(),
    }
}

/// Addresses, told apart by a count where one is given twice (port 0).
fn counted_addresses(config: &Config) -> Vec<(SocketAddr, usize)> {
    let all = &config.portals;
    let before = |index: usize, address| all.iter().take(index).filter(|p| p.listen == address).count();
    all.iter().enumerate().map(|(index, portal)| (portal.listen, before(index, portal.listen))).collect()
}

fn without(
    all: &[(SocketAddr, usize)],
    kept: &[(SocketAddr, usize)],
) -> impl Iterator<Item = SocketAddr> {
    all.iter().filter(|key| !kept.contains(key)).map(|(address, _)| *address)
}

fn find_lun<'a>(config: &'a Config, name: &str) -> Option<&'a Lun> {
    config.luns.iter().find(|lun| lun.name == name)
}

fn find_target<'a>(config: &'a Config, name: &str) -> Option<&'a Target> {
    config.targets.iter().find(|target| target.name == name)
}
