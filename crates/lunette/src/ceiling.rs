//! `lunette ceiling`: a responder that does nothing, to measure the upper limit for other targets.

use crate::{Failure, say, signals};
use bench::ceiling::{BLOCK_BYTES, Ceiling, CeilingOptions, SIZE_BYTES};
use clap::{Args, ValueEnum};
use config::{format_size, parse_cores, parse_size, show_cores};
use std::net::SocketAddr;

#[derive(Debug, Args)]
#[command(after_help = "Example: lunette ceiling --poll always --cores 0")]
pub(crate) struct CeilingArguments {
    /// Listen here; port 0 picks a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// How connections wait for commands: always (spin), never (sleep)
    #[arg(long, value_enum, default_value = "never")]
    poll: PollWord,
    /// Cores that the threads of connections are pinned to, in turn, such as 0,2-3 [default: not
    /// pinned]
    #[arg(long, value_name = "LIST|all")]
    cores: Option<String>,
    /// The size that units report [default: 64G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value_t = SIZE_BYTES, hide_default_value = true)]
    size: u64,
    /// Send the data of READs from this much memory, as a disk does, instead of one buffer in the processor's cache
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value_t = 0, hide_default_value = true)]
    payload: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PollWord {
    Always,
    Never,
}

/// Serves until a signal arrives.
pub(crate) fn run(arguments: &CeilingArguments) -> Result<String, Failure> {
    let cores = arguments.cores.as_deref().map(parse_cores).transpose();
    let cores = cores.map_err(|error| Failure::wrong_input(format!("--cores: {error}")))?.unwrap_or_default();
    if arguments.size < BLOCK_BYTES.into() {
        return Err(Failure::wrong_input(format!(
            "--size: choose at least one block of {BLOCK_BYTES} bytes"
        )));
    }
    // Before anything is served, so that no signal is lost.
    let mut signals =
        signals::catch().map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
    let listen = arguments.listen;
    let options = CeilingOptions {
        listen,
        spin: matches!(arguments.poll, PollWord::Always),
        cores: cores.clone(),
        size_bytes: arguments.size,
        payload_bytes: usize::try_from(arguments.payload).unwrap_or(usize::MAX),
    };
    let ceiling = Ceiling::start(options)
        .map_err(|error| Failure::failed(format!("{listen}: {error}; choose another --listen")))?;
    say(&banner(&ceiling, arguments, &cores));
    signals.wait();
    drop(ceiling);
    Ok(String::new())
}

fn banner(ceiling: &Ceiling, arguments: &CeilingArguments, cores: &[usize]) -> String {
    let poll = match arguments.poll {
        PollWord::Always => "always polling",
        PollWord::Never => "never polling",
    };
    let cores = match cores {
        [] => String::new(),
        [core] => format!(" on core {core}"),
        several => format!(" on cores {}", show_cores(several)),
    };
    format!(
        "Lunette {} answers commands and does nothing else{cores}, {poll}.\n\
         Reads return a fixed pattern, writes are discarded: this is a performance baseline, not a disk.\n\n\
         Target {}\n  portal {}\n{}  LUN any: nothing, {}, {BLOCK_BYTES}-byte blocks\n\n\
         Ready. Stop with Ctrl-C.\n",
        env!("CARGO_PKG_VERSION"),
        bench::ceiling::TARGET,
        ceiling.address(),
        ceiling.urls(0).map(|url| format!("  URL {url}\n")).concat(),
        format_size(arguments.size),
    )
}
