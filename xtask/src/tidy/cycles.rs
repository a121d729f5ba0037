//! Import cycles: none of the files in one can be understood, tested or moved without the others.

use std::collections::{BTreeMap, BTreeSet};

/// The largest allowed import cycle of a crate, in files.
const CYCLE_MAX: usize = 10;
/// Directories with stricter limits; 1: no cycles.
const STRICTER: [(&str, usize); 4] = [
    ("crates/config/src", 1),
    ("crates/engine/src", 7),
    ("crates/engine/src/core", 1),
    ("crates/proto/src", 7),
];

/// A module's path in its crate.
type Module = Vec<String>;

/// The cycles among these files, by name and text, that are too large.
pub(super) fn too_large(texts: &[(&str, String)]) -> Vec<String> {
    let is_stricter = |directory: &str| STRICTER.iter().any(|(other, _)| *other == directory);
    let sources: BTreeSet<&str> = texts.iter().filter_map(|(name, _)| source_directory(name)).collect();
    let others = sources
        .into_iter()
        .filter(|directory| !is_stricter(directory))
        .map(|directory| (directory, CYCLE_MAX));
    STRICTER
        .into_iter()
        .chain(others)
        .flat_map(|(directory, most)| too_large_in(texts, directory, most))
        .collect()
}

/// The source directory of a file's crate.
fn source_directory(name: &str) -> Option<&str> {
    name.find("/src/").and_then(|at| name.get(..at + "/src".len()))
}

fn too_large_in(texts: &[(&str, String)], directory: &str, most: usize) -> Vec<String> {
    let source = directory.split_inclusive("/src").next().unwrap_or(directory);
    let modules: BTreeMap<Module, (&str, &str)> = texts
        .iter()
        .filter_map(|(name, text)| Some((module(name.strip_prefix(source)?)?, (*name, text.as_str()))))
        .collect();
    let imports: BTreeMap<&str, BTreeSet<&str>> =
        modules.iter().map(|(module, (name, text))| (*name, imports_of(module, text, &modules))).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|name| (*name, reached_from(name, &imports))).collect();
    let cycle = |name: &&str| -> Vec<&str> {
        let back = reached[*name].iter().filter(|other| reached[**other].contains(*name));
        back.copied()
            .filter(|other| {
                other.starts_with(&format!("{directory}/")) || *other == format!("{directory}.rs")
            })
            .collect()
    };
    let cycles: BTreeSet<Vec<&str>> = imports.keys().map(cycle).filter(|cycle| cycle.len() > most).collect();
    let described = |cycle: Vec<&str>| {
        format!("{directory}: {} files import each other in a cycle: {}", cycle.len(), cycle.join(", "))
    };
    cycles.into_iter().map(described).collect()
}

/// The module of a file in a crate's sources, unless it is a test.
fn module(path: &str) -> Option<Module> {
    let path = path.strip_prefix('/')?.strip_suffix(".rs")?;
    let module: Module = path.split('/').filter(|part| *part != "lib").map(str::to_owned).collect();
    (!module.iter().any(|part| part == "tests" || part == "main")).then_some(module)
}

/// All files that a file imports, directly or indirectly.
fn reached_from<'a>(from: &'a str, imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        open.extend(imports[name].iter().filter(|next| reached.insert(**next)));
    }
    reached
}

/// The files from which a module's file imports, or whose items it names.
fn imports_of<'a>(
    own: &Module,
    text: &str,
    modules: &BTreeMap<Module, (&'a str, &'a str)>,
) -> BTreeSet<&'a str> {
    paths(text)
        .iter()
        .filter_map(|path| resolve(own, path, modules))
        .filter(|module| module != own)
        .filter_map(|module| modules.get(&module).map(|(name, _)| *name))
        .collect()
}

/// The innermost of these modules that a path names, if any.
fn resolve(own: &Module, path: &[String], modules: &BTreeMap<Module, (&str, &str)>) -> Option<Module> {
    let mut rest = path.iter().peekable();
    let mut module = match path.first()?.as_str() {
        "crate" => Module::new(),
        _ => own.clone(),
    };
    let is_named = ["crate", "self", "super"].contains(&path[0].as_str());
    while let Some(step) = rest.next_if(|step| ["crate", "self", "super"].contains(&step.as_str())) {
        if step == "super" {
            module.pop();
        }
    }
    let start = module.len();
    for step in rest {
        module.push(step.clone());
        if !modules.contains_key(&module) {
            module.pop();
            break;
        }
    }
    (is_named || module.len() > start).then_some(module)
}

