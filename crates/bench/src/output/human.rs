//! A result as a table for people.

use super::{describe, grouped, megabytes, micros};
use crate::limit::bottleneck;
use crate::result::{Cpu, RunResult, Stream, VerifyCounts};

/// Cores shown in the table: the busiest.
const CORES_SHOWN: usize = 16;

/// The whole text, with a trailing newline.
pub fn human(result: &RunResult) -> String {
    let mut out = format!("{}, measured for {:.1} s\n", describe(&result.job), result.seconds);
    result.targets.iter().for_each(|target| out.push_str(&format!("  {target}\n")));
    out.push('\n');
    out.push_str(&table(&streams(result)));
    out.push('\n');
    out.push_str(&table(&cpu(result)));
    if let Some(reason) = &result.target_cpu_lost {
        out.push_str(&format!("WARNING: the target's CPU time is unknown: {reason}\n"));
    }
    if !result.cores.is_empty() {
        out.push('\n');
        out.push_str(&cores(result));
    }
    out.push_str(&format!("\nLimit: {}\n", bottleneck(result)));
    if let Some(counts) = &result.verify {
        out.push_str(&verified(counts));
    }
    if !result.first_errors.is_empty() {
        out.push_str("\nThe first errors:\n");
        result.first_errors.iter().for_each(|error| out.push_str(&format!("  {error}\n")));
    }
    out
}

