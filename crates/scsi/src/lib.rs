//! The SCSI device server: CDBs in, data movement and status out. No I/O, no clock, no threads.
//!
//! # The path of one command
//!
//! 1. The core that owns the connection calls [`View::admit`] with the nexus's own state ([`NexusUnit`]): opcode
//!    table, unit attentions, reservations, write protection, ranges. It answers with an [`Ending`] at once, or with
//!    an [`Exec`]: the command as a small program.
//! 2. The core runs the program: [`Exec::next`] names one [`Step`] at a time (fetch data-out, run a storage
//!    operation, push data-in, ask the unit's home, end) and is told what came of it ([`Event`]).
//! 3. What changes a unit for everybody (reservations, mode pages, sanitize, resets) goes to the unit's [`Home`], one
//!    value on one core. It answers with a [`Publish`]: a new [`Policy`], unit attentions for other nexuses, tasks to
//!    abort. Only when every core has applied it is the command told.
//!
//! So READ, WRITE, SYNCHRONIZE CACHE and UNMAP never leave their core, and nothing here is shared but immutable
//! snapshots.
#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::as_conversions
    )
)]

mod admit;
mod answer;
mod ata;
pub mod attention;
mod capacity;
pub mod command;
pub mod copy;
mod diagnostic;
mod erase;
pub mod exec;
pub mod export;
mod format;
pub mod home;
mod inquiry;
mod lba_status;
mod limits;
mod log;
mod luns;
mod media;
mod mode;
pub mod nexus;
mod opcodes;
pub mod policy;
mod ports;
mod power;
mod request_sense;
pub mod reservation;
mod sanitize;
pub mod sense;
pub mod storage;
pub mod table;
#[cfg(test)]
mod testing;
pub mod unit;
mod vpd;

pub use attention::UnitAttention;
pub use command::{Attribute, Ending, Request, Status};
pub use exec::{Env, Event, Exec, Step, Units};
pub use export::Export;
pub use home::{Damaged, Home, HomeReply, HomeRequest, Identity, Publish, Who};
pub use luns::no_unit;
pub use nexus::{NexusId, NexusUnit, Reach};
pub use policy::Policy;
pub use storage::{MediaOp, StoreError};
pub use unit::{Incarnation, Unit, View};
