//! The goals: what Lunette must achieve, as ratios within one run.

use super::results::{Results, Side, USUAL};
use crate::instructions::Figures;

/// Where the files that fio also reads are, and the ratio's name in the file of figures.
pub(super) const FILES: [(&str, &str); 2] = [("tmpfs", "fio_tmpfs"), ("disk", "fio_disk")];

/// A goal: a row of ours against one or several others.
pub(super) struct Goal {
    pub(super) ours: Side,
    /// What it is compared with, as text.
    pub(super) name: String,
    /// Each with the factor applied to its figure.
    pub(super) against: Vec<(Side, f64)>,
    /// Which of several counts.
    pub(super) of_several: fn(f64, f64) -> f64,
    /// What is compared.
    pub(super) figure: Figure,
    pub(super) at_least: f64,
}

/// A figure of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// Commands per second: more is better.
    Iops,
    /// The target's CPU time per command: less is better.
    TargetCpu,
    /// The initiator's.
    InitiatorCpu,
}

/// Goals against a ceiling in the settings A and B, and with many connections: section, direction, block,
/// depth, ratio.
const CEILING: [(&str, &str, &str, &str, f64); 16] = [
    ("A: small commands", "read", "4K", "32", 0.80),
    ("A: small commands", "read", "512", "32", 0.80),
    ("A: small commands", "write", "4K", "32", 0.80),
    ("A: small commands", "read", "4K", "1", 0.95),
    ("A: small commands", "write", "4K", "1", 0.95),
    ("A: bulk", "read", "64K", "32", 1.35),
    ("A: bulk", "read", "256K", "32", 1.35),
    ("A: bulk", "write", "64K", "32", 1.0),
    ("A: bulk", "write", "256K", "32", 1.0),
    ("B: one core", "read", "4K", "32", 0.70),
    ("B: one core", "write", "4K", "32", 0.70),
    ("B: one core", "read", "4K", "1", 0.90),
    ("B: one core", "write", "4K", "1", 0.90),
    ("B: bulk", "read", "64K", "32", 0.70),
    ("B: bulk", "write", "64K", "32", 0.70),
    ("C: eight connections", "read", "4K", "32", 0.60),
];
/// On one core and with a full queue: how many times tgt's LUN in a file. (With one command at a time the
/// ceiling itself is less than three times tgt.)
const TIMES_TGT: f64 = 8.0;
/// With data digests, relative to without.
const DIGESTS: f64 = 0.80;
/// Adaptive polling, relative to the better of the other two.
const ADAPTIVE: f64 = 0.90;
/// A LUN in a file, relative to the lower of the file read locally and the LUN in memory.
const FILE: f64 = 0.90;

/// The matrix that is measured only with enough cores, and the gain that each further core must bring,
/// relative to the first.
pub(super) const MORE_CORES: &str = "A: more cores";
const EACH_CORE: f64 = 0.85;

/// All goals, for the points present in the results.
pub(super) fn goals(results: &Results, figures: &Figures) -> Vec<Goal> {
    let mut goals: Vec<Goal> = CEILING.iter().map(ceiling).collect();
    let all = |section: &str, target: &str| -> Vec<&Side> {
        results.rows.iter().filter(|row| row.section == section && row.target == target).collect()
    };
    for ours in all("A: small commands", "Lunette") {
        goals.push(against(ours, "tgt, null", vec![ours.of("tgt, null")], 1.0));
    }
    for ours in all("A: bulk", "Lunette").into_iter().filter(|row| row.direction == "read") {
        goals.push(against(ours, "tgt, null", vec![ours.of("tgt, null")], 1.0));
    }
    for ours in all("A: data digests", "Lunette").into_iter().filter(|row| row.digests == "data") {
        let plain = Side { digests: "none".into(), ..ours.clone() };
        goals.push(against(ours, "without digests", vec![plain], DIGESTS));
    }
    for ours in all(MORE_CORES, "Lunette") {
        let one = Side {
            section: "A: small commands".into(),
            scheduling: "spinning".into(),
            jobs: "1".into(),
            ..ours.clone()
        };
        let cores = ours.jobs.parse().unwrap_or(f64::INFINITY);
        goals.push(against(ours, "one core, one connection", vec![one], EACH_CORE * cores));
    }
    for ours in all("B: one core", "Lunette").into_iter().filter(|row| row.depth == "32") {
        goals.push(against(ours, "tgt, file", vec![ours.of("tgt, file")], TIMES_TGT));
    }
    for section in ["C: as a user gets it", "C: eight connections"] {
        for ours in all(section, "Lunette") {
            goals.push(against(ours, "tgt, null", vec![ours.of("tgt, null")], 1.0));
        }
    }
    for ours in all("C: as a user gets it", "Lunette") {
        goals.push(against(ours, "sleeping ceiling", vec![ours.of("ceiling")], 1.0));
    }
    for ours in all("C: polling", "Lunette").into_iter().filter(|row| row.scheduling == "free") {
        let others = ["always", "never"].map(|name| Side { scheduling: name.into(), ..ours.clone() });
        goals.push(against(ours, "the best of always and never", others.into(), ADAPTIVE));
    }
    for (place, fio) in FILES {
        // The rows `local` use our load generator: where fio is faster, they are scaled to what fio reads.
        let fio = figures.get(fio).map_or(1.0, |ratio| ratio.max(1.0));
        for ours in all("C: files", &format!("Lunette, {place}")) {
            let others = vec![(ours.of(&format!("{place}, local")), fio), (ours.of("Lunette"), 1.0)];
            let name = format!("Lunette, {place} against the file read locally, or memory");
            let goal = against(ours, &name, Vec::new(), FILE);
            goals.push(Goal { against: others, of_several: f64::min, ..goal });
        }
    }
    goals
}

