//! `cargo xtask sim`: whole cores in a world that a seed decides.

use crate::command::{Result, cargo, command, describe, root, succeed};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

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

/// How long a mutant may stay unfound, on one core.
const MUTANT_MINUTES: &str = "2";

impl Options {
    /// For so long, from a fresh seed on.
    pub(crate) fn of_minutes(minutes: f64) -> Options {
        Options { seed: None, cut: None, shrink: false, minutes, trace: false, mutants: false, only: None }
    }
}

/// Builds the simulator as released, and runs it.
pub(crate) fn run(options: &Options) -> Result {
    if options.mutants {
        return mutants(options.only.as_deref().unwrap_or_default());
    }
    let mut run = cargo();
    run.args([
        "run",
        "--release",
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

/// Applies one patch after the other to a copy of what is committed or staged, and runs that from seed 0 on.
fn mutants(only: &str) -> Result {
    let base = root().join("target/mutants");
    let tree = base.join("tree");
    let prefix = format!("{}/", tree.display());
    succeed(command("git").args(["checkout-index", "--all", "--force", &format!("--prefix={prefix}")]))?;
    let mut unfound = Vec::new();
    for patch in patches(only)? {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        apply(&tree, &patch, &[])?;
        let found = is_found(&base, &tree, &name);
        apply(&tree, &patch, &["--reverse"])?;
        if !found? {
            unfound.push(name);
        }
    }
    if unfound.is_empty() { Ok(()) } else { Err(format!("not found: {}", unfound.join(", "))) }
}

fn patches(only: &str) -> Result<Vec<PathBuf>> {
    let directory = root().join("crates/sim/mutants");
    let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let is_chosen =
        |path: &PathBuf| path.file_stem().is_some_and(|name| name.to_string_lossy().contains(only));
    let mut patches: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_chosen).collect();
    patches.sort();
    Ok(patches)
}

fn apply(tree: &Path, patch: &Path, how: &[&str]) -> Result {
    // By patch(1), since git would not touch what lies in an ignored folder.
    let mut apply = command("patch");
    apply.args(["--strip=1", "--silent", "--no-backup-if-mismatch"]).args(how);
    succeed(apply.arg("--directory").arg(tree).arg("--input").arg(patch))
}

/// Whether a run of the copy fails, and after how many seeds.
fn is_found(base: &Path, tree: &Path, name: &str) -> Result<bool> {
    let target = base.join("build");
    let mut build = cargo();
    build.current_dir(tree).env("CARGO_TARGET_DIR", &target);
    succeed(build.args(["build", "--quiet", "--package", "sim"]))?;
    let begun = Instant::now();
    let mut run = command(target.join("debug/sim"));
    run.args(["--from", "0", "--minutes", MUTANT_MINUTES]);
    let ran = run.output().map_err(|error| format!("cannot run `{}`: {error}", describe(&run)))?;
    let said = String::from_utf8_lossy(&ran.stdout);
    let line = said.lines().last().unwrap_or_default();
    println!("{name}: {:.1} s, {line}", begun.elapsed().as_secs_f64());
    Ok(!ran.status.success())
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
