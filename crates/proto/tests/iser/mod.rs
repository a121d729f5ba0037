//! Our iSER initiator against our iSER target, and each of them against a peer that lies: over a fabric that carries
//! messages and RDMA between two memories.

mod commands;
mod fabric;
mod hostile;
mod liar;
mod login;
mod pair;
