//! Checks of the tree itself.

mod cycles;
mod links;

use crate::command::{Result, command, output, root};
use std::fs;

/// A longer file hides two.
const FILE_LINES_MAX: usize = 800;
/// A longer function does several things.
const FUNCTION_LINES_MAX: usize = 70;
/// A structure with more must document why its fields belong in one value.
const FIELDS_MAX: usize = 15;
/// A longer page is too long.
const ARCHITECTURE_LINES_MAX: usize = 150;
/// Documents that must exist.
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

/// Modules in layers, lowest first: a module imports only from its own layer and from earlier ones. Modules
/// that depend on each other are one entry.
const LAYERS: [(&str, &[&[&str]]); 3] = [
    (
        "crates/engine/src",
        &[
            &[
                "balance",
                "counters",
                "events",
                "ledger",
                "limits",
                "logins",
                "patience",
                "ports",
                "registry",
                "slots",
                "state",
                "this_machine",
            ],
            &["guid", "origin", "readings"],
            &["meters", "gateway_handle"],
            &["served access"],
            &["transport"],
            &["core housekeeper message shared stores units"],
            &["changes", "gateways", "sessions"],
            &["daemon"],
            &["world"],
        ],
    ),
    (
        "crates/proto/src",
        &[&["time"], &["services"], &["stream", "message"], &["iscsi", "iwarp"], &["iser", "srp", "aoe"]],
    ),
    ("crates/scsi/src", &[&["vocabulary"], &["state"], &["commands"], &["server"]]),
];

/// Checks every tracked file; all faults are reported at once.
pub(crate) fn run() -> Result {
    let mut faults: Vec<String> = DOCUMENTS
        .iter()
        .filter(|name| !root().join(name).is_file())
        .map(|name| format!("{name}: missing"))
        .collect();
    let tracked = output(command("git").args(["ls-files"]))?;
    // Files deleted in the working tree, and binary files, need no check.
    let texts =
        || tracked.lines().filter_map(|name| Some((name, fs::read_to_string(root().join(name)).ok()?)));
    let sources: Vec<(&str, String)> = texts().filter(|(name, _)| name.ends_with(".rs")).collect();
    faults.extend(cycles::too_large(&sources));
    let pages: Vec<(&str, String)> = texts().filter(|(name, _)| name.ends_with(".md")).collect();
    faults.extend(links::broken(&pages, &tracked.lines().collect::<Vec<_>>()));
    let files: Vec<String> = texts().map(|(name, _)| name.to_owned()).collect();
    for (name, text) in texts() {
        faults.extend(faults_of(name, &text));
        for (directory, layers) in LAYERS {
            faults.extend(imports_from_above(name, &text, directory, layers));
        }
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
    if name.ends_with(".rs") {
        let long = functions(text).into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        faults.extend(long.map(|(number, lines)| {
            format!("{name}:{number}: a function of {lines} lines, more than {FUNCTION_LINES_MAX}")
        }));
        let wide =
            structures(text).into_iter().filter(|(_, fields, is_argued)| *fields > FIELDS_MAX && !is_argued);
        faults.extend(wide.map(|(number, fields, _)| {
            format!("{name}:{number}: {fields} fields, more than {FIELDS_MAX}: say in a line `/// Its fields ...` why they are one value")
        }));
    }
    let mut is_within = false;
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{name}:{}", number + 1);
        let code = line.trim_start();
        if let Some(fence) = code.strip_prefix("//! ```").or_else(|| code.strip_prefix("/// ```")) {
            is_within = !is_within;
            if is_within && fence != "text" {
                faults.push(format!("{}: an example that no test runs", place()));
            }
        }
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

/// The functions of a formatted file: the first line of each, and its length.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let (mut begun, mut found) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let head = code.split(" fn ").next().unwrap_or_default();
        let is_head = |word: &str| {
            word.starts_with("pub") || word.ends_with(')') || ["const", "async", "unsafe"].contains(&word)
        };
        let is_function = code.starts_with("fn ") || code.contains(" fn ") && head.split(' ').all(is_head);
        if is_function && !code.ends_with(['}', ';']) {
            begun.push((indent, number));
        } else if begun.last().is_some_and(|(own, _)| *own == indent) {
            // A function without a body ends with its signature.
            let has_ended = code == "}" || code.starts_with(')') && code.ends_with(';');
            if let Some((_, from)) = begun.pop_if(|_| has_ended).filter(|_| code == "}") {
                found.push((from + 1, number - from + 1));
            }
        }
    }
    found
}