/// The paths that a file imports, and those that it names, from its crate or an enclosing module.
fn paths(text: &str) -> Vec<Vec<String>> {
    let code: String = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .map(|line| match line.split_once("pub(in ") {
            Some((before, rest)) => {
                format!("{before}{}", rest.split_once(')').map_or(rest, |(_, item)| item))
            }
            None => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n");
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let import = statement.lines().position(|line| {
            let line = line.trim_start();
            line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ")
        });
        let lines: Vec<&str> = statement.lines().collect();
        let (before, import) = lines.split_at(import.unwrap_or(lines.len()));
        let import = import.join(" ");
        if let Some((_, tree)) = import.split_once("use ") {
            paths.extend(expand(&tree.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        let before = before.join("\n");
        let words = before.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let named = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
        paths.extend(named.flat_map(expand));
    }
    paths
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let steps = |path: &str| -> Vec<String> {
        path.split("::").map(str::trim).filter(|step| !step.is_empty()).map(str::to_owned).collect()
    };
    let Some((before, group)) = tree.split_once('{') else {
        return vec![steps(tree.split(" as ").next().unwrap_or_default())];
    };
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let mut depth = 0;
    let parts = group.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let whole = |part: Vec<String>| steps(before).into_iter().chain(part).collect();
    parts.filter(|part| !part.trim().is_empty()).flat_map(|part| expand(part.trim())).map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_found_through_whatever_names_what() {
        let texts = |b: &str| {
            [
                ("crates/a/src/lib.rs", "mod a; mod b; mod c;".to_owned()),
                ("crates/a/src/a.rs", "use crate::{b::{B as X, Y}, c};".to_owned()),
                ("crates/a/src/b.rs", b.to_owned()),
                ("crates/a/src/b/d.rs", "use super::super::a::A;".to_owned()),
                ("crates/a/src/c.rs", "fn c() {}".to_owned()),
            ]
        };
        for back in [
            "use crate::a;",
            "use super::{a::A, c};",
            "fn f() -> crate::a::A {}",
            "mod d;\nuse d::D;",
            "pub(crate) use super::a::{\n    A,\n};",
        ] {
            let found = too_large_in(&texts(back), "crates/a/src", 1);
            assert_eq!(found.len(), 1, "{back}: {found:?}");
            assert!(found[0].contains("crates/a/src/a.rs, crates/a/src/b.rs"), "{found:?}");
            assert!(too_large_in(&texts(back), "crates/a/src", 3).is_empty(), "{back}");
        }
        for none in [
            "use crate::c::C;",
            "// crate::a",
            "#[cfg(test)]\nmod tests {\n    use crate::a;\n}",
            "use other::a;",
            "pub(in crate::a) fn f() {}",
        ] {
            assert_eq!(too_large_in(&texts(none), "crates/a/src", 1), [""; 0], "{none}");
        }
    }

    #[test]
    fn every_crate_has_a_largest_circle() {
        let ring = |files: usize| -> Vec<(String, String)> {
            let next = |number: usize| format!("use crate::m{};", (number + 1) % files);
            (0..files).map(|number| (format!("crates/new/src/m{number}.rs"), next(number))).collect()
        };
        for (files, faults) in [(CYCLE_MAX, 0), (CYCLE_MAX + 1, 1)] {
            let ring = ring(files);
            let texts: Vec<(&str, String)> =
                ring.iter().map(|(name, text)| (name.as_str(), text.clone())).collect();
            assert_eq!(too_large(&texts).len(), faults, "{files} files");
        }
    }

    #[test]
    fn a_directory_has_the_cycles_of_its_own_files() {
        let texts = [
            ("crates/a/src/a.rs", "use crate::b::c::C;".to_owned()),
            ("crates/a/src/b/c.rs", "use crate::a::A;".to_owned()),
            ("crates/a/src/b.rs", String::new()),
        ];
        assert_eq!(too_large_in(&texts, "crates/a/src/b", 1), [""; 0]);
        assert_eq!(too_large_in(&texts, "crates/a/src", 1).len(), 1);
    }
}
