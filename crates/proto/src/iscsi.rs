//! iSCSI (RFC 7143): target and initiator.

pub mod chap;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod target;
pub mod text;
