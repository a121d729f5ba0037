//! The initiator against the target, in one process, over real sockets.

mod client;
mod support;
