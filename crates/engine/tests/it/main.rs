//! Cores, initiators, copies and remote units over real sockets.

mod copy;
mod remote;
mod script;
mod srp;
