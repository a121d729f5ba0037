//! Our machines against each other, on a virtual clock, with bytes split anywhere and messages at any time.

mod aoe;
mod iscsi;
mod iser;
mod iwarp;
mod siw;
mod srp;
mod support;
