//! `lunette report`, as used by a person.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::daemon::Daemon;
use crate::support::tools::{must, tool};
use crate::support::wait_until;
use tempfile::TempDir;

fn report(arguments: &[&str]) -> Output {
    Daemon::command().arg("report").args(arguments).output().expect("lunette runs")
}

/// What a loaded machine may have no time for: any operation, a login, to open a unit before its daemon starts.
const SHORT_OF_TIME: [&str; 3] = ["no operation finished", "login took too long", "CAUSE NOT REPORTABLE"];

/// A report. Runs that failed on a loaded machine are retried.
fn report_when_there_is_time(arguments: &[&str]) -> Output {
    let mut made = report(arguments);
    for _ in 0..10 {
        let text = text_of(&made);
        if !SHORT_OF_TIME.iter().any(|reason| text.contains(reason)) {
            break;
        }
        made = report(&[arguments, &["--resume"]].concat());
    }
    made
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A figure of all rows that have it, each with the row's line.
fn column(out: &Path, name: &str) -> Vec<(String, f64)> {
    let csv = fs::read_to_string(out.join("results.csv")).expect("a table");
    let heading: Vec<&str> = csv.lines().next().expect("a heading").split(',').collect();
    let place = heading.iter().position(|other| *other == name).expect("such a column");
    let figure = |line: &str| {
        // From the right: names on the left contain commas.
        let text = line.rsplit(',').nth(heading.len() - 1 - place).unwrap_or_default();
        Some((line.to_string(), text.parse().ok()?))
    };
    let figures: Vec<(String, f64)> = csv.lines().skip(1).filter_map(figure).collect();
    assert!(!figures.is_empty(), "{csv}");
    figures
}

/// Measures a plan into a separate directory.
fn measured(plan: &str, options: &[&str]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (file, out) = (directory.path().join("plan.toml"), directory.path().join("out"));
    fs::write(&file, plan).expect("the plan is written");
    let arguments = [file.to_str().expect("UTF-8"), "-o", out.to_str().expect("UTF-8")];
    let made = report_when_there_is_time(&[&arguments[..], options].concat());
    assert!(made.status.success(), "{}", text_of(&made));
    (directory, out)
}

const PLAN: &str = "
[[target]]
name = 'memory'
store = 'ram:64M'
transport = ['local', 'iscsi']

[[target]]
name = 'file'
store = 'disk:64M'

[[target]]
name = 'chain'
store = 'null:1G'
hops = 1

[[matrix]]
rw = ['randread', 'both']
luns = [1, 2]
initiators = 2
immediate_data = false
digests = 'both'
";

#[test]
fn a_plan_is_measured_and_gone_on_with() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (plan, out) = (directory.path().join("plan.toml"), directory.path().join("out"));
    fs::write(&plan, PLAN).expect("the plan is written");
    let theirs = out.join("packages/keep");
    fs::create_dir_all(theirs.parent().expect("a directory")).expect("a directory is made");
    fs::write(&theirs, "theirs").expect("a file is written");
    let arguments = [plan.to_str().expect("UTF-8"), "--quick", "-o", out.to_str().expect("UTF-8")];
    let made = report_when_there_is_time(&arguments);
    assert!(made.status.success(), "{}", text_of(&made));
    let left: Vec<String> = fs::read_dir(&out)
        .expect("the directory is there")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(left.len(), 6, "files of LUNs are removed: {left:?}");
    assert!(theirs.exists(), "what others put there is not");
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    assert!(!page.contains("Incomplete"), "{}", text_of(&made));
    assert!(page.contains("lunette serve --listen 127.0.0.1:0 --lun ram:64M"), "commands are shown");
    let benches: Vec<&str> = page.lines().filter(|line| line.contains("lunette bench ")).collect();
    for line in &benches {
        let is_fill = line.contains("--rw write --bs 262144");
        let over_iscsi = line.contains("iscsi://");
        assert_eq!(line.contains("--no-immediate-data"), over_iscsi && !is_fill, "{line}");
        assert_eq!(line.contains("?initiator_name=iqn."), over_iscsi && !is_fill, "{line}");
    }
    // Memory behind iSCSI: rows of one LUN and of two, each in two directions.
    assert_eq!(benches.iter().filter(|line| line.contains("everything was written")).count(), 2 * 3);
    assert!(column(&out, "errors").iter().all(|(_, errors)| *errors == 0.0));

    let again = report(&arguments);
    assert!(!again.status.success() && text_of(&again).contains("--resume"), "{}", text_of(&again));
    fs::remove_file(out.join("raw/002-00003.json")).expect("a run is there");
    let resumed = report(&[&arguments[..], &["--resume"]].concat());
    assert!(resumed.status.success(), "{}", text_of(&resumed));
    assert_eq!(
        text_of(&resumed).matches("repetition ").count(),
        1,
        "one run was missing: {}",
        text_of(&resumed)
    );
}

