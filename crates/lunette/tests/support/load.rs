//! `lunette bench --verify` running on a target, while a test does something to the target.

use super::daemon::Daemon;
use super::net::Namespace;
use super::tools::{must, read_text, spawn, tail, tool, wait};
use serde_json::Value;
use std::fs::File;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long it may take to make progress, or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// With so many reads and writes, the former of any of the latter's blocks, some read what was written: they are
/// spread over far fewer pairs of blocks.
const PAIRS: u64 = 1_000_000;

/// Verified reads and writes, until they are stopped.
pub struct Load {
    child: Child,
    directory: TempDir,
}

impl Load {
    /// Starts on this target, with these further options.
    pub fn on(target: &str, options: &[&str]) -> Self {
        Self::start(target, options, |command| command)
    }

    /// The same from a host of a test's network.
    pub fn within(host: &Namespace, target: &str, options: &[&str]) -> Self {
        Self::start(target, options, |command| host.within(&command))
    }

    fn start(target: &str, options: &[&str], place: impl FnOnce(Command) -> Command) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let output = File::create(directory.path().join("output")).expect("a file");
        let mut command = Daemon::command();
        command.args([
            "bench",
            target,
            "--rw",
            "randrw",
            "--verify",
            "--yes",
            "--runtime",
            "10m",
            "--ramp",
            "0",
            "--status-interval",
            "200ms",
        ]);
        command.arg(format!("--json={}", directory.path().join("result").display())).args(options);
        Self { child: spawn(&mut place(command), &output), directory }
    }

    fn output(&self) -> String {
        read_text(&self.directory.path().join("output"))
    }

    /// In how many intervals it has reported that operations ended, and that none did.
    fn intervals(&self) -> (usize, usize) {
        let output = self.output();
        let intervals = output.lines().filter(|line| line.contains(" IOPS, "));
        let (idle, busy): (Vec<&str>, Vec<&str>) = intervals.partition(|line| line.contains(": 0 IOPS, "));
        (busy.len(), idle.len())
    }

    /// Waits until it makes progress from here on.
    pub fn wait_for_progress(&mut self) {
        let before = self.intervals().0;
        // The first of them may have begun earlier, and its last sample be the first of the next.
        self.wait_until("is stuck", |(busy, _)| busy >= before + 3);
    }

    /// Waits until no operation ends any more.
    pub fn wait_until_stalled(&mut self) {
        let before = self.intervals().1;
        // The first of them may have begun earlier.
        self.wait_until("continues", |(_, idle)| idle >= before + 2);
    }

    fn wait_until(&mut self, otherwise: &str, holds: impl Fn((usize, usize)) -> bool) {
        let start = Instant::now();
        while !holds(self.intervals()) {
            self.assert_running();
            assert!(start.elapsed() < PATIENCE, "the load {otherwise}:\n{}", tail(&self.output()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Panics when it has ended.
    pub fn assert_running(&mut self) {
        let ended = self.child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none(), "the load ended with {ended:?}:\n{}", tail(&self.output()));
    }

    /// Stops it. No operation may have failed, and every block read must be what was written.
    pub fn stop(mut self) {
        self.assert_running();
        must(tool("kill").args(["-INT", &self.child.id().to_string()]));
        let status = wait(&mut self.child, PATIENCE).expect("it ends");
        let output = tail(&self.output());
        assert_eq!(status.code(), Some(130), "{output}");
        let result = read_text(&self.directory.path().join("result"));
        let result: Value =
            serde_json::from_str(&result).unwrap_or_else(|error| panic!("{error}:\n{output}"));
        let result = &result["lunette"]["result"];
        let count = |stream: &str| result[stream]["operations"].as_u64().expect("a number of operations");
        let is_certain = count("read") * count("write") > PAIRS;
        assert!(result["verify"]["checked"].as_u64() > Some(0) || !is_certain, "{result}");
        for fault in ["stale", "misplaced", "torn", "lost"] {
            assert_eq!(result["verify"][fault], 0, "{fault}: {output}");
        }
        for stream in ["read", "write"] {
            assert_eq!(result[stream]["errors"], 0, "{stream}: {output}");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
