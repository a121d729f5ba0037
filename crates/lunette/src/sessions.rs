//! `lunette sessions` and `lunette disconnect`.

use crate::Failure;
use crate::client::AdminArguments;
use crate::manage::ChangeArguments;
use clap::Args;
use config::format_size;
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;
use wire::shown;

/// `lunette sessions`.
#[derive(Debug, Args)]
pub(crate) struct SessionsArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArguments,
}

/// `lunette disconnect`.
#[derive(Debug, Args)]
pub(crate) struct DisconnectArguments {
    /// Its number, as lunette sessions and the log have it
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
    let sessions = arguments.admin.list("/v1/sessions")?;
    if arguments.json {
        return Ok(format!("{}\n", serde_json::to_string_pretty(&sessions).unwrap_or_default()));
    }
    if sessions.is_empty() {
        return Ok("Nobody is connected.\n".into());
    }
    Ok(table(&sessions))
}

const COLUMNS: [&str; 11] = [
    "SESSION",
    "INITIATOR",
    "ADDRESS",
    "TARGET",
    "TRANSPORT",
    "CORE",
    "AGE",
    "IN FLIGHT",
    "COMMANDS",
    "READ",
    "WRITTEN",
];
/// Those of numbers, which end in one line.
const NUMBERS: [usize; 7] = [0, 5, 6, 7, 8, 9, 10];

/// A line of facts for each, and below it how it was reached and what was negotiated.
fn table(sessions: &[Value]) -> String {
    let rows: Vec<[String; 11]> = sessions.iter().map(row).collect();
    let header = COLUMNS.map(str::to_owned);
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| {
            let all = rows.iter().chain([&header]).map(|row| row[column].chars().count());
            all.max().unwrap_or(0)
        })
        .collect();
    let line = |row: &[String; 11]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (text, width))| {
            if NUMBERS.contains(&column) { format!("{text:>width$}") } else { format!("{text:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&header);
    for (session, row) in sessions.iter().zip(&rows) {
        text += &line(row);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:width$}  {}", "", details(session), width = widths[0]);
    }
    text
}

fn word(session: &Value, key: &str) -> String {
    session[key].as_str().map(|text| shown(text).to_string()).unwrap_or_default()
}

fn row(session: &Value) -> [String; 11] {
    let number = |key: &str| session[key].as_u64().unwrap_or(0);
    let age = Duration::from_secs_f64(session["age_seconds"].as_f64().unwrap_or(0.0).max(0.0));
    let target = match (session["target"].as_str(), session["aoe"].as_str()) {
        (Some(target), _) => shown(target).to_string(),
        (None, Some(address)) => address.to_owned(),
        (None, None) => "(discovery)".into(),
    };
    [
        number("id").to_string(),
        word(session, "initiator"),
        word(session, "address"),
        target,
        word(session, "transport"),
        number("core").to_string(),
        in_words(age),
        number("in_flight").to_string(),
        number("commands").to_string(),
        rounded(number("read_bytes")),
        rounded(number("write_bytes")),
    ]
}

fn details(session: &Value) -> String {
    let mut all = Vec::new();
    if session["state"] != "serving" {
        all.push(word(session, "state"));
    }
    for (key, text) in [("portal", "portal"), ("interface", "interface"), ("alias", "alias")] {
        if session[key].is_string() {
            all.push(format!("{text} {}", word(session, key)));
        }
    }
    let keys = session["keys"].as_object().into_iter().flatten();
    let keys: Vec<String> = keys
        .map(|(key, value)| format!("{}={}", shown(key), shown(value.as_str().unwrap_or_default())))
        .collect();
    if !keys.is_empty() {
        all.push(keys.join(" "));
    }
    all.join(", ")
}

/// Bytes to three digits: a number that changes all the time is not read to the last one.
fn rounded(bytes: u64) -> String {
    let mut unit = 0;
    let mut number = bytes as f64;
    while number >= 1000.0 && unit < UNITS.len() - 1 {
        number /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format_size(bytes),
        _ if number < 10.0 => format!("{number:.2} {}", UNITS[unit]),
        _ if number < 100.0 => format!("{number:.1} {}", UNITS[unit]),
        _ => format!("{number:.0} {}", UNITS[unit]),
    }
}

const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// The two largest units.
fn in_words(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
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
        let text = table(&[session]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("SESSION  INITIATOR"), "{text}");
        let row = lines[1].split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = "7 iqn.a:b\\x1b[2J\\x0a 127.0.0.1:5 iqn.a:t iSCSI 1 1h02m 32 123456 4.77 MiB 0 bytes";
        assert_eq!(row, expected);
        assert_eq!(lines[2].trim(), "ending, portal 127.0.0.1:3260, HeaderDigest=CRC32C");
    }

    #[test]
    fn ages_and_sizes_are_short() {
        let ages = [0, 59, 60, 3599, 3600, 90_000].map(|seconds| in_words(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "59s", "1m00s", "59m59s", "1h00m", "1d01h"]);
        let sizes = [0, 512, 999, 1024, 1 << 20, 150 << 30, u64::MAX].map(rounded);
        assert_eq!(sizes[..6], ["0 bytes", "512 bytes", "999 bytes", "1.00 KiB", "1.00 MiB", "150 GiB"]);
        assert_eq!(sizes[6], "16384 PiB");
    }
}
