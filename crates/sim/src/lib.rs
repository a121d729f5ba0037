//! Whole cores against a simulated world: a clock that advances only here, a network that cuts, delays and
//! breaks, and initiators that read, write, abort, reset and come back. Everything is decided by a seed, so
//! runs with the same seed are identical.
//!
//! `net` is the clock and the network, `ethernet` that of AoE, [`kernel`] a core's [`reactor::io::Io`],
//! `initiator` and `ata` are the actors, `register` checks the data, and `world` runs them in turns. Nothing
//! in the cores knows that it is simulated.
#![forbid(unsafe_code)]

mod ata;
mod attention;
mod device;
mod disk;
mod ethernet;
mod folder;
mod initiator;
pub mod kernel;
mod limits;
mod net;
#[cfg(test)]
mod outcomes;
mod pipe;
mod quarrels;
mod queue;
mod register;
mod reservations;
mod rogue;
mod trace;
mod transports;
mod world;

pub use world::{Cuts, Failure, Ran, Worlds, run, run_cut};
