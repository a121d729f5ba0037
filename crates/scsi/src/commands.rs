//! The families of commands: the admission, program and answers of each.

pub(crate) mod admission;
pub(crate) mod answer;
pub(crate) mod ata;
pub(crate) mod capacity;
pub(crate) mod copy;
pub(crate) mod diagnostic;
pub(crate) mod erase;
pub(crate) mod export;
pub(crate) mod format;
pub(crate) mod inquiry;
pub(crate) mod lba_status;
pub(crate) mod log;
pub(crate) mod luns;
pub(crate) mod media;
pub(crate) mod mode;
pub(crate) mod ports;
pub(crate) mod power;
pub(crate) mod request_sense;
pub(crate) mod reservation;
pub(crate) mod sanitize;
pub mod step;
pub(crate) mod vpd;
