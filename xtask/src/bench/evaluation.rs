//! Compares results with the goals.

use super::goals::{FILES, Figure, Goal, MORE_CORES};
use super::limits::LIMITS;
use super::plan::CORES_MIN;
use super::results::{Medians, Results};
use crate::instructions::Figures;
use std::fmt::Write as _;

/// A goal, and the result.
pub(super) struct Evaluated {
    pub(super) goal: Goal,
    /// Ours and theirs; `None`: a row has no result.
    pub(super) figures: Option<(Medians, Medians)>,
    /// Ratio of commands per second, ours to theirs: the median of the ratios within each repetition. If the
    /// machine has two speeds, both rows of a pair, which run right after each other, have the same one.
    pairs: Option<f64>,
}

impl Evaluated {
    pub(super) fn new(goal: Goal, results: &Results) -> Evaluated {
        let ours = results.medians(&goal.ours);
        let scaled = |(side, times): &(_, f64)| {
            results.medians(side).map(|figures| Medians { iops: figures.iops * times, ..figures })
        };
        let theirs: Option<Vec<Medians>> = goal.against.iter().map(scaled).collect();
        let counts = |a: Medians, b: Medians| if (goal.of_several)(a.iops, b.iops) == a.iops { a } else { b };
        let theirs = theirs.and_then(|all| all.into_iter().reduce(counts));
        let pairs = median_of_pairs(&goal, results);
        Evaluated { figures: ours.zip(theirs), pairs, goal }
    }

    pub(super) fn ratio(&self) -> Option<f64> {
        let (ours, theirs) = self.figures?;
        match self.goal.figure {
            Figure::Iops => self.pairs,
            Figure::TargetCpu => Some(theirs.target_cpu? / ours.target_cpu?),
            Figure::InitiatorCpu => Some(theirs.initiator_cpu? / ours.initiator_cpu?),
        }
    }

    pub(super) fn is_reached(&self) -> bool {
        self.ratio().is_some_and(|ratio| ratio >= self.goal.at_least)
    }
}

fn median_of_pairs(goal: &Goal, results: &Results) -> Option<f64> {
    let theirs = |repetition: u32| {
        let figure = |(side, times): &(_, f64)| Some(results.iops(side)?.get(&repetition)? * times);
        goal.against.iter().map(figure).collect::<Option<Vec<f64>>>()?.into_iter().reduce(goal.of_several)
    };
    let ratio = |(repetition, iops): (&u32, &f64)| Some(iops / theirs(*repetition)?);
    let mut ratios: Vec<f64> = results.iops(&goal.ours)?.iter().filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len().checked_sub(1)? / 2).copied()
}

fn verdict(is_reached: bool) -> &'static str {
    if is_reached { "reached" } else { "**missed**" }
}

/// All goals as Markdown.
pub(super) fn table(evaluated: &[Evaluated]) -> String {
    let mut text = String::from(
        "| section | point | against | k IOPS | theirs | ratio, in pairs | goal | | CPU, us per command | theirs |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for evaluated in evaluated {
        let Goal { ours, name, at_least, .. } = &evaluated.goal;
        let ratio = evaluated.ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let (figures, times) = match evaluated.figures {
            Some((ours, theirs)) => (
                format!("{:.1} | {:.1} | {ratio}", ours.iops / 1e3, theirs.iops / 1e3),
                format!("{} | {}", ours.cpu(), theirs.cpu()),
            ),
            None => ("- | - | -".into(), "- | -".into()),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {name} | {figures} | {at_least:.2} | {} | {times} |",
            ours.section,
            ours.point(),
            verdict(evaluated.is_reached())
        );
    }
    text.push_str("\nCPU is the target's + the initiator's; a side that spins uses all of its core.\n\n");
    text
}

/// A note if there are too few cores to measure the gain from more of them.
pub(super) fn more_cores(evaluated: &[Evaluated]) -> String {
    if evaluated.iter().any(|evaluated| evaluated.goal.ours.section == MORE_CORES) {
        return String::new();
    }
    format!(
        "More cores (4K read, one LUN, one connection per core): not measured: needs at least {CORES_MIN} cores.\n\n"
    )
}

/// The upper limits as Markdown, and how many of them are exceeded.
pub(super) fn limits(figures: &Figures) -> (String, usize) {
    let mut text = String::from("| | figure | at most | |\n|---|---|---|---|\n");
    let mut missed = 0;
    for limit in &LIMITS {
        let figure = figures.get(limit.name);
        let is_kept = figure.is_some_and(|figure| *figure <= limit.at_most);
        missed += usize::from(!is_kept);
        let figure = figure.map_or_else(|| "-".into(), |figure| format!("{figure}"));
        let _ = writeln!(text, "| {} | {figure} | {} | {} |", limit.what, limit.at_most, verdict(is_kept));
    }
    text.push('\n');
    for (place, name) in FILES {
        let _ = match figures.get(name) {
            Some(ratio) => writeln!(
                text,
                "The file on {place} is read by fio (io_uring, the same point) at {ratio:.2} times the rate of \
                 `lunette bench`, which the rows `local` show; the faster of both counts.\n"
            ),
            None => writeln!(
                text,
                "The file on {place} was not read by fio: its row `local` is Lunette's own loader with io_uring.\n"
            ),
        };
    }
    (text, missed)
}