/// The running `lunette serve` that a report started.
fn served_by(report: u32) -> Option<u32> {
    let mut processes = fs::read_dir("/proc")
        .expect("processes")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let serves = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        words.nth(1) == Some(b"serve") && status.contains(&format!("PPid:\t{report}\n"))
    };
    processes.find(serves)
}

#[test]
fn no_target_outlives_a_report() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let plan = directory.path().join("plan.toml");
    let text =
        "runtime = '1h'\n[[target]]\nname = 'a'\nstore = 'null:64M'\n[[matrix]]\nscheduling = 'one core'";
    fs::write(&plan, text).expect("the plan is written");
    for signal in [Signal::KILL, Signal::HUP] {
        let out = directory.path().join(format!("{signal:?}"));
        // The tests may be run with SIGHUP ignored, as by nohup; a report would then continue, too.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(Daemon::program()).arg("report").stdin(Stdio::null());
        command.arg(&plan).arg("-o").arg(&out).stderr(Stdio::null());
        let mut report = command.spawn().expect("lunette runs");
        let mut target = None;
        wait_until("no target is started", || {
            target = served_by(report.id());
            target.is_some()
        });
        kill_process(Pid::from_child(&report), signal).expect("the report runs");
        let ended = report.wait().expect("it ends");
        assert_eq!(ended.code(), (signal == Signal::HUP).then_some(130), "{ended}");
        // A child that nobody waits for stays a zombie.
        let status = format!("/proc/{}/status", target.expect("it was found"));
        wait_until("the target lives on", || {
            fs::read_to_string(&status).map_or(true, |status| status.contains("State:\tZ"))
        });
    }
}

