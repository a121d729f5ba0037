//! The life of stores: they are opened at the start or with the LUN that comes ([`opening`]), late if need be ([`late`]), and remote
//! ones by the ports that are kept ([`saved_ports`]); while they are served somebody checks whether they have changed, are gone, or
//! are back ([`prober`]).

mod failed;
mod late;
pub(crate) mod opening;
pub(crate) mod prober;
pub(crate) mod saved_ports;
pub(crate) mod space;

pub(crate) use opening::Opened;
