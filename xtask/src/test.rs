//! Everything that continuous integration checks, in steps.

use crate::command::{Result, cargo, describe, exists};
use crate::{command, fuzz, instructions, packages, tidy, vm};
use clap::ValueEnum;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Instant;

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these steps (may be given several times).
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
    /// How long each fuzz target runs.
    #[arg(long, default_value_t = 30)]
    fuzz_seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// `cargo fmt --check`.
    Format,
    /// Clippy, warnings denied.
    Clippy,
    /// `cargo deny`, where it is installed.
    Deny,
    /// The tree itself.
    Tidy,
    /// Fuzz targets.
    Fuzz,
    /// The command as it is released, and what drives it by hand.
    Release,
    /// Instructions per command.
    Instructions,
    /// Linux's own initiators in a virtual machine.
    Vm,
    /// All tests, with overflow checks.
    Tests,
    /// The target's tests in the ways to wait for work that are not the default.
    Polls,
    /// The initiator's tests over what is not the default.
    Schemes,
}

/// The other values of `serve --poll`.
const POLLS: [&str; 2] = ["always", "never"];

/// The other beginnings of URLs.
const SCHEMES: [&str; 2] = ["iser", "srp"];

/// What all steps together should take at most, on two cores from a clean clone.
const MINUTES_MAX: u64 = 25;

/// What is run in each of them, as packages and arguments of `cargo test`: the target's tests, but for `admin`, which
/// needs a mode of its own, those in which the daemon does little, and those that are much the same in each.
const POLL_TESTS: [&str; 3] = [
    "lunette --test nexus --test hostile --test durability --test real_input --test chain --test aoe",
    "engine --test script --test srp",
    "engine --lib core::migrate",
];

/// Runs the chosen steps, all of them by default, up to the first that fails.
pub(crate) fn run(options: &Options) -> Result {
    let begin = Instant::now();
    packages::ensure()?;
    let mut summary = Vec::new();
    for &step in Step::value_variants() {
        if !options.only.is_empty() && !options.only.contains(&step) {
            continue;
        }
        let name = step.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        println!("== {name}");
        let start = Instant::now();
        run_step(step, options, &mut summary)?;
        println!("== {name}: {} s", start.elapsed().as_secs());
    }
    // Last, because that is where people and machines look for it.
    summary.iter().for_each(|line| println!("{line}"));
    let seconds = begin.elapsed().as_secs();
    println!("in all: {} min {} s", seconds / 60, seconds % 60);
    if seconds > MINUTES_MAX * 60 {
        println!("that is more than {MINUTES_MAX} minutes: find out which step has grown");
    }
    Ok(())
}

fn run_step(step: Step, options: &Options, summary: &mut Vec<String>) -> Result {
    match step {
        Step::Format => {
            command::succeed(cargo().args(["fmt", "--all", "--check"]))?;
            command::succeed(cargo().args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))
        }
        Step::Clippy => command::succeed(cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])),
        Step::Deny if exists_as_subcommand("cargo-deny") => command::succeed(cargo().args(["deny", "check"])),
        Step::Deny => {
            println!("cargo-deny is not installed: not checked here");
            Ok(())
        }
        Step::Tidy => tidy::run(),
        Step::Fuzz => fuzz::run_all(options.fuzz_seconds),
        Step::Release => run_tests(
            cargo().args(["test", "--release", "--locked", "--package", "lunette"]).args(["--test", "cli"]),
            summary,
        ),
        Step::Instructions => instructions::run(&instructions::Options::default()),
        Step::Vm => packages::ensure_for_vm().and_then(|()| vm::run(&vm::Options::default())),
        Step::Tests => {
            let mut tests = cargo();
            tests.env("RUST_TEST_THREADS", threads().to_string());
            run_tests(tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]), summary)
        }
        Step::Polls => POLLS.iter().try_for_each(|mode| {
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
        Step::Schemes => SCHEMES.iter().try_for_each(|scheme| {
            println!("== {scheme}://");
            let mut tests = cargo();
            tests.env("LUNETTE_TEST_SCHEME", scheme).args(["test", "--locked", "--package"]);
            run_tests(tests.args(["engine", "--test", "remote"]), summary)
        }),
    }
}

/// Tests at a time: they wait more than they work.
fn threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

/// Cargo looks for its subcommands in its own directory too.
fn exists_as_subcommand(program: &str) -> bool {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    exists(program) || home.is_some_and(|home| home.join("bin").join(program).is_file())
}

/// Runs `cargo test`, shows what it prints as it comes, and keeps the lines that sum up.
fn run_tests(command: &mut Command, summary: &mut Vec<String>) -> Result {
    let line = describe(command);
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let errors = writer.try_clone().map_err(|error| error.to_string())?;
    let mut child = command
        .stdout(writer)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cannot run `{line}`: {error}"))?;
    // The command still holds the pipe's writing ends; without them the reader ends with the child.
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
