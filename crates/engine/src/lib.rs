//! The core loop: joins transports, device server and stores.
//!
//! [`Daemon`] serves a verified [`config::Config`] with one `core` thread for each core.
#![forbid(unsafe_code)]

mod access;
mod balance;
mod changes;
mod core;
mod counters;
pub mod daemon;
mod events;
mod gateway_handle;
mod gateways;
mod guid;
mod housekeeper;
mod ledger;
mod limits;
mod logins;
mod message;
mod meters;
mod origin;
mod patience;
mod ports;
mod readings;
mod registry;
mod served;
mod sessions;
mod shared;
mod slots;
mod state;
mod stores;
#[cfg(test)]
mod testing;
mod this_machine;
mod transport;
mod units;
pub mod world;

pub use changes::{Change, Shown};
pub use counters::{BUCKETS, Counts, Failure, Moved, bound_us};
pub use daemon::{ChangeError, Daemon, Turns, Wants};
pub use events::{Event, Events, Peer, Refusal};
pub use gateways::Moving;
pub use meters::Meters;
pub use patience::Patience;
pub use readings::{CoreReading, GatewayReading, ReservationReading, StoreState, UnitReading};
pub use sessions::{SessionError, SessionSummary, Sessions};
pub use this_machine::ThisMachine;
