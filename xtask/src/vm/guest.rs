//! The running virtual machine.

use super::rig;
use super::scenario::Scenario;
use super::verbs;
use crate::command::{Result, command};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// What all scripts share, and what starts them.
const INIT: &str = include_str!("../../vm/init.sh");
const LIBRARY: &str = include_str!("../../vm/guest.sh");

/// How long the guest may take in addition to its script. The script has its own limit, so that the guest can
/// report more.
const START: Duration = Duration::from_secs(60);
/// How many of its last lines are repeated on failure.
const LINES_KEPT: usize = 30;

/// What serves the guest.
pub(super) trait Host {
    /// Carries out the guest's request, such as `kill`.
    fn act(&mut self, request: &str) -> Result;
    /// Stops it gracefully, which must succeed.
    fn stop(&mut self) -> Result;
    /// The end of its log.
    fn last_lines(&self) -> String;
}

/// Boots the guest, lets it run the scenario, prints its output, and has the host carry out its requests.
pub(super) fn run(scenario: &Scenario, program: &Path, directory: &Path, host: &mut dyn Host) -> Result {
    let fault = |error: io::Error| format!("{}: {error}", directory.display());
    let initrd = initrd(scenario, program, directory).map_err(fault)?;
    let capture = scenario.is_captured.then(|| capture(directory));
    let guest = Guest::boot(initrd.path(), capture.as_deref())?;
    let mut log = File::create(directory.join("guest.log")).map_err(fault)?;
    let deadline = Instant::now() + START + scenario.limit;
    let mut last = VecDeque::new();
    loop {
        let line = match guest.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Err(after("the guest takes too long", &last)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(after("the guest ended and did not say how", &last));
            }
        };
        match Word::parse(&line) {
            None => {
                println!("{line}");
                writeln!(log, "{line}").map_err(fault)?;
                if last.len() == LINES_KEPT {
                    last.pop_front();
                }
                last.push_back(line);
            }
            Some(Word::Request(request)) => {
                host.act(request).map_err(|reason| format!("`host {request}`: {reason}"))?;
            }
            Some(Word::Passed) => return Ok(()),
            Some(Word::Failed) => return Err(after("the guest's script failed", &last)),
        }
    }
}

/// The file for a scenario's captured traffic.
pub(super) fn capture(directory: &Path) -> PathBuf {
    directory.join("capture.pcap")
}

/// A message of the guest to us, not to the reader.
#[derive(Debug, PartialEq, Eq)]
enum Word<'a> {
    /// A request to what serves it.
    Request(&'a str),
    /// The script has succeeded.
    Passed,
    /// It has failed.
    Failed,
}

impl<'a> Word<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        Some(match line.strip_prefix("host: ")? {
            "passed" => Self::Passed,
            "failed" => Self::Failed,
            request => Self::Request(request),
        })
    }
}

fn after(reason: &str, last: &VecDeque<String>) -> String {
    let lines: Vec<&str> = last.iter().map(String::as_str).collect();
    format!("{reason}; its last lines:\n{}", lines.join("\n"))
}

/// The shared root, with this scenario's script appended: the kernel unpacks one archive over the other.
fn initrd(scenario: &Scenario, program: &Path, directory: &Path) -> io::Result<NamedTempFile> {
    let scripts = directory.join("scripts");
    fs::create_dir_all(&scripts)?;
    rig::write_executable(&scripts.join("init"), INIT)?;
    fs::write(scripts.join("guest.sh"), LIBRARY)?;
    fs::write(scripts.join("scenario.sh"), scenario.script)?;
    fs::write(scripts.join("limit"), scenario.limit.as_secs().to_string())?;
    fs::write(scripts.join("mtu"), scenario.mtu.to_string())?;
    verbs::install_daemon(scenario, program, &scripts)?;
    let mut initrd = NamedTempFile::new_in(directory)?;
    io::copy(&mut File::open(rig::root_archive())?, &mut initrd)?;
    rig::archive(&scripts, initrd.as_file().try_clone()?).map_err(io::Error::other)?;
    Ok(initrd)
}

/// The emulator; killed when this is dropped.
struct Guest {
    child: Child,
    lines: Receiver<String>,
}

impl Guest {
    /// Records its network's traffic in a file, if one is given.
    fn boot(initrd: &Path, capture: Option<&Path>) -> Result<Self> {
        let mut emulator = command("qemu-system-x86_64");
        emulator.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1G"]);
        emulator.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-no-reboot",
        ]);
        emulator.arg("-kernel").arg(rig::vmlinux()).arg("-initrd").arg(initrd);
        // Only a panic is printed to the console: anything else could end up in the middle of a line.
        emulator.args(["-append", "console=ttyS0 loglevel=1 panic=-1 mitigations=off random.trust_cpu=on"]);
        let mut tap = "tap,id=net0,ifname=tap0,script=no,downscript=no,vhost=off".to_owned();
        if let Some(file) = capture {
            // Segments as they would be on a wire.
            tap.push_str(",vnet_hdr=off");
            emulator.arg("-object").arg(format!("filter-dump,id=dump0,netdev=net0,file={}", file.display()));
        }
        emulator.args(["-netdev", &tap]);
        emulator.args(["-device", "virtio-net-pci,netdev=net0,romfile="]);
        let fault = |error: io::Error| format!("cannot run qemu-system-x86_64: {error}");
        let mut child = emulator.stdout(Stdio::piped()).spawn().map_err(fault)?;
        let (sender, lines) = mpsc::channel();
        if let Some(console) = child.stdout.take() {
            std::thread::spawn(move || {
                read_lines(console, |line| sender.send(line).is_ok());
            });
        }
        Ok(Self { child, lines })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may already have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes each line to `take` until that has had enough.
fn read_lines(console: ChildStdout, mut take: impl FnMut(String) -> bool) {
    let mut console = BufReader::new(console);
    let mut line = Vec::new();
    while console.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        if !take(String::from_utf8_lossy(&line).trim_end().to_owned()) {
            return;
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_the_host_are_taken_from_the_guest_s_lines() {
        assert_eq!(Word::parse("host: kill"), Some(Word::Request("kill")));
        assert_eq!(Word::parse("host: passed"), Some(Word::Passed));
        for line in ["", "kill", " host: kill", "-- the host: kill"] {
            assert_eq!(Word::parse(line), None, "{line}");
        }
    }

    #[test]
    fn every_script_parses() {
        let scripts = Scenario::all().map(|scenario| scenario.script);
        for script in scripts.chain([INIT, LIBRARY]) {
            let status = command("sh").args(["-n", "-c", script]).status();
            assert!(status.is_ok_and(|status| status.success()), "{script}");
        }
    }
}
