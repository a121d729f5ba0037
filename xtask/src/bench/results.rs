//! The results of a report, row by row.

use crate::command::Result;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// When the data of writes is sent, by default.
pub(super) const USUAL: &str = "with the command";

/// Results needed for each row before anything is recorded.
pub(super) const REPETITIONS_MIN: u32 = 5;

/// A row of the report: a target at a point.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Side {
    pub(super) section: String,
    pub(super) target: String,
    pub(super) scheduling: String,
    pub(super) direction: String,
    pub(super) write_data: String,
    pub(super) digests: String,
    pub(super) jobs: String,
    pub(super) depth: String,
    pub(super) block: String,
}

impl Side {
    /// Everything except the target and its polling.
    pub(super) fn point(&self) -> String {
        let jobs = if self.jobs == "1" { String::new() } else { format!("{} connections x ", self.jobs) };
        let digests =
            if self.digests == "none" { String::new() } else { format!(", {} digests", self.digests) };
        let data =
            if self.write_data == USUAL { String::new() } else { format!(", data {}", self.write_data) };
        format!("{} {}, {jobs}QD {}{digests}{data}", self.block, self.direction, self.depth)
    }

    /// The same point for another target.
    pub(super) fn of(&self, target: &str) -> Side {
        Side { target: target.into(), ..self.clone() }
    }
}

/// The results of a row's repetitions.
#[derive(Clone, Copy)]
pub(super) struct Medians {
    pub(super) iops: f64,
    /// Microseconds per command; `None`: there is no target, or it is unknown.
    pub(super) target_cpu: Option<f64>,
    pub(super) initiator_cpu: Option<f64>,
}

impl Medians {
    /// CPU times of both sides.
    pub(super) fn cpu(&self) -> String {
        let show = |time: Option<f64>| time.map_or_else(|| "-".into(), |time| format!("{time:.2}"));
        format!("{} + {}", show(self.target_cpu), show(self.initiator_cpu))
    }
}

/// All rows, with their medians.
pub(super) struct Results {
    medians: HashMap<Side, Medians>,
    /// Commands per second by repetition.
    iops: HashMap<Side, BTreeMap<u32, f64>>,
    /// In the file's order.
    pub(super) rows: Vec<Side>,
    /// The fewest repetitions of any row.
    pub(super) repetitions: u32,
}

impl Results {
    /// Parses `results.csv`.
    pub(super) fn read(path: &Path) -> Result<Results> {
        let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Results::parse(file).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(super) fn parse(csv: impl std::io::Read) -> Result<Results> {
        let mut reader = csv::Reader::from_reader(csv);
        let headings = reader.headers().map_err(|error| error.to_string())?.clone();
        let column = |name: &str| {
            headings
                .iter()
                .position(|heading| heading == name)
                .ok_or_else(|| format!("there is no column {name}"))
        };
        let [section, target, scheduling] = ["section", "target", "scheduling"].map(column);
        let [direction, write_data, digests, jobs] =
            ["direction", "write_data", "digests", "jobs"].map(column);
        let [depth, block, runs, each] = ["queue_depth", "block_size", "runs", "iops_each"].map(column);
        let [iops, target_cpu, initiator_cpu] =
            ["iops", "target_cpu_us_per_command", "initiator_cpu_us_per_command"]
                .map(|name| column(&format!("{name}_median")));
        let (runs, each, iops, target_cpu, initiator_cpu) =
            (runs?, each?, iops?, target_cpu?, initiator_cpu?);
        let places =
            [section?, target?, scheduling?, direction?, write_data?, digests?, jobs?, depth?, block?];
        let mut results = Results {
            medians: HashMap::new(),
            iops: HashMap::new(),
            rows: Vec::new(),
            repetitions: u32::MAX,
        };
        for record in reader.records() {
            let record = record.map_err(|error| error.to_string())?;
            let [section, target, scheduling, direction, write_data, digests, jobs, depth, block] =
                places.map(|place| record.get(place).unwrap_or_default().to_string());
            let side =
                Side { section, target, scheduling, direction, write_data, digests, jobs, depth, block };
            let figure = |place: usize| record.get(place)?.parse::<f64>().ok();
            if let Some(iops) = figure(iops) {
                let (target_cpu, initiator_cpu) = (figure(target_cpu), figure(initiator_cpu));
                results.medians.insert(side.clone(), Medians { iops, target_cpu, initiator_cpu });
            }
            let of_each = |pair: &str| {
                let (repetition, iops) = pair.split_once(':')?;
                Some((repetition.parse().ok()?, iops.parse().ok()?))
            };
            let each = record.get(each).unwrap_or_default().split_whitespace().filter_map(of_each).collect();
            results.iops.insert(side.clone(), each);
            let count = record.get(runs).and_then(|count| count.parse().ok()).unwrap_or(0);
            results.repetitions = results.repetitions.min(count);
            results.rows.push(side);
        }
        Ok(results)
    }

    /// Commands per second by repetition.
    pub(super) fn iops(&self, side: &Side) -> Option<&BTreeMap<u32, f64>> {
        self.iops.get(side)
    }

    pub(super) fn medians(&self, side: &Side) -> Option<Medians> {
        self.medians.get(side).copied()
    }
}
