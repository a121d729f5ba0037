//! The target machine of one connection.
