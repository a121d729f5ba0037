//! The tables of a report, as cells; shared by page and Markdown.

use crate::matrix::Axis;
use crate::plan::{Kind, Link, Store, Transport, show_poll};
use crate::{Measurement, Metric, Part, Report, Row, Section, Summary};
use bench::output::grouped;
use config::show_cores;

/// A table.
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) lines: Vec<Vec<String>>,
}

/// One column of a table.
pub(super) struct Column {
    pub(super) title: String,
    /// Whether it contains figures, which are right-aligned.
    pub(super) figures: bool,
}

impl Table {
    fn new(columns: impl IntoIterator<Item = (String, bool)>) -> Table {
        let columns = columns.into_iter().map(|(title, figures)| Column { title, figures }).collect();
        Table { columns, lines: Vec::new() }
    }
}

/// Formats a figure.
type Show = fn(&Summary) -> String;

/// A figure, or its fraction of the ceiling's.
#[derive(Clone, Copy)]
enum Figure {
    Own(Metric),
    OfCeiling(Metric),
}

/// The figures in a section's table, with headings and formatters. MB/s as a fraction of the ceiling is the
/// same as IOPS: the ceiling has the same block size. For tail latency that fraction is in the CSV only.
const FIGURES: [(Figure, &str, Show); 11] = [
    (Figure::Own(Metric::Iops), "IOPS", whole),
    (Figure::Own(Metric::Throughput), "MB/s", megabytes),
    (Figure::OfCeiling(Metric::Iops), "IOPS and MB/s, of ceiling (%)", percent),
    (Figure::Own(Metric::P50), "p50 (µs)", single),
    (Figure::OfCeiling(Metric::P50), "p50, of ceiling (×)", precise),
    (Figure::Own(Metric::P99), "p99 (µs)", single),
    (Figure::Own(Metric::P999), "p99.9 (µs)", single),
    (Figure::Own(Metric::Max), "max (µs)", largest),
    (Figure::Own(Metric::TargetCpu), "target CPU (µs/cmd)", precise),
    (Figure::OfCeiling(Metric::TargetCpu), "target CPU, of ceiling (×)", precise),
    (Figure::Own(Metric::InitiatorCpu), "initiator CPU (µs/cmd)", precise),
];

impl Figure {
    fn summary(self, row: &Measurement<'_>, part: Part) -> Option<Summary> {
        match self {
            Figure::Own(metric) => row.summary(metric, part),
            Figure::OfCeiling(metric) => row.of_ceiling(metric, part),
        }
    }
}

/// Shown where nothing was measured.
const NOTHING: &str = "–";

/// The figures of a section, one line per row, or three if it has two streams.
pub(super) fn section(section: &Section<'_>) -> Table {
    let rows: Vec<&Row> = section.rows.iter().map(|one| one.row).collect();
    let mut axes = Axis::varying(&rows);
    if !axes.contains(&Axis::Target) {
        axes.insert(0, Axis::Target);
    }
    let has = |figure: Figure| {
        let mut rows = section.rows.iter();
        rows.any(|row| row.parts().into_iter().any(|part| figure.summary(row, part).is_some()))
    };
    let figures: Vec<_> = FIGURES.iter().filter(|(figure, ..)| has(*figure)).collect();
    let titles = axes.iter().map(|axis| (axis.title().to_string(), false));
    let titles = titles.chain(figures.iter().map(|(_, title, _)| ((*title).to_string(), true)));
    let mut table = Table::new(titles.chain([("errors".to_string(), true), ("runs".to_string(), true)]));
    // Compared rows are placed one below the other.
    let mut order: Vec<&Measurement<'_>> = section.rows.iter().collect();
    order.sort_by_key(|one| one.row.index);
    for row in order {
        for part in row.parts() {
            let mut line: Vec<String> = axes.iter().map(|axis| axis.value(row.row)).collect();
            if let (false, Some(first)) = (part == Part::All, line.first_mut()) {
                *first = format!("{first}: {}", part.title());
            }
            let shown = |figure: Figure, show: Show| {
                figure.summary(row, part).map_or_else(|| NOTHING.into(), |summary| show(&summary))
            };
            line.extend(figures.iter().map(|(figure, _, show)| shown(*figure, *show)));
            let errors = match part {
                Part::All => row.errors(),
                Part::Reads | Part::Writes | Part::Trims => {
                    row.runs.values().filter_map(|run| part.stream(run)).map(|stream| stream.errors).sum()
                }
            };
            let runs = if row.failures.is_empty() { String::new() } else { " (failed)".into() };
            line.extend([grouped(errors as f64), format!("{}{runs}", row.runs.len())]);
            table.lines.push(line);
        }
    }
    table
}

