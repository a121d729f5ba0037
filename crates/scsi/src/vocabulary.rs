//! The words of the device server: commands and how they end, sense data, what is asked of a store.

pub mod command;
pub mod modes;
pub mod sense;
pub mod storage;
