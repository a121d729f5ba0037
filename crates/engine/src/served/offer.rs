//! What targets have for their sessions, so that whoever takes another snapshot leaves sessions alone that it does not concern.

use super::Served;
use crate::limits::Limit;
use config::{Group, Portal};
use scsi::unit::Port;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a target has for its sessions, but for the properties that belong to homes of units.
#[derive(PartialEq)]
struct Offer<'a> {
    /// Without their LUNs.
    groups: Vec<Group>,
    /// Those of each group that has its own, and of all others: numbers, units and what these are limited by.
    luns: Vec<Option<Vec<(u16, u32, Limited)>>>,
    /// What each group is limited by.
    limits: Vec<Limited>,
    /// Number and properties of each portal, and the target that SRP finds there.
    portals: Vec<(usize, &'a Portal, Option<usize>)>,
    ports: &'a [Port],
}

/// A limit is the same as long as it goes on with what it has let in.
type Limited = Option<*const Limit>;

impl Served {
    /// Targets, by their numbers, whose sessions have all that they had by the snapshot before this one.
    pub(crate) fn same_since(&self, before: &Served) -> BTreeSet<usize> {
        let numbers = || self.targets.iter().map(|named| named.number);
        let is_same = |number: &usize| {
            let indices = self.target(*number).zip(before.target(*number));
            indices.is_some_and(|(now, then)| self.offer(now) == before.offer(then))
        };
        let same: BTreeSet<usize> = numbers().filter(is_same).collect();
        // Which other ports of its units a session may know of depends on what their targets have for it.
        let stands_alone = |number: &usize| {
            let beside = self.beside(*number);
            beside == before.beside(*number) && beside.is_subset(&same)
        };
        same.iter().copied().filter(stands_alone).collect()
    }

    fn offer(&self, index: usize) -> Offer<'_> {
        let target = &self.config.targets[index];
        let limited = |limit: Option<Arc<Limit>>| limit.as_ref().map(Arc::as_ptr);
        let luns = |luns: &Vec<(u16, usize)>| {
            let each = luns
                .iter()
                .map(|(number, lun)| (*number, self.units[*lun], limited(self.limits.of_lun(*lun))));
            each.collect()
        };
        let lists = target.groups.iter().map(|group| group.luns.as_ref()).chain([Some(&target.luns)]);
        let portal = |index: &usize| {
            let portal = &self.config.portals[*index];
            let of_srp = portal.transports.srp.then(|| self.config.srp_target(*index)).flatten();
            (self.doors[*index].number, portal, of_srp.map(|target| self.targets[target].number))
        };
        let limit = |group| limited(self.limits.of_group(&self.config, index, group));
        Offer {
            groups: target.groups.iter().map(|group| Group { luns: None, ..group.clone() }).collect(),
            luns: lists.map(|list| list.map(luns)).collect(),
            limits: target.groups.iter().map(limit).collect(),
            portals: target.portals.iter().map(portal).collect(),
            ports: self.ports.of_target(index),
        }
    }

    /// Targets, by their numbers, that have units of this one.
    fn beside(&self, number: usize) -> BTreeSet<usize> {
        let Some(index) = self.target(number) else { return BTreeSet::new() };
        let target = &self.config.targets[index];
        let grouped = target.groups.iter().filter_map(|group| group.luns.as_ref());
        let luns = grouped.chain([&target.luns]).flatten();
        let targets = luns.flat_map(|(_, lun)| self.ports.targets_of(*lun));
        targets.map(|target| self.targets[*target].number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Changes;
    use crate::registry::Registry;
    use crate::served::Door;
    use crate::state::files::System;
    use config::{Config, diff};
    use reactor::uring::Uring;
    use std::net::SocketAddr;
    use std::path::Path;

    const BASE: &str = "
portal = [{ listen = '127.0.0.1:1' }, { listen = '127.0.0.1:2' }]
lun = [{ name = 'a', ram = '1M' }, { name = 'b', ram = '1M' }, { name = 'c', ram = '1M' }]
[[target]]
name = 'iqn.2026-11.a:x'
luns = ['a', 'b']
[[target]]
name = 'iqn.2026-11.a:y'
luns = ['b']
[[target]]
name = 'iqn.2026-11.a:z'
portals = ['127.0.0.1:1']
luns = ['c']
";
    const X: usize = 0;
    const Y: usize = 1;
    const Z: usize = 2;

    fn config(text: &str) -> Config {
        Config::from_toml(text, Path::new("lunette.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn door(number: usize, address: SocketAddr) -> Door {
        Door { number, address, handle: None, socket: None, by_device: None }
    }

    /// The targets whose sessions a change concerns.
    fn concerned(from: &str, to: &str) -> Vec<usize> {
        assert!(BASE.contains(from), "{from}");
        let (base, to) = (config(BASE), config(&BASE.replacen(from, to, 1)));
        let doors = base.portals.iter().enumerate();
        let doors = doors.map(|(number, portal)| Arc::new(door(number, portal.listen))).collect();
        let before = Arc::new(Served::first(base.clone(), doors, &Arc::new(Registry::default())));
        let mut changes = Changes::<Uring>::new(&[], &before, &[], base.clone());
        for step in diff(&base, &to) {
            let plan = changes.plan_step(&step, &to).expect("it can be taken");
            let door = plan.opens().map(|(portal, number, _)| door(number, portal.listen));
            let prepared = changes.prepare(plan, None, door, Vec::new(), &System).expect("it can be taken");
            changes.begin(prepared);
        }
        let same = changes.served().same_since(&before);
        [X, Y, Z].into_iter().filter(|number| !same.contains(number)).collect()
    }

    #[test]
    fn a_change_concerns_the_targets_that_have_something_else_for_their_sessions() {
        let target = "[[target]]\nname = 'iqn.2026-11.a:";
        let nobody = [
            ("portal", "logins_max = 77\nportal".into()),
            ("luns = ['c']", "sessions_max = 3\nluns = ['c']".into()),
            ("name = 'c', ", "name = 'c', product = 'Other', ".into()),
            ("lun = [", "lun = [{ name = 'new', ram = '1M' }, ".into()),
            (target, format!("{target}new'\nluns = []\n{target}")),
        ];
        for (from, to) in nobody {
            assert!(concerned(from, &to).is_empty(), "{to}");
        }
        let group = |rest: &str| format!("luns = ['c']\n[[target.group]]\nname = 'g'\n{rest}");
        let z = [
            ("luns = ['c']", group("")),
            ("luns = ['c']", group("iops_max = 7")),
            ("name = 'c', ", "name = 'c', iops_max = 7, ".into()),
        ];
        for (from, to) in z {
            assert_eq!(concerned(from, &to), [Z], "{to}");
        }
    }

    #[test]
    fn another_port_of_a_unit_concerns_all_targets_that_have_it() {
        assert_eq!(concerned("luns = ['c']", "luns = ['a', 'c']"), [X, Z]);
        assert_eq!(
            concerned("luns = ['b']", "luns = ['b']\n[[target.group]]\nname = 'g'\nread_only = true"),
            [X, Y]
        );
        assert_eq!(concerned("name = 'iqn.2026-11.a:y'", "name = 'iqn.2026-11.a:other'"), [X, Y]);
    }

    #[test]
    fn a_portal_that_changes_concerns_the_targets_that_it_leads_to() {
        assert_eq!(concerned("'127.0.0.1:2' }", "'127.0.0.1:2', transports = ['iscsi'] }"), [X, Y]);
        assert_eq!(concerned("'127.0.0.1:2' }", "'127.0.0.1:2' }, { listen = '127.0.0.1:3' }"), [X, Y]);
    }
}
