//! The SCSI device server: CDBs in, data movement and status out. No I/O, no clock, no threads.
//!
//! # The path of one command
//!
//! 1. The core that owns the connection calls [`View::admit`] with the nexus's own state ([`NexusUnit`]):
//!    opcode table, unit attentions, reservations, write protection, ranges. It returns an [`Ending`] at
//!    once, or an [`Exec`]: the command as a small program.
//! 2. The core runs the program: [`Exec::next`] names one [`Step`] at a time (fetch data-out, run a storage
//!    operation, push data-in, ask the unit's home, end) and gets its result ([`Event`]).
//! 3. What changes a unit for everybody (reservations, mode pages, sanitize, resets) goes to the unit's
//!    [`Home`], one value on one core. It answers with a [`Publish`]: a new [`Policy`], unit attentions for
//!    other nexuses, tasks to abort. Only when every core has applied it does the command get the reply.
//!
//! So READ, WRITE, SYNCHRONIZE CACHE and UNMAP never leave their core, and only immutable snapshots are
//! shared.
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

mod commands;
mod server;
mod state;
#[cfg(test)]
mod testing;
mod vocabulary;

pub use commands::luns::{hidden_unit, no_unit};
pub use commands::step::{self, Env, Event, Step, Units};
pub use server::exec::{Exec, Transfer};
pub use server::metered::Direction;
pub use server::table;
pub use state::attention::{self, UnitAttention};
pub use state::export::{self, Export};
pub use state::home::{self, Damaged, Home, HomeReply, HomeRequest, NexusIdentity, Publish, Who};
pub use state::nexus::{self, NexusId, NexusUnit, Reach};
pub use state::policy::{self, Policy};
pub use state::port_groups::{PortGroup, PortGroups, Role};
pub use state::space::Space;
pub use state::unit::{self, Incarnation, Sharing, Unit, View};
pub use state::{copies, reservation};
pub use vocabulary::command::{self, Attribute, Ending, Request, Status};
pub use vocabulary::storage::{self, MediaOp, StoreError};
pub use vocabulary::{modes, sense};
