//! Which of several gateways is active for a unit that they share, and what of the unit must survive each of them: the object
//! in which all of them have that ([`record`]), and the view of one gateway as a machine ([`machine`]). No I/O, no clock.

pub mod machine;
pub mod record;

pub use machine::{Action, Machine, Me, ReplaceError, Role, Status};
pub use record::{Damaged, Holder, Port, Record};
