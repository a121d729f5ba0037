//! `lunette report`: measures a plan and generates a report.

use crate::{Failure, INTERRUPTED, catch_interrupts};
use bench::result::Sample;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use report::{BUILTIN, Outcome, Plan, Position, ProcessTestbed, Progress, Request, Row, builtin, make};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "Example: lunette report stgt -o stgt-report\n\n\
                        Built-in plans: stgt, zeta, lio, storagegear, fastnetmon; docs/report.md explains them")]
pub(crate) struct ReportArguments {
    /// The plan: a TOML file, or the name of a built-in one
    #[arg(value_name = "PLAN")]
    plan: String,
    /// The report's directory: index.html, report.md, results.csv, and raw results
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Resume the report in the directory
    #[arg(long)]
    resume: bool,
    /// A dry run of seconds or minutes: short runs, two repetitions, the first and last value of every list
    #[arg(long)]
    quick: bool,
    /// Also measure this target, in every matrix: tgt, vblade, spdk=PATH (SPDK's iscsi_tgt), or the URL of a
    /// running one; may be repeated
    #[arg(long, value_name = "tgt|vblade|spdk=PATH|URL")]
    peer: Vec<String>,
    /// Allow writes to running targets and block devices, destroying their contents
    #[arg(long)]
    overwrite: bool,
}

/// Generates the report; returns where it is.
pub(crate) fn run(arguments: &ReportArguments) -> Result<String, Failure> {
    let (text, name) = text(&arguments.plan)?;
    let mut plan = Plan::from_toml(&text, &name).map_err(Failure::wrong_input)?;
    for peer in &arguments.peer {
        plan.add_peer(peer).map_err(Failure::wrong_input)?;
    }
    if arguments.overwrite {
        plan.allow_overwriting();
    }
    if arguments.quick {
        plan.make_quick();
    }
    let stop =
        catch_interrupts().map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
    let request = Request {
        text,
        directory: arguments.output.clone(),
        resume: arguments.resume,
        // As a user would type it: the program's path differs between machines.
        command: std::iter::once("lunette".to_owned())
            .chain(crate::arguments())
            .collect::<Vec<_>>()
            .join(" "),
        stop: Arc::clone(&stop),
    };
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let mut testbed = ProcessTestbed::new(&program, &arguments.output, Arc::clone(&stop));
    let mut progress = Shown::new();
    let done = make(&plan, &request, &mut testbed, &mut progress);
    progress.bar.finish_and_clear();
    let done = done.map_err(|faults| Failure::wrong_input(faults.join("\n")))?;
    let page = done.page.display();
    if stop.load(Ordering::Relaxed) {
        let text = format!(
            "interrupted: {} of {} runs are complete and shown in {page}; run the same command with --resume to continue",
            done.measured, done.total
        );
        return Err(Failure { text, status: INTERRUPTED as u8 });
    }
    match done.failed.as_slice() {
        [] => Ok(format!("{page}: {} runs\n", done.measured)),
        failed => {
            let rows = failed.join("\n");
            Err(Failure::failed(format!(
                "{page}: {} of {} runs have a result; run the same command with --resume to retry the others\n{rows}",
                done.measured, done.total
            )))
        }
    }
}

/// The plan's text, and its name.
fn text(plan: &str) -> Result<(String, PathBuf), Failure> {
    if let Some(builtin) = builtin(plan) {
        return Ok((builtin.text.into(), plan.into()));
    }
    let path = Path::new(plan);
    let text = std::fs::read_to_string(path).map_err(|error| {
        let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
        Failure::wrong_input(format!("{plan}: {error}; name a file, or one of {}", names.join(", ")))
    })?;
    Ok((text, path.into()))
}

/// The progress: a bar on a terminal, otherwise a line for each run.
struct Shown {
    bar: ProgressBar,
    is_terminal: bool,
}

impl Shown {
    fn new() -> Shown {
        let is_terminal = io::stderr().is_terminal();
        let bar = if is_terminal { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {prefix}\n{wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Shown { bar, is_terminal }
    }
}

impl Progress for Shown {
    fn begins(&mut self, row: &Row, position: Position) {
        let Position { done, total, repetition, left } = position;
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_prefix(format!("repetition {repetition}, {} left", short(left)));
        self.bar.set_message(row.label());
        if !self.is_terminal {
            let (number, left) = (done + 1, short(left));
            crate::print_error(format_args!(
                "{number}/{total}, {left} left: repetition {repetition}, {}",
                row.label()
            ));
        }
    }

    fn sample(&mut self, _: &Sample) {
        self.bar.tick();
    }

    fn ends(&mut self, row: &Row, outcome: &Outcome) {
        if let Outcome::Failed(reason) = outcome {
            self.bar.suspend(|| crate::print_error(format_args!("lunette: {}: {reason}", row.label())));
        }
    }
}

/// `2 h 05 min`, `3 min 20 s`, `15 s`.
fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_short() {
        let lines = [4, 200, 7500].map(|seconds| short(Duration::from_secs(seconds)));
        assert_eq!(lines, ["4 s", "3 min 20 s", "2 h 05 min"]);
    }

    #[test]
    fn a_plan_that_is_not_there_is_answered_with_those_that_are() {
        let failure = text("stgd").err().map(|failure| failure.text).unwrap_or_default();
        assert!(failure.contains("stgt, zeta, lio, storagegear, fastnetmon"), "{failure}");
        assert!(text("zeta").is_ok_and(|(text, _)| text.contains("[[matrix]]")));
    }
}
