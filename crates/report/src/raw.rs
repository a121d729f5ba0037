//! A report's raw results, one file per run, so that nothing is measured twice.

use super::testbed::Fact;
use bench::result::RunResult;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A finished run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The digest of its plan.
    pub plan: String,
    /// The repetition, from 1.
    pub repetition: u32,
    /// The row's index in the plan.
    pub row: usize,
    /// The row as text.
    pub label: String,
    /// When it ended (RFC 3339, UTC).
    pub at: String,
    /// How the targets were started, and how to repeat the measurement.
    pub commands: Vec<String>,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// A result.
    Measured(Box<RunResult>),
    /// None, and the reason.
    Failed(String),
}

/// Facts common to all runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Digest of the plan.
    pub plan: String,
    /// When the first run began (RFC 3339, UTC).
    pub started: String,
    /// The commands that made this report, one for each time it was resumed.
    pub commands: Vec<String>,
    /// The machine and the programs.
    pub facts: Vec<Fact>,
}

/// The directory `raw`.
#[derive(Debug)]
pub struct RawDirectory {
    path: PathBuf,
}

impl RawDirectory {
    /// Creates the directory inside the report's, if missing.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn open(report: &Path) -> io::Result<RawDirectory> {
        let path = report.join("raw");
        fs::create_dir_all(&path)?;
        Ok(RawDirectory { path })
    }

    /// Facts common to all runs; `None`: nothing was measured yet.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn header(&self) -> io::Result<Option<Header>> {
        let path = self.path.join(HEADER);
        if !path.exists() {
            return Ok(None);
        }
        read(&path)
    }

    /// Writes the facts common to all runs.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_header(&self, header: &Header) -> io::Result<()> {
        write(&self.path.join(HEADER), header)
    }

    /// Adds a run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&self, record: &Record) -> io::Result<()> {
        let name = format!("{:03}-{:05}.json", record.repetition, record.row);
        write(&self.path.join(name), record)
    }

    /// All runs of this plan by repetition and row. Truncated files, such as after a power failure, and those
    /// of another plan are ignored.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn records(&self, plan: &str) -> io::Result<BTreeMap<(u32, usize), Record>> {
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let is_record = path.extension().is_some_and(|extension| extension == "json");
            if !is_record || path.file_name().is_some_and(|name| name == HEADER) {
                continue;
            }
            if let Some(record) = read::<Record>(&path)?.filter(|record| record.plan == plan) {
                records.insert((record.repetition, record.row), record);
            }
        }
        Ok(records)
    }
}

const HEADER: &str = "session.json";

/// `None`: it is truncated.
fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    Ok(serde_json::from_slice(&fs::read(path)?).ok())
}

/// Written to a temporary file and renamed, hence atomic.
fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let beside = path.with_extension("part");
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    let mut file = File::create(&beside)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(repetition: u32, row: usize) -> Record {
        Record {
            plan: "plan".into(),
            repetition,
            row,
            label: "a row".into(),
            at: "2026-11-21T08:00:00Z".into(),
            commands: vec!["lunette serve".into()],
            outcome: Outcome::Failed("no reason".into()),
        }
    }

    #[test]
    fn runs_are_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let raw = RawDirectory::open(directory.path()).unwrap();
        assert_eq!(raw.header().unwrap(), None);
        let header = Header { plan: "plan".into(), started: "now".into(), commands: vec![], facts: vec![] };
        raw.set_header(&header).unwrap();
        assert_eq!(raw.header().unwrap(), Some(header));
        raw.add(&record(1, 0)).unwrap();
        raw.add(&record(2, 7)).unwrap();
        let records = RawDirectory::open(directory.path()).unwrap().records("plan").unwrap();
        assert_eq!(records.into_values().collect::<Vec<_>>(), [record(1, 0), record(2, 7)]);
        assert!(raw.records("another plan").unwrap().is_empty());
    }

    #[test]
    fn a_torn_file_is_as_if_it_were_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let raw = RawDirectory::open(directory.path()).unwrap();
        raw.add(&record(1, 0)).unwrap();
        raw.add(&record(1, 1)).unwrap();
        let torn = raw.path.join("001-00001.json");
        let text = fs::read(&torn).unwrap();
        for length in 0..text.len() - 1 {
            fs::write(&torn, &text[..length]).unwrap();
            let found: Vec<(u32, usize)> = raw.records("plan").unwrap().into_keys().collect();
            assert_eq!(found, [(1, 0)], "{length} bytes are left");
        }
        fs::write(&torn, b"\xff\x00").unwrap();
        assert_eq!(raw.records("plan").unwrap().len(), 1);
    }
}