/// The structures of a formatted file: the first line of each, its number of fields, and whether a line of
/// its documentation justifies them, or a foreign library defines its layout.
fn structures(text: &str) -> Vec<(usize, usize, bool)> {
    let mut found = Vec::new();
    let (mut is_argued, mut open) = (false, None::<(usize, usize, usize, bool)>);
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if let Some((from, own, fields, argued)) = &mut open {
            // The lines of a type broken over several lines are indented further.
            *fields +=
                usize::from(indent == *own + 4 && code.contains(": ") && !code.starts_with(['/', '#']));
            if code == "}" && indent == *own {
                found.push((*from, *fields, *argued));
                open = None;
            }
        } else if code.ends_with('{') && code.split(' ').take(2).any(|word| word == "struct") {
            open = Some((number + 1, indent, 0, is_argued));
        }
        let is_above = code.starts_with("//") || code.starts_with('#');
        is_argued = is_above
            && (is_argued
                || code.trim_start_matches('/').starts_with(" Its fields ")
                || code == "#[repr(C)]");
    }
    found
}

/// The imports of a file in `directory` from higher layers, or that do not show their layer. Tests may import
/// anything.
fn imports_from_above(name: &str, text: &str, directory: &str, layers: &[&[&str]]) -> Vec<String> {
    let Some(path) = name.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/')) else {
        return Vec::new();
    };
    let modules: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    let is_of = |entry: &str, module: &str| entry.split(' ').any(|one| one == module);
    let layer_of =
        |module: &str| layers.iter().position(|layer| layer.iter().any(|entry| is_of(entry, module)));
    let are_one = |module: &str| {
        layers.concat().into_iter().any(|entry| is_of(entry, module) && is_of(entry, modules[0]))
    };
    let Some(own) = layer_of(modules[0]) else { return Vec::new() };
    if modules.contains(&"tests") {
        return Vec::new();
    }
    let tested = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let root = "super::".repeat(modules.len());
    let mut faults = Vec::new();
    for (number, line) in tested.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let absolute = code.split("crate::").skip(1);
        for import in absolute.chain(code.split(&root).skip(1)) {
            let module: String = import.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            match layer_of(&module) {
                Some(layer) if layer < own || are_one(&module) => {}
                Some(_) => faults.push(format!(
                    "{name}:{}: {} may not import from {module}, which is not in a layer below it",
                    number + 1,
                    modules[0]
                )),
                None => faults.push(format!(
                    "{name}:{}: name the module that this is from: crate::{}",
                    number + 1,
                    layers[..=own].concat().join(", crate::")
                )),
            }
        }
    }
    faults
}