/// What all rows of a section have in common, as text.
pub(super) fn constants(section: &Section<'_>) -> String {
    let rows: Vec<&Row> = section.rows.iter().map(|one| one.row).collect();
    let Some(first) = rows.first() else { return String::new() };
    let varying = Axis::varying(&rows);
    let common = Axis::ALL.iter().filter(|axis| !varying.contains(axis) && !axis.is_usual(first));
    let mut parts: Vec<String> = common.map(|axis| axis.phrase(first)).collect();
    if section.matrix.shared {
        parts.push("jobs share one sequential range, one command each".into());
    }
    if section.rows.iter().any(|row| row.row.direction == crate::Direction::RandRw) {
        parts.push(format!("{} % reads", section.matrix.rwmixread));
    }
    parts.join(", ")
}

/// Each target's fraction of the ceiling over all rows.
pub(super) fn overview(report: &Report<'_>) -> Option<Table> {
    let titles = [
        "Section",
        "Target",
        "Rows",
        "IOPS and MB/s, of ceiling (%)",
        "lowest (%)",
        "highest (%)",
        "p50, of ceiling (×)",
        "target CPU, of ceiling (×)",
    ];
    let mut table =
        Table::new(titles.iter().enumerate().map(|(place, title)| ((*title).to_string(), place > 1)));
    for section in &report.sections {
        for target in section.matrix.targets.iter().filter_map(|place| report.plan.targets.get(*place)) {
            let rows = section.rows.iter().filter(|row| row.row.target == *target);
            let shares = |metric: Metric| -> Vec<f64> {
                let of_part = |row: &Measurement<'_>, part| row.of_ceiling(metric, part);
                let parts = rows.clone().flat_map(|row| row.parts().into_iter().map(move |part| (row, part)));
                // Streams of a row have their own latencies; all other figures are of the whole row.
                let parts = parts.filter(|(_, part)| metric == Metric::P50 || *part == Part::All);
                parts.filter_map(|(row, part)| of_part(row, part)).map(|share| share.mean).collect()
            };
            let iops = shares(Metric::Iops);
            if iops.is_empty() {
                continue;
            }
            let low = iops.iter().copied().fold(f64::INFINITY, f64::min);
            let high = iops.iter().copied().fold(0.0, f64::max);
            let mean = geometric_mean(&iops).unwrap_or(0.0);
            let mut line = vec![section.matrix.title.clone(), target.name.clone(), iops.len().to_string()];
            line.extend([mean, low, high].map(|share| format!("{:.1}", share * 100.0)));
            let times = |metric: Metric| geometric_mean(&shares(metric)).map(|mean| format!("{mean:.2}"));
            let times =
                [Metric::P50, Metric::TargetCpu].map(|metric| times(metric).unwrap_or(NOTHING.into()));
            line.extend(times);
            table.lines.push(line);
        }
    }
    (!table.lines.is_empty()).then_some(table)
}

fn geometric_mean(figures: &[f64]) -> Option<f64> {
    let logarithms: f64 = figures.iter().map(|figure| figure.max(1e-9).ln()).sum();
    (!figures.is_empty()).then(|| (logarithms / figures.len() as f64).exp())
}

/// The targets measured.
pub(super) fn targets(report: &Report<'_>) -> Table {
    let titles = ["Target", "What it is", "Store", "Reached over"];
    let mut table = Table::new(titles.map(|title| (title.to_string(), false)));
    for target in &report.plan.targets {
        let what = match &target.kind {
            Kind::Lunette if target.transport == Transport::Local => {
                "the store in the initiator's process".into()
            }
            Kind::Lunette if target.hops > 0 => format!("lunette serve, {} more in front of it", target.hops),
            Kind::Lunette => "lunette serve".into(),
            Kind::Ceiling => "a responder that does nothing".into(),
            Kind::Tgt if target.hops > 0 => format!("tgt, lunette serve in front of it: {}", target.hops),
            Kind::Tgt => "tgt, which sleeps in any scheduling".into(),
            Kind::Vblade => "vblade, which sleeps in any scheduling".into(),
            Kind::Spdk(_) => "SPDK's iscsi_tgt, which spins in any scheduling".into(),
            Kind::Url(url) => config::redact(url),
        };
        let store = match target.kind {
            Kind::Lunette | Kind::Tgt | Kind::Vblade | Kind::Spdk(_) => target.store.to_string(),
            Kind::Ceiling => match target.store {
                Store::Ram(_) => format!("none: READs from {}", target.store),
                Store::Null(_) | Store::Tmpfs(_) | Store::Disk(_) | Store::Block(_) => {
                    "none: READs from one buffer".into()
                }
            },
            Kind::Url(_) => "its own".into(),
        };
        let spoken = match target.transport {
            Transport::Local => "none",
            Transport::Iscsi => "iSCSI",
            Transport::Iser => "iSER over iWARP",
            Transport::Srp => "SRP over iWARP",
            Transport::Aoe => "AoE",
        };
        let way = match (target.transport, target.link, &target.kind) {
            (Transport::Local, ..) | (_, None, Kind::Url(_)) => spoken.into(),
            (_, Some(Link::Plain), _) => format!("{spoken}, over a veth pair"),
            (_, Some(link @ Link::Rate(_)), _) => format!("{spoken}, over a link of {link}"),
            (_, None, Kind::Lunette | Kind::Ceiling | Kind::Tgt | Kind::Vblade | Kind::Spdk(_)) => {
                format!("{spoken}, over loopback")
            }
        };
        table.lines.push(vec![target.name.clone(), what, store, way]);
    }
    table
}

