//! The output of a report: a page, and the same tables as Markdown and as CSV.

mod charts;
mod cores;
mod csv;
mod markdown;
mod page;
mod table;

use super::Report;
use std::fs;
use std::io;
use std::path::Path;

/// Writes `index.html`, `report.md` and `results.csv`, each atomically.
pub(super) fn write(report: &Report<'_>, directory: &Path) -> io::Result<()> {
    for (name, text) in [
        ("index.html", page::page(report)),
        ("report.md", markdown::markdown(report)),
        ("results.csv", csv::csv(report)),
    ] {
        let beside = directory.join(format!("{name}.part"));
        fs::write(&beside, text)?;
        fs::rename(&beside, directory.join(name))?;
    }
    Ok(())
}
