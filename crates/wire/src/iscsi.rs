//! iSCSI PDUs (RFC 7143 section 11, RFC 7144).
//!
//! Every PDU begins with a basic header segment of 48 bytes; each PDU has its own struct, big-endian in
//! memory as on the wire. Requests come from the initiator, responses from the target. Codes are newtypes
//! over the raw value: what a peer sent is kept as is, for the machine to validate.

pub mod ahs;
pub mod code;
pub mod request;
pub mod response;

pub use ahs::{Ahs, AhsError};
pub use code::{
    AsyncEvent, FunctionResponse, LoginStatus, LogoutOutcome, LogoutReason, Opcode, RejectReason, SnackType,
    Stage, TaskFunction,
};
pub use request::{
    DataOut, LoginRequest, LogoutRequest, NopOut, ScsiCommand, Snack, TaskManagementRequest, TextRequest,
};
pub use response::{
    AsyncMessage, DataIn, LoginResponse, LogoutResponse, NopIn, ReadyToTransfer, Reject, ScsiResponse,
    TaskManagementResponse, TextResponse,
};

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the basic header segment in bytes.
pub const BHS_BYTES: usize = 48;

/// Maximum total length of the additional header segments: TotalAHSLength is one byte that counts words.
pub const AHS_BYTES_MAX: usize = 255 * 4;

/// Length of a digest in bytes.
pub const DIGEST_BYTES: usize = 4;

/// The reserved task tag: no task (sections 11.2.1.8, 11.7.4).
pub const TAG_NONE: u32 = 0xffff_ffff;

/// Byte 1, bit 0: the last PDU of a sequence (F), or always one.
pub const FINAL: u8 = 0x80;

/// Byte 1, bit 1 of text and login: the text continues in the next PDU (C).
pub const CONTINUE: u8 = 0x40;

/// Bytes that pad `len` to a multiple of four (section 11.1).
pub fn pad(len: u32) -> u32 {
    len.wrapping_neg() & 3
}

/// A 24-bit length (DataSegmentLength).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct U24([u8; 3]);

impl U24 {
    /// The largest value.
    pub const MAX: u32 = 0x00ff_ffff;

    /// Takes the low 24 bits; callers keep lengths within [`U24::MAX`].
    pub fn new(value: u32) -> U24 {
        let [_, a, b, c] = value.to_be_bytes();
        U24([a, b, c])
    }

    /// The value.
    pub fn get(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

/// A PDU's basic header segment as a Rust type of exactly [`BHS_BYTES`].
pub trait Pdu: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy {
    /// The opcode of this PDU.
    const OPCODE: Opcode;

    /// Views the first 48 bytes; `None` when there are fewer. The caller must check the opcode.
    fn view(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(pdu, _)| pdu)
    }
}

/// Defines a PDU: its struct of 48 bytes, its opcode, its defaults.
macro_rules! pdu {
    ($(#[$doc:meta])* $name:ident, $opcode:expr, { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == crate::iscsi::BHS_BYTES);

        impl crate::iscsi::Pdu for $name {
            const OPCODE: crate::iscsi::Opcode = $opcode;
        }

        impl Default for $name {
            /// All zero except the opcode.
            fn default() -> Self {
                let mut pdu: Self = zerocopy::FromZeros::new_zeroed();
                pdu.opcode = $opcode.0;
                pdu
            }
        }
    };
}
pub(crate) use pdu;

/// What all basic header segments have in common (section 11.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BasicHeader {
    /// Opcode with the I bit.
    pub opcode: u8,
    /// The F bit and opcode-specific flags.
    pub flags: u8,
    /// Opcode-specific.
    pub specific: [u8; 2],
    /// Length of all additional header segments in words of four bytes, padding included.
    pub total_ahs_length: u8,
    /// Length of the data segment in bytes, without padding.
    pub data_segment_length: U24,
    /// LUN, or opcode-specific.
    pub lun: U64,
    /// Initiator task tag.
    pub initiator_task_tag: U32,
    /// Opcode-specific.
    pub rest: [u8; 28],
}

const _: () = assert!(size_of::<BasicHeader>() == BHS_BYTES);

impl BasicHeader {
    /// Views the first 48 bytes; `None` when there are fewer.
    pub fn view(bytes: &[u8]) -> Option<&BasicHeader> {
        BasicHeader::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The opcode without the I bit and the reserved bit above it.
    pub fn opcode(&self) -> Opcode {
        Opcode(self.opcode & Opcode::MASK)
    }

    /// Whether the PDU is marked for immediate delivery.
    pub fn immediate(&self) -> bool {
        self.opcode & Opcode::IMMEDIATE != 0
    }

    /// Length of all additional header segments in bytes.
    pub fn ahs_bytes(&self) -> u32 {
        u32::from(self.total_ahs_length).saturating_mul(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_fills_words() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad), [0, 3, 2, 1, 0, 3]);
        assert_eq!(pad(u32::MAX), 1);
    }

    #[test]
    fn a_24_bit_length_is_big_endian() {
        assert_eq!(U24::new(0x0001_0203).as_bytes(), [1, 2, 3]);
        assert_eq!(U24::new(U24::MAX).get(), U24::MAX);
    }

    #[test]
    fn a_basic_header_needs_48_bytes() {
        let mut bytes = [0u8; BHS_BYTES];
        bytes[0] = 0x41;
        bytes[4] = 2;
        bytes[7] = 9;
        for len in 0..BHS_BYTES {
            assert_eq!(BasicHeader::view(&bytes[..len]), None);
        }
        let header = BasicHeader::view(&bytes).unwrap();
        assert_eq!(header.opcode(), Opcode::SCSI_COMMAND);
        assert!(header.immediate());
        assert_eq!((header.ahs_bytes(), header.data_segment_length.get()), (8, 9));
    }
}
