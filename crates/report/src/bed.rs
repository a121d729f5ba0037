//! What starts targets and measures them.

use super::matrix::Row;
use bench::job::Job;
use bench::result::{RunResult, Sample};
use serde::{Deserialize, Serialize};

/// Starts targets and measures them. The real one is [`crate::ProcessBed`]; tests make results up.
pub trait Bed {
    /// Checks that all rows can run, installs what they need, and returns what a reader must know about that.
    ///
    /// # Errors
    /// Everything that prevents it, each with its fix.
    fn prepare(&mut self, rows: &[Row]) -> Result<Vec<Fact>, Vec<String>>;

    /// Starts what the row measures, runs the job on it, and ends it. `observe` is shown each sample.
    ///
    /// # Errors
    /// Why there is no result.
    fn measure(&mut self, row: &Row, job: &Job, observe: &mut dyn FnMut(&Sample))
    -> Result<Measured, String>;
}

/// A result and how it came about.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// What was measured.
    pub result: RunResult,
    /// The commands that started the targets, and the one that measures the same again.
    pub commands: Vec<String>,
}

/// Something that a reader of the report must know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fact {
    /// What it is about.
    pub name: String,
    /// What holds.
    pub value: String,
}

impl Fact {
    /// `name: value`.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Fact {
        Fact { name: name.into(), value: value.into() }
    }
}
