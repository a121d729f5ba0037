//! The machine driven by hand-built PDUs.

mod commands;
mod harness;
mod login;
mod plain;
mod requests;
mod writes;
