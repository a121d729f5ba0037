//! The workspace's tests, with as many of their programs at a time as there are cores. `cargo test` runs them
//! one by one, and many of them wait more than they work.

use crate::command::{Result, cargo_test, command, describe};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// A program that holds tests.
#[derive(Clone)]
pub(crate) struct Program {
    path: PathBuf,
    /// The path of its source, within its package.
    name: String,
    /// The directory of its package, in which it runs.
    package: PathBuf,
    /// Arguments that select its tests.
    chosen: Vec<&'static str>,
}

/// The program with the longest tests, and those tests: others run in parallel with them, not before.
const LONGEST: &str = "crates/lunette/tests";
const LONG: [&str; 3] = ["libiscsi::", "real_input::", "report::"];

/// What is repeated at the end of the output, where it is seen: failed tests, and lines and characters of each.
const REPEATED_TESTS_MAX: usize = 10;
const REPEATED_LINES_MAX: usize = 40;
const REPEATED_CHARACTERS_MAX: usize = 500;

/// Builds all tests and runs those selected by these arguments; adds the lines of the summary.
pub(crate) fn run(arguments: &[&str], threads: usize, summary: &mut Vec<String>) -> Result {
    let programs = build()?;
    let (queue, done) = (Mutex::new(programs.iter()), Mutex::new((Vec::new(), Vec::new())));
    let next = || queue.lock().expect("no worker panics").next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let mut tests = command(&program.path);
                    // Like cargo.
                    tests.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
                    tests.args(&program.chosen).args(arguments).env("RUST_TEST_THREADS", threads.to_string());
                    let (passed, text) = captured(&mut tests);
                    let mut done = done.lock().expect("no worker panics");
                    println!("     Running {}\n{text}", program.name);
                    let line = text.lines().rev().find(|line| line.starts_with("test result: "));
                    done.0.extend(line.map(|line| format!("{line} [{}]", program.name)));
                    if !passed {
                        done.1.push((program.name.clone(), failures(&text)));
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
    let (names, reports): (Vec<String>, Vec<Vec<String>>) = failed.into_iter().unzip();
    let mut reports = reports.concat();
    let left_out = reports.len().saturating_sub(REPEATED_TESTS_MAX);
    if left_out > 0 {
        reports.truncate(REPEATED_TESTS_MAX);
        reports.push(format!("... and {left_out} more"));
    }
    let (names, reports) = (names.join(", "), reports.join("\n\n"));
    Err(format!("tests failed in {names}\n\n{reports}\n\n{}", summary.join("\n")))
}

/// The failed tests in a test program's output: the name of each, and what it printed from its panic on. Without
/// any, the program itself failed, and its last lines say why.
fn failures(text: &str) -> Vec<String> {
    let name = |line: &str| line.strip_prefix("---- ")?.strip_suffix(" stdout ----").map(str::to_owned);
    let mut tests: Vec<(String, Vec<&str>)> = Vec::new();
    let mut lines = text.lines().skip_while(|line| *line != "failures:").skip(1);
    // The list of their names comes under the same heading.
    for line in lines.by_ref().take_while(|line| *line != "failures:") {
        match (name(line), tests.last_mut()) {
            (Some(name), _) => tests.push((name, Vec::new())),
            (None, Some((_, printed))) => printed.push(line),
            (None, None) => {}
        }
    }
    if tests.is_empty() {
        let lines: Vec<&str> = text.lines().collect();
        return vec![excerpt(&lines[lines.len().saturating_sub(REPEATED_LINES_MAX)..])];
    }
    let report = |(name, printed): (String, Vec<&str>)| {
        let panic = printed.iter().position(|line| line.contains(" panicked at ")).unwrap_or(0);
        format!("---- {name}\n{}", excerpt(&printed[panic..]))
    };
    tests.into_iter().map(report).collect()
}

/// The first of these lines, without what follows the last that is not empty.
fn excerpt(lines: &[&str]) -> String {
    let len = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    let first = lines[..len].iter().take(REPEATED_LINES_MAX);
    let mut shown: Vec<String> =
        first.map(|line| line.chars().take(REPEATED_CHARACTERS_MAX).collect()).collect();
    if len > shown.len() {
        shown.push(format!("... {} more lines above", len - shown.len()));
    }
    shown.join("\n")
}

/// Its output, and whether it succeeded.
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

/// Builds all tests with clippy, and denies warnings. Programs that start daemons and load come first, since
/// they take longest, then others that wait.
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

/// The program in a `compiler-artifact` message of cargo, if it contains tests.
fn program(message: &Value) -> Option<Program> {
    // For benches, building is the test.
    if message["profile"]["test"] != true || message["target"]["kind"][0] == "bench" {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let name = source.strip_prefix(crate::command::root()).unwrap_or(source).display().to_string();
    Some(Program { path, name, package, chosen: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_repeated_from_their_panic_on() {
        let long = "x".repeat(2 * REPEATED_CHARACTERS_MAX);
        let log: String = (0..50).map(|line| format!("line {line}\n")).collect();
        let text = format!(
            "\nrunning 3 tests\ntest good ... ok\ntest a::bad ... FAILED\ntest worse ... FAILED\n\nfailures:\n\n\
             ---- a::bad stdout ----\nbefore\n\nthread 'a::bad' (7) panicked at tests/a.rs:3:5:\n\
             assertion failed: {long}\n\n\n---- worse stdout ----\nthread 'worse' (8) panicked at b.rs:1:1:\n\
             {log}\n\nfailures:\n    a::bad\n    worse\n\ntest result: FAILED. 1 passed; 2 failed\n\nnoise\n"
        );
        let [bad, worse] = &failures(&text)[..] else { panic!("two tests failed") };
        let shown = &long[..REPEATED_CHARACTERS_MAX - "assertion failed: ".len()];
        let expected = "---- a::bad\nthread 'a::bad' (7) panicked at tests/a.rs:3:5:\nassertion failed: ";
        assert_eq!(*bad, format!("{expected}{shown}"));
        assert!(worse.starts_with("---- worse\nthread 'worse' (8) panicked at b.rs:1:1:\nline 0\n"));
        assert!(worse.ends_with("line 38\n... 11 more lines above"), "{worse}");
    }

    #[test]
    fn of_a_program_that_was_killed_the_last_lines_are_repeated() {
        let text: String = (0..50).map(|line| format!("line {line}\n")).collect();
        let [report] = &failures(&format!("{text}memory allocation of 8 bytes failed\n"))[..] else {
            panic!("one report")
        };
        assert!(report.starts_with("line 11\n") && report.ends_with("\nmemory allocation of 8 bytes failed"));
    }
}
