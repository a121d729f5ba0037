//! The initiator against the target, in one process, over real sockets.

mod cable;
mod chain;
mod client;
mod fake;
mod guard;
mod holding_target;
mod impossible_answers;
mod lanes;
mod late;
mod loss;
pub(crate) mod support;
