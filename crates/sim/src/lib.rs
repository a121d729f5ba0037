//! Whole cores against a world of ours: a clock that moves only here, a network that cuts, delays and breaks, and initiators
//! that read, write, abort, reset and come back. One seed decides all of it, so a run with the same seed is the same run.
//!
//! `net` is the clock and the network, `ethernet` the one of AoE, [`kernel`] what a core has for an [`reactor::io::Io`], `initiator` and `ata` who act, `register`
//! what is checked of the data, and `world` turns one after the other. Nothing in the cores knows that it is simulated.
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
