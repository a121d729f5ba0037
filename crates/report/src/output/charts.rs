//! The charts of a section.

use crate::chart::{self, Frame, SERIES_STYLES, Series, SeriesStyle};
use crate::matrix::Axis;
use crate::plan::{Kind, Plan, Target};
use crate::{Measurement, Metric, Part, Row, Section, Summary};

/// A block of charts of the same kind, with a shared legend.
pub(super) struct Block {
    pub(super) title: &'static str,
    /// An explanation for the reader.
    pub(super) note: &'static str,
    /// Symbol and name.
    pub(super) legend: Vec<(String, String)>,
    /// Heading and picture.
    pub(super) charts: Vec<(String, String)>,
}

/// The figures drawn: metric, heading, unit and the factor to convert to it.
const FIGURES: [(Metric, &str, &str, f64); 4] = [
    (Metric::Iops, "Operations per second", "IOPS", 1.0),
    (Metric::Throughput, "Bandwidth", "MB/s", 1e-6),
    (Metric::TargetCpu, "CPU per command, target", "µs of CPU per command", 1.0),
    (Metric::InitiatorCpu, "CPU per command, initiator", "µs of CPU per command", 1.0),
];
/// Axes with ordered numeric values, suitable for lines.
const ORDERED: [Axis; 5] = [Axis::BlockSize, Axis::Depth, Axis::Jobs, Axis::Luns, Axis::Initiators];
/// Most latency charts, and most core charts, in a section.
const DETAILS_MAX: usize = 24;

/// The charts of a section's figures.
pub(super) fn figures(plan: &Plan, section: &Section<'_>) -> Vec<Block> {
    let layout = Layout::of(section);
    let mut blocks = Vec::new();
    for (metric, title, unit, factor) in FIGURES {
        let redundant = metric == Metric::Throughput && !layout.varying.contains(&Axis::BlockSize);
        let block = figure(plan, section, &layout, (metric, title, unit, factor));
        blocks.extend(block.filter(|_| !redundant));
    }
    blocks
}

/// How a section's rows are arranged: over the x axis and over charts; targets are series.
struct Layout {
    varying: Vec<Axis>,
    x: Axis,
    panels: Vec<Axis>,
}

impl Layout {
    fn of(section: &Section<'_>) -> Layout {
        let rows: Vec<&Row> = section.rows.iter().map(|one| one.row).collect();
        let varying = Axis::varying(&rows);
        let spread = |axis: &Axis| {
            let mut values: Vec<String> = rows.iter().map(|row| axis.value(row)).collect();
            values.sort();
            values.dedup();
            values.len()
        };
        let ordered = ORDERED.iter().filter(|axis| varying.contains(axis));
        let by_size = varying.contains(&Axis::BlockSize).then_some(Axis::BlockSize);
        let longest = ordered.rev().max_by_key(|axis| spread(axis)).copied();
        let direction = varying.contains(&Axis::Direction).then_some(Axis::Direction);
        let x = by_size.or(longest).or(direction).unwrap_or(Axis::BlockSize);
        let panels = varying.iter().filter(|axis| **axis != x && **axis != Axis::Target).copied().collect();
        Layout { varying, x, panels }
    }

    fn heading(&self, row: &Row) -> String {
        phrases(&self.panels, row)
    }
}

fn phrases(axes: &[Axis], row: &Row) -> String {
    let phrases: Vec<String> = axes.iter().map(|axis| axis.phrase(row)).collect();
    phrases.join(", ")
}

