//! Results for people and for programs, and the live display of a run.

pub mod csv;
pub mod display;
pub mod human;
pub mod json;

use crate::job::{Job, Rw, Style};
use config::format_size;

/// A job in one line, such as `randread, 4 KiB, depth 32, 1 job`.
pub fn describe(job: &Job) -> String {
    let rw = word(&job.rw);
    let order = match job.rw {
        Rw::Read | Rw::Write | Rw::Trim => "sequential",
        Rw::RandRead | Rw::RandWrite | Rw::RandRw => "random",
    };
    let depth = job.iodepth;
    let (what, depth) = match job.style {
        Style::Depth if job.rw == Rw::RandRw => {
            (format!("{rw} with {} % reads", job.rwmixread), format!("depth {depth}"))
        }
        Style::Depth => (rw, format!("depth {depth}")),
        Style::Outstanding { reads, writes } => {
            (order.to_string(), format!("{reads} reads and {writes} writes outstanding"))
        }
        Style::Shared => (format!("{rw} of one range"), "depth 1".into()),
        Style::Bidirectional => (format!("{order}, both directions"), format!("depth {depth} each")),
    };
    let jobs = format!("{} job{}", job.numjobs, if job.numjobs == 1 { "" } else { "s" });
    let rate = job.rate.map(|rate| format!(", {}/s each", format_size(rate))).unwrap_or_default();
    let rate = job.rate_iops.map(|rate| format!(", {rate} operations/s each")).unwrap_or(rate);
    let verify = if job.verify { ", verified" } else { "" };
    format!("{what}, {}, {depth}, {jobs}{rate}{verify}", format_size(job.bs.into()))
}

/// The value of an enum as written on the command line.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        // An enum variant with values.
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

/// `1234567.8` becomes `1,234,568`.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// MB/s, with as many decimals as are significant.
fn megabytes(bytes: f64) -> String {
    match bytes / 1e6 {
        mb if mb < 10.0 => format!("{mb:.2}"),
        mb if mb < 1000.0 => format!("{mb:.1}"),
        mb => grouped(mb),
    }
}

/// Microseconds with three or four significant digits; seconds from a million on.
fn micros(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 1000.0 => format!("{us:.1}"),
        us if us < 1e6 => format!("{us:.0}"),
        us => format!("{:.2}s", us / 1e6),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::result::{CoreLoad, Cpu, Latency, RunResult, Sample, Side, Stream, ThreadLoad, VerifyCounts};
    use std::time::Duration;

    /// A result with some of everything.
    pub(crate) fn example() -> RunResult {
        let percentiles = (0..100).map(f64::from).chain([99.5, 99.9, 99.95, 99.99, 100.0]);
        let latency = Latency {
            min: 8.5,
            mean: 101.9,
            stddev: 20.5,
            p50: 98.25,
            p90: 120.3,
            p99: 212.9,
            p999: 1400.5,
            max: 2_510_000.0,
            curve: percentiles.map(|p| (p, 50.0 + p)).collect(),
        };
        let stream = |operations: u64, errors: u64| Stream {
            operations,
            bytes: operations * 4096,
            iops: operations as f64 / 10.0,
            bytes_per_second: operations as f64 * 409.6,
            latency: latency.clone(),
            errors,
        };
        let core = |core, user, system| CoreLoad { core, user, system, idle: 1.0 - user - system };
        let sample = |at: f64, iops: f64| Sample {
            at,
            iops,
            bytes_per_second: iops * 4096.0,
            p50: 98.0,
            p99: 213.0,
            cores: vec![core(0, 0.25, 0.75), core(1, 0.125, 0.0)],
            target_cores: Some(0.99),
            initiator_cores: 0.5,
            core_use: Vec::new(),
            link: None,
        };
        let thread =
            |side, name: &str, core, busy| ThreadLoad { side, name: name.into(), core, busy, spinning: 0.0 };
        RunResult {
            job: Job { rw: Rw::RandRw, rwmixread: 75, numjobs: 2, verify: true, ..Job::default() },
            targets: vec!["iscsi://127.0.0.1:3260/iqn.2026-11.io.lunette:disk/0".into()],
            seconds: 10.0,
            read: Some(stream(3_123_450, 0)),
            write: Some(stream(1_041_150, 3)),
            trim: None,
            initiator_cpu: Cpu { user_seconds: 2.5, system_seconds: 2.5, us_per_op: 1.2 },
            target_cpu_lost: None,
            target_cpu: Some(Cpu { user_seconds: 4.0, system_seconds: 5.875, us_per_op: 2.371 }),
            cores: vec![core(0, 0.25, 0.75), core(1, 0.125, 0.0)],
            threads: vec![thread(Side::Initiator, "job 0", 1, 0.5), thread(Side::Target, "core 0", 0, 0.99)],
            series: vec![sample(5.0, 400_000.0), sample(10.0, 433_000.0)],
            verify: Some(VerifyCounts {
                checked: 3_000_000,
                stale: 0,
                misplaced: 1,
                torn: 0,
                lost: 0,
                unread: 0,
            }),
            first_errors: vec!["write at byte 4096: the target is busy, \"really\"".into()],
        }
    }

    #[test]
    fn jobs_are_described_in_a_line() {
        let base = Job::default();
        for (job, expected) in [
            (base.clone(), "randread, 4 KiB, depth 32, 1 job"),
            (
                Job { rw: Rw::RandRw, numjobs: 2, rate_iops: Some(10), verify: true, ..base.clone() },
                "randrw with 50 % reads, 4 KiB, depth 32, 2 jobs, 10 operations/s each, verified",
            ),
            (
                Job { rw: Rw::Write, style: Style::Shared, bs: 512, rate: Some(100 << 20), ..base.clone() },
                "write of one range, 512 bytes, depth 1, 1 job, 100 MiB/s each",
            ),
            (
                Job { style: Style::Outstanding { reads: 8, writes: 2 }, ..base.clone() },
                "random, 4 KiB, 8 reads and 2 writes outstanding, 1 job",
            ),
            (
                Job { style: Style::Bidirectional, rw: Rw::Read, runtime: Duration::from_secs(1), ..base },
                "sequential, both directions, 4 KiB, depth 32 each, 1 job",
            ),
        ] {
            assert_eq!(describe(&job), expected);
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([grouped(0.2), grouped(999.9), grouped(1_234_567.8)], ["0", "1,000", "1,234,568"]);
        assert_eq!([megabytes(1.5e6), megabytes(12.34e6), megabytes(4e9)], ["1.50", "12.3", "4,000"]);
        assert_eq!(
            [micros(8.5), micros(98.25), micros(1400.5), micros(2.51e6)],
            ["8.50", "98.2", "1400", "2.51s"]
        );
    }
}
