//! Instructions per command, which must not creep up.

use crate::command::{RELEASE, Result, built_by, cargo, cargo_test, output, root, succeed};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Options of `cargo xtask instructions`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Record the counts as the new figures.
    #[arg(long)]
    update: bool,
    /// The profile to build the engine with. Only `release` is compared; the goals are for `dist`.
    #[arg(long, value_name = "NAME", default_value = RELEASE, conflicts_with = "update")]
    profile: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { update: false, profile: RELEASE.into() }
    }
}

/// The engine without the command around it, which would take longer to build than everything that is
/// counted.
const PROGRAM: &str = "counted";
/// The file of committed figures.
const FILE: &str = "xtask/instructions.toml";
const HEAD: &str = "\
# Instructions that a core executes in user space for one command on a LUN in memory, or in a file on tmpfs, at queue
# depth 1 and where 32 come together, counted by callgrind on x86-64 in the engine that `cargo build --release` makes. `cargo xtask
# instructions` fails when one is exceeded by more than 3 %; a change may lower them: `cargo xtask instructions --update`.
";
/// By how much a count may exceed its figure, in percent; if it is below by more, the figure should be
/// lowered.
const TOLERANCE: f64 = 3.0;

/// Figures by their names.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Counts, and compares with the committed figures.
pub(crate) fn run(options: &Options) -> Result {
    if !cfg!(target_arch = "x86_64") {
        println!("the figures in {FILE} are for x86-64: not checked here");
        return Ok(());
    }
    // With the simulator's features, since `cargo xtask test` builds it first.
    let packages = ["build", "--locked", "--package", "engine", "--package", "sim"];
    succeed(cargo().args(packages).args(["--bin", PROGRAM, "--profile", &options.profile]))?;
    let count = ["--workspace", "--bench", "instructions"];
    let program = built_by(&options.profile, PROGRAM);
    let counted = parse(&output(cargo_test().env("LUNETTE_COUNTED", program).args(count))?);
    if counted.is_empty() {
        return Err("the count has printed no figures".into());
    }
    if options.update {
        return fs::write(path(), print(&counted)).map_err(|error| format!("{FILE}: {error}"));
    }
    if options.profile != RELEASE {
        counted.iter().for_each(|(name, figure)| println!("{name}: {figure:.0}"));
        return Ok(());
    }
    let committed = fs::read_to_string(path()).map_err(|error| format!("{FILE}: {error}"))?;
    let verdicts = compare(&parse(&committed), &counted);
    for (line, _) in &verdicts {
        println!("{line}");
    }
    if verdicts.iter().all(|(_, is_good)| *is_good) {
        Ok(())
    } else {
        Err(format!(
            "more instructions than {FILE} allows: save them, or say in the commit why they are needed"
        ))
    }
}

fn path() -> PathBuf {
    root().join(FILE)
}

/// The lines `name = number` of a text.
pub(crate) fn parse(text: &str) -> Figures {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (name, figure) = line.split_once('=')?;
            Some((name.trim().to_owned(), figure.trim().parse().ok()?))
        })
        .collect()
}

fn print(figures: &Figures) -> String {
    figures.iter().fold(HEAD.to_owned(), |text, (name, figure)| format!("{text}{name} = {figure:.0}\n"))
}

/// A line for each figure of either side, and whether it is within tolerance.
fn compare(committed: &Figures, counted: &Figures) -> Vec<(String, bool)> {
    let mut names: Vec<&String> = committed.keys().chain(counted.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| match (committed.get(name), counted.get(name)) {
            (Some(may_be), Some(is)) => {
                let percent = (is / may_be - 1.0) * 100.0;
                let (verdict, is_good) = if percent > TOLERANCE {
                    ("too many", false)
                } else if percent < -TOLERANCE {
                    ("good; lower the figure with --update", true)
                } else {
                    ("as it was", true)
                };
                (format!("{name}: {is:.0} instead of {may_be:.0} ({percent:+.1} %): {verdict}"), is_good)
            }
            (Some(_), None) => (format!("{name}: not counted"), false),
            (None, Some(is)) => (format!("{name}: {is:.0}; not in {FILE}, add it with --update"), false),
            (None, None) => unreachable!("a name is from one of the two"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(figures: &[(&str, f64)]) -> Figures {
        figures.iter().map(|(name, figure)| (name.to_string(), *figure)).collect()
    }

    #[test]
    fn figures_come_back_from_their_file() {
        let some = figures(&[("read_4k", 1234.0), ("write_4k", 5.0)]);
        assert_eq!(parse(&print(&some)), some);
        assert_eq!(parse("# a = 1\nsome words\nb = 2\nc = d\n"), figures(&[("b", 2.0)]));
    }

    #[test]
    fn three_percent_more_are_too_many_and_fewer_are_reported() {
        let committed = figures(&[("a", 1000.0), ("b", 1000.0), ("c", 1000.0), ("d", 1000.0)]);
        let counted = figures(&[("a", 1029.0), ("b", 1031.0), ("c", 900.0), ("e", 1.0)]);
        let verdicts = compare(&committed, &counted);
        let good: Vec<bool> = verdicts.iter().map(|(_, is_good)| *is_good).collect();
        assert_eq!(good, [true, false, true, false, false]);
        assert!(verdicts[1].0.contains("too many") && verdicts[2].0.contains("lower"), "{verdicts:?}");
    }
}
