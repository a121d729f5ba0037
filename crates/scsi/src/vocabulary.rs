//! The vocabulary of the device server: commands and how they end, sense data, operations of a store.

pub mod command;
pub mod modes;
pub mod sense;
pub mod storage;
