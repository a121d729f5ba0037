//! The daemon that the guest uses.

use super::scenario::Scenario;
use crate::command::{Result, command, succeed};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The last line that the daemon prints before it serves.
const READY: &str = "Ready. Stop with Ctrl-C.";
/// The size of what is served.
const MEDIUM_BYTES: u64 = 256 << 20;
/// How long a start or an orderly end may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many of its log's lines are shown.
const LINES_SHOWN: usize = 20;

/// `lunette serve` over a file, which outlives it.
pub(super) struct Daemon {
    scenario: &'static Scenario,
    program: PathBuf,
    folder: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    /// One that does not run yet; its medium and its log lie in this folder.
    pub(super) fn new(scenario: &'static Scenario, program: PathBuf, folder: &Path) -> Self {
        Self { scenario, program, folder: folder.to_path_buf(), child: None }
    }

    /// What is run.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts it, and waits until it serves.
    pub(super) fn serve(&mut self) -> Result {
        if self.child.is_some() {
            return Err("the daemon runs already".into());
        }
        let fault = |error: io::Error| format!("lunette serve: {error}");
        let log = File::options().create(true).append(true).open(self.log()).map_err(fault)?;
        let child = self.command().stdout(Stdio::piped()).stderr(log).spawn().map_err(fault)?;
        let child = self.child.insert(child);
        let (sender, receiver) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // Reads on to the daemon's end, so that it never waits for us.
            std::thread::spawn(move || {
                BufReader::new(stdout).lines().map_while(std::result::Result::ok).for_each(|line| {
                    let _ = sender.send(line);
                });
            });
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == READY => return Ok(()),
                Ok(_) => {}
                Err(reason) => return Err(format!("the daemon does not serve: {reason}")),
            }
        }
    }

    fn command(&self) -> Command {
        let medium = self.folder.join("medium").display().to_string();
        let lun = format!("file:{medium},size={MEDIUM_BYTES}{}", self.scenario.lun);
        let mut serve = command(&self.program);
        serve.args(["serve", "--listen", "192.0.2.1:3260", "--lun", &lun]).args(self.scenario.serve);
        serve
    }

    /// Ends it as a fault would.
    pub(super) fn kill(&mut self) -> Result {
        let mut child = self.child.take().ok_or("the daemon does not run")?;
        child.kill().and_then(|()| child.wait()).map(drop).map_err(|error| error.to_string())
    }

    /// Ends it in order, which has to succeed.
    pub(super) fn stop(&mut self) -> Result {
        let mut child = self.child.take().ok_or("the daemon does not run")?;
        succeed(command("kill").arg(child.id().to_string()))?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the daemon ended with {status}")),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err("the daemon does not end".into())
    }

    /// The end of its log.
    pub(super) fn last_lines(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let mut lines: Vec<&str> = log.lines().rev().take(LINES_SHOWN).collect();
        lines.reverse();
        lines.join("\n")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("daemon.log")
    }
}
