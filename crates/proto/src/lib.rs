//! Protocol machines: the state of one connection as a value that is fed and drained.
//!
//! A machine owns no socket, no clock and no thread, and never touches payload: it names the places where
//! payload goes ([`stream::Want`]) and where it is sent from ([`stream::Transmit`]); the caller moves the
//! bytes. Commands go up and data movement comes down through transport protocol services ([`services`]) that
//! are the same for every transport.
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

pub mod aoe;
pub mod iscsi;
pub mod iser;
pub mod iwarp;
pub mod message;
pub mod nbd;
pub mod services;
pub mod srp;
pub mod stream;
pub mod time;
