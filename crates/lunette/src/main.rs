//! The `lunette` command.
#![forbid(unsafe_code)]

mod admin_address;
mod aoe;
mod arguments;
mod banner;
mod bench;
mod ceiling;
mod client;
mod copy;
mod discover;
mod drain;
mod figures;
mod generate;
mod inquiry;
mod live;
mod log;
mod luns;
mod manage;
mod notify;
mod rates;
mod rdma;
mod report;
mod sessions;
mod signals;
mod status;
mod table;
mod top;
mod user;
mod watch;

use admin::Access;
use arguments::{Arguments, Command, Serve, one_line};
use banner::{Running, banner};
use clap::Parser as _;
use config::{Checked, Config, Problems, ServeOptions};
use config::{redact, redact_all};
use engine::{Daemon, Patience};
use live::Live;
use live::readings::Readings;
use live::sessions::Sessions;
use live::tally::Tally;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signals::{DaemonSignals, SignalRequest};
use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use user::User;

/// Exit status for wrong input.
const WRONG_INPUT: u8 = 2;
/// Exit status when the output is not read, as in shells for SIGPIPE.
const PIPE_CLOSED: u8 = 141;
/// Exit status after a second signal, as in shells for SIGINT.
const INTERRUPTED: i32 = 130;
/// How often it is checked whether removed units that hang have ended.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long exiting waits until Ceph images are closed: their cluster may be unreachable.
const CLOSING: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let code = run();
    // The next user need not wait until the cluster notices that this process is gone.
    store::rbd::wait_closed(CLOSING);
    code
}

fn run() -> ExitCode {
    match Arguments::try_parse() {
        Ok(Arguments { command: Command::Serve(options) }) => serve(*options),
        Ok(Arguments { command: Command::Check { file } }) => check(&file),
        Ok(Arguments { command: Command::Reload(arguments) }) => tool(|| manage::reload(&arguments)),
        Ok(Arguments { command: Command::Config(command) }) => tool(|| manage::config(&command)),
        Ok(Arguments { command: Command::Lun(command) }) => tool(|| manage::lun(&command)),
        Ok(Arguments { command: Command::Target(command) }) => tool(|| manage::target(&command)),
        Ok(Arguments { command: Command::Group(command) }) => tool(|| manage::group(&command)),
        Ok(Arguments { command: Command::PortalGroup(command) }) => tool(|| manage::portal_group(&command)),
        Ok(Arguments { command: Command::Drain(arguments) }) => tool(|| drain::run(&arguments)),
        Ok(Arguments { command: Command::Status(arguments) }) => tool(|| status::run(&arguments)),
        Ok(Arguments { command: Command::Luns(arguments) }) => tool(|| luns::list(&arguments)),
        Ok(Arguments { command: Command::Top(arguments) }) => tool(|| top::run(&arguments)),
        Ok(Arguments { command: Command::Sessions(arguments) }) => tool(|| sessions::list(&arguments)),
        Ok(Arguments { command: Command::Disconnect(arguments) }) => tool(|| sessions::end(&arguments)),
        Ok(Arguments { command: Command::Copy(arguments) }) => tool(|| copy::run(&arguments)),
        Ok(Arguments { command: Command::Discover(arguments) }) => tool(|| discover::run(&arguments)),
        Ok(Arguments { command: Command::Inquiry(arguments) }) => tool(|| inquiry::run(&arguments)),
        Ok(Arguments { command: Command::Aoe(arguments) }) => tool(|| aoe::run(&arguments)),
        Ok(Arguments { command: Command::Bench(arguments) }) => tool(|| bench::run(&arguments)),
        Ok(Arguments { command: Command::Ceiling(arguments) }) => tool(|| ceiling::run(&arguments)),
        Ok(Arguments { command: Command::Generate(arguments) }) => tool(|| generate::run(&arguments)),
        Ok(Arguments { command: Command::Rdma }) => tool(rdma::run),
        Ok(Arguments { command: Command::Report(arguments) }) => tool(|| report::run(&arguments)),
        // Help and version.
        Err(error) if !error.use_stderr() => exit_code(error.print()),
        Err(error) => fail(one_line(&error, arguments()), WRONG_INPUT),
    }
}

