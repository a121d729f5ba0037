//! Tables of what a daemon reports, and how its figures are written there.

use config::format_size;
use serde_json::Value;
use std::time::Duration;
use wire::shown;

/// Stands where nothing is known.
pub(crate) const NONE: &str = "-";

/// What a column holds: words begin below its title, figures end below its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Words(&'static str),
    Figures(&'static str),
}

/// Rows below titles, each with a line of details of its own, if it has any.
pub(crate) struct Table<'a> {
    columns: &'a [Column],
    rows: Vec<(Vec<String>, String)>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(columns: &'a [Column]) -> Table<'a> {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row: a text for each column.
    pub(crate) fn add(&mut self, row: Vec<String>, details: String) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push((row, details));
    }

    /// All lines.
    pub(crate) fn text(&self) -> String {
        let titles = self.columns.iter().map(|column| match column {
            Column::Words(title) | Column::Figures(title) => (*title).to_owned(),
        });
        let titles: Vec<String> = titles.collect();
        let widths: Vec<usize> = (0..titles.len())
            .map(|column| {
                let all = self.rows.iter().map(|(row, _)| row).chain([&titles]);
                all.map(|row| row[column].chars().count()).max().unwrap_or(0)
            })
            .collect();
        let line = |row: &[String]| {
            let cells =
                self.columns.iter().zip(row).zip(&widths).map(|((column, text), width)| match column {
                    Column::Words(_) => format!("{text:<width$}"),
                    Column::Figures(_) => format!("{text:>width$}"),
                });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let mut text = line(&titles);
        for (row, details) in &self.rows {
            text += &line(row);
            if !details.is_empty() {
                text += &format!("{:width$}  {details}\n", "", width = widths[0]);
            }
        }
        text
    }
}

/// Text in an answer, made printable; what is none is empty.
pub(crate) fn word(json: &Value) -> String {
    json.as_str().map(|text| shown(text).to_string()).unwrap_or_default()
}

/// A number in an answer.
pub(crate) fn number(json: &Value) -> String {
    json.as_u64().map_or_else(|| NONE.into(), |number| number.to_string())
}

/// Bytes in an answer, to three digits.
pub(crate) fn size(json: &Value) -> String {
    json.as_u64().map_or_else(|| NONE.into(), rounded)
}

/// Bytes to three digits: a number that changes all the time is not read to the last one.
pub(crate) fn rounded(bytes: u64) -> String {
    let mut unit = 0;
    let mut number = bytes as f64;
    while number >= 1000.0 && unit < UNITS.len() - 1 {
        number /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format_size(bytes),
        _ if number < 10.0 => format!("{number:.2} {}", UNITS[unit]),
        _ if number < 100.0 => format!("{number:.1} {}", UNITS[unit]),
        _ => format!("{number:.0} {}", UNITS[unit]),
    }
}

const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// The two largest units.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// The same of seconds in an answer.
pub(crate) fn seconds(json: &Value) -> String {
    let duration = json.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.map_or_else(|| NONE.into(), age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_figures_end_in_one_line() {
        let mut table =
            Table::new(&[Column::Figures("NUMBER"), Column::Words("NAME"), Column::Figures("AGE")]);
        table.add(vec!["7".into(), "a long name".into(), "1s".into()], "more".into());
        table.add(vec!["1234567".into(), "b".into(), "1m00s".into()], String::new());
        let expected = " NUMBER  NAME           AGE\n      7  a long name     1s\n         more\n1234567  b            1m00s\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn ages_and_sizes_are_short() {
        let ages = [0, 59, 60, 3599, 3600, 90_000].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "59s", "1m00s", "59m59s", "1h00m", "1d01h"]);
        let sizes = [0, 512, 999, 1024, 1 << 20, 150 << 30, u64::MAX].map(rounded);
        assert_eq!(sizes[..6], ["0 bytes", "512 bytes", "999 bytes", "1.00 KiB", "1.00 MiB", "150 GiB"]);
        assert_eq!(sizes[6], "16384 PiB");
    }

    #[test]
    fn what_is_not_reported_is_a_dash() {
        assert_eq!([number(&Value::Null), size(&Value::Null), seconds(&Value::Null)], [NONE; 3]);
        assert_eq!(word(&Value::Null), "");
    }
}
