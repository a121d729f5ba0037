//! A target's process, with its last output for error messages.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long starting or stopping may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a process' last output that are shown.
const LAST_OUTPUT: usize = 2000;

/// A running process, killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    output: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts it, without an output except for errors.
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Process, String> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child =
            child.map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
        let stderr = child.stderr.take();
        Ok(Process { name, child, output: Some(thread::spawn(move || last_output(stderr))) })
    }

    /// The process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Calls `probe` until it returns something: what the process serves.
    pub(crate) fn serves<T>(
        &mut self,
        interval: Duration,
        probe: impl Fn() -> Option<T>,
    ) -> Result<T, String> {
        let begin = Instant::now();
        loop {
            if let Some(served) = probe() {
                return Ok(served);
            }
            let has_ended = !matches!(self.child.try_wait(), Ok(None));
            if has_ended || begin.elapsed() > PATIENCE {
                return Err(self.fault(&format!("{} does not serve", self.name)));
            }
            thread::sleep(interval);
        }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&mut self) -> Result<(), String> {
        match terminate(&self.child) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.fault(&format!("{} cannot be ended", self.name))),
        }
    }

    /// Waits until it has stopped, successfully.
    pub(crate) fn stopped(&mut self) -> Result<(), String> {
        match ended(&mut self.child)? {
            status if status.success() => Ok(()),
            status => Err(self.fault(&format!("{} ended with {status}", self.name))),
        }
    }

    /// What went wrong, with its last output. Kills it.
    pub(crate) fn fault(&mut self, what: &str) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let output = self.output.take().and_then(|output| output.join().ok()).unwrap_or_default();
        format!("{what}; last output of {}: {}", self.name, output.trim())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends SIGTERM; `None`: it has no process ID.
pub(crate) fn terminate(child: &Child) -> Option<rustix::io::Result<()>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.map(|pid| kill_process(pid, Signal::TERM))
}

/// Waits until a process that was requested to stop has ended.
pub(crate) fn ended(child: &mut Child) -> Result<ExitStatus, String> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(format!("the target cannot be waited for: {error}")),
        }
    }
    Err(format!("the target did not stop within {} s", PATIENCE.as_secs()))
}

/// The end of its log output.
pub(crate) fn last_output(stderr: Option<ChildStderr>) -> String {
    let mut log = String::new();
    for line in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()) {
        let Ok(line) = line else { break };
        log.push_str(&line);
        log.push('\n');
        if log.len() > 2 * LAST_OUTPUT {
            let middle = log.ceil_char_boundary(log.len() - LAST_OUTPUT);
            log.drain(..middle);
        }
    }
    log
}
