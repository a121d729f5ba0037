//! The measurements of a run: everything that tables, charts, JSON and CSV show.

use crate::job::Job;
use config::{NbdUrl, Url};
use serde::{Deserialize, Serialize};

/// One run of one job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// What was run.
    pub job: Job,
    /// The targets as given.
    pub targets: Vec<String>,
    /// Length of the measured time, in seconds.
    pub seconds: f64,
    /// Reads; `None` when there were none.
    pub read: Option<Stream>,
    /// Writes.
    pub write: Option<Stream>,
    /// Discards.
    pub trim: Option<Stream>,
    /// CPU of this process's job threads.
    pub initiator_cpu: Cpu,
    /// CPU of the target, if known.
    pub target_cpu: Option<Cpu>,
    /// Why the target's CPU was requested but is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cpu_lost: Option<String>,
    /// Load of every core of the machine during the measured time.
    pub cores: Vec<CoreLoad>,
    /// The busiest threads of each side, at most 64, busiest first.
    #[serde(default)]
    pub threads: Vec<ThreadLoad>,
    /// Samples over time, about ten per second.
    pub series: Vec<Sample>,
    /// Blocks with wrong content; `None` without `verify`.
    pub verify: Option<VerifyCounts>,
    /// The first error messages, at most 16.
    pub first_errors: Vec<String>,
}

impl RunResult {
    /// Operations per second, all streams together.
    pub fn iops(&self) -> f64 {
        self.streams().map(|stream| stream.iops).sum()
    }

    /// Bytes per second, all streams together.
    pub fn bytes_per_second(&self) -> f64 {
        self.streams().map(|stream| stream.bytes_per_second).sum()
    }

    /// Whether the targets are stores in this process, whose CPU time is then that of both sides.
    pub fn is_local(&self) -> bool {
        let is_known = self.target_cpu.is_some() || self.target_cpu_lost.is_some();
        !is_known && !self.targets.iter().any(|target| Url::is_meant(target) || NbdUrl::is_meant(target))
    }

    /// The streams present.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        [&self.read, &self.write, &self.trim].into_iter().flatten()
    }
}

/// Operations of one direction.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Stream {
    /// Completed within the measured time.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// From submission to completion.
    pub latency: Latency,
    /// Failed operations, at any time of the run; not included in `operations`.
    pub errors: u64,
}

/// Latency, in microseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Minimum.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
    /// Value at percentiles 0, 1, ... 99, 99.5, 99.9, 99.95, 99.99, 100, for charts: (percentile, microseconds).
    pub curve: Vec<(f64, f64)>,
}

/// CPU time of one side during the measured time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cpu {
    /// Seconds in user space.
    pub user_seconds: f64,
    /// Seconds in the kernel.
    pub system_seconds: f64,
    /// Microseconds per operation, user and kernel together.
    pub us_per_op: f64,
}

/// One core's time, as fractions of 1.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CoreLoad {
    /// Its number.
    pub core: usize,
    /// User space.
    pub user: f64,
    /// Kernel, including interrupts.
    pub system: f64,
    /// Idle, including waiting for I/O.
    pub idle: f64,
}

/// One thread's time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ThreadLoad {
    /// Whose it is.
    pub side: Side,
    /// Its name.
    pub name: String,
    /// The core that it last ran on.
    pub core: usize,
    /// Fraction of the measured time that it used a core, without useless spinning if known.
    pub busy: f64,
    /// Fraction of the measured time that it spun without finding anything to do; 0 if unknown.
    #[serde(default)]
    pub spinning: f64,
}

/// One of the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// This side.
    Initiator,
    /// The other side.
    Target,
}

/// A sample of the run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since measuring began; negative during the ramp.
    pub at: f64,
    /// Operations per second since the last sample.
    pub iops: f64,
    /// Bytes per second since the last sample.
    pub bytes_per_second: f64,
    /// Median latency since the last sample, in microseconds.
    pub p50: f64,
    /// 99th percentile since the last sample, in microseconds.
    pub p99: f64,
    /// Load of every core since the last sample.
    pub cores: Vec<CoreLoad>,
    /// Cores that the target used since the last sample (1.0: one core all the time), if known.
    pub target_cores: Option<f64>,
    /// Cores that this side's job threads used.
    pub initiator_cores: f64,
    /// Who used the cores of this machine, as far as threads are known: those of both sides, each counted on
    /// the core it last ran on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub core_use: Vec<CoreUse>,
    /// How long packets queue on the way, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkWait>,
}

/// Round-trip time to the target, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkWait {
    /// Before the run.
    pub idle_us: f64,
    /// Under its load.
    pub loaded_us: f64,
}

/// What both sides used of one core since the last sample, as fractions of its time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CoreUse {
    /// Its number.
    pub core: usize,
    /// The target's threads.
    pub target: f64,
    /// This side's job threads, spinning included.
    pub initiator: f64,
}

/// Findings of `verify`, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VerifyCounts {
    /// Checked.
    pub checked: u64,
    /// An older version than the last acknowledged one.
    pub stale: u64,
    /// Another block's content.
    pub misplaced: u64,
    /// A mixture of versions, or bytes of no version.
    pub torn: u64,
    /// Unwritten content although a write was acknowledged.
    pub lost: u64,
    /// Written, but not read back at the end: the run was stopped, or the target no longer answered.
    #[serde(default)]
    pub unread: u64,
}
