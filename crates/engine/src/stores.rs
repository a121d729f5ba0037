//! The life of stores: they are opened at start or with a new LUN ([`opening`]), late if need be ([`late`]),
//! and remote ones through the saved ports ([`saved_ports`]); while they are served, [`prober`] checks
//! whether they have changed, are gone, or are back.

mod failed;
mod late;
pub(crate) mod opening;
pub(crate) mod prober;
pub(crate) mod saved_ports;
pub(crate) mod space;

pub(crate) use opening::Opened;
