//! Steps that run in parallel with others.

use super::times::{self, StepTime};
use super::{Options, Step};
use crate::command::{RELEASE, Result, built_by, cargo, command, succeed};
use clap::ValueEnum as _;
use rustix::process::{Signal, kill_current_process_group};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

/// Steps in a process of their own.
pub(super) struct Background {
    /// Its input is never written: it exits when that is closed.
    child: Child,
    /// Its output, shown when it has ended.
    output: JoinHandle<Vec<String>>,
}

impl Background {
    pub(super) fn start(steps: &[Step], options: &Options) -> Result<Background> {
        let fault = |error: io::Error| format!("steps cannot be run in the background: {error}");
        // At lower priority than the tests, some of which allow seconds for what takes milliseconds.
        let mut xtask = command("nice");
        xtask.args(["-n", "19"]).arg(std::env::current_exe().map_err(fault)?);
        xtask.args(["test", "--background", "--sim-minutes", &options.sim_minutes.to_string()]);
        for value in steps.iter().filter_map(Step::to_possible_value) {
            xtask.args(["--only", value.get_name()]);
        }
        let (reader, writer) = io::pipe().map_err(fault)?;
        xtask.stderr(writer.try_clone().map_err(fault)?).stdout(writer);
        let child = xtask.stdin(Stdio::piped()).process_group(0).spawn().map_err(fault)?;
        let lines = || BufReader::new(reader).lines().map_while(std::result::Result::ok).collect();
        Ok(Background { child, output: std::thread::spawn(lines) })
    }

    /// Waits for them, and adds their lines to the summary, and their times.
    pub(super) fn finish(mut self, summary: &mut Vec<String>, times: &mut Vec<StepTime>) -> Result {
        // Not with `Child::wait`, which would close its input first.
        let input = self.child.stdin.take();
        let lines =
            self.output.join().map_err(|_| "what ran in the background printed nothing".to_owned())?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        drop(input);
        // Their total is part of this process's.
        lines.iter().filter(|line| !line.starts_with(times::ALL)).for_each(|line| println!("{line}"));
        // The first is for packages, which were already installed.
        times.extend(lines.iter().filter_map(|line| StepTime::parse(line)).skip(1));
        summary.extend(lines.into_iter().filter(|line| line.starts_with(Simulation::SUMMARY)));
        if status.success() { Ok(()) } else { Err(format!("a step in the background failed ({status})")) }
    }
}

/// For the process of [`Background`]: it exits, with everything it has started, when its parent does.
pub(super) fn end_with_the_other() {
    std::thread::spawn(|| {
        // Nothing is ever written: this ends when the other end is closed.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = kill_current_process_group(Signal::KILL);
    });
}

/// The running simulator, ended together with its parent.
pub(super) struct Simulation(Child);

impl Simulation {
    /// The prefix of its summary line.
    const SUMMARY: &str = "simulation: ";

    /// Starts it with the engine that is built for counting instructions. Its own tests have overflow checks.
    pub(super) fn start(minutes: f64) -> Result<Simulation> {
        let build = ["build", "--locked", "--release", "--package", "engine", "--package", "sim", "--bins"];
        succeed(cargo().args(build))?;
        let mut simulator = command(built_by(RELEASE, "sim"));
        simulator.args(["--minutes", &minutes.to_string()]).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let child = simulator.spawn().map_err(|error| format!("the simulator cannot be started: {error}"))?;
        Ok(Simulation(child))
    }

    pub(super) fn finish(mut self, summary: &mut Vec<String>) -> Result {
        let mut said = String::new();
        let stdout = self.0.stdout.take().ok_or("the simulator has been waited for")?;
        BufReader::new(stdout).read_to_string(&mut said).map_err(|error| error.to_string())?;
        print!("{said}");
        let status = self.0.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("the simulator found a fault ({status}): its seed is above"));
        }
        summary.extend(said.lines().last().map(|line| format!("{}{line}", Simulation::SUMMARY)));
        Ok(())
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // Both fail if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
