//! `cargo xtask bench`: measures the plans next to this crate, and compares the results with their goals.

mod aoe;
mod evaluation;
mod fio;
mod goals;
mod limits;
mod part;
mod peer;
mod plan;
mod results;
mod transports;

use crate::command::{DIST, Result, build_lunette, command, lunette, output, root, succeed};
use crate::instructions::{self, Figures};
use evaluation::Evaluated;
use part::Part;
use results::{REPETITIONS_MIN, Results};
use std::fs;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Continue an interrupted measurement.
    #[arg(long)]
    resume: bool,
    /// A trial of a few minutes whose figures mean little.
    #[arg(long, conflicts_with = "record")]
    quick: bool,
    /// Keep the results under docs/performance.
    #[arg(long)]
    record: bool,
    /// Only compare existing results with the goals.
    #[arg(long, conflicts_with_all = ["quick", "resume"])]
    check: bool,
    /// One part only; by default all
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Only SPDK's iscsi_tgt, which you have built, beside Lunette: spdk=PATH
    #[arg(long, value_name = "PEER", conflicts_with = "only")]
    peer: Option<String>,
}

/// Other measurements, in the directory of results.
const FIGURES: &str = "figures";

/// Measures, and checks the results against the goals.
pub(crate) fn run(options: &Options) -> Result {
    if !options.check {
        build_lunette(DIST)?;
    }
    let only = options.peer.as_ref().map(|_| Part::Peer).or(options.only);
    let parts = only.map_or_else(|| Part::ALL.to_vec(), |part| vec![part]);
    let mut missed = Vec::new();
    for part in parts {
        missed.extend(run_part(part, options)?);
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("; ")) }
}

/// Measures and checks a part; returns how many goals were missed.
fn run_part(part: Part, options: &Options) -> Result<Option<String>> {
    if !options.check {
        measure(part, options)?;
    }
    let directory = root().join(part.output());
    let results = Results::read(&directory.join("results.csv"))?;
    let figures = fs::read_to_string(directory.join(FIGURES)).unwrap_or_default();
    let figures = instructions::parse(&figures);
    let goals = part.goals(&results, &figures).into_iter();
    let evaluated: Vec<Evaluated> = goals.map(|goal| Evaluated::new(goal, &results)).collect();
    let (mut table, mut count, mut missed) = (evaluation::table(&evaluated), evaluated.len(), 0);
    if part == Part::Datapath {
        table += &evaluation::more_cores(&evaluated);
        let (limits, exceeded) = evaluation::limits(&figures);
        table += &limits;
        (count, missed) = (count + limits::LIMITS.len(), exceeded);
    }
    print!("{table}");
    if options.record {
        if results.repetitions < REPETITIONS_MIN {
            return Err(format!(
                "a row has {} results; only what every row has {REPETITIONS_MIN} of is kept (--resume continues)",
                results.repetitions
            ));
        }
        record(part, &table)?;
    }
    missed += evaluated.iter().filter(|evaluated| !evaluated.is_reached()).count();
    Ok((missed > 0).then(|| format!("{}: {missed} of {count} goals are not reached", part.word())))
}

