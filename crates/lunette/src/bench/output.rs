//! Where a result goes: to standard output, and to files that are open before the run.

use crate::{Failure, print, unprinted};
use bench::output::{csv::csv, human::human, json::json};
use bench::result::RunResult;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Stands for standard output.
const STDOUT: &str = "-";

/// The format of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Human,
    Json,
    Csv,
}

impl Form {
    fn of(self, result: &RunResult) -> String {
        match self {
            Form::Human => human(result),
            Form::Json => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                format!("{:#}\n", json(result, now))
            }
            Form::Csv => csv(result),
        }
    }
}

/// All destinations of a result.
pub(super) struct Outputs {
    stdout: Form,
    files: Vec<(Form, ResultFile)>,
}

impl Outputs {
    /// Opens the named files; one of the two formats may go to standard output.
    pub(super) fn open(json: Option<&Path>, csv: Option<&Path>) -> Result<Outputs, Failure> {
        let mut outputs = Outputs { stdout: Form::Human, files: Vec::new() };
        for (form, path) in [(Form::Json, json), (Form::Csv, csv)] {
            match path {
                Some(path) if path == Path::new(STDOUT) && outputs.stdout == Form::Human => {
                    outputs.stdout = form;
                }
                Some(path) if path == Path::new(STDOUT) => {
                    let text = "--json and --csv cannot both go to standard output; write one to a file, for example \
                    --csv=FILE";
                    return Err(Failure::wrong_input(text));
                }
                Some(path) => outputs.files.push((form, ResultFile::open(path)?)),
                None => {}
            }
        }
        Ok(outputs)
    }

    /// Writes the result to all of them, even if some fail.
    pub(super) fn write(self, result: &RunResult) -> Result<(), Failure> {
        let mut faults = Vec::new();
        for (form, file) in self.files {
            let path = file.path.clone();
            if let Err(error) = file.write(&form.of(result)) {
                faults.push(format!("{}: {error}: the result was not written", path.display()));
            }
        }
        if let Err(error) = print(&self.stdout.of(result)) {
            faults.push(unprinted(&error));
        }
        if faults.is_empty() { Ok(()) } else { Err(Failure::failed(faults.join("; "))) }
    }
}

/// A file for one format of the result. Its previous content stays until then.
struct ResultFile {
    path: PathBuf,
    file: File,
    /// It was created for this run, and is removed if there is no result.
    is_temporary: bool,
}

impl ResultFile {
    fn open(path: &Path) -> Result<ResultFile, Failure> {
        let is_temporary = !path.exists();
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(|error| {
                let text = format!(
                    "{}: {error}: the result could not be written there; name a file that can be written",
                    path.display()
                );
                Failure::wrong_input(text)
            })?;
        Ok(ResultFile { path: path.into(), file, is_temporary })
    }

    fn write(mut self, text: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.is_temporary = false;
        Ok(())
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        if self.is_temporary {
            // Nothing more can be done about it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
