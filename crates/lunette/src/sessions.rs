//! `lunette sessions` and `lunette disconnect`.

use crate::Failure;
use crate::client::AdminArguments;
use crate::figures;
use crate::manage::ChangeArguments;
use crate::rates::Load;
use crate::table::Column::{self, Figures, Words};
use crate::table::{Shape, Table, number, seconds, word};
use crate::watch::WatchArguments;
use clap::Args;
use serde_json::Value;
use wire::shown;

/// `lunette sessions`.
#[derive(Debug, Args)]
pub(crate) struct SessionsArguments {
    #[command(flatten)]
    watch: WatchArguments,
    #[command(flatten)]
    admin: AdminArguments,
}

/// `lunette disconnect`.
#[derive(Debug, Args)]
pub(crate) struct DisconnectArguments {
    /// Its number, as shown by lunette sessions and in the log
    session: u64,
    #[command(flatten)]
    change: ChangeArguments,
}

/// Ends a session.
pub(crate) fn end(arguments: &DisconnectArguments) -> Result<String, Failure> {
    arguments.change.make("DELETE", &format!("/v1/sessions/{}", arguments.session), None)
}

/// Lists sessions.
pub(crate) fn list(arguments: &SessionsArguments) -> Result<String, Failure> {
    arguments.watch.list(&arguments.admin, ("/v1/sessions", "id"), table)
}

const WHO: [Column; 8] = [
    Figures("SESSION"),
    Words("INITIATOR"),
    Words("ADDRESS"),
    Words("TARGET"),
    Words("TRANSPORT"),
    Figures("CORE"),
    Figures("AGE"),
    Figures("IN FLIGHT"),
];

/// Columns that move to the details on a narrow terminal, in this order.
const DISPENSABLE: [&str; 10] =
    ["ADDRESS", "TRANSPORT", "CORE", "TARGET", "AGE", "R P50", "W P50", "R MB/S", "W MB/S", "IN FLIGHT"];

/// A row for each session, and below it how it was established and what was negotiated.
fn table(sessions: &[(Value, Option<Load>)], shape: Shape) -> String {
    if sessions.is_empty() {
        return "Nobody is connected.\n".into();
    }
    let columns = [&WHO[..], figures::columns(shape.is_repeated)].concat();
    let mut table = Table::new(&columns);
    for (session, load) in sessions {
        let figures = match shape.is_repeated {
            true => figures::of_load(load.as_ref()),
            false => figures::of_all(session),
        };
        table.add([who(session), figures].concat(), details(session));
    }
    table.text(shape.width, &DISPENSABLE)
}

/// The target of a session; with AoE, the unit.
pub(crate) fn target(session: &Value) -> String {
    match (session["target"].is_string(), session["aoe"].is_string()) {
        (true, _) => word(&session["target"]),
        (false, true) => word(&session["aoe"]),
        (false, false) => "(discovery)".into(),
    }
}

fn who(session: &Value) -> Vec<String> {
    vec![
        number(&session["id"]),
        word(&session["initiator"]),
        word(&session["address"]),
        target(session),
        word(&session["transport"]),
        number(&session["core"]),
        seconds(&session["age_seconds"]),
        number(&session["in_flight"]),
    ]
}

/// How a session was established, and what was negotiated.
pub(crate) fn details(session: &Value) -> String {
    let mut all = Vec::new();
    if session["state"] != "serving" {
        all.push(word(&session["state"]));
    }
    for key in ["portal", "interface", "alias"] {
        if session[key].is_string() {
            all.push(format!("{key} {}", word(&session[key])));
        }
    }
    all.extend(figures::errors(session));
    let keys = session["keys"].as_object().into_iter().flatten();
    let keys: Vec<String> = keys.map(|(key, value)| format!("{}={}", shown(key), word(value))).collect();
    if !keys.is_empty() {
        all.push(keys.join(" "));
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_shows_what_is_there_and_nothing_that_a_peer_sent_leaves_its_line() {
        let session = json!({
            "id": 7, "initiator": "iqn.a:b\u{1b}[2J\n", "alias": null, "transport": "iSCSI",
            "address": "127.0.0.1:5", "portal": "127.0.0.1:3260", "interface": null, "aoe": null,
            "target": "iqn.a:t", "core": 1, "state": "ending", "age_seconds": 3725.5, "in_flight": 32,
            "commands": 123456, "read_bytes": 5000000, "write_bytes": 0, "keys": { "HeaderDigest": "CRC32C" },
        });
        let text = table(&[(session, None)], Shape::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("SESSION  INITIATOR"), "{text}");
        let row = lines[1].split_whitespace().collect::<Vec<_>>().join(" ");
        let expected =
            "7 iqn.a:b\\x1b[2J\\x0a 127.0.0.1:5 iqn.a:t iSCSI 1 1h02m 32 123456 4.77 MiB - - 0 bytes - -";
        assert_eq!(row, expected);
        assert_eq!(lines[2].trim(), "ending, portal 127.0.0.1:3260, HeaderDigest=CRC32C");
    }
}
