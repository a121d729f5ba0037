//! From what runs to what is wanted: steps that the engine can take one by one, each with the one that takes it back.

use admin::Fault;
use config::{Config, Host, Lun, StepOfChange, StoreSpec, diff};
use engine::{Change, Shown};

/// What is to be done.
pub(super) struct Plan {
    /// In this order.
    pub(super) steps: Vec<Step>,
}

/// One change.
pub(super) struct Step {
    /// What the engine does.
    pub(super) change: Change,
    /// What takes it back.
    pub(super) undo: Change,
    /// What it does to whom.
    pub(super) text: String,
    /// The LUN whose store it opens.
    pub(super) opens: Option<String>,
}

/// The steps from `old` to `new`: what comes first, so that a LUN which cannot be opened costs nobody anything; then what
/// goes; then what could not come before that went.
///
/// # Errors
/// What only a restart can change.
pub(super) fn plan(old: &Config, new: &Config) -> Result<Plan, Vec<Fault>> {
    let mut model = old.clone();
    let mut steps = Vec::new();
    let mut faults = Vec::new();
    let wanted = diff(old, new);
    let goes =
        |name: &str| wanted.iter().any(|step| matches!(step, StepOfChange::RemoveLun(gone) if gone == name));
    let comes =
        |name: &str| wanted.iter().any(|step| matches!(step, StepOfChange::AddLun(new) if new == name));
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for (index, lun) in new.luns.iter().enumerate().filter(|(_, lun)| comes(&lun.name) && !goes(&lun.name)) {
        let shown = shown(new, index);
        if is_free(old, lun, &shown) { first.push((lun, shown)) } else { last.push((lun, shown)) }
    }
    for (lun, shown) in first {
        push(&mut steps, &mut model, added(lun, shown));
    }
    for lun in old.luns.iter().filter(|lun| goes(&lun.name)) {
        match find(new, &lun.name).filter(|_| comes(&lun.name)) {
            None => push(&mut steps, &mut model, removed(old, lun)),
            Some(next) => {
                if matches!(lun.store, StoreSpec::Ram { .. }) {
                    faults.push(loses_content(lun));
                }
                push(&mut steps, &mut model, replaced(old, lun, next));
            }
        }
    }
    for (lun, shown) in last {
        let shown = shown.into_iter().filter(|shown| has_list(&model, shown)).collect();
        push(&mut steps, &mut model, added(lun, shown));
    }
    faults.extend(diff(&model, new).iter().map(needs_restart));
    if faults.is_empty() { Ok(Plan { steps }) } else { Err(faults) }
}

fn push(steps: &mut Vec<Step>, model: &mut Config, step: Step) {
    advance(model, &step.change);
    steps.push(step);
}

/// What the engine makes of a configuration.
pub(super) fn advance(config: &mut Config, change: &Change) {
    match change {
        Change::Add { lun, shown } => {
            let index = config.luns.len();
            config.luns.push((**lun).clone());
            for shown in shown {
                if let Some(list) = list(config, shown) {
                    let at = list.partition_point(|(number, _)| *number < shown.number);
                    list.insert(at, (shown.number, index));
                }
            }
        }
        Change::Remove { name } => {
            let Some(index) = config.luns.iter().position(|lun| lun.name == *name) else { return };
            config.luns.remove(index);
            for target in &mut config.targets {
                let grouped = target.groups.iter_mut().filter_map(|group| group.luns.as_mut());
                for luns in grouped.chain([&mut target.luns]) {
                    luns.retain(|(_, lun)| *lun != index);
                    luns.iter_mut().for_each(|(_, lun)| *lun -= usize::from(*lun > index));
                }
            }
        }
        Change::Replace { name, lun } => {
            if let Some(old) = config.luns.iter_mut().find(|lun| lun.name == *name) {
                *old = (**lun).clone();
            }
        }
    }
}

