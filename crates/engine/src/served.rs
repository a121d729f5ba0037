//! What is served at present: an immutable snapshot, of which every core has one until it is given the next.

use crate::limits::Limits;
use crate::ports::Ports;
use config::{Config, Lun};
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
    /// How much may be done.
    pub(crate) limits: Limits,
}

impl Served {
    /// A configuration as it begins: units have the numbers of their LUNs.
    pub(crate) fn first(config: Config) -> Served {
        let units = (0..).zip(&config.luns).map(|(number, _)| number).collect();
        config.luns.iter().for_each(warn_of_blocks);
        Served::of(0, config, units, None)
    }

    fn of(epoch: u64, config: Config, units: Vec<u32>, before: Option<&Served>) -> Served {
        let (ports, exports) = (Ports::of(&config), exports(&config, &units));
        let limits = Limits::of(&config, before.map(|before| (&before.config, &before.limits)));
        Served { epoch, config, units, ports, exports, limits }
    }

    /// The index of a LUN, by its name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.config.luns.iter().position(|lun| lun.name == name)
    }

    /// What comes after it: this configuration, whose LUNs have units with these numbers.
    pub(crate) fn next(&self, config: Config, units: Vec<u32>) -> Served {
        Served::of(self.epoch + 1, config, units, Some(self))
    }
}

/// Logs that AoE does not serve a LUN that has an address there.
pub(crate) fn warn_of_blocks(lun: &Lun) {
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
