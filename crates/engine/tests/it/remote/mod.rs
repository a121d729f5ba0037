//! The initiator against the target, in one process, over real sockets.

mod cable;
mod chain;
mod client;
mod fake;
mod guard;
mod holding_target;
mod lanes;
mod late;
mod lies;
mod loss;
pub(crate) mod support;