fn streams(result: &RunResult) -> Vec<Vec<String>> {
    let head = ["", "IOPS", "MB/s", "min us", "mean", "p50", "p90", "p99", "p99.9", "max", "errors"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let named = [("read", &result.read), ("write", &result.write), ("trim", &result.trim)];
    let row = |(name, stream): (&str, &Stream)| {
        let l = &stream.latency;
        let latencies = [l.min, l.mean, l.p50, l.p90, l.p99, l.p999, l.max];
        let mut row = vec![name.to_string(), grouped(stream.iops), megabytes(stream.bytes_per_second)];
        row.extend(latencies.map(|us| if stream.operations > 0 { micros(us) } else { "-".into() }));
        row.push(stream.errors.to_string());
        row
    };
    rows.extend(named.into_iter().filter_map(|(name, stream)| Some((name, stream.as_ref()?))).map(row));
    if result.streams().count() > 1 {
        let errors: u64 = result.streams().map(|stream| stream.errors).sum();
        let mut row = vec!["both".to_string(), grouped(result.iops()), megabytes(result.bytes_per_second())];
        row.resize(head.len() - 1, String::new());
        row.push(errors.to_string());
        rows.push(row);
    }
    rows
}

fn cpu(result: &RunResult) -> Vec<Vec<String>> {
    let head = ["CPU", "user s", "system s", "cores used", "us per command"];
    let row = |name: &str, cpu: &Cpu| {
        let used = (cpu.user_seconds + cpu.system_seconds) / result.seconds.max(f64::MIN_POSITIVE);
        vec![
            name.to_string(),
            format!("{:.2}", cpu.user_seconds),
            format!("{:.2}", cpu.system_seconds),
            format!("{used:.2}"),
            format!("{:.2}", cpu.us_per_op),
        ]
    };
    let head = head.map(String::from).to_vec();
    if result.is_local() {
        return vec![head, row("this process", &result.initiator_cpu)];
    }
    let target = match &result.target_cpu {
        Some(cpu) => row("target", cpu),
        None => ["target", "?", "?", "?", "?"].map(String::from).to_vec(),
    };
    vec![head, row("this side", &result.initiator_cpu), target]
}

fn cores(result: &RunResult) -> String {
    let mut loads = result.cores.clone();
    if loads.len() > CORES_SHOWN {
        loads.sort_by(|a, b| a.idle.total_cmp(&b.idle));
        loads.truncate(CORES_SHOWN);
    }
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let mut rows = vec![["", "user", "system", "idle"].map(String::from).to_vec()];
    rows.extend(loads.iter().map(|load| {
        vec![format!("core {}", load.core), percent(load.user), percent(load.system), percent(load.idle)]
    }));
    let mut text = table(&rows);
    let others = result.cores.len() - loads.len();
    if others > 0 {
        let most = loads.last().map_or(0.0, |load| 1.0 - load.idle);
        text.push_str(&format!("{others} more cores, none more than {:.0} % busy\n", most * 100.0));
    }
    text
}

fn verified(counts: &VerifyCounts) -> String {
    let VerifyCounts { checked, stale, misplaced, torn, lost, unread } = counts;
    let verdict = match (counts.bad(), checked) {
        (0, 0) => "NOT VERIFIED: no block that was written was read".to_string(),
        (0, _) => {
            format!("Verified: {} blocks were read, all as they were written", grouped(*checked as f64))
        }
        (bad, _) => format!(
            "VERIFY FAILED: {bad} of {} blocks: {lost} lost, {torn} torn, {misplaced} misplaced, {stale} stale",
            grouped(*checked as f64)
        ),
    };
    match unread {
        0 => format!("{verdict}\n"),
        unread => format!("{verdict}; {} were written and not read back\n", grouped(*unread as f64)),
    }
}

/// The first column is left-aligned, all others right-aligned.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(index, (cell, &width)): (usize, (&String, &usize))| match index {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        };
        let line: String = row.iter().zip(&widths).enumerate().map(cell).collect();
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::example;
    use crate::result::CoreLoad;

    #[test]
    fn a_result_is_a_table() {
        let expected = "\
randrw with 75 % reads, 4 KiB, depth 32, 2 jobs, verified, measured for 10.0 s
  iscsi://127.0.0.1:3260/iqn.2026-11.io.lunette:disk/0

          IOPS   MB/s  min us   mean   p50    p90    p99  p99.9    max  errors
read   312,345  1,279    8.50  101.9  98.2  120.3  212.9   1400  2.51s       0
write  104,115  426.5    8.50  101.9  98.2  120.3  212.9   1400  2.51s       3
both   416,460  1,706                                                        3

CPU        user s  system s  cores used  us per command
this side    2.50      2.50        0.50            1.20
target       4.00      5.88        0.99            2.37

        user  system  idle
core 0  25 %    75 %   0 %
core 1  12 %     0 %  88 %

Limit: the target: its thread `core 0` on core 0 is 99 % busy (or spins: see its poll mode)
VERIFY FAILED: 1 of 3,000,000 blocks: 0 lost, 0 torn, 1 misplaced, 0 stale

The first errors:
  write at byte 4096: the target is busy, \"really\"
";
        let text = human(&example());
        assert_eq!(text, expected, "{text}");
    }

    /// As on a machine that is busy elsewhere for all of a short run.
    #[test]
    fn a_run_in_which_nothing_was_done_has_no_streams() {
        let nothing = RunResult { read: None, write: None, series: Vec::new(), ..example() };
        assert_eq!(nothing.streams().count(), 0);
        assert!(!human(&nothing).is_empty());
        let document = crate::output::json::json(&nothing, std::time::Duration::ZERO);
        assert_eq!(document["jobs"][0]["read"]["total_ios"], 0);
        assert_eq!(crate::output::csv::csv(&nothing).lines().count(), 1, "the names alone");
    }

    #[test]
    fn what_is_not_known_is_not_invented() {
        let mut result = example();
        (result.target_cpu, result.write, result.verify) = (None, None, None);
        result.first_errors.clear();
        let read = result.read.as_mut().unwrap();
        (read.operations, read.iops) = (0, 0.0);
        let text = human(&result);
        assert!(text.contains("target          ?"), "{text}");
        assert!(text.contains("-     -"), "{text}");
        for absent in ["both", "write  ", "VERIFY", "first errors"] {
            assert!(!text.contains(absent), "{absent}:\n{text}");
        }
        result.verify = Some(VerifyCounts { checked: 5, ..VerifyCounts::default() });
        assert!(human(&result).contains("Verified: 5 blocks"));
        result.verify = Some(VerifyCounts { unread: 2000, ..VerifyCounts::default() });
        let text = human(&result);
        assert!(text.contains("NOT VERIFIED: ") && text.contains("; 2,000 were written"), "{text}");
    }

    #[test]
    fn a_store_of_this_process_has_no_cpu_of_its_own() {
        let targets = vec!["ram:1G".into(), "/dev/sda".into()];
        let mut result = RunResult { targets, target_cpu: None, threads: Vec::new(), ..example() };
        let text = human(&result);
        assert!(text.contains("this process    2.50      2.50        0.50            1.20\n\n"), "{text}");
        assert!(
            !text.contains("--target-pid") && !text.contains('?') && !text.contains("target  "),
            "{text}"
        );
        result.target_cpu_lost = Some("process 5 has ended".into());
        assert!(human(&result).contains("target          ?"), "it was asked for: {}", human(&result));
    }

    #[test]
    fn of_many_cores_the_busiest_are_shown() {
        let mut result = example();
        let core = |core: usize| CoreLoad {
            core,
            user: core as f64 / 64.0,
            system: 0.0,
            idle: 1.0 - core as f64 / 64.0,
        };
        result.cores = (0..64).map(core).collect();
        let text = human(&result);
        assert!(
            text.contains("core 63  98 %") && text.contains("core 48") && !text.contains("core 47"),
            "{text}"
        );
        assert!(text.contains("48 more cores, none more than 75 % busy"), "{text}");
    }
}
