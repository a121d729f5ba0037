//! The statements of docs/conformance.md: tests that are skipped, that are wrong, and that need to write.

use std::collections::BTreeSet;

/// The variant in which nothing can be written.
pub const READ_ONLY: &str = "read-only";

const SKIPPED: &str = "## What is skipped";
const WRONG: &str = "## Tests that are wrong";
const WRITING: &str = "## What a read-only unit refuses";

/// The outcome of a test according to the document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// It passes.
    Passes,
    /// It is skipped.
    IsSkipped,
    /// It is wrong, and fails.
    IsWrong {
        /// At these assertions (`file.c:line`) and no others.
        assertions: BTreeSet<String>,
        /// The outcome depends on timing.
        may_pass: bool,
    },
    /// It writes to a unit that cannot be written, and fails.
    Writes,
}

/// The statement about a test (`Suite.Test`) in a variant when it runs in this way.
pub fn claim(variant: &str, way: &str, test: &str) -> Claim {
    let suite = test.split('.').next();
    if variant == READ_ONLY && rows(WRITING).any(|row| row.name == test || Some(row.name) == suite) {
        return Claim::Writes;
    }
    let argued = |heading| rows(heading).find(|row| row.name == test && row.holds_in(variant, way));
    if argued(SKIPPED).is_some() {
        return Claim::IsSkipped;
    }
    argued(WRONG).map_or(Claim::Passes, |row| Claim::IsWrong {
        assertions: quoted(row.cells[1]).map(str::to_owned).collect(),
        may_pass: row.cells[1].ends_with("not always"),
    })
}

/// Errors in the tables themselves: rows about tests or variants that do not exist.
pub fn faults(tests: &BTreeSet<String>) -> Vec<String> {
    let known: Vec<&str> = rows("## Variants").flat_map(|row| row.name.split(", ")).collect();
    let is_known =
        |name: &str| tests.contains(name) || tests.iter().any(|test| test.split('.').next() == Some(name));
    let mut faults = Vec::new();
    for row in [SKIPPED, WRONG, WRITING].into_iter().flat_map(rows) {
        if !is_known(row.name) {
            faults.push(format!("docs/conformance.md: there is no test {}", row.name));
        }
    }
    for row in [SKIPPED, WRONG].into_iter().flat_map(rows) {
        for name in row.variants().1.into_iter().filter(|name| !known.contains(name)) {
            faults.push(format!("docs/conformance.md: {}: there is no variant {name}", row.name));
        }
    }
    faults
}

/// A row of a table: its subject, and further cells.
struct Row {
    name: &'static str,
    cells: Vec<&'static str>,
}

impl Row {
    /// Whether the row's second cell excludes variants, and which ones it lists.
    fn variants(&self) -> (bool, Vec<&'static str>) {
        let list = self.cells[0].split(';').next().unwrap_or_default();
        let (is_all_but, list) = match list.strip_prefix("all") {
            Some(but) => (true, but.trim_start_matches(" but ")),
            None => (false, list),
        };
        (is_all_but, list.split(", ").filter(|name| !name.is_empty()).collect())
    }

    /// The cell may end with `; ` and the way in which the row applies.
    fn holds_in(&self, variant: &str, way: &str) -> bool {
        let (is_all_but, names) = self.variants();
        let only = self.cells[0].split("; ").nth(1);
        names.contains(&variant) != is_all_but && only.is_none_or(|only| only == way)
    }
}

/// The rows below this heading.
fn rows(heading: &str) -> impl Iterator<Item = Row> {
    let document = include_str!("../../../../docs/conformance.md");
    let (_, section) = document.split_once(heading).unwrap_or_else(|| panic!("no `{heading}`"));
    let section = section.split("\n## ").next().unwrap_or(section);
    let lines = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    lines.take_while(|line| line.starts_with('|')).map(|line| {
        let mut cells = line.trim_matches('|').split(" | ").map(str::trim);
        let name = cells.next().unwrap_or_default().trim_matches('`');
        let cells: Vec<&str> = cells.collect();
        assert!(cells.last().is_some_and(|argument| !argument.is_empty()), "no argument: {line}");
        Row { name, cells }
    })
}

/// Text between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn rows_hold_in_the_variants_that_they_name() {
    let row = |cell| Row { name: "A.B", cells: vec![cell, "why"] };
    assert!(row("all").holds_in("ram-512", "suite by suite"));
    assert!(row("all but thick, chap").holds_in("ram-512", "suite by suite"));
    assert!(!row("all but thick, chap").holds_in("chap", "suite by suite"));
    assert!(row("thick, chap").holds_in("chap", "suite by suite"));
    assert!(!row("thick, chap").holds_in("ram-512", "suite by suite"));
    assert!(row("all; in one process").holds_in("chap", "in one process"));
    assert!(!row("all; in one process").holds_in("chap", "suite by suite"));
}
