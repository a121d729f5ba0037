//! RDMAP messages (RFC 5040 section 4): what they add to the DDP headers.

use crate::iwarp::layout;
use zerocopy::byteorder::big_endian::{U32, U64};

/// RDMA message opcodes (section 4.1, figure 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opcode(pub u8);

impl Opcode {
    /// The opcode's bits in the RDMAP Control field.
    pub const MASK: u8 = 0x0f;
    /// RDMA Write.
    pub const WRITE: Opcode = Opcode(0);
    /// RDMA Read Request.
    pub const READ_REQUEST: Opcode = Opcode(1);
    /// RDMA Read Response.
    pub const READ_RESPONSE: Opcode = Opcode(2);
    /// Send.
    pub const SEND: Opcode = Opcode(3);
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: Opcode = Opcode(4);
    /// Send with Solicited Event.
    pub const SEND_SOLICITED: Opcode = Opcode(5);
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SOLICITED_INVALIDATE: Opcode = Opcode(6);
    /// Terminate.
    pub const TERMINATE: Opcode = Opcode(7);

    /// The opcode of a Send with these properties.
    pub fn send(solicited: bool, invalidates: bool) -> Opcode {
        match (solicited, invalidates) {
            (false, false) => Opcode::SEND,
            (false, true) => Opcode::SEND_INVALIDATE,
            (true, false) => Opcode::SEND_SOLICITED,
            (true, true) => Opcode::SEND_SOLICITED_INVALIDATE,
        }
    }

    /// Whether it is one of the Sends.
    pub fn is_send(self) -> bool {
        (Opcode::SEND.0..=Opcode::SEND_SOLICITED_INVALIDATE.0).contains(&self.0)
    }

    /// Whether a Send requests an event.
    pub fn is_solicited(self) -> bool {
        matches!(self, Opcode::SEND_SOLICITED | Opcode::SEND_SOLICITED_INVALIDATE)
    }

    /// Whether a Send names an STag to invalidate.
    pub fn invalidates(self) -> bool {
        matches!(self, Opcode::SEND_INVALIDATE | Opcode::SEND_SOLICITED_INVALIDATE)
    }
}

layout! {
    /// RDMA Read Request Header (section 4.4), the payload of the message.
    ReadRequest, 28, {
        /// Identifies the buffer that the data goes to.
        sink_stag: U32,
        /// Offset in that buffer.
        sink_offset: U64,
        /// How many bytes to read.
        size: U32,
        /// Identifies the buffer that the data comes from.
        source_stag: U32,
        /// Offset in that buffer.
        source_offset: U64,
    }
}

layout! {
    /// The beginning of the Terminate Header (section 4.8). The length of the DDP segment, its header, and an
    /// RDMA Read Request Header follow as `header_control` indicates.
    TerminateControl, 4, {
        /// Layer and error type.
        layer_and_type: u8,
        /// Error code.
        code: u8,
        /// The M, D and R bits.
        header_control: u8,
        /// Zero.
        reserved: u8,
    }
}

impl TerminateControl {
    /// M: the length of the DDP segment is present.
    pub const LENGTH: u8 = 0x80;
    /// D: the DDP header is present.
    pub const DDP_HEADER: u8 = 0x40;
    /// R: the RDMA Read Request Header is present.
    pub const RDMAP_HEADER: u8 = 0x20;

    /// Packs layer (0 RDMA, 1 DDP, 2 LLP), error type and error code.
    pub fn new(layer: u8, error_type: u8, code: u8, header_control: u8) -> TerminateControl {
        let layer_and_type = (layer & 0x0f).wrapping_shl(4) | (error_type & 0x0f);
        TerminateControl { layer_and_type, code, header_control, reserved: 0 }
    }

    /// Layer that detected the error: 0 RDMA, 1 DDP, 2 LLP.
    pub fn layer(&self) -> u8 {
        self.layer_and_type.wrapping_shr(4)
    }

    /// Type of the error.
    pub fn error_type(&self) -> u8 {
        self.layer_and_type & 0x0f
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;

    #[test]
    fn read_request() {
        let bytes = [
            0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd, 0xff, 0xff, 0x88, 0x88,
            0, 0, 0, 3,
        ];
        let request: ReadRequest = decoded(&bytes);
        assert_eq!((request.sink_stag.get(), request.sink_offset.get(), request.size.get()), (1, 2, 65_536));
        assert_eq!(request.source_stag.get(), 0xaabb_ccdd);
        assert_eq!(request.source_offset.get(), 0xffff_8888_0000_0003);
    }

    #[test]
    fn terminate_control() {
        let control: TerminateControl = decoded(&[0x12, 0x05, 0xc0, 0]);
        assert_eq!((control.layer(), control.error_type(), control.code), (1, 2, 5));
        let headers = TerminateControl::LENGTH | TerminateControl::DDP_HEADER;
        assert_eq!(control, TerminateControl::new(1, 2, 5, headers));
    }

    #[test]
    fn sends_have_four_opcodes() {
        for number in 0..16 {
            let opcode = Opcode(number);
            assert_eq!(opcode.is_send(), (3..7).contains(&number));
            if opcode.is_send() {
                assert_eq!(Opcode::send(opcode.is_solicited(), opcode.invalidates()), opcode);
            }
        }
    }
}
