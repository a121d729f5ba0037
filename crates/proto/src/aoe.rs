//! AoE machines: the target's and the initiator's side of one session (AoEr11).
//!
//! AoE has no connections: each request is a frame, and so is its answer. A session here means the requests
//! that one initiator, identified by its Ethernet address, sends to one target on one interface.

pub mod target;

pub mod discover;
pub mod initiator;

use crate::services::TaskId;
use wire::Places;

/// The longest headers of a frame, in bytes: Ethernet, AoE, and the argument of an ATA command.
pub const HEADER_BYTES_MAX: usize = 36;

/// A frame to send. The caller copies both parts before it calls the machine again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    header: [u8; HEADER_BYTES_MAX],
    header_len: u8,
    /// What follows the headers.
    pub payload: Places,
    /// The task whose data the payload is.
    pub task: Option<TaskId>,
}

impl Frame {
    /// A frame with these headers, one after the other.
    pub(crate) fn new(headers: [&[u8]; 2], payload: Places, task: Option<TaskId>) -> Frame {
        let mut header = [0; HEADER_BYTES_MAX];
        let mut len = 0usize;
        for part in headers {
            let end = len.saturating_add(part.len());
            if let Some(room) = header.get_mut(len..end) {
                room.copy_from_slice(part);
                len = end;
            }
        }
        Frame { header, header_len: u8::try_from(len).unwrap_or(0), payload, task }
    }

    /// Its headers.
    pub fn header(&self) -> &[u8] {
        self.header.get(..usize::from(self.header_len)).unwrap_or_default()
    }

    /// Its length in bytes.
    pub fn size_bytes(&self) -> u32 {
        self.payload.len().saturating_add(u32::from(self.header_len))
    }
}
