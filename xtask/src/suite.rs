//! The workspace's tests, with as many of their programs at a time as there are cores. `cargo test` runs one after the other,
//! and many of them wait more than they work.

use crate::command::{Result, cargo_test, command, describe};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// A program that holds tests.
#[derive(Clone)]
pub(crate) struct Program {
    path: PathBuf,
    /// Where the source of it is, within its package.
    name: String,
    /// Where its package is, in which it runs.
    package: PathBuf,
    /// Which of its tests are run, as arguments of it.
    chosen: Vec<&'static str>,
}

/// The program whose tests take longest, and those of them that do: others run beside them, not before.
const LONGEST: &str = "crates/lunette/tests";
const LONG: [&str; 3] = ["libiscsi::", "real_input::", "report::"];

/// Builds all tests and runs those that these arguments of theirs choose; adds the lines that sum up.
pub(crate) fn run(arguments: &[&str], threads: usize, summary: &mut Vec<String>) -> Result {
    let programs = build()?;
    let (queue, done) = (Mutex::new(programs.iter()), Mutex::new((Vec::new(), Vec::new())));
    let next = || queue.lock().expect("no worker panics").next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let mut tests = command(&program.path);
                    // As cargo does.
                    tests.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
                    tests.args(&program.chosen).args(arguments).env("RUST_TEST_THREADS", threads.to_string());
                    let (passed, text) = captured(&mut tests);
                    let mut done = done.lock().expect("no worker panics");
                    println!("     Running {}\n{text}", program.name);
                    let line = text.lines().rev().find(|line| line.starts_with("test result: "));
                    done.0.extend(line.map(|line| format!("{line} [{}]", program.name)));
                    if !passed {
                        done.1.push(program.name.clone());
                    }
                }
            });
        }
    });
    let (lines, failed) = done.into_inner().expect("no worker panics");
    summary.extend(lines.into_iter().filter(|line| !line.contains(" 0 passed; 0 failed")));
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("tests failed in {}\n{}", failed.join(", "), summary.join("\n")))
}

/// What it prints, and whether it ended well.
fn captured(tests: &mut Command) -> (bool, String) {
    let line = describe(tests);
    match tests.stdin(Stdio::null()).stderr(Stdio::piped()).output() {
        Ok(output) => {
            let [text, errors] =
                [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            (output.status.success(), format!("{text}{errors}"))
        }
        Err(error) => (false, format!("cannot run `{line}`: {error}")),
    }
}

/// Builds all that is tested with clippy, and denies its warnings. Programs that start daemons and load come first, since they take
/// longest, and then what else waits.
pub(crate) fn build() -> Result<Vec<Program>> {
    let mut build = cargo_test();
    build.args(["--workspace", "--all-targets", "--no-run", "--message-format=json"]);
    let line = describe(&build);
    let built = build.stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("cannot run `{line}`: {error}"))?;
    let messages = String::from_utf8_lossy(&built.stdout);
    let messages: Vec<Value> =
        messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    let diagnostics: Vec<&str> =
        messages.iter().filter_map(|message| message["message"]["rendered"].as_str()).collect();
    if !built.status.success() || !diagnostics.is_empty() {
        return Err(format!(
            "{}`{line}`: {}, and no warnings are allowed",
            diagnostics.concat(),
            built.status
        ));
    }
    let mut programs: Vec<Program> = messages.iter().filter_map(program).collect();
    if let Some(place) = programs.iter().position(|program| program.name.starts_with(LONGEST)) {
        let others = LONG.iter().flat_map(|tests| ["--skip", tests]).collect();
        programs.push(Program { chosen: others, ..programs[place].clone() });
        programs[place].chosen = LONG.to_vec();
    }
    programs.sort_by_key(|Program { name, .. }| (!name.starts_with(LONGEST), !name.contains("/tests/")));
    if programs.is_empty() { Err("cargo names no test program".into()) } else { Ok(programs) }
}

/// The program of a `compiler-artifact` message of cargo, if it holds tests.
fn program(message: &Value) -> Option<Program> {
    // Benches are tested by being built.
    if message["profile"]["test"] != true || message["target"]["kind"][0] == "bench" {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let name = source.strip_prefix(crate::command::root()).unwrap_or(source).display().to_string();
    Some(Program { path, name, package, chosen: Vec::new() })
}
