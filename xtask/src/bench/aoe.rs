//! What AoE must achieve relative to iSCSI over TCP and to vblade, within one run on one Ethernet segment.

use super::goals::{Figure, Goal, against};
use super::results::Results;

/// The plan.
pub(super) const PLAN: &str = include_str!("../../aoe.toml");

/// The segments: the names of our target over AoE, of the same over iSCSI, and of vblade.
const SEGMENTS: [[&str; 3]; 2] = [
    ["Lunette, veth, AoE", "Lunette, veth, iSCSI", "vblade, veth"],
    ["Lunette, veth of 100 Mbit/s, AoE", "Lunette, veth of 100 Mbit/s, iSCSI", "vblade, veth of 100 Mbit/s"],
];

/// All goals.
pub(super) fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for [aoe, iscsi, vblade] in SEGMENTS {
        for ours in results.rows.iter().filter(|row| row.target == aoe) {
            let mut held = |other: &str, name: &str, figure| {
                goals.push(Goal { figure, ..against(ours, name, vec![ours.of(other)], 1.0) });
            };
            held(vblade, "vblade", Figure::Iops);
            held(vblade, "vblade, the target's CPU", Figure::TargetCpu);
            if ours.depth == "1" {
                held(iscsi, "iSCSI", Figure::Iops);
                held(iscsi, "iSCSI, the target's CPU", Figure::TargetCpu);
                held(iscsi, "iSCSI, the initiator's CPU", Figure::InitiatorCpu);
            }
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::super::evaluation::Evaluated;
    use super::super::goals::tests::results;
    use super::*;

    #[test]
    fn the_plan_has_every_row_that_a_goal_names() {
        let (_, results) = results(PLAN);
        let goals = goals(&results);
        // Reads and writes on two segments, against vblade at two depths and against iSCSI at one.
        assert_eq!(goals.len(), 2 * 2 * (2 * 2 + 3));
        for goal in goals {
            let (point, name) = (goal.ours.clone(), goal.name.clone());
            assert_eq!(Evaluated::new(goal, &results).ratio(), Some(1.0), "{point:?} against {name}");
        }
    }

    #[test]
    fn less_cpu_is_better() {
        let (_, results) = results(PLAN);
        let mut evaluated: Vec<Evaluated> =
            goals(&results).into_iter().map(|goal| Evaluated::new(goal, &results)).collect();
        for evaluated in &mut evaluated {
            let (ours, _) = evaluated.figures.as_mut().expect("figures");
            (ours.target_cpu, ours.initiator_cpu) = (Some(2.0), Some(0.5));
        }
        for evaluated in evaluated {
            let is_reached = evaluated.goal.figure != Figure::TargetCpu;
            assert_eq!(evaluated.is_reached(), is_reached, "{}", evaluated.goal.name);
        }
    }
}
