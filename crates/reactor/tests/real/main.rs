//! The reactor on the real kernel: sockets on loopback and temporary files.

mod common;
mod iwarp;
mod stream;
mod uring;
