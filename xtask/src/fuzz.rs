//! Fuzz targets, built with the stable compiler: the instrumentation for libFuzzer is requested from LLVM
//! directly. (`cargo fuzz --features libfuzzer`, which requires a nightly compiler, works as well.)

use crate::command::{Result, cargo, command, describe, output, root, succeed};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Mutex;

/// What is requested from LLVM: an inline counter per edge, the table of edges, and the operands of
/// comparisons.
const RUSTFLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 --cfg fuzzing";

/// The profile for libFuzzer runs.
const FUZZ: &str = "fuzz";
/// Longest input, in bytes: a few PDUs.
const INPUT_BYTES_MAX: u32 = 8192;
/// An input that takes longer is a hang.
const INPUT_SECONDS_MAX: u32 = 10;
/// A target that uses more memory than this leaks, or trusts a length sent by a peer.
const MEMORY_MIB_MAX: u32 = 1024;

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The target to run; without it, all of them.
    target: Option<String>,
    /// How long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Runs the chosen targets.
pub(crate) fn run(options: &Options) -> Result {
    let all = targets()?;
    let chosen = match &options.target {
        None => all,
        Some(name) if all.contains(name) => vec![name.clone()],
        Some(name) => return Err(format!("no fuzz target `{name}`; there are: {}", all.join(", "))),
    };
    run_targets(&chosen, options.seconds)
}

/// Runs each target for this many seconds.
pub(crate) fn run_all(seconds: u64) -> Result {
    run_targets(&targets()?, seconds)
}

/// The targets are the files in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>> {
    let directory = root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

/// Builds the targets, then runs as many at a time as there are cores.
fn run_targets(targets: &[String], seconds: u64) -> Result {
    let host = host()?;
    let mut build = cargo();
    build.env("RUSTFLAGS", RUSTFLAGS).env_remove("CARGO_ENCODED_RUSTFLAGS");
    build.args(["build", "--quiet", "--locked", "--profile", FUZZ]);
    build.args(["--package", "lunette-fuzz", "--features", "libfuzzer"]);
    // With a target triple, so that the flags affect neither build scripts nor procedural macros.
    build.args(["--target", &host]);
    succeed(build.args(targets.iter().flat_map(|name| ["--bin", name])))?;

    let queue = Mutex::new(targets.iter());
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(targets.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(target) = queue.lock().expect("no worker panics").next() else { break };
                    if let Err(reason) = run_target(target, &host, seconds) {
                        failures.lock().expect("no worker panics").push(reason);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no worker panics");
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs one target with its seeds and a corpus that is kept between runs; its output goes to a file, whose
/// end is shown.
fn run_target(target: &str, host: &str, seconds: u64) -> Result {
    let fuzz = root().join("fuzz");
    let (corpus, artifacts) = (fuzz.join("corpus").join(target), fuzz.join("artifacts").join(target));
    let built = root().join("target").join(host).join(FUZZ);
    let log_path = built.join(format!("{target}.log"));
    let log = make(&corpus)
        .and(make(&artifacts))
        .and_then(|()| File::create(&log_path).map_err(|error| format!("{}: {error}", log_path.display())))?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let mut run = command(built.join(target));
    run.arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .args(["-print_final_stats=1", "-verbosity=1"])
        .arg(&corpus);
    let (seeds, dictionary) = (fuzz.join("seeds").join(target), fuzz.join("dictionaries").join(target));
    if seeds.is_dir() {
        run.arg(seeds);
    }
    if dictionary.is_file() {
        run.arg(format!("-dict={}", dictionary.display()));
    }
    let status = run.stdout(log).stderr(errors).status();
    let status = status.map_err(|error| format!("cannot run `{}`: {error}", describe(&run)))?;
    let text = String::from_utf8_lossy(&fs::read(&log_path).unwrap_or_default()).into_owned();
    if status.success() {
        println!("fuzz {target}: {}", summary(&text));
        return Ok(());
    }
    let from = text.lines().count().saturating_sub(60);
    let tail: Vec<&str> = text.lines().skip(from).collect();
    Err(format!("fuzz target {target} failed ({status}), input kept in fuzz/artifacts:\n{}", tail.join("\n")))
}

fn make(directory: &PathBuf) -> Result {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// Number of runs and coverage, from libFuzzer's last lines.
fn summary(log: &str) -> String {
    let runs = log.lines().rev().find(|line| line.starts_with("Done ")).unwrap_or("finished");
    let coverage = log.lines().rev().find_map(|line| line.split_once("cov: ")?.1.split(' ').next());
    format!("{runs}, {} edges covered", coverage.unwrap_or("no"))
}

/// The triple of this machine.
fn host() -> Result<String> {
    let version = output(command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".into())
}
