//! Checks of the tree itself.

use crate::command::{Result, command, output, root};
use std::fs;

/// A file that is longer hides two.
const FILE_LINES_MAX: usize = 800;
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
    for name in output(command("git").args(["ls-files"]))?.lines() {
        // What is tracked but deleted in the working tree, or is no text, has nothing to check.
        if let Ok(text) = fs::read_to_string(root().join(name)) {
            faults.extend(faults_of(name, &text));
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
    }
}
