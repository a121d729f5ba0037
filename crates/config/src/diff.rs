//! The difference between two configurations: a pure function that returns ordered steps.

use super::model::{AoeInterface, Config, Group, HugePages, Lun, StoreSpec, Target};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// A step. Names are those of the old configuration for what is removed, of the new one for what is added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepOfChange {
    /// This option takes effect only at the next start.
    Restart(&'static str),
    /// Timeouts, limits or polling changed.
    Settings,
    /// Who may make changes over TCP, or how connections are encrypted, changed.
    AdminAccess,
    /// End the target's sessions and remove it.
    RemoveTarget(String),
    /// The target no longer exposes the LUN to anyone.
    Hide {
        /// Target.
        target: String,
        /// LUN.
        lun: String,
    },
    /// Stop listening.
    RemovePortal(SocketAddr),
    /// End the AoE sessions of an interface, by its name, and stop serving it.
    RemoveInterface(String),
    /// No target exposes the LUN any more: close its store.
    RemoveLun(String),
    /// Open the LUN's store.
    AddLun(String),
    /// Properties of the LUN changed that its sessions can survive.
    ChangeLun(String),
    /// Serve AoE on an interface.
    AddInterface(String),
    /// The initiators served on an interface changed: sessions of others end.
    ChangeInterface(String),
    /// State or preference of a portal group, by its tag, changed, or whether initiators may set its state.
    ChangePortalGroup(u16),
    /// Listen.
    AddPortal(SocketAddr),
    /// Cores, transports or group of a portal changed: applies to new connections, but sessions of another
    /// group end.
    ChangePortal(SocketAddr),
    /// A new target.
    AddTarget(String),
    /// Portals, LUN lists, groups or limits of a target changed, or a LUN that it exposes was replaced.
    ChangeTarget(String),
}

/// The steps from `old` to `new`, none if they are equal. Removals go from the initiator's side inwards
/// (targets, portals, LUNs); additions the other way.
pub fn diff(old: &Config, new: &Config) -> Vec<StepOfChange> {
    let mut steps = settings(old, new);
    steps.extend(leaving(old, new));
    steps.extend(portal_groups(old, new));
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
    if old.admin != new.admin {
        steps.push(StepOfChange::Restart("admin"));
    }
    if old.admin_group != new.admin_group {
        steps.push(StepOfChange::Restart("admin_group"));
    }
    if old.cluster != new.cluster {
        steps.push(StepOfChange::Restart("cluster"));
    }
    if old.srp_guid != new.srp_guid {
        steps.push(StepOfChange::Restart("srp_guid"));
    }
    // Sessions are identified by their ports' numbers.
    let renumbered = |tag| old.portal_group(tag).port_ids != new.portal_group(tag).port_ids;
    if old.portals.iter().any(|portal| renumbered(portal.group)) {
        steps.push(StepOfChange::Restart("port_ids"));
    }
    let of = |config: &Config| {
        let times = (config.login_timeout, config.keep_alive, config.stall_timeout);
        (config.poll, times, config.logins_max)
    };
    if of(old) != of(new) {
        steps.push(StepOfChange::Settings);
    }
    if old.admin_access != new.admin_access {
        steps.push(StepOfChange::AdminAccess);
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
        let still_shown = shown(new, after);
        for name in shown(old, target) {
            if !still_shown.contains(name) || !survives(old, new, name) {
                steps.push(StepOfChange::Hide { target: target.name.clone(), lun: name.into() });
            }
        }
    }
    let addresses = counted_addresses(new);
    steps.extend(without(&counted_addresses(old), &addresses).map(StepOfChange::RemovePortal));
    let goes = old.aoe.iter().filter(|interface| !stays(new, interface));
    steps.extend(goes.map(|interface| StepOfChange::RemoveInterface(interface.name.clone())));
    for lun in old.luns.iter().filter(|lun| !survives(old, new, &lun.name)) {
        steps.push(StepOfChange::RemoveLun(lun.name.clone()));
    }
    steps
}

