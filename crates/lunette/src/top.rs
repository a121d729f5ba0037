//! `lunette top`.

mod draw;

use crate::client::AdminArguments;
use crate::rates::{Counts, Load, Rates};
use crate::sessions::target;
use crate::status::parts;
use crate::table::word;
use crate::{Failure, interrupts_of_tools};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;
use signal_hook::flag;
use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// `lunette top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quits; l and s choose LUNs or sessions; t, r, w, b, p and n sort by all commands, reads, writes, \
                  bytes, latency and name; the arrows select; d, then y, disconnects the selected session"
)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    admin: AdminArguments,
}

/// The time between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// How soon a key, a reading or an interrupt takes effect.
const SOON: Duration = Duration::from_millis(50);
/// Readings in the history of a core's load.
const HISTORY: usize = 200;

/// A message from one of the threads that wait for the daemon.
enum News {
    Read(Result<Reading, Failure>),
    /// The outcome of a change.
    Changed(String),
}

/// A list, and when it was read.
type List = (Vec<Value>, Instant);

/// A reading of a daemon's state.
struct Reading {
    /// The process.
    daemon: Value,
    cores: Vec<Value>,
    luns: List,
    sessions: List,
}

impl Reading {
    fn of(admin: &AdminArguments) -> Result<Reading, Failure> {
        let list = |path: &str| Ok::<_, Failure>((admin.list(path)?, Instant::now()));
        Ok(Reading {
            daemon: admin.get("/v1/cpu")?.json()?,
            cores: admin.cores()?,
            luns: list("/v1/luns")?,
            sessions: list("/v1/sessions")?,
        })
    }
}

/// Shows the live display, until `q`.
pub(crate) fn run(arguments: &TopArguments) -> Result<String, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "this is not a terminal; use lunette luns --watch, or lunette sessions --watch";
        return Err(Failure::wrong_input(text));
    }
    // A wrong place, or a lack of access, is reported at once.
    let admin = arguments.admin.repeated();
    let mut model = Model::default();
    model.take(Reading::of(&admin)?);
    let failed = |error: io::Error| Failure::failed(format!("cannot use the terminal: {error}"));
    // A second signal does not end it sooner: the terminal has to be restored.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in interrupts_of_tools().map_err(failed)? {
        flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    let (sender, news) = channel();
    let readings = sender.clone();
    crate::spawn("readings", move || {
        while readings.send(News::Read(Reading::of(&admin))).is_ok() {
            thread::sleep(EVERY);
        }
    })?;
    // Restores the terminal after a panic, too.
    let mut terminal = ratatui::try_init().map_err(|error| {
        ratatui::restore();
        failed(error)
    })?;
    let mut show = |terminal: &mut DefaultTerminal| -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            terminal.draw(|frame| draw::screen(frame, &model, Instant::now()))?;
            let is_key = event::poll(SOON)?;
            if is_key
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                match model.press(key) {
                    KeyAction::Nothing => {}
                    KeyAction::Quit => return Ok(()),
                    KeyAction::Disconnect(session) => disconnect(&arguments.admin, session, &sender),
                }
            }
            news.try_iter().for_each(|news| match news {
                News::Read(Ok(reading)) => model.take(reading),
                News::Read(Err(failure)) => model.lost = failure.text,
                News::Changed(text) => model.message = text,
            });
        }
        Ok(())
    };
    let shown = show(&mut terminal);
    ratatui::restore();
    shown.map(|()| String::new()).map_err(failed)
}

/// Disconnects a session. The daemon answers once that has ended completely, which may take long.
fn disconnect(admin: &AdminArguments, session: u64, sender: &Sender<News>) {
    let (admin, answers) = (admin.clone(), sender.clone());
    let ended = move || {
        let answer = admin.change("DELETE", &format!("/v1/sessions/{session}"), None);
        let text = match answer.and_then(|answer| answer.done(false)) {
            Ok(_) => format!("session {session} was disconnected"),
            Err(failure) => failure.text,
        };
        // At the end it is not read any more.
        let _ = answers.send(News::Changed(text));
    };
    if let Err(failure) = crate::spawn("disconnect", ended) {
        let _ = sender.send(News::Changed(failure.text));
    }
}

/// Which table is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Shown {
    #[default]
    Luns,
    Sessions,
}

/// The sort order: the largest first, names ascending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Sort {
    #[default]
    Commands,
    Reads,
    Writes,
    Bytes,
    Latency,
    Name,
}

/// What a key requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyAction {
    Nothing,
    Quit,
    Disconnect(u64),
}

/// A LUN or a session, with its load since the previous reading.
type Item = (Value, Option<Load>);

