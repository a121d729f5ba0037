//! The device server: the table of commands, admission, and running programs.

mod admit;
mod ata;
pub(crate) mod exec;
pub(crate) mod metered;
mod opcodes;
pub mod table;
