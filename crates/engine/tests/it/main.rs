//! Cores, initiators and remote units over real sockets.

mod remote;
mod script;
mod srp;
