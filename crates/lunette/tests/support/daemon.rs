//! The daemon under test, as a process.

use super::net::Namespace;
use super::tools::{read_text, tail, tool, wait};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// The last line that the daemon prints before it serves.
const READY: &str = "Ready. Stop with Ctrl-C.";
/// How long startup or an orderly shutdown may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running `lunette serve`. It is killed when dropped, unless it was stopped.
pub struct Daemon {
    child: Child,
    banner: String,
    directory: TempDir,
}

impl Daemon {
    /// Starts the daemon on a port chosen by the system, with these further arguments, and waits until it
    /// serves.
    pub fn serve<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::start(Self::serving().args(["--listen", "127.0.0.1:0"]).args(arguments))
    }

    /// The same with this file, including its portals.
    pub fn serve_file(file: &Path) -> Self {
        Self::start(Self::serving().arg("--config").arg(file))
    }

    /// The same with only these arguments, on a host of a test's network.
    pub fn serve_within<S: AsRef<std::ffi::OsStr>>(
        host: &Namespace,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::start(&mut host.within(Self::serving().args(arguments)))
    }

    fn serving() -> Command {
        let mut command = Self::command();
        command.arg("serve");
        // The same tests pass in every polling mode.
        if let Some(mode) = std::env::var_os("LUNETTE_TEST_POLL") {
            command.arg("--poll").arg(mode);
        }
        command
    }

    /// The daemon's program: the one that was built with these tests, or another build of it.
    pub fn program() -> OsString {
        std::env::var_os("LUNETTE_TEST_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_lunette").into())
    }

    /// A command of it.
    pub fn command() -> Command {
        let mut command = Command::new(Self::program());
        // Tests that run beside others name their own places.
        command.stdin(Stdio::null()).env("LUNETTE_ADMIN", "none");
        command
    }

    /// Starts this command and waits until it serves.
    pub fn start(command: &mut Command) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = File::create(directory.path().join("log")).expect("a log file");
        Self::start_in(directory, command.stderr(log))
    }

    /// The same with this as its stderr; it has no log then.
    pub fn start_logging_to(stderr: impl Into<Stdio>, command: &mut Command) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        File::create(directory.path().join("log")).expect("an empty file");
        Self::start_in(directory, command.stderr(stderr))
    }

    fn start_in(directory: TempDir, command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let (sender, receiver) = mpsc::channel();
        // Reads to the daemon's end, so that it never waits for us.
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| {
                let _ = sender.send(line);
            });
        });
        let mut daemon = Self { child, banner: String::new(), directory };
        loop {
            match receiver.recv_timeout(PATIENCE) {
                Ok(line) if line == READY => return daemon,
                Ok(line) => daemon.banner = format!("{}{line}\n", daemon.banner),
                Err(error) => {
                    panic!("{command:?} does not serve: {error}\n{}\n{}", daemon.banner, daemon.log())
                }
            }
        }
    }

    /// What the daemon printed before it was ready.
    pub fn banner(&self) -> &str {
        &self.banner
    }

    /// What the daemon has logged so far.
    pub fn log(&self) -> String {
        read_text(&self.directory.path().join("log"))
    }

    /// A path for files that live as long as this value.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The URLs `iscsi://ADDRESS:PORT/TARGET/LUN` in the banner.
    pub fn urls(&self) -> Vec<Url> {
        self.banner.split("iscsi://").skip(1).filter_map(Url::parse).collect()
    }

    /// The first of them.
    fn url(&self) -> Url {
        self.urls().into_iter().next().unwrap_or_else(|| panic!("no iscsi:// URL in:\n{}", self.banner))
    }

    /// The address of the `--lun` with this index.
    pub fn lun(&self, index: u16) -> Url {
        let first = self.url();
        Url { lun: first.lun + index, ..first }
    }

    /// The URL of the first LUN that begins with this scheme; SRP needs a daemon with `--srp`.
    pub fn url_over(&self, scheme: &str) -> String {
        let mut lines = self.banner.lines().filter_map(|line| line.trim().strip_prefix("URL "));
        let line = lines.find(|url| url.starts_with(&format!("{scheme}://")));
        line.map_or_else(|| self.url().to_string().replacen("iscsi", scheme, 1), str::to_owned)
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The daemon's present memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = read_text(format!("/proc/{}/status", self.pid()).as_ref());
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap_or_else(|| panic!("the daemon is gone:\n{}", self.log())) * 1024
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        super::tools::must(tool("kill").arg(format!("-{name}")).arg(self.pid().to_string()));
    }

    /// Stops each of its threads: a signal only requests that, and until it takes effect a core continues to
    /// serve.
    pub fn freeze(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.pid());
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            // The state follows the name, which is in parentheses (proc_pid_stat(5)).
            stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
        };
        while !std::fs::read_dir(&tasks).expect("its threads").all(stands) {
            std::thread::yield_now();
        }
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let status = wait(&mut self.child, PATIENCE);
        status.unwrap_or_else(|| panic!("the daemon does not end:\n{}", self.log()))
    }

    /// Stops the daemon in an orderly way, which must succeed; returns its log.
    pub fn stop(mut self) -> String {
        assert!(self.is_running(), "the daemon ended on its own:\n{}", self.log());
        self.signal("TERM");
        let status = self.wait();
        assert!(status.success(), "the daemon ended with {status}:\n{}", self.log());
        self.log()
    }

    /// Ends the daemon like a power failure.
    pub fn kill9(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let ended = self.child.try_wait().expect("a child can be waited for");
        if std::thread::panicking() {
            let state = ended.map_or("it runs".to_owned(), |status| status.to_string());
            eprintln!("the daemon's log ends with ({state}):\n{}", tail(&self.log()));
        }
        if ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A logical unit's address in libiscsi's syntax.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// Where the target listens.
    pub portal: SocketAddr,
    /// The target's name.
    pub target: String,
    /// Logical unit number.
    pub lun: u16,
}

impl Url {
    /// Parses what follows `iscsi://`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '/');
        let portal = parts.next()?.parse().ok()?;
        let target = parts.next()?.to_owned();
        let lun = parts.next()?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        Some(Self { portal, target, lun })
    }

    /// The URL with a user and secret before the address and parameters at the end, both possibly empty.
    pub fn with(&self, login: &str, parameters: &str) -> String {
        format!("iscsi://{login}{}/{}/{}{parameters}", self.portal, self.target, self.lun)
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.with("", ""))
    }
}
