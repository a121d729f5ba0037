//! Errors in a configuration: all at once, each with its location and how to fix it.

use super::place::Place;
use super::redact::redact_all;
use std::fmt;
use std::path::{Path, PathBuf};

/// A fault in a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The file, if the fault is in a file.
    pub file: Option<PathBuf>,
    /// Line and column, both from 1.
    pub position: Option<(usize, usize)>,
    /// The option, such as `target[0].luns[2]` or `--lun`; empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

impl Problem {
    /// A fault whose text quotes the file or the command line, with possible secrets redacted.
    fn quoting(
        file: Option<PathBuf>,
        position: Option<(usize, usize)>,
        path: &str,
        what: &str,
        fix: &str,
    ) -> Problem {
        let (path, what, fix) = (redact_all(path), redact_all(what), redact_all(fix));
        Problem { file, position, path, what, fix }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some((line, column)) = self.position {
                write!(f, "{line}:{column}:")?;
            }
            write!(f, " ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}; {}", self.what, self.fix)
    }
}

/// All faults of a configuration, at least one, sorted by position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The faults.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// A single fault that concerns a whole file.
    pub(super) fn of_file(file: &Path, what: String, fix: &str) -> Problems {
        let file = Some(file.to_path_buf());
        Problems(vec![Problem { file, position: None, path: String::new(), what, fix: fix.into() }])
    }

    /// A single fault, at a place in a file or on the command line.
    pub(super) fn of_place(file: Option<(&Path, &str)>, place: &Place, fault: &Fault) -> Problems {
        Problems(vec![Collector::new(file).problem(place, fault)])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// What is wrong with a value and how to fix it, before its location is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

impl Fault {
    /// A fault.
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Fault {
        Fault { what: what.into(), fix: fix.into() }
    }
}

/// Collects faults while a document is read and verified.
pub struct Collector<'a> {
    file: Option<(&'a Path, &'a str)>,
    found: Vec<(Place, Fault)>,
}

impl<'a> Collector<'a> {
    /// `file`: path and text, if the input (or part of it) comes from a file.
    pub fn new(file: Option<(&'a Path, &'a str)>) -> Collector<'a> {
        Collector { file, found: Vec::new() }
    }

    /// Records a fault.
    pub fn add(&mut self, place: &Place, fault: Fault) {
        self.found.push((place.clone(), fault));
    }

    /// The value; `None`: its fault was recorded.
    pub(super) fn check<T>(&mut self, place: &Place, result: Result<T, Fault>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(fault) => {
                self.add(place, fault);
                None
            }
        }
    }

    /// Whether a fault was found at exactly this place.
    pub(super) fn has(&self, place: &Place) -> bool {
        self.found.iter().any(|(at, _)| at == place)
    }

    /// Describes a place, for a fault that concerns two places.
    pub(super) fn locate(&self, place: &Place) -> String {
        match self.position(place) {
            Some((line, _)) => format!("{} (line {line})", place.path),
            None => place.path.clone(),
        }
    }

    /// The file, if there is one.
    pub(super) fn path(&self) -> Option<&'a Path> {
        self.file.map(|(path, _)| path)
    }

    /// What was found, sorted by position.
    pub(super) fn warnings(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|(place, _)| place.offset);
        self.found.iter().map(|(place, fault)| self.problem(place, fault)).collect()
    }

    /// The value if there are no faults.
    ///
    /// # Errors
    /// All faults, sorted by position.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, Problems> {
        if let (Some(value), true) = (value, self.found.is_empty()) {
            return Ok(value);
        }
        self.found.sort_by_key(|(place, _)| place.offset);
        let problems = self.found.iter().map(|(place, fault)| self.problem(place, fault)).collect();
        Err(Problems(problems))
    }

    fn problem(&self, place: &Place, fault: &Fault) -> Problem {
        let file = place.offset.and(self.file).map(|(path, _)| path.to_path_buf());
        let position = self.position(place);
        Problem::quoting(file, position, &place.path, &fault.what, &fault.fix)
    }

    fn position(&self, place: &Place) -> Option<(usize, usize)> {
        let (_, text) = self.file?;
        let before = text.get(..place.offset?)?;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        Some((line, column))
    }
}

/// "did you mean" for a word that is not among `known`, or the list of them.
pub fn suggest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let nearest = known.iter().map(|k| (strsim::damerau_levenshtein(word, k), *k)).min();
    match nearest {
        Some((distance, name)) if distance <= 1 + name.len() / 3 => format!("did you mean `{name}`?"),
        Some(_) if known.len() <= 24 => format!("known here: {}", known.join(", ")),
        Some(_) | None => "remove it".into(),
    }
}
