//! What carries machines that exchange messages over RDMA ([`proto::message`]): [`iwarp`] in user space, on the
//! reactor's sockets and buffers.
#![forbid(unsafe_code)]

pub mod iwarp;

mod receives;
