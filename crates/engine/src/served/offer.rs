//! What targets offer their sessions, so that a new snapshot does not disturb sessions that it does not
//! affect.

use super::Served;
use crate::limits::Limit;
use config::{Group, Network, Portal};
use scsi::unit::Port;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The differences of a snapshot from the previous one.
#[derive(Default)]
pub(crate) struct Delta {
    /// Targets, by number, whose sessions are offered the same as in the previous snapshot.
    pub(crate) unchanged: BTreeSet<usize>,
    /// Targets that have or had sessions have changed.
    pub(crate) targets_changed: bool,
    /// Interfaces of AoE, or the initiators that they serve, have changed.
    pub(crate) interfaces_changed: bool,
    /// Other units are exported over AoE, or by other addresses.
    pub(crate) exports_changed: bool,
    /// Units whose LUN has become `read_only`.
    pub(crate) protected: BTreeSet<u32>,
    /// Units whose limit has changed, or that were removed.
    pub(crate) relimited: BTreeSet<u32>,
}

impl Delta {
    /// Whether it may affect what any session is offered, or whether it may stay.
    pub(crate) fn concerns_sessions(&self) -> bool {
        self.targets_changed || self.interfaces_changed || self.exports_changed
    }
}

/// What a target offers its sessions, except for properties that belong to homes of units.
#[derive(PartialEq)]
struct Offer<'a> {
    groups: Vec<Who<'a>>,
    /// The lists of groups that have their own, and that of all others: numbers, units and their limits.
    luns: Vec<Option<Vec<(u16, u32, Limited)>>>,
    /// The limit of each group.
    limits: Vec<Limited>,
    /// Number and properties of each portal, and the target that SRP reaches there.
    portals: Vec<(usize, &'a Portal, Option<usize>)>,
    ports: &'a [Port],
}

/// Which initiators a group matches, and what they may do. Authentication matters only at login.
#[derive(PartialEq)]
struct Who<'a> {
    name: &'a str,
    initiators: &'a [String],
    networks: &'a [Network],
    deny: bool,
    read_only: bool,
    queue_depth: Option<u16>,
}

impl<'a> Who<'a> {
    fn of(group: &'a Group) -> Who<'a> {
        // LUNs and limits are compared in their resolved form.
        let Group { name, initiators, networks, deny, read_only, queue_depth, luns: _, chap: _, limits: _ } =
            group;
        let (deny, read_only, queue_depth) = (*deny, *read_only, *queue_depth);
        Who { name, initiators, networks, deny, read_only, queue_depth }
    }
}

/// A limit, which is the same as long as its state is kept.
type Limited = Option<*const Limit>;

impl Served {
    /// The differences from the previous snapshot, computed once, not by each core.
    pub(super) fn since(&self, before: &Served) -> Delta {
        let same = self.same_since(before);
        let is_other = |served: &Served| served.targets.iter().any(|named| !same.contains(&named.number));
        Delta {
            targets_changed: is_other(self) || is_other(before),
            interfaces_changed: self.config.aoe != before.config.aoe,
            exports_changed: self.exports != before.exports,
            protected: self.protected_since(before),
            relimited: self.relimited_since(before),
            unchanged: same,
        }
    }

    fn relimited_since(&self, before: &Served) -> BTreeSet<u32> {
        let limits = |served: &Served| -> BTreeMap<u32, Limited> {
            let each = served.units.iter().enumerate();
            each.map(|(lun, unit)| (*unit, limited(served.limits.of_lun(lun)))).collect()
        };
        let now = limits(self);
        let is_another = |(unit, limit): &(u32, Limited)| now.get(unit) != Some(limit);
        limits(before).into_iter().filter(is_another).map(|(unit, _)| unit).collect()
    }

    fn protected_since(&self, before: &Served) -> BTreeSet<u32> {
        let are = |served: &Served, read_only: bool| -> BTreeSet<u32> {
            let all = served.config.luns.iter().zip(&served.units);
            all.filter(|(lun, _)| lun.read_only == read_only).map(|(_, unit)| *unit).collect()
        };
        &are(before, false) & &are(self, true)
    }

    /// Targets, by number, whose sessions are offered the same as in that snapshot.
    fn same_since(&self, before: &Served) -> BTreeSet<usize> {
        let numbers = || self.targets.iter().map(|named| named.number);
        let is_same = |number: &usize| {
            let indices = self.target(*number).zip(before.target(*number));
            indices.is_some_and(|(now, then)| self.offer(now) == before.offer(then))
        };
        let same: BTreeSet<usize> = numbers().filter(is_same).collect();
        // Which other ports of its units a session may see depends on what their targets offer it.
        let stands_alone = |number: &usize| {
            let beside = self.beside(*number);
            beside == before.beside(*number) && beside.is_subset(&same)
        };
        same.iter().copied().filter(stands_alone).collect()
    }

    fn offer(&self, index: usize) -> Offer<'_> {
        let target = &self.config.targets[index];
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
            (self.endpoints[*index].number, portal, of_srp.map(|target| self.targets[target].number))
        };
        let limit = |group| limited(self.limits.of_group(&self.config, index, group));
        Offer {
            groups: target.groups.iter().map(Who::of).collect(),
            luns: lists.map(|list| list.map(luns)).collect(),
            limits: target.groups.iter().map(limit).collect(),
            portals: target.portals.iter().map(portal).collect(),
            ports: self.ports.of_target(index),
        }
    }

    /// Targets, by number, that share units with this one.
    fn beside(&self, number: usize) -> BTreeSet<usize> {
        let Some(index) = self.target(number) else { return BTreeSet::new() };
        let target = &self.config.targets[index];
        let grouped = target.groups.iter().filter_map(|group| group.luns.as_ref());
        let luns = grouped.chain([&target.luns]).flatten();
        let targets = luns.flat_map(|(_, lun)| self.ports.targets_of(*lun));
        targets.map(|target| self.targets[*target].number).collect()
    }
}

