//! `cargo xtask bench`: measures the plan next to this crate, and holds what came of it against the marks.

mod marks;
mod results;

use crate::command::{Result, cargo, command, output, root, succeed};
use marks::{Mark, marks};
use results::Results;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Go on with the measurement that was interrupted.
    #[arg(long)]
    resume: bool,
    /// A try of a few minutes whose figures mean little.
    #[arg(long, conflicts_with = "record")]
    quick: bool,
    /// Keep the results under docs/performance.
    #[arg(long)]
    record: bool,
    /// Only hold the results that are there against the marks.
    #[arg(long, conflicts_with_all = ["quick", "resume"])]
    judge: bool,
}

/// What is measured.
const PLAN: &str = "xtask/performance.toml";
/// Where results are kept, and where they are made.
const RECORD: &str = "docs/performance";
const OUTPUT: &str = "target/bench";

/// Results of each row without which nothing is recorded.
const REPETITIONS_MIN: u32 = 5;

/// Measures and judges.
pub(crate) fn run(options: &Options) -> Result {
    if !options.judge {
        measure(options)?;
    }
    let folder = root().join(OUTPUT);
    let results = Results::read(&folder.join("results.csv"))?;
    let judged: Vec<Judged> = marks(&results).into_iter().map(|mark| judge(mark, &results)).collect();
    let table = table(&judged);
    print!("{table}");
    if options.record {
        if results.repetitions < REPETITIONS_MIN {
            return Err(format!(
                "a row has {} results; only what every row has {REPETITIONS_MIN} of is kept (--resume goes on)",
                results.repetitions
            ));
        }
        record(&table)?;
    }
    let missed = judged.iter().filter(|judged| !judged.is_reached()).count();
    match missed {
        0 => Ok(()),
        missed => Err(format!("{missed} of {} marks are not reached", judged.len())),
    }
}

fn measure(options: &Options) -> Result {
    succeed(cargo().args(["build", "--release", "--locked", "--package", "lunette"]))?;
    if !options.resume {
        let folder = root().join(OUTPUT);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(|error| format!("{OUTPUT}: {error}"))?;
        }
    }
    let mut report = command(program());
    report.args(["report", PLAN, "-o", OUTPUT]);
    let switches = [(options.resume, "--resume"), (options.quick, "--quick")];
    report.args(switches.iter().filter(|(on, _)| *on).map(|(_, switch)| switch));
    succeed(&mut report)
}

fn program() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("release/lunette")
}

/// A mark, and what was reached of it.
struct Judged {
    mark: Mark,
    /// Medians of operations per second; `None`: a row has no result.
    figures: Option<(f64, f64)>,
}

impl Judged {
    fn ratio(&self) -> Option<f64> {
        self.figures.map(|(ours, theirs)| ours / theirs)
    }

    fn is_reached(&self) -> bool {
        self.ratio().is_some_and(|ratio| ratio >= self.mark.at_least)
    }
}

fn judge(mark: Mark, results: &Results) -> Judged {
    let ours = results.median(&mark.ours);
    let theirs: Option<Vec<f64>> = mark.against.iter().map(|side| results.median(side)).collect();
    let theirs = theirs.and_then(|all| all.into_iter().reduce(mark.of_several));
    Judged { figures: ours.zip(theirs), mark }
}

/// All marks as Markdown.
fn table(judged: &[Judged]) -> String {
    let mut text = String::from(
        "| section | point | against | k IOPS | theirs | ratio | mark | |\n|---|---|---|---|---|---|---|---|\n",
    );
    for judged in judged {
        let Mark { ours, name, at_least, .. } = &judged.mark;
        let figures = match judged.figures {
            Some((ours, theirs)) => {
                format!("{:.1} | {:.1} | {:.2}", ours / 1e3, theirs / 1e3, ours / theirs)
            }
            None => "- | - | -".into(),
        };
        let verdict = if judged.is_reached() { "reached" } else { "**missed**" };
        let _ = writeln!(
            text,
            "| {} | {} | {name} | {figures} | {at_least:.2} | {verdict} |",
            ours.section,
            ours.point()
        );
    }
    text
}

/// Puts the results where they are committed.
fn record(table: &str) -> Result {
    let (from, to) = (root().join(OUTPUT), root().join(RECORD));
    let fault = |error: std::io::Error| format!("{RECORD}: {error}");
    fs::create_dir_all(&to).map_err(fault)?;
    fs::copy(from.join("results.csv"), to.join("results.csv")).map_err(fault)?;
    fs::copy(from.join("report.md"), to.join("report.md")).map_err(fault)?;
    let date = output(command("date").args(["--utc", "+%Y-%m-%d"]))?;
    let instructions = fs::read_to_string(root().join("xtask/instructions.toml")).map_err(fault)?;
    let text = format!(
        "# Marks\n\nMade by `cargo xtask bench --record` on {}. Ratios are of medians of one run; \
         [report.md](report.md) has the machine, the commands and all figures, [results.csv](results.csv) every row.\n\n\
         {table}\nInstructions in user space for one command, guarded by `cargo xtask instructions`:\n\n```\n{}```\n",
        date.trim(),
        instructions
            .lines()
            .filter(|line| !line.starts_with('#'))
            .fold(String::new(), |text, line| text + line + "\n"),
    );
    fs::write(to.join("marks.md"), text).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "\
section,target,scheduling,direction,digests,jobs,queue_depth,block_size,runs,iops,iops_median\r\n\
A: small commands,Lunette,spinning,read,none,1,32,4K,5,90,80\r\n\
A: small commands,ceiling,spinning,read,none,1,32,4K,5,100,100\r\n\
C: polling,Lunette,free,read,none,1,1,4K,5,1,95\r\n\
C: polling,Lunette,always,read,none,1,1,4K,5,1,100\r\n\
C: polling,Lunette,never,read,none,1,1,4K,4,1,50\r\n";

    fn verdicts() -> Vec<Judged> {
        let results = Results::parse(CSV.as_bytes()).expect("results");
        marks(&results).into_iter().map(|mark| judge(mark, &results)).collect()
    }

    #[test]
    fn medians_are_held_against_the_marks() {
        let judged = verdicts();
        let small = judged.iter().find(|judged| judged.mark.ours.section.starts_with("A: small"));
        assert_eq!(small.and_then(Judged::ratio), Some(0.8));
        let polling = judged.iter().find(|judged| judged.mark.ours.section == "C: polling");
        assert_eq!(polling.and_then(Judged::ratio), Some(0.95), "against the best of both");
        assert!(polling.is_some_and(Judged::is_reached));
        assert_eq!(Results::parse(CSV.as_bytes()).map(|results| results.repetitions), Ok(4));
    }

    #[test]
    fn a_row_without_a_result_is_a_missed_mark() {
        let judged = verdicts();
        let missing = judged.iter().filter(|judged| judged.figures.is_none());
        assert!(missing.clone().count() > 0 && missing.clone().all(|judged| !judged.is_reached()));
        assert!(table(&judged).contains("| - | - | - |"));
    }
}
