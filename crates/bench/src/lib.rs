//! Measures storage targets: a load generator, do-nothing ceilings, other people's targets beside ours, and reports.
#![forbid(unsafe_code)]

pub mod ceiling;
pub mod contents;
pub mod job;
pub mod limit;
pub mod output;
pub mod report;
pub mod result;
pub mod run;
pub mod target;
pub mod verify;
