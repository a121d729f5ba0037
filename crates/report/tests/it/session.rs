//! What is measured when, and what is saved.

use super::synthetic::{Quiet, Synthetic, directory, plan};
use bench::result::RunResult;
use report::{Outcome, Plan, RawDirectory, Request, make, rows};
use std::fs;
use std::path::Path;
use std::sync::Arc;

const PLAN: &str = "repetitions = 3\nruntime = '1s'\n[[target]]\nname = 'ours'\n[[target]]\nname = 'top'\nkind = 'ceiling'\n\
                    [[matrix]]\nbs = ['4K', '64K']";

fn request(directory: &Path, resume: bool) -> Request {
    let (directory, command) = (directory.to_path_buf(), "lunette report plan.toml -o out".into());
    Request { text: PLAN.into(), directory, resume, command, stop: Arc::default() }
}

fn report(plan: &Plan, request: &Request, testbed: &mut Synthetic) -> Result<report::Done, Vec<String>> {
    make(plan, request, testbed, &mut Quiet)
}

#[test]
fn every_row_runs_once_before_any_runs_again() {
    let directory = directory();
    let mut testbed = Synthetic::default();
    let done = report(&plan(PLAN), &request(directory.path(), false), &mut testbed).unwrap();
    assert_eq!((done.measured, done.total), (12, 12));
    let order: Vec<usize> = testbed.ran.iter().map(|(_, row)| *row).collect();
    assert_eq!(order, [0, 1, 2, 3].repeat(3));
    let seeds: Vec<u64> = testbed.ran.iter().map(|(seed, _)| *seed).collect();
    assert!(seeds.chunks(4).all(|chunk| chunk.iter().all(|seed| *seed == chunk[0])), "{seeds:?}");
    for name in ["index.html", "report.md", "results.csv", "plan.toml"] {
        assert!(directory.path().join(name).metadata().unwrap().len() > 100, "{name}");
    }
}

#[test]
fn an_interrupted_report_continues_where_it_stopped() {
    let directory = directory();
    let first = request(directory.path(), false);
    let stop_after = Some((5, Arc::clone(&first.stop)));
    let mut testbed = Synthetic { stop_after, ..Synthetic::default() };
    let done = report(&plan(PLAN), &first, &mut testbed).unwrap();
    assert_eq!((done.measured, testbed.ran.len()), (5, 6), "the run that was cut short does not count");
    let page = fs::read_to_string(&done.page).unwrap();
    assert!(page.contains("Incomplete: 5 of 12 runs have a result"));

    // As if a power failure had truncated this run.
    let torn = directory.path().join("raw/001-00002.json");
    let text = fs::read(&torn).unwrap();
    fs::write(&torn, &text[..text.len() / 2]).unwrap();
    let mut testbed = Synthetic::default();
    let done = report(&plan(PLAN), &request(directory.path(), true), &mut testbed).unwrap();
    assert_eq!((done.measured, done.total), (12, 12));
    let order: Vec<usize> = testbed.ran.iter().map(|(_, row)| *row).collect();
    assert_eq!(order, [2, 1, 2, 3, 0, 1, 2, 3]);
    assert!(!fs::read_to_string(&done.page).unwrap().contains("Incomplete"));

    let mut testbed = Synthetic::default();
    report(&plan(PLAN), &request(directory.path(), true), &mut testbed).unwrap();
    assert!(testbed.ran.is_empty(), "all is there");
}

#[test]
fn a_report_is_not_mixed_with_another() {
    let directory = directory();
    report(&plan(PLAN), &request(directory.path(), false), &mut Synthetic::default()).unwrap();
    let again = report(&plan(PLAN), &request(directory.path(), false), &mut Synthetic::default());
    assert!(again.unwrap_err()[0].contains("add --resume to continue it"));
    let mut other = plan(PLAN);
    other.make_quick();
    let mixed = report(&other, &request(directory.path(), true), &mut Synthetic::default());
    assert!(mixed.unwrap_err()[0].contains("a report of another plan"));
}

#[test]
fn a_row_that_fails_is_reported_and_retried() {
    let directory = directory();
    let mut testbed = Synthetic { failing: vec![2], ..Synthetic::default() };
    let done = report(&plan(PLAN), &request(directory.path(), false), &mut testbed).unwrap();
    assert_eq!((done.measured, done.total, done.failed.len()), (9, 12, 1));
    assert!(
        done.failed[0].contains("ours, scheduling: free, random read")
            && done.failed[0].contains("address in use")
    );
    let page = fs::read_to_string(&done.page).unwrap();
    assert!(page.contains("address in use &lt;port 1&gt;") && !page.contains("<port 1>"));
    let mut testbed = Synthetic::default();
    let done = report(&plan(PLAN), &request(directory.path(), true), &mut testbed).unwrap();
    assert_eq!((testbed.ran.len(), done.measured, done.failed.len()), (3, 12, 0));
}

