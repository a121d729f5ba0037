//! iSCSI (RFC 7143): target and initiator.

pub mod chap;
mod frame;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod target;
pub mod text;
