//! The results of a report, row by row.

use crate::command::Result;
use std::collections::HashMap;
use std::path::Path;

/// A row of the report: a target at a point.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Side {
    pub(super) section: String,
    pub(super) target: String,
    pub(super) scheduling: String,
    pub(super) direction: String,
    pub(super) digests: String,
    pub(super) jobs: String,
    pub(super) depth: String,
    pub(super) block: String,
}

impl Side {
    /// Everything but who and how it waits.
    pub(super) fn point(&self) -> String {
        let jobs = if self.jobs == "1" { String::new() } else { format!("{} connections x ", self.jobs) };
        let digests =
            if self.digests == "none" { String::new() } else { format!(", {} digests", self.digests) };
        format!("{} {}, {jobs}QD {}{digests}", self.block, self.direction, self.depth)
    }

    /// The same point of another target.
    pub(super) fn of(&self, target: &str) -> Side {
        Side { target: target.into(), ..self.clone() }
    }
}

/// All rows, with their medians of operations per second.
pub(super) struct Results {
    medians: HashMap<Side, f64>,
    /// In the file's order.
    pub(super) rows: Vec<Side>,
    /// Repetitions that every row has at least.
    pub(super) repetitions: u32,
}

impl Results {
    /// The results in `results.csv`.
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
        let [direction, digests, jobs] = ["direction", "digests", "jobs"].map(column);
        let [depth, block, median] = ["queue_depth", "block_size", "iops_median"].map(column);
        let (median, runs) = (median?, column("runs")?);
        let places = [section?, target?, scheduling?, direction?, digests?, jobs?, depth?, block?];
        let mut results = Results { medians: HashMap::new(), rows: Vec::new(), repetitions: u32::MAX };
        for record in reader.records() {
            let record = record.map_err(|error| error.to_string())?;
            let [section, target, scheduling, direction, digests, jobs, depth, block] =
                places.map(|place| record.get(place).unwrap_or_default().to_string());
            let side = Side { section, target, scheduling, direction, digests, jobs, depth, block };
            if let Some(figure) = record.get(median).and_then(|figure| figure.parse().ok()) {
                results.medians.insert(side.clone(), figure);
            }
            let count = record.get(runs).and_then(|count| count.parse().ok()).unwrap_or(0);
            results.repetitions = results.repetitions.min(count);
            results.rows.push(side);
        }
        Ok(results)
    }

    pub(super) fn median(&self, side: &Side) -> Option<f64> {
        self.medians.get(side).copied()
    }
}
