//! Reports: a plan is measured run by run, and becomes a page with charts, tables and the facts of the runs.
#![forbid(unsafe_code)]

mod chart;
mod facts;
mod matrix;
mod output;
mod plan;
mod processes;
mod raw;
mod session;
mod statistics;
mod testbed;

pub use matrix::{Axis, Row, rows, schedule};
pub use plan::{
    BUILTIN, Builtin, Direction, Kind, Link, Matrix, Plan, REPETITIONS_MAX, ROWS_MAX, Scheduling, Store,
    Target, Transport, builtin,
};
pub use processes::ProcessTestbed;
pub use raw::{Header, Outcome, RawDirectory, Record};
pub use session::{Done, Position, Progress, Request, make};
pub use statistics::Summary;
pub use testbed::{Fact, Measured, Testbed};

use bench::result::{RunResult, Stream};
use std::collections::BTreeMap;

/// Everything measured, in the order of the plan.
pub(crate) struct Report<'a> {
    plan: &'a Plan,
    header: &'a Header,
    sections: Vec<Section<'a>>,
    /// Runs with a result, and total runs.
    progress: (usize, usize),
}

/// One matrix and its rows.
struct Section<'a> {
    matrix: &'a Matrix,
    rows: Vec<Measurement<'a>>,
}

/// The results of a row's repetitions.
struct Measurement<'a> {
    row: &'a Row,
    /// The results by repetition.
    runs: BTreeMap<u32, &'a RunResult>,
    /// The results of the ceiling by repetition.
    ceiling: BTreeMap<u32, &'a RunResult>,
    /// Why repetitions failed, each reason once.
    failures: Vec<&'a str>,
    commands: &'a [String],
}

/// Which of a run's operations a figure covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    All,
    Reads,
    Writes,
    Trims,
}

/// A figure of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Metric {
    Iops,
    /// Bytes per second.
    Throughput,
    Mean,
    P50,
    P90,
    P99,
    P999,
    Max,
    /// Microseconds of the target's CPU per command.
    TargetCpu,
    /// Microseconds of the initiator's CPU per command.
    InitiatorCpu,
    Errors,
}

impl<'a> Report<'a> {
    fn new(
        plan: &'a Plan,
        rows: &'a [Row],
        header: &'a Header,
        records: &'a BTreeMap<(u32, usize), Record>,
    ) -> Report<'a> {
        let of_row = |index: usize| records.values().filter(move |record| record.row == index);
        let results = |index: usize| -> BTreeMap<u32, &'a RunResult> {
            let measured = |record: &'a Record| match &record.outcome {
                Outcome::Measured(result) => Some((record.repetition, &**result)),
                Outcome::Failed(_) => None,
            };
            of_row(index).filter_map(measured).collect()
        };
        let failures = |index: usize| {
            let mut reasons: Vec<&'a str> = Vec::new();
            for record in of_row(index) {
                match &record.outcome {
                    Outcome::Failed(reason) if !reasons.contains(&reason.as_str()) => reasons.push(reason),
                    Outcome::Failed(_) | Outcome::Measured(_) => {}
                }
            }
            reasons
        };
        let measurement = |row: &'a Row| Measurement {
            row,
            runs: results(row.index),
            ceiling: row.ceiling.map(results).unwrap_or_default(),
            failures: failures(row.index),
            commands: of_row(row.index)
                .map(|record| record.commands.as_slice())
                .find(|commands| !commands.is_empty())
                .unwrap_or_default(),
        };
        let section = |(place, matrix): (usize, &'a Matrix)| Section {
            matrix,
            rows: rows.iter().filter(|row| row.matrix == place).map(measurement).collect(),
        };
        let sections: Vec<Section<'a>> = plan.matrices.iter().enumerate().map(section).collect();
        let measured = sections.iter().flat_map(|section| &section.rows).map(|row| row.runs.len()).sum();
        let total = rows.len() * plan.repetitions as usize;
        Report { plan, header, sections, progress: (measured, total) }
    }
}

impl<'a> Measurement<'a> {
    /// A summary of a figure over the repetitions.
    fn summary(&self, metric: Metric, part: Part) -> Option<Summary> {
        Summary::of(self.runs.values().filter_map(|run| metric.of(run, part)))
    }

    /// The same, as fractions of the ceiling's figure in the same repetition.
    fn of_ceiling(&self, metric: Metric, part: Part) -> Option<Summary> {
        Summary::of(self.runs.iter().filter_map(|(repetition, run)| {
            let figure = metric.of(run, part)?;
            let top = metric.of(self.ceiling.get(repetition)?, part).filter(|top| *top > 0.0)?;
            Some(figure / top)
        }))
    }

    /// Total errors over all repetitions.
    fn errors(&self) -> u64 {
        self.runs.values().flat_map(|run| run.streams()).map(|stream| stream.errors).sum()
    }

    /// The run with the median operations per second.
    fn typical(&self) -> Option<&'a RunResult> {
        let runs: Vec<&RunResult> = self.runs.values().copied().collect();
        let iops: Vec<f64> = runs.iter().map(|run| run.iops()).collect();
        statistics::median_index(&iops).map(|index| runs[index])
    }

    /// All operations together, and the streams if there are several.
    fn parts(&self) -> Vec<Part> {
        let present = |part: &Part| self.runs.values().any(|run| part.stream(run).is_some());
        let streams: Vec<Part> =
            [Part::Reads, Part::Writes, Part::Trims].into_iter().filter(present).collect();
        let streams = if streams.len() > 1 { streams } else { Vec::new() };
        [Part::All].into_iter().chain(streams).collect()
    }
}

impl Part {
    /// The stream it selects; for all, the only stream there is.
    fn stream(self, run: &RunResult) -> Option<&Stream> {
        match self {
            Part::All => {
                let mut streams = run.streams();
                streams.next().filter(|_| streams.next().is_none())
            }
            Part::Reads => run.read.as_ref(),
            Part::Writes => run.write.as_ref(),
            Part::Trims => run.trim.as_ref(),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Part::All => "all",
            Part::Reads => "reads",
            Part::Writes => "writes",
            Part::Trims => "discards",
        }
    }
}

impl Metric {
    /// The figure for one run; `None` if unknown.
    fn of(self, run: &RunResult, part: Part) -> Option<f64> {
        let stream = part.stream(run);
        let latency = stream.map(|stream| &stream.latency);
        let whole = part == Part::All;
        match self {
            Metric::Iops => {
                if whole {
                    Some(run.iops())
                } else {
                    stream.map(|stream| stream.iops)
                }
            }
            Metric::Throughput => match whole {
                true => Some(run.bytes_per_second()),
                false => stream.map(|stream| stream.bytes_per_second),
            },
            Metric::Mean => latency.map(|latency| latency.mean),
            Metric::P50 => latency.map(|latency| latency.p50),
            Metric::P90 => latency.map(|latency| latency.p90),
            Metric::P99 => latency.map(|latency| latency.p99),
            Metric::P999 => latency.map(|latency| latency.p999),
            Metric::Max => latency.map(|latency| latency.max),
            Metric::TargetCpu => run.target_cpu.filter(|_| whole).map(|cpu| cpu.us_per_op),
            Metric::InitiatorCpu => whole.then_some(run.initiator_cpu.us_per_op),
            Metric::Errors => match whole {
                true => Some(run.streams().map(|stream| stream.errors).sum::<u64>() as f64),
                false => stream.map(|stream| stream.errors as f64),
            },
        }
    }
}
