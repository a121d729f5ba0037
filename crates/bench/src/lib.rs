//! Measures storage targets: a load generator and do-nothing ceilings.
#![forbid(unsafe_code)]

pub mod ceiling;
pub mod contents;
pub mod job;
pub mod limit;
pub mod output;
pub mod result;
pub mod run;
pub mod target;
pub mod verify;
