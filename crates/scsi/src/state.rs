//! The state of a unit and its nexuses. Only the unit's home changes what they share.

pub mod attention;
pub mod copies;
mod encoding;
mod erasure;
pub mod export;
pub(crate) mod forwarded;
pub mod home;
pub(crate) mod limits;
pub(crate) mod news;
pub mod nexus;
pub mod policy;
pub mod port_groups;
pub(crate) mod readiness;
pub mod reservation;
mod reset;
mod shared;
pub mod space;
mod threshold;
pub mod unit;
