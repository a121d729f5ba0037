//! `lunette report`, as a person meets it.

mod support;

use std::fs;
use std::process::Output;
use support::daemon::Daemon;

fn report(arguments: &[&str]) -> Output {
    Daemon::command().arg("report").args(arguments).output().expect("lunette runs")
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
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
    let arguments = [plan.to_str().expect("UTF-8"), "--quick", "-o", out.to_str().expect("UTF-8")];
    let made = report(&arguments);
    assert!(made.status.success(), "{}", told(&made));
    let left: Vec<String> = fs::read_dir(&out)
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(left.len(), 5, "files of LUNs are removed: {left:?}");
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    assert!(!page.contains("Incomplete"), "{}", told(&made));
    assert!(page.contains("lunette serve --listen 127.0.0.1:0 --lun ram:64M"), "commands are told");
    let csv = fs::read_to_string(out.join("results.csv")).expect("a table");
    let heading: Vec<&str> = csv.lines().next().expect("a heading").split(',').collect();
    let errors = heading.iter().position(|name| *name == "errors").expect("a column of errors");
    for line in csv.lines().skip(1) {
        // From the right: names on the left have commas.
        assert_eq!(line.rsplit(',').nth(heading.len() - 1 - errors), Some("0"), "{line}");
    }

    let again = report(&arguments);
    assert!(!again.status.success() && told(&again).contains("--resume"), "{}", told(&again));
    fs::remove_file(out.join("raw/002-00003.json")).expect("a run is there");
    let resumed = report(&[&arguments[..], &["--resume"]].concat());
    assert!(resumed.status.success(), "{}", told(&resumed));
    assert_eq!(told(&resumed).matches("repetition ").count(), 1, "one run was missing: {}", told(&resumed));
}

#[test]
fn every_figure_is_told_as_a_share_of_a_ceiling() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (plan, out) = (directory.path().join("plan.toml"), directory.path().join("out"));
    let text = "[[target]]\nname = 'null'\nstore = 'null:1G'\n[[target]]\nname = 'top'\nkind = 'ceiling'\n\
                [[matrix]]\nscheduling = ['free', 'one core']\nrw = ['randread', 'both']\nluns = [1, 2]\n\
                immediate_data = false\ndigests = ['none', 'both']\n";
    fs::write(&plan, text).expect("the plan is written");
    let arguments = [plan.to_str().expect("UTF-8"), "--quick", "-o", out.to_str().expect("UTF-8")];
    let made = report(&arguments);
    assert!(made.status.success(), "{}", told(&made));
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    for command in ["lunette ceiling --poll never\n", "lunette ceiling --poll never --cores 0\n"] {
        assert!(page.contains(command), "{command} is not told");
    }
    let csv = fs::read_to_string(out.join("results.csv")).expect("a table");
    let mut lines = csv.lines().map(|line| line.rsplit(',').collect::<Vec<_>>());
    let heading = lines.next().expect("a heading");
    // From the right: names on the left have commas.
    let column = |name: &str| heading.iter().position(|title| *title == name).expect("a column");
    let (share, errors, cpu) =
        (column("share_of_ceiling"), column("errors"), column("target_cpu_us_per_command"));
    let mut shares = 0;
    for fields in lines {
        assert_eq!(fields[errors], "0", "{fields:?}");
        assert!(fields[cpu].is_empty() || fields[cpu].parse::<f64>().expect("a number") > 0.0);
        shares += usize::from(!fields[share].is_empty());
    }
    assert!(shares > 0, "{csv}");
}

#[test]
fn what_is_wrong_is_told_at_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("out");
    let plan = directory.path().join("plan.toml");
    fs::write(&plan, "repetitions = 'many'\n[[target]]\nname = 'a'\n[[matrix]]\nbs = '4X'\n")
        .expect("written");
    let wrong = report(&[plan.to_str().expect("UTF-8"), "-o", out.to_str().expect("UTF-8")]);
    assert_eq!(wrong.status.code(), Some(2));
    for part in ["plan.toml:1:15: repetitions: ", "plan.toml:5:6: matrix[0].bs: `4X` is not a size"] {
        assert!(told(&wrong).contains(part), "{}", told(&wrong));
    }
    let missing = report(&["stdg", "-o", out.to_str().expect("UTF-8")]);
    assert!(told(&missing).contains("one of stgt, zeta, lio, storagegear, fastnetmon"), "{}", told(&missing));
    assert!(!out.exists(), "nothing was begun");
}