/// The state of the display.
struct Model {
    reading: Option<Reading>,
    luns: Vec<Item>,
    sessions: Vec<Item>,
    rates: [Rates; 2],
    /// For each core, the fractions of time that it was busy, polling and asleep, and the history of busy.
    cores: Vec<([Option<f64>; 3], VecDeque<f64>)>,
    shown: Shown,
    sort: Sort,
    /// The row that is selected.
    selected: usize,
    /// The item that was selected by a key, which stays selected wherever it is sorted to; null: the first
    /// row.
    chosen: Value,
    /// The session whose end has yet to be confirmed, with its initiator.
    asks: Option<(u64, String)>,
    /// The outcome of a change, until the next key.
    message: String,
    /// Why the daemon does not answer, while it does not.
    lost: String,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            reading: None,
            luns: Vec::new(),
            sessions: Vec::new(),
            rates: [Rates::new("name"), Rates::new("id")],
            cores: Vec::new(),
            shown: Shown::default(),
            sort: Sort::default(),
            selected: 0,
            chosen: Value::Null,
            asks: None,
            message: String::new(),
            lost: String::new(),
        }
    }
}

impl Model {
    /// Adds a reading.
    fn take(&mut self, mut reading: Reading) {
        let [luns, sessions] = &mut self.rates;
        self.luns = luns.read(std::mem::take(&mut reading.luns.0), reading.luns.1);
        self.sessions = sessions.read(std::mem::take(&mut reading.sessions.0), reading.sessions.1);
        self.cores.resize_with(reading.cores.len(), Default::default);
        for (core, (now, history)) in reading.cores.iter().zip(&mut self.cores) {
            let before = self.reading.as_ref().map_or(&[][..], |before| &before.cores);
            *now = parts(core, before.iter().find(|before| before["core"] == core["core"]));
            history.extend(now[0]);
            history.drain(..history.len().saturating_sub(HISTORY));
        }
        let is_other = |before: &Reading| before.daemon["pid"] != reading.daemon["pid"];
        if self.reading.as_ref().is_some_and(is_other) || !self.has_asked_session() {
            // Another session may have its number after a restart.
            self.asks = None;
        }
        self.reading = Some(reading);
        self.lost.clear();
        self.arrange();
    }

    /// Sorts, and keeps the selection. If the selected item is gone, the one in its place is selected.
    fn arrange(&mut self) {
        let sort = self.sort;
        for (items, name) in [(&mut self.luns, "name"), (&mut self.sessions, "initiator")] {
            items.sort_by(|a, b| match sort {
                Sort::Name => word(&a.0[name]).cmp(&word(&b.0[name])),
                _ => weight(b, sort).total_cmp(&weight(a, sort)),
            });
        }
        let key = self.key();
        match self.items().iter().position(|(item, _)| item[key] == self.chosen) {
            Some(row) => self.selected = row,
            None if self.chosen.is_null() => self.selected = 0,
            None => self.select(self.selected),
        }
    }

    /// Selects a row, or the last one.
    fn select(&mut self, row: usize) {
        self.selected = row.min(self.items().len().saturating_sub(1));
        let key = self.key();
        self.chosen = self.items().get(self.selected).map_or(Value::Null, |(item, _)| item[key].clone());
    }

    /// The items of the table that is shown.
    fn items(&self) -> &[Item] {
        match self.shown {
            Shown::Luns => &self.luns,
            Shown::Sessions => &self.sessions,
        }
    }

    /// The key that identifies items.
    fn key(&self) -> &'static str {
        match self.shown {
            Shown::Luns => "name",
            Shown::Sessions => "id",
        }
    }

    /// Shows the other table, from its start.
    fn turn(&mut self, shown: Shown) {
        (self.shown, self.chosen, self.selected) = (shown, Value::Null, 0);
    }

    /// The selected session, with its initiator.
    fn asked(&self) -> Option<(u64, String)> {
        asked(&self.sessions.get(self.selected)?.0)
    }

    /// Whether the session to be confirmed still exists.
    fn has_asked_session(&self) -> bool {
        self.asks.is_some() && self.sessions.iter().any(|(session, _)| asked(session) == self.asks)
    }

    fn press(&mut self, key: KeyEvent) -> KeyAction {
        self.message.clear();
        if let Some((session, _)) = self.asks.take() {
            return if key.code == KeyCode::Char('y') {
                KeyAction::Disconnect(session)
            } else {
                KeyAction::Nothing
            };
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return KeyAction::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('l') => self.turn(Shown::Luns),
            KeyCode::Char('s') => self.turn(Shown::Sessions),
            KeyCode::Char('t') => self.sort = Sort::Commands,
            KeyCode::Char('r') => self.sort = Sort::Reads,
            KeyCode::Char('w') => self.sort = Sort::Writes,
            KeyCode::Char('b') => self.sort = Sort::Bytes,
            KeyCode::Char('p') => self.sort = Sort::Latency,
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('d') if self.shown == Shown::Sessions => self.asks = self.asked(),
            KeyCode::Up => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down => self.select(self.selected + 1),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            _ => {}
        }
        self.arrange();
        KeyAction::Nothing
    }
}

