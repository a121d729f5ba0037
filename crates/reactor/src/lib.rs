//! Cores and what they own: the ring, buffers, timers, mailboxes, checksums, and the driver of stream machines.
//!
//! `unsafe` code is here and in `rdma::verbs`. The rules that its blocks rely on: a [`wire::Span`] lent to
//! the kernel is unusable until its completion was returned; an arena buffer that is freed while lent goes
//! back to the free list only when the kernel has released it; dropping the ring drains it.

pub mod cpu;
pub mod crc;
pub mod io;
pub mod limited;
pub mod mailbox;
pub mod memory;
pub mod neighbours;
pub mod net;
pub mod packet;
pub mod poll;
pub mod random;
pub mod stream;
pub mod timers;
pub mod topology;
pub mod uring;
pub mod wake;
