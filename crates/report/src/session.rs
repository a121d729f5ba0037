//! Makes a report: does every missing run, in order, and saves each as soon as it is finished.

use super::matrix::{self, Row};
use super::plan::Plan;
use super::raw::{Header, Outcome, RawDirectory, Record};
use super::testbed::{Fact, Testbed};
use super::{Report, facts, output};
use bench::result::Sample;
use config::redact_all;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A request to make a report.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The text of the plan, saved with the report.
    pub text: String,
    /// The report's directory.
    pub directory: PathBuf,
    /// Whether to continue with existing results.
    pub resume: bool,
    /// The command line.
    pub command: String,
    /// When set, ends the work after the run in progress.
    pub stop: Arc<AtomicBool>,
}

/// The progress of the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Finished runs.
    pub done: usize,
    /// Total runs.
    pub total: usize,
    /// The repetition in progress, from 1.
    pub repetition: u32,
    /// An estimate of the time left.
    pub left: Duration,
}

/// An observer of the work.
pub trait Progress {
    /// A run begins.
    fn begins(&mut self, row: &Row, position: Position);
    /// A sample of the run.
    fn sample(&mut self, sample: &Sample);
    /// The run ended.
    fn ends(&mut self, row: &Row, outcome: &Outcome);
}

/// The outcome of the work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// The page.
    pub page: PathBuf,
    /// Runs with a result.
    pub measured: usize,
    /// Total runs.
    pub total: usize,
    /// Rows that failed and why, each once.
    pub failed: Vec<String>,
}

/// Makes or continues a report.
///
/// # Errors
/// What prevents it, each with its fix. A failed run is listed in the report instead.
pub fn make(
    plan: &Plan,
    request: &Request,
    testbed: &mut dyn Testbed,
    progress: &mut dyn Progress,
) -> Result<Done, Vec<String>> {
    let rows = matrix::rows(plan);
    refuse_overwriting(&rows)?;
    let raw = RawDirectory::open(&request.directory).map_err(|error| unusable(request, &error))?;
    let digest = digest(plan);
    let old = header(&raw, request, &digest)?;
    let mut facts = facts::machine();
    facts.extend(testbed.prepare(&rows)?);
    let header =
        keep_header(&raw, request, &digest, old, facts).map_err(|error| unusable(request, &error))?;
    let records = raw.records(&digest).map_err(|error| unusable(request, &error))?;
    let mut work = Work { plan, request, rows, raw, digest, header, records };
    work.run(testbed, progress).map_err(|error| unusable(request, &error))?;
    work.publish().map_err(|error| unusable(request, &error))?;
    Ok(work.done())
}

/// A report in progress.
struct Work<'a> {
    plan: &'a Plan,
    request: &'a Request,
    rows: Vec<Row>,
    raw: RawDirectory,
    digest: String,
    header: Header,
    records: BTreeMap<(u32, usize), Record>,
}

