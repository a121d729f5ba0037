//! The `lunette` command.
#![forbid(unsafe_code)]

mod arguments;
mod banner;

use arguments::{Arguments, Command, Serve};
use clap::Parser as _;
use engine::Daemon;
use engine::config::{Config, Options, Problems};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Exit status for input that is wrong.
const WRONG_INPUT: u8 = 2;
/// Exit status after a second signal, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match arguments.command {
        Command::Serve(serve) => {
            start_log(&serve.log_level);
            run(&serve)
        }
        Command::Check { file } => check(&file),
    }
}

/// Help and version go to stdout; an error is one line and a hint.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("error: wrong arguments").to_owned();
    let details = lines.take_while(|line| !line.starts_with("Usage") && !line.starts_with("For more"));
    let line = details.fold(first, |line, detail| format!("{line} {detail}"));
    eprintln!("{line}; see lunette --help");
    ExitCode::from(WRONG_INPUT)
}

fn start_log(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

fn load(serve: &Serve) -> Result<Config, ExitCode> {
    match &serve.config {
        Some(path) => load_file(path, &serve.options()),
        None => Config::from_options(&serve.options()).map_err(|problems| wrong(&problems, None)),
    }
}

fn load_file(path: &Path, options: &Options) -> Result<Config, ExitCode> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        eprintln!("error: {}: {error}", path.display());
        ExitCode::from(WRONG_INPUT)
    })?;
    Config::from_toml(&text, path, options).map_err(|problems| wrong(&problems, Some(path)))
}

fn wrong(problems: &Problems, path: Option<&Path>) -> ExitCode {
    for problem in &problems.0 {
        match path {
            Some(path) => eprintln!("error: {}: {}: {}", path.display(), problem.place, problem.what),
            None => eprintln!("error: {}: {}", problem.place, problem.what),
        }
    }
    ExitCode::from(WRONG_INPUT)
}

fn check(file: &Path) -> ExitCode {
    match load_file(file, &Options::default()) {
        Ok(config) => {
            let (targets, luns, portals) = (config.targets.len(), config.luns.len(), config.portals.len());
            println!("{} is good: {targets} targets, {luns} LUNs, {portals} portals", file.display());
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

fn run(serve: &Serve) -> ExitCode {
    let config = match load(serve) {
        Ok(config) => config,
        Err(code) => return code,
    };
    // Registered before anything is served, so that no signal is lost.
    let mut signals = match Signals::new([SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("error: signals cannot be caught: {error}");
            return ExitCode::FAILURE;
        }
    };
    let daemon = match Daemon::start(config.clone()) {
        Ok(daemon) => daemon,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", banner::banner(&config, daemon.addresses(), daemon.units()));
    let _ = std::io::stdout().flush();
    let signal = signals.forever().next();
    tracing::info!(signal, "stopping: finishing commands, flushing stores, logging initiators out");
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            std::process::exit(INTERRUPTED);
        }
    });
    daemon.stop();
    ExitCode::SUCCESS
}
