//! `lunette bench`, as used by a person and by a program.

use crate::support::daemon::Daemon;
use crate::support::tools::{Outcome, must, read_text, run, spawn, tool, wait};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Short runs: these tests are about what is reported, not about speed.
const BRIEF: &str = "200ms";
/// Longer ones, if nothing happened in those: a busy machine may not get round to it.
const LONGER: [&str; 4] = [BRIEF, "1s", "5s", "20s"];

fn bench(arguments: &[&str]) -> Command {
    bench_for(BRIEF, arguments)
}

fn bench_for(runtime: &str, arguments: &[&str]) -> Command {
    let mut command = Daemon::command();
    command.arg("bench").args(arguments).args(["--runtime", runtime, "--ramp", "0", "--iodepth", "4"]);
    command.env_remove("RUST_LOG");
    command
}

fn output(arguments: &[&str]) -> Output {
    bench(arguments).output().expect("the program runs")
}

/// Runs with JSON on standard output.
fn measured(arguments: &[&str]) -> Value {
    let output = output(&[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// The same, of a run that was long enough for this.
fn measured_until(arguments: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
    let mut errors = String::new();
    for runtime in LONGER {
        let output = bench_for(runtime, arguments).arg("--json").output().expect("the program runs");
        errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_too_short = errors.contains("nothing was verified");
        assert!(output.status.success() || is_too_short, "{arguments:?}: {errors}");
        let document = serde_json::from_slice(&output.stdout);
        let document = document.unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        if !is_too_short && holds(&document) {
            return document;
        }
        errors = format!("{errors}{document}");
    }
    panic!("{arguments:?}: {errors}");
}

fn operations(document: &Value, stream: &str) -> u64 {
    document["jobs"][0][stream]["total_ios"].as_u64().expect("a number of operations")
}

/// The single line of a refusal.
fn refusal(arguments: &[&str]) -> String {
    let outcome = run(bench(arguments).args(["--seed", "1"]), Duration::from_secs(60));
    one_line(arguments, &outcome)
}

fn one_line(arguments: &[&str], outcome: &Outcome) -> String {
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(2), "{arguments:?}:\n{}", outcome.text);
    let lines: Vec<&str> = outcome.text.lines().collect();
    assert_eq!(lines.len(), 1, "{arguments:?}:\n{}", outcome.text);
    assert!(lines[0].starts_with("lunette: "), "{}", lines[0]);
    lines[0].to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn a_run_ends_in_a_table() {
    let output = output(&["ram:16M"]);
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).expect("text");
    for part in
        ["randread, 4 KiB, depth 4, 1 job", "ram:16M", "IOPS", "p99.9", "read ", "this process", "Limit: "]
    {
        assert!(table.contains(part), "{part}:\n{table}");
    }
    assert!(!table.contains("target"), "there is no other side:\n{table}");
}

#[test]
fn json_and_csv_report_the_same_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (json, csv) = (directory.path().join("r.json"), directory.path().join("r.csv"));
    let (to_json, to_csv) = (format!("--json={}", text(&json)), format!("--csv={}", text(&csv)));
    let arguments = ["ram:16M", "--rw", "randrw", "--rwmixread", "75", &to_json, &to_csv];
    let documents = LONGER.iter().map(|runtime| {
        let output = bench_for(runtime, &arguments).output().expect("the program runs");
        assert!(
            output.status.success() && output.stdout.starts_with(b"randrw with 75 % reads"),
            "the table is printed too"
        );
        serde_json::from_str(&read_text(&json)).expect("JSON")
    });
    // So that three of four are reads.
    let is_long = |document: &Value| operations(document, "read") + operations(document, "write") > 500;
    let document: Value = documents.into_iter().find(is_long).expect("operations");
    assert_eq!(document["fio version"], "fio-3.33");
    assert_eq!(document["jobs"][0]["job options"]["rwmixread"], "75");
    let (reads, writes) = (operations(&document, "read"), operations(&document, "write"));
    assert!(reads > writes && writes > 0, "{reads} reads, {writes} writes");
    assert_eq!(document["lunette"]["result"]["read"]["operations"], reads);
    let csv = read_text(&csv);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = lines[0].iter().position(|name| *name == "operations").expect("a column");
    assert_eq!(lines.len(), 3, "{csv}");
    assert_eq!((lines[1][column], lines[2][column]), (&*reads.to_string(), &*writes.to_string()));
}

#[test]
fn written_blocks_are_read_back_also_where_nothing_else_reads() {
    let write = ["--rw", "randwrite", "--verify"];
    let kept = measured_until(&[&["ram:1M"], &write[..]].concat(), |_| true);
    let counts = &kept["lunette"]["result"]["verify"];
    assert!(counts["checked"].as_u64() > Some(0) && counts["unread"] == 0, "{counts}");
    let write = [&write[..], &["--size", "64K"]].concat();
    let forgotten = output(&[&["null:1M"], &write[..]].concat());
    let (printed, errors) =
        (String::from_utf8_lossy(&forgotten.stdout), String::from_utf8_lossy(&forgotten.stderr));
    assert_eq!(forgotten.status.code(), Some(1), "{printed}{errors}");
    assert!(
        printed.contains("VERIFY FAILED: ") && errors.contains("blocks differ from what was written"),
        "{printed}{errors}"
    );
    let forgotten = output(&[&["null:1M", "--json"], &write[..]].concat());
    let document: Value = serde_json::from_slice(&forgotten.stdout).expect("JSON");
    assert_eq!(document["jobs"][0]["error"], 84, "EILSEQ, as fio says it");
}

#[test]
fn a_result_that_cannot_be_written_is_refused_before_the_run_or_fails_after_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let nowhere = text(&directory.path().join("none/r.json")).to_owned();
    for option in ["--json", "--csv"] {
        // It would write to the disk, had it started.
        let disk = directory.path().join("disk");
        let said = refusal(&[text(&disk), "--rw", "write", "--size", "1M", &format!("{option}={nowhere}")]);
        assert!(said.contains(&nowhere) && said.contains("could not be written there"), "{said}");
        assert!(!disk.exists(), "nothing was done");
    }
    let full = File::options().write(true).open("/dev/full").expect("a device that is full");
    for (option, to_full) in [("--json", true), ("--csv=/dev/full", false), ("--poll=never", true)] {
        let stdout = if to_full { full.try_clone().expect("shared").into() } else { Stdio::null() };
        let output = bench(&["ram:16M", option]).stdout(stdout).output().expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{option}: {said}");
        assert!(said.contains("No space left on device"), "{option}: {said}");
    }
}