#[test]
fn what_cannot_start_is_reported_before_anything_runs() {
    let directory = directory();
    let unready = vec!["tgt: no package; apt-get install tgt".to_string()];
    let mut testbed = Synthetic { unready: unready.clone(), ..Synthetic::default() };
    assert_eq!(report(&plan(PLAN), &request(directory.path(), false), &mut testbed), Err(unready));
    assert!(testbed.ran.is_empty());
}

#[test]
fn what_others_keep_is_written_over_only_if_allowed() {
    let text = "[[target]]\nname = 'theirs'\nurl = 'iscsi://h/iqn.2001-04.com.example:x/0'\n[[target]]\nname = 'disk'\n\
                store = 'block:/dev/null'\n[[matrix]]\nrw = ['read', 'write']";
    let directory = directory();
    let refused = report(&plan(text), &request(directory.path(), false), &mut Synthetic::default());
    assert_eq!(refused.unwrap_err().len(), 2);
    let mut allowed = plan(text);
    allowed.allow_overwriting();
    report(&allowed, &request(directory.path(), false), &mut Synthetic::default()).unwrap();
}

#[test]
fn secrets_stay_out_of_the_report() {
    let directory = directory();
    let text = PLAN.replacen(
        "name = 'ours'",
        "name = 'ours'\nurl = 'iscsi://me%geheim@h/iqn.2001-04.com.example:x/0'",
        1,
    );
    let mut request = request(directory.path(), false);
    request.text = text.clone();
    request.command = "lunette report p --peer iscsi://me%geheim@h/iqn.2001-04.com.example:x/0".into();
    report(&plan(&text), &request, &mut Synthetic::default()).unwrap();
    for entry in
        fs::read_dir(directory.path()).unwrap().chain(fs::read_dir(directory.path().join("raw")).unwrap())
    {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert!(!text.contains("geheim"), "{}", path.display());
    }
}

#[test]
fn the_tables_hold_what_was_measured() {
    let directory = directory();
    let plan = plan(PLAN);
    report(&plan, &request(directory.path(), false), &mut Synthetic::default()).unwrap();
    let header = RawDirectory::open(directory.path()).unwrap().header().unwrap().unwrap();
    let records = RawDirectory::open(directory.path()).unwrap().records(&header.plan).unwrap();
    let results = |row: usize| -> Vec<&RunResult> {
        let of_row = records.values().filter(|record| record.row == row);
        of_row
            .filter_map(|record| match &record.outcome {
                Outcome::Measured(result) => Some(&**result),
                Outcome::Failed(_) => None,
            })
            .collect()
    };
    let (ours, top) = (results(0), results(1));
    let mean = ours.iter().map(|run| run.iops()).sum::<f64>() / 3.0;
    let share = |figure: fn(&RunResult) -> f64| {
        ours.iter().zip(&top).map(|(ours, top)| figure(ours) / figure(top)).sum::<f64>() / 3.0
    };
    let p50 = |run: &RunResult| run.streams().map(|stream| stream.latency.p50).sum();
    let target_cpu = |run: &RunResult| run.target_cpu.map_or(f64::NAN, |cpu| cpu.us_per_op);
    let shares = [share(RunResult::iops), share(RunResult::bytes_per_second), share(p50), share(target_cpu)];
    let csv = fs::read_to_string(directory.path().join("results.csv")).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + rows(&plan).len());
    let field = |line: usize, name: &str| -> f64 {
        let place = lines[0].iter().position(|column| *column == name).unwrap();
        lines[line][place].parse().unwrap_or(f64::NAN)
    };
    assert!((field(1, "iops") - mean).abs() < 1e-6 * mean);
    for (name, share) in ["iops", "bytes_per_second", "latency_p50", "target_cpu"].into_iter().zip(shares) {
        let name = format!("{name}_of_ceiling");
        assert!((field(1, &name) - share).abs() < 1e-9, "{name}");
        assert!(field(2, &name).is_nan(), "the ceiling is no share of itself");
    }
    let markdown = fs::read_to_string(directory.path().join("report.md")).unwrap();
    let line = markdown.lines().find(|line| line.starts_with("| ours | 4K |")).unwrap();
    let page = fs::read_to_string(directory.path().join("index.html")).unwrap();
    for cell in
        [format!("{:.1} ±", shares[0] * 100.0), format!("{:.2} ±", shares[2]), format!("{:.2} ±", shares[3])]
    {
        assert!(line.contains(&format!("| {cell}")), "{cell}: {line}");
        let cell = cell.replace('±', "<small>±");
        assert!(page.contains(&format!("<td class=\"figure\">{cell}")), "{cell}");
    }
}
