//! The initiator against the target, in one process, over real sockets.

mod chain;
mod client;
mod guard;
mod support;
