//! The time that steps take.

use crate::command::{Result, root};
use std::fmt::Write as _;
use std::time::Instant;

/// The time a step took, in seconds.
pub(super) struct StepTime {
    name: String,
    seconds: u64,
    /// Processor time, including its child processes.
    worked: u64,
}

impl StepTime {
    /// Parses a line printed by [`Clock::stop`].
    pub(super) fn parse(line: &str) -> Option<StepTime> {
        let (name, times) = line.strip_prefix("== ")?.split_once(": ")?;
        let (seconds, worked) = times.strip_suffix(" of processor time")?.split_once(" s, ")?;
        Some(StepTime { name: name.into(), seconds: seconds.parse().ok()?, worked: worked.parse().ok()? })
    }

    /// Whether it is within the limit.
    pub(super) fn check(&self, most: u64) -> Result {
        if self.worked <= most {
            return Ok(());
        }
        let worked = self.worked;
        Err(format!("{worked} s of processor time are more than {most}: find out which step has grown"))
    }
}

/// The start of a step.
pub(super) struct Clock {
    start: Instant,
    worked: u64,
}

impl Clock {
    pub(super) fn start() -> Clock {
        Clock { start: Instant::now(), worked: processor_seconds() }
    }

    /// Prints how long a step took.
    pub(super) fn stop(&self, name: &str) -> StepTime {
        let took = self.read(name);
        println!("== {}: {} s, {} of processor time", took.name, took.seconds, took.worked);
        took
    }

    fn read(&self, name: &str) -> StepTime {
        let seconds = self.start.elapsed().as_secs();
        StepTime { name: name.into(), seconds, worked: processor_seconds() - self.worked }
    }
}

/// The processor time of this process, and of all child processes that it has waited for, in seconds.
fn processor_seconds() -> u64 {
    // The kernel counts in hundredths of a second here, whatever its own clock is (proc_pid_stat(5)).
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(4);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() / 100
}

/// The prefix of the line about all steps.
pub(super) const ALL: &str = "in all: ";

/// Prints the summary, and the time for everything. Last, because that is where people and machines look for
/// it.
pub(super) fn sum_up(summary: &[String], clock: Clock) -> StepTime {
    summary.iter().for_each(|line| println!("{line}"));
    let all = clock.read("in all");
    println!("{ALL}{} min {} s, {} s of processor time", all.seconds / 60, all.seconds % 60, all.worked);
    all
}

/// The lines around the table in CONTRIBUTING.md.
const TABLE: [&str; 2] = ["<!-- times -->\n", "<!-- /times -->"];

/// Writes the table of times.
pub(super) fn record(times: &[StepTime], all: &StepTime) -> Result {
    let path = root().join("CONTRIBUTING.md");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let parts =
        text.split_once(TABLE[0]).and_then(|(before, rest)| Some((before, rest.split_once(TABLE[1])?.1)));
    let (before, after) = parts.ok_or("CONTRIBUTING.md: the lines around the table of times are missing")?;
    let mut table = String::from("| step | seconds | of processor time |\n|---|---:|---:|\n");
    for StepTime { name, seconds, worked } in times.iter().chain([all]) {
        let _ = writeln!(table, "| {name} | {seconds} | {worked} |");
    }
    let text = format!("{before}{}{table}{}{after}", TABLE[0], TABLE[1]);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_took_is_read_from_its_line() {
        let took = StepTime::parse("== fuzz: 68 s, 67 of processor time").unwrap();
        assert_eq!((took.name.as_str(), took.seconds, took.worked), ("fuzz", 68, 67));
        assert!(took.check(67).is_ok() && took.check(66).unwrap_err().contains("67 s"));
        for line in ["== fuzz", "== aoe: passed after 51 s", "== a: b s, 1 of processor time"] {
            assert!(StepTime::parse(line).is_none(), "{line}");
        }
    }
}
