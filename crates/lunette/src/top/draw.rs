//! The screen of `lunette top`.

use super::{Item, Model, Shown, Sort};
use crate::figures;
use crate::luns::{self, state, trouble};
use crate::sessions::{self, target};
use crate::status::percent;
use crate::table::{number, seconds, size, word};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The width from which all figures fit on the screen.
const WIDE: u16 = 116;
/// The height from which the screen shows details of the selected row, and their length.
const HIGH: u16 = 16;
const DETAILS: u16 = 480;
/// The age from which that of a reading is shown.
const FRESH: Duration = Duration::from_secs(3);
/// Characters of a core's bar.
const BAR: usize = 16;
/// Width of a core's figures, with its history to the right.
const CORE: u16 = 58;

/// Draws all of it.
pub(super) fn screen(frame: &mut Frame<'_>, model: &Model, now: Instant) {
    let area = frame.area();
    let cores = u16::try_from(model.cores.len()).unwrap_or(u16::MAX).min((area.height / 3).max(1));
    let parts = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(cores),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(if area.height < HIGH {
            0
        } else {
            DETAILS.div_ceil(area.width.max(1)).min(area.height / 4)
        }),
        Constraint::Length(1),
    ]);
    let [head, load, _, items, details, foot] = parts.areas(area);
    frame.render_widget(title(model, now), head);
    self::cores(frame, load, model);
    self::items(frame, items, model);
    frame.render_widget(self::details(model, area.width), details);
    frame.render_widget(footer(model), foot);
}

fn title(model: &Model, now: Instant) -> Paragraph<'_> {
    let Some(reading) = &model.reading else { return Paragraph::new("Lunette") };
    let ill = model.luns.iter().filter(|(lun, _)| trouble(lun).is_some()).count();
    let version = word(&reading.daemon["version"]);
    let mut line = Line::from(vec![Span::from("Lunette ").bold(), Span::from(version)]);
    // First, as not everything fits on a narrow screen.
    let age = now.saturating_duration_since(reading.sessions.1);
    if age > FRESH {
        line.push_span(Span::from(format!("  as of {} ago", seconds(&age.as_secs().into()))).fg(Color::Red));
    }
    let uptime = seconds(&reading.daemon["uptime_seconds"]);
    line.push_span(format!("  up {uptime}  {}", count(model.luns.len(), "LUN")));
    if ill > 0 {
        line.push_span(Span::from(format!(" ({ill} not well)")).fg(Color::Red));
    }
    line.push_span(format!("  {}", count(model.sessions.len(), "session")));
    Paragraph::new(line)
}

fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// A line for each core, as many as fit: the fractions of time that it was busy, polling and asleep, and the
/// history of busy.
fn cores(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let reported = model.reading.iter().flat_map(|reading| &reading.cores);
    for ((core, (now, history)), area) in reported.zip(&model.cores).zip(area.rows()) {
        let parts = [Constraint::Length(CORE), Constraint::Min(0)];
        let [figures, past] = Layout::horizontal(parts).areas(area);
        let cells = |part: Option<f64>| (part.unwrap_or(0.0) * BAR as f64).round() as usize;
        let busy = cells(now[0]).min(BAR);
        let polling = cells(now[1]).min(BAR - busy);
        let line = Line::from(vec![
            Span::from(format!("core {:>3} ", number(&core["core"]))),
            Span::from("█".repeat(busy)),
            Span::from("░".repeat(polling)),
            Span::from(".".repeat(BAR - busy - polling)).dim(),
            Span::from(format!(
                " {:>4} busy {:>4} poll {:>4} asleep",
                percent(now[0]),
                percent(now[1]),
                percent(now[2])
            )),
        ]);
        frame.render_widget(line, figures);
        let width = usize::from(past.width);
        let latest = history.iter().skip(history.len().saturating_sub(width));
        let shares: Vec<u64> = latest.map(|busy| (busy * 100.0) as u64).collect();
        frame.render_widget(Sparkline::default().data(&shares).max(100), past);
    }
}

