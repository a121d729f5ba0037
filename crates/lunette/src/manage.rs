//! Commands that show and change what a running daemon serves.

use crate::Failure;
use crate::client::AdminArguments;
use crate::luns::limits;
use clap::{Args, Subcommand};
use config::{LunSpec, format_size};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Options of every change.
#[derive(Debug, Args)]
pub(crate) struct ChangeArguments {
    /// Only show the steps, without taking them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    admin: AdminArguments,
}

impl ChangeArguments {
    /// Whether nothing is changed.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Where the daemon is.
    pub(crate) fn admin(&self) -> &AdminArguments {
        &self.admin
    }

    /// Submits a change to the daemon, and reports what was done.
    pub(crate) fn make(&self, method: &str, path: &str, body: Option<&Value>) -> Result<String, Failure> {
        let path = if self.dry_run { format!("{path}?dry_run=true") } else { path.into() };
        self.admin.change(method, &path, body)?.done(self.dry_run)
    }
}

/// `lunette config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the running configuration as a file, without secrets
    Show(AdminArguments),
}

/// `lunette lun`.
#[derive(Debug, Subcommand)]
pub(crate) enum LunCommand {
    /// List the LUNs of the running daemon
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        admin: AdminArguments,
    },
    /// Add a LUN, and show it to initiators
    Add {
        /// The LUN, like --lun of lunette serve: file:/srv/disk.img,size=10G,name=disk
        #[arg(value_name = "SPEC")]
        lun_spec: String,
        /// The target that shows it [default: the only one]
        #[arg(long, value_name = "NAME")]
        target: Option<String>,
        /// The group of the target that sees it, if the group has its own LUNs
        #[arg(long, value_name = "NAME")]
        group: Option<String>,
        /// LUN number [default: one above all others]
        #[arg(long = "number", value_name = "LUN")]
        lun_number: Option<u16>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Change properties of a LUN, as in the configuration file: read_only=true; KEY= removes one
    Set {
        /// Its name
        name: String,
        /// What changes
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Make a LUN larger
    Resize {
        /// Its name
        name: String,
        /// Its new size, such as 20G
        size: String,
        /// Allow a smaller size: data beyond the new end is lost
        #[arg(long)]
        yes_lose_data: bool,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Make this gateway the active one for a shared LUN, once the currently active one has handed it over
    Activate {
        /// Its name
        name: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Remove a LUN: its commands end and its store is closed; files and devices stay
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
}

/// `lunette target`.
#[derive(Debug, Subcommand)]
pub(crate) enum TargetCommand {
    /// Add a target
    Add {
        /// Its name, such as iqn.2026-11.com.example:disk
        name: String,
        /// Its keys, as in the configuration file: luns=disk,other
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Change properties of a target, as in the configuration file; KEY= removes one
    Set {
        /// Its name
        name: String,
        /// What changes
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Remove a target and its groups; its sessions end
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
}

/// `lunette portal-group`.
#[derive(Debug, Subcommand)]
pub(crate) enum PortalGroupCommand {
    /// List the portal groups of the running daemon and their configured states
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        admin: AdminArguments,
    },
    /// Change the asymmetric access state of a portal group, or other keys, as in the configuration file: state=standby; KEY=
    /// removes one
    Set {
        /// Its tag: the `group` of its portals
        group: u16,
        /// What changes
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        change: ChangeArguments,
    },
}

/// `lunette group`.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Add a group after the others of a target
    Add {
        /// The target's name
        target: String,
        /// The group's name
        name: String,
        /// Its keys, as in the configuration file: initiators=iqn.1993-08.org.debian:01:db chap.user=db
        /// chap.secret_file=/etc/lunette/db
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Change properties of a group, as in the configuration file; KEY= removes one
    Set {
        /// The target's name
        target: String,
        /// The group's name
        name: String,
        /// What changes
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Remove a group
    Remove {
        /// The target's name
        target: String,
        /// The group's name
        name: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
}

/// Has the daemon reload its file.
pub(crate) fn reload(change: &ChangeArguments) -> Result<String, Failure> {
    change.make("POST", "/v1/reload", None)
}

/// Shows the configuration.
pub(crate) fn config(command: &ConfigCommand) -> Result<String, Failure> {
    match command {
        ConfigCommand::Show(admin) => admin.get("/v1/config")?.text(),
    }
}

/// Lists and changes LUNs.
pub(crate) fn lun(command: &LunCommand) -> Result<String, Failure> {
    match command {
        LunCommand::List { json, admin } => list(admin, *json),
        LunCommand::Add { lun_spec, target, group, lun_number, change } => {
            let spec = LunSpec::parse(lun_spec).map_err(|problems| {
                let all = problems.iter().map(ToString::to_string).collect::<Vec<_>>();
                Failure::wrong_input(all.join("\nlunette: "))
            })?;
            let mut body = spec.settings;
            if let Some(name) = spec.name {
                body.insert("name".into(), name.into());
            }
            let number = lun_number.or(spec.number);
            if target.is_some() || group.is_some() || number.is_some() {
                let shown = json!({ "target": target, "group": group, "number": number });
                body.insert("shown".into(), json!([shown]));
            }
            change.make("POST", "/v1/luns", Some(&body.into()))
        }
        LunCommand::Set { name, settings, change } => {
            change.make("PATCH", &path(&["luns", name]), Some(&self::settings(settings)?))
        }
        LunCommand::Resize { name, size, yes_lose_data, change } => {
            let body = json!({ "size": size, "yes_lose_data": yes_lose_data });
            change.make("POST", &path(&["luns", name, "resize"]), Some(&body))
        }
        LunCommand::Activate { name, change } => {
            change.make("POST", &path(&["luns", name, "activate"]), None)
        }
        LunCommand::Remove { name, change } => change.make("DELETE", &path(&["luns", name]), None),
    }
}

/// Changes targets.
pub(crate) fn target(command: &TargetCommand) -> Result<String, Failure> {
    match command {
        TargetCommand::Add { name, settings, change } => {
            change.make("POST", "/v1/targets", Some(&named(name, settings)?))
        }
        TargetCommand::Set { name, settings, change } => {
            change.make("PATCH", &path(&["targets", name]), Some(&self::settings(settings)?))
        }
        TargetCommand::Remove { name, change } => change.make("DELETE", &path(&["targets", name]), None),
    }
}

/// Lists and changes portal groups.
pub(crate) fn portal_group(command: &PortalGroupCommand) -> Result<String, Failure> {
    match command {
        PortalGroupCommand::List { json, admin } => {
            let groups = admin.list("/v1/portal-groups")?;
            if *json {
                return Ok(format!("{}\n", serde_json::to_string_pretty(&groups).unwrap_or_default()));
            }
            Ok(groups.iter().map(portal_group_line).collect())
        }
        PortalGroupCommand::Set { group, settings, change } => {
            let path = path(&["portal-groups", &group.to_string()]);
            change.make("PATCH", &path, Some(&self::settings(settings)?))
        }
    }
}

fn portal_group_line(group: &Value) -> String {
    let word = |key: &str| group[key].as_str().unwrap_or_default().to_owned();
    let portals: Vec<&str> =
        group["portals"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let switches = ["preferred", "explicit"].into_iter().filter(|key| group[*key] == true);
    let switches: String = switches.map(|key| format!(", {key}")).collect();
    format!("portal group {}: {}{switches}, {}\n", word("name"), word("state"), portals.join(" "))
}

/// Changes groups.
pub(crate) fn group(command: &GroupCommand) -> Result<String, Failure> {
    match command {
        GroupCommand::Add { target, name, settings, change } => {
            change.make("POST", &path(&["targets", target, "groups"]), Some(&named(name, settings)?))
        }
        GroupCommand::Set { target, name, settings, change } => {
            let path = path(&["targets", target, "groups", name]);
            change.make("PATCH", &path, Some(&self::settings(settings)?))
        }
        GroupCommand::Remove { target, name, change } => {
            change.make("DELETE", &path(&["targets", target, "groups", name]), None)
        }
    }
}

fn list(admin: &AdminArguments, as_json: bool) -> Result<String, Failure> {
    let luns = admin.list("/v1/luns")?;
    if as_json {
        return Ok(format!("{}\n", serde_json::to_string_pretty(&luns).unwrap_or_default()));
    }
    let mut text = String::new();
    for lun in &luns {
        let word = |key: &str| lun[key].as_str().unwrap_or_default();
        let state = match lun["not_opened"].as_str() {
            Some(why) => format!("NOT READY when it was opened: {why}"),
            None => format_size(lun["size_bytes"].as_u64().unwrap_or(0)),
        };
        let read_only = if lun["read_only"] == true { ", read-only" } else { "" };
        let limits: String = limits(lun).iter().map(|limit| format!(", {limit}")).collect();
        // Writing to a string cannot fail.
        let (name, store, serial) = (word("name"), word("store"), word("serial"));
        let _ = writeln!(text, "{name}: {store}, {state}, serial {serial}{read_only}{limits}");
    }
    Ok(text)
}

/// Keys whose values are not text.
const SWITCHES: [&str; 7] =
    ["read_only", "write_cache", "thin", "removable", "deny", "preferred", "explicit"];
const NUMBERS: [&str; 4] = ["sessions_max", "queue_depth", "iops_max", "iops_burst"];
const LISTS: [&str; 5] = ["portals", "luns", "initiators", "networks", "algorithms"];
/// Keys whose values would be visible to everyone who lists processes.
const SECRETS: [&str; 2] = ["secret", "mutual_secret"];

/// `KEY=VALUE`, with the keys of the file; a key inside a table is written like `chap.user=NAME`.
fn settings(words: &[String]) -> Result<Value, Failure> {
    let mut all = Map::new();
    for word in words {
        let Some((key, text)) = word.split_once('=') else {
            return Err(Failure::wrong_input(format!(
                "`{word}` has no value; write {word}=VALUE, or {word}= to remove it"
            )));
        };
        let (table, key) = key.split_once('.').map_or((None, key), |(table, key)| (Some(table), key));
        if SECRETS.contains(&key) && !text.is_empty() {
            let what = "a secret given as an argument could be read by others";
            return Err(Failure::wrong_input(format!(
                "{key}: {what}; put it into a file, and give {key}_file="
            )));
        }
        let into = match table {
            None => &mut all,
            Some(table) => match all.entry(table).or_insert_with(|| json!({})) {
                Value::Object(inner) => inner,
                _ => {
                    return Err(Failure::wrong_input(format!(
                        "`{table}` is a table here, and a value there"
                    )));
                }
            },
        };
        into.insert(key.into(), value(key, text));
    }
    Ok(all.into())
}

fn value(key: &str, text: &str) -> Value {
    match text {
        // A target without LUNs for now.
        "" if key == "luns" => json!([]),
        "" => Value::Null,
        "true" | "on" if SWITCHES.contains(&key) => true.into(),
        "false" | "off" if SWITCHES.contains(&key) => false.into(),
        _ if NUMBERS.contains(&key) => text.parse::<i64>().map_or_else(|_| text.into(), Value::from),
        _ if LISTS.contains(&key) => text.split(',').map(str::trim).collect::<Vec<_>>().into(),
        _ if key.ends_with("_file") || key == "file" || key == "block" => absolute(text).into(),
        _ => text.into(),
    }
}

/// Makes a path absolute, as the daemon's working directory may be another.
fn absolute(path: &str) -> String {
    let absolute = std::path::absolute(path).ok().and_then(|path| path.to_str().map(str::to_owned));
    absolute.unwrap_or_else(|| path.into())
}

fn named(name: &str, words: &[String]) -> Result<Value, Failure> {
    let mut all = settings(words)?;
    all["name"] = name.into();
    Ok(all)
}

/// The path `/v1/` with these parts.
pub(crate) fn path(parts: &[&str]) -> String {
    parts.iter().fold(String::from("/v1"), |path, part| path + "/" + &encoded(part))
}

/// Encodes for a URL (RFC 3986 section 2.1).
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => out.push(char::from(byte)),
            // Writing to a string cannot fail.
            false => _ = write!(out, "%{byte:02X}"),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Value, String> {
        let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
        settings(&words).map_err(|failure| failure.text)
    }

    #[test]
    fn settings_are_of_the_types_that_the_file_has() {
        let settings = read(&[
            "read_only=true",
            "thin=off",
            "size=10G",
            "serial=5",
            "sessions_max=5",
            "luns=a, b",
            "chap.user=u",
            "chap.mutual_user=",
            "portals=",
        ]);
        let expected = json!({
            "read_only": true,
            "thin": false,
            "size": "10G",
            "serial": "5",
            "sessions_max": 5,
            "luns": ["a", "b"],
            "portals": null,
            "chap": { "user": "u", "mutual_user": null },
        });
        assert_eq!(settings, Ok(expected));
        assert!(read(&["read_only"]).unwrap_err().contains("write read_only=VALUE"));
        assert!(read(&["chap=a", "chap.user=u"]).unwrap_err().contains("a table here"));
    }

    #[test]
    fn a_secret_is_no_argument() {
        let refused = read(&["chap.secret=0123456789abcdef"]).unwrap_err();
        assert!(refused.contains("give secret_file=") && !refused.contains("0123"), "{refused}");
    }

    #[test]
    fn names_are_encoded_in_paths() {
        assert_eq!(
            path(&["targets", "iqn.a:b", "groups", "all others"]),
            "/v1/targets/iqn.a%3Ab/groups/all%20others"
        );
    }
}
