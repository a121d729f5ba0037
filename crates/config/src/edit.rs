//! Edits of a configuration file that preserve its comments and order. Nothing is verified here: the result
//! is parsed like any other file.

mod lists;
mod tables;

use super::scalar;
use lists::List;
use serde_json::{Map, Value as Json};
use tables::{Tables, merge, set_key};
use toml_edit::{DocumentMut, Item, Table};

/// A change to a LUN, portal, target or group.
#[derive(Clone, PartialEq, Debug)]
pub struct Edit {
    /// What is changed.
    pub subject: Subject,
    /// How it changes.
    pub action: Action,
}

/// What is changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A LUN, by its name.
    Lun(String),
    /// A target, by its name.
    Target(String),
    /// A portal, by its name or address.
    Portal(String),
    /// A portal group, by its tag.
    PortalGroup(u16),
    /// A group of a target, by the names of both.
    Group {
        /// The target.
        target: String,
        /// The group.
        name: String,
    },
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Lun(name) => write!(f, "LUN {name}"),
            Subject::Target(name) => write!(f, "target {name}"),
            Subject::Portal(name) => write!(f, "portal {name}"),
            Subject::PortalGroup(tag) => write!(f, "portal group {tag}"),
            Subject::Group { target, name } => write!(f, "group {name} of target {target}"),
        }
    }
}

/// How something changes. Keys and values are those of the file.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Add it.
    Add {
        /// Its settings, without the name.
        settings: Map<String, Json>,
        /// For a LUN, which targets expose it; empty: the only target, if there is just one.
        shown: Vec<ShownIn>,
    },
    /// Set these keys; null ones are removed (RFC 7396).
    Set(Map<String, Json>),
    /// Remove it, and references to it.
    Remove,
}

/// Which list a new LUN is added to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShownIn {
    /// The target; `None`: the only one.
    pub target: Option<String>,
    /// The target's group with a list of its own.
    pub group: Option<String>,
    /// LUN number; `None`: one above the highest.
    pub number: Option<u16>,
}

/// Why an edit fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EditError {
    /// It does not exist.
    NotFound {
        /// What does not exist.
        what: String,
        /// Those that exist.
        known: Vec<String>,
    },
    /// It already exists.
    Exists(String),
    /// The change is invalid: what is wrong, and how to fix it.
    Wrong(String, String),
}

impl Edit {
    /// The text after this change.
    ///
    /// # Errors
    /// When the subject does not exist, or already exists, or the text is not TOML.
    pub fn apply(&self, text: &str) -> Result<String, EditError> {
        let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            wrong(error.message(), "see https://toml.io for the syntax")
        })?;
        let Edit { subject, action } = self;
        match (subject, action) {
            (Subject::Lun(name), Action::Add { settings, shown }) => {
                add_lun(&mut document, name, settings, shown)?;
            }
            (Subject::Lun(name), Action::Remove) => remove_lun(&mut document, name)?,
            (Subject::Target(name), Action::Add { settings, .. }) => {
                add_target(&mut document, name, settings)?
            }
            (Subject::Target(name), Action::Remove) => {
                let (mut targets, index) = find_target(document.as_table_mut(), name)?;
                let comment = targets.remove(index);
                restore_comment(&mut document, comment);
            }
            (Subject::Group { target, name }, Action::Add { settings, .. }) => {
                let (mut targets, index) = find_target(document.as_table_mut(), target)?;
                let groups = Tables::at_or_new(targets.get_mut(index), "group");
                let mut groups = groups.ok_or_else(|| not_tables("target.group"))?;
                // Group names are case-sensitive.
                if (0..groups.len()).any(|index| groups.name(index).as_ref() == Some(name)) {
                    return Err(EditError::Exists(subject.to_string()));
                }
                groups.push(&named(name, settings));
            }
            (Subject::Group { target, name }, Action::Remove) => {
                let (mut targets, index) = find_target(document.as_table_mut(), target)?;
                let (mut groups, index) = find(Tables::at(targets.get_mut(index), "group"), name, "group")?;
                if groups.len() == 1 {
                    return Err(opens_to_all());
                }
                groups.remove(index);
            }
            (Subject::Portal(_), Action::Add { .. } | Action::Remove) => {
                return Err(wrong("portals are added and removed in the file", "edit it, and reload"));
            }
            (Subject::PortalGroup(tag), Action::Add { .. } | Action::Remove) => {
                let fix = format!("set `group = {tag}` in a [[portal]], or change that");
                return Err(wrong("a portal group exists as long as it has portals", &fix));
            }
            (subject, Action::Set(settings)) => set(&mut document, subject, settings)?,
        }
        Ok(document.to_string())
    }
}