#[test]
fn a_run_that_fails_leaves_the_files_for_results_as_they_were() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (old, new) = (directory.path().join("old.json"), directory.path().join("new.csv"));
    std::fs::write(&old, "the last result, which was longer than nothing").expect("written");
    let (to_old, to_new) = (format!("--json={}", text(&old)), format!("--csv={}", text(&new)));
    refusal(&["/nonexistent", &to_old, &to_new]);
    assert_eq!(read_text(&old), "the last result, which was longer than nothing");
    assert!(!new.exists());
    assert!(output(&["ram:16M", &to_old, &to_new]).status.success());
    serde_json::from_str::<Value>(&read_text(&old)).expect("JSON alone");
    assert!(read_text(&new).lines().count() > 1);
}

#[test]
fn units_are_measured_over_every_transport() {
    let daemon = Daemon::serve(["--srp", "127.0.0.1:0", "--lun", "ram:16M"]);
    for (scheme, options) in [
        ("iscsi", &["--data-digest"][..]),
        ("iser", &[]),
        ("srp", &[]),
        ("srp", &["--no-immediate-data"]),
        ("srp", &["--bs", "64K"]),
    ] {
        let url = daemon.url_over(scheme);
        let load = [&url, "--rw", "randrw", "--verify", "--numjobs", "2", "--yes"];
        let document = measured_until(&[&load[..], options].concat(), |document| {
            operations(document, "read") > 0 && operations(document, "write") > 0
        });
        assert_eq!(document["jobs"][0]["error"], 0, "{url}");
    }
    let url = daemon.url_over("srp");
    let said = refusal(&[&url, "--data-digest"]);
    assert!(said.contains("crc=on"), "{said}");
    daemon.stop();
}

#[test]
fn a_rate_is_bytes_per_second_as_fio_has_it() {
    let moved = |option: &str, value: &str| operations(&measured(&["ram:16M", option, value]), "read");
    // In a fifth of a second: 80 bytes and the first operation, or 20 operations of 4 KiB.
    assert_eq!(moved("--rate", "400"), 1);
    assert!((1..=21).contains(&moved("--rate", "400K")));
    assert!((1..=21).contains(&moved("--rate-iops", "100")));
}

