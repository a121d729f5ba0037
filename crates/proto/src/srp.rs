//! SRP (T10 SRP revision 16a, with the immediate data of SRP-2): both roles, over messages and RDMA.

pub mod initiator;
pub mod target;
