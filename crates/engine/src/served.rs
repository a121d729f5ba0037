//! What is served at present: an immutable snapshot, of which every core has one until it is given the next.

use crate::changes::Shown;
use crate::ports::Ports;
use config::{Config, Lun, Target};
use std::collections::BTreeMap;
use wire::aoe::Address;

/// LUNs, and who is shown them.
pub(crate) struct Served {
    /// How many there were before.
    pub(crate) epoch: u64,
    /// The configuration, with the LUNs that there are now.
    pub(crate) config: Config,
    /// The number of each LUN's unit, in the order of the configuration.
    pub(crate) units: Vec<u32>,
    /// The target ports.
    pub(crate) ports: Ports,
    /// Units by their AoE address.
    pub(crate) exports: BTreeMap<Address, u32>,
}

impl Served {
    /// A configuration as it begins: units have the numbers of their LUNs.
    pub(crate) fn first(config: Config) -> Served {
        let units = (0..).zip(&config.luns).map(|(number, _)| number).collect();
        config.luns.iter().for_each(warn_of_blocks);
        Served::of(0, config, units)
    }

    fn of(epoch: u64, config: Config, units: Vec<u32>) -> Served {
        let (ports, exports) = (Ports::of(&config), exports(&config, &units));
        Served { epoch, config, units, ports, exports }
    }

    /// The index of a LUN, by its name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.config.luns.iter().position(|lun| lun.name == name)
    }

    /// The same with one more LUN, which targets show.
    ///
    /// # Errors
    /// When there is no such target or group, or the number is taken.
    pub(crate) fn with(&self, lun: Lun, unit: u32, shown: &[Shown]) -> Result<Served, String> {
        let (mut config, mut units) = (self.config.clone(), self.units.clone());
        let index = config.luns.len();
        warn_of_blocks(&lun);
        config.luns.push(lun);
        units.push(unit);
        for Shown { target, group, number } in shown {
            let luns = list(&mut config.targets, target, group.as_deref())?;
            match luns.binary_search_by_key(number, |(number, _)| *number) {
                Ok(_) => return Err(format!("LUN {number} of target {target} is taken")),
                Err(at) => luns.insert(at, (*number, index)),
            }
        }
        Ok(Served::of(self.epoch + 1, config, units))
    }

    /// The same with another LUN in the place of this one.
    pub(crate) fn replacing(&self, index: usize, lun: Lun, unit: u32) -> Served {
        let (mut config, mut units) = (self.config.clone(), self.units.clone());
        warn_of_blocks(&lun);
        (config.luns[index], units[index]) = (lun, unit);
        Served::of(self.epoch + 1, config, units)
    }

    /// The same without this LUN.
    pub(crate) fn without(&self, index: usize) -> Served {
        let (mut config, mut units) = (self.config.clone(), self.units.clone());
        config.luns.remove(index);
        units.remove(index);
        for target in &mut config.targets {
            let grouped = target.groups.iter_mut().filter_map(|group| group.luns.as_mut());
            for luns in grouped.chain([&mut target.luns]) {
                luns.retain(|(_, lun)| *lun != index);
                luns.iter_mut().for_each(|(_, lun)| *lun -= usize::from(*lun > index));
            }
        }
        Served::of(self.epoch + 1, config, units)
    }
}

/// The LUNs that a target shows, or one of its groups.
fn list<'a>(
    targets: &'a mut [Target],
    name: &str,
    group: Option<&str>,
) -> Result<&'a mut Vec<(u16, usize)>, String> {
    let target = targets.iter_mut().find(|target| target.name == name);
    let target = target.ok_or_else(|| format!("there is no target {name}"))?;
    let Some(group) = group else { return Ok(&mut target.luns) };
    let found = target.groups.iter_mut().find(|other| other.name == group);
    let luns = found.and_then(|group| group.luns.as_mut());
    luns.ok_or_else(|| format!("target {name} has no group {group} with LUNs of its own"))
}

fn warn_of_blocks(lun: &Lun) {
    if let (Some(address), None) = (lun.aoe, lun.export()) {
        let (name, block_bytes) = (&lun.name, lun.block_bytes);
        tracing::error!(lun = %name, "it has {block_bytes}-byte blocks, so AoE does not serve it as {address}");
    }
}

fn exports(config: &Config, units: &[u32]) -> BTreeMap<Address, u32> {
    let mut exports = BTreeMap::new();
    for (lun, unit) in config.luns.iter().zip(units) {
        if let Some(address) = lun.export() {
            exports.insert(address, *unit);
        }
    }
    exports
}
