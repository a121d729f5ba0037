//! AoE machines: the target and the initiator of one session (AoEr11).

pub mod discover;
pub mod initiator;

use crate::verbs::TaskId;
use wire::Places;

/// The longest headers of a frame, in bytes: Ethernet, AoE, and an ATA argument.
pub const HEADER_BYTES_MAX: usize = 36;

/// A frame to send. Whoever drives a machine copies both parts before the machine's next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    header: [u8; HEADER_BYTES_MAX],
    header_len: u8,
    /// What follows the headers.
    pub payload: Places,
    /// Whose data the payload is.
    pub task: Option<TaskId>,
}

impl Frame {
    /// A frame of these headers, one behind the other.
    fn new(parts: [&[u8]; 2], payload: Places, task: Option<TaskId>) -> Frame {
        let mut frame = Frame { header: [0; HEADER_BYTES_MAX], header_len: 0, payload, task };
        for (place, byte) in frame.header.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
            frame.header_len = frame.header_len.saturating_add(1);
        }
        frame
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