fn limited(limit: Option<Arc<Limit>>) -> Limited {
    limit.as_ref().map(Arc::as_ptr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Changes;
    use crate::registry::Registry;
    use crate::served::Endpoint;
    use crate::state::files::System;
    use config::{Config, diff};
    use reactor::uring::Uring;
    use std::net::SocketAddr;
    use std::path::Path;

    const BASE: &str = "
portal = [{ listen = '127.0.0.1:1' }, { listen = '127.0.0.1:2' }]
lun = [{ name = 'a', ram = '1M' }, { name = 'b', ram = '1M' }, { name = 'c', ram = '1M' }, { name = 'd', ram = '1M' }]
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
[[target]]
name = 'iqn.2026-11.a:w'
portals = ['127.0.0.1:1']
luns = ['d']
[[target.group]]
name = 'known'
chap = { user = 'a', secret = 'a secret of tests' }
";
    const X: usize = 0;
    const Y: usize = 1;
    const Z: usize = 2;
    const W: usize = 3;

    fn config(text: &str) -> Config {
        Config::from_toml(text, Path::new("lunette.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn endpoint(number: usize, address: SocketAddr) -> Endpoint {
        Endpoint { number, address, handle: None, socket: None, by_device: None }
    }

    /// The delta between two configurations.
    fn delta(from: &str, to: &str) -> Delta {
        assert!(BASE.contains(from), "{from}");
        let (base, to) = (config(BASE), config(&BASE.replacen(from, to, 1)));
        let endpoints = base.portals.iter().enumerate();
        let endpoints = endpoints.map(|(number, portal)| Arc::new(endpoint(number, portal.listen))).collect();
        let before = Arc::new(Served::first(base.clone(), endpoints, &Arc::new(Registry::default())));
        let mut changes = Changes::<Uring>::new(&[], &before, &[], base.clone());
        for step in diff(&base, &to) {
            let plan = changes.plan_step(&step, &to).expect("it can be taken");
            let endpoint = plan.opens().map(|(portal, number, _)| endpoint(number, portal.listen));
            let prepared =
                changes.prepare(plan, None, endpoint, Vec::new(), &System).expect("it can be taken");
            changes.begin(prepared);
        }
        changes.served().since(&before)
    }

    /// The targets whose sessions a change affects.
    fn concerned(from: &str, to: &str) -> Vec<usize> {
        let delta = delta(from, to);
        let concerned: Vec<usize> =
            [X, Y, Z, W].into_iter().filter(|number| !delta.unchanged.contains(number)).collect();
        // A new one has no sessions yet, and is checked.
        assert!(delta.targets_changed || concerned.is_empty(), "{to}");
        concerned
    }

    #[test]
    fn a_change_concerns_the_targets_that_have_something_else_for_their_sessions() {
        let target = "[[target]]\nname = 'iqn.2026-11.a:";
        let nobody = [
            ("portal", "logins_max = 77\nportal".into()),
            ("luns = ['c']", "sessions_max = 3\nluns = ['c']".into()),
            ("name = 'c', ", "name = 'c', product = 'Other', ".into()),
            ("a secret of tests", "another of tests".into()),
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
        for to in ["initiators = ['iqn.2026-11.i:*']", "queue_depth = 4", "read_only = true"] {
            assert_eq!(concerned("name = 'known'", &format!("name = 'known'\n{to}")), [W], "{to}");
        }
    }

    #[test]
    fn changes_that_affect_no_rights_check_no_tasks() {
        let nothing = [
            ("portal", "logins_max = 77\nportal"),
            ("luns = ['c']", "sessions_max = 3\nluns = ['c']"),
            ("name = 'c', ", "name = 'c', product = 'Other', "),
            ("a secret of tests", "another of tests"),
            ("lun = [", "lun = [{ name = 'new', ram = '1M' }, "),
        ];
        for (from, to) in nothing {
            let delta = delta(from, to);
            assert!(!delta.concerns_sessions() && delta.protected.is_empty(), "{to}");
        }
        assert!(delta("luns = ['c']", "luns = []").concerns_sessions());
        let interface = "aoe = [{ interface = 'eth0' }]\nportal = [{";
        let from = BASE.split_once(" }, { name = 'b'").expect("the LUN before").0;
        let aoe = delta(from, &format!("{}, aoe = '1.1'", from.replacen("portal = [{", interface, 1)));
        assert!(aoe.interfaces_changed && aoe.exports_changed && !aoe.targets_changed);
    }

    #[test]
    fn a_lun_that_becomes_read_only_is_protected_and_concerns_nobody_else() {
        let delta = delta("name = 'c', ", "name = 'c', read_only = true, ");
        assert_eq!(Vec::from_iter(delta.protected.clone()), [2]);
        assert!(!delta.concerns_sessions() && delta.relimited.is_empty());
    }

    #[test]
    fn another_limit_of_a_lun_is_that_of_its_unit_and_that_of_a_group_is_not() {
        let relimited = |from, to| Vec::from_iter(delta(from, to).relimited);
        assert_eq!(relimited("name = 'c', ", "name = 'c', iops_max = 7, "), [2]);
        assert!(relimited("name = 'c', ", "name = 'c', product = 'Other', ").is_empty());
        let grouped = ("name = 'known'", "name = 'known'\niops_max = 7");
        assert!(relimited(grouped.0, grouped.1).is_empty());
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
