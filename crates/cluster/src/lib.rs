//! Decides which of several gateways is active for a unit that they share, and what state of the unit must
//! survive each of them: the object in which they all store that ([`record`]), and one gateway's view as a
//! state machine ([`machine`]). No I/O, no clock.

mod action;
pub mod machine;
pub mod record;

pub use action::{Access, Action, Me, Outcome, ReplaceError, Role, Status};
pub use machine::Machine;
pub use record::{By, Damaged, Holder, Member, Next, Port, Record, Reply, Request, Serving};