fn set(document: &mut DocumentMut, subject: &Subject, settings: &Map<String, Json>) -> Result<(), EditError> {
    if settings.contains_key("name") {
        let fix = "remove it, and add another one";
        return Err(wrong("a name cannot be changed while it is in use", fix));
    }
    match subject {
        Subject::Lun(name) => {
            let index = find_lun(document, name)?;
            let mut luns = Tables::at(document.as_table_mut(), "lun").ok_or_else(|| not_tables("lun"))?;
            merge(luns.get_mut(index), settings);
        }
        Subject::Target(name) => {
            let (mut targets, index) = find_target(document.as_table_mut(), name)?;
            let lists = |json: &Json| json.as_array().is_some_and(|groups| !groups.is_empty());
            if settings.get("group").is_some_and(|groups| !lists(groups))
                && Tables::at(targets.get_mut(index), "group").is_some_and(|groups| groups.len() > 0)
            {
                return Err(opens_to_all());
            }
            merge(targets.get_mut(index), settings);
        }
        Subject::Portal(name) => {
            let (mut portals, index) = find_portal(document.as_table_mut(), name)?;
            merge(portals.get_mut(index), settings);
        }
        Subject::PortalGroup(tag) => set_portal_group(document, *tag, settings)?,
        Subject::Group { target, name } => {
            let (mut targets, index) = find_target(document.as_table_mut(), target)?;
            let (mut groups, index) = find(Tables::at(targets.get_mut(index), "group"), name, "group")?;
            merge(groups.get_mut(index), settings);
        }
    }
    Ok(())
}

/// By its name, or else its address.
fn find_portal<'a>(root: &'a mut Table, name: &str) -> Result<(Tables<'a>, usize), EditError> {
    let not_found = |known| EditError::NotFound { what: format!("portal {name}"), known };
    let mut portals = Tables::at(root, "portal").ok_or_else(|| not_found(Vec::new()))?;
    let address = scalar::listen(name).ok();
    let mut known = Vec::new();
    let mut at = portals.named(name);
    for index in 0..portals.len() {
        let listen = portals.get_mut(index).get("listen").and_then(Item::as_str).unwrap_or_default();
        if address.is_some() && scalar::listen(listen).ok() == address {
            at = at.or(Some(index));
        }
        known.push(listen.to_owned());
    }
    at.map(|index| (portals, index)).ok_or_else(|| not_found(known))
}

/// A group without settings gets a table.
fn set_portal_group(
    document: &mut DocumentMut,
    tag: u16,
    settings: &Map<String, Json>,
) -> Result<(), EditError> {
    if settings.contains_key("group") {
        return Err(wrong("the tag of a portal group is set by its portals", "leave `group` out"));
    }
    let groups = Tables::at_or_new(document.as_table_mut(), "portal_group");
    let mut groups = groups.ok_or_else(|| not_tables("portal_group"))?;
    if let Some(index) = groups.with_number("group", tag.into()) {
        merge(groups.get_mut(index), settings);
        return Ok(());
    }
    let mut table = Table::new();
    set_key(&mut table, "group", i64::from(tag).into());
    merge(&mut table, settings);
    groups.push(&table);
    Ok(())
}

/// Without groups everybody may log in, which is not the intent of removing the last group.
fn opens_to_all() -> EditError {
    wrong(
        "without its last group this target would be open to everyone",
        "remove the target, set deny = true in the group, or add another group first",
    )
}

/// Names of LUNs, including implicit ones.
fn lun_names(document: &mut DocumentMut) -> Vec<String> {
    let Some(mut luns) = Tables::at(document.as_table_mut(), "lun") else { return Vec::new() };
    (0..luns.len()).map(|index| luns.name(index).unwrap_or_else(|| format!("lun{index}"))).collect()
}

fn find_lun(document: &mut DocumentMut, name: &str) -> Result<usize, EditError> {
    let names = lun_names(document);
    let found = names.iter().position(|other| other == name);
    found.ok_or_else(|| EditError::NotFound { what: format!("LUN {name}"), known: names })
}

fn add_lun(
    document: &mut DocumentMut,
    name: &str,
    settings: &Map<String, Json>,
    shown: &[ShownIn],
) -> Result<(), EditError> {
    let names = lun_names(document);
    if names.iter().any(|other| other == name) {
        return Err(EditError::Exists(format!("LUN {name}")));
    }
    let targets = Tables::at(document.as_table_mut(), "target").map_or(0, |targets| targets.len());
    let only = [ShownIn::default()];
    let shown = if shown.is_empty() && targets == 1 { &only } else { shown };
    for ShownIn { target, group, number } in shown {
        show(document, &names, target.as_deref(), group.as_deref(), *number, name)?;
    }
    let mut luns = Tables::at_or_new(document.as_table_mut(), "lun").ok_or_else(|| not_tables("lun"))?;
    luns.push(&named(name, settings));
    Ok(())
}

