//! Columns with the load of a LUN or a session.

use crate::rates::{Load, Stats, latency, megabytes, short};
use crate::table::Column::{self, Figures};
use crate::table::{NONE, number, size};
use serde_json::Value;

/// Columns since the daemon or the session started.
const ALL: [Column; 7] = [
    Figures("COMMANDS"),
    Figures("READ"),
    Figures("R P50"),
    Figures("R P99"),
    Figures("WRITTEN"),
    Figures("W P50"),
    Figures("W P99"),
];

/// Columns since the last reading.
const LOAD: [Column; 8] = [
    Figures("READ/S"),
    Figures("R MB/S"),
    Figures("R P50"),
    Figures("R P99"),
    Figures("WRITE/S"),
    Figures("W MB/S"),
    Figures("W P50"),
    Figures("W P99"),
];

/// Columns of a table, depending on whether it is repeated.
pub(crate) fn columns(is_repeated: bool) -> &'static [Column] {
    if is_repeated { &LOAD } else { &ALL }
}

/// The figures since the last reading.
pub(crate) fn of_load(load: Option<&Load>) -> Vec<String> {
    let Some(load) = load else { return LOAD.map(|_| NONE.into()).into() };
    let directions = [&load.stats.read, &load.stats.write].into_iter();
    let cells = directions.flat_map(|counts| {
        [
            short(load.iops(counts)),
            megabytes(load.bytes(counts)),
            latency(counts.percentile(0.5)),
            latency(counts.percentile(0.99)),
        ]
    });
    cells.collect()
}

/// The figures since the start. A session also has sums of all commands that have arrived, including those in flight.
pub(crate) fn of_all(item: &Value) -> Vec<String> {
    let stats = Stats::of(&item["stats"]);
    let ended = stats.as_ref().map(|stats| stats.read.commands + stats.write.commands + stats.other);
    let mut cells = vec![number(&item["commands"].as_u64().or(ended).into())];
    let directions = [
        ("read_bytes", stats.as_ref().map(|stats| &stats.read)),
        ("write_bytes", stats.as_ref().map(|stats| &stats.write)),
    ];
    for (sum, counts) in directions {
        cells.push(size(&item[sum].as_u64().or(counts.map(|counts| counts.bytes)).into()));
        cells.extend([0.5, 0.99].map(|part| latency(counts.and_then(|counts| counts.percentile(part)))));
    }
    cells
}

/// Errors except the unit attentions at the beginning of every session.
const NO_ERROR: &str = "unit_attention";

/// Commands that failed, by reason, if there are any.
pub(crate) fn errors(item: &Value) -> Option<String> {
    let by_reason = item["stats"]["errors"].as_object().into_iter().flatten();
    let some: Vec<String> = by_reason
        .filter(|(why, count)| count.as_u64() > Some(0) && *why != NO_ERROR)
        .map(|(why, count)| format!("{count} {}", wire::shown(&why.replace('_', " "))))
        .collect();
    (!some.is_empty()).then(|| format!("errors: {}", some.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_failed_is_counted_by_reason_and_unit_attentions_did_not_fail() {
        let item = |errors: Value| json!({ "stats": { "errors": errors } });
        assert_eq!(errors(&item(json!({ "medium_error": 0, "unit_attention": 2 }))), None);
        let some = item(json!({ "medium_error": 3, "illegal_request": 1, "unit_attention": 2 }));
        assert_eq!(errors(&some).as_deref(), Some("errors: 1 illegal request, 3 medium error"));
    }
}
