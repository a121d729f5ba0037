//! Why a store did not open.

use std::fmt;

/// A store that did not open: which one, what is wrong, and how to fix it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenError {
    /// The path, or the kind of a store that has none.
    pub what: String,
    /// What is wrong.
    pub problem: String,
    /// How to fix it.
    pub remedy: String,
}

impl OpenError {
    pub(crate) fn new(
        what: impl fmt::Display,
        problem: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> OpenError {
        OpenError { what: what.to_string(), problem: problem.to_string(), remedy: remedy.to_string() }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.problem, self.remedy)
    }
}

impl std::error::Error for OpenError {}
