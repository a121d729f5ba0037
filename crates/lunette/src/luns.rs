//! `lunette luns`.

use crate::Failure;
use crate::client::AdminArguments;
use crate::figures;
use crate::rates::Load;
use crate::status::OPTIMIZED;
use crate::table::Column::{self, Figures, Words};
use crate::table::{NONE, Shape, Table, number, size, word};
use crate::watch::WatchArguments;
use clap::Args;
use config::format_size;
use serde_json::Value;
use std::fmt::Write as _;
use wire::shown;

/// `lunette luns`.
#[derive(Debug, Args)]
pub(crate) struct LunsArguments {
    #[command(flatten)]
    watch: WatchArguments,
    #[command(flatten)]
    admin: AdminArguments,
}

/// Lists LUNs.
pub(crate) fn list(arguments: &LunsArguments) -> Result<String, Failure> {
    arguments.watch.list(&arguments.admin, ("/v1/luns", "name"), table)
}

/// How many initiators that hold or are registered with a LUN are listed; more are counted.
const NAMED: usize = 8;

const WHAT: [Column; 5] = [Words("LUN"), Figures("SIZE"), Figures("USED"), Words("STORE"), Words("STATE")];

/// Columns that move to the details on a narrow terminal, in this order.
const DISPENSABLE: [&str; 7] = ["USED", "STORE", "R P50", "W P50", "SIZE", "R MB/S", "W MB/S"];

/// A row for each LUN, and below it its details.
fn table(luns: &[(Value, Option<Load>)], shape: Shape) -> String {
    if luns.is_empty() {
        return "There are no LUNs.\n".into();
    }
    let columns = [&WHAT[..], figures::columns(shape.is_repeated)].concat();
    let mut table = Table::new(&columns);
    for (lun, load) in luns {
        let what = vec![
            word(&lun["name"]),
            size(&lun["size_bytes"]),
            size(&lun["used_bytes"]),
            kind(lun),
            state(lun),
        ];
        let figures = if shape.is_repeated { figures::of_load(load.as_ref()) } else { figures::of_all(lun) };
        table.add([what, figures].concat(), details(lun));
    }
    table.text(shape.width, &DISPENSABLE)
}

/// Where its data is, in the syntax of `--lun`.
fn spec(lun: &Value) -> String {
    word(&lun["store"])
}

/// The kind of store: ram, file, iscsi.
pub(crate) fn kind(lun: &Value) -> String {
    spec(lun).split(':').next().unwrap_or_default().to_owned()
}

/// The state of a store that is open.
const WELL: &str = "open";

/// The state of its store, in a word.
pub(crate) fn state(lun: &Value) -> String {
    match (lun["state"].is_string(), lun["not_opened"].is_string()) {
        (true, _) => word(&lun["state"]),
        (false, true) => "late".into(),
        (false, false) => NONE.into(),
    }
}

/// What is wrong with a LUN; `None`: nothing.
pub(crate) fn trouble(lun: &Value) -> Option<String> {
    let Some(state) = Some(state(lun)).filter(|state| state != WELL && state != NONE) else {
        let gateway = &lun["gateway"];
        let is = if gateway["role"] == "active" { "active, but" } else { "not active:" };
        return gateway["fault"].as_str().map(|why| format!("{is} {}", shown(why)));
    };
    let why = lun["last_error"].as_str().or(lun["not_opened"].as_str());
    Some(why.map_or_else(|| state.clone(), |why| format!("{state}: {}", shown(why))))
}

/// The details of a LUN.
pub(crate) fn details(lun: &Value) -> String {
    let mut all = vec![spec(lun)];
    match trouble(lun) {
        Some(trouble) => all.push(trouble),
        None => all.extend(lun["last_error"].as_str().map(|why| format!("last error: {}", shown(why)))),
    }
    all.extend(connections(lun));
    let is = |key: &str, expected: bool, text: &str| (lun[key] == expected).then(|| text.to_owned());
    all.extend(is("read_only", true, "read-only"));
    let write_cache = lun["write_cache_enabled"].as_bool().or(lun["write_cache"].as_bool());
    all.extend(write_cache.map(|is_on| format!("write cache {}", if is_on { "on" } else { "off" })));
    all.extend(limits(lun));
    all.extend(is("threshold_reached", true, "which is reached"));
    all.extend(gateway(lun));
    all.extend(port_groups(lun));
    all.extend(reservation(lun));
    all.extend(registrations(lun));
    all.extend(figures::errors(lun));
    all.join(", ")
}