#[test]
fn every_pattern_moves_what_it_says() {
    for (options, reads, writes, trims) in [
        (&["--rw", "read"][..], true, false, false),
        (&["--rw", "write", "--bs", "64K"], false, true, false),
        (&["--rw", "randwrite", "--buffer-compress", "50"], false, true, false),
        (&["--rw", "trim"], false, false, true),
        (&["--reads", "3", "--writes", "1"], true, true, false),
        (&["--reads", "3"], true, false, false),
        (&["--bidirectional", "--rw", "read"], true, true, false),
        (&["--sgp", "--rw", "read", "--numjobs", "2"], true, false, false),
        (&["--rate-iops", "50", "--offset", "1M", "--size", "2M", "--poll", "never"], true, false, false),
        (&["--rw", "randrw", "--verify", "--size", "1M"], true, true, false),
    ] {
        measured_until(&[&["ram:16M"], options].concat(), |document| {
            let moved = ["read", "write", "trim"].map(|stream| operations(document, stream) > 0);
            let expected = [reads, writes, trims];
            assert!(moved.iter().zip(expected).all(|(moved, may)| may || !moved), "{options:?}");
            moved == expected
        });
    }
}

#[test]
fn a_file_that_holds_data_is_not_written_without_yes() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("disk");
    let name = text(&path);
    let write = [name, "--rw", "randwrite"];
    assert!(refusal(&write).contains("--size creates a new file"));
    assert!(!path.exists(), "a refused run makes nothing");
    // From the start on, where data is found.
    measured(&[name, "--rw", "write", "--size", "1M"]);
    let before = std::fs::read(&path).expect("it was made");
    assert_eq!(before.len(), 1 << 20);
    let line = refusal(&write);
    assert!(line.contains("it holds data at byte ") && line.contains("--yes"), "{line}");
    assert!(before == std::fs::read(&path).expect("readable"), "nothing was written");
    measured(&[name]);
    let verified = measured_until(&[&write[..], &["--yes", "--verify"]].concat(), |_| true);
    assert_eq!(verified["lunette"]["result"]["verify"]["torn"], 0);
    let mut image = vec![0; 1 << 20];
    image[1080..1082].copy_from_slice(b"\x53\xef");
    std::fs::write(&path, image).expect("written");
    let line = refusal(&[&write[..], &["--bs", "512"]].concat());
    assert!(line.contains("an ext2, ext3 or ext4 file system"), "{line}");
}

#[test]
fn units_of_other_targets_are_measured_with_the_cpu_of_both_sides() {
    let daemon = Daemon::serve(["--lun", "ram:16M", "--lun", "ram:16M"]);
    let (first, second) = (daemon.lun(0).to_string(), daemon.lun(1).to_string());
    let pid = daemon.pid().to_string();
    let document = measured(&[
        &first,
        &second,
        "--target-pid",
        &pid,
        "--header-digest",
        "--data-digest",
        "--numjobs",
        "2",
    ]);
    assert!(operations(&document, "read") > 0);
    let result = &document["lunette"]["result"];
    assert!(result["target_cpu"]["user_seconds"].is_number(), "{result}");
    assert_eq!(result["targets"].as_array().expect("a list").len(), 2);
    let write = [first.as_str(), "--rw", "write"];
    measured(&write);
    let line = refusal(&write);
    assert!(line.contains("it holds data") && line.contains("--yes"), "{line}");
    measured(&[&write[..], &["--yes"]].concat());
    daemon.stop();
}

#[test]
fn no_secret_is_shown() {
    let output = output(&["iscsi://user%opensesame1234@127.0.0.1:1/iqn.2026-11.a:x/0"]);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("127.0.0.1:1") && !text.contains("opensesame"), "{text}");
}

#[test]
fn an_interrupt_ends_a_run_with_what_was_measured() {
    let output = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut command = Daemon::command();
    command.args(["bench", "ram:16M", "--runtime", "1h", "--ramp", "0"]);
    let mut child = spawn(&mut command, output.as_file());
    let start = Instant::now();
    // It handles signals even before its first line.
    while !read_text(output.path()).contains("IOPS") && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    must(tool("kill").args(["-INT", &child.id().to_string()]));
    let status = wait(&mut child, Duration::from_secs(60)).expect("it ends");
    let text = read_text(output.path());
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("Limit: ") && text.contains("lunette: interrupted after "), "{text}");
    assert!(text.contains("busiest core "), "a line each second where there is no terminal:\n{text}");
    assert!(!text.contains('\x1b'), "and no control sequences:\n{text}");
}

