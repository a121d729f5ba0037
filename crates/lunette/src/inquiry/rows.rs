//! Lines of a label and a value.

use std::fmt::Write as _;

/// Lines under titles, their values in one column.
#[derive(Default)]
pub(crate) struct Rows {
    text: String,
    lines: Vec<(String, String)>,
}

impl Rows {
    /// Ends the lines so far and begins those of another title.
    pub(crate) fn title(&mut self, title: &str) {
        self.flush();
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let _ = writeln!(self.text, "{title}");
    }

    pub(crate) fn add(&mut self, label: impl Into<String>, value: impl Into<String>) {
        self.lines.push((label.into(), value.into()));
    }

    /// A value that may be empty.
    pub(crate) fn text(&mut self, label: &str, value: &str) {
        self.add(label, if value.is_empty() { "(none)" } else { value });
    }

    /// A value that may be missing; then there is no line.
    pub(super) fn maybe<T>(&mut self, label: &str, value: Option<T>, text: impl FnOnce(T) -> String) {
        if let Some(value) = value {
            self.add(label, text(value));
        }
    }

    pub(crate) fn finish(mut self) -> String {
        self.flush();
        self.text
    }

    fn flush(&mut self) {
        let width = self.lines.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        for (label, value) in self.lines.drain(..) {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "  {label:width$}  {value}");
        }
    }

    #[cfg(test)]
    pub(super) fn shown(write: impl FnOnce(&mut Rows)) -> String {
        let mut rows = Rows::default();
        write(&mut rows);
        rows.finish()
    }
}

/// The words whose flag is set, separated by commas.
pub(super) fn list<const N: usize>(flags: [(bool, &str); N]) -> String {
    let holding: Vec<&str> = flags.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word).collect();
    if holding.is_empty() { "none".into() } else { holding.join(", ") }
}

/// Yes or no.
pub(super) fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}
