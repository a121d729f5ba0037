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
pub mod attention;
pub mod command;
pub mod copy;
pub mod exec;
pub mod home;
pub mod nexus;
pub mod policy;
pub mod reservation;
mod sanitize;
pub mod sense;
pub mod storage;
pub mod table;
pub mod unit;

pub use command::{Attribute, Ending, Request};
pub use exec::{Env, Event, Exec, Step};
pub use home::{HomeReply, HomeRequest, Identity, Publish, Who};
pub use nexus::{NexusId, NexusUnit};
pub use policy::Policy;
pub use storage::{MediaOp, StoreError};
pub use unit::{Unit, View};
