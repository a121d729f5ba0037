//! MPA: start-up frames and the framing of DDP segments (RFC 5044 sections 4 and 7.1.1, RFC 6581 sections 6
//! and 9).

use crate::iwarp::layout;
use zerocopy::byteorder::big_endian::U16;

/// The most private data in a start-up frame, in bytes, read depths included.
pub const PRIVATE_DATA_MAX: usize = 512;

/// The ULPDU length field before a DDP segment, in bytes.
pub const ULPDU_LENGTH_BYTES: u32 = 2;

/// The CRC field after the padding of an FPDU, in bytes. It is present even when CRCs are not in use.
pub const CRC_BYTES: u32 = 4;

/// Interval of markers, in bytes of the stream (RFC 5044 section 4.3).
pub const MARKER_INTERVAL: u32 = 512;

/// A marker in bytes.
pub const MARKER_BYTES: u32 = 4;

/// Bytes that pad the FPDU of a ULPDU of this length to a multiple of four.
pub fn pad(ulpdu_length: u32) -> u32 {
    ulpdu_length.wrapping_add(ULPDU_LENGTH_BYTES).wrapping_neg() & 3
}

/// The longest ULPDU whose FPDU fits into a TCP segment of this many bytes (MULPDU, RFC 5044 section 4.5): at
/// least 128 bytes, at most the maximum of the length field.
pub fn longest_ulpdu(segment_bytes: u32, markers: bool) -> u32 {
    let markers =
        if markers { segment_bytes.div_ceil(MARKER_INTERVAL).saturating_mul(MARKER_BYTES) } else { 0 };
    let overhead = ULPDU_LENGTH_BYTES.saturating_add(CRC_BYTES).saturating_add(segment_bytes & 3);
    segment_bytes.saturating_sub(overhead.saturating_add(markers)).clamp(128, u32::from(u16::MAX))
}

layout! {
    /// MPA Request or Reply Frame without its private data.
    StartFrame, 20, {
        /// Distinguishes a request from a reply.
        key: [u8; 16],
        /// The M, C, R and S bits.
        flags: u8,
        /// Revision of MPA.
        revision: u8,
        /// Length in bytes of the private data that follows.
        private_data_length: U16,
    }
}

impl StartFrame {
    /// The key of a request.
    pub const REQUEST: [u8; 16] = *b"MPA ID Req Frame";
    /// The key of a reply.
    pub const REPLY: [u8; 16] = *b"MPA ID Rep Frame";
    /// M: FPDUs sent to this end must have markers.
    pub const MARKERS: u8 = 0x80;
    /// C: this end prefers CRCs.
    pub const CRC: u8 = 0x40;
    /// R: the connection is rejected; only in a reply.
    pub const REJECTED: u8 = 0x20;
    /// S: the private data begins with [`ReadDepths`] (RFC 6581 section 6).
    pub const ENHANCED: u8 = 0x10;
    /// This end accepts FPDUs longer than its segments. Reserved in the standards, and ignored by those that
    /// do not know it; Linux's siw uses it for this (`MPA_RR_FLAG_GSO_EXP`).
    pub const LONG_FPDUS: u8 = 0x08;

    /// Whether all of these flags are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

layout! {
    /// Enhanced RDMA connection establishment data (RFC 6581 section 9).
    ReadDepths, 4, {
        /// A, B, and the inbound RDMA Read queue depth.
        ird: U16,
        /// C, D, and the outbound RDMA Read queue depth.
        ord: U16,
    }
}

impl ReadDepths {
    /// The depth in each word.
    pub const DEPTH_MASK: u16 = 0x3fff;
    /// A depth that is not negotiated here.
    pub const UNSPECIFIED: u16 = 0x3fff;
    /// A, in `ird`: the connection is peer-to-peer.
    pub const PEER_TO_PEER: u16 = 0x8000;
    /// B, in `ird`: the initiator may signal that it is ready to receive with a zero-length Send.
    pub const READY_BY_SEND: u16 = 0x4000;
    /// C, in `ord`: likewise with a zero-length RDMA Write.
    pub const READY_BY_WRITE: u16 = 0x8000;
    /// D, in `ord`: likewise with a zero-length RDMA Read.
    pub const READY_BY_READ: u16 = 0x4000;

