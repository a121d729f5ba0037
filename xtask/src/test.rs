//! Everything that continuous integration checks, in steps (`cargo xtask test`), and what takes longer than
//! developers wait (`cargo xtask soak`).

mod background;
mod machine;
mod times;

use crate::command::{RELEASE, Result, build_lunette, cargo, describe, exists, lunette, succeed};
use crate::vm::Tier;
use crate::{deb, fuzz, instructions, package, packages, sim, suite, tidy, vm};
use background::{Background, Simulation};
use clap::ValueEnum;
use std::io::{BufRead, BufReader};
use std::process::Command;
use times::{Clock, StepTime};

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these steps (may be given several times).
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
    /// How long the simulator runs.
    #[arg(long, default_value_t = 2.0)]
    sim_minutes: f64,
    /// Record how long each step took in CONTRIBUTING.md.
    #[arg(long, conflicts_with = "only")]
    record: bool,
    /// Set for the process that runs steps in parallel, and exits with its parent.
    #[arg(long, hide = true)]
    background: bool,
}

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct SoakOptions {
    /// Only these steps (may be given several times).
    #[arg(long, value_name = "STEP")]
    only: Vec<Soak>,
    /// How long each fuzz target runs.
    #[arg(long, default_value_t = 300)]
    fuzz_seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// `cargo fmt --check`.
    Format,
    /// `cargo deny`, if installed.
    Deny,
    /// The tree itself.
    Tidy,
    /// All tests, built by clippy, warnings denied.
    Build,
    /// All tests except those of `soak`, with overflow checks.
    Tests,
    /// Kernel and root of the virtual machine.
    Rig,
    /// Instructions per command, with the engine as released.
    Instructions,
    /// Each of Linux's own initiators in a virtual machine, and one outage.
    Vm,
    /// Whole cores in a simulated world, with fresh seeds, in parallel with the two previous steps.
    Sim,
}

/// Steps that run in a separate process in parallel with `build` and `tests`. Both often wait, for one long
/// unit of the compiler or for time to pass; of these steps, those that need what `build` makes come last.
const BACKGROUND: [Step; 4] = [Step::Rig, Step::Instructions, Step::Vm, Step::Sim];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Soak {
    /// The tests that `cargo xtask test` leaves out, such as libiscsi's suite on every kind of unit.
    Tests,
    /// The command as released, and the manual test programs.
    Release,
    /// The target's tests with the polling modes that are not the default.
    Polls,
    /// The initiator's tests over transports that are not the default.
    Schemes,
    /// All scenarios of the virtual machine.
    Vm,
    /// The Debian package, on its own Debian machine.
    Package,
    /// Fuzz targets, at length.
    Fuzz,
    /// The simulator, built like the shipped program, for an hour.
    Sim,
}

/// The name of modules with tests that take minutes.
const SOAK: &str = "soak::";

/// The other values of `serve --poll`.
const POLLS: [&str; 2] = ["always", "never"];

/// The other URL schemes.
const SCHEMES: [&str; 2] = ["iser", "srp"];

/// The limit for all steps of `cargo xtask test` together, in minutes of two cores' processor time, from a
/// clean clone, on a machine of reference speed: neither other load nor a slower machine must matter.
const MINUTES_MAX: u64 = 12;
const CORES: u64 = 2;

/// Tests run in each of them, as arguments of `cargo test`: the target's tests, except `admin`, which needs
/// its own mode, those in which the daemon does little, and those that are much the same in each mode.
const POLL_TESTS: [&str; 3] = [
    "lunette --test it -- nexus:: hostile:: durability:: real_input:: chain:: aoe::",
    "engine --test it -- script:: srp::",
    "engine --lib -- core::migrate",
];

/// Runs the chosen steps, all by default, up to the first that fails.
pub(crate) fn run(options: &Options) -> Result {
    if options.background {
        background::end_with_the_other();
    }
    let slowness = machine::slowness();
    let clock = Clock::start();
    let (summary, times) = if options.only.is_empty() { run_all(options)? } else { run_chosen(options)? };
    let all = times::sum_up(&summary, clock);
    if options.record {
        times::record(&times, &all)?;
    }
    all.check(((MINUTES_MAX * 60 * CORES) as f64 * slowness) as u64)
}

/// The same for the steps that take longer.
pub(crate) fn soak(options: &SoakOptions) -> Result {
    let clock = Clock::start();
    let is_chosen = |step| options.only.is_empty() || options.only.contains(&step);
    install()?;
    let (summary, _) = run_steps(is_chosen, |step, summary| soak_step(step, options, summary))?;
    times::sum_up(&summary, clock);
    Ok(())
}

fn run_chosen(options: &Options) -> Result<(Vec<String>, Vec<StepTime>)> {
    let packages = install()?;
    let mut simulation = None;
    let run = |step, summary: &mut Vec<String>| run_step(step, options, &mut simulation, summary);
    let (summary, mut times) = run_steps(|step| options.only.contains(&step), run)?;
    times.insert(0, packages);
    Ok((summary, times))
}

/// All steps. No package is needed to build the tests, so they are installed meanwhile.
fn run_all(options: &Options) -> Result<(Vec<String>, Vec<StepTime>)> {
    std::thread::scope(|scope| {
        let mut preparation =
            Some(scope.spawn(|| Ok((install()?, Background::start(&BACKGROUND, options)?))));
        let mut prepared = None;
        let (mut summary, mut times) = run_steps(
            |step| !BACKGROUND.contains(&step),
            |step, summary| {
                if step == Step::Tests
                    && let Some(preparation) = preparation.take()
                {
                    let done: Result<(StepTime, Background)> =
                        preparation.join().map_err(|_| "packages could not be installed".to_owned())?;
                    prepared = Some(done?);
                }
                run_step(step, options, &mut None, summary)
            },
        )?;
        if let Some((packages, background)) = prepared {
            times.insert(0, packages);
            background.finish(&mut summary, &mut times)?;
        }
        Ok((summary, times))
    })
}

