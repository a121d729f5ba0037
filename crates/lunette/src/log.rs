//! The log, on stderr: one line for each event.
//!
//! The daemon's lines are written by a separate thread, which may wait for their reader. It takes them from a
//! bounded queue, which counts what it drops: no core waits for a pipe that is not read, and a line that
//! cannot be written ends nothing.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Display, Write as _};
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{Level, Metadata};
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use wire::Printable;

/// The variable that selects what is logged: a level, or levels of modules (`info,proto=debug`).
pub(crate) const VARIABLE: &str = "RUST_LOG";
/// How many lines may wait for the thread that writes them.
const LINES_MAX: usize = 1024;
/// How many of these are reserved for warnings and errors.
const WARNINGS_MIN: usize = 256;
/// The longest message or value in a line.
const FIELD_BYTES_MAX: usize = 1024;
/// The longest line about why the daemon ends.
const LINE_BYTES_MAX: usize = 4096;
/// How long shutdown waits until the last lines are written.
const END_WITHIN: Duration = Duration::from_secs(1);
/// How often it is checked whether lines can be written again.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Logs to stderr at the level of the option, otherwise of `RUST_LOG`, otherwise `info`. Callers wait for the
/// log's reader.
pub(crate) fn start(level: Option<&str>) -> Result<(), String> {
    start_with(level, io::stderr)
}

/// The same for a daemon, whose lines go to the queue, including the message of a panic.
pub(crate) fn start_queued(level: Option<&str>) -> Result<Arc<Queue>, String> {
    // A separate descriptor: a thread that writes to std's stderr holds a lock while it waits.
    let stderr =
        io::stderr().as_fd().try_clone_to_owned().and_then(|stderr| Queue::start(File::from(stderr)));
    let queue = stderr.map_err(|error| format!("the log cannot be written: {error}"))?;
    start_with(level, Lines(queue.clone()))?;
    let last_words = queue.clone();
    std::panic::set_hook(Box::new(move |panic| last_words.panicked(panic)));
    Ok(queue)
}

fn start_with<W>(level: Option<&str>, writer: W) -> Result<(), String>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let variable = std::env::var(VARIABLE).ok().filter(|filter| !filter.is_empty());
    let wanted = level.map(str::to_string).or(variable).unwrap_or_else(|| "info".into());
    let filter = parse_filter(&wanted)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .fmt_fields(fields())
        // It would report errors to the same stderr, and panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(())
}

/// Levels, and levels of modules. [`Targets`] on its own accepts a part without a name for all modules, one
/// without a level as `error`, and a space as part of a name.
fn parse_filter(wanted: &str) -> Result<Targets, String> {
    let reject = |why: &dyn Display| {
        format!(
            "{VARIABLE}: `{wanted}` is not a filter ({why}); write a level, or levels of modules after it, such as info,engine=debug"
        )
    };
    let mut filter = Vec::new();
    for part in wanted.split(',') {
        let (module, level) = part.split_once('=').unwrap_or((part, part));
        match (module.trim(), level.trim()) {
            ("", "") => return Err(reject(&"it has an empty part next to a comma")),
            ("", _) => return Err(reject(&format_args!("`{part}` names no module"))),
            (_, "") => return Err(reject(&format_args!("`{part}` has no level"))),
            (module, level) if part.contains('=') => filter.push(format!("{module}={level}")),
            (module, _) => filter.push(module.to_string()),
        }
    }
    filter.join(",").parse().map_err(|error: ParseError| reject(&error))
}

/// The message and `name=value`, each truncated, and with unprintable characters escaped: much of it comes
/// from peers.
fn fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
    let field = |to: &mut Writer<'_>, field: &tracing::field::Field, value: &dyn fmt::Debug| {
        if field.name() != "message" {
            write!(to, "{}=", field.name())?;
        }
        write!(Printable::new(to, FIELD_BYTES_MAX), "{value:?}")
    };
    format::debug_fn(field).delimited(" ")
}

/// Lines waiting to be written to stderr.
pub(crate) struct Queue {
    entries: SyncSender<Entry>,
    /// Entries that the thread has not taken.
    waiting: Arc<AtomicUsize>,
    /// Lines that were dropped since one was taken.
    dropped: AtomicU64,
}