/// The source files that a document names, by the end of their path, and that do not exist.
fn files_not_there(name: &str, text: &str, files: &[String]) -> Vec<String> {
    // Every second part of a line is between backquotes.
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

// Split, so that this file passes its own check.
const LEFTOVERS: [[&str; 2]; 3] = [["todo", "!("], ["TO", "DO"], ["FIX", "ME"]];
const HOMES: [[&str; 2]; 3] = [["/ho", "me/"], ["/ro", "ot/"], ["/Us", "ers/"]];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_as_long_as_its_lines() {
        for (lines, faults) in [(FUNCTION_LINES_MAX, 0), (FUNCTION_LINES_MAX + 1, 1)] {
            let body = "        self.b();\n".repeat(lines - 4);
            let text = format!(
                "trait A {{\n    fn b(\n        &self,\n    );\n\n    pub(in crate::a) fn a(\n        &self,\n    ) {{\n{body}    }}\n}}\n"
            );
            assert_eq!(functions(&text), [(6, lines)]);
            assert_eq!(faults_of("crates/a/src/b.rs", &text).len(), faults);
        }
    }

    #[test]
    fn a_structure_of_many_fields_says_why() {
        let fields = |count: usize| "    /// One: it.\n    pub a: Vec<\n        u8,\n    >,\n".repeat(count);
        let wide = |above: &str, count| format!("{above}pub(crate) struct A {{\n{}}}\n", fields(count));
        for (above, count, faults) in [
            ("", FIELDS_MAX, 0),
            ("/// An a.\n", FIELDS_MAX + 1, 1),
            ("/// An a.\n/// Its fields are one each for a key.\n#[derive(Debug)]\n", FIELDS_MAX + 1, 0),
            ("#[repr(C)]\n", FIELDS_MAX + 1, 0),
            ("/// Its fields are another's.\nconst B: u8 = 1;\n", FIELDS_MAX + 1, 1),
        ] {
            let text = wide(above, count);
            assert_eq!(structures(&text).iter().map(|(_, fields, _)| *fields).collect::<Vec<_>>(), [count]);
            assert_eq!(faults_of("crates/a/src/b.rs", &text).len(), faults, "{above}");
        }
    }

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
        let example = "/// ```\n/// 1 + 1\n/// ```\n/// ```text\n/// a frame\n/// ```\n";
        assert_eq!(faults_of("a.rs", example), ["a.rs:1: an example that no test runs"]);
        let page = "\n".repeat(ARCHITECTURE_LINES_MAX + 1);
        assert_eq!(faults_of("ARCHITECTURE.md", &page).len(), 1);
    }

    #[test]
    fn a_layer_imports_from_those_below_it_alone() {
        let check = |name: &str, text: &str| {
            imports_from_above(
                name,
                text,
                "crates/a/src",
                &[&["low"], &["mid", "beside", "one other"], &["high"]],
            )
        };
        for fine in
            ["use crate::low::x;", "use crate::mid::y;\nuse super::z;", "// crate::high", "use wire::high;"]
        {
            assert_eq!(check("crates/a/src/mid/b.rs", fine), [""; 0], "{fine}");
        }
        assert_eq!(
            check("crates/a/src/mid/b.rs", "use crate::low::x;\nuse crate::high::y;"),
            ["crates/a/src/mid/b.rs:2: mid may not import from high, which is not in a layer below it"]
        );
        for above in [
            "let x = crate::high::y();",
            "use crate::beside::x;",
            "use super::super::high::x;",
            "use crate::{high, low};",
        ] {
            assert_eq!(check("crates/a/src/mid/b.rs", above).len(), 1, "{above}");
        }
        assert_eq!(check("crates/a/src/mid.rs", "use super::high::x;").len(), 1);
        assert_eq!(check("crates/a/src/one/b.rs", "use crate::other::x;\nuse crate::low::y;"), [""; 0]);
        assert_eq!(check("crates/a/src/one/b.rs", "use crate::mid::x;").len(), 1);
        assert_eq!(check("crates/a/src/mid/b.rs", "use crate::x;").len(), 1, "which layer?");
        let tests = "use crate::low::x;\n#[cfg(test)]\nmod tests {\n    use crate::high::y;\n}";
        assert_eq!(check("crates/a/src/mid/b.rs", tests), [""; 0]);
        for elsewhere in [
            "crates/a/src/mid/tests.rs",
            "crates/a/src/mid/tests/b.rs",
            "crates/a/src/lib.rs",
            "crates/b/src/mid/b.rs",
        ] {
            assert_eq!(check(elsewhere, "use crate::high::x;"), [""; 0], "{elsewhere}");
        }
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