fn install() -> Result<StepTime> {
    let clock = Clock::start();
    packages::ensure()?;
    Ok(clock.stop("packages"))
}

/// Runs steps; returns the lines of the summary, and how long each step took.
fn run_steps<S: ValueEnum + Copy>(
    is_chosen: impl Fn(S) -> bool,
    mut run: impl FnMut(S, &mut Vec<String>) -> Result,
) -> Result<(Vec<String>, Vec<StepTime>)> {
    let (mut summary, mut times) = (Vec::new(), Vec::new());
    for &step in S::value_variants().iter().filter(|step| is_chosen(**step)) {
        let name = step.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        println!("== {name}");
        let clock = Clock::start();
        run(step, &mut summary)?;
        times.push(clock.stop(&name));
    }
    Ok((summary, times))
}

fn run_step(
    step: Step,
    options: &Options,
    simulation: &mut Option<Simulation>,
    summary: &mut Vec<String>,
) -> Result {
    match step {
        Step::Format => succeed(cargo().args(["fmt", "--all", "--check"])),
        Step::Deny if exists_as_subcommand("cargo-deny") => succeed(cargo().args(["deny", "check"])),
        Step::Deny => {
            println!("cargo-deny is not installed: not checked here");
            Ok(())
        }
        Step::Tidy => tidy::run(),
        Step::Build => suite::build().map(|_| ()),
        Step::Tests => suite::run(&["--skip", SOAK], threads(), summary),
        Step::Instructions => {
            // It is built together with what is counted.
            if options.only.is_empty() || options.only.contains(&Step::Sim) {
                *simulation = Some(Simulation::start(options.sim_minutes)?);
            }
            instructions::run(&instructions::Options::default())
        }
        Step::Rig => packages::ensure_for_vm().and_then(|()| vm::prepare()),
        Step::Vm => run_vm(Tier::Test),
        Step::Sim => match simulation.take() {
            Some(simulation) => simulation,
            None => Simulation::start(options.sim_minutes)?,
        }
        .finish(summary),
    }
}

fn soak_step(step: Soak, options: &SoakOptions, summary: &mut Vec<String>) -> Result {
    match step {
        Soak::Tests => {
            let mut tests = cargo();
            tests.env("RUST_TEST_THREADS", threads().to_string());
            run_tests(tests.args(["test", "--workspace", "--locked", "--no-fail-fast", "--", SOAK]), summary)
        }
        Soak::Release => {
            build_lunette(RELEASE)?;
            let test = ["test", "--locked", "--package", "lunette", "--test", "it", "--", "cli::"];
            run_tests(cargo().env("LUNETTE_TEST_PROGRAM", lunette(RELEASE)).args(test), summary)
        }
        Soak::Polls => POLLS.iter().try_for_each(|mode| {
            println!("== --poll {mode}");
            POLL_TESTS.iter().try_for_each(|tests| {
                let mut target = cargo();
                target.env("LUNETTE_TEST_POLL", mode).args(["test", "--locked", "--package"]);
                // A daemon that always polls leaves no processor idle.
                if *mode != "always" {
                    target.env("RUST_TEST_THREADS", threads().to_string());
                }
                run_tests(target.args(tests.split(' ')), summary)
            })
        }),
        Soak::Schemes => SCHEMES.iter().try_for_each(|scheme| {
            println!("== {scheme}://");
            let mut tests = cargo();
            tests.env("LUNETTE_TEST_SCHEME", scheme).args(["test", "--locked", "--package"]);
            run_tests(tests.args(["engine", "--test", "it", "--", "remote::"]), summary)
        }),
        Soak::Vm => run_vm(Tier::Soak),
        Soak::Package => packages::ensure_for_package().and_then(|()| package::run(&deb::Options::default())),
        Soak::Fuzz => fuzz::run_all(options.fuzz_seconds),
        Soak::Sim => sim::run(&sim::Options::of_minutes(60.0)),
    }
}

fn run_vm(tier: Tier) -> Result {
    packages::ensure_for_vm().and_then(|()| vm::run(&vm::Options::of(tier)))
}

/// Tests at a time: they wait more than they work (with 6 per core instead of 3, the command's tests took 80
/// s instead of 126).
fn threads() -> usize {
    6 * std::thread::available_parallelism().map_or(1, usize::from)
}

/// Cargo looks for its subcommands in its own directory, too.
fn exists_as_subcommand(program: &str) -> bool {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    exists(program) || home.is_some_and(|home| home.join("bin").join(program).is_file())
}

/// Runs `cargo test`, shows its output as it arrives, and keeps the lines of the summary.
fn run_tests(command: &mut Command, summary: &mut Vec<String>) -> Result {
    let line = describe(command);
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let errors = writer.try_clone().map_err(|error| error.to_string())?;
    let mut child = command
        .stdout(writer)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cannot run `{line}`: {error}"))?;
    // The command still holds the pipe's writing ends; once they are closed, the reader ends with the child.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut running = String::new();
    for text in BufReader::new(reader).lines().map_while(std::result::Result::ok) {
        println!("{text}");
        if let Some(name) = text.trim_start().strip_prefix("Running ") {
            running = name.split(" (").next().unwrap_or(name).to_owned();
        } else if text.trim_start().starts_with("Doc-tests ") {
            running = text.trim_start().to_owned();
        } else if text.starts_with("test result: ") && !text.contains(" 0 passed; 0 failed") {
            summary.push(format!("{text} [{running}]"));
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}\n{}", summary.join("\n"))) }
}