struct Entry {
    text: Box<[u8]>,
    /// How many were dropped before it.
    dropped: u64,
    /// Is notified when it is written.
    done: Option<SyncSender<()>>,
}

impl Queue {
    /// A queue whose lines a thread writes.
    fn start(to: impl Write + Send + 'static) -> io::Result<Arc<Queue>> {
        let (entries, taken) = sync_channel(LINES_MAX);
        let waiting = Arc::<AtomicUsize>::default();
        let left = waiting.clone();
        thread::Builder::new().name("log".into()).spawn(move || write_all(taken, &left, to))?;
        Ok(Arc::new(Queue { entries, waiting, dropped: AtomicU64::new(0) }))
    }

    /// Queues it for the thread, unless `most` entries already wait.
    fn offer(&self, text: &[u8], done: Option<SyncSender<()>>, most: usize) -> bool {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= most {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let is_taken = self.entries.try_send(Entry { text: text.into(), dropped, done }).is_ok();
        if !is_taken {
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        is_taken
    }

    /// Queues a line; if the queue is full, it is dropped and counted. Some places are reserved for warnings
    /// and errors.
    fn push(&self, text: &[u8], level: Level) {
        let most = if level <= Level::WARN { LINES_MAX } else { LINES_MAX - WARNINGS_MIN };
        if !self.offer(text, None, most) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The lines of a text, each truncated, and with unprintable characters escaped, whatever is logged.
    pub(crate) fn log_lines(&self, text: &str) {
        for line in text.lines() {
            let mut shown = String::new();
            let _ = write!(Printable::new(&mut shown, LINE_BYTES_MAX), "{line}");
            self.say(shown);
        }
    }

    /// Writes a message, whatever the level.
    fn say(&self, text: impl Display) {
        self.push(format!("lunette: {text}\n").as_bytes(), Level::ERROR);
    }

    /// Waits until everything logged is written, or [`END_WITHIN`] has passed.
    pub(crate) fn flush(&self) {
        let deadline = Instant::now() + END_WITHIN;
        let (done, written) = sync_channel(1);
        while !self.offer(&[], Some(done.clone()), LINES_MAX) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
        let _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }

    /// A panic's message, which std would write to stderr itself, and block.
    fn panicked(&self, panic: &PanicHookInfo<'_>) {
        let thread = thread::current();
        let mut text = format!("thread {} ", thread.name().unwrap_or("without a name"));
        // Place and message are on two lines.
        let panic = panic.to_string().replacen('\n', " ", 1);
        let _ = write!(Printable::new(&mut text, FIELD_BYTES_MAX), "{panic}");
        text.push_str("; this is a bug in lunette; please report it");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            let _ = write!(text, "\n{trace}");
        }
        self.say(text);
        self.flush();
    }
}

/// Writes the lines of the log to the queue.
struct Lines(Arc<Queue>);

/// One line of this level.
struct Line<'a>(&'a Queue, Level);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(&self.0, Level::ERROR)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        Line(&self.0, *meta.level())
    }
}

impl Write for Line<'_> {
    /// Gets a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line, self.1);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes queued lines; counts those that could not be written, and reports that as soon as it can.
fn write_all(entries: Receiver<Entry>, waiting: &AtomicUsize, mut to: impl Write) {
    let mut lost = 0_u64;
    for Entry { text, dropped, done } in entries {
        waiting.fetch_sub(1, Ordering::Relaxed);
        lost = lost.saturating_add(dropped);
        if lost > 0 && write(&mut to, report(lost).as_bytes()).is_ok() {
            lost = 0;
        }
        if write(&mut to, &text).is_err() {
            lost = lost.saturating_add(1);
        }
        // Nobody waits any more if it took too long.
        let _ = done.map(|done| done.try_send(()));
    }
}

fn report(lost: u64) -> String {
    let mut text = String::new();
    // Neither the clock nor the string fails.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    let _ = writeln!(text, "  WARN log lines were lost: the log was not read lines={lost}");
    text
}

