//! The `lunette` command.
#![forbid(unsafe_code)]

fn main() {}