#[test]
fn tgt_is_measured_beside_ours() {
    let plan = "
        repetitions = 1
        [[target]]
        name = 'null'
        store = 'null:64M'
        [[target]]
        name = 'memory'
        store = 'ram:64M'
        [[target]]
        name = 'file'
        store = 'disk:64M'
        [[target]]
        name = 'behind ours'
        kind = 'tgt'
        store = 'tmpfs:64M'
        hops = 1
        [[matrix]]
        rw = 'randrw'
        luns = [1, 2]
        digests = ['none', 'both']
        scheduling = 'one core'
        ";
    let (_directory, out) = measured(plan, &["--quick", "--peer", "tgt"]);
    let (iops, cpu) = (column(&out, "iops"), column(&out, "target_cpu_us_per_command"));
    let whole = |(line, _): &&(String, f64)| line.contains(",all,");
    // Seven targets, four combinations.
    assert_eq!(iops.iter().filter(whole).count(), 28);
    assert_eq!(cpu.iter().filter(whole).count(), 28);
    assert!(iops.iter().all(|(_, figure)| *figure > 0.0), "{iops:?}");
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    for part in ["taskset --cpu-list 0 tgtd -f --iscsi portal=127.0.0.1:", "--bstype null", "it never spins"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(fs::read_dir(&out).expect("the directory is there").count(), 5, "files of LUNs are removed");
}

#[test]
fn a_target_that_runs_is_measured_beside_ours() {
    let running = Daemon::serve(["--lun", "null:64M"]);
    let plan = "[[target]]\nname = 'ours'\nstore = 'null:64M'\n[[matrix]]\nluns = [1, 2]";
    let url = running.lun(0).to_string();
    let (_directory, out) = measured(plan, &["--quick", "--peer", &url]);
    let iops = column(&out, "iops");
    let theirs: Vec<_> = iops.iter().filter(|(line, _)| line.contains(&url)).collect();
    assert!(theirs.len() == 1 && theirs[0].1 > 0.0, "it is one LUN: {iops:?}");
    assert_eq!(iops.len(), 3);
}

/// Needs root, as making a network namespace does.
#[test]
fn a_link_holds_all_kinds_of_targets_to_its_rate() {
    let plan = "
        repetitions = 1
        runtime = '1s'
        ramp = '200ms'
        [[target]]
        name = 'ours'
        store = 'ram:64M'
        link = '100mbit'
        [[target]]
        name = 'tgt'
        kind = 'tgt'
        store = 'null:64M'
        link = '100mbit'
        [[target]]
        name = 'ceiling'
        kind = 'ceiling'
        link = '100mbit'
        [[matrix]]
        rw = ['randread', 'randwrite']
        bs = '64K'
        iodepth = 1
        ";
    let (_directory, out) = measured(plan, &[]);
    for (line, bytes) in column(&out, "bytes_per_second") {
        assert!(bytes > 0.0 && bytes < 13e6, "{line}");
    }
    assert_eq!(column(&out, "target_cpu_us_per_command").len(), 6);
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    let exec = page.split("ip netns exec ").skip(1).map(|rest| rest.split(' ').next().unwrap_or_default());
    let names: Vec<&str> = exec.collect();
    assert_eq!(names.len(), 6, "{page}");
    assert!(page.contains("rate 100Mbit") && page.contains("tc qdisc add dev "), "{page}");
    let left = must(tool("ip").args(["netns", "list"])) + &must(tool("ip").args(["link", "show"]));
    for name in names {
        let number = name.strip_prefix("lunette-").expect("our name");
        assert!(!left.contains(number), "{left}");
    }
}

#[test]
fn a_link_that_cannot_be_made_is_reported_before_anything_runs() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (plan, out) = (directory.path().join("plan.toml"), directory.path().join("out"));
    fs::write(&plan, "[[target]]\nname = 'a'\nlink = '1gbit'\n[[matrix]]\n").expect("written");
    let mut command = tool("setpriv");
    command.args(["--bounding-set", "-net_admin,-sys_admin"]).arg(Daemon::program()).arg("report");
    let refused = command.arg(&plan).arg("-o").arg(&out).output().expect("setpriv runs");
    assert_eq!(refused.status.code(), Some(2), "{}", text_of(&refused));
    for part in
        ["cannot create a link (1 Gbit/s): ", "not permitted", "run lunette report with them, or leave out"]
    {
        assert!(text_of(&refused).contains(part), "{}", text_of(&refused));
    }
    assert!(!out.join("index.html").exists());
}

