//! Reports that are repeated until an interrupt: repainted on a terminal, otherwise printed one after
//! another.

use crate::client::AdminArguments;
use crate::rates::{Load, Rates};
use crate::table::Shape;
use crate::{Failure, PIPE_CLOSED, print, signals, unprinted};
use clap::Args;
use config::parse_duration;
use ratatui::crossterm::cursor::MoveTo;
use ratatui::crossterm::terminal::{self, Clear, ClearType};
use serde_json::Value;
use std::io::{self, IsTerminal as _};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Options of a report.
#[derive(Debug, Args)]
pub(crate) struct WatchArguments {
    /// Print JSON; with --watch a line each time
    #[arg(long)]
    pub(crate) json: bool,
    /// Repeat until Ctrl-C, with the load in between: every second, or at an interval such as 5 or 500ms
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
}

/// The size of a terminal that does not report it.
const SIZE: (u16, u16) = (80, 24);

/// The shortest interval: rates over less mean little.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < INTERVAL_MIN => Err("that is too short; choose 100ms or more".into()),
        interval => Ok(interval),
    }
}

impl WatchArguments {
    /// Whether it is repeated.
    pub(crate) fn is_repeated(&self) -> bool {
        self.watch.is_some()
    }

    /// The daemon, for repeated requests if the report is repeated.
    pub(crate) fn admin(&self, admin: &AdminArguments) -> AdminArguments {
        if self.is_repeated() { admin.repeated() } else { admin.clone() }
    }

