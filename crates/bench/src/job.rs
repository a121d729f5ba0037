//! What a run does: one job, as `lunette bench` takes it on its command line and a plan writes it down.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One workload, in fio's words.
/// Its fields are fio's keys, one for each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Job {
    /// Order and direction of the operations.
    pub rw: Rw,
    /// Reads among mixed operations, in percent.
    pub rwmixread: u8,
    /// Bytes per operation.
    pub bs: u32,
    /// Operations kept in flight by each job.
    pub iodepth: u32,
    /// Jobs per target: each has a thread and, on a remote target, a session of its own.
    pub numjobs: u32,
    /// How long to measure.
    pub runtime: Duration,
    /// How long to run before anything is counted.
    pub ramp: Duration,
    /// Bytes per second of each job, all its streams together; `None`: as fast as they go. Operations keep to a
    /// schedule; their latency counts from when they were really submitted.
    pub rate: Option<u64>,
    /// The same in operations per second; not together with `rate`.
    pub rate_iops: Option<u64>,
    /// First byte of the range that is worked on.
    pub offset: u64,
    /// Bytes of the range; `None`: to the end of the target.
    pub size: Option<u64>,
    /// Write blocks that hold their address, version and checksum, check what is read, and read back
    /// everything written at the end.
    pub verify: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// How much of each written block compresses away, in percent.
    pub buffer_compress: u8,
    /// What keeps the queue full.
    pub style: Style,
    /// Cores that job threads are pinned to, one after the other; empty: not pinned.
    pub cores: Vec<usize>,
    /// How job threads wait: spinning or sleeping.
    pub poll: Poll,
    /// Ask for header digests, and for data digests, on iSCSI targets.
    pub digests: (bool, bool),
    /// Send data of writes to iSCSI targets with the command and unasked; else only when they ask for it.
    pub immediate_data: bool,
}

impl Job {
    /// Whether it sets the pace itself.
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

/// What keeps operations in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// `iodepth` operations, each followed at once by the next (fio).
    #[default]
    Depth,
    /// So many reads and so many writes kept outstanding side by side, independent of each other (testy).
    Outstanding {
        /// Reads in flight.
        reads: u32,
        /// Writes in flight.
        writes: u32,
    },
    /// Threads that share one sequential range, one operation each (sgp_dd); `numjobs` threads.
    Shared,
    /// Reads and writes as two streams of `iodepth` each, reported apart.
    Bidirectional,
}

/// How a thread waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Spins a little, then sleeps.
    #[default]
    Adaptive,
    /// Spins.
    Always,
    /// Sleeps.
    Never,
}
