//! Which of several gateways is active for a unit that they share, and what of the unit must survive each of them: the object
//! in which all of them have that ([`record`]), and the view of one gateway as a machine ([`machine`]). No I/O, no clock.

mod action;
pub mod machine;
pub mod record;

pub use action::{Action, Me, Outcome, ReplaceError, Role, Status};
pub use machine::Machine;
pub use record::{By, Damaged, Holder, Member, Next, Port, Record, Reply, Request};
