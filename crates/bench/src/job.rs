//! What a run does: one job, as given on the command line of `lunette bench` or in a plan.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One workload, in fio's terms.
/// Its fields are fio's keys, one for each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Job {
    /// Order and direction of the operations.
    pub rw: Rw,
    /// Percentage of reads in mixed workloads.
    pub rwmixread: u8,
    /// Bytes per operation.
    pub bs: u32,
    /// Operations kept in flight by each job.
    pub iodepth: u32,
    /// Jobs per target: each has its own thread and, on a remote target, its own session.
    pub numjobs: u32,
    /// How long to measure.
    pub runtime: Duration,
    /// How long to run before counting anything.
    pub ramp: Duration,
    /// Bytes per second of each job, all its streams together; `None`: unlimited. Operations follow a
    /// schedule; their latency counts from their actual submission.
    pub rate: Option<u64>,
    /// The same in operations per second; excludes `rate`.
    pub rate_iops: Option<u64>,
    /// First byte of the range to access.
    pub offset: u64,
    /// Bytes of the range; `None`: to the end of the target.
    pub size: Option<u64>,
    /// Write blocks that hold their address, version and checksum, check what is read, and read back
    /// everything written at the end.
    pub verify: bool,
    /// Seed of all randomness.
    pub seed: u64,
    /// Compressibility of each written block, in percent.
    pub buffer_compress: u8,
    /// How the queue is kept full.
    pub style: Style,
    /// Cores to pin job threads to, in turn; empty: not pinned.
    pub cores: Vec<usize>,
    /// How job threads wait: spinning or sleeping.
    pub poll: Poll,
    /// Request header digests, and data digests, on iSCSI targets.
    pub digests: (bool, bool),
    /// Send data of writes to iSCSI targets with the command and unsolicited; otherwise only when solicited.
    pub immediate_data: bool,
}

impl Job {
    /// Whether it is rate-limited.
    pub fn is_paced(&self) -> bool {
        self.rate.is_some() || self.rate_iops.is_some()
    }
}

impl Default for Job {
    fn default() -> Job {
        Job {
            rw: Rw::RandRead,
            rwmixread: 50,
            bs: 4096,
            iodepth: 32,
            numjobs: 1,
            runtime: Duration::from_secs(10),
            ramp: Duration::from_secs(1),
            rate: None,
            rate_iops: None,
            offset: 0,
            size: None,
            verify: false,
            seed: 1,
            buffer_compress: 0,
            style: Style::Depth,
            cores: Vec::new(),
            poll: Poll::Adaptive,
            digests: (false, false),
            immediate_data: true,
        }
    }
}

/// Order and direction (fio's `rw`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random reads and writes mixed.
    RandRw,
    /// Sequential discards.
    Trim,
}

/// How operations are kept in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// `iodepth` operations, each immediately followed by the next (fio).
    #[default]
    Depth,
    /// This many reads and writes kept outstanding side by side, independent of each other (testy).
    Outstanding {
        /// Reads in flight.
        reads: u32,
        /// Writes in flight.
        writes: u32,
    },
    /// `numjobs` threads that share one sequential range, with one operation each (sgp_dd).
    Shared,
    /// Reads and writes as two streams of `iodepth` each, reported separately.
    Bidirectional,
}

/// How a thread waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Spins briefly, then sleeps.
    #[default]
    Adaptive,
    /// Spins.
    Always,
    /// Sleeps.
    Never,
}