#[test]
fn every_figure_is_shown_as_a_share_of_a_ceiling() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (plan, out) = (directory.path().join("plan.toml"), directory.path().join("out"));
    let text = "repetitions = 1\n[[target]]\nname = 'null'\nstore = 'null:1G'\n[[target]]\nname = 'top'\nkind = 'ceiling'\n\
                [[matrix]]\nscheduling = ['free', 'one core']\nrw = ['randread', 'both']\nluns = [1, 2]\n\
                immediate_data = false\ndigests = ['none', 'both']\n";
    fs::write(&plan, text).expect("the plan is written");
    let arguments = [plan.to_str().expect("UTF-8"), "--quick", "-o", out.to_str().expect("UTF-8")];
    let made = report_when_there_is_time(&arguments);
    assert!(made.status.success(), "{}", text_of(&made));
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    for ending in ["--poll never\n", "--poll never --cores 0\n"] {
        let command = format!("lunette ceiling --listen 127.0.0.1:0 {ending}");
        assert!(page.contains(&command), "{command} is not shown");
    }
    let csv = fs::read_to_string(out.join("results.csv")).expect("a table");
    let mut lines = csv.lines().map(|line| line.rsplit(',').collect::<Vec<_>>());
    let heading = lines.next().expect("a heading");
    // From the right: names on the left contain commas.
    let column = |name: &str| heading.iter().position(|title| *title == name).expect("a column");
    let of_ceiling = |figure: &str| column(&format!("{figure}_of_ceiling"));
    let (mut rows, mut counted) = (0, 0);
    for fields in lines {
        rows += 1;
        assert_eq!(fields[column("errors")], "0", "{fields:?}");
        let is_ceiling = fields[fields.len() - 2] == "top";
        let is_both = fields.contains(&"read and write");
        let part = fields[column("operations")];
        // Streams have no CPU figure of their own, and two of them no common latency.
        let (has_cpu, has_latency) = (part == "all", part != "all" || !is_both);
        assert_eq!(!fields[column("target_cpu_us_per_command")].is_empty(), has_cpu, "{fields:?}");
        for (figure, is_there) in [
            ("iops", true),
            ("bytes_per_second", true),
            ("latency_p50", has_latency),
            ("latency_p99", has_latency),
            ("target_cpu", has_cpu),
            ("initiator_cpu", has_cpu),
        ] {
            let share = fields[of_ceiling(figure)].parse::<f64>().ok();
            // The system counts a process's time in ticks of 10 ms: a short run may have used none, nor its
            // ceiling.
            let is_uncounted = figure.ends_with("_cpu") && share.is_none_or(|share| share == 0.0);
            counted += u32::from(figure.ends_with("_cpu") && share > Some(0.0));
            assert!(
                if is_there && !is_ceiling { is_uncounted || share > Some(0.0) } else { share.is_none() },
                "{figure}: {fields:?}"
            );
        }
    }
    assert!(counted > 0, "all together take more than a tick: {csv}");
    // Two targets, two schedulings, digests and numbers of LUNs; reads are a line, both directions three.
    assert_eq!(rows, 2 * 8 * (1 + 3), "{csv}");
}

#[test]
fn what_is_wrong_is_reported_at_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("out");
    let plan = directory.path().join("plan.toml");
    fs::write(&plan, "repetitions = 'many'\n[[target]]\nname = 'a'\n[[matrix]]\nbs = '4X'\n")
        .expect("written");
    let wrong = report(&[plan.to_str().expect("UTF-8"), "-o", out.to_str().expect("UTF-8")]);
    assert_eq!(wrong.status.code(), Some(2));
    for part in ["plan.toml:1:15: repetitions: ", "plan.toml:5:6: matrix[0].bs: `4X` is not a size"] {
        assert!(text_of(&wrong).contains(part), "{}", text_of(&wrong));
    }
    let missing = report(&["stdg", "-o", out.to_str().expect("UTF-8")]);
    assert!(
        text_of(&missing).contains("one of stgt, zeta, lio, storagegear, fastnetmon"),
        "{}",
        text_of(&missing)
    );
    assert!(!out.exists(), "nothing was begun");
    fs::write(&plan, "[[target]]\nname = 'a'\n[[matrix]]\ntitle = 't'\n").expect("written");
    let ends = ["-o", out.to_str().expect("UTF-8"), "--peer", "spdk=/nothing/there"];
    let unbuilt = report(&[&[plan.to_str().expect("UTF-8")][..], &ends].concat());
    assert!(
        text_of(&unbuilt).contains("/nothing/there is not a program; build SPDK"),
        "{}",
        text_of(&unbuilt)
    );
}
