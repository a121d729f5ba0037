//! Tables of what a daemon reports, and the format of figures in them.

use config::format_size;
use serde_json::Value;
use std::time::Duration;
use wire::shown;

/// The cell for an unknown value.
pub(crate) const NONE: &str = "-";

/// The content of a column: words are aligned left, figures right.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Words(&'static str),
    Figures(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Column::Words(title) | Column::Figures(title) => title,
        }
    }
}

/// How tables are shown.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape {
    /// They are repeated, with the load in between.
    pub(crate) is_repeated: bool,
    /// The most characters of a row; `None`: any number.
    pub(crate) width: Option<usize>,
}

/// Texts are not truncated below this length.
const SHORTEST: usize = 8;
/// Blanks between two columns.
const GAP: usize = 2;

/// Rows below titles, each followed by a line of details, if it has any.
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

    /// All lines. If rows would be too wide, the columns with these titles move to the details, one after
    /// another, and then the widest column of words is truncated.
    pub(crate) fn text(&self, width: Option<usize>, dispensable: &[&str]) -> String {
        let titles: Vec<String> = self.columns.iter().map(|column| column.title().to_owned()).collect();
        let (shown, widths) = self.fit(width.unwrap_or(usize::MAX), &titles, dispensable);
        let line = |row: &[String]| {
            let cells = shown.iter().map(|index| {
                let (width, text) = (widths[*index], &row[*index]);
                match self.columns[*index] {
                    Column::Words(_) => format!("{:<width$}", end_of(text, width)),
                    Column::Figures(_) => format!("{text:>width$}"),
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let is_whole =
            |index: usize, text: &str| shown.contains(&index) && text.chars().count() <= widths[index];
        let mut text = line(&titles);
        for (row, details) in &self.rows {
            text += &line(row);
            let hidden =
                row.iter().enumerate().filter(|(index, text)| !is_whole(*index, text) && *text != NONE);
            let hidden = hidden.map(|(index, text)| format!("{} {text}", titles[index]));
            let all: Vec<String> = hidden.chain((!details.is_empty()).then(|| details.clone())).collect();
            if !all.is_empty() {
                text += &format!("{:width$}  {}\n", "", all.join(", "), width = widths[0]);
            }
        }
        text
    }

    /// The columns that are shown, and the width of each column.
    fn fit(&self, most: usize, titles: &Vec<String>, dispensable: &[&str]) -> (Vec<usize>, Vec<usize>) {
        let all = || self.rows.iter().map(|(row, _)| row).chain([titles]);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..titles.len()).map(width).collect();
        let mut shown: Vec<usize> = (0..titles.len()).collect();
        let whole = |shown: &[usize]| shown.iter().map(|index| widths[*index] + GAP).sum::<usize>() - GAP;
        for title in dispensable {
            if whole(&shown) <= most {
                break;
            }
            shown.retain(|index| titles[*index] != *title);
        }
        let excess = whole(&shown).saturating_sub(most);
        let words = shown.iter().filter(|index| matches!(self.columns[**index], Column::Words(_)));
        if let Some(widest) = words.max_by_key(|index| widths[**index]) {
            widths[*widest] = widths[*widest].saturating_sub(excess).max(widths[*widest].min(SHORTEST));
        }
        (shown, widths)
    }
}

/// A text of at most this many characters: the end of a longer one, since names at one site differ there.
fn end_of(text: &str, width: usize) -> String {
    match text.chars().count().checked_sub(width) {
        None | Some(0) => text.to_owned(),
        Some(more) => "…".chars().chain(text.chars().skip(more + 1)).collect(),
    }
}

/// Text in an answer, made printable; empty if it is not text.
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

/// Bytes to three digits, since more are not readable in a number that changes all the time.
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

/// A duration in its two largest units.
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
        assert_eq!(table.text(None, &["AGE"]), expected);
    }

    #[test]
    fn where_a_row_is_too_wide_columns_become_details_and_then_the_widest_words_are_cut() {
        let mut table = Table::new(&[Column::Words("NAME"), Column::Words("FROM"), Column::Figures("AGE")]);
        table.add(vec!["iqn.2026-11.io.lunette:a".into(), "10.0.0.1".into(), "1s".into()], "more".into());
        table.add(vec!["b".into(), NONE.into(), "1m00s".into()], String::new());
        let at = |width: usize| table.text(Some(width), &["FROM"]);
        assert_eq!(at(41), table.text(None, &[]), "all of it fits");
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let without = lines(&at(40));
        let name = "iqn.2026-11.io.lunette:a";
        assert_eq!(without[..2], [format!("{:24}    AGE", "NAME"), format!("{name}     1s")]);
        assert_eq!(without[2].trim(), "FROM 10.0.0.1, more");
        assert_eq!(without.len(), 4, "what is not known is no detail");
        let cut = lines(&at(20));
        assert_eq!(cut[1], "…io.lunette:a     1s", "{cut:#?}");
        assert_eq!(cut[2].trim(), format!("NAME {name}, FROM 10.0.0.1, more"));
        assert_eq!(lines(&at(3))[1].split_whitespace().next(), Some("…nette:a"), "no shorter than that");
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