    /// A list of the API as this table, each item with its load since the last reading, once that is known;
    /// `key` identifies items.
    pub(crate) fn list(
        &self,
        admin: &AdminArguments,
        (path, key): (&str, &'static str),
        table: impl Fn(&[(Value, Option<Load>)], Shape) -> String,
    ) -> Result<String, Failure> {
        let admin = self.admin(admin);
        let mut rates = Rates::new(key);
        self.run(|| {
            let items = rates.read(admin.list(path)?, Instant::now());
            Ok(match (self.json, self.is_repeated()) {
                (false, _) => table(&items, self.shape()),
                (true, false) => pretty(&items.into_iter().map(|(item, _)| item).collect()),
                (true, true) => format!("{}\n", Value::from_iter(items.into_iter().map(with_rates))),
            })
        })
    }

    /// On a terminal that is repainted, tables fit its width.
    fn shape(&self) -> Shape {
        let width = self.repaints().then(|| usize::from(terminal::size().unwrap_or(SIZE).0));
        Shape { is_repeated: self.is_repeated(), width }
    }

    fn repaints(&self) -> bool {
        self.is_repeated() && io::stdout().is_terminal() && !self.json
    }

    /// The report; or, when it is repeated, nothing once an interrupt has arrived.
    pub(crate) fn run(&self, mut report: impl FnMut() -> Result<String, Failure>) -> Result<String, Failure> {
        let Some(interval) = self.watch else { return report() };
        let interrupts = signals::interrupts()
            .map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
        // A wrong place, or a lack of access, is reported at once.
        let mut text = report()?;
        let repaints = self.repaints();
        if repaints {
            show(&Clear(ClearType::All).to_string())?;
        }
        let mut due = Instant::now();
        loop {
            show(&match (repaints, self.json) {
                (true, _) => screen(&text, terminal::size().unwrap_or(SIZE)),
                (false, false) => format!("{text}\n"),
                (false, true) => text,
            })?;
            due = (due + interval).max(Instant::now());
            match interrupts.recv_timeout(due.saturating_duration_since(Instant::now())) {
                // After the terminal's ^C.
                Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                    return Ok(if repaints { "\n".into() } else { String::new() });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            // A daemon that is restarted comes back.
            text = match report() {
                Ok(text) => text,
                Err(failure) if self.json => {
                    crate::print_error(format_args!("lunette: {}", failure.text));
                    String::new()
                }
                Err(failure) => format!("{}\n", failure.text),
            };
        }
    }
}

/// Readable JSON.
pub(crate) fn pretty(json: &Value) -> String {
    format!("{json:#}\n")
}

fn with_rates((mut item, load): (Value, Option<Load>)) -> Value {
    item["rates"] = load.map_or(Value::Null, |load| load.json());
    item
}

/// The text that repaints the screen: as many lines as fit, wrapped where they are too long; the last line is for the cursor.
fn screen(text: &str, (columns, rows): (u16, u16)) -> String {
    let end_of_line = Clear(ClearType::UntilNewLine);
    let rows = usize::from(rows.saturating_sub(1));
    let mut lines: Vec<String> = text.lines().flat_map(|line| wrapped(line, columns.into())).collect();
    if lines.len() > rows {
        let more = lines.len() + 1 - rows.max(1);
        lines.truncate(rows.saturating_sub(1));
        let note = format!("... and {more} more lines");
        lines.extend((rows > 0).then(|| note.chars().take(columns.into()).collect::<String>()));
    }
    // First: after a line as wide as the terminal it would clear its last column.
    let lines = lines.into_iter().map(|line| format!("{end_of_line}{line}\n"));
    format!("{}{}{}", MoveTo(0, 0), lines.collect::<String>(), Clear(ClearType::FromCursorDown))
}

/// Wraps a line at this many characters; continuation lines are indented like the first.
fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let indent = line.chars().take_while(|c| *c == ' ').count().min(columns / 2);
    let most = columns.max(indent + 1);
    let mut lines = Vec::new();
    let mut rest: Vec<char> = line.chars().collect();
    while rest.len() > most {
        let space = rest[indent + 1..=most].iter().rposition(|c| *c == ' ');
        let end = space.map_or(most, |at| indent + 1 + at);
        lines.push(rest[..end].iter().collect());
        let behind = rest[end..].iter().skip_while(|c| **c == ' ');
        rest = std::iter::repeat_n(' ', indent).chain(behind.copied()).collect();
    }
    lines.push(rest.into_iter().collect());
    lines
}

/// Prints it; a reader that has gone is not an error.
pub(crate) fn show(text: &str) -> Result<(), Failure> {
    print(text).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure { text: String::new(), status: PIPE_CLOSED },
        _ => Failure::failed(unprinted(&error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_never_longer_or_wider_than_the_terminal() {
        let text = screen("a long line\nb\n", (6, 4));
        assert_eq!(text, "\u{1b}[1;1H\u{1b}[Ka long\n\u{1b}[Kline\n\u{1b}[Kb\n\u{1b}[J");
        let text = screen("a\nb\nc\nd\n", (22, 4));
        assert_eq!(text, "\u{1b}[1;1H\u{1b}[Ka\n\u{1b}[Kb\n\u{1b}[K... and 2 more lines\n\u{1b}[J");
        for size in [(0, 0), (1, 1), (1, 2), (2, 9)] {
            screen("   a long line\nb\n", size);
        }
    }

    #[test]
    fn a_line_is_wrapped_below_its_first_word() {
        assert_eq!(wrapped("  one two three", 15), ["  one two three"]);
        assert_eq!(wrapped("  one two three", 9), ["  one two", "  three"]);
        assert_eq!(wrapped("  one two three", 10), ["  one two", "  three"]);
        assert_eq!(wrapped("  abcdefghij", 7), ["  abcde", "  fghij"]);
        assert_eq!(wrapped("", 7), [""]);
    }

    #[test]
    fn an_interval_is_in_seconds_unless_it_says_otherwise() {
        let parsed = ["2", "500ms", "1m"].map(|text| interval(text).map(|interval| interval.as_millis()));
        assert_eq!(parsed, [Ok(2000), Ok(500), Ok(60_000)]);
        assert!(interval("0").is_err() && interval("x").is_err());
    }
}
