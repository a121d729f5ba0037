//! The device server: the table of commands, who is let in, and programs that run.

mod admit;
mod ata;
pub(crate) mod exec;
pub(crate) mod metered;
mod opcodes;
pub mod table;
