//! Message machines over our iWARP, on loopback TCP and the real ring.

mod commands;
#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../../../reactor/tests/real/common.rs"]
mod common;
mod disk;
mod iser;
mod memory;
mod posts;
mod rig;
mod script;
mod srp;
