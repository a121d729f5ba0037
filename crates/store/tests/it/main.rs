//! The guarantees of stores: on every medium, on several cores, when the medium fails, and when it does not
//! open.

mod conformance;
mod cores;
mod faults;
mod gateways;
mod images;
mod long;
mod lost;
mod luks;
mod nbd;
mod nbd_connections;
mod opening;
mod shared;
#[path = "../support/mod.rs"]
mod support;