    /// The inbound depth.
    pub fn inbound(&self) -> u16 {
        self.ird.get() & Self::DEPTH_MASK
    }

    /// The outbound depth.
    pub fn outbound(&self) -> u16 {
        self.ord.get() & Self::DEPTH_MASK
    }
}

layout! {
    /// A marker in the stream (RFC 5044 section 4.2).
    Marker, 4, {
        /// Zero.
        reserved: U16,
        /// Bytes from the ULPDU length field of the FPDU to this marker.
        fpdu_pointer: U16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;
    use zerocopy::IntoBytes as _;

    /// What Linux's siw sent for rping, ib_iser and ib_srp.
    #[test]
    fn requests_of_siw() {
        let cases: [(&[u8], u16, u16, u16); 3] = [
            (&[0x10, 2, 0, 4, 0, 1, 0, 1], 4, 1, 1),
            (&[0x10, 2, 0, 8, 0, 0x80, 0, 1], 8, 0x80, 1),
            (&[0x10, 2, 0, 0x3c, 0, 4, 0, 0], 60, 4, 0),
        ];
        for (tail, length, ird, ord) in cases {
            let bytes = [b"MPA ID Req Frame", tail].concat();
            let frame: StartFrame = decoded(&bytes[..20]);
            assert_eq!((frame.key, frame.revision), (StartFrame::REQUEST, 2));
            assert_eq!(frame.private_data_length.get(), length);
            assert!(frame.has(StartFrame::ENHANCED));
            assert!(!frame.has(StartFrame::MARKERS) && !frame.has(StartFrame::CRC));
            assert!(!frame.has(StartFrame::REJECTED) && !frame.has(StartFrame::LONG_FPDUS));
            let depths: ReadDepths = decoded(&bytes[20..]);
            assert_eq!((depths.inbound(), depths.outbound()), (ird, ord));
            assert_eq!(depths.ird.get() | depths.ord.get(), ird | ord, "no control flags");
        }
    }

    #[test]
    fn a_reply_is_built_as_siw_takes_it() {
        let frame = StartFrame {
            key: StartFrame::REPLY,
            flags: StartFrame::ENHANCED | StartFrame::CRC,
            revision: 2,
            private_data_length: U16::new(4),
        };
        assert_eq!(frame.as_bytes(), b"MPA ID Rep Frame\x50\x02\x00\x04");
    }

    #[test]
    fn control_flags_share_words_with_depths() {
        let depths: ReadDepths = decoded(&[0xc0, 0x05, 0xff, 0xff]);
        assert_eq!((depths.inbound(), depths.outbound()), (5, ReadDepths::UNSPECIFIED));
        assert_ne!(depths.ird.get() & ReadDepths::PEER_TO_PEER, 0);
        assert_ne!(depths.ird.get() & ReadDepths::READY_BY_SEND, 0);
        assert_ne!(depths.ord.get() & ReadDepths::READY_BY_WRITE, 0);
        assert_ne!(depths.ord.get() & ReadDepths::READY_BY_READ, 0);
    }

    /// The marker in figure 6 of RFC 5044.
    #[test]
    fn a_marker_points_back() {
        let marker: Marker = decoded(&[0, 0, 0, 0x14]);
        assert_eq!((marker.reserved.get(), marker.fpdu_pointer.get()), (0, 0x14));
    }

    #[test]
    fn padding_fills_the_fpdu() {
        assert_eq!([14, 15, 16, 17, 18, 42].map(pad), [0, 3, 2, 1, 0, 0]);
    }

    /// siw filled a segment of 1448 bytes with a ULPDU of 1442.
    #[test]
    fn a_ulpdu_fits_into_its_segment() {
        assert_eq!(longest_ulpdu(1448, false), 1442);
        assert_eq!(longest_ulpdu(1460, true), 1460 - 6 - 12);
        assert_eq!(longest_ulpdu(1463, false), 1463 - 6 - 3);
        assert_eq!((longest_ulpdu(0, true), longest_ulpdu(1 << 20, false)), (128, 65_535));
    }
}
