//! The initiator machine of one connection.
