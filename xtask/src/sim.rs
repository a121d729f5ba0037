//! `cargo xtask sim`: whole cores in a world that a seed decides.

use crate::command::{DIST, Result, cargo, command, describe, output, root, succeed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this seed alone, and show what happened before it failed.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed, leave this out: what --shrink has found not to be needed.
    #[arg(long)]
    cut: Option<String>,
    /// With --seed, which fails: find how little it needs to fail, in two minutes at most.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Run so many minutes, from a fresh seed on.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// With --seed, print all that happens.
    #[arg(long)]
    trace: bool,
    /// Break the target in each of the ways of `crates/sim/mutants`, in a copy, and show that it is found.
    #[arg(long)]
    mutants: bool,
    /// With --mutants, only those whose names contain this.
    #[arg(long)]
    only: Option<String>,
}

/// How long a mutant may stay unfound: two minutes on two cores, in minutes of processor time.
const MUTANT_MINUTES: &str = "4";

/// The line of a patch that names the worlds in which it can be found, if those are few.
const WORLDS: &str = "Worlds: ";

impl Options {
    /// For so long, from a fresh seed on.
    pub(crate) fn of_minutes(minutes: f64) -> Options {
        Options { seed: None, cut: None, shrink: false, minutes, trace: false, mutants: false, only: None }
    }
}

/// Builds the simulator as what is shipped is built, and runs it.
pub(crate) fn run(options: &Options) -> Result {
    if options.mutants {
        return mutants(options.only.as_deref().unwrap_or_default());
    }
    let mut run = cargo();
    run.args([
        "run",
        "--profile",
        DIST,
        "--quiet",
        "--package",
        "sim",
        "--",
        "--minutes",
        &options.minutes.to_string(),
    ]);
    if let Some(seed) = options.seed {
        run.args(["--seed", &seed.to_string()]);
    }
    if let Some(cut) = &options.cut {
        run.args(["--cut", cut]);
    }
    if options.shrink {
        run.arg("--shrink");
    }
    if options.trace {
        run.arg("--trace");
    }
    succeed(&mut run)
}

/// Applies one patch after the other to a copy of what is committed or staged, and runs that from seed 0 on, while the next one is
/// built.
fn mutants(only: &str) -> Result {
    let base = root().join("target/mutants");
    let tree = base.join("tree");
    copy(&base, &tree)?;
    let (mut unfound, mut running) = (Vec::new(), None);
    for patch in patches(only)? {
        apply(&tree, &patch, &[])?;
        let search = Search::begin(&base, &tree, &patch);
        apply(&tree, &patch, &["--reverse"])?;
        unfound.extend(end(running.take()));
        match search {
            Ok(search) => running = Some(search),
            Err(error) => unfound.push(error),
        }
    }
    unfound.extend(end(running));
    if unfound.is_empty() { Ok(()) } else { Err(format!("not found: {}", unfound.join(", "))) }
}

/// The name of what was not found.
fn end(search: Option<Search>) -> Option<String> {
    search.and_then(Search::end)
}

/// Brings the copy up to date, without touching what has not changed since: that need not be built again.
fn copy(base: &Path, tree: &Path) -> Result {
    fs::create_dir_all(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    let name = output(command("git").arg("write-tree"))?;
    let mut read = command("git");
    read.env("GIT_INDEX_FILE", base.join("index"));
    succeed(read.arg("--work-tree").arg(tree).args(["read-tree", "--reset", "-u", name.trim()]))
}

/// All that are chosen; those that change the same crate follow each other, as less is built then.
fn patches(only: &str) -> Result<Vec<PathBuf>> {
    let directory = root().join("crates/sim/mutants");
    let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let is_chosen =
        |path: &PathBuf| path.file_stem().is_some_and(|name| name.to_string_lossy().contains(only));
    let mut patches: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_chosen).collect();
    patches.sort_by_cached_key(|patch| (line_of(patch, "+++ "), patch.clone()));
    Ok(patches)
}

/// What follows this at the beginning of a line of a patch, if there is one.
fn line_of(patch: &Path, start: &str) -> Option<String> {
    let text = fs::read_to_string(patch).ok()?;
    text.lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned)
}

fn apply(tree: &Path, patch: &Path, how: &[&str]) -> Result {
    // By patch(1), since git would not touch what lies in an ignored folder.
    let mut apply = command("patch");
    apply.args(["--strip=1", "--silent", "--no-backup-if-mismatch"]).args(how);
    succeed(apply.arg("--directory").arg(tree).arg("--input").arg(patch))
}

/// A run of a mutant.
struct Search {
    name: String,
    run: Child,
}

impl Search {
    /// Builds what the copy is now, and runs it.
    fn begin(base: &Path, tree: &Path, patch: &Path) -> Result<Search> {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let target = base.join("build");
        let mut build = cargo();
        build.current_dir(tree).env("CARGO_TARGET_DIR", &target);
        succeed(build.args(["build", "--quiet", "--package", "sim"]))?;
        // The next one is built while this one runs.
        let program = base.join(format!("sim-{name}"));
        fs::copy(target.join("debug/sim"), &program)
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut run = command(&program);
        run.args(["--from", "0", "--of-processor", "--minutes", MUTANT_MINUTES]);
        run.args(line_of(patch, WORLDS).map(|worlds| format!("--worlds={worlds}")));
        let spawned = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let spawned = spawned.map_err(|error| format!("cannot run `{}`: {error}", describe(&run)))?;
        fs::remove_file(&program).map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Search { name, run: spawned })
    }

    /// Its name, if it is not found; prints after how many seeds it is.
    fn end(self) -> Option<String> {
        let Search { name, run } = self;
        let ran = match run.wait_with_output() {
            Ok(ran) => ran,
            Err(error) => return Some(format!("{name} ({error})")),
        };
        let said = String::from_utf8_lossy(&ran.stdout);
        println!("{name}: {}", said.lines().last().unwrap_or_default());
        match ran.status.code() {
            Some(1) if said.contains("that fails") => None,
            Some(0) => Some(name),
            // Killed by a signal, it has found nothing.
            _ => Some(format!("{name} ({})", ran.status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are run by hand, and would be found useless only then.
    #[test]
    fn every_mutant_applies_to_the_tree() {
        let patches = patches("").unwrap();
        assert!(!patches.is_empty());
        for patch in patches {
            succeed(command("git").args(["apply", "--check"]).arg(patch)).unwrap();
        }
    }
}
