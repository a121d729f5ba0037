//! `cargo xtask sim`: runs seeds until the time is up, or one fails.
#![forbid(unsafe_code)]

mod shrink;

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use sim::{Cuts, Failure, Worlds};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Lines of the trace shown on failure.
const LINES: usize = 60;

/// Runs whole cores in a world determined by a seed.
#[derive(Parser)]
#[command(bin_name = "cargo xtask sim")]
struct Arguments {
    /// Run only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// The first of many; without it, a fresh one.
    #[arg(long)]
    from: Option<u64>,
    /// With --seed, leave this out: `rogue,orders,initiators=2`.
    #[arg(long, default_value = "")]
    cut: Cuts,
    /// With --seed, for a failing seed, leave out what the failure does not need.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Run for this long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Run at most this many seeds.
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// Run only seeds with such worlds.
    #[arg(long)]
    worlds: Option<Worlds>,
    /// Count the minutes in processor time: on a busy machine it runs for longer.
    #[arg(long)]
    of_processor: bool,
    /// Print everything that happens, not only the end.
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    if let Some(seed) = arguments.seed {
        let mut cuts = arguments.cut;
        if arguments.shrink {
            match shrink::shrink(seed, cuts.clone()) {
                Ok(Some(shortest)) => cuts = shortest,
                Ok(None) => println!("seed {seed} does not fail"),
                Err(error) => {
                    println!("cannot run the simulator again: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        return match sim::run_cut(seed, &cuts, true) {
            Ok(ran) => {
                if arguments.trace {
                    print!("{}", ran.trace);
                }
                println!(
                    "seed {seed}: {} commands, {} turns in {:.2?}",
                    ran.commands,
                    ran.turns,
                    begun.elapsed()
                );
                ExitCode::SUCCESS
            }
            Err(Failure { what, trace }) => {
                let lines: Vec<&str> = trace.lines().collect();
                let from = if arguments.trace { 0 } else { lines.len().saturating_sub(LINES) };
                lines[from..].iter().for_each(|line| println!("{line}"));
                println!("seed {seed} fails: {what}");
                if arguments.shrink {
                    println!("it does so again with: cargo xtask sim --seed {seed} --cut {cuts}");
                }
                ExitCode::FAILURE
            }
        };
    }
    run_many(&arguments, begun)
}

/// Runs seeds until the time is up, or one fails.
fn run_many(arguments: &Arguments, begun: Instant) -> ExitCode {
    let limit = Duration::from_secs_f64(arguments.minutes * 60.0);
    let used = || if arguments.of_processor { processor_time() } else { begun.elapsed() };
    let (mut seeds, mut commands, mut changes) = (0u64, 0u64, 0u64);
    let first = arguments.from.unwrap_or_else(|| fastrand::u64(..) >> 20);
    for seed in (first..).filter(|seed| arguments.worlds.is_none_or(|worlds| worlds.have(*seed))) {
        if seeds == arguments.seeds || used() >= limit {
            break;
        }
        match sim::run(seed, false) {
            Ok(ran) => {
                commands += ran.commands;
                changes += ran.changes;
            }
            Err(Failure { what, .. }) => {
                println!(
                    "{what}\nthe first of {} seeds that fails, after {:.1} s of processor time; it does so again with: cargo xtask sim --seed {seed}",
                    seeds + 1,
                    processor_time().as_secs_f64()
                );
                return ExitCode::FAILURE;
            }
        }
        seeds += 1;
    }
    let [rate, of_time] =
        [begun.elapsed(), processor_time()].map(|time| commands as f64 / time.as_secs_f64());
    println!(
        "{seeds} seeds from {first} on, {commands} commands, {changes} live changes, {rate:.0} commands a second, {of_time:.0} in one of processor time"
    );
    ExitCode::SUCCESS
}

/// Processor time used by this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
