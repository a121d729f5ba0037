//! What continuous integration and a person run.
fn main() {}
