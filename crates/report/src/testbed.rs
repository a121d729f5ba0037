//! What starts targets and measures them.

use super::matrix::Row;
use bench::job::Job;
use bench::result::{RunResult, Sample};
use serde::{Deserialize, Serialize};

/// Starts targets and measures them. The real one is [`crate::ProcessTestbed`]; tests fake results.
pub trait Testbed {
    /// Checks that all rows can run, installs what they need, and returns facts about that for the reader.
    ///
    /// # Errors
    /// Everything that prevents it, each with its fix.
    fn prepare(&mut self, rows: &[Row]) -> Result<Vec<Fact>, Vec<String>>;

    /// Starts the row's target, runs the job on it, and stops it. `observe` gets each sample.
    ///
    /// # Errors
    /// Why there is no result.
    fn measure(&mut self, row: &Row, job: &Job, observe: &mut dyn FnMut(&Sample))
    -> Result<Measured, String>;
}

/// A result, and how it was obtained.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// What was measured.
    pub result: RunResult,
    /// The commands that started the targets, and the one that repeats the measurement.
    pub commands: Vec<String>,
}

/// A fact that a reader of the report must know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fact {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Fact {
    /// `name: value`.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Fact {
        Fact { name: name.into(), value: value.into() }
    }
}
