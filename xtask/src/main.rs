//! The commands of continuous integration and developers: `cargo xtask test`, `cargo xtask soak`, `cargo
//! xtask fuzz`, `cargo xtask sim`, `cargo xtask instructions`, `cargo xtask bench`, `cargo xtask vm`, `cargo
//! xtask deb`, `cargo xtask package`, `cargo xtask tidy`.
#![forbid(unsafe_code)]

mod bench;
mod command;
mod deb;
mod fuzz;
mod instructions;
mod package;
mod packages;
mod sim;
mod suite;
mod test;
mod tidy;
mod vm;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Commands of continuous integration and developers.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that continuous integration checks.
    Test(test::Options),
    /// Checks that take too long for that: all scenarios, polling modes, URL schemes and variants, and long
    /// fuzzing.
    Soak(test::SoakOptions),
    /// Build and run fuzz targets.
    Fuzz(fuzz::Options),
    /// Run whole cores against a simulated clock, network and initiators.
    Sim(sim::Options),
    /// Count instructions per command, and compare them with the committed figures.
    Instructions(instructions::Options),
    /// Measure the datapath, and compare it with its goals.
    Bench(bench::Options),
    /// Run Linux's own initiators in a virtual machine, against the daemon on this machine.
    Vm(vm::Options),
    /// Build the Debian package.
    Deb(deb::Options),
    /// Install, run, upgrade and purge the package in a fresh Debian 12.
    Package(deb::Options),
    /// Check the tree itself: file lengths, leftovers, documents.
    Tidy,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Test(options) => test::run(&options),
        Task::Soak(options) => test::soak(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Sim(options) => sim::run(&options),
        Task::Instructions(options) => packages::ensure().and_then(|()| instructions::run(&options)),
        Task::Bench(options) => packages::ensure_for_bench().and_then(|()| bench::run(&options)),
        Task::Vm(options) => packages::ensure_for_vm().and_then(|()| vm::run(&options)),
        Task::Deb(options) => deb::run(&options),
        Task::Package(options) => packages::ensure_for_package().and_then(|()| package::run(&options)),
        Task::Tidy => tidy::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}
