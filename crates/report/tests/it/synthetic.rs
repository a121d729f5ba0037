//! Fake results that look like those of a real machine.

use bench::job::{Job, Style};
use bench::result::{CoreLoad, Cpu, Latency, RunResult, Sample, Stream};
use report::{Direction, Fact, Kind, Measured, Outcome, Plan, Position, Progress, Row, Testbed};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Measures nothing and fakes results.
#[derive(Default)]
pub struct Synthetic {
    /// What was run, in order: seed and row.
    pub ran: Vec<(u64, usize)>,
    /// After this many runs the flag is set, as by Ctrl-C.
    pub stop_after: Option<(usize, Arc<AtomicBool>)>,
    /// Rows that fail.
    pub failing: Vec<usize>,
    /// The errors that `prepare` returns.
    pub unready: Vec<String>,
}

impl Testbed for Synthetic {
    fn prepare(&mut self, _: &[Row]) -> Result<Vec<Fact>, Vec<String>> {
        if self.unready.is_empty() { Ok(vec![Fact::new("tgt", "1.0.85")]) } else { Err(self.unready.clone()) }
    }

    fn measure(
        &mut self,
        row: &Row,
        job: &Job,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<Measured, String> {
        self.ran.push((job.seed, row.index));
        if let Some((count, stop)) = &self.stop_after {
            stop.store(self.ran.len() > *count, Ordering::Relaxed);
        }
        if self.failing.contains(&row.index) {
            return Err("the target did not start: address in use <port 1>".into());
        }
        let result = made_up(row, job);
        result.series.iter().for_each(observe);
        let commands = vec![
            "lunette serve --listen 127.0.0.1:40001 --lun ram:1G".into(),
            format!("lunette bench iscsi://127.0.0.1:40001/iqn.2026-11.io.lunette:disk/0 --bs {}", job.bs),
        ];
        Ok(Measured { result, commands })
    }
}

/// A deterministic generator.
struct Noise(u64);

impl Noise {
    /// From -1 to 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

fn made_up(row: &Row, job: &Job) -> RunResult {
    let mut noise =
        Noise(job.seed.wrapping_mul(0x9e37_79b9) ^ (row.index as u64 + 1).wrapping_mul(0x1234_5677) | 1);
    for _ in 0..8 {
        noise.next();
    }
    let depth = f64::from(job.iodepth.max(job.numjobs)).min(32.0) * f64::from(row.initiators);
    // Microseconds per command for the whole path, and the target's share.
    let (fixed, per_byte) = match row.target.kind {
        Kind::Ceiling => (0.9, 0.000_22),
        Kind::Lunette => (1.4, 0.000_2),
        Kind::Tgt => (11.0, 0.000_6),
        Kind::Vblade => (3.0, 0.000_6),
        Kind::Spdk(_) => (1.5, 0.000_2),
        Kind::Url(_) => (2.0, 0.000_3),
    };
    let each = (fixed * (1.0 + 6.0 / depth) + per_byte * f64::from(job.bs)) * (1.0 + 0.04 * noise.next());
    let each = each * f64::from(1 + row.target.hops) * if row.target.link.is_some() { 9.0 } else { 1.0 };
    let streams = if job.style == Style::Bidirectional { 2.0 } else { 1.0 };
    let iops = 1e6 / each;
    let stream = |share: f64, noise: &mut Noise| {
        let iops = iops * share;
        let latency = latency(depth / streams / iops * 1e6 * share, noise);
        let operations = (iops * job.runtime.as_secs_f64()) as u64;
        let (bytes, bytes_per_second) = (operations * u64::from(job.bs), iops * f64::from(job.bs));
        Stream { operations, bytes, iops, bytes_per_second, latency, errors: 0 }
    };
    let (read, write) = match row.direction {
        Direction::Both | Direction::RandBoth | Direction::RandRw => {
            (Some(stream(0.55, &mut noise)), Some(stream(0.45, &mut noise)))
        }
        direction if direction.writes() => (None, Some(stream(0.94, &mut noise))),
        _ => (Some(stream(1.0, &mut noise)), None),
    };
    let cpu = |share: f64| Cpu { user_seconds: 1.0, system_seconds: 2.0, us_per_op: each * share };
    RunResult {
        job: job.clone(),
        targets: vec!["iscsi://127.0.0.1:40001/iqn.2026-11.io.lunette:disk/0".into()],
        seconds: job.runtime.as_secs_f64(),
        read,
        write,
        trim: None,
        initiator_cpu: cpu(0.6),
        target_cpu_lost: None,
        target_cpu: (!matches!(row.target.kind, Kind::Url(_))).then(|| cpu(0.9)),
        cores: cores(&mut noise),
        threads: Vec::new(),
        series: series(job, iops, &mut noise),
        verify: None,
        first_errors: Vec::new(),
    }
}

fn latency(mean: f64, noise: &mut Noise) -> Latency {
    let at = |percentile: f64, jitter: f64| {
        let nines = -(1.0 - percentile.min(99.995) / 100.0).log10();
        mean * (0.7 + 0.25 * nines + 0.12 * nines.powi(3)) * (1.0 + 0.05 * jitter)
    };
    let jitter = noise.next();
    let percentiles = (0..100).map(f64::from).chain([99.9, 99.99, 100.0]);
    let curve: Vec<(f64, f64)> = percentiles.map(|percentile| (percentile, at(percentile, jitter))).collect();
    Latency {
        min: at(0.0, jitter),
        mean,
        stddev: mean / 3.0,
        p50: at(50.0, jitter),
        p90: at(90.0, jitter),
        p99: at(99.0, jitter),
        p999: at(99.9, jitter),
        max: at(100.0, jitter),
        curve,
    }
}

fn cores(noise: &mut Noise) -> Vec<CoreLoad> {
    (0..4)
        .map(|core| {
            let busy = [0.97, 0.62, 0.08, 0.03][core] * (1.0 - 0.03 * noise.next().abs());
            CoreLoad { core, user: busy * 0.3, system: busy * 0.7, idle: 1.0 - busy }
        })
        .collect()
}

fn series(job: &Job, iops: f64, noise: &mut Noise) -> Vec<Sample> {
    let count = (job.runtime.as_millis() / 100).clamp(2, 50) as u32;
    (1..=count)
        .map(|number| Sample {
            at: f64::from(number) * job.runtime.as_secs_f64() / f64::from(count),
            iops: iops * (1.0 + 0.05 * noise.next()),
            bytes_per_second: iops * f64::from(job.bs),
            p50: 20.0,
            p99: 90.0,
            cores: cores(noise),
            target_cores: Some(0.9),
            initiator_cores: 0.6,
            core_use: Vec::new(),
            link: None,
        })
        .collect()
}

/// Ignores all progress.
pub struct Quiet;

impl Progress for Quiet {
    fn begins(&mut self, _: &Row, _: Position) {}

    fn sample(&mut self, _: &Sample) {}

    fn ends(&mut self, _: &Row, _: &Outcome) {}
}

/// A directory in memory: every saved result is synced, and there are hundreds.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A plan written by a test.
pub fn plan(text: &str) -> Plan {
    Plan::from_toml(text, Path::new("plan.toml")).unwrap_or_else(|error| panic!("{error}"))
}