#[test]
fn wrong_options_are_answered_with_one_line() {
    let wrong: [(&[&str], &str); 45] = [
        (&[], "<TARGET>"),
        (&["ram:"], "is not a size"),
        (&["ram:1X"], "1X"),
        (&["/nowhere/disk"], "/nowhere/disk"),
        (&["/dev/null"], "not a regular file"),
        (&["iscsi://"], "iscsi://"),
        (&["ram:1M", "--rw", "sideways"], "sideways"),
        (&["ram:1M", "--rwmixread", "101"], "--rwmixread"),
        (&["ram:1M", "--rwmixread", "x"], "--rwmixread"),
        (&["ram:1M", "--bs", "0"], "--bs"),
        (&["ram:1M", "--bs", "4Q"], "4Q"),
        (&["ram:1M", "--bs", "1M"], "262144"),
        (&["ram:1M", "--bs", "8G"], "too much for one operation"),
        (&["ram:1M", "--bs", "1000"], "multiples"),
        (&["ram:1M", "--numjobs", "0"], "--numjobs"),
        (&["ram:1M", "--numjobs", "5000"], "1024"),
        (&["ram:1M", "--rate", "-1"], "--rate"),
        (&["ram:1M", "--rate", "0"], "--rate"),
        (&["ram:1M", "--rate", "fast"], "--rate"),
        (&["ram:1M", "--rate-iops", "-1"], "--rate-iops"),
        (&["ram:1M", "--rate-iops", "0"], "--rate-iops"),
        (&["ram:1M", "--rate-iops", "10M"], "--rate-iops"),
        (&["ram:1M", "--rate", "1M", "--rate-iops", "5"], "cannot be used with"),
        (&["ram:1M", "--size", "2M"], "--size"),
        (&["ram:1M", "--offset", "2M"], "--offset"),
        (&["ram:1M", "--verify", "--rw", "trim"], "--verify"),
        (&["ram:1M", "--verify"], "only reads"),
        (&["ram:1M", "--buffer-compress", "200"], "--buffer-compress"),
        (&["ram:1M", "--reads", "0", "--writes", "0"], "in flight"),
        (&["ram:1M", "--reads", "1", "--sgp"], "--sgp"),
        (&["ram:1M", "--sgp", "--bidirectional"], "--bidirectional"),
        (&["ram:1M", "--sgp"], "in order"),
        (&["ram:1M", "--cores", "x"], "--cores"),
        (&["ram:1M", "--cores", "4095"], "4095"),
        (&["ram:1M", "--poll", "often"], "often"),
        (&["ram:1M", "--data-digest"], "iSCSI URL"),
        (&["ram:1M", "--no-immediate-data"], "iSCSI URL"),
        (&["ram:1M", "--target-pid", "4194305"], "4194305"),
        (&["ram:1M", "--target-pid", "1", "--target-admin", "./a"], "cannot be used with"),
        (&["ram:1M", "--target-admin", "localhost:x"], "--target-admin http://localhost:x: the port is not"),
        (&["ram:1M", "--target-admin", "/nonexistent/a.sock"], "its address with --target-admin"),
        (&["ram:1M", "--target-admin", "localhost:1", "--admin-ca", "ca.pem"], "place with --target-admin"),
        (&["ram:1M", "--admin-ca", "ca.pem"], "--target-admin"),
        (&["ram:1M", "--json", "--csv"], "standard output"),
        (&["ram:1M", "--frobnicate"], "--frobnicate"),
    ];
    for (arguments, named) in wrong {
        let line = refusal(arguments);
        assert!(line.contains(named), "{arguments:?}: {line}");
    }
    for (option, value, named) in [
        ("--iodepth", "0", "--iodepth"),
        ("--iodepth", "99999", "at most 4096"),
        ("--runtime", "0", "--runtime"),
        ("--runtime", "soon", "`soon` is not a time"),
        ("--ramp", "-1", "`-1` is not a time"),
    ] {
        let mut command = Daemon::command();
        let outcome = run(command.args(["bench", "ram:1M", option, value]), Duration::from_secs(60));
        let line = one_line(&[option, value], &outcome);
        assert!(line.contains(named), "{line}");
    }
}

#[test]
fn help_names_every_option() {
    let help =
        run(Daemon::command().args(["bench", "--help"]), Duration::from_secs(120)).expect_success("help");
    let options = "--rw --rwmixread --bs --iodepth --numjobs --runtime --ramp --rate --rate-iops --size --offset --verify --seed \
                   --buffer-compress --reads --writes --sgp --bidirectional --cores --poll --header-digest \
                   --data-digest --no-immediate-data --target-pid --target-admin --admin-ca --json --csv --status-interval --yes";
    for option in options.split_whitespace() {
        assert!(help.contains(option), "{option}:\n{help}");
    }
}
