//! The reactor on the real kernel: sockets on loopback and temporary files.

mod common;
mod stream;
mod uring;
