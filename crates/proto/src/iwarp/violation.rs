//! Ways in which a peer violates the standards. Each ends the stream with a Terminate message that identifies
//! it.

use std::fmt;
use wire::iwarp::TerminateControl;

/// A violation of RFC 5040, 5041, 5044 or 6581. [`Violation::code`] is the content of the Terminate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The CRC of an FPDU does not match (RFC 5044 section 8).
    Crc,
    /// An FPDU too short for the headers in it (RFC 5044 section 8).
    FpduLength,
    /// The responder requests more reads at once than this end can serve (RFC 6581 section 9.1).
    InsufficientIrd,
    /// No common way of signalling readiness, or another first message (RFC 6581 section 9.2).
    ReadyToReceive,
    /// A tagged segment for a buffer that was never advertised, or no longer is (RFC 5041 section 7.1).
    InvalidStag,
    /// An RDMA Write into a buffer that was not advertised for writing (RFC 5041 section 7.1).
    NotForWriting,
    /// A tagged segment outside its buffer (RFC 5041 section 7.1).
    Bounds,
    /// A tagged segment whose offset wraps (RFC 5041 section 7.1).
    OffsetWrap,
    /// A tagged segment of an unknown DDP version (RFC 5041 section 7.2).
    TaggedVersion,
    /// An untagged segment for a queue that does not exist (RFC 5041 section 7.1).
    InvalidQueue,
    /// An untagged segment without a buffer for it: no receive was posted, or IRD is exceeded (RFC 5041 section 7.1).
    NoBuffer,
    /// A message sequence number that is not the next (RFC 5041 section 7.1).
    InvalidMsn,
    /// A message offset that does not continue the last segment (RFC 5041 section 7.1).
    InvalidOffset,
    /// A message longer than its buffer (RFC 5041 section 7.1).
    MessageTooLong,
    /// An untagged segment of an unknown DDP version (RFC 5041 section 7.2).
    UntaggedVersion,
    /// An unknown RDMAP version (RFC 5040 section 7.2).
    RdmapVersion,
    /// An opcode that is unknown, or invalid for this queue, buffer or moment (RFC 5040 section 7.2).
    UnexpectedOpcode,
    /// A Read Request or Terminate that is not one whole header (RFC 5040 section 4.2).
    MalformedHeader,
    /// A Read Request from a buffer that was never advertised, or no longer is (RFC 5040 section 7.2).
    InvalidSource,
    /// A Read Request beyond the bounds of the buffer (RFC 5040 section 7.2).
    SourceBounds,
    /// A Read Request from a buffer that was not advertised for reading (RFC 5040 section 4.8).
    NotForReading,
    /// A Read Request whose offset wraps (RFC 5040 section 7.2).
    SourceWrap,
    /// A Send that invalidates what was not advertised (RFC 5040 section 5.3).
    CannotInvalidate,
}

/// The content of a Terminate (RFC 5040 section 4.8, figure 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// 0 RDMA, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type within the layer.
    pub error_type: u8,
    /// Error code within the type.
    pub code: u8,
}

impl Code {
    /// Which headers of the offending message are included (RFC 5040 section 4.8, figure 10).
    pub(super) fn header_control(self) -> u8 {
        let ddp = TerminateControl::LENGTH | TerminateControl::DDP_HEADER;
        match (self.layer, self.error_type) {
            (0, 1) => ddp | TerminateControl::RDMAP_HEADER,
            (0, 2) | (1, 1 | 2) => ddp,
            _ => 0,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match Violation::ALL.iter().find(|violation| violation.code() == *self) {
            Some(violation) => violation.row().1,
            None => "no further details",
        };
        let layer = match self.layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        write!(f, "{name} ({layer}, error type {}, code {})", self.error_type, self.code)
    }
}

impl Violation {
    /// All of them; where two share a code, the more common one comes first.
    pub const ALL: [Violation; 23] = [
        Violation::Crc,
        Violation::FpduLength,
        Violation::InsufficientIrd,
        Violation::ReadyToReceive,
        Violation::InvalidStag,
        Violation::NotForWriting,
        Violation::Bounds,
        Violation::OffsetWrap,
        Violation::TaggedVersion,
        Violation::InvalidQueue,
        Violation::NoBuffer,
        Violation::InvalidMsn,
        Violation::InvalidOffset,
        Violation::MessageTooLong,
        Violation::UntaggedVersion,
        Violation::RdmapVersion,
        Violation::UnexpectedOpcode,
        Violation::MalformedHeader,
        Violation::InvalidSource,
        Violation::SourceBounds,
        Violation::NotForReading,
        Violation::SourceWrap,
        Violation::CannotInvalidate,
    ];