fn figure(
    plan: &Plan,
    section: &Section<'_>,
    layout: &Layout,
    (metric, title, unit, factor): (Metric, &'static str, &'static str, f64),
) -> Option<Block> {
    let known = |row: &&Measurement<'_>| row.summary(metric, Part::All).is_some();
    let rows: Vec<&Measurement<'_>> = section.rows.iter().filter(known).collect();
    let x_labels = distinct(rows.iter().map(|row| layout.x.value(row.row)));
    let is_line = x_labels.len() > 2 && ORDERED.contains(&layout.x);
    let x_places = places(&rows, layout.x, &x_labels, is_line);
    let targets = targets(plan, &rows);
    // All charts of a block have the same scale, so that they can be compared.
    let summaries: Vec<Summary> = rows.iter().filter_map(|row| row.summary(metric, Part::All)).collect();
    let most = most(&summaries) * factor;
    let mut charts = Vec::new();
    for heading in distinct(rows.iter().map(|row| layout.heading(row.row))) {
        let panel: Vec<&&Measurement<'_>> =
            rows.iter().filter(|row| layout.heading(row.row) == heading).collect();
        let point = |target: &Target, label: &String| {
            let row =
                panel.iter().find(|row| row.row.target == *target && layout.x.value(row.row) == *label)?;
            row.summary(metric, Part::All).map(|summary| summary.scaled(factor))
        };
        let one = |target: &&Target| Series {
            name: target.name.clone(),
            style: style(plan, target),
            points: x_labels.iter().map(|label| point(target, label)).collect(),
        };
        let series: Vec<Series> = targets.iter().map(one).collect();
        let full_title = format!("{title}, {heading}, by {}", layout.x.title().to_lowercase());
        let frame = Frame {
            title: &full_title,
            x_title: layout.x.title(),
            x_labels: &x_labels,
            x_places: &x_places,
            y_title: unit,
            most,
        };
        let picture = if is_line { chart::lines(&frame, &series) } else { chart::bars(&frame, &series) };
        charts.push((heading, picture));
    }
    let note = match metric {
        Metric::TargetCpu => "Less is better. User and kernel time of the target's process.",
        Metric::InitiatorCpu => "Less is better. User and kernel time of the initiator's threads.",
        _ => "Error bars: 95 % confidence interval of the mean; one without an end mark exceeds the chart.",
    };
    let swatch = if is_line { chart::line_swatch } else { chart::bar_swatch };
    (!charts.is_empty()).then(|| Block { title, note, legend: legend(plan, &targets, swatch), charts })
}

/// The upper end of a scale: the largest mean, and error bars up to a tenth above it. An error bar of two
/// repetitions is twelve times as long as their difference.
fn most(summaries: &[Summary]) -> f64 {
    let mean = summaries.iter().map(|summary| summary.mean).fold(0.0, f64::max);
    let end = summaries.iter().map(|summary| summary.interval().1).fold(mean, f64::max);
    end.min(mean * 1.1)
}

/// Positions of the labels: evenly spaced or, for lines, by the logarithm of their numbers.
fn places(rows: &[&Measurement<'_>], axis: Axis, labels: &[String], is_line: bool) -> Vec<f64> {
    const INSET: f64 = 0.06;
    let number = |label: &String| {
        let row = rows.iter().find(|row| axis.value(row.row) == *label)?;
        axis.number(row.row).map(f64::ln)
    };
    let numbers: Vec<f64> = labels.iter().filter_map(number).collect();
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if is_line && numbers.len() == labels.len() && high > low {
        return numbers
            .iter()
            .map(|number| INSET + (number - low) / (high - low) * (1.0 - 2.0 * INSET))
            .collect();
    }
    (0..labels.len()).map(|index| (index as f64 + 0.5) / labels.len() as f64).collect()
}

/// Latency by percentile, for the rows selected by the plan.
pub(super) fn latency(plan: &Plan, section: &Section<'_>) -> Option<Block> {
    let layout = Layout::of(section);
    let rows = detailed(section);
    let targets = targets(plan, &rows);
    let axes: Vec<Axis> = layout.varying.iter().filter(|axis| **axis != Axis::Target).copied().collect();
    let mut charts = Vec::new();
    for heading in distinct(rows.iter().map(|row| phrases(&axes, row.row))) {
        let panel: Vec<&&Measurement<'_>> =
            rows.iter().filter(|row| phrases(&axes, row.row) == heading).collect();
        for part in parts(&panel) {
            let series: Vec<chart::Curves<'_>> =
                panel.iter().filter_map(|row| curves(plan, row, part)).collect();
            if series.is_empty() || charts.len() == DETAILS_MAX {
                continue;
            }
            let of = if part == Part::All { String::new() } else { format!(": {}", part.title()) };
            let heading = format!("{}{of}", if heading.is_empty() { "all rows" } else { &heading });
            let picture = chart::latency(&format!("Latency by percentile, {heading}"), &series);
            charts.push((heading, picture));
        }
    }
    let note = "Lower is better. Line: mean of the repetitions; band: smallest to largest of them.";
    let title = "Latency by percentile";
    (!charts.is_empty()).then(|| Block {
        title,
        note,
        legend: legend(plan, &targets, chart::line_swatch),
        charts,
    })
}

/// The curves of a row's repetitions; `None`: there are none.
fn curves<'a>(plan: &Plan, row: &Measurement<'a>, part: Part) -> Option<chart::Curves<'a>> {
    let streams = row.runs.values().filter_map(|run| part.stream(run));
    let curves: Vec<&[(f64, f64)]> =
        streams.map(|stream| stream.latency.curve.as_slice()).filter(|curve| !curve.is_empty()).collect();
    let (name, style) = (row.row.target.name.clone(), style(plan, &row.row.target));
    (!curves.is_empty()).then_some(chart::Curves { name, style, curves })
}

