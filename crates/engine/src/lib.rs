//! The core loop: joins transports, device server and stores, and holds the configuration.
#![forbid(unsafe_code)]

pub mod config;
pub mod daemon;
