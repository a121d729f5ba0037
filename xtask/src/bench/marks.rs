//! What Lunette must reach, as ratios within one run.

use super::results::{Results, Side};

/// A mark: a row of ours against one or several others.
pub(super) struct Mark {
    pub(super) ours: Side,
    /// Who it is held against, in words.
    pub(super) name: String,
    pub(super) against: Vec<Side>,
    /// Which of several counts.
    pub(super) of_several: fn(f64, f64) -> f64,
    pub(super) at_least: f64,
}

/// Marks against a ceiling in the settings A and B, and on many connections: section, direction, block, depth, ratio.
const CEILING: [(&str, &str, &str, &str, f64); 14] = [
    ("A: small commands", "read", "4K", "32", 0.75),
    ("A: small commands", "read", "512", "32", 0.70),
    ("A: small commands", "write", "4K", "32", 0.75),
    ("A: small commands", "read", "4K", "1", 0.95),
    ("A: small commands", "write", "4K", "1", 0.95),
    ("A: bulk", "read", "64K", "32", 1.35),
    ("A: bulk", "read", "256K", "32", 1.35),
    ("A: bulk", "write", "64K", "32", 1.0),
    ("A: bulk", "write", "256K", "32", 1.0),
    ("B: one core", "read", "4K", "32", 0.60),
    ("B: one core", "write", "4K", "32", 0.60),
    ("B: one core", "read", "4K", "1", 0.90),
    ("B: one core", "write", "4K", "1", 0.90),
    ("C: eight connections", "read", "4K", "32", 0.60),
];
/// On one core and with a full queue: how many times tgt's LUN in a file. (With one command at a time the ceiling itself
/// is less than three times tgt.)
const TIMES_TGT: f64 = 8.0;
/// With data digests, of what is reached without.
const DIGESTS: f64 = 0.80;
/// Adaptive polling, of the better one of both others.
const ADAPTIVE: f64 = 0.90;
/// A LUN in a file, of the file read locally or of the LUN in memory, whichever is lower.
const FILE: f64 = 0.90;

/// All marks, for the points that the results have.
pub(super) fn marks(results: &Results) -> Vec<Mark> {
    let mut marks: Vec<Mark> = CEILING.iter().map(ceiling).collect();
    let all = |section: &'static str, target: &'static str| {
        results.rows.iter().filter(move |row| row.section == section && row.target == target)
    };
    for ours in all("A: bulk", "Lunette").filter(|row| row.direction == "read") {
        marks.push(against(ours, "tgt, null", vec![ours.of("tgt, null")], 1.0));
    }
    for ours in all("A: data digests", "Lunette").filter(|row| row.digests == "data") {
        let plain = Side { digests: "none".into(), ..ours.clone() };
        marks.push(against(ours, "without digests", vec![plain], DIGESTS));
    }
    for ours in all("B: one core", "Lunette").filter(|row| row.depth == "32") {
        marks.push(against(ours, "tgt, file", vec![ours.of("tgt, file")], TIMES_TGT));
    }
    for section in ["C: as a user gets it", "C: eight connections"] {
        for ours in all(section, "Lunette") {
            marks.push(against(ours, "tgt, null", vec![ours.of("tgt, null")], 1.0));
        }
    }
    for ours in all("C: as a user gets it", "Lunette") {
        marks.push(against(ours, "sleeping ceiling", vec![ours.of("ceiling")], 1.0));
    }
    for ours in all("C: polling", "Lunette").filter(|row| row.scheduling == "free") {
        let others = ["always", "never"].map(|name| Side { scheduling: name.into(), ..ours.clone() });
        marks.push(against(ours, "the best of always and never", others.into(), ADAPTIVE));
    }
    for (target, local) in [("Lunette, tmpfs", "tmpfs, local"), ("Lunette, disk", "disk, local")] {
        for ours in all("C: files", target) {
            let others = vec![ours.of(local), ours.of("Lunette")];
            let name = format!("{target} against the file read locally, or memory");
            marks.push(Mark { of_several: f64::min, ..against(ours, &name, others, FILE) });
        }
    }
    marks
}

fn ceiling(&(section, direction, block, depth, at_least): &(&str, &str, &str, &str, f64)) -> Mark {
    let (scheduling, jobs) = match section {
        "B: one core" => ("one core", "1"),
        "C: eight connections" => ("free", "8"),
        _ => ("spinning", "1"),
    };
    let ours = Side {
        section: section.into(),
        target: "Lunette".into(),
        scheduling: scheduling.into(),
        direction: direction.into(),
        digests: "none".into(),
        jobs: jobs.into(),
        depth: depth.into(),
        block: block.into(),
    };
    against(&ours, "ceiling", vec![ours.of("ceiling")], at_least)
}

/// Against the best of several.
fn against(ours: &Side, name: &str, against: Vec<Side>, at_least: f64) -> Mark {
    Mark { ours: ours.clone(), name: name.into(), against, of_several: f64::max, at_least }
}