/// Groups that become active come first: when one takes over from another, there is always a path.
fn portal_groups(old: &Config, new: &Config) -> Vec<StepOfChange> {
    let all = old.portal_groups.iter().chain(&new.portal_groups).map(|group| group.tag);
    let all: BTreeSet<u16> = all.filter(|tag| old.portal_group(*tag) != new.portal_group(*tag)).collect();
    let (first, last): (Vec<u16>, Vec<u16>) =
        all.into_iter().partition(|tag| new.portal_group(*tag).state.is_active());
    first.into_iter().chain(last).map(StepOfChange::ChangePortalGroup).collect()
}

fn coming(old: &Config, new: &Config) -> Vec<StepOfChange> {
    let mut steps = Vec::new();
    // A changed LUN may give up its AoE address to a new one.
    for lun in new.luns.iter().filter(|lun| survives(old, new, &lun.name)) {
        if find_lun(old, &lun.name) != Some(lun) {
            steps.push(StepOfChange::ChangeLun(lun.name.clone()));
        }
    }
    let comes = new.luns.iter().filter(|lun| !survives(old, new, &lun.name));
    steps.extend(comes.map(|lun| StepOfChange::AddLun(lun.name.clone())));
    for interface in new.aoe.iter().filter(|interface| !old.aoe.contains(interface)) {
        let name = interface.name.clone();
        let step =
            if stays(old, interface) { StepOfChange::ChangeInterface } else { StepOfChange::AddInterface };
        steps.push(step(name));
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
            Some(before) => {
                let replaced = shown(new, target).iter().any(|name| !survives(old, new, name));
                if replaced || by_name(old, before) != by_name(new, target) {
                    steps.push(StepOfChange::ChangeTarget(target.name.clone()));
                }
            }
        }
    }
    steps
}

/// Whether the other configuration serves the interface on the same cores.
fn stays(other: &Config, interface: &AoeInterface) -> bool {
    other.aoe.iter().any(|other| (&other.name, &other.cores) == (&interface.name, &interface.cores))
}

/// Whether a LUN is the same unit in both, perhaps with different properties.
fn survives(old: &Config, new: &Config, name: &str) -> bool {
    find_lun(old, name).zip(find_lun(new, name)).is_some_and(|(old, new)| same_unit(old, new))
}

/// What an initiator must not see change in a unit that it uses.
fn same_unit(old: &Lun, new: &Lun) -> bool {
    let store = |lun: &Lun| {
        let mut store = lun.store.clone();
        match &mut store {
            // A RAM disk gets its kind of pages when it is created.
            StoreSpec::Ram { huge_pages, .. } => *huge_pages = HugePages::Auto,
            // A file grows in place.
            StoreSpec::File { size, .. } => *size = None,
            StoreSpec::Null { .. }
            | StoreSpec::Block { .. }
            | StoreSpec::Remote { .. }
            | StoreSpec::Nbd { .. }
            | StoreSpec::Rbd { .. } => {}
        }
        store
    };
    let fixed =
        |lun: &Lun| (store(lun), lun.access, lun.block_bytes, lun.physical_block_bytes, lun.serial.clone());
    // A store opened read-only is reopened for writing.
    let is_in_memory = matches!(old.store, StoreSpec::Null { .. } | StoreSpec::Ram { .. });
    fixed(old) == fixed(new) && (is_in_memory || !old.read_only || new.read_only)
}

/// Names of all LUNs that a target exposes to anyone.
fn shown<'a>(config: &'a Config, target: &Target) -> BTreeSet<&'a str> {
    let lists = target.groups.iter().filter_map(|group| group.luns.as_ref()).chain([&target.luns]);
    lists.flatten().filter_map(|(_, lun)| config.luns.get(*lun)).map(|lun| lun.name.as_str()).collect()
}

/// A LUN list by name, comparable across configurations.
type NamedLuns<'a> = Vec<(u16, &'a str)>;

/// A target with names instead of indices.
#[derive(PartialEq)]
struct ByName<'a> {
    plain: Target,
    portals: Vec<(SocketAddr, usize)>,
    luns: NamedLuns<'a>,
    group_luns: Vec<Option<NamedLuns<'a>>>,
}