/// The LUNs to come that cannot be opened, as far as that can be seen before anything is changed.
pub(super) fn missing(old: &Config, steps: &[Step], host: &dyn Host) -> Vec<Fault> {
    let coming = steps.iter().filter_map(|step| match &step.change {
        Change::Add { lun, .. } | Change::Replace { lun, .. } => Some((&step.text, lun)),
        Change::Remove { .. } => None,
    });
    // What one has that goes is locked until then.
    let is_ours = |lun: &Lun| old.luns.iter().any(|other| path(other).is_some() && path(other) == path(lun));
    let examined = coming.filter(|(_, lun)| !is_ours(lun)).filter_map(|(text, lun)| {
        let fault = host.store(lun).err()?;
        Some(Fault { place: text.clone(), what: fault.what, fix: fault.fix })
    });
    examined.collect()
}

fn added(lun: &Lun, shown: Vec<Shown>) -> Step {
    Step {
        text: format!("add LUN {} ({}){}", lun.name, lun.store, numbers(&shown)),
        undo: Change::Remove { name: lun.name.clone() },
        opens: Some(lun.name.clone()),
        change: Change::Add { lun: Box::new(lun.clone()), shown },
    }
}

fn removed(old: &Config, lun: &Lun) -> Step {
    let shown = old.luns.iter().position(|other| other.name == lun.name).map(|index| shown(old, index));
    let shown = shown.unwrap_or_default();
    let lost =
        if matches!(lun.store, StoreSpec::Ram { .. }) { "; its content, in memory, is lost" } else { "" };
    Step {
        text: format!("remove LUN {} ({}){}{lost}", lun.name, lun.store, numbers(&shown)),
        undo: Change::Add { lun: Box::new(lun.clone()), shown },
        opens: None,
        change: Change::Remove { name: lun.name.clone() },
    }
}

fn replaced(old: &Config, lun: &Lun, next: &Lun) -> Step {
    let shown = old.luns.iter().position(|other| other.name == lun.name).map(|index| shown(old, index));
    let (before, after) = (lun.store.to_string(), next.store.to_string());
    let what = if before == after {
        format!("{before}, with other properties")
    } else {
        format!("{before} by {after}")
    };
    Step {
        text: format!("replace LUN {} ({what}){}", lun.name, numbers(&shown.unwrap_or_default())),
        undo: Change::Replace { name: lun.name.clone(), lun: Box::new(lun.clone()) },
        opens: Some(lun.name.clone()),
        change: Change::Replace { name: lun.name.clone(), lun: Box::new(next.clone()) },
    }
}

/// `, LUN 1 of iqn.2026-11.a:x`.
fn numbers(shown: &[Shown]) -> String {
    let one = |Shown { target, group, number }: &Shown| match group {
        None => format!(", LUN {number} of {target}"),
        Some(group) => format!(", LUN {number} of {target} for group {group}"),
    };
    shown.iter().map(one).collect()
}

/// Where a configuration shows one of its LUNs.
fn shown(config: &Config, index: usize) -> Vec<Shown> {
    let mut all = Vec::new();
    for target in &config.targets {
        let lists = target.groups.iter().filter_map(|group| Some((Some(&group.name), group.luns.as_ref()?)));
        for (group, list) in [(None, &target.luns)].into_iter().chain(lists) {
            all.extend(list.iter().filter(|(_, lun)| *lun == index).map(|(number, _)| Shown {
                target: target.name.clone(),
                group: group.cloned(),
                number: *number,
            }));
        }
    }
    all
}

/// Whether a LUN can come beside all that there are.
fn is_free(config: &Config, lun: &Lun, shown: &[Shown]) -> bool {
    let collides = |other: &Lun| {
        other.serial == lun.serial
            || (lun.aoe.is_some() && lun.aoe == other.aoe)
            || (path(lun).is_some() && path(lun) == path(other))
    };
    let is_number_free = |shown: &Shown| {
        find_list(config, shown).is_some_and(|list| list.iter().all(|(number, _)| *number != shown.number))
    };
    !config.luns.iter().any(collides) && shown.iter().all(is_number_free)
}