/// How many connections to its server are open.
fn connections(lun: &Value) -> Option<String> {
    let count = lun["connections"].as_u64()?;
    Some(format!("{count} {}", if count == 1 { "connection" } else { "connections" }))
}

/// This gateway and the others, where several share it.
fn gateway(lun: &Value) -> Vec<String> {
    let gateway = &lun["gateway"];
    let Some(name) = gateway["name"].as_str() else { return Vec::new() };
    let mut all = vec![format!("gateway {} {}", shown(name), word(&gateway["role"]))];
    let serving: Vec<&str> =
        gateway["serving"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let others = serving.iter().filter(|other| **other != name);
    all.extend(others.map(|other| format!("gateway {} active", shown(other))));
    match gateway["active"].as_str() {
        Some(active) if serving.len() > 1 => all.push(format!("changes by gateway {}", shown(active))),
        _ if serving.is_empty() => all.push("no gateway active".into()),
        _ => {}
    }
    let shut_out = gateway["shut_out"].as_array().into_iter().flatten();
    all.extend(
        shut_out.map(|one| format!("{} fenced {} s ago", word(&one["client"]), number(&one["age_seconds"]))),
    );
    all
}

/// Portal groups through which access is not optimized.
fn port_groups(lun: &Value) -> Vec<String> {
    let all = lun["port_groups"].as_array().into_iter().flatten();
    let others = all.filter(|group| group["state"] != OPTIMIZED);
    others
        .map(|group| format!("portal group {} {}", number(&group["group"]), word(&group["state"])))
        .collect()
}

/// Who holds the LUN.
fn reservation(lun: &Value) -> Option<String> {
    let reservation = Some(&lun["reservation"]).filter(|reservation| reservation.is_object())?;
    let holders = reservation["holders"].as_array().map(Vec::as_slice).unwrap_or_default();
    Some(format!("{} reservation of {}", word(&reservation["type"]), some(holders, word)))
}

/// Who is registered with it, and by which keys.
fn registrations(lun: &Value) -> Option<String> {
    let all = lun["registrations"].as_array().filter(|all| !all.is_empty())?;
    let one = |one: &Value| format!("{} (key {})", word(&one["initiator"]), word(&one["key"]));
    Some(format!("registered: {}", some(all, one)))
}

fn some(all: &[Value], one: impl Fn(&Value) -> String) -> String {
    let named: Vec<String> = all.iter().take(NAMED).map(one).collect();
    let more = match all.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    named.join(" and ") + &more
}

/// Limits and warnings of a LUN.
pub(crate) fn limits(lun: &Value) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |most: &str, burst: &str, shown: &dyn Fn(u64) -> String| {
        let Some(most) = lun[most].as_u64() else { return };
        let mut text = format!("at most {} a second", shown(most));
        if let Some(burst) = lun[burst].as_u64() {
            // Writing to a string cannot fail.
            let _ = write!(text, " ({} at once)", shown(burst));
        }
        all.push(text);
    };
    add("iops_max", "iops_burst", &|commands| format!("{commands} commands"));
    add("bytes_per_second_max", "bytes_burst", &format_size);
    all.extend(lun["warn_at"].as_str().map(|part| format!("warns at {part}")));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lun() -> Value {
        json!({
            "name": "db", "store": "file:/srv/db.img", "size_bytes": 10_u64 << 30, "read_only": true, "write_cache": true,
            "iops_max": 1000, "iops_burst": 50, "bytes_per_second_max": null, "warn_at": "80%", "not_opened": null,
        })
    }

    #[test]
    fn a_table_shows_what_a_lun_is_and_what_it_may_do() {
        let text = table(&[(lun(), None)], Shape::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let row = lines[1].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "db 10.0 GiB - file - - - - - - - -");
        let details = "file:/srv/db.img, read-only, write cache on, at most 1000 commands a second (50 commands at once), warns at 80%";
        assert_eq!(lines[2].trim(), details);
        assert!(table(&[(lun(), None)], Shape { is_repeated: true, width: None }).contains("READ/S"));
    }

    #[test]
    fn connections_to_the_server_are_counted() {
        let mut lun = lun();
        for (count, expected) in [(0, ", 0 connections,"), (1, ", 1 connection,"), (4, ", 4 connections,")] {
            lun["connections"] = count.into();
            assert!(details(&lun).contains(expected), "{}", details(&lun));
        }
        lun["connections"] = Value::Null;
        assert!(!details(&lun).contains("connection"), "{}", details(&lun));
    }

    #[test]
    fn paths_that_are_not_the_best_are_shown() {
        let mut lun = lun();
        let group = |group: u16, state: &str| json!({ "group": group, "state": state });
        lun["port_groups"] =
            json!([group(1, "active/optimized"), group(2, "standby"), group(3, "unavailable")]);
        let shown = details(&lun);
        assert!(shown.ends_with(", portal group 2 standby, portal group 3 unavailable"), "{shown}");
    }

    #[test]
    fn gateways_are_shown_and_why_this_one_is_not_active() {
        let mut lun = lun();
        let shut_out = [json!({ "client": "192.0.2.1:0/7", "age_seconds": 9 })];
        lun["gateway"] =
            json!({ "name": "a", "role": "active", "active": "a", "serving": ["a"], "shut_out": shut_out });
        let shown = details(&lun);
        assert!(shown.ends_with(", gateway a active, 192.0.2.1:0/7 fenced 9 s ago"), "{shown}");
        assert_eq!(trouble(&lun), None);
        lun["gateway"] = json!({
            "name": "b", "role": "standby", "active": "a", "serving": ["a"], "fault": "it is locked"
        });
        let shown = details(&lun);
        assert!(shown.ends_with(", gateway b standby, gateway a active"), "{shown}");
        assert_eq!(trouble(&lun).as_deref(), Some("not active: it is locked"));
        lun["gateway"] = json!({ "name": "b", "role": "active", "active": "a", "serving": ["a", "b"] });
        let shown = details(&lun);
        assert!(shown.ends_with(", gateway b active, gateway a active, changes by gateway a"), "{shown}");
        lun["gateway"]["fault"] = "the pool does not answer".into();
        assert_eq!(trouble(&lun).as_deref(), Some("active, but the pool does not answer"));
        lun["gateway"] = json!({ "name": "b", "role": "standby", "serving": [] });
        let shown = details(&lun);
        assert!(shown.ends_with(", gateway b standby, no gateway active"), "{shown}");
    }

    #[test]
    fn who_holds_a_lun_is_shown() {
        let mut lun = lun();
        lun["reservation"] = json!({ "type": "write exclusive", "holders": ["iqn.a:h,i,0x1"] });
        let registration =
            |number: usize| json!({ "initiator": format!("iqn.a:h{number}"), "key": format!("{number:#x}") });
        lun["registrations"] = (1..=2).map(registration).collect();
        lun["write_cache_enabled"] = false.into();
        let shown = details(&lun);
        let expected = "write cache off, at most 1000 commands a second (50 commands at once), warns at 80%, \
                        write exclusive reservation of iqn.a:h,i,0x1, \
                        registered: iqn.a:h1 (key 0x1) and iqn.a:h2 (key 0x2)";
        assert!(shown.ends_with(expected), "{shown}");
        lun["registrations"] = (0..NAMED + 3).map(registration).collect();
        assert!(details(&lun).ends_with(" and iqn.a:h7 (key 0x7) and 3 more"), "{}", details(&lun));
        let holders: Vec<String> = (0..NAMED + 2).map(|number| format!("h{number}")).collect();
        lun["reservation"]["holders"] = holders.into();
        assert!(details(&lun).contains("reservation of h0 and "), "{}", details(&lun));
        assert!(details(&lun).contains(" and h7 and 2 more, registered"), "{}", details(&lun));
    }

    #[test]
    fn a_lun_that_is_not_well_says_why() {
        assert_eq!(trouble(&lun()), None);
        let mut closed = lun();
        closed["not_opened"] = "No such file\u{1b}[2J".into();
        assert_eq!(trouble(&closed).as_deref(), Some("late: No such file\\x1b[2J"));
        assert!(table(&[(closed.clone(), None)], Shape::default()).contains("late: No such file"));
        // It was opened since.
        closed["state"] = "open".into();
        assert_eq!(trouble(&closed), None);
        closed["state"] = "failed".into();
        closed["last_error"] = "cut off".into();
        assert_eq!(trouble(&closed).as_deref(), Some("failed: cut off"));
    }
}
