//! DDP segments (RFC 5041 section 4), each preceded by the ULPDU length of its FPDU.

use crate::iwarp::{layout, rdmap::Opcode};
use zerocopy::byteorder::big_endian::{U16, U32, U64};

layout! {
    /// The beginning of every FPDU.
    Head, 4, {
        /// Length in bytes of the DDP segment.
        ulpdu_length: U16,
        /// The DDP Control field.
        ddp_control: u8,
        /// The RDMAP Control field, with the opcode.
        rdmap_control: u8,
    }
}

impl Head {
    /// DDP Control: the segment is for a tagged buffer (T).
    pub const TAGGED: u8 = 0x80;
    /// DDP Control: the last segment of a message (L).
    pub const LAST: u8 = 0x40;
    /// DDP Control: the version (DV).
    pub const DDP_VERSION_MASK: u8 = 0x03;
    /// The version defined by RFC 5041.
    pub const DDP_VERSION: u8 = 1;
    /// RDMAP Control: the version (RV).
    pub const RDMAP_VERSION_MASK: u8 = 0xc0;
    /// The version defined by RFC 5040.
    pub const RDMAP_VERSION: u8 = 0x40;
    /// The RDMA Consortium's version, which is also valid (RFC 5040 section 4.1).
    pub const RDMAP_VERSION_CONSORTIUM: u8 = 0;

    /// The head of a segment we send.
    pub fn new(ulpdu_length: u16, tagged: bool, last: bool, opcode: Opcode) -> Head {
        let tagged = if tagged { Head::TAGGED } else { 0 };
        let last = if last { Head::LAST } else { 0 };
        Head {
            ulpdu_length: U16::new(ulpdu_length),
            ddp_control: tagged | last | Head::DDP_VERSION,
            rdmap_control: Head::RDMAP_VERSION | opcode.0,
        }
    }

    /// Whether the segment is for a tagged buffer.
    pub fn is_tagged(&self) -> bool {
        self.ddp_control & Head::TAGGED != 0
    }

    /// Whether it is the last of its message.
    pub fn is_last(&self) -> bool {
        self.ddp_control & Head::LAST != 0
    }

    /// The RDMAP opcode.
    pub fn opcode(&self) -> Opcode {
        Opcode(self.rdmap_control & Opcode::MASK)
    }
}

layout! {
    /// A segment for a tagged buffer: RDMA Write or RDMA Read Response.
    Tagged, 16, {
        /// Length, control, opcode.
        head: Head,
        /// Identifies the buffer.
        stag: U32,
        /// Offset in the buffer (TO).
        offset: U64,
    }
}

layout! {
    /// A segment for a queue.
    Untagged, 20, {
        /// Length, control, opcode.
        head: Head,
        /// The STag to invalidate, if the opcode asks for it (RFC 5040 section 4.1).
        invalidate_stag: U32,
        /// Queue number (QN).
        queue: Queue,
        /// Message sequence number within the queue (MSN), from 1.
        msn: U32,
        /// Offset in the message (MO).
        offset: U32,
    }
}

/// Queue numbers of RDMAP (RFC 5040 section 4.1, figure 4).
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub struct Queue(pub U32);

impl Queue {
    /// Sends.
    pub const SEND: Queue = Queue(U32::from_bytes([0, 0, 0, 0]));
    /// RDMA Read Requests.
    pub const READ_REQUEST: Queue = Queue(U32::from_bytes([0, 0, 0, 1]));
    /// Terminate.
    pub const TERMINATE: Queue = Queue(U32::from_bytes([0, 0, 0, 2]));
}

/// DDP header of a tagged segment in bytes, without the ULPDU length.
pub const TAGGED_HEADER_BYTES: u32 = 14;
/// DDP header of an untagged segment in bytes, without the ULPDU length.
pub const UNTAGGED_HEADER_BYTES: u32 = 18;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;
    use zerocopy::IntoBytes as _;

    /// Figure 5 of RFC 5044, after the marker.
    #[test]
    fn a_send_of_the_standard() {
        let bytes = [0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let segment: Untagged = decoded(&bytes);
        assert_eq!(segment.head.ulpdu_length.get(), UNTAGGED_HEADER_BYTES as u16 + 24);
        assert!(!segment.head.is_tagged() && segment.head.is_last());
        assert_eq!(segment.head.opcode(), Opcode::SEND);
        assert_eq!((segment.queue, segment.msn.get(), segment.offset.get()), (Queue::SEND, 1, 0));
        assert_eq!(Head::new(42, false, true, Opcode::SEND), segment.head);
    }

    #[test]
    fn a_tagged_segment() {
        let bytes = [0x05, 0xa2, 0x81, 0x40, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 1, 0, 0, 0, 2];
        let segment: Tagged = decoded(&bytes);
        assert!(segment.head.is_tagged() && !segment.head.is_last());
        assert_eq!((segment.head.ulpdu_length.get(), segment.head.opcode()), (1442, Opcode::WRITE));
        assert_eq!((segment.stag.get(), segment.offset.get()), (0xdead_beef, (1 << 32) + 2));
        assert_eq!(Head::new(1442, true, false, Opcode::WRITE).as_bytes(), &bytes[..4]);
    }

    #[test]
    fn versions_are_in_both_controls() {
        let head: Head = decoded(&[0, 14, 0xc3, 0x8f]);
        assert_eq!(head.ddp_control & Head::DDP_VERSION_MASK, 3);
        assert_eq!(head.rdmap_control & Head::RDMAP_VERSION_MASK, 0x80);
        assert_eq!(head.opcode(), Opcode(15));
    }

    #[test]
    fn a_queue_keeps_its_raw_value() {
        let segment: Untagged = decoded(&[0, 18, 1, 0x46, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!((segment.queue, segment.invalidate_stag.get()), (Queue::TERMINATE, 9));
        assert_eq!((segment.msn.get(), segment.offset.get()), (3, 4));
    }
}