fn measure(part: Part, options: &Options) -> Result {
    let (plan, directory) = (part.plan_file(), part.output());
    let fault = |error: std::io::Error| format!("{directory}: {error}");
    if !options.resume && root().join(directory).exists() {
        fs::remove_dir_all(root().join(directory)).map_err(fault)?;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    fs::create_dir_all(root().join("target")).map_err(fault)?;
    fs::write(root().join(plan), part.plan(cores)).map_err(fault)?;
    let mut report = command(lunette(DIST));
    report.args(["report", plan, "-o", directory]);
    let switches = [(options.resume, "--resume"), (options.quick, "--quick")];
    report.args(switches.iter().filter(|(on, _)| *on).map(|(_, switch)| switch));
    if let Some(peer) = &options.peer {
        report.args(["--peer", peer]);
    }
    succeed(&mut report)?;
    let mut figures = Figures::new();
    if part == Part::Datapath {
        fio::measure(&mut figures)?;
        limits::measure(&mut figures)?;
    }
    let lines: String = figures.iter().map(|(name, figure)| format!("{name} = {figure}\n")).collect();
    fs::write(root().join(directory).join(FIGURES), lines).map_err(fault)
}

/// Copies the results to where they are committed.
fn record(part: Part, table: &str) -> Result {
    let (from, to) = (root().join(part.output()), root().join(part.record()));
    let fault = |error: std::io::Error| format!("{}: {error}", part.record());
    fs::create_dir_all(&to).map_err(fault)?;
    fs::copy(from.join("results.csv"), to.join("results.csv")).map_err(fault)?;
    // The peer's path on this machine must not be published.
    let report = fs::read_to_string(from.join("report.md")).map_err(fault)?;
    let words: Vec<&str> =
        report.split(' ').map(|word| if word.starts_with("spdk=") { "spdk=PATH" } else { word }).collect();
    fs::write(to.join("report.md"), words.join(" ")).map_err(fault)?;
    let date = output(command("date").args(["--utc", "+%Y-%m-%d"]))?;
    let mut text = format!(
        "# Goals\n\nGenerated by `cargo xtask bench {} --record` on {}. Ratios are medians of the ratios within each repetition; \
         [report.md](report.md) has the machine, the commands and all figures, [results.csv](results.csv) every row.\n\n\
         {table}",
        part.option(),
        date.trim(),
    );
    if part == Part::Datapath {
        let instructions = fs::read_to_string(root().join("xtask/instructions.toml")).map_err(fault)?;
        text +=
            "\nInstructions in user space for one command, guarded by `cargo xtask instructions`:\n\n```\n";
        let lines = instructions.lines().filter(|line| !line.starts_with('#'));
        text = lines.fold(text, |text, line| text + line + "\n") + "```\n";
    }
    fs::write(to.join("goals.md"), text).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "\
section,target,scheduling,direction,write_data,digests,jobs,queue_depth,block_size,runs,iops_each,iops_median,\
target_cpu_us_per_command_median,initiator_cpu_us_per_command_median\r\n\
A: small commands,Lunette,spinning,read,with the command,none,1,32,4K,5,1:40 2:60 3:80 4:90 5:90,80,0.8312,1.5\r\n\
A: small commands,ceiling,spinning,read,with the command,none,1,32,4K,5,1:100 2:100 3:100 4:100 5:50,100,,1\r\n\
C: polling,Lunette,free,read,with the command,none,1,1,4K,5,1:95,95,1,1\r\n\
C: polling,Lunette,always,read,with the command,none,1,1,4K,5,1:100,100,1,1\r\n\
C: polling,Lunette,never,read,with the command,none,1,1,4K,4,1:50,50,1,1\r\n";

    fn verdicts() -> Vec<Evaluated> {
        let results = Results::parse(CSV.as_bytes()).expect("results");
        let goals = Part::Datapath.goals(&results, &Figures::new()).into_iter();
        goals.map(|goal| Evaluated::new(goal, &results)).collect()
    }

    #[test]
    fn medians_are_held_against_the_goals() {
        let evaluated = verdicts();
        let small = evaluated.iter().find(|evaluated| evaluated.goal.ours.section.starts_with("A: small"));
        assert_eq!(small.and_then(Evaluated::ratio), Some(0.8));
        let polling = evaluated.iter().find(|evaluated| evaluated.goal.ours.section == "C: polling");
        assert_eq!(polling.and_then(Evaluated::ratio), Some(0.95), "against the best of both");
        assert!(polling.is_some_and(Evaluated::is_reached));
        assert_eq!(Results::parse(CSV.as_bytes()).map(|results| results.repetitions), Ok(4));
    }

    #[test]
    fn a_row_without_a_result_is_a_missed_goal() {
        let evaluated = verdicts();
        let missing = evaluated.iter().filter(|evaluated| evaluated.figures.is_none());
        assert!(missing.clone().count() > 0 && missing.clone().all(|evaluated| !evaluated.is_reached()));
        assert!(evaluation::table(&evaluated).contains("| - | - | - |"));
        assert!(evaluation::more_cores(&evaluated).contains("not measured: needs at least 4 cores"));
    }

    #[test]
    fn cpu_times_of_both_sides_stand_beside_the_ratio() {
        let table = evaluation::table(&verdicts());
        assert!(table.contains("| 0.80 | reached | 0.83 + 1.50 | - + 1.00 |"), "{table}");
    }

    #[test]
    fn what_is_exceeded_or_not_measured_is_a_missed_goal() {
        let figures = instructions::parse("quiet_p99 = 3.01\nidle_cpu_percent = 0.1\nfio_disk = 0.97\n");
        let (text, missed) = evaluation::limits(&figures);
        // All except the idle daemon's.
        assert_eq!(missed, limits::LIMITS.len() - 1, "{text}");
        assert!(
            text.contains("| 3.01 | 3 | **missed** |") && text.contains("| 0.1 | 0.2 | reached |"),
            "{text}"
        );
        assert!(
            text.contains("at 0.97 times the rate") && text.contains("tmpfs was not read by fio"),
            "{text}"
        );
    }
}
