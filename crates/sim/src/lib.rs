//! Whole cores against a simulated world: a clock that advances only here, a network that cuts, delays and
//! breaks, and initiators that read, write, abort, reset and come back. Everything is decided by a seed, so
//! runs with the same seed are identical.
//!
//! `net` is the clock and the network, `ethernet` that of AoE, [`kernel`] a core's [`reactor::io::Io`],
//! `initiator` and `ata` are the actors, `register` checks the data, and `world` and `gateways` run
//! them in turns. Nothing in the cores knows that it is simulated.
#![forbid(unsafe_code)]

mod ata;
mod attention;
mod device;
mod directory;
mod disk;
mod ethernet;
mod gateways;
mod groups;
mod initiator;
pub mod kernel;
mod limits;
mod net;
#[cfg(test)]
mod outcomes;
mod pipe;
mod play;
mod quarrels;
mod queue;
mod register;
mod reservations;
mod rogue;
mod seeds;
mod trace;
mod transports;
mod truth;
mod world;

pub use world::{Cuts, Failure, Ran, Worlds};

/// Runs what this seed makes.
///
/// # Errors
/// When something is not as it must be.
pub fn run(seed: u64, keeps_trace: bool) -> Result<Ran, Failure> {
    run_cut(seed, &Cuts::default(), keeps_trace)
}

/// Runs what this seed makes, without this.
///
/// # Errors
/// When something is not as it must be.
pub fn run_cut(seed: u64, cuts: &Cuts, keeps_trace: bool) -> Result<Ran, Failure> {
    kernel::seed_random(seed);
    if seeds::has_gateways(seed) {
        gateways::run(seed, cuts, keeps_trace)
    } else {
        world::run(seed, cuts, keeps_trace)
    }
}
