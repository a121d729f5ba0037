//! Every figure of every row, for spreadsheets and scripts.

use crate::matrix::Axis;
use crate::{Measurement, Metric, Part, Report};
use bench::output::csv::records;

/// Figures by column name, with the suffix for their unit.
const FIGURES: [(Metric, &str, &str); 11] = [
    (Metric::Iops, "iops", ""),
    (Metric::Throughput, "bytes_per_second", ""),
    (Metric::Mean, "latency_mean", "_us"),
    (Metric::P50, "latency_p50", "_us"),
    (Metric::P90, "latency_p90", "_us"),
    (Metric::P99, "latency_p99", "_us"),
    (Metric::P999, "latency_p99_9", "_us"),
    (Metric::Max, "latency_max", "_us"),
    (Metric::TargetCpu, "target_cpu", "_us_per_command"),
    (Metric::InitiatorCpu, "initiator_cpu", "_us_per_command"),
    (Metric::Errors, "errors", ""),
];
/// Those that a ceiling has too: also given as fractions of the ceiling's.
const SHARED: &[(Metric, &str, &str)] = FIGURES.split_at(10).0;
/// The statistics over the repetitions of a figure, as suffixes of its column's name.
const SUMMARIES: [&str; 6] = ["", "_median", "_stddev", "_ci95_half", "_min", "_max"];

/// A line for each row, and for each stream of rows that have two (RFC 4180).
pub(super) fn csv(report: &Report<'_>) -> String {
    let mut heading = vec!["section".to_string()];
    heading.extend(Axis::ALL.iter().map(|axis| axis.title().to_lowercase().replace(' ', "_")));
    heading.extend(["block_size_bytes", "store", "operations", "runs", "failed"].map(String::from));
    let own = FIGURES.iter().map(|(_, name, unit)| format!("{name}{unit}"));
    for name in own.chain(SHARED.iter().map(|(_, name, _)| format!("{name}_of_ceiling"))) {
        heading.extend(SUMMARIES.iter().map(|ending| format!("{name}{ending}")));
    }
    heading.push("iops_each".into());
    let mut lines = vec![heading];
    for section in &report.sections {
        for row in &section.rows {
            for part in row.parts() {
                let mut fields = vec![section.matrix.title.clone()];
                fields.extend(Axis::ALL.iter().map(|axis| axis.value(row.row)));
                fields.extend([
                    row.row.job.bs.to_string(),
                    row.row.target.store.to_string(),
                    part.title().into(),
                ]);
                fields.extend([row.runs.len().to_string(), row.failures.join("; ")]);
                fields.extend(figures(row, part));
                fields.push(each(row, part));
                lines.push(fields);
            }
        }
    }
    records(lines)
}

/// Operations per second in each repetition, so that two rows can be compared pairwise: `1:92532.5 2:91003`.
fn each(row: &Measurement<'_>, part: Part) -> String {
    let iops = |(repetition, run): (&u32, _)| Some(format!("{repetition}:{}", Metric::Iops.of(run, part)?));
    row.runs.iter().map(|(repetition, run)| (repetition, *run)).filter_map(iops).collect::<Vec<_>>().join(" ")
}

fn figures(row: &Measurement<'_>, part: Part) -> Vec<String> {
    let mut fields = Vec::new();
    let figures = FIGURES.iter().map(|(metric, ..)| row.summary(*metric, part));
    for summary in figures.chain(SHARED.iter().map(|(metric, ..)| row.of_ceiling(*metric, part))) {
        let Some(summary) = summary else {
            fields.extend(SUMMARIES.map(|_| String::new()));
            continue;
        };
        let confidence = summary.confidence.map_or_else(String::new, |half| half.to_string());
        fields.extend([summary.mean, summary.median, summary.deviation].map(|figure| figure.to_string()));
        fields.extend([confidence, summary.min.to_string(), summary.max.to_string()]);
    }
    fields
}
