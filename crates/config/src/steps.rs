//! Applies a step of [`super::diff`] to a configuration.

use super::diff::StepOfChange;
use super::model::{Config, Target};
use std::net::SocketAddr;

impl StepOfChange {
    /// The configuration after this step, one of those from `now` to `to`. Every reference in it resolves;
    /// settings that need a restart stay unchanged.
    pub fn after(&self, now: &Config, to: &Config) -> Config {
        let mut next = now.clone();
        match self {
            StepOfChange::Restart(_) => {}
            StepOfChange::Settings => {
                (next.poll, next.logins_max) = (to.poll, to.logins_max);
                (next.login_timeout, next.keep_alive) = (to.login_timeout, to.keep_alive);
                next.stall_timeout = to.stall_timeout;
            }
            StepOfChange::AdminAccess => next.admin_access = to.admin_access.clone(),
            StepOfChange::RemoveTarget(name) => next.targets.retain(|target| target.name != *name),
            StepOfChange::Hide { target, lun } => {
                let index = next.luns.iter().position(|other| other.name == *lun);
                let target = next.targets.iter_mut().find(|other| other.name == *target);
                lists(target).for_each(|luns| luns.retain(|(_, lun)| Some(*lun) != index));
            }
            StepOfChange::RemovePortal(address) => remove_portal(&mut next, *address),
            StepOfChange::RemoveInterface(name) => next.aoe.retain(|interface| interface.name != *name),
            StepOfChange::AddInterface(name) => {
                next.aoe.extend(to.aoe.iter().filter(|interface| interface.name == *name).cloned());
            }
            StepOfChange::ChangeInterface(name) => {
                let found = to.aoe.iter().find(|interface| interface.name == *name);
                for interface in next.aoe.iter_mut().filter(|interface| interface.name == *name) {
                    *interface = found.unwrap_or(interface).clone();
                }
            }
            StepOfChange::RemoveLun(name) => remove_lun(&mut next, name),
            StepOfChange::AddLun(name) => add_lun(&mut next, to, name),
            StepOfChange::ChangeLun(name) => {
                let found = to.luns.iter().find(|lun| lun.name == *name);
                for lun in next.luns.iter_mut().filter(|lun| lun.name == *name) {
                    *lun = found.unwrap_or(lun).clone();
                }
            }
            StepOfChange::ChangePortalGroup(tag) => {
                next.portal_groups.retain(|group| group.tag != *tag);
                next.portal_groups.extend(to.portal_groups.iter().filter(|group| group.tag == *tag));
                next.portal_groups.sort_by_key(|group| group.tag);
            }
            StepOfChange::AddPortal(address) => add_portal(&mut next, to, *address),
            StepOfChange::ChangePortal(address) => {
                let of = |config: &Config| {
                    let all = config.portals.iter().enumerate();
                    let these = all.filter(|(_, portal)| portal.listen == *address);
                    these.map(|(index, _)| index).collect::<Vec<_>>()
                };
                for (index, other) in of(now).into_iter().zip(of(to)) {
                    next.portals[index] = to.portals[other].clone();
                }
            }
            StepOfChange::AddTarget(name) => {
                let earlier = to.targets.iter().take_while(|target| target.name != *name);
                let is_earlier = |other: &&Target| earlier.clone().any(|target| target.name == other.name);
                let at = next.targets.iter().filter(is_earlier).count();
                let target = target(&next, to, name);
                target.into_iter().for_each(|target| next.targets.insert(at, target));
            }
            StepOfChange::ChangeTarget(name) => {
                let changed = target(&next, to, name);
                for target in next.targets.iter_mut().filter(|target| target.name == *name) {
                    *target = changed.as_ref().unwrap_or(target).clone();
                }
            }
        }
        next
    }
}

/// All LUN lists of targets.
fn lists<'a>(
    targets: impl IntoIterator<Item = &'a mut Target>,
) -> impl Iterator<Item = &'a mut Vec<(u16, usize)>> {
    targets.into_iter().flat_map(|target| {
        let grouped = target.groups.iter_mut().filter_map(|group| group.luns.as_mut());
        grouped.chain([&mut target.luns])
    })
}

fn remove_lun(config: &mut Config, name: &str) {
    let Some(index) = config.luns.iter().position(|lun| lun.name == name) else { return };
    config.luns.remove(index);
    for luns in lists(&mut config.targets) {
        luns.retain(|(_, lun)| *lun != index);
        luns.iter_mut().for_each(|(_, lun)| *lun -= usize::from(*lun > index));
    }
}

fn add_lun(config: &mut Config, to: &Config, name: &str) {
    let Some(place) = to.luns.iter().position(|lun| lun.name == name) else { return };
    let is_earlier = |name: &str| to.luns.iter().take(place).any(|lun| lun.name == name);
    let at = config.luns.iter().filter(|lun| is_earlier(&lun.name)).count();
    config.luns.insert(at, to.luns[place].clone());
    for luns in lists(&mut config.targets) {
        luns.iter_mut().for_each(|(_, lun)| *lun += usize::from(*lun >= at));
    }
}

/// Of several with the same address (port 0), removes the last.
fn remove_portal(config: &mut Config, address: SocketAddr) {
    let Some(index) = config.portals.iter().rposition(|portal| portal.listen == address) else { return };
    config.portals.remove(index);
    for target in &mut config.targets {
        target.portals.retain(|portal| *portal != index);
        target.portals.iter_mut().for_each(|portal| *portal -= usize::from(*portal > index));
    }
}

/// Of several with the same address, adds the next.
fn add_portal(config: &mut Config, to: &Config, address: SocketAddr) {
    let count = config.portals.iter().filter(|portal| portal.listen == address).count();
    let mut these = to.portals.iter().filter(|portal| portal.listen == address);
    let Some(portal) = these.nth(count) else { return };
    config.portals.push(portal.clone());
}

/// A target with the indices of this configuration; references that do not exist in it are left out.
fn target(config: &Config, to: &Config, name: &str) -> Option<Target> {
    let mut target = to.targets.iter().find(|target| target.name == name)?.clone();
    let lun = |index: &usize| {
        let name = &to.luns.get(*index)?.name;
        config.luns.iter().position(|lun| lun.name == *name)
    };
    for luns in lists([&mut target]) {
        *luns = luns.iter().filter_map(|(number, index)| Some((*number, lun(index)?))).collect();
    }
    let portal = |index: &usize| {
        let address = to.portals.get(*index)?.listen;
        let before = to.portals.iter().take(*index).filter(|portal| portal.listen == address).count();
        let these = config.portals.iter().enumerate().filter(|(_, portal)| portal.listen == address);
        these.map(|(index, _)| index).nth(before)
    };
    target.portals = target.portals.iter().filter_map(portal).collect();
    Some(target)
}
