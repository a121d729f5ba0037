//! SCSI layouts, in one place for both roles: what an initiator builds, a device server parses, and vice
//! versa.
//!
//! A layout is declared once, with the standard's names ([`field`]): as a value that is read and written
//! whole, and as fields that can be read one by one and that sense data can point at.

pub mod access_state;
pub mod capacity;
pub mod cdb;
pub mod command;
pub mod copy;
pub mod designator;
pub mod field;
pub mod inquiry;
pub mod log;
pub mod lun;
pub mod mode;
pub mod opcode;
pub mod parameters;
pub mod sense;
pub mod status;
pub mod transport_id;
pub mod vpd;

pub use access_state::AccessState;
pub use cdb::Cdb;
pub use command::Command;
pub use field::Field;
pub use sense::{Sense, SenseData, SenseKey, Specific, code};
pub use status::Status;