/// Whether there is the list that a LUN is to be shown in, and its number free.
fn has_list(config: &Config, shown: &Shown) -> bool {
    find_list(config, shown).is_some_and(|list| list.iter().all(|(number, _)| *number != shown.number))
}

fn find_list<'a>(config: &'a Config, shown: &Shown) -> Option<&'a Vec<(u16, usize)>> {
    let target = config.targets.iter().find(|target| target.name == shown.target)?;
    match &shown.group {
        None => Some(&target.luns),
        Some(name) => target.groups.iter().find(|group| group.name == *name)?.luns.as_ref(),
    }
}

fn list<'a>(config: &'a mut Config, shown: &Shown) -> Option<&'a mut Vec<(u16, usize)>> {
    let target = config.targets.iter_mut().find(|target| target.name == shown.target)?;
    match &shown.group {
        None => Some(&mut target.luns),
        Some(name) => target.groups.iter_mut().find(|group| group.name == *name)?.luns.as_mut(),
    }
}

fn path(lun: &Lun) -> Option<&std::path::Path> {
    match &lun.store {
        StoreSpec::File { path, .. } | StoreSpec::Block { path } => Some(path),
        StoreSpec::Null { .. } | StoreSpec::Ram { .. } | StoreSpec::Remote { .. } => None,
    }
}

fn find<'a>(config: &'a Config, name: &str) -> Option<&'a Lun> {
    config.luns.iter().find(|lun| lun.name == name)
}

fn loses_content(lun: &Lun) -> Fault {
    Fault {
        place: format!("LUN {}", lun.name),
        what: "it is in memory, and another one in its place would be empty".into(),
        fix: "give the new one another name if its content may be lost, or undo this".into(),
    }
}