/// A column: its title, its width, and whether it is shown on a narrow screen as well.
type Column = (&'static str, Constraint, bool);

const LUNS: [Column; 4] = [
    ("LUN", Constraint::Min(14), true),
    ("STATE", Constraint::Length(6), true),
    ("SIZE", Constraint::Length(9), false),
    ("USED", Constraint::Length(9), false),
];
const SESSIONS: [Column; 5] = [
    ("ID", Constraint::Length(5), true),
    ("INITIATOR", Constraint::Fill(3), true),
    ("TARGET", Constraint::Fill(2), false),
    ("CORE", Constraint::Length(4), false),
    ("FLIGHT", Constraint::Length(6), false),
];
/// Columns of words; figures end below the end of their title.
const WORDS: [&str; 4] = ["LUN", "STATE", "INITIATOR", "TARGET"];
const LOAD: [Column; 8] = [
    ("READ/S", Constraint::Length(7), true),
    ("R MB/S", Constraint::Length(7), true),
    ("R P50", Constraint::Length(6), false),
    ("R P99", Constraint::Length(6), true),
    ("WRITE/S", Constraint::Length(7), true),
    ("W MB/S", Constraint::Length(7), true),
    ("W P50", Constraint::Length(6), false),
    ("W P99", Constraint::Length(6), true),
];

/// All columns of the table that is shown.
fn columns(shown: Shown) -> Vec<Column> {
    let what: &[Column] = match shown {
        Shown::Luns => &LUNS,
        Shown::Sessions => &SESSIONS,
    };
    [what, &LOAD].concat()
}

/// The cells of an item.
fn texts(shown: Shown, (item, load): &Item) -> Vec<String> {
    let cells = match shown {
        Shown::Luns => lun(item),
        Shown::Sessions => session(item),
    };
    [cells, figures::of_load(load.as_ref())].concat()
}

fn is_shown(column: &Column, width: u16) -> bool {
    column.2 || width >= WIDE
}

fn items(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let columns = columns(model.shown);
    let shown: Vec<usize> =
        (0..columns.len()).filter(|index| is_shown(&columns[*index], area.width)).collect();
    let cell = |index: &usize, text: String| {
        let is_word = WORDS.contains(&columns[*index].0);
        Cell::from(Line::from(text).alignment(if is_word { Alignment::Left } else { Alignment::Right }))
    };
    let row = |item: &Item| {
        let texts = texts(model.shown, item);
        let cells = shown.iter().map(|index| cell(index, texts[*index].clone()));
        let row = Row::new(cells.collect::<Vec<_>>());
        if model.shown == Shown::Luns && trouble(&item.0).is_some() { row.fg(Color::Red) } else { row }
    };
    let titles = shown.iter().map(|index| cell(index, columns[*index].0.into()));
    let widths: Vec<Constraint> = shown.iter().map(|index| columns[*index].1).collect();
    let table = Table::new(model.items().iter().map(row), widths)
        .header(Row::new(titles.collect::<Vec<_>>()).style(Style::new().bold()))
        .row_highlight_style(Style::new().reversed());
    let mut state = TableState::new().with_selected(Some(model.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn lun(lun: &Value) -> Vec<String> {
    vec![word(&lun["name"]), state(lun), size(&lun["size_bytes"]), size(&lun["used_bytes"])]
}

fn session(session: &Value) -> Vec<String> {
    vec![
        number(&session["id"]),
        word(&session["initiator"]),
        // After the common part of names of one site (RFC 7143 section 4.2.7.5).
        target(session).split_once(':').map_or_else(|| target(session), |(_, own)| own.into()),
        number(&session["core"]),
        number(&session["in_flight"]),
    ]
}

/// Details of the selected row that no column shows.
fn details(model: &Model, width: u16) -> Paragraph<'_> {
    let Some(selected) = model.items().get(model.selected) else { return Paragraph::default() };
    let columns = columns(model.shown);
    let cells = columns.iter().zip(texts(model.shown, selected));
    let hidden = cells.filter(|(column, _)| !is_shown(column, width));
    let mut all: Vec<String> = hidden.map(|(column, text)| format!("{} {text}", column.0)).collect();
    let item = &selected.0;
    all.push(match model.shown {
        Shown::Luns => luns::details(item),
        Shown::Sessions => format!(
            "{} from {} at {} to {} for {}, {}",
            word(&item["transport"]),
            word(&item["initiator"]),
            word(&item["address"]),
            target(item),
            seconds(&item["age_seconds"]),
            sessions::details(item)
        ),
    });
    Paragraph::new(all.join(", ")).wrap(Wrap { trim: true })
}

fn footer(model: &Model) -> Paragraph<'_> {
    if let Some((session, whose)) = &model.asks {
        // On a narrow screen its end is truncated.
        return Paragraph::new(format!("Disconnect session {session}? y/n  {whose}")).bold();
    }
    if !model.lost.is_empty() {
        return Paragraph::new(model.lost.as_str()).fg(Color::Red);
    }
    if !model.message.is_empty() {
        return Paragraph::new(model.message.as_str()).bold();
    }
    let (other, disconnect) = match model.shown {
        Shown::Luns => ("s sessions", ""),
        Shown::Sessions => ("l LUNs", "  d disconnect"),
    };
    let sort = match model.sort {
        Sort::Commands => "commands",
        Sort::Reads => "reads",
        Sort::Writes => "writes",
        Sort::Bytes => "bytes",
        Sort::Latency => "p99",
        Sort::Name => "name",
    };
    Paragraph::new(format!("q quit  {other}{disconnect}  by {sort}: t r w b p n")).dim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::tests::direction;
    use crate::top::Reading;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    /// LUNs are read every second, sessions every other second.
    fn reading(start: Instant, second: u64) -> Reading {
        let stats = |rate: u64| {
            let commands = rate * second;
            let buckets = [commands / 2, commands, commands, commands];
            json!({ "read": direction(commands, &buckets), "write": direction(0, &[0; 4]), "other": { "commands": 0 } })
        };
        let lun = |name: &str, state: &str, rate: u64| {
            json!({
                "name": name, "store": "ram:1", "write_cache": true, "state": state, "size_bytes": 1 << 30, "used_bytes": 512, "stats": stats(rate),
            })
        };
        let session = |id: u64, rate: u64| {
            json!({
                "id": id, "initiator": format!("iqn.1993-08.org.debian:01:host{id}"), "target": "iqn.a:t", "core": 0,
                "in_flight": 3, "state": "serving", "transport": "iSCSI", "address": "192.0.2.1:5", "age_seconds": 61,
                "portal": "192.0.2.9:3260", "keys": { "DataDigest": "None" }, "stats": stats(rate),
            })
        };
        let core = |core: u64| {
            let busy = second * (core + 1) * 25;
            json!({ "core": core, "busy_s": busy, "polling_s": second * 25, "asleep_s": second * 75 - busy })
        };
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        Reading {
            daemon: json!({ "version": "0.1.0", "uptime_seconds": 3725.0 }),
            cores: vec![core(0), core(1)],
            luns: (
                vec![lun("quiet", "open", 0), lun("gone", "late", 0), lun("db", "open", 20_000)],
                at(second),
            ),
            sessions: (vec![session(7, 100), session(12, 9000)], at(2 * second)),
        }
    }

    fn model() -> Model {
        let start = Instant::now();
        let mut model = Model::default();
        model.take(reading(start, 1));
        model.take(reading(start, 2));
        model
    }

    fn drawn(model: &Model, width: u16, height: u16) -> Vec<String> {
        drawn_after(model, Duration::ZERO, width, height)
    }

    /// As it is drawn this long after the last reading.
    fn drawn_after(model: &Model, age: Duration, width: u16, height: u16) -> Vec<String> {
        let now = model.reading.as_ref().expect("a reading").sessions.1 + age;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        terminal.draw(|frame| screen(frame, model, now)).expect("it is drawn");
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(width.max(1))).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_small_screen_shows_cores_and_the_busiest_luns() {
        let expected = [
            "Lunette 0.1.0  up 1h02m  3 LUNs (1 not well)  2 sessions",
            "core   0 ████░░░░........  25% busy  25% poll  50% asleep ▂▂",
            "core   1 ████████░░░░....  50% busy  25% poll  25% asleep ▄▄",
            "",
            "LUN                         STATE   READ/S  R MB/S  R P99 WRITE/S  W MB/S  W P99",
            "db                          open     20.0k    81.9  198us       0       0      -",
        ];
        let lines = drawn(&model(), 80, 24);
        assert_eq!(lines[..6], expected, "{lines:#?}");
        assert!(lines[6].starts_with("quiet") && lines[7].starts_with("gone"), "{lines:#?}");
        let rest = "SIZE 1.00 GiB, USED 512 bytes, R P50 100us, W P50 -, ram:1, write cache on";
        assert_eq!(lines[17], rest, "what else there is to say about the first one");
        assert_eq!(lines[23], "q quit  s sessions  by commands: t r w b p n");
    }

    #[test]
    fn a_wide_screen_shows_all_of_a_session() {
        let mut model = model();
        model.shown = Shown::Sessions;
        model.asks = Some((12, "iqn.b, iqn.a:t".into()));
        let lines = drawn(&model, 140, 12);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(&lines[4]),
            "ID INITIATOR TARGET CORE FLIGHT READ/S R MB/S R P50 R P99 WRITE/S W MB/S W P50 W P99"
        );
        assert_eq!(
            words(&lines[5]),
            "12 iqn.1993-08.org.debian:01:host12 t 0 3 4500 18.4 100us 198us 0 0 - -"
        );
        assert_eq!(lines[11], "Disconnect session 12? y/n  iqn.b, iqn.a:t");
        let high = drawn(&model, 140, 24);
        let rest = "iSCSI from iqn.1993-08.org.debian:01:host12 at 192.0.2.1:5 to iqn.a:t for 1m01s, \
                    portal 192.0.2.9:3260, DataDigest=None";
        assert_eq!(high[19], rest);
        let narrow = drawn(&model, 80, 24).join(" ");
        assert!(narrow.contains("TARGET t, CORE 0, FLIGHT 3, R P50 100us, W P50 -, iSCSI from"), "{narrow}");
        // However small the screen, drawing works.
        drawn(&model, 20, 3);
        drawn(&model, 0, 24);
    }

    #[test]
    fn a_reading_that_is_old_shows_its_age() {
        let title = |age: u64| drawn_after(&model(), Duration::from_secs(age), 80, 24)[0].clone();
        assert!(title(1).ends_with("2 sessions"), "{}", title(1));
        assert!(title(62).starts_with("Lunette 0.1.0  as of 1m02s ago  up "), "{}", title(62));
    }
}
