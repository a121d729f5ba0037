//! Our machines against each other, on a virtual clock, with bytes cut anywhere.

mod iscsi;
mod iwarp;
mod srp;
mod support;
