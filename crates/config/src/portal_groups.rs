//! Portal groups as target port groups: which asymmetric access state each is in (SPC-4 section 5.15).

use super::checks::{limit, required, unique};
use super::model::{Config, PORTALS_MAX, PortIds, Portal, PortalGroup, Target};
use super::ports::target_ports;
use super::problems::{Collector, Fault, suggest};
use super::raw::{At, Raw, RawPortalGroup, Text};
use super::scalar;
use std::collections::BTreeMap;
use wire::scsi::AccessState;

impl PortalGroup {
    /// A group with nothing configured.
    pub(crate) fn new(tag: u16) -> PortalGroup {
        let state = AccessState::default();
        PortalGroup { tag, state, preferred: false, explicit: false, port_ids: PortIds::ALL }
    }
}

impl Config {
    /// The portal group with this tag.
    pub fn portal_group(&self, tag: u16) -> PortalGroup {
        let found = self.portal_groups.iter().find(|group| group.tag == tag);
        found.copied().unwrap_or(PortalGroup::new(tag))
    }
}

/// All of them, ascending by tag.
pub(super) fn portal_groups(
    raw: &Raw,
    portals: &[Portal],
    problems: &mut Collector<'_>,
) -> Option<Vec<PortalGroup>> {
    limit(raw.portal_groups.iter().map(|group| &group.place), PORTALS_MAX, problems);
    let mut tags = BTreeMap::new();
    let mut groups = Vec::new();
    for raw in &raw.portal_groups {
        let group = one(raw, portals, problems);
        if let (Some(group), Some(at)) = (&group, &raw.group) {
            unique(&mut tags, group.tag, &at.place, "group", problems);
        }
        groups.push(group);
    }
    let mut groups = groups.into_iter().collect::<Option<Vec<PortalGroup>>>()?;
    groups.sort_by_key(|group| group.tag);
    Some(groups)
}

fn one(raw: &RawPortalGroup, portals: &[Portal], problems: &mut Collector<'_>) -> Option<PortalGroup> {
    let tag = required(&raw.group, &raw.place, "group", problems).and_then(|at| {
        let tag = problems.check(&at.place, scalar::number(&at.value, 1, u64::from(u16::MAX)))?;
        let tag = u16::try_from(tag).ok()?;
        if !portals.iter().any(|portal| portal.group == tag) {
            let fix = format!("write `group = {tag}` in a [[portal]], or remove this table");
            problems.add(&at.place, Fault::new(format!("no portal has group {tag}"), fix));
            return None;
        }
        Some(tag)
    });
    let state = match &raw.state {
        None => Some(AccessState::default()),
        Some(at) => problems.check(&at.place, state(&at.value)),
    };
    let port_ids = match &raw.port_ids {
        None => Some(PortIds::ALL),
        Some(at) => problems.check(&at.place, port_ids(&at.value)),
    };
    let on = |switch: &Option<At<bool>>| switch.as_ref().is_some_and(|at| at.value);
    let (preferred, explicit) = (on(&raw.preferred), on(&raw.explicit));
    Some(PortalGroup { tag: tag?, state: state?, preferred, explicit, port_ids: port_ids? })
}

fn state(text: &str) -> Result<AccessState, Fault> {
    AccessState::named(text).ok_or_else(|| {
        let fix = suggest(text, AccessState::ALL.map(AccessState::name));
        Fault::new(format!("`{text}` is not an asymmetric access state"), fix)
    })
}

fn port_ids(text: &str) -> Result<PortIds, Fault> {
    let number = |text: &str| text.trim().parse::<u16>().ok();
    let ends = text.split_once('-').and_then(|(first, last)| number(first).zip(number(last)));
    match ends {
        Some((first @ 1.., last)) if first <= last => Ok(PortIds { first, last }),
        Some(_) | None => {
            let fix = "write the first and the last number, from 1 to 65535, like 1000-1999";
            Err(Fault::new(format!("`{text}` is not a range of relative target port identifiers"), fix))
        }
    }
}