fn check(file: &Path) -> ExitCode {
    let checked = Checked::from_file(file, &engine::ThisMachine).and_then(usable);
    let Checked { config, warnings, .. } = match checked {
        Ok((checked, _)) => checked,
        Err(problems) => return refuse(&problems),
    };
    for warning in &warnings {
        print_error(format_args!("lunette: warning: {warning}"));
    }
    let count = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let parts = [
        count(config.targets.len(), "target"),
        count(config.luns.len(), "LUN"),
        count(config.portals.len(), "portal"),
        count(config.cores.len(), "core"),
    ];
    let but = match warnings.len() {
        0 => String::new(),
        found => format!(" but for {}", count(found, "warning")),
    };
    exit_code(print(&format!("{}: OK{but}: {}\n", file.display(), parts.join(", "))))
}

/// Why a command failed: its message, and the exit status.
struct Failure {
    text: String,
    status: u8,
}

impl Failure {
    fn wrong_input(text: impl Display) -> Failure {
        Failure { text: text.to_string(), status: WRONG_INPUT }
    }

    fn failed(text: impl Display) -> Failure {
        Failure { text: text.to_string(), status: 1 }
    }
}

/// Runs a command that does one thing; only warnings are logged unless `RUST_LOG` says otherwise.
fn tool(run: impl FnOnce() -> Result<String, Failure>) -> ExitCode {
    let level = std::env::var_os(log::VARIABLE).is_none().then_some("warn");
    if let Err(error) = log::start(level) {
        return fail(error, WRONG_INPUT);
    }
    match run() {
        Ok(text) => exit_code(print(&text)),
        // There is no message.
        Err(Failure { text, status }) if text.is_empty() => ExitCode::from(status),
        Err(Failure { text, status }) => fail(text, status),
    }
}

fn serve(mut options: Serve) -> ExitCode {
    // Before anything else opens descriptors, or starts threads.
    let sockets = match reactor::net::inherited() {
        Ok(sockets) => sockets,
        Err(error) => return fail(format!("sockets of the service manager (LISTEN_FDS): {error}"), 1),
    };
    let user = match options.user.take().map(|name| User::find(&name)).transpose() {
        Ok(user) => user,
        Err(error) => return fail(error, WRONG_INPUT),
    };
    let log = match log::start_queued(options.log_level.as_deref()) {
        Ok(log) => log,
        Err(error) => return fail(error, WRONG_INPUT),
    };
    let status = match run_daemon(options.options(), sockets, user) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { text, status }) => {
            log.log_lines(&redact_all(&without_secrets(text)));
            ExitCode::from(status)
        }
    };
    log.flush();
    status
}

/// Events for the thread that owns the daemon.
enum Event {
    /// A signal.
    Signal(SignalRequest),
    /// A client of the admin interface.
    Job(Box<admin::Job>),
}

fn usable(checked: Checked) -> Result<(Checked, Access), Problems> {
    live::with_access(checked, &Access::default())
}

fn run_daemon(
    options: ServeOptions,
    sockets: Vec<(String, TcpListener)>,
    mut user: Option<User>,
) -> Result<(), Failure> {
    let (checked, access) = wanted(&options)?;
    // Before anything is served, so that no signal is lost.
    let signals =
        signals::catch().map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
    if let Some(user) = &mut user {
        user.note_existing(&checked.config);
    }
    let listener = admin_address::open(&checked.config).map_err(Failure::failed)?;
    let tally = Arc::<Tally>::default();
    let (reported, happened) = live::events::channel(&tally);
    let settle =
        |config: &Config| user.as_ref().map_or(Ok(()), |user| user.become_user(config, listener.as_ref()));
    let daemon =
        Daemon::start_as(checked.config.clone(), reported, sockets, settle).map_err(Failure::failed)?;
    let (events, received) = mpsc::channel();
    let jobs = events.clone();
    let sessions = Arc::new(Sessions(daemon.sessions()));
    let readings = Readings { meters: daemon.meters(), sessions: daemon.sessions(), tally: tally.clone() };
    let readings = Arc::new(readings);
    let hub = admin::Hub::new(move |job| jobs.send(Event::Job(Box::new(job))).is_ok(), sessions, readings);
    // The access rules, before any client is answered.
    hub.admit(access);
    let admin = listener
        .map(|listener| admin::Server::start(listener, hub.clone()))
        .transpose()
        .map_err(|error| Failure::failed(format!("the admin interface cannot start: {error}")))?;
    let published = hub.clone();
    spawn("events", move || happened.publish(&published))?;
    let host = host_name();
    let running = Running {
        addresses: daemon.addresses(),
        units: daemon.units(),
        host: &host,
        srp_guid: daemon.srp_guid(),
        admin: admin.as_ref().map(admin::Server::place),
    };
    let banner = banner(&checked.config, &running);
    let turns = daemon.turns();
    let name = user.map(|user| user.name().to_owned());
    let mut live = Live::new(daemon, options, checked, hub, tally).with_rights_of(name);
    forward(signals, live.patience().clone(), events)?;
    // A pipe that is not read may block, and the end does not wait for it.
    spawn("banner", move || say(&banner))?;
    notify::ready(live.config());
    notify::feed_watchdog(turns)
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
    handle_requests(&mut live, &received);
    notify::stopping();
    // Clients that still wait for a change are notified that the daemon ends.
    drop(received);
    tracing::info!("stopping: asking initiators to log out, finishing commands, flushing stores");
    live.stop().map_err(Failure::failed)?;
    drop(admin);
    tracing::info!("stopped");
    Ok(())
}