/// A session's number, with its initiator.
fn asked(session: &Value) -> Option<(u64, String)> {
    let whose = format!("{}, {}", word(&session["initiator"]), target(session));
    Some((session["id"].as_u64()?, whose))
}

fn weight((_, load): &Item, sort: Sort) -> f64 {
    let Some(load) = load else { return 0.0 };
    let (read, write) = (&load.stats.read, &load.stats.write);
    let p99 = |counts: &Counts| counts.percentile(0.99).unwrap_or(0.0);
    match sort {
        Sort::Commands | Sort::Name => load.commands(),
        Sort::Reads => load.iops(read),
        Sort::Writes => load.iops(write),
        Sort::Bytes => load.bytes(read) + load.bytes(write),
        Sort::Latency => p99(read).max(p99(write)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn press(model: &mut Model, key: char) -> KeyAction {
        model.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))
    }

    fn session(id: u64, initiator: &str) -> Item {
        (json!({ "id": id, "initiator": initiator, "target": "iqn.a:t" }), None)
    }

    #[test]
    fn what_is_selected_stays_so_wherever_it_is_sorted_to() {
        let mut model = Model { sessions: vec![session(7, "b"), session(9, "a")], ..Model::default() };
        press(&mut model, 's');
        press(&mut model, 'n');
        assert_eq!((model.selected, &model.chosen), (0, &Value::Null), "nothing was selected yet");
        model.press(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
        press(&mut model, 't');
        model.sessions.reverse();
        press(&mut model, 't');
        assert_eq!((model.selected, &model.chosen), (0, &7.into()));
        press(&mut model, 'n');
        assert_eq!((model.selected, &model.chosen), (1, &7.into()));
        press(&mut model, 'd');
        assert_eq!(press(&mut model, 'y'), KeyAction::Disconnect(7));
        model.sessions.pop();
        press(&mut model, 'n');
        assert_eq!((model.selected, &model.chosen), (0, &9.into()), "the one that is left");
    }

    #[test]
    fn a_session_is_disconnected_only_once_that_is_confirmed() {
        let mut model = Model { sessions: vec![session(7, "b"), session(9, "a")], ..Model::default() };
        assert_eq!(press(&mut model, 'd'), KeyAction::Nothing);
        assert_eq!(model.asks, None, "LUNs are shown");
        press(&mut model, 's');
        model.press(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
        press(&mut model, 'd');
        assert_eq!(model.asks, Some((9, "a, iqn.a:t".into())));
        assert_eq!(press(&mut model, 'n'), KeyAction::Nothing);
        assert_eq!((press(&mut model, 'y'), &model.asks), (KeyAction::Nothing, &None));
        press(&mut model, 'd');
        assert_eq!(press(&mut model, 'y'), KeyAction::Disconnect(9));
    }

    #[test]
    fn a_session_that_has_gone_is_not_asked_about_any_more() {
        let read = |pid: u64, sessions: &[(u64, &str)]| Reading {
            daemon: json!({ "pid": pid }),
            cores: Vec::new(),
            luns: (Vec::new(), Instant::now()),
            sessions: (sessions.iter().map(|(id, name)| session(*id, name).0).collect(), Instant::now()),
        };
        let mut model = Model { shown: Shown::Sessions, ..Model::default() };
        let mut is_asked_behind = |before: Reading, after: Reading| {
            model.take(before);
            press(&mut model, 'd');
            assert!(model.asks.is_some());
            model.take(after);
            model.asks.take().is_some()
        };
        assert!(is_asked_behind(read(1, &[(1, "a")]), read(1, &[(1, "a"), (2, "b")])));
        assert!(!is_asked_behind(read(1, &[(1, "a")]), read(1, &[(2, "b")])), "it has ended");
        assert!(!is_asked_behind(read(1, &[(1, "a")]), read(1, &[(1, "b")])), "it is another one's number");
        assert!(!is_asked_behind(read(1, &[(1, "a")]), read(2, &[(1, "a")])), "the daemon was restarted");
    }

    #[test]
    fn both_q_and_ctrl_c_quit() {
        let mut model = Model::default();
        assert_eq!(press(&mut model, 'q'), KeyAction::Quit);
        assert_eq!(press(&mut model, 'c'), KeyAction::Nothing);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(model.press(interrupt), KeyAction::Quit);
    }
}
