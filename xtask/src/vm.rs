//! `cargo xtask vm`: Linux's own initiators, in a virtual machine with Debian's kernel, against the daemon on this
//! machine. Each scenario has a network of its own, in which the host is 192.0.2.1 and the guest 192.0.2.2.

mod daemon;
mod guest;
mod rig;
mod scenario;
mod verbs;

use crate::command::{Result, administration, build_lunette, command, describe, root, succeed};
use crate::packages;
use clap::ValueEnum as _;
use daemon::Daemon;
use scenario::Scenario;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

/// Options of `cargo xtask vm`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these scenarios.
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
    /// Set for the process that lives in a scenario's own namespaces.
    #[arg(long, hide = true)]
    inside: bool,
}

/// Where everything lies that is made.
const FOLDER: &str = "target/vm";

/// Runs the chosen scenarios, all of them by default; one that fails does not keep the others from running.
pub(crate) fn run(options: &Options) -> Result {
    let scenarios = match options.scenarios.as_slice() {
        [] => Scenario::value_variants(),
        chosen => chosen,
    };
    if options.inside {
        return scenarios.iter().try_for_each(|scenario| inside(*scenario));
    }
    let fault = |error: io::Error| format!("{FOLDER}: {error}");
    fs::create_dir_all(folder()).map_err(fault)?;
    let lock = File::create(folder().join("lock")).map_err(fault)?;
    lock.try_lock().map_err(|_| format!("{FOLDER}: another `cargo xtask vm` is at work here"))?;
    let tun = File::options().read(true).write(true).open("/dev/net/tun");
    tun.map_err(|error| format!("/dev/net/tun: {error} (the guest's network needs a tap)"))?;
    build_lunette()?;
    let start = Instant::now();
    rig::ensure()?;
    println!("== virtual machine: ready after {} s", start.elapsed().as_secs());
    let mut failed = Vec::new();
    for scenario in scenarios {
        let start = Instant::now();
        println!("== {}", scenario.name());
        let outcome = isolated(*scenario);
        let verdict = if outcome.is_ok() { "passed" } else { "failed" };
        println!("== {}: {verdict} after {} s", scenario.name(), start.elapsed().as_secs());
        failed.extend(outcome.err());
    }
    println!("{} passed, {} failed", scenarios.len() - failed.len(), failed.len());
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

fn folder() -> PathBuf {
    root().join(FOLDER)
}

/// Removes a file or folder that may be there.
fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Runs a scenario in namespaces of its own: its addresses disturb nobody, and what it started ends with it.
fn isolated(scenario: Scenario) -> Result {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut unshare = command("unshare");
    if !packages::is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--net", "--pid", "--fork"]).arg(program).args(["vm", "--inside", scenario.name()]);
    let line = describe(&unshare);
    let mut child =
        unshare.stdin(Stdio::piped()).spawn().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    // Closed when this process ends, however it ends; the one inside waits for that.
    let lifeline = child.stdin.take();
    let status = child.wait().map_err(|error| error.to_string())?;
    drop(lifeline);
    if status.success() { Ok(()) } else { Err(format!("scenario {} failed", scenario.name())) }
}

/// The first process of the new namespaces: when it ends, the kernel ends all others in them.
fn inside(scenario: Scenario) -> Result {
    if std::process::id() != 1 {
        return Err("--inside is for namespaces that `cargo xtask vm` has made".into());
    }
    std::thread::spawn(|| {
        // Nothing is ever written: this ends when the other end is closed.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(1);
    });
    for line in [
        "link set lo up",
        "tuntap add tap0 mode tap",
        "address add 192.0.2.1/24 dev tap0",
        "link set tap0 up",
    ] {
        succeed(administration("ip").args(line.split(' ')))?;
    }
    let folder = folder().join(scenario.name());
    let made = remove(&folder).and_then(|()| fs::create_dir_all(&folder));
    made.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut daemon = Daemon::new(scenario, &folder);
    daemon.serve()?;
    guest::run(scenario, &folder, &mut daemon)
        .and_then(|()| daemon.stop())
        .map_err(|reason| format!("{reason}\nthe daemon's last lines:\n{}", daemon.last_lines()))
}
