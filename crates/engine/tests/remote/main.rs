//! The initiator against the target, in one process, over real sockets.

mod cable;
mod chain;
mod client;
mod guard;
mod lanes;
mod loss;
mod support;
