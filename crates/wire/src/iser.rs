//! iSER messages (RFC 7145 section 9), and the private data with which its connections are set up.
//!
//! Every message begins with a header of 28 bytes; nobody uses the 12-byte form of RFC 5046, without base
//! offsets.

use crate::iwarp::layout;
use zerocopy::byteorder::big_endian::{U32, U64};

pub use crate::iwarp::Layout;

layout! {
    /// The header of every message (sections 9.1 and 9.2). Fields that are not valid are zero, and ignored.
    Header, 28, {
        /// Opcode in the high four bits, then flags specific to that opcode.
        flags: u8,
        /// Used by Hello and HelloReply; otherwise reserved.
        reserved: [u8; 3],
        /// Write STag: of the buffer holding the data of a write.
        write_stag: U32,
        /// Write Base Offset: where in that buffer the data begins.
        write_offset: U64,
        /// Read STag: of the buffer for the data of a read.
        read_stag: U32,
        /// Read Base Offset: where in that buffer the data begins.
        read_offset: U64,
    }
}

/// The message type: the high four bits of its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opcode(pub u8);

impl Opcode {
    /// An iSCSI control-type PDU follows.
    pub const CONTROL: Opcode = Opcode(0x10);
    /// Hello (section 9.3).
    pub const HELLO: Opcode = Opcode(0x20);
    /// HelloReply (section 9.4).
    pub const HELLO_REPLY: Opcode = Opcode(0x30);

    const MASK: u8 = 0xf0;
}

impl Header {
    /// WSV: the write STag and its offset are valid.
    pub const WRITE_VALID: u8 = 0x08;
    /// RSV: the read STag and its offset are valid.
    pub const READ_VALID: u8 = 0x04;

    /// The header of a control-type PDU with what it advertises, STag and offset, for writing and for
    /// reading.
    pub fn control(write: Option<(u32, u64)>, read: Option<(u32, u64)>) -> Header {
        let flag = |valid: bool, flag: u8| if valid { flag } else { 0 };
        let (write_stag, write_offset) = write.unwrap_or_default();
        let (read_stag, read_offset) = read.unwrap_or_default();
        Header {
            flags: Opcode::CONTROL.0
                | flag(write.is_some(), Header::WRITE_VALID)
                | flag(read.is_some(), Header::READ_VALID),
            reserved: [0; 3],
            write_stag: U32::new(write_stag),
            write_offset: U64::new(write_offset),
            read_stag: U32::new(read_stag),
            read_offset: U64::new(read_offset),
        }
    }

    /// The message type.
    pub fn opcode(&self) -> Opcode {
        Opcode(self.flags & Opcode::MASK)
    }

    /// STag and offset advertised for writing.
    pub fn write(&self) -> Option<(u32, u64)> {
        (self.flags & Header::WRITE_VALID != 0).then(|| (self.write_stag.get(), self.write_offset.get()))
    }

    /// STag and offset advertised for reading.
    pub fn read(&self) -> Option<(u32, u64)> {
        (self.flags & Header::READ_VALID != 0).then(|| (self.read_stag.get(), self.read_offset.get()))
    }
}

layout! {
    /// The private data of a connection request and its reply, as defined in Annex A12 of the InfiniBand
    /// specification and sent by Linux over every provider.
    PrivateData, 4, {
        /// What the sender cannot do.
        flags: u8,
        /// Reserved.
        reserved: [u8; 3],
    }
}

impl PrivateData {
    /// Zero-based virtual addresses are not supported: base offsets are those of the header.
    pub const NO_ZERO_BASED: u8 = 0x80;
    /// Send with invalidate is not supported.
    pub const NO_INVALIDATE: u8 = 0x40;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;

    #[test]
    fn a_write_advertises_its_buffer() {
        let bytes = [
            0x18, 0, 0, 0, 0x12, 0x34, 0x56, 0x01, 0, 0, 0x88, 0x80, 1, 2, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0,
        ];
        let header: Header = decoded(&bytes);
        assert_eq!(header.opcode(), Opcode::CONTROL);
        assert_eq!(header.write(), Some((0x1234_5601, 0x8880_0102_3000)));
        assert_eq!(header.read(), None);
        assert_eq!(header, Header::control(header.write(), None));
    }

    #[test]
    fn a_command_may_advertise_both_ways_or_none() {
        let both = Header::control(Some((1, 2)), Some((3, 4)));
        assert_eq!((both.flags, both.write(), both.read()), (0x1c, Some((1, 2)), Some((3, 4))));
        let read = Header::control(None, Some((5, u64::MAX)));
        assert_eq!((read.flags, read.write(), read.read()), (0x14, None, Some((5, u64::MAX))));
        let none: Header = decoded(&[&[0x10][..], &[0; 27]].concat());
        assert_eq!((none, none.write(), none.read()), (Header::control(None, None), None, None));
    }

    #[test]
    fn what_is_not_valid_is_ignored() {
        let header: Header = decoded(&[&[0x10][..], &[0xff; 27]].concat());
        assert_eq!((header.write(), header.read()), (None, None));
    }

    #[test]
    fn hello_is_recognized() {
        // MaxVer and MinVer 10, iSER-IRD 4.
        let hello: Header = decoded(&[&[0x20, 0xaa, 0, 4][..], &[0; 24]].concat());
        assert_eq!(hello.opcode(), Opcode::HELLO);
        let reply: Header = decoded(&[&[0x31, 0xaa, 0, 4][..], &[0; 24]].concat());
        assert_eq!(reply.opcode(), Opcode::HELLO_REPLY);
    }

    #[test]
    fn private_data_reports_what_is_missing() {
        let linux: PrivateData = decoded(&[0x80, 0, 0, 0]);
        assert_eq!(linux.flags, PrivateData::NO_ZERO_BASED);
        let neither: PrivateData = decoded(&[0xc0, 0, 0, 0]);
        assert_eq!(neither.flags, PrivateData::NO_ZERO_BASED | PrivateData::NO_INVALIDATE);
    }
}
