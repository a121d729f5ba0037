//! Checks of the tree itself.

use crate::command::{Result, command, output, root};
use std::fs;

/// A file that is longer hides two.
const FILE_LINES_MAX: usize = 800;
/// A page that is longer is none.
const ARCHITECTURE_LINES_MAX: usize = 150;
/// Documents that the repository promises.
const DOCUMENTS: [&str; 8] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "STYLE.md",
    "deny.toml",
    "docs/conformance.md",
];

/// Checks every tracked file; all faults are named at once.
pub(crate) fn run() -> Result {
    let mut faults: Vec<String> = DOCUMENTS
        .iter()
        .filter(|name| !root().join(name).is_file())
        .map(|name| format!("{name}: missing"))
        .collect();
    let tracked = output(command("git").args(["ls-files"]))?;
    // What is deleted in the working tree, or is no text, has nothing to check.
    let texts =
        || tracked.lines().filter_map(|name| Some((name, fs::read_to_string(root().join(name)).ok()?)));
    let files: Vec<String> = texts().map(|(name, _)| name.to_owned()).collect();
    for (name, text) in texts() {
        faults.extend(faults_of(name, &text));
        if name == "ARCHITECTURE.md" || name.starts_with("docs/design/") {
            faults.extend(files_not_there(name, &text, &files));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn faults_of(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if name.ends_with(".rs") && lines > FILE_LINES_MAX {
        faults.push(format!("{name}: {lines} lines, more than {FILE_LINES_MAX}"));
    }
    if name == "ARCHITECTURE.md" && lines > ARCHITECTURE_LINES_MAX {
        faults.push(format!("{name}: {lines} lines, more than {ARCHITECTURE_LINES_MAX}"));
    }
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{name}:{}", number + 1);
        if name.ends_with(".rs") && LEFTOVERS.iter().any(|leftover| line.contains(&leftover.concat())) {
            faults.push(format!("{}: unfinished", place()));
        }
        if HOMES.iter().any(|home| line.contains(&home.concat())) {
            faults.push(format!("{}: a path of somebody's own machine", place()));
        }
        if line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ") {
            faults.push(format!("{}: an unfinished merge", place()));
        }
    }
    faults
}

/// The source files that a document names, by the end of their path, and that are not there.
fn files_not_there(name: &str, text: &str, files: &[String]) -> Vec<String> {
    // Between two backquotes is every second part of a line.
    let quoted = text.lines().enumerate().flat_map(|(number, line)| {
        line.split('`')
            .skip(1)
            .step_by(2)
            .filter(|word| word.ends_with(".rs"))
            .map(move |word| (number + 1, word))
    });
    let is_there = |word: &str| files.iter().any(|file| file == word || file.ends_with(&format!("/{word}")));
    quoted
        .filter(|(_, word)| !is_there(word))
        .map(|(number, word)| format!("{name}:{number}: there is no {word}"))
        .collect()
}

// In two parts, so that this file passes its own check.
const LEFTOVERS: [[&str; 2]; 3] = [["todo", "!("], ["TO", "DO"], ["FIX", "ME"]];
const HOMES: [[&str; 2]; 3] = [["/ho", "me/"], ["/ro", "ot/"], ["/Us", "ers/"]];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_found_with_their_place() {
        let long = "\n".repeat(FILE_LINES_MAX + 1);
        assert_eq!(faults_of("a.rs", &long).len(), 1);
        assert!(faults_of("a.md", &long).is_empty());
        assert_eq!(faults_of("a.rs", "fine\nto do\n").len(), 0);
        assert_eq!(faults_of("a.rs", &format!("fine\n{}\n", LEFTOVERS[1].concat())), ["a.rs:2: unfinished"]);
        assert_eq!(
            faults_of("a.md", &format!("{}me", HOMES[0].concat())),
            ["a.md:1: a path of somebody's own machine"]
        );
        let page = "\n".repeat(ARCHITECTURE_LINES_MAX + 1);
        assert_eq!(faults_of("ARCHITECTURE.md", &page).len(), 1);
    }

    #[test]
    fn files_that_a_document_names_are_there() {
        let files = ["crates/a/src/b.rs".to_owned()];
        assert!(
            files_not_there("d.md", "`src/b.rs`, `b.rs` and `x` but\n`crates/a/src/b.rs`", &files).is_empty()
        );
        assert_eq!(files_not_there("d.md", "one\n`a/b.rs` or `rc/b.rs`", &files).len(), 2);
    }
}
