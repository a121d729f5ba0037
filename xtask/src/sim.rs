//! `cargo xtask sim`: whole cores in a world that a seed decides.

use crate::command::{Result, cargo, succeed};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this seed alone, and show what happened before it failed.
    #[arg(long)]
    seed: Option<u64>,
    /// Run so many minutes, from a fresh seed on.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// With --seed, print all that happens.
    #[arg(long)]
    trace: bool,
}

impl Options {
    /// For so long, from a fresh seed on.
    pub(crate) fn of_minutes(minutes: f64) -> Options {
        Options { seed: None, minutes, trace: false }
    }
}

/// Builds the simulator as released, and runs it.
pub(crate) fn run(options: &Options) -> Result {
    let mut run = cargo();
    run.args([
        "run",
        "--release",
        "--quiet",
        "--package",
        "sim",
        "--",
        "--minutes",
        &options.minutes.to_string(),
    ]);
    if let Some(seed) = options.seed {
        run.args(["--seed", &seed.to_string()]);
    }
    if options.trace {
        run.arg("--trace");
    }
    succeed(&mut run)
}
