//! Runs of jobs on stores and targets, healthy and faulty.
mod ceiling;
mod remote;
mod run;
mod support;
mod verify;

#[path = "../../../engine/tests/it/remote/support.rs"]
#[allow(dead_code, unreachable_pub)]
mod targets;