/// What the engine cannot change while it serves.
fn needs_restart(step: &StepOfChange) -> Fault {
    let place = match step {
        StepOfChange::Restart(option) => (*option).to_owned(),
        StepOfChange::Settings => "poll, login_timeout, keep_alive, stall_timeout or logins_max".into(),
        StepOfChange::RemoveTarget(name)
        | StepOfChange::AddTarget(name)
        | StepOfChange::ChangeTarget(name) => {
            format!("target {name}")
        }
        StepOfChange::Hide { target, lun } => format!("LUN {lun} of target {target}"),
        StepOfChange::RemoveLun(name) | StepOfChange::AddLun(name) | StepOfChange::ChangeLun(name) => {
            format!("LUN {name}")
        }
        StepOfChange::RemovePortal(address)
        | StepOfChange::AddPortal(address)
        | StepOfChange::ChangePortal(address) => format!("portal {address}"),
    };
    let what = match step {
        StepOfChange::Restart(_) | StepOfChange::Settings => "it takes effect at the next start",
        StepOfChange::RemoveTarget(_)
        | StepOfChange::RemovePortal(_)
        | StepOfChange::RemoveLun(_)
        | StepOfChange::Hide { .. } => "it cannot be removed while the daemon serves",
        StepOfChange::AddTarget(_) | StepOfChange::AddPortal(_) | StepOfChange::AddLun(_) => {
            "it cannot be added while the daemon serves"
        }
        StepOfChange::ChangeLun(_) | StepOfChange::ChangePortal(_) | StepOfChange::ChangeTarget(_) => {
            "it cannot be changed while the daemon serves"
        }
    };
    Fault { place, what: what.into(), fix: "restart the daemon for it, or undo it in the file".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TARGETS: &str = "
        [[target]]
        name = 'iqn.2026-11.a:x'
        luns = [X]
        [[target]]
        name = 'iqn.2026-11.a:y'
        luns = ['z']
        [[target.group]]
        name = 'g'
        luns = [G]
    ";

    /// LUNs by name and the rest of their table, and what target x and group g show.
    fn config(luns: &[(&str, &str)], x: &str, g: &str) -> Config {
        let mut text = String::from("[[lun]]\nname = 'z'\nnull = '1M'\n");
        for (name, rest) in luns {
            text += &format!("[[lun]]\nname = '{name}'\n{rest}\n");
        }
        text += &TARGETS.replace("[X]", &format!("[{x}]")).replace("[G]", &format!("[{g}]"));
        Config::from_toml(&text, Path::new("lunette.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn texts(old: &Config, new: &Config) -> Vec<String> {
        let plan = plan(old, new).unwrap_or_else(|faults| panic!("{faults:?}"));
        plan.steps.into_iter().map(|step| step.text).collect()
    }

    fn places(old: &Config, new: &Config) -> Vec<String> {
        let faults = plan(old, new).map(|_| ()).expect_err("it needs a restart");
        faults.into_iter().map(|fault| format!("{}: {}", fault.place, fault.what)).collect()
    }

    const FILE: &str = "file = '/srv/a.img'";

    #[test]
    fn what_comes_is_opened_before_anything_goes() {
        let old = config(&[("a", FILE)], "'a'", "");
        let new = config(&[("b", "null = '1M'")], "{ lun = 'b', number = 3 }", "'b'");
        assert_eq!(
            texts(&old, &new),
            [
                "add LUN b (null:1048576), LUN 3 of iqn.2026-11.a:x, LUN 0 of iqn.2026-11.a:y for group g",
                "remove LUN a (file:/srv/a.img), LUN 0 of iqn.2026-11.a:x",
            ]
        );
    }

    #[test]
    fn what_needs_the_place_of_another_comes_after_that_went() {
        let old = config(&[("a", FILE)], "'a'", "");
        let new = config(&[("b", FILE)], "'b'", "");
        let texts = texts(&old, &new);
        assert!(texts[0].starts_with("remove LUN a") && texts[1].starts_with("add LUN b"), "{texts:?}");
    }

    #[test]
    fn memory_is_not_replaced_by_an_empty_one() {
        let old = config(&[("a", "ram = '1M'")], "'a'", "");
        let new = config(&[("a", "ram = '2M'")], "'a'", "");
        assert_eq!(
            places(&old, &new),
            ["LUN a: it is in memory, and another one in its place would be empty"]
        );
    }

    #[test]
    fn what_the_engine_cannot_change_is_named_and_nothing_else() {
        let old = config(&[("a", FILE), ("b", "null = '1M'")], "'a', 'b'", "");
        let swapped = config(&[("a", FILE), ("b", "null = '1M'")], "'b', 'a'", "");
        assert_eq!(
            places(&old, &swapped),
            ["target iqn.2026-11.a:x: it cannot be changed while the daemon serves"]
        );
        let mut other = old.clone();
        other.cores = vec![0, 77];
        other.poll = config::Poll::Never;
        let places = places(&old, &other);
        assert_eq!(places[0], "cores: it takes effect at the next start");
        assert_eq!(places.len(), 2, "{places:?}");
    }

    #[test]
    fn each_step_is_taken_back_by_its_opposite() {
        let old = config(&[("a", FILE), ("b", "null = '1M'")], "'a', 'b'", "'a'");
        let new = config(
            &[("b", "null = '2M'"), ("c", "null = '1M'")],
            "{ lun = 'b', number = 1 }, { lun = 'c', number = 5 }",
            "",
        );
        let plan = plan(&old, &new).unwrap_or_else(|faults| panic!("{faults:?}"));
        let mut model = old.clone();
        plan.steps.iter().for_each(|step| advance(&mut model, &step.change));
        assert_eq!(diff(&model, &new), []);
        plan.steps.iter().rev().for_each(|step| advance(&mut model, &step.undo));
        assert_eq!(diff(&model, &old), []);
    }
}