/// Cores and polling of both sides, as far as the plan uses them.
pub(super) fn schedulings(report: &Report<'_>) -> Table {
    let titles =
        ["Scheduling", "Target's cores", "Target's polling", "Initiator's cores", "Initiator's polling"];
    let mut table = Table::new(titles.map(|title| (title.to_string(), false)));
    let cores = |cores: &[usize], none: &str| if cores.is_empty() { none.into() } else { show_cores(cores) };
    for (place, one) in report.plan.schedulings.iter().enumerate() {
        if report.plan.matrices.iter().any(|matrix| matrix.schedulings.contains(&place)) {
            table.lines.push(vec![
                one.name.clone(),
                cores(&one.target_cores, "all"),
                show_poll(one.target_poll).into(),
                cores(&one.cores, "not pinned"),
                show_poll(one.poll).into(),
            ]);
        }
    }
    table
}

/// Names and values of the facts.
pub(super) fn facts(report: &Report<'_>) -> Table {
    let mut table = Table::new([("Fact".to_string(), false), ("Value".to_string(), false)]);
    let plan = report.plan;
    let time = |time: std::time::Duration| format!("{} s", time.as_secs_f64());
    let mut add = |name: &str, value: String| table.lines.push(vec![name.into(), value]);
    add("Date (UTC)", report.header.started.replace('T', " ").replace('Z', ""));
    for fact in &report.header.facts {
        add(&fact.name, fact.value.clone());
    }
    add("Repetitions", format!("{}, interleaved: every row once before any is repeated", plan.repetitions));
    add("Each run", format!("{} measured after a ramp of {}", time(plan.runtime), time(plan.ramp)));
    add("Runs with a result", format!("{} of {}", report.progress.0, report.progress.1));
    for command in &report.header.commands {
        add("Made by", command.clone());
    }
    add("Plan", format!("digest {}; plan.toml beside this page", report.header.plan));
    table
}

/// The lines for failed rows: which, and why.
pub(super) fn failures(report: &Report<'_>) -> Vec<String> {
    let rows = report.sections.iter().flat_map(|section| &section.rows);
    rows.flat_map(|row| row.failures.iter().map(|reason| format!("{}: {reason}", row.row.label()))).collect()
}

fn whole(summary: &Summary) -> String {
    with_confidence(summary, grouped)
}

fn megabytes(summary: &Summary) -> String {
    // The interval has the same decimals as the mean.
    let fine = summary.mean < 1e8;
    let show = |value: f64| if fine { format!("{:.2}", value / 1e6) } else { grouped(value / 1e6) };
    with_confidence(summary, show)
}

fn percent(summary: &Summary) -> String {
    with_confidence(summary, |share| format!("{:.1}", share * 100.0))
}

fn single(summary: &Summary) -> String {
    let fine = summary.mean < 100.0;
    let show = |value: f64| if fine { format!("{value:.1}") } else { grouped(value) };
    with_confidence(summary, show)
}

fn largest(summary: &Summary) -> String {
    grouped(summary.max)
}

fn precise(summary: &Summary) -> String {
    with_confidence(summary, |value| format!("{value:.2}"))
}

fn with_confidence(summary: &Summary, show: impl Fn(f64) -> String) -> String {
    match summary.confidence {
        Some(half) => format!("{} ± {}", show(summary.mean), show(half)),
        None => show(summary.mean),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_carry_their_confidence() {
        let summary = Summary::of([613_000.0, 613_400.0]).unwrap();
        assert_eq!(whole(&summary), "613,200 ± 2,541");
        assert_eq!(whole(&Summary::of([12.0]).unwrap()), "12");
        assert_eq!(megabytes(&Summary::of([4.2e9, 4.2e9]).unwrap()), "4,200 ± 0");
        assert_eq!(megabytes(&Summary::of([2.5e6]).unwrap()), "2.50");
        assert_eq!(percent(&Summary::of([0.756]).unwrap()), "75.6");
        assert_eq!((grouped(1_000_000.0).as_str(), grouped(999.0).as_str()), ("1,000,000", "999"));
    }
}