impl Work<'_> {
    fn run(&mut self, testbed: &mut dyn Testbed, progress: &mut dyn Progress) -> std::io::Result<()> {
        let schedule = matrix::schedule(self.plan, &self.rows);
        let is_measured = |record: &Record| matches!(record.outcome, Outcome::Measured(_));
        let missing: Vec<(u32, usize)> =
            schedule.iter().filter(|run| !self.records.get(run).is_some_and(is_measured)).copied().collect();
        let begin = Instant::now();
        for (number, &(repetition, index)) in missing.iter().enumerate() {
            if self.request.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let left = self.left(begin.elapsed(), number, missing.len());
            let done = schedule.len() - missing.len() + number;
            let row = self.rows[index].clone();
            progress.begins(&row, Position { done, total: schedule.len(), repetition, left });
            let measured = testbed.measure(&row, &row.job(repetition), &mut |sample| progress.sample(sample));
            if self.request.stop.load(Ordering::Relaxed) {
                // Interrupted: it will be run again.
                return Ok(());
            }
            let record = self.record(repetition, &row, measured);
            progress.ends(&row, &record.outcome);
            self.raw.add(&record)?;
            self.records.insert((repetition, index), record);
            let is_last = missing.get(number + 1).is_none_or(|(next, _)| *next != repetition);
            if is_last {
                self.publish()?;
            }
        }
        Ok(())
    }

    fn record(&self, repetition: u32, row: &Row, measured: Result<super::Measured, String>) -> Record {
        let (commands, outcome) = match measured {
            Ok(measured) => (measured.commands, Outcome::Measured(Box::new(measured.result))),
            Err(reason) => (Vec::new(), Outcome::Failed(reason)),
        };
        let (plan, label, at) = (self.digest.clone(), row.label(), facts::now(SystemTime::now()));
        Record { plan, repetition, row: row.index, label, at, commands, outcome }
    }

    /// Estimated from the runs so far; before the first, from their planned time.
    fn left(&self, elapsed: Duration, number: usize, total: usize) -> Duration {
        const START: Duration = Duration::from_millis(500);
        let each = match u32::try_from(number) {
            Ok(number) if number > 0 => elapsed / number,
            Ok(_) | Err(_) => self.plan.runtime + self.plan.ramp + START,
        };
        each.saturating_mul(u32::try_from(total - number).unwrap_or(u32::MAX))
    }

    fn publish(&self) -> std::io::Result<()> {
        fs::write(self.request.directory.join("plan.toml"), redact_all(&self.request.text))?;
        let report = Report::new(self.plan, &self.rows, &self.header, &self.records);
        output::write(&report, &self.request.directory)
    }

    fn done(&self) -> Done {
        let mut failed: Vec<String> = Vec::new();
        for record in self.records.values() {
            if let Outcome::Failed(reason) = &record.outcome {
                let line = format!("{}: {reason}", record.label);
                if !failed.contains(&line) {
                    failed.push(line);
                }
            }
        }
        let measured =
            self.records.values().filter(|record| matches!(record.outcome, Outcome::Measured(_))).count();
        let total = self.rows.len() * self.plan.repetitions as usize;
        Done { page: self.request.directory.join("index.html"), measured, total, failed }
    }
}

/// The header left by an earlier run of the same plan; refused unless it is to be continued.
fn header(raw: &RawDirectory, request: &Request, digest: &str) -> Result<Option<Header>, Vec<String>> {
    let old = raw.header().map_err(|error| unusable(request, &error))?;
    let directory = request.directory.display();
    match old {
        Some(old) if old.plan != digest => Err(vec![format!(
            "{directory}: it holds a report of another plan (or with other --quick or --peer); name another directory"
        )]),
        Some(_) if !request.resume => Err(vec![format!(
            "{directory}: it holds a report of this plan; add --resume to continue it, or name another directory"
        )]),
        old => Ok(old),
    }
}

fn keep_header(
    raw: &RawDirectory,
    request: &Request,
    digest: &str,
    old: Option<Header>,
    facts: Vec<Fact>,
) -> std::io::Result<Header> {
    let started = || facts::now(SystemTime::now());
    let (started, mut commands) =
        old.map_or_else(|| (started(), Vec::new()), |old| (old.started, old.commands));
    commands.push(redact_all(&request.command));
    let header = Header { plan: digest.into(), started, commands, facts };
    raw.set_header(&header)?;
    Ok(header)
}

/// Identifies a plan by its content, not by its file's formatting.
fn digest(plan: &Plan) -> String {
    let bytes = Sha256::digest(format!("{plan:?}"));
    bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Data of others is not overwritten without permission.
fn refuse_overwriting(rows: &[Row]) -> Result<(), Vec<String>> {
    use super::plan::{Kind, Store};
    let mut faults: Vec<String> = Vec::new();
    for row in rows {
        let theirs = matches!(row.target.kind, Kind::Url(_)) || matches!(row.target.store, Store::Block(_));
        let fault = format!(
            "target `{}`: the plan writes to it, and its contents would be lost; set overwrite = true in the plan, \
             add --overwrite, or leave the writes out",
            row.target.name
        );
        if theirs && row.direction.writes() && !row.target.overwrite && !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn unusable(request: &Request, error: &std::io::Error) -> Vec<String> {
    vec![format!("{}: {error}; name a writable directory", request.directory.display())]
}