/// The load of each core over time, for the same rows.
pub(super) fn cores(section: &Section<'_>) -> Option<Block> {
    let mut charts = Vec::new();
    for (heading, row) in detailed_by_name(section).into_iter().take(DETAILS_MAX) {
        let Some(run) = row.typical().filter(|run| run.series.iter().any(|sample| !sample.cores.is_empty()))
        else {
            continue;
        };
        let picture = chart::cores(&format!("Load of the cores, {heading}"), &run.series);
        charts.push((heading, picture));
    }
    let swatch = |class: &str| format!("<span class=\"patch {class}\"></span>");
    let legend = vec![(swatch("user"), "user space".into()), (swatch("system"), "kernel".into())];
    let note = "From the repetition with the median of operations per second. Spinning counts as load.";
    (!charts.is_empty()).then_some(Block { title: "Load of each core over time", note, legend, charts })
}

/// The rows whose cores are drawn, each with what distinguishes it from the others.
pub(super) fn detailed_by_name<'s, 'a>(section: &'s Section<'a>) -> Vec<(String, &'s Measurement<'a>)> {
    let varying = Layout::of(section).varying;
    let axes: Vec<Axis> = [Axis::Target].iter().chain(&varying).copied().collect();
    let name = |row: &Measurement<'_>| distinct(axes.iter().map(|axis| axis.phrase(row.row))).join(", ");
    detailed(section).into_iter().map(|row| (name(row), row)).collect()
}

/// The rows whose latency and cores are drawn.
fn detailed<'s, 'a>(section: &'s Section<'a>) -> Vec<&'s Measurement<'a>> {
    let chosen =
        |row: &&Measurement<'_>| section.matrix.detail.contains(&row.row.job.bs) && !row.runs.is_empty();
    section.rows.iter().filter(chosen).collect()
}

/// The parts of these rows that have latencies.
fn parts(rows: &[&&Measurement<'_>]) -> Vec<Part> {
    let mut streams: Vec<Part> = Vec::new();
    for part in rows.iter().flat_map(|row| row.parts()) {
        let has = rows.iter().any(|row| row.runs.values().any(|run| part.stream(run).is_some()));
        if has && !streams.contains(&part) {
            streams.push(part);
        }
    }
    streams
}

/// The targets of these rows in the plan's order.
fn targets<'p>(plan: &'p Plan, rows: &[&Measurement<'_>]) -> Vec<&'p Target> {
    plan.targets.iter().filter(|target| rows.iter().any(|row| row.row.target == **target)).collect()
}

fn legend(plan: &Plan, targets: &[&Target], swatch: fn(SeriesStyle) -> String) -> Vec<(String, String)> {
    targets.iter().map(|target| (swatch(style(plan, target)), target.name.clone())).collect()
}

/// A target looks the same in every chart; the first ceiling is drawn like a limit, without a colour.
fn style(plan: &Plan, target: &Target) -> SeriesStyle {
    let is_limit = |other: &&Target| other.kind == Kind::Ceiling;
    let limit = plan.targets.iter().find(is_limit);
    if limit == Some(target) {
        return SeriesStyle(SERIES_STYLES - 1);
    }
    let mut others = plan.targets.iter().filter(|other| limit != Some(other));
    SeriesStyle(others.position(|other| other == target).unwrap_or(0) % (SERIES_STYLES - 1))
}

fn distinct(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    for value in values {
        if !list.contains(&value) {
            list.push(value);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bars_do_not_set_the_scale() {
        let summaries = |pairs: &[[f64; 2]]| -> Vec<Summary> {
            pairs.iter().filter_map(|pair| Summary::of(*pair)).collect()
        };
        let (steady, wild) = ([100.0, 100.1], [40.0, 60.0]);
        assert!(Summary::of(wild).unwrap().interval().1 > 150.0);
        assert!((most(&summaries(&[steady, wild])) - 110.055).abs() < 1e-9);
        let end = Summary::of(steady).unwrap().interval().1;
        assert_eq!(most(&summaries(&[steady])), end, "a short one has room");
        assert_eq!(most(&[]), 0.0);
    }
}
