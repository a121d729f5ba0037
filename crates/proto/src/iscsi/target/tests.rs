//! The machine driven by hand-built PDUs.

mod commands;
mod harness;
mod requests;
mod writes;
