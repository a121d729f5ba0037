//! The load of LUNs and sessions: the difference between two readings of their counters.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Instant;

/// Counters of one direction since the daemon started.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
    /// Upper bounds in microseconds, the last of which is infinite (`None`), and how many commands took no longer.
    buckets: Vec<(Option<u64>, u64)>,
}

impl Counts {
    /// From the API; `None`: it does not report them.
    fn of(json: &Value) -> Option<Counts> {
        let list = |name: &str| json["latency"][name].as_array().into_iter().flatten();
        let buckets = list("le_us").zip(list("counts"));
        Some(Counts {
            commands: json["commands"].as_u64()?,
            bytes: json["bytes"].as_u64()?,
            buckets: buckets.filter_map(|(bound, count)| Some((bound.as_u64(), count.as_u64()?))).collect(),
        })
    }

    /// What was counted since an earlier reading. Counters that have decreased were reset, with the daemon or
    /// the LUN: everything they count is new.
    fn since(&self, earlier: &Counts) -> Counts {
        let bounds = |counts: &Counts| counts.buckets.iter().map(|bucket| bucket.0).collect::<Vec<_>>();
        let pairs = || self.buckets.iter().zip(&earlier.buckets);
        let has_begun_anew = self.commands < earlier.commands
            || self.bytes < earlier.bytes
            || bounds(self) != bounds(earlier)
            || pairs().any(|(now, before)| now.1 < before.1);
        if has_begun_anew {
            return self.clone();
        }
        Counts {
            commands: self.commands - earlier.commands,
            bytes: self.bytes - earlier.bytes,
            buckets: pairs().map(|(now, before)| (now.0, now.1 - before.1)).collect(),
        }
    }

    /// Microseconds within which this fraction of the commands ended: exact to the bucket, within which an
    /// even distribution is assumed. Those of the last bucket took at least its lower bound.
    pub(crate) fn percentile(&self, part: f64) -> Option<f64> {
        let all = self.buckets.last()?.1;
        let rank = all as f64 * part;
        let (mut low, mut below) = (0, 0);
        for &(high, count) in &self.buckets {
            if count > below && count as f64 >= rank {
                let Some(high) = high else { return Some(low as f64) };
                let place = (rank - below as f64) / (count - below) as f64;
                return Some(low as f64 + (high.saturating_sub(low)) as f64 * place);
            }
            (low, below) = (high.unwrap_or(low), count.max(below));
        }
        None
    }
}

/// The counters of one LUN or session.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) read: Counts,
    pub(crate) write: Counts,
    /// Commands that neither read nor write.
    pub(crate) other: u64,
}

impl Stats {
    /// From `stats` of the API; `None`: it does not report them.
    pub(crate) fn of(json: &Value) -> Option<Stats> {
        Some(Stats {
            read: Counts::of(&json["read"])?,
            write: Counts::of(&json["write"])?,
            other: json["other"]["commands"].as_u64().unwrap_or(0),
        })
    }

    fn since(&self, earlier: &Stats) -> Stats {
        Stats {
            read: self.read.since(&earlier.read),
            write: self.write.since(&earlier.write),
            other: self.other.checked_sub(earlier.other).unwrap_or(self.other),
        }
    }
}

/// What was done in a period.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Load {
    pub(crate) stats: Stats,
    pub(crate) seconds: f64,
}

impl Load {
    /// Commands per second.
    pub(crate) fn iops(&self, counts: &Counts) -> f64 {
        counts.commands as f64 / self.seconds
    }

    /// Bytes per second.
    pub(crate) fn bytes(&self, counts: &Counts) -> f64 {
        counts.bytes as f64 / self.seconds
    }

    /// All commands per second, by which tables are sorted.
    pub(crate) fn commands(&self) -> f64 {
        (self.stats.read.commands + self.stats.write.commands + self.stats.other) as f64 / self.seconds
    }

    /// As JSON.
    pub(crate) fn json(&self) -> Value {
        let direction = |counts: &Counts| {
            json!({
                "iops": self.iops(counts),
                "bytes_per_second": self.bytes(counts),
                "p50_us": counts.percentile(0.5),
                "p99_us": counts.percentile(0.99),
            })
        };
        json!({
            "seconds": self.seconds,
            "read": direction(&self.stats.read),
            "write": direction(&self.stats.write),
            "other": { "iops": self.stats.other as f64 / self.seconds },
        })
    }
}

/// The counters of a list that is read repeatedly.
pub(crate) struct Rates {
    /// The key that identifies its items.
    key: &'static str,
    before: Option<Reading>,
}

impl Rates {
    pub(crate) fn new(key: &'static str) -> Rates {
        Rates { key, before: None }
    }

    /// The items of a list, read at this time, each with its load since the previous reading.
    pub(crate) fn read(&mut self, items: Vec<Value>, at: Instant) -> Vec<(Value, Option<Load>)> {
        let now = Reading::of(&items, self.key, at);
        let load = |item: &Value| now.since(self.before.as_ref()?, &item[self.key]);
        let items = items
            .into_iter()
            .map(|item| {
                let load = load(&item);
                (item, load)
            })
            .collect();
        self.before = Some(now);
        items
    }
}

/// All counters of a list, and when they were read.
struct Reading {
    at: Instant,
    stats: HashMap<String, Stats>,
}

impl Reading {
    fn of(items: &[Value], key: &str, at: Instant) -> Reading {
        let of_item = |item: &Value| Some((item[key].to_string(), Stats::of(&item["stats"])?));
        Reading { at, stats: items.iter().filter_map(of_item).collect() }
    }

