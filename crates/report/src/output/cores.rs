//! The load of every core in every row, as a shaded table: a saturated core among idle ones stands out.

use super::charts::detailed_by_name;
use crate::chart::escape;
use crate::{Measurement, Section};
use bench::result::CoreLoad;
use std::fmt::Write as _;

/// Cores shown in a table: the busiest.
const CORES_MAX: usize = 16;
/// The percentage from which a core counts as saturated.
const FULL: f64 = 95.0;

/// The table, with an explanation; `None`: no load was measured.
pub(super) fn loads(section: &Section<'_>) -> Option<String> {
    let rows = detailed_by_name(section).into_iter();
    let loads = |row: &Measurement<'_>| row.typical().map(|run| run.cores.clone()).unwrap_or_default();
    let rows: Vec<(String, Vec<CoreLoad>)> =
        rows.map(|(name, row)| (name, loads(row))).filter(|(_, loads)| !loads.is_empty()).collect();
    (!rows.is_empty()).then(|| shaded(&rows))
}

fn busy(load: &CoreLoad) -> f64 {
    load.user + load.system
}

fn shaded(rows: &[(String, Vec<CoreLoad>)]) -> String {
    let (cores, others) = chosen(rows);
    let mut out = String::from(
        "<p class=\"note\">In percent of the measured time, from the repetition with the median of operations per second. \
         Spinning counts as load.",
    );
    if let Some(most) = others {
        let _ = write!(out, " No other core had more than {:.0} %.", most * 100.0);
    }
    out.push_str("</p>\n<div class=\"scroll\" tabindex=\"0\"><table class=\"cores\">\n<thead><tr><th scope=\"col\">Row</th>");
    for core in &cores {
        let _ = write!(out, "<th scope=\"col\">core {core}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (name, loads) in rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escape(name));
        for core in &cores {
            match loads.iter().find(|load| load.core == *core) {
                Some(load) => cell(&mut out, load),
                None => out.push_str("<td style=\"--load:0\">–</td>"),
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn cell(out: &mut String, load: &CoreLoad) {
    let percent = |share: f64| (share * 100.0).round();
    let all = percent(busy(load));
    let class = if all >= FULL { " class=\"full\"" } else { "" };
    let user = percent(load.user);
    let system = all - user;
    let _ = write!(
        out,
        "<td{class} style=\"--load:{all}\" title=\"{user} % in user space, {system} % in the kernel\">{all}</td>"
    );
}

/// The cores that are busiest in any row, in order, and the highest load of any other core.
fn chosen(rows: &[(String, Vec<CoreLoad>)]) -> (Vec<usize>, Option<f64>) {
    let mut most: Vec<(usize, f64)> = Vec::new();
    for load in rows.iter().flat_map(|(_, loads)| loads) {
        match most.iter_mut().find(|(core, _)| *core == load.core) {
            Some((_, most)) => *most = most.max(busy(load)),
            None => most.push((load.core, busy(load))),
        }
    }
    most.sort_by(|a, b| b.1.total_cmp(&a.1));
    let others = most.get(CORES_MAX).map(|(_, most)| *most);
    most.truncate(CORES_MAX);
    let mut cores: Vec<usize> = most.into_iter().map(|(core, _)| core).collect();
    cores.sort_unstable();
    (cores, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(core: usize, busy: f64) -> CoreLoad {
        CoreLoad { core, user: busy * 0.25, system: busy * 0.75, idle: 1.0 - busy }
    }

    #[test]
    fn a_saturated_core_stands_out() {
        let text = shaded(&[("a <b>".into(), vec![load(0, 0.98), load(1, 0.04)])]);
        assert!(text.contains("<th scope=\"row\">a &lt;b&gt;</th>"), "{text}");
        assert!(
            text.contains(
                "<td class=\"full\" style=\"--load:98\" title=\"25 % in user space, 73 % in the kernel\">98<"
            ),
            "{text}"
        );
        assert!(text.contains("<td style=\"--load:4\"") && !text.contains("other core"), "{text}");
    }

    #[test]
    fn a_large_machine_shows_its_busiest_cores() {
        let rows = [
            ("a".to_string(), (0..64).map(|core| load(core, core as f64 / 100.0)).collect::<Vec<_>>()),
            ("b".to_string(), vec![load(3, 1.0)]),
        ];
        let (cores, others) = chosen(&rows);
        assert_eq!(cores, [3].into_iter().chain(49..64).collect::<Vec<_>>());
        assert_eq!(others, Some(0.48));
        let text = shaded(&rows);
        assert!(text.contains("No other core had more than 48 %.") && text.contains(">–<"), "{text}");
        assert_eq!(text.matches("<td").count(), 32);
    }
}
