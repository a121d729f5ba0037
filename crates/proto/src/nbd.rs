//! The client of the Network Block Device protocol (NetworkBlockDevice/nbd, doc/proto.md): [`Handshake`] negotiates an export, and
//! [`Transmission`] carries requests to it.
//!
//! Neither touches payload: [`Event`] names the request that bytes belong to, and the caller moves them.

mod handshake;
mod transmission;

pub use handshake::{Encryption, Handshake, Refusal, Step};
pub use transmission::{Answer, Event, REQUESTS_MAX, Transmission, Violation};

use wire::nbd::transmission::{CAN_MULTI_CONN, READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_WRITE_ZEROES};

/// The negotiated properties of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// What requests are multiples of, in bytes.
    pub block_minimum: u32,
    /// The efficient block size, in bytes.
    pub block_preferred: u32,
    /// The longest payload of a request, in bytes.
    pub payload_maximum: u32,
    /// Reads are answered by structured replies.
    pub structured: bool,
    /// The metadata context `base:allocation`.
    pub allocation: Option<u32>,
}

impl Export {
    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.has(READ_ONLY)
    }

    /// The server can make acknowledged writes durable.
    pub fn flushes(&self) -> bool {
        self.has(SEND_FLUSH)
    }

    /// A write can be durable before it is acknowledged (FUA).
    pub fn writes_through(&self) -> bool {
        self.has(SEND_FUA)
    }

    /// The server can zero ranges without being sent zeros.
    pub fn clears(&self) -> bool {
        self.has(SEND_WRITE_ZEROES)
    }

    /// A write that was answered on one connection is read on all, and a flush on one applies to all: the
    /// server "operates entirely without cache, or the cache it uses is shared among all connections" (section
    /// "Transmission flags", NBD_FLAG_CAN_MULTI_CONN). We rely on the first half. A server that promises only
    /// the second, of a write, its flush and a read after both, does not qualify, though some set the flag.
    pub fn shares_connections(&self) -> bool {
        self.has(CAN_MULTI_CONN)
    }
}
