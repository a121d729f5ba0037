//! What iSER and SRP over iWARP must achieve relative to iSCSI over TCP, within one run.

use super::goals::{Goal, against};
use super::results::{Results, Side, USUAL};

/// The plan.
pub(super) const PLAN: &str = include_str!("../../transports.toml");

/// What is compared with iSCSI over TCP.
const IWARP: [(&str, &str); 2] = [(ISER, "iSER against iSCSI"), (SRP, "SRP against iSCSI")];
const ISCSI: &str = "Lunette, iSCSI";
const ISER: &str = "Lunette, iSER";
const SRP: &str = "Lunette, SRP";

/// Ratios by direction and block size. (At a given block size, what holds for IOPS holds for MB/s.)
const RATIOS: [(&str, &str, f64); 2] = [("random read", "4K", 0.8), ("write", "256K", 1.0)];
/// SRP writes with their data in the command, relative to those whose data is read by RDMA.
const IN_COMMAND: f64 = 1.25;
/// The matrix for these.
const SRP_WRITES: &str = "A: SRP writes";

/// All goals.
pub(super) fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (direction, block, at_least) in RATIOS {
        for (target, name) in IWARP {
            let is_it =
                |row: &&Side| (&*row.target, &*row.direction, &*row.block) == (target, direction, block);
            for ours in results.rows.iter().filter(is_it) {
                goals.push(against(ours, name, vec![ours.of(ISCSI)], at_least));
            }
        }
    }
    let is_it = |row: &&Side| (&*row.section, &*row.target, &*row.write_data) == (SRP_WRITES, SRP, USUAL);
    for ours in results.rows.iter().filter(is_it) {
        let asked = Side { write_data: "when requested".into(), ..ours.clone() };
        goals.push(against(ours, "SRP, data read by RDMA", vec![asked], IN_COMMAND));
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
        let (plan, results) = results(PLAN);
        let goals = goals(&results);
        for matrix in &plan.matrices {
            assert!(goals.iter().any(|goal| goal.ours.section == matrix.title), "{}", matrix.title);
        }
        for goal in goals {
            let (point, name, at_least) = (goal.ours.clone(), goal.name.clone(), goal.at_least);
            let evaluated = Evaluated::new(goal, &results);
            assert_eq!(evaluated.ratio(), Some(1.0), "{point:?} against {name}");
            assert_eq!(evaluated.is_reached(), at_least <= 1.0, "{point:?}");
        }
    }

    #[test]
    fn every_row_has_its_ceiling() {
        let (plan, _) = results(PLAN);
        let rows = report::rows(&plan);
        let ours = rows.iter().filter(|row| row.target.kind == report::Kind::Lunette);
        for row in ours.filter(|row| row.job.digests == (false, false)) {
            assert!(row.ceiling.is_some(), "{}", row.label());
        }
    }
}