fn ceiling(&(section, direction, block, depth, at_least): &(&str, &str, &str, &str, f64)) -> Goal {
    let (scheduling, jobs) = match section {
        "B: one core" | "B: bulk" => ("one core", "1"),
        "C: eight connections" => ("free", "8"),
        _ => ("spinning", "1"),
    };
    let ours = Side {
        section: section.into(),
        target: "Lunette".into(),
        scheduling: scheduling.into(),
        direction: direction.into(),
        write_data: USUAL.into(),
        digests: "none".into(),
        jobs: jobs.into(),
        depth: depth.into(),
        block: block.into(),
    };
    against(&ours, "ceiling", vec![ours.of("ceiling")], at_least)
}

/// Against the best of several.
pub(super) fn against(ours: &Side, name: &str, against: Vec<Side>, at_least: f64) -> Goal {
    let against = against.into_iter().map(|side| (side, 1.0)).collect();
    let (ours, name) = (ours.clone(), name.into());
    Goal { ours, name, against, of_several: f64::max, figure: Figure::Iops, at_least }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::evaluation::Evaluated;
    use super::super::plan::{CORES_MIN, plan};
    use super::*;
    use report::{Axis, Plan, rows};
    use std::path::Path;

    /// Results in the report's format for this plan: the same for every row.
    pub(in super::super) fn results(plan: &str) -> (Plan, Results) {
        results_with(plan, None)
    }

    /// With a peer.
    pub(in super::super) fn results_with(plan: &str, peer: Option<&str>) -> (Plan, Results) {
        let mut plan = Plan::from_toml(plan, Path::new("plan")).unwrap_or_else(|error| panic!("{error}"));
        peer.map(|peer| plan.add_peer(peer)).transpose().unwrap_or_else(|error| panic!("{error}"));
        let title = |axis: &Axis| axis.title().to_lowercase().replace(' ', "_");
        let mut csv = csv::Writer::from_writer(Vec::new());
        let heading = Axis::ALL.iter().map(title);
        let figures = ["iops", "target_cpu_us_per_command", "initiator_cpu_us_per_command"];
        let figures = figures.map(|name| format!("{name}_median"));
        let heading =
            ["section", "runs", "iops_each"].map(String::from).into_iter().chain(figures).chain(heading);
        csv.write_record(heading).expect("a record");
        for row in rows(&plan) {
            let section = plan.matrices[row.matrix].title.clone();
            let axes = Axis::ALL.iter().map(|axis| axis.value(&row));
            let figures = ["5", "1:1000", "1000", "1", "1"].map(String::from);
            csv.write_record([section].into_iter().chain(figures).chain(axes)).expect("a record");
        }
        let csv = csv.into_inner().expect("CSV");
        (plan, Results::parse(csv.as_slice()).expect("results"))
    }

    #[test]
    fn the_plan_has_every_row_that_a_goal_names() {
        for cores in [2, CORES_MIN, 9] {
            let (plan, results) = results(&plan(cores));
            let goals = goals(&results, &Figures::new());
            for matrix in &plan.matrices {
                assert!(goals.iter().any(|goal| goal.ours.section == matrix.title), "{}", matrix.title);
            }
            for goal in goals {
                let (point, name) = (goal.ours.clone(), goal.name.clone());
                let evaluated = Evaluated::new(goal, &results);
                assert!(evaluated.figures.is_some(), "{point:?} against {name}");
            }
        }
    }

    #[test]
    fn each_further_core_counts_where_there_are_enough() {
        let times = |cores: usize| -> Vec<f64> {
            let goals = goals(&results(&plan(cores)).1, &Figures::new());
            goals.iter().filter(|goal| goal.ours.section == MORE_CORES).map(|goal| goal.at_least).collect()
        };
        assert_eq!((times(2), times(4), times(9)), (vec![], vec![1.7], vec![3.4]));
    }

    #[test]
    fn where_fio_is_faster_the_file_counts_for_what_it_reads() {
        let (_, results) = results(&plan(2));
        let figures = [("fio_tmpfs", 1.5), ("fio_disk", 0.5)].map(|(name, ratio)| (name.to_owned(), ratio));
        let goals = goals(&results, &figures.into());
        let files = goals.iter().filter(|goal| goal.ours.section == "C: files");
        let factors: Vec<f64> = files.map(|goal| goal.against[0].1).collect();
        assert_eq!(factors, [1.5, 1.0]);
    }
}