/// The configuration, verified; warnings about it are logged.
fn wanted(options: &ServeOptions) -> Result<(Checked, Access), Failure> {
    let (checked, access) = Checked::from_options(options).and_then(usable).map_err(|problems| {
        Failure::wrong_input(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })?;
    for warning in &checked.warnings {
        tracing::warn!("{warning}");
    }
    Ok((checked, access))
}

/// Notifies the thread that owns the daemon of signals.
fn forward(
    mut signals: DaemonSignals,
    patience: Patience,
    events: mpsc::Sender<Event>,
) -> Result<(), Failure> {
    spawn("signals", move || {
        loop {
            let asked = signals.next();
            if asked == SignalRequest::End {
                // For whatever change is in progress and waits.
                patience.end();
            }
            if events.send(Event::Signal(asked)).is_err() {
                break;
            }
        }
    })
}

/// Handles requests until the daemon has to end.
fn handle_requests(live: &mut Live, received: &mpsc::Receiver<Event>) {
    // What came before the signal that ends it is not begun any more.
    while !live.patience().has_ended() {
        match received.recv_timeout(if live.has_leaving() { CHECK_EVERY } else { Duration::MAX }) {
            Ok(Event::Signal(SignalRequest::Reload)) => live.hang_up(),
            Ok(Event::Job(job)) => live.take(*job),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::Signal(SignalRequest::End)) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().name(name.into()).spawn(run);
    started.map(drop).map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
}

/// A flag that is set by an interrupt, or when the terminal is closed; a second signal ends the process at
/// once.
fn catch_interrupts() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in interrupts_of_tools()? {
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Signals that interrupt a tool.
fn interrupts_of_tools() -> io::Result<Vec<i32>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    // Under nohup it continues.
    let hangup = (!ignores(&status, SIGHUP)).then_some(SIGHUP);
    Ok([SIGINT, SIGTERM].into_iter().chain(hangup).collect())
}

/// Whether a process ignores a signal, by its `/proc/PID/status` (proc_pid_status(5)).
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".into(),
        name => name.into(),
    }
}

/// Prints to stdout, all at once. A daemon continues if it is not read.
fn say(text: &str) {
    if let Err(error) = print(text) {
        tracing::warn!(%error, "cannot write to standard output");
    }
}

/// The exit status of a command whose output was printed: it failed if the output was lost.
fn exit_code(printed: io::Result<()>) -> ExitCode {
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        // `| head` has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(PIPE_CLOSED),
        Err(error) => fail(unprinted(&error), 1),
    }
}

/// Why a command's output could not be written to standard output.
fn unprinted(error: &io::Error) -> String {
    format!("cannot write to standard output: {error}")
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn refuse(problems: &Problems) -> ExitCode {
    problems.iter().for_each(|problem| print_error(format_args!("lunette: {problem}")));
    ExitCode::from(WRONG_INPUT)
}

fn fail(error: impl Display, status: u8) -> ExitCode {
    print_error(format_args!("lunette: {error}"));
    ExitCode::from(status)
}

/// Prints a line to stderr. Failing to write it cannot be reported anywhere.
fn print_error(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", without_secrets(text));
}

/// Our arguments, with replacement characters where they are not UTF-8.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned())
}

/// A message that may quote our arguments, with possible secrets removed.
fn without_secrets(message: impl Display) -> String {
    let mut text = message.to_string();
    for argument in arguments() {
        let value = argument.split_once('=').map_or("", |(_, value)| value);
        for quoted in [argument.as_str(), value] {
            let shown = redact(quoted);
            if shown != quoted {
                text = text.replace(quoted, &shown);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_known() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SIGHUP) && !ignores(status, SIGINT) && !ignores("", SIGHUP));
    }
}