/// Adds a LUN to a list, after these.
fn show(
    document: &mut DocumentMut,
    names: &[String],
    target: Option<&str>,
    group: Option<&str>,
    number: Option<u16>,
    lun: &str,
) -> Result<(), EditError> {
    let (mut targets, index) = match target {
        Some(name) => find_target(document.as_table_mut(), name)?,
        None => match Tables::at(document.as_table_mut(), "target") {
            Some(targets) if targets.len() == 1 => (targets, 0),
            Some(_) | None => {
                return Err(wrong(
                    "there is more than one target, or none",
                    "name the one that shows the LUN",
                ));
            }
        },
    };
    let table = targets.get_mut(index);
    if let Some(group) = group {
        let (mut groups, index) = find(Tables::at(table, "group"), group, "group")?;
        let Some(mut list) = List::of(groups.get_mut(index)) else {
            let fix = "leave the group out";
            return Err(wrong(&format!("group {group} has no LUNs of its own: it sees the target's"), fix));
        };
        list.add(lun, number);
        return Ok(());
    }
    let has_all = List::of(table).is_none();
    if has_all && number.is_none_or(|number| usize::from(number) == names.len()) {
        // All LUNs by position: that includes the new one.
        return Ok(());
    }
    if has_all {
        lists::write(table, names);
    }
    if let Some(mut list) = List::of(table) {
        list.add(lun, number);
    }
    Ok(())
}

fn remove_lun(document: &mut DocumentMut, name: &str) -> Result<(), EditError> {
    let index = find_lun(document, name)?;
    let names = lun_names(document);
    let mut luns = Tables::at(document.as_table_mut(), "lun").ok_or_else(|| not_tables("lun"))?;
    // Later ones keep the names derived from their positions.
    for (later, name) in names.iter().enumerate().skip(index + 1) {
        if luns.name(later).is_none() {
            set_key(luns.get_mut(later), "name", name.as_str().into());
        }
    }
    let comment = luns.remove(index);
    restore_comment(document, comment);
    let Some(mut targets) = Tables::at(document.as_table_mut(), "target") else { return Ok(()) };
    let is_only = targets.len() == 1;
    for target in 0..targets.len() {
        let table = targets.get_mut(target);
        let is_last = index + 1 == names.len();
        if List::of(table).is_none() && is_only && !is_last {
            lists::write(table, &names);
        }
        if let Some(mut list) = List::of(table) {
            list.remove(name);
        }
        let Some(mut groups) = Tables::at(table, "group") else { continue };
        for group in 0..groups.len() {
            if let Some(mut list) = List::of(groups.get_mut(group)) {
                list.remove(name);
            }
        }
    }
    Ok(())
}

fn add_target(document: &mut DocumentMut, name: &str, settings: &Map<String, Json>) -> Result<(), EditError> {
    let names = lun_names(document);
    let mut targets =
        Tables::at_or_new(document.as_table_mut(), "target").ok_or_else(|| not_tables("target"))?;
    if targets.named(name).is_some() {
        return Err(EditError::Exists(format!("target {name}")));
    }
    // A single target may omit its LUN list, several may not.
    if targets.len() == 1 && List::of(targets.get_mut(0)).is_none() {
        lists::write(targets.get_mut(0), &names);
    }
    targets.push(&named(name, settings));
    Ok(())
}

fn find_target<'a>(root: &'a mut Table, name: &str) -> Result<(Tables<'a>, usize), EditError> {
    find(Tables::at(root, "target"), name, "target")
}

fn find<'a>(tables: Option<Tables<'a>>, name: &str, kind: &str) -> Result<(Tables<'a>, usize), EditError> {
    let what = format!("{kind} {name}");
    let Some(mut tables) = tables else { return Err(EditError::NotFound { what, known: Vec::new() }) };
    match tables.named(name) {
        Some(index) => Ok((tables, index)),
        None => {
            let known = (0..tables.len()).filter_map(|index| tables.name(index)).collect();
            Err(EditError::NotFound { what, known })
        }
    }
}

/// Restores a comment that did not belong to the removed table, when nothing follows that it could precede.
fn restore_comment(document: &mut DocumentMut, comment: Option<String>) {
    if let Some(comment) = comment {
        let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
        document.set_trailing(trailing + "\n" + &comment);
    }
}

/// Settings with the name first.
fn named(name: &str, settings: &Map<String, Json>) -> Table {
    let mut table = Table::new();
    set_key(&mut table, "name", name.into());
    let rest: Map<String, Json> = settings
        .iter()
        .filter(|(key, _)| *key != "name")
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    merge(&mut table, &rest);
    table
}

fn wrong(what: &str, fix: &str) -> EditError {
    EditError::Wrong(what.into(), fix.into())
}

fn not_tables(key: &str) -> EditError {
    wrong(&format!("`{key}` is not an array of tables"), "see docs/configuration.md")
}

#[cfg(test)]
mod tests;
