//! The reactor on the real kernel: sockets on loopback and temporary files.

mod common;
mod iwarp;
mod net;
mod packet;
mod stream;
mod uring;
