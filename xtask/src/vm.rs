//! `cargo xtask vm`: Linux's own initiators, in a virtual machine with Debian's kernel, against the daemon on
//! this machine. Each scenario has its own network, in which the host is 192.0.2.1 and .3, and the guest
//! 192.0.2.2.

mod daemon;
mod frames;
mod gateways;
mod guest;
mod rig;
mod scenario;
mod verbs;

use crate::command::{
    RELEASE, Result, TESTS, administration, build_lunette, command, describe, lunette, root, succeed,
};
use crate::{packages, suite};
use daemon::Daemon;
use gateways::Gateways;
use guest::Host;
use scenario::Scenario;
pub(crate) use scenario::Tier;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// How many scenarios run at a time. Each spends much of its time waiting, so two do even on two cores.
const JOBS: usize = 2;

/// Options of `cargo xtask vm`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these scenarios.
    #[arg(value_name = "SCENARIO", value_parser = Scenario::parser())]
    scenarios: Vec<&'static Scenario>,
    /// How many run at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = JOBS)]
    jobs: usize,
    /// The profile that the daemon is built with.
    #[arg(long, value_name = "NAME", default_value = RELEASE)]
    profile: String,
    /// Set for the process inside a scenario's own namespaces.
    #[arg(long, hide = true)]
    inside: bool,
}

impl Options {
    /// All scenarios run in this context, with its daemon.
    pub(crate) fn of(tier: Tier) -> Options {
        let scenarios = Scenario::all().filter(|scenario| scenario.tier <= tier).collect();
        let profile = if tier == Tier::Test { TESTS } else { RELEASE }.to_owned();
        Options { scenarios, jobs: JOBS, profile, inside: false }
    }
}

/// Where everything is built.
const DIRECTORY: &str = "target/vm";

/// Runs the chosen scenarios, by default all for this context; a failed one does not stop the others.
pub(crate) fn run(options: &Options) -> Result {
    if options.inside {
        return options.scenarios.iter().try_for_each(|scenario| inside(scenario, &options.profile));
    }
    let _lock = lock()?;
    let tun = File::options().read(true).write(true).open("/dev/net/tun");
    tun.map_err(|error| format!("/dev/net/tun: {error} (the guest's network needs a tap)"))?;
    if options.profile == TESTS {
        suite::build()?;
    } else {
        build_lunette(&options.profile)?;
    }
    rig::ensure()?;
    let scenarios = match options.scenarios.as_slice() {
        [] => Options::of(Tier::Soak).scenarios,
        chosen => chosen.to_vec(),
    };
    let queue = Mutex::new(scenarios.iter());
    let work = || {
        std::iter::from_fn(|| next(&queue))
            .filter_map(|scenario| run_scenario(scenario, &options.profile).err())
            .collect()
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let jobs = options.jobs.clamp(1, scenarios.len());
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let failed =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        failed.collect::<Vec<Vec<String>>>().concat()
    });
    println!("{} passed, {} failed", scenarios.len() - failed.len(), failed.len());
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Builds kernel and root, so that they are there when scenarios run.
pub(crate) fn prepare() -> Result {
    let _lock = lock()?;
    rig::ensure()
}

/// Held while the directory is in use.
fn lock() -> Result<File> {
    let fault = |error: io::Error| format!("{DIRECTORY}: {error}");
    fs::create_dir_all(directory()).map_err(fault)?;
    let lock = File::create(directory().join("lock")).map_err(fault)?;
    lock.try_lock().map_err(|_| format!("{DIRECTORY}: another `cargo xtask vm` is at work here"))?;
    Ok(lock)
}

fn next(queue: &Mutex<std::slice::Iter<'_, &'static Scenario>>) -> Option<&'static Scenario> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).next().copied()
}

/// Runs a scenario, and prints how it ended.
fn run_scenario(scenario: &Scenario, profile: &str) -> Result {
    let start = Instant::now();
    let outcome = isolated(scenario, profile);
    let verdict = if outcome.is_ok() { "passed" } else { "failed" };
    println!("== {}: {verdict} after {} s", scenario.name, start.elapsed().as_secs());
    outcome
}

fn directory() -> PathBuf {
    root().join(DIRECTORY)
}

/// Removes a file or directory, if it exists.
fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Runs a scenario in its own namespaces: its addresses disturb nobody, and everything it started ends with
/// it. Its output is prefixed with its name, since others may run in parallel.
fn isolated(scenario: &Scenario, profile: &str) -> Result {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut unshare = command("unshare");
    if !packages::is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--net", "--pid", "--mount", "--fork"]).arg(program);
    unshare.args(["vm", "--inside", scenario.name, "--profile", profile]);
    let line = describe(&unshare);
    let fault = |error: io::Error| format!("cannot run `{line}`: {error}");
    let (reader, writer) = io::pipe().map_err(fault)?;
    unshare.stderr(writer.try_clone().map_err(fault)?).stdout(writer);
    let mut child = unshare.stdin(Stdio::piped()).spawn().map_err(fault)?;
    // It holds the pipe's writing ends; once they are closed, the reader ends with the child.
    drop(unshare);
    // Closed when this process exits, however it does; the one inside waits for that.
    let lifeline = child.stdin.take();
    for line in BufReader::new(reader).lines().map_while(std::result::Result::ok) {
        println!("{:<13}{line}", scenario.name);
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    drop(lifeline);
    if status.success() { Ok(()) } else { Err(format!("scenario {} failed", scenario.name)) }
}

/// The first process of the new namespaces: when it exits, the kernel kills all others in them.
fn inside(scenario: &'static Scenario, profile: &str) -> Result {
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
        &format!("link set tap0 mtu {}", scenario.mtu),
        "address add 192.0.2.1/24 dev tap0",
        "address add 192.0.2.3/24 dev tap0",
        "link set tap0 up",
    ] {
        succeed(administration("ip").args(line.split(' ')))?;
    }
    let directory = directory().join(scenario.name);
    let made = remove(&directory).and_then(|()| fs::create_dir_all(&directory));
    made.map_err(|error| format!("{}: {error}", directory.display()))?;
    let program = lunette(profile);
    if let Some(access) = scenario.access {
        play(scenario, &program, &directory, &mut Gateways::serve(&program, &directory, access)?)?;
    } else {
        let mut daemon = Daemon::of(scenario, &program, &directory);
        daemon.serve()?;
        play(scenario, &program, &directory, &mut daemon)?;
    }
    if scenario.is_captured {
        let frames = frames::write(&guest::capture(&directory))?;
        frames.iter().for_each(|path| println!("frames in {}", path.display()));
    }
    Ok(())
}

fn play(scenario: &Scenario, program: &Path, directory: &Path, host: &mut dyn Host) -> Result {
    guest::run(scenario, program, directory, host)
        .and_then(|()| host.stop())
        .map_err(|reason| format!("{reason}\nthe daemon's last lines:\n{}", host.last_lines()))
}
