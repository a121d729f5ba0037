//! Other programs, run with a time limit.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The outcome of a program.
pub struct Outcome {
    /// How it ended; `None`: it did not end in time and was killed.
    pub status: Option<ExitStatus>,
    /// Its output on stdout and stderr.
    pub text: String,
}

impl Outcome {
    /// Panics, with all output, unless the program succeeded.
    pub fn expect_success(self, what: &str) -> String {
        let ended = self.status.map_or_else(|| "did not end in time".to_owned(), |status| status.to_string());
        assert!(self.status.is_some_and(|status| status.success()), "{what}: {ended}\n{}", self.text);
        self.text
    }
}

/// A command by its program's name, including directories that are only in an administrator's PATH. A missing
/// program fails the test that needs it.
pub fn tool(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file());
    let program =
        found.unwrap_or_else(|| panic!("{name} is not installed: `cargo xtask test` installs or names it"));
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end, or kills it when the limit is reached.
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    let output = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut child = spawn(command, output.as_file());
    let status = wait(&mut child, limit);
    if status.is_none() {
        child.kill().expect("a child can be killed");
        child.wait().expect("a killed child ends");
    }
    Outcome { status, text: read_text(output.path()) }
}

/// Runs a command that must succeed within minutes.
pub fn must(command: &mut Command) -> String {
    let what = format!("{command:?}");
    // Disks of virtual machines may be throttled for a minute after heavy writing.
    run(command, Duration::from_secs(300)).expect_success(&what)
}

/// Starts a command that prints into `output`.
pub fn spawn(command: &mut Command, output: &File) -> Child {
    let output = || Stdio::from(output.try_clone().expect("a file can be shared"));
    command.stdout(output()).stderr(output());
    command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

/// Waits for a child's end, for a limited time.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A file as text; invalid UTF-8 is replaced.
pub fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// The last lines of a long text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// A block device backed by a file; removed when dropped.
pub struct LoopDevice {
    /// Its name in /dev.
    pub path: PathBuf,
}

impl LoopDevice {
    /// Creates one; needs root.
    pub fn over(file: &Path, block_bytes: u32) -> Self {
        let made = must(
            tool("losetup").args(["--find", "--show", "--sector-size", &block_bytes.to_string()]).arg(file),
        );
        Self { path: made.trim().into() }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // As long as others have it open it stays; the kernel removes it after that.
        run(tool("losetup").arg("--detach").arg(&self.path), Duration::from_secs(10));
    }
}
