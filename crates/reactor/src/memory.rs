//! Registered memory regions ([`Region`]) and one core's buffers ([`Arena`]).
//!
//! A process-wide table maps [`wire::BufferId`] to base and length of a region, so that any core's `Io` can turn a
//! [`wire::Span`] into an address after checking its bounds.
