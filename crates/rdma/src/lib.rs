//! Drives machines that exchange messages over RDMA ([`proto::message`]), using a [`provider::Provider`]:
//! [`iwarp`] in user space, on the reactor's sockets and buffers, or [`verbs`], for the system's RDMA
//! devices.
#![deny(unsafe_code)]

pub mod iwarp;
pub mod provider;
#[expect(unsafe_code, reason = "the libraries of verbs are called")]
pub mod verbs;

mod receives;

pub use iwarp::Channel;