/// Each range must have enough numbers for its group, and not overlap another.
pub(super) fn check_port_ids(
    raw: &Raw,
    groups: &[PortalGroup],
    portals: &[Portal],
    targets: &[Target],
    problems: &mut Collector<'_>,
) {
    let ports = target_ports(portals, targets);
    let given: Vec<(&Text, PortalGroup)> = raw
        .portal_groups
        .iter()
        .filter_map(|raw| {
            let tag = raw.group.as_ref()?.value.parse::<u16>().ok()?;
            let group = groups.iter().find(|group| group.tag == tag)?;
            raw.port_ids.is_some().then_some((&raw.port_ids, *group))
        })
        .collect();
    for (index, (text, group)) in given.iter().enumerate() {
        let Some(at) = text else { continue };
        let PortIds { first, last } = group.port_ids;
        let (needed, count) =
            (ports.iter().filter(|port| port.group == group.tag).count(), usize::from(last - first) + 1);
        if needed > count {
            let what = format!(
                "group {} has {needed} target ports, one for each target and protocol, but only {count} identifiers",
                group.tag
            );
            problems.add(&at.place, Fault::new(what, "write a larger range"));
        }
        let meets =
            |(_, other): &&(&Text, PortalGroup)| first <= other.port_ids.last && other.port_ids.first <= last;
        if let Some((_, other)) = given[..index].iter().find(meets) {
            let what = format!("group {} has some of these identifiers, too", other.tag);
            problems.add(&at.place, Fault::new(what, "give each group a separate range"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Edit, EditError, StepOfChange, Subject, diff};
    use std::path::Path;

    const BASE: &str = "
portal = [{ listen = '127.0.0.1:1' }, { listen = '127.0.0.1:2', group = 2 }]
lun = [{ ram = '1M' }]
[[target]]
name = 'iqn.2026-11.a:x'
[[target]]
name = 'iqn.2026-11.a:y'
luns = []
";

    fn with(groups: &str) -> Result<Config, String> {
        let text = format!("{}{groups}", BASE.replace("a:x'", "a:x'\nluns = ['lun0']"));
        Config::from_toml(&text, Path::new("lunette.toml")).map_err(|problems| problems.to_string())
    }

    fn good(groups: &str) -> Config {
        with(groups).unwrap_or_else(|problems| panic!("{problems}"))
    }

    #[test]
    fn a_group_is_as_its_table_says_and_others_are_optimized() {
        let config = good(
            "[[portal_group]]\ngroup = 2\nstate = 'standby'\npreferred = true\nexplicit = true\nport_ids = '7-9'",
        );
        let second = config.portal_group(2);
        assert_eq!((second.state, second.preferred, second.explicit), (AccessState::Standby, true, true));
        assert_eq!(second.port_ids, PortIds { first: 7, last: 9 });
        assert_eq!(config.portal_group(1), PortalGroup::new(1));
        for state in AccessState::ALL {
            let text = format!("[[portal_group]]\ngroup = 1\nstate = '{}'", state.name());
            assert_eq!(good(&text).portal_group(1).state, state);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_do() {
        let of = |tag: u16, rest: &str| format!("[[portal_group]]\ngroup = {tag}\n{rest}\n");
        for (groups, what) in [
            ("[[portal_group]]\n".to_owned(), "portal_group[0].group: this is missing"),
            (of(3, ""), "no portal has group 3; write `group = 3` in a [[portal]]"),
            (of(1, "") + &of(1, ""), "this group is already used by"),
            (of(1, "state = 'active'"), "`active` is not an asymmetric access state"),
            (of(1, "port_ids = '0-5'"), "`0-5` is not a range"),
            (of(1, "port_ids = '5'"), "write the first and the last number"),
            (of(1, "port_ids = '5-5'"), "group 1 has 2 target ports"),
            (
                of(1, "port_ids = '1-9'") + &of(2, "port_ids = '9-20'"),
                "group 1 has some of these identifiers",
            ),
        ] {
            let problems = with(&groups).expect_err("it is wrong");
            assert!(problems.contains(what), "{groups}: {problems}");
        }
    }

    #[test]
    fn the_group_that_becomes_active_comes_before_the_one_that_does_not_stay_so() {
        let states = |one: &str, two: &str| {
            good(&format!(
                "[[portal_group]]\ngroup = 1\nstate = '{one}'\n[[portal_group]]\ngroup = 2\nstate = '{two}'"
            ))
        };
        let (before, after) = (states("active/optimized", "standby"), states("standby", "active/optimized"));
        let steps = diff(&before, &after);
        assert_eq!(steps, [2, 1].map(StepOfChange::ChangePortalGroup));
        let between = steps[0].after(&before, &after);
        assert!([1, 2].iter().all(|tag| between.portal_group(*tag).state.is_active()));
        assert_eq!(diff(&steps[1].after(&between, &after), &after), []);
        assert_eq!(diff(&good(""), &states("active/optimized", "active/optimized")), []);
        let numbered = good("[[portal_group]]\ngroup = 2\nport_ids = '7-9'");
        assert!(diff(&before, &numbered).contains(&StepOfChange::Restart("port_ids")));
    }

    #[test]
    fn a_table_is_changed_where_it_is_or_added() {
        let set = |text: &str, tag, json: serde_json::Value| {
            let serde_json::Value::Object(settings) = json else { panic!("no object") };
            Edit { subject: Subject::PortalGroup(tag), action: Action::Set(settings) }.apply(text)
        };
        let text = "[[portal_group]]\ngroup = 2 # slow\nstate = \"standby\" # for now\n";
        let changed = set(text, 2, serde_json::json!({ "state": "unavailable", "preferred": true }));
        let expected =
            "[[portal_group]]\ngroup = 2 # slow\nstate = \"unavailable\" # for now\npreferred = true\n";
        assert_eq!(changed.as_deref(), Ok(expected));
        let added = set(text, 1, serde_json::json!({ "explicit": true }));
        assert_eq!(added.unwrap(), format!("{text}\n[[portal_group]]\ngroup = 1\nexplicit = true\n"));
        let refused = set(text, 2, serde_json::json!({ "group": 3 }));
        assert!(matches!(refused, Err(EditError::Wrong(..))), "{refused:?}");
    }
}
