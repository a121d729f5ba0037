//! `lunette copy`: from one URL, file or block device to another.

mod open;
mod progress;
mod transfer;

use crate::Failure;
use clap::Args;
use config::{format_size, parse_size};
use open::{Medium, destination, source};
use progress::Bar;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use transfer::{CopyError, PIECE_BYTES_MAX, PIECES_MAX, Progress};

/// Exit status after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;
/// Memory for data in flight.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug, Args)]
#[command(
    after_help = "Example: lunette copy disk.img iscsi://storage1/iqn.2026-11.io.lunette:disk/0 --verify"
)]
pub(crate) struct CopyArguments {
    /// The source: an iSCSI or NBD URL, a file, a block device, or rbd:POOL/IMAGE
    #[arg(value_name = "SRC")]
    from: String,
    /// The destination: likewise; a file that does not exist is created
    #[arg(value_name = "DST")]
    to: String,
    /// Read both back afterwards and compare every byte
    #[arg(long)]
    verify: bool,
    /// Block size, such as 64K
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    bs: u64,
    /// Blocks in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    depth: u32,
    /// Also write what is unmapped or all zeros
    #[arg(long)]
    no_sparse: bool,
    /// Overwrite a destination that holds data
    #[arg(long)]
    yes: bool,
    /// Copy a disk image of another format (qcow2, say) byte for byte
    #[arg(long)]
    raw: bool,
}

/// Copies; returns what to print about it.
pub(crate) fn run(arguments: &CopyArguments) -> Result<String, Failure> {
    let (piece_bytes, pieces) = pieces(arguments.bs, arguments.depth)?;
    let from = source(&arguments.from, pieces)?;
    fits(piece_bytes, &from)?;
    if !arguments.raw {
        from.check_format()?;
    }
    let to = destination(&arguments.to, &from, pieces)?;
    fits(piece_bytes, &to)?;
    if !arguments.yes {
        to.check_content()?;
    }
    let stop = catch_interrupts().map_err(Failure::failed)?;
    let options = transfer::Options { piece_bytes, pieces, sparse: !arguments.no_sparse };
    let start = Instant::now();
    let copied = watched("copying", &stop, |watch| transfer::copy(&from.end, &to.end, options, watch));
    let copied = copied.map_err(|(error, progress)| ended(&from, &to, &error, progress, true))?;
    let mut text = summary(&copied, start);
    if arguments.verify {
        let compared =
            watched("verifying", &stop, |watch| transfer::compare(&from.end, &to.end, options, watch));
        match compared.map_err(|(error, progress)| ended(&from, &to, &error, progress, false))? {
            None => text.push_str("; verified: no byte differs"),
            Some(at) => {
                let text = format!("{} differs from {} at byte {at}", to.name, from.name);
                return Err(Failure::failed(text));
            }
        }
    }
    text.push('\n');
    Ok(text)
}

/// Bytes per operation, and how many are in flight: a block larger than an operation consists of several.
fn pieces(bs: u64, depth: u32) -> Result<(u32, u32), Failure> {
    if bs < 512 || !bs.is_multiple_of(512) {
        return Err(Failure::wrong_input(format!(
            "--bs {bs}: not a multiple of 512 bytes; use a multiple, such as 64K or 1M"
        )));
    }
    let piece = u32::try_from(bs).unwrap_or(u32::MAX).min(PIECE_BYTES_MAX);
    let pieces = bs.div_ceil(u64::from(piece)).saturating_mul(u64::from(depth));
    match u32::try_from(pieces) {
        Ok(pieces @ 1..=PIECES_MAX) if u64::from(pieces) * u64::from(piece) <= BUFFER_BYTES_MAX => {
            Ok((piece, pieces))
        }
        Ok(0) => Err(Failure::wrong_input("--depth 0: nothing would be copied; use 1 or more")),
        Ok(_) | Err(_) => {
            let most = format_size(BUFFER_BYTES_MAX);
            let text = format!(
                "--bs {bs} --depth {depth}: at most {PIECES_MAX} operations and {most} can be in flight; reduce one of them"
            );
            Err(Failure::wrong_input(text))
        }
    }
}

fn fits(piece_bytes: u32, medium: &Medium) -> Result<(), Failure> {
    let unit = medium.end.block_bytes;
    if piece_bytes.is_multiple_of(unit) {
        return Ok(());
    }
    let name = &medium.name;
    let text = format!("--bs {piece_bytes}: blocks of {name} have {unit} bytes; use a multiple of {unit}");
    Err(Failure::wrong_input(text))
}

/// Set by the first signal; the second one ends the process.
fn catch_interrupts() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| format!("cannot handle signals: {error}"))?;
    }
    Ok(stop)
}

/// Runs one pass with a progress bar; a failure reports how far it got.
fn watched<T>(
    what: &str,
    stop: &AtomicBool,
    pass: impl FnOnce(transfer::Watch<'_>) -> Result<T, CopyError>,
) -> Result<T, (CopyError, Progress)> {
    let mut bar = Bar::new(what);
    let mut last = Progress::default();
    let result = pass(&mut |progress| {
        last = progress;
        bar.show(progress);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(bar);
    result.map_err(|error| (error, last))
}

fn ended(from: &Medium, to: &Medium, error: &CopyError, progress: Progress, wrote: bool) -> Failure {
    let mut text = match error {
        CopyError::Setup(_) | CopyError::Stopped => error.to_string(),
        CopyError::Read(..) => format!("{}: {error}", from.name),
        CopyError::ReadBack(..) | CopyError::Write(..) | CopyError::Flush(_) => {
            format!("{}: {error}", to.name)
        }
    };
    let Progress { total, done, .. } = progress;
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    let state = match wrote {
        true => format!("; {} is incomplete: {done} of {total} bytes ({percent} %) were copied", to.name),
        false => format!("; the copy is complete, but only {percent} % of it was verified"),
    };
    text.push_str(&state);
    let status = if matches!(error, CopyError::Stopped) { INTERRUPTED } else { 1 };
    Failure { text, status }
}

fn summary(copied: &Progress, start: Instant) -> String {
    let seconds = start.elapsed().as_secs_f64();
    let rate = copied.total as f64 / f64::from(1 << 20) / seconds.max(1e-6);
    let left_out = copied.total.saturating_sub(copied.written);
    let zeros = match left_out {
        0 => String::new(),
        bytes => format!(", {} of it unmapped or zeros", format_size(bytes)),
    };
    format!("copied {}{zeros}, in {seconds:.1} s ({rate:.0} MiB/s)", format_size(copied.total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_into_operations() {
        let of = |bs, depth| pieces(bs, depth).map_err(|failure| failure.text);
        assert_eq!(of(1 << 20, 8), Ok((256 << 10, 32)));
        assert_eq!(of(4096, 3), Ok((4096, 3)));
        assert_eq!(of(384 << 10, 1), Ok((256 << 10, 2)));
        assert!(of(1000, 8).is_err_and(|text| text.contains("512")));
        assert!(of(4096, 0).is_err_and(|text| text.contains("--depth 0")));
        assert!(of(4096, 5000).is_err_and(|text| text.contains("4096 operations")));
        assert!(of(u64::MAX - 511, u32::MAX).is_err_and(|text| text.contains("1 GiB")));
    }
}
