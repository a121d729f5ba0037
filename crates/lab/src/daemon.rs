//! `lunette serve` as a child process.

use crate::process::{PATIENCE, ended, last_output, terminate};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

/// The last line that `lunette serve` prints before it serves.
const READY: &str = "Ready. Stop with Ctrl-C.";

/// A running daemon, stopped when this is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    banner: String,
}

impl Daemon {
    /// Starts the program and waits until it serves; otherwise the error quotes `line`.
    pub fn start(command: &mut Command, line: &str) -> Result<Daemon, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{line}: {error}"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut daemon = Daemon { child, banner: String::new() };
        let (sender, receiver) = mpsc::channel();
        // Keeps reading until the daemon ends, so that it never blocks on us.
        thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            lines.map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        let output = thread::spawn(move || last_output(stderr));
        loop {
            match receiver.recv_timeout(PATIENCE) {
                Ok(line) if line == READY => return Ok(daemon),
                Ok(line) => {
                    daemon.banner.push_str(&line);
                    daemon.banner.push('\n');
                }
                Err(_) => {
                    let _ = daemon.child.kill();
                    let output = output.join().unwrap_or_default();
                    return Err(format!("{line} does not serve: {}", output.trim()));
                }
            }
        }
    }

    /// The URLs of the first units, with this scheme: `iser://`.
    ///
    /// # Errors
    /// When the daemon has printed none.
    pub fn units(&self, count: u32, scheme: &str) -> Result<Vec<String>, String> {
        // iSER has the same address and names.
        let listed_scheme = if scheme == "iser://" { "iscsi://" } else { scheme };
        let mut urls = self.banner.lines().filter_map(|line| line.trim().strip_prefix("URL "));
        let found = urls.find_map(|url| url.strip_prefix(listed_scheme)?.rsplit_once('/'));
        let (target, _) =
            found.ok_or_else(|| format!("no URL in what lunette serve printed:\n{}", self.banner))?;
        Ok((0..count).map(|lun| format!("{scheme}{target}/{lun}")).collect())
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it gracefully, and waits until it has ended.
    pub fn stop(&mut self) -> Result<(), String> {
        if terminate(&self.child).is_none() {
            return Err("the target has no process ID".into());
        }
        match ended(&mut self.child)? {
            status if status.success() => Ok(()),
            status => Err(format!("the target ended with {status}")),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
