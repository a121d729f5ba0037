//! What Lunette must achieve relative to SPDK's iscsi_tgt, within one run.

use super::goals::{Goal, against};
use super::results::{Results, Side};

/// The plan.
pub(super) const PLAN: &str = include_str!("../../peer.toml");

/// Its name in the report.
const SPDK: &str = "SPDK ram";

/// All goals.
pub(super) fn goals(results: &Results) -> Vec<Goal> {
    let ours = results.rows.iter().filter(|row| row.target == "Lunette");
    ours.map(|ours| against(ours, "SPDK", vec![ours.of(SPDK)], at_least(ours))).collect()
}

/// When both spin: well ahead with small blocks; with large ones, and as users run it, ahead.
fn at_least(ours: &Side) -> f64 {
    match (ours.scheduling.as_str(), ours.block.as_str(), ours.depth.as_str()) {
        ("spinning", "512" | "4K", "1") => 1.1,
        ("spinning", "512" | "4K", _) => 1.3,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::goals::tests::results_with;
    use super::*;

    #[test]
    fn every_row_of_ours_is_held_against_spdk() {
        let (plan, results) = results_with(PLAN, Some("spdk=/opt/iscsi_tgt"));
        let goals = goals(&results);
        for matrix in &plan.matrices {
            assert!(goals.iter().any(|goal| goal.ours.section == matrix.title), "{}", matrix.title);
        }
        for goal in &goals {
            assert!(results.rows.contains(&goal.against[0].0), "{:?}", goal.ours);
        }
        let of = |section: &str, depth: &str| {
            let is_it = |goal: &&Goal| goal.ours.section == section && goal.ours.depth == depth;
            goals.iter().find(is_it).map(|goal| goal.at_least)
        };
        let found = [of("A: 4K", "1"), of("A: 4K", "32"), of("A: bulk", "32"), of("C: 4K", "1")];
        assert_eq!(found, [Some(1.1), Some(1.3), Some(1.0), Some(1.0)]);
    }
}
