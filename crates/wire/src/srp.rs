//! SRP information units (T10 SRP revision 16a, clause 6), with the immediate data of SRP-2.
//!
//! Requests of the initiator and their responses carry a tag chosen by the initiator; the target's requests
//! carry the target's. Each information unit has its struct, big-endian in memory as on the wire. Codes are
//! newtypes over the raw value: what a peer sent is kept as is, for the machine to validate.

pub mod code;
pub mod command;
pub mod login;
pub mod notice;
pub mod response;

pub use crate::iwarp::Layout;
pub use code::{LogoutReason, Opcode, RejectReason, ResponseCode, TaskAttribute, TaskFunction};
pub use command::{
    Command, CommandFault, CommandUnit, Descriptor, Direct, IndirectHead, Table, TaskManagement,
};
pub use login::{LoginReject, LoginRequest, LoginRequestRdma, LoginResponse};
pub use notice::{
    AsyncEventRequest, AsyncEventResponse, CreditRequest, CreditResponse, InitiatorLogout, TargetLogout,
};
pub use response::Response;

/// Byte 1 of what a target sends: the initiator requested solicited notification of it (SOLNT).
pub const SOLICITED: u8 = 0x01;
