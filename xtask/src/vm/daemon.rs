//! A daemon used by the guest.

use super::guest::Host;
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
/// The size of the medium.
const MEDIUM_BYTES: u64 = 256 << 20;
/// How long starting or stopping gracefully may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many lines of its log are shown.
const LINES_SHOWN: usize = 20;

/// `lunette serve`.
pub(super) struct Daemon {
    /// The command line.
    line: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    /// One that is not running yet, to be started with this command line; logs to this file.
    pub(super) fn new(line: Vec<String>, log: PathBuf) -> Self {
        Self { line, log, child: None }
    }

    /// The one with which a scenario starts, with a file that outlives it; medium and log are in this
    /// directory.
    pub(super) fn of(scenario: &Scenario, program: &Path, directory: &Path) -> Self {
        let medium = directory.join("medium").display().to_string();
        let lun = format!("file:{medium},size={MEDIUM_BYTES}{}", scenario.lun);
        let program = program.display().to_string();
        let mut line = vec![program, "serve".into(), "--listen".into(), "192.0.2.1:3260".into()];
        line.extend(["--lun".into(), lun]);
        line.extend(scenario.serve.iter().map(ToString::to_string));
        Self::new(line, directory.join("daemon.log"))
    }

    /// Starts it, and waits until it serves.
    pub(super) fn serve(&mut self) -> Result {
        if self.child.is_some() {
            return Err("the daemon runs already".into());
        }
        let fault = |error: io::Error| format!("lunette serve: {error}");
        let log = File::options().create(true).append(true).open(&self.log).map_err(fault)?;
        let child = self.command().stdout(Stdio::piped()).stderr(log).spawn().map_err(fault)?;
        let child = self.child.insert(child);
        let (sender, receiver) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // Keeps reading until the daemon exits, so that it never blocks on us.
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
        let mut serve = command(&self.line[0]);
        serve.args(&self.line[1..]);
        serve
    }

    /// Kills it, like a crash.
    pub(super) fn kill(&mut self) -> Result {
        let mut child = self.child.take().ok_or("the daemon does not run")?;
        child.kill().and_then(|()| child.wait()).map(drop).map_err(|error| error.to_string())
    }

    /// Sends it a signal, such as `STOP`.
    pub(super) fn signal(&self, signal: &str) -> Result {
        let child = self.child.as_ref().ok_or("the daemon does not run")?;
        succeed(command("kill").args(["-s", signal, &child.id().to_string()]))
    }

    /// Stops it gracefully, which must succeed.
    pub(super) fn stop(&mut self) -> Result {
        self.signal("TERM")?;
        let mut child = self.child.take().ok_or("the daemon does not run")?;
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
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let mut lines: Vec<&str> = log.lines().rev().take(LINES_SHOWN).collect();
        lines.reverse();
        lines.join("\n")
    }
}

impl Host for Daemon {
    fn act(&mut self, request: &str) -> Result {
        match request {
            "kill" => self.kill(),
            "serve" => self.serve(),
            _ => Err("there is no such request".into()),
        }
    }

    fn stop(&mut self) -> Result {
        Daemon::stop(self)
    }

    fn last_lines(&self) -> String {
        Daemon::last_lines(self)
    }
}
