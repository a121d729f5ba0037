//! `cargo xtask sim`: whole cores in a world determined by a seed.

use crate::command::{DIST, Result, cargo, command, describe, output, root, succeed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only this seed, and show what happened before it failed.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed, leave this out: what --shrink found unnecessary.
    #[arg(long)]
    cut: Option<String>,
    /// With --seed, for a failing seed: minimise it, in at most two minutes.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Run for this many minutes, starting with a fresh seed.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// With --seed, print everything that happens.
    #[arg(long)]
    trace: bool,
    /// Break the target in each of the ways in `crates/sim/mutants`, in a copy, and show that the simulator
    /// finds it.
    #[arg(long)]
    mutants: bool,
    /// With --mutants, only those whose names contain this.
    #[arg(long)]
    only: Option<String>,
}

/// How long a mutant may go unfound: two minutes on two cores, in minutes of processor time.
const MUTANT_MINUTES: &str = "4";

/// The line of a patch that lists the worlds in which it can be found, if only in a few.
const WORLDS: &str = "Worlds: ";

impl Options {
    /// For this long, starting with a fresh seed.
    pub(crate) fn of_minutes(minutes: f64) -> Options {
        Options { seed: None, cut: None, shrink: false, minutes, trace: false, mutants: false, only: None }
    }
}

/// Builds the simulator like the shipped program, and runs it.
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

/// Applies each patch in turn to a copy of what is committed or staged, and runs it from seed 0, while the
/// next one is being built.
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

/// The mutant's name, if it was not found.
fn end(search: Option<Search>) -> Option<String> {
    search.and_then(Search::end)
}

/// Updates the copy without touching what has not changed since: that need not be rebuilt.
fn copy(base: &Path, tree: &Path) -> Result {
    fs::create_dir_all(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    let name = output(command("git").arg("write-tree"))?;
    let mut read = command("git");
    read.env("GIT_INDEX_FILE", base.join("index"));
    succeed(read.arg("--work-tree").arg(tree).args(["read-tree", "--reset", "-u", name.trim()]))
}

/// All chosen patches; those that change the same crate are consecutive, since less is then rebuilt.
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

/// The rest of the first line of a patch that starts like this, if any.
fn line_of(patch: &Path, start: &str) -> Option<String> {
    let text = fs::read_to_string(patch).ok()?;
    text.lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned)
}

fn apply(tree: &Path, patch: &Path, how: &[&str]) -> Result {
    // With patch(1), since git would not touch files in an ignored directory.
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
    /// Builds the current state of the copy, and runs it.
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

    /// Its name, if it was not found; prints how many seeds it took.
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

    /// They are run by hand, and would only then turn out not to apply.
    #[test]
    fn every_mutant_applies_to_the_tree() {
        let patches = patches("").unwrap();
        assert!(!patches.is_empty());
        for patch in patches {
            succeed(command("git").args(["apply", "--check"]).arg(patch)).unwrap();
        }
    }
}
