//! The tables of a report as Markdown.

use super::table::{self, Table};
use crate::Report;
use std::fmt::Write as _;

/// The whole report without its charts.
pub(super) fn markdown(report: &Report<'_>) -> String {
    let mut out = format!("# {}\n", escape(&report.plan.title));
    paragraph(&mut out, &report.plan.note);
    if report.plan.quick {
        paragraph(&mut out, "**A quick try: runs of a fraction of a second. Not for comparison.**");
    }
    if report.progress.0 < report.progress.1 {
        let text =
            format!("**Incomplete: {} of {} runs have a result.**", report.progress.0, report.progress.1);
        paragraph(&mut out, &text);
    }
    paragraph(
        &mut out,
        "Figures are means of all repetitions ± half the 95 % confidence interval; MB/s are millions of bytes; `max` is \
         the largest of all repetitions. Figures of ceiling are ratios to the do-nothing responder in the same \
         repetition: more is better for IOPS and MB/s, less for latency and CPU; a ceiling also spends CPU, on the transport.",
    );
    if let Some(overview) = table::overview(report) {
        out.push_str("\n## Overview\n");
        write_table(&mut out, &overview);
    }
    for section in &report.sections {
        let _ = writeln!(out, "\n## {}", escape(&section.matrix.title));
        paragraph(&mut out, &section.matrix.note);
        paragraph(&mut out, &format!("All rows: {}.", table::constants(section)));
        write_table(&mut out, &table::section(section));
    }
    let failures = table::failures(report);
    if !failures.is_empty() {
        out.push_str("\n## Failures\n\n");
        failures.iter().for_each(|line| out.push_str(&format!("- {}\n", escape(line))));
    }
    out.push_str("\n## Facts of the run\n");
    for table in [table::targets(report), table::schedulings(report), table::facts(report)] {
        write_table(&mut out, &table);
    }
    out
}

fn paragraph(out: &mut String, text: &str) {
    if !text.trim().is_empty() {
        let _ = writeln!(out, "\n{}", text.trim());
    }
}

fn write_table(out: &mut String, table: &Table) {
    let line =
        |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
    out.push('\n');
    out.push_str(&line(&mut table.columns.iter().map(|column| escape(&column.title))));
    let rule = |figures| if figures { "---:" } else { "---" };
    out.push_str(&line(&mut table.columns.iter().map(|column| rule(column.figures).into())));
    for cells in &table.lines {
        out.push_str(&line(&mut cells.iter().map(|cell| escape(cell))));
    }
}

/// Text on one line, with markup escaped.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '*' | '_' | '`' | '<' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_cells() {
        assert_eq!(escape("a|b_c\n<i>"), "a\\|b\\_c \\<i>");
    }
}