    /// The load of an item since an earlier reading; an item that is new since then began at zero.
    fn since(&self, earlier: &Reading, id: &Value) -> Option<Load> {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        let id = id.to_string();
        let now = self.stats.get(&id)?;
        let stats = earlier.stats.get(&id).map_or_else(|| now.clone(), |before| now.since(before));
        (seconds > 0.0).then_some(Load { stats, seconds })
    }
}

/// A constantly changing number, to three digits.
pub(crate) fn short(number: f64) -> String {
    match number {
        ..0.0 => String::from("0"),
        ..10.0 if number.fract() != 0.0 => format!("{number:.1}"),
        ..10_000.0 => format!("{number:.0}"),
        ..100_000.0 => format!("{:.1}k", number / 1e3),
        ..1e6 => format!("{:.0}k", number / 1e3),
        _ => format!("{:.2}M", number / 1e6),
    }
}

/// Bytes per second in MB/s.
pub(crate) fn megabytes(bytes: f64) -> String {
    let number = bytes / 1e6;
    if number == 0.0 || number >= 100.0 { format!("{number:.0}") } else { format!("{number:.1}") }
}

/// Microseconds, with their unit.
pub(crate) fn latency(microseconds: Option<f64>) -> String {
    match microseconds {
        None => crate::table::NONE.into(),
        Some(us @ ..1000.0) => format!("{us:.0}us"),
        Some(us @ ..10_000.0) => format!("{:.1}ms", us / 1e3),
        Some(us @ ..1e6) => format!("{:.0}ms", us / 1e3),
        Some(us) => format!("{:.1}s", us / 1e6),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    pub(crate) fn direction(commands: u64, buckets: &[u64]) -> Value {
        let bounds = &[Some(100), Some(200), Some(1000), None][..buckets.len()];
        let latency = json!({ "sum_us": 1, "le_us": bounds, "counts": buckets });
        json!({ "commands": commands, "bytes": commands * 4096, "latency": latency })
    }

    fn lun(name: &str, read: Value) -> Value {
        json!({ "name": name, "stats": { "read": read, "write": direction(0, &[0; 4]), "other": { "commands": 2 } } })
    }

    fn load(before: &[Value], now: &[Value]) -> Option<Load> {
        let start = Instant::now();
        let earlier = Reading::of(before, "name", start);
        Reading::of(now, "name", start + Duration::from_secs(2)).since(&earlier, &"a".into())
    }

    #[test]
    fn a_rate_is_the_difference_of_two_readings_over_the_time_between_them() {
        let before = [lun("a", direction(1000, &[400, 600, 1000, 1000]))];
        let now = [lun("a", direction(1100, &[400, 700, 1100, 1100]))];
        let load = load(&before, &now).expect("it is known");
        let read = &load.stats.read;
        assert_eq!((load.iops(read), load.bytes(read), load.commands()), (50.0, 204_800.0, 50.0));
        assert_eq!(load.stats.write.percentile(0.5), None, "nothing was written");
        assert_eq!((read.percentile(0.5), read.percentile(0.99)), (Some(150.0), Some(199.0)));
        assert_eq!(load.json()["read"]["p50_us"], 150.0);
    }

    #[test]
    fn counters_that_restarted_count_from_zero() {
        let before = [lun("a", direction(1000, &[400, 600, 1000, 1000]))];
        let restarted = [lun("a", direction(10, &[10, 10, 10, 10]))];
        let load = load(&before, &restarted).expect("it is known");
        assert_eq!(load.iops(&load.stats.read), 5.0);
        // So was a direction that already has more commands than before.
        let overtaken = [lun("a", direction(2000, &[0, 2000, 2000, 2000]))];
        let load = super::tests::load(&before, &overtaken).expect("it is known");
        assert_eq!((load.iops(&load.stats.read), load.stats.read.percentile(0.5)), (1000.0, Some(150.0)));
    }

    #[test]
    fn an_item_that_came_in_between_began_at_nothing_and_one_without_counters_has_no_rate() {
        let now = [lun("a", direction(10, &[10; 4]))];
        assert_eq!(load(&[], &now).map(|load| load.iops(&load.stats.read)), Some(5.0));
        assert_eq!(load(&now, &[json!({ "name": "a" })]), None);
        assert_eq!(load(&now, &[]), None);
    }

    #[test]
    fn a_percentile_lies_in_the_bucket_of_its_rank() {
        let of = |buckets: &[u64], part| Counts::of(&direction(1, buckets)).expect("counts").percentile(part);
        assert_eq!(of(&[0; 4], 0.5), None);
        assert_eq!(of(&[100, 100, 100, 100], 0.5), Some(50.0));
        assert_eq!(of(&[0, 50, 100, 100], 0.5), Some(200.0));
        assert_eq!(of(&[0, 50, 100, 100], 0.75), Some(600.0));
        assert_eq!(of(&[0, 0, 0, 7], 0.5), Some(1000.0), "at least");
        assert_eq!(of(&[0, 0, 99, 100], 0.99), Some(1000.0));
        // Counters of several cores are not read at the same moment.
        assert_eq!(of(&[10, 9, 10, 10], 1.0), Some(100.0));
    }

    #[test]
    fn figures_are_short() {
        let numbers = [0.0, 0.5, 7.0, 123.4, 9999.0, 12_345.0, 123_456.0, 1_234_567.0].map(short);
        assert_eq!(numbers, ["0", "0.5", "7", "123", "9999", "12.3k", "123k", "1.23M"]);
        let rates = [0.0, 1.5e6, 204_800.0, 3.81e9].map(megabytes);
        assert_eq!(rates, ["0", "1.5", "0.2", "3810"]);
        let times = [None, Some(85.4), Some(1234.0), Some(45_000.0), Some(2.5e6)].map(latency);
        assert_eq!(times, ["-", "85us", "1.2ms", "45ms", "2.5s"]);
    }
}