fn by_name<'a>(config: &'a Config, target: &Target) -> ByName<'a> {
    let named = |list: &Vec<(u16, usize)>| -> NamedLuns<'a> {
        list.iter()
            .filter_map(|(number, lun)| Some((*number, config.luns.get(*lun)?.name.as_str())))
            .collect()
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

/// Addresses, numbered to distinguish those given twice (port 0).
fn counted_addresses(config: &Config) -> Vec<(SocketAddr, usize)> {
    let all = &config.portals;
    let before = |index: usize, address| all.iter().take(index).filter(|p| p.listen == address).count();
    all.iter().enumerate().map(|(index, portal)| (portal.listen, before(index, portal.listen))).collect()
}

fn without(
    all: &[(SocketAddr, usize)],
    still_shown: &[(SocketAddr, usize)],
) -> impl Iterator<Item = SocketAddr> {
    all.iter().filter(|key| !still_shown.contains(key)).map(|(address, _)| *address)
}

fn find_lun<'a>(config: &'a Config, name: &str) -> Option<&'a Lun> {
    config.luns.iter().find(|lun| lun.name == name)
}

fn find_target<'a>(config: &'a Config, name: &str) -> Option<&'a Target> {
    config.targets.iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use StepOfChange::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn config(text: &str) -> Config {
        Config::from_toml(text, Path::new("lunette.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    const BASE: &str = r#"
portal = [{ listen = "127.0.0.1:3260" }, { listen = "127.0.0.1:0" }, { listen = "127.0.0.1:0" }]
lun = [{ name = "a", ram = "1M" }, { name = "b", ram = "2M" }]
[[target]]
name = "iqn.2026-11.a:x"
luns = ["a", "b"]
[[target]]
name = "iqn.2026-11.a:y"
luns = ["b"]
"#;

    fn changed(from: &str, to: &str) -> Vec<StepOfChange> {
        assert!(BASE.contains(from));
        diff(&config(BASE), &config(&BASE.replace(from, to)))
    }

    #[test]
    fn a_disk_in_memory_is_not_replaced_for_the_pages_that_it_has() {
        let steps = changed(r#"ram = "1M""#, r#"ram = "1M", huge_pages = "never""#);
        assert!(!steps.iter().any(|step| matches!(step, RemoveLun(_) | AddLun(_))), "{steps:?}");
    }

    #[test]
    fn the_same_configuration_needs_no_step() {
        assert_eq!(changed("a", "a"), []);
        let swapped = r#"[{ name = "b", ram = "2M" }, { name = "a", ram = "1M" }]"#;
        assert_eq!(changed(r#"[{ name = "a", ram = "1M" }, { name = "b", ram = "2M" }]"#, swapped), []);
    }

    #[test]
    fn a_unit_that_goes_is_hidden_first_and_one_that_comes_is_opened_first() {
        let x = || "iqn.2026-11.a:x".to_string();
        let steps = changed(r#"{ name = "a", ram = "1M" }"#, r#"{ name = "a", ram = "4M" }"#);
        assert_eq!(
            steps,
            [
                Hide { target: x(), lun: "a".into() },
                RemoveLun("a".into()),
                AddLun("a".into()),
                ChangeTarget(x())
            ],
            "another medium is another unit"
        );
        let steps = changed(r#"luns = ["a", "b"]"#, r#"luns = ["b"]"#);
        assert_eq!(steps, [Hide { target: x(), lun: "a".into() }, ChangeTarget(x())]);
        assert_eq!(changed(r#"ram = "1M""#, r#"ram = "1M", read_only = true"#), [ChangeLun("a".into())]);
        let steps = changed("a:y", "a:z");
        assert_eq!(steps, [RemoveTarget("iqn.2026-11.a:y".into()), AddTarget("iqn.2026-11.a:z".into())]);
    }

    #[test]
    fn a_file_grows_where_it_is_and_is_opened_anew_to_be_written() {
        let steps = |from: &str, to: &str| {
            let target = "[[target]]\nname = 'iqn.2026-11.a:x'\nluns = ['a']";
            let lun =
                |rest: &str| format!("lun = [{{ name = 'a', file = '/a', serial = 's'{rest} }}]\n{target}");
            let file = |rest: &str| config(&lun(rest));
            diff(&file(from), &file(to))
        };
        let changed = [ChangeLun("a".into())];
        assert_eq!(steps(", size = '1M'", ", size = '2M'"), changed);
        assert_eq!(steps("", ", read_only = true"), changed);
        let steps = steps(", read_only = true", "");
        assert!(steps.contains(&RemoveLun("a".into())) && steps.contains(&AddLun("a".into())), "{steps:?}");
    }

    #[test]
    fn portals_and_settings_change_alone() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let steps =
            changed(r#"{ listen = "127.0.0.1:3260" }"#, r#"{ listen = "127.0.0.1:3260", group = 2 }"#);
        assert_eq!(steps, [ChangePortal(address("127.0.0.1:3260"))]);
        let steps = changed(r#", { listen = "127.0.0.1:0" }, "#, ", ");
        let names = ["x", "y"].map(|name| ChangeTarget(format!("iqn.2026-11.a:{name}")));
        assert_eq!(steps[0], RemovePortal(address("127.0.0.1:0")));
        assert_eq!(steps[1..], names, "they are reached through all portals");
        assert_eq!(changed("portal = [", "poll = 'never'\nportal = ["), [Settings]);
        assert_eq!(changed("portal = [", "state_dir = '/x'\nportal = ["), [Restart("state_dir")]);
        assert_eq!(changed("portal = [", "admin = '/x'\nportal = ["), [Restart("admin")]);
    }

    #[test]
    fn an_interface_comes_goes_or_serves_others() {
        let with = |lists: &str| {
            let lun =
                |name: &str, aoe: &str| format!("[[lun]]\nname = '{name}'\nram = '1M'\naoe = '{aoe}'\n");
            let more = if lists.contains("eth1") { lun("b", "1.2") } else { String::new() };
            format!("{}{more}[[aoe]]\ninterface = 'eth0'\n{lists}", lun("a", "1.1"))
        };
        let steps = |old: &str, new: &str| diff(&config(&with(old)), &config(&with(new)));
        let (one, denied) = ("[[aoe]]\ninterface = 'eth1'\n", "deny = ['02:00:00:00:00:01']\n");
        let (eth0, eth1) = (|| "eth0".to_string(), || "eth1".to_string());
        assert_eq!(steps("", one), [AddLun("b".into()), AddInterface(eth1())]);
        assert_eq!(steps(one, ""), [RemoveInterface(eth1()), RemoveLun("b".into())]);
        assert_eq!(steps("", denied), [ChangeInterface(eth0())]);
        let (old, mut new) = (config(&with("")), config(&with("")));
        new.aoe[0].cores = vec![77];
        assert_eq!(diff(&old, &new), [RemoveInterface(eth0()), AddInterface(eth0())]);
        let all = diff(&old, &new);
        assert_eq!(diff(&all.iter().fold(old, |now, step| step.after(&now, &new)), &new), []);
    }

    #[test]
    fn a_lun_that_comes_may_have_the_aoe_address_that_another_leaves() {
        let with = |luns: &str| config(&format!("aoe = [{{ interface = 'eth0' }}]\nlun = [{luns}]\n"));
        let old = with("{ name = 'a', ram = '1M', aoe = '1.1' }");
        let new = with("{ name = 'b', ram = '1M', aoe = '1.1' }, { name = 'a', ram = '1M', aoe = '1.2' }");
        assert_eq!(diff(&old, &new), [ChangeLun("a".into()), AddLun("b".into())]);
    }

    /// A file in which each item is present or absent, or present in another form.
    fn variant() -> impl Strategy<Value = String> {
        let luns = proptest::collection::vec(0u8..4, 3);
        let targets = proptest::collection::vec((0u8..8, any::<bool>()), 3);
        let portals = proptest::collection::vec((0u16..3, 1u16..3), 1..4);
        (luns, targets, portals).prop_map(|(luns, targets, portals)| {
            let mut text = String::from("[[lun]]\nname = 'z'\nnull = '1M'\n");
            for (index, (address, group)) in portals.iter().enumerate() {
                // Port 0 may occur more than once.
                let port = if *address == 0 { 0 } else { 3260 + index };
                text += &format!("[[portal]]\nlisten = '127.0.0.{}:{port}'\ngroup = {group}\n", address + 1);
            }
            for (index, form) in luns.iter().enumerate().filter(|(_, form)| **form > 0) {
                text += &format!(
                    "[[lun]]\nname = 'l{index}'\nram = '{}M'\nremovable = {}\n",
                    1 + form / 2,
                    form % 2 == 1
                );
            }
            let text = text
                .replace("removable = 0", "removable = false")
                .replace("removable = 1", "removable = true");
            targets.iter().enumerate().fold(text, |text, (index, (mask, there))| {
                let shown = (0..3)
                    .filter(|lun| luns[*lun] > 0 && mask & (1 << lun) != 0)
                    .map(|lun| format!("'l{lun}',"));
                let list = shown.collect::<String>();
                let name =
                    if *there { format!("t{index}") } else { "always".to_string() + &index.to_string() };
                format!("{text}[[target]]\nname = 'iqn.2026-11.a:{name}'\nluns = [{list}]\n")
            })
        })
    }

    proptest! {
        /// No unit is closed while a target exposes it, none is exposed before it is open, and in the end all
        /// are present.
        #[test]
        fn steps_keep_every_reference(old in variant(), new in variant()) {
            let (old, new) = (config(&old), config(&new));
            let names = |c: &Config| c.luns.iter().map(|l| l.name.clone()).collect::<BTreeSet<String>>();
            let shows = |c: &Config| {
                let one = |t: &Target| (t.name.clone(), shown(c, t).into_iter().map(String::from).collect());
                c.targets.iter().map(one).collect::<std::collections::BTreeMap<String, BTreeSet<String>>>()
            };
            let (mut open, mut visible) = (names(&old), shows(&old));
            for step in diff(&old, &new) {
                match step {
                    RemoveTarget(name) => prop_assert!(visible.remove(&name).is_some()),
                    Hide { target, lun } => prop_assert!(visible.get_mut(&target).unwrap().remove(&lun)),
                    RemoveLun(name) => {
                        prop_assert!(visible.values().all(|luns| !luns.contains(&name)));
                        prop_assert!(open.remove(&name));
                    }
                    AddLun(name) => prop_assert!(open.insert(name)),
                    ChangeLun(name) => prop_assert!(open.contains(&name)),
                    AddTarget(name) | ChangeTarget(name) => {
                        let luns = shows(&new)[&name].clone();
                        prop_assert!(luns.is_subset(&open));
                        visible.insert(name, luns);
                    }
                    Restart(_) | Settings | AdminAccess | RemovePortal(_) | AddPortal(_) | ChangePortal(_) => {}
                    RemoveInterface(_) | AddInterface(_) | ChangeInterface(_) | ChangePortalGroup(_) => {}
                }
            }
            prop_assert_eq!(open, names(&new));
            prop_assert_eq!(visible, shows(&new));
        }

        /// All steps in turn transform one into the other, and lead back again from wherever they stop.
        #[test]
        fn steps_lead_from_one_configuration_to_the_other(old in variant(), new in variant(), stop in 0usize..20) {
            let (old, new) = (config(&old), config(&new));
            let mut now = old.clone();
            for (index, step) in diff(&old, &new).into_iter().enumerate() {
                if index == stop {
                    let back = diff(&now, &old).iter().fold(now.clone(), |now, step| step.after(&now, &old));
                    prop_assert_eq!(diff(&back, &old), []);
                }
                now = step.after(&now, &new);
            }
            prop_assert_eq!(diff(&now, &new), []);
        }
    }
}