    /// The content of the Terminate.
    pub fn code(self) -> Code {
        let ((layer, error_type, code), ..) = self.row();
        Code { layer, error_type, code }
    }

    /// Layer, error type and code; the description; the section of the standard.
    fn row(self) -> ((u8, u8, u8), &'static str, &'static str) {
        match self {
            Violation::Crc => ((2, 0, 2), "CRC mismatch", "RFC 5044 section 8"),
            Violation::FpduLength => ((2, 0, 3), "FPDU shorter than its headers", "RFC 5044 section 8"),
            Violation::InsufficientIrd => ((2, 0, 6), "insufficient IRD", "RFC 6581 section 9.1"),
            Violation::ReadyToReceive => {
                ((2, 0, 7), "no matching ready-to-receive message", "RFC 6581 section 9.2")
            }
            Violation::InvalidStag => ((1, 1, 0), "invalid STag", "RFC 5041 section 7.1"),
            Violation::NotForWriting => {
                ((1, 1, 0), "write into a buffer that is not for writing", "RFC 5041 section 7.1")
            }
            Violation::Bounds => ((1, 1, 1), "base or bounds violation", "RFC 5041 section 7.1"),
            Violation::OffsetWrap => ((1, 1, 3), "tagged offset wraps", "RFC 5041 section 7.1"),
            Violation::TaggedVersion => ((1, 1, 4), "unknown DDP version", "RFC 5041 section 7.2"),
            Violation::InvalidQueue => ((1, 2, 1), "unknown queue", "RFC 5041 section 7.1"),
            Violation::NoBuffer => ((1, 2, 2), "no buffer for a message", "RFC 5041 section 7.1"),
            Violation::InvalidMsn => {
                ((1, 2, 3), "message sequence number out of order", "RFC 5041 section 7.1")
            }
            Violation::InvalidOffset => ((1, 2, 4), "message offset out of order", "RFC 5041 section 7.1"),
            Violation::MessageTooLong => {
                ((1, 2, 5), "message longer than its buffer", "RFC 5041 section 7.1")
            }
            Violation::UntaggedVersion => ((1, 2, 6), "unknown DDP version", "RFC 5041 section 7.2"),
            Violation::RdmapVersion => ((0, 2, 5), "unknown RDMAP version", "RFC 5040 section 7.2"),
            Violation::UnexpectedOpcode => ((0, 2, 6), "unexpected opcode", "RFC 5040 section 7.2"),
            Violation::MalformedHeader => ((0, 2, 7), "malformed RDMAP header", "RFC 5040 section 4.2"),
            Violation::InvalidSource => ((0, 1, 0), "read from an invalid STag", "RFC 5040 section 7.2"),
            Violation::SourceBounds => ((0, 1, 1), "read out of bounds", "RFC 5040 section 7.2"),
            Violation::NotForReading => {
                ((0, 1, 2), "read from a buffer that is not for reading", "RFC 5040 section 4.8")
            }
            Violation::SourceWrap => ((0, 1, 4), "tagged offset of a read wraps", "RFC 5040 section 7.2"),
            Violation::CannotInvalidate => ((0, 1, 9), "STag cannot be invalidated", "RFC 5040 section 5.3"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, section) = self.row();
        write!(f, "{name} ({section})")
    }
}

impl std::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_words() {
        assert_eq!(Violation::NotForWriting.code().to_string(), "invalid STag (DDP, error type 1, code 0)");
        let unknown = Code { layer: 0, error_type: 2, code: 0xff };
        assert_eq!(unknown.to_string(), "no further details (RDMAP, error type 2, code 255)");
    }

    #[test]
    fn only_what_the_standard_says_comes_along() {
        assert_eq!(Violation::Crc.code().header_control(), 0);
        assert_eq!(Violation::Bounds.code().header_control(), 0xc0);
        assert_eq!(Violation::UnexpectedOpcode.code().header_control(), 0xc0);
        assert_eq!(Violation::SourceBounds.code().header_control(), 0xe0);
    }
}