/// Writes all of it, even if writes do not block: another user of the terminal may have set it so.
fn write(to: &mut impl Write, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match to.write(text) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => text = text.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK_EVERY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, pipe};

    fn lost_in(line: &str) -> u64 {
        line.split_once("log lines were lost").map_or(0, |(_, rest)| {
            let count = rest.lines().next().and_then(|rest| rest.rsplit('=').next());
            count.and_then(|lines| lines.parse().ok()).expect("a count")
        })
    }

    #[test]
    fn what_nobody_takes_is_counted_and_holds_up_nobody() {
        let (reads, writes) = pipe().expect("a pipe");
        let queue = Queue::start(writes).expect("a thread");
        // More than the pipe and the queue can hold.
        let line = format!("{}\n", "x".repeat(199));
        let pushed = 5_000;
        (0..pushed).for_each(|_| queue.push(line.as_bytes(), Level::INFO));
        assert!(queue.dropped.load(Ordering::Relaxed) > 0);
        assert!(queue.offer(b"an error\n", None, LINES_MAX), "errors have room where others have none");
        let mut lines = BufReader::new(reads).lines().map_while(Result::ok);
        let (mut came, mut lost) = (0, 0);
        let mut count = |line: String| {
            came += u64::from(line.starts_with('x'));
            lost += lost_in(&line);
        };
        // The reader comes back: what there was room for arrives, and the next line reports what is missing.
        lines.by_ref().take_while(|line| line != "an error").for_each(&mut count);
        queue.push(b"end\n", Level::INFO);
        lines.take_while(|line| line != "end").for_each(count);
        assert_eq!(came + lost, pushed);
    }

    /// Fails the first writes, this many of them.
    struct FailingWriter(u32, Arc<Text>);

    impl Write for FailingWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0 {
                0 => self.1.as_ref().write(bytes),
                _ => {
                    self.0 -= 1;
                    Err(ErrorKind::StorageFull.into())
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_filter_has_no_empty_part() {
        for (wanted, why) in [
            ("", "an empty part next to a comma"),
            (",", "an empty part next to a comma"),
            ("info,", "an empty part next to a comma"),
            ("info, ,engine=debug", "an empty part next to a comma"),
            ("engine=,info", "`engine=` has no level"),
            ("=debug", "`=debug` names no module"),
            ("engine=loud", "error parsing level filter"),
        ] {
            let error = parse_filter(wanted).expect_err(wanted);
            assert!(error.contains(why) && error.contains("as info,engine=debug"), "{error}");
        }
        let filter = parse_filter("info, engine = debug").expect("a filter");
        assert!(filter.would_enable("engine::core", &Level::DEBUG));
        assert!(!filter.would_enable("proto", &Level::DEBUG));
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let text = Arc::new(Text::default());
        // A line is tried once, and from the second on the report before it.
        let queue = Queue::start(FailingWriter(5, text.clone())).expect("a thread");
        ["first", "second", "third", "fourth"].into_iter().for_each(|line| queue.say(line));
        queue.flush();
        let text = text.0.lock().expect("text").clone();
        assert_eq!((lost_in(&text), text.ends_with(" lines=3\nlunette: fourth\n")), (3, true), "{text}");
    }

    #[test]
    fn what_peers_sent_is_escaped_in_a_line() {
        let text = Arc::new(Text::default());
        let subscriber = tracing_subscriber::fmt()
            .with_writer(text.clone())
            .with_ansi(false)
            .fmt_fields(fields())
            .log_internal_errors(false)
            .finish();
        let evil = "a\n2026 ERROR forged \u{1b}[2J\u{202e}\u{200b}\u{fe0f}";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(quoted = evil, shown = %evil, debug = ?evil, "{evil}");
            tracing::info!(shown = %"y".repeat(10_000), "{}", "z".repeat(10_000));
        });
        let text = text.0.lock().expect("text").clone();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.chars().all(|c| c == '\n' || wire::is_printable(c)), "{text:?}");
        assert!(text.contains("forged \\x1b[2J\\xe2\\x80\\xae"), "{text}");
        assert!(text.lines().all(|line| line.len() < 3 * FIELD_BYTES_MAX), "{text}");
    }

    #[derive(Default)]
    struct Text(std::sync::Mutex<String>);

    impl Write for &Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("text").push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
