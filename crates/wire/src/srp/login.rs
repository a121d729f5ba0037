//! Login (SRP r16a sections 6.2, 6.3, 6.4): the private data of the messages that set up a connection.

use crate::iwarp::{Layout, layout};
use crate::srp::{Opcode, RejectReason};
use zerocopy::byteorder::big_endian::{U16, U32, U64};

layout! {
    /// SRP_LOGIN_REQ (section 6.2).
    LoginRequest, 64, {
        /// [`Opcode::LOGIN_REQUEST`].
        opcode: Opcode,
        /// Zero.
        reserved1: [u8; 7],
        /// Returned in the answer.
        tag: U64,
        /// The longest information unit that the initiator wants to send.
        req_it_iu_len: U32,
        /// Zero.
        reserved2: [u8; 4],
        /// Required data buffer descriptor formats.
        req_buf_fmt: U16,
        /// Multi-channel action, solicited notification, immediate data.
        req_flags: u8,
        /// Zero.
        reserved3: u8,
        /// Where immediate data begins in an SRP_CMD (SRP-2).
        imm_data_offset: U16,
        /// Zero.
        reserved4: [u8; 2],
        /// Initiator port identifier.
        initiator_port_id: [u8; 16],
        /// Target port identifier.
        target_port_id: [u8; 16],
    }
}

layout! {
    /// SRP_LOGIN_REQ as RDMA/CM carries it: InfiniBand leaves room for 56 bytes only, so it has the same
    /// fields without the reserved ones.
    LoginRequestRdma, 56, {
        /// Returned in the answer.
        tag: U64,
        /// Required data buffer descriptor formats.
        req_buf_fmt: U16,
        /// Multi-channel action, solicited notification, immediate data.
        req_flags: u8,
        /// [`Opcode::LOGIN_REQUEST`].
        opcode: Opcode,
        /// The longest information unit that the initiator wants to send.
        req_it_iu_len: U32,
        /// Initiator port identifier.
        initiator_port_id: [u8; 16],
        /// Target port identifier.
        target_port_id: [u8; 16],
        /// Where immediate data begins in an SRP_CMD (SRP-2).
        imm_data_offset: U16,
        /// Zero.
        reserved: [u8; 6],
    }
}

layout! {
    /// SRP_LOGIN_RSP (section 6.3).
    LoginResponse, 52, {
        /// [`Opcode::LOGIN_RESPONSE`].
        opcode: Opcode,
        /// Zero.
        reserved1: [u8; 3],
        /// How many requests the initiator may send.
        req_lim_delta: U32,
        /// That of the request.
        tag: U64,
        /// The longest information unit that the target accepts.
        max_it_iu_len: U32,
        /// The longest information unit that the target sends.
        max_ti_iu_len: U32,
        /// Supported data buffer descriptor formats.
        buf_fmt: U16,
        /// What happened to other channels; immediate data.
        rsp_flags: u8,
        /// Zero.
        reserved2: [u8; 25],
    }
}

layout! {
    /// SRP_LOGIN_REJ (section 6.4).
    LoginReject, 32, {
        /// [`Opcode::LOGIN_REJECT`].
        opcode: Opcode,
        /// Zero.
        reserved1: [u8; 3],
        /// The reason.
        reason: RejectReason,
        /// That of the request.
        tag: U64,
        /// Zero.
        reserved2: [u8; 8],
        /// Supported data buffer descriptor formats.
        buf_fmt: U16,
        /// Zero.
        reserved3: [u8; 6],
    }
}

/// Data buffer descriptor formats: direct (section 6.2).
pub const FORMAT_DIRECT: u16 = 0x0002;
/// Data buffer descriptor formats: indirect.
pub const FORMAT_INDIRECT: u16 = 0x0004;

impl LoginRequest {
    /// The bits of the multi-channel action in `req_flags`: 0 terminates the nexus's other channels.
    pub const CHANNEL_MASK: u8 = 0x03;
    /// Multi-channel action: other channels continue.
    pub const CHANNEL_MULTIPLE: u8 = 0x01;
    /// Solicited notification of target logout (LOSOLNT).
    pub const LOGOUT_SOLICITED: u8 = 0x10;
    /// Solicited notification of credit requests (CRSOLNT).
    pub const CREDIT_SOLICITED: u8 = 0x20;
    /// Solicited notification of asynchronous events (AESOLNT).
    pub const EVENT_SOLICITED: u8 = 0x40;
    /// Immediate data is requested (SRP-2).
    pub const IMMEDIATE: u8 = 0x80;

    /// Parses private data of either form, which differ only in length; anything after the form is padding.
    /// `None`: too short. The caller must check the opcode.
    pub fn from_private_data(bytes: &[u8]) -> Option<LoginRequest> {
        if let Some(whole) = LoginRequest::view(bytes) {
            return Some(*whole);
        }
        LoginRequestRdma::view(bytes).map(|packed| LoginRequest {
            opcode: packed.opcode,
            tag: packed.tag,
            req_it_iu_len: packed.req_it_iu_len,
            req_buf_fmt: packed.req_buf_fmt,
            req_flags: packed.req_flags,
            imm_data_offset: packed.imm_data_offset,
            initiator_port_id: packed.initiator_port_id,
            target_port_id: packed.target_port_id,
            ..LoginRequest::default()
        })
    }
}

impl LoginResponse {
    /// The bits of `rsp_flags` that report what happened to other channels of the nexus: 0, there were none.
    pub const CHANNEL_MASK: u8 = 0x03;
    /// Other channels were terminated.
    pub const CHANNELS_TERMINATED: u8 = 0x01;
    /// Other channels were maintained.
    pub const CHANNELS_MAINTAINED: u8 = 0x02;
    /// Immediate data is supported (SRP-2).
    pub const IMMEDIATE: u8 = 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;
    use zerocopy::IntoBytes;

    /// What Linux's ib_srp sends over siw, with up to 8192 bytes of immediate data at offset 68.
    #[rustfmt::skip]
    const IB_SRP: [u8; 56] = [
        0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x06, 0x80, 0x00, 0x00, 0x00, 0x20, 0x44,
        0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55,
        0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2,
        0x00, 0x44, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn the_login_of_linux() {
        let packed: LoginRequestRdma = decoded(&IB_SRP);
        assert_eq!((packed.opcode, packed.req_it_iu_len.get()), (Opcode::LOGIN_REQUEST, 68 + 8192));
        let login = LoginRequest::from_private_data(&IB_SRP).unwrap();
        assert_eq!(login.req_buf_fmt.get(), FORMAT_DIRECT | FORMAT_INDIRECT);
        assert_eq!((login.req_flags, login.imm_data_offset.get()), (LoginRequest::IMMEDIATE, 0x44));
        assert_eq!(
            (login.initiator_port_id[8], login.target_port_id[7], login.target_port_id[15]),
            (2, 1, 2)
        );
        assert_eq!(LoginRequest::from_private_data(&IB_SRP[..55]), None);
        let whole: LoginRequest = decoded(login.as_bytes());
        assert_eq!(LoginRequest::from_private_data(whole.as_bytes()), Some(login));
        assert_eq!(whole.as_bytes()[16..20], [0, 0, 0x20, 0x44]);
        assert_eq!(whole.as_bytes()[24..30], [0, 6, 0x80, 0, 0, 0x44]);
    }

    #[test]
    fn the_answers() {
        let mut bytes = [0; 52];
        bytes[0] = 0xc0;
        bytes[4..8].copy_from_slice(&[0, 0, 0, 64]);
        bytes[15] = 9;
        bytes[16..27].copy_from_slice(&[0, 0, 0x20, 0x44, 0, 0, 0, 104, 0, 6, 0x82]);
        let response: LoginResponse = decoded(&bytes);
        assert_eq!((response.opcode, response.req_lim_delta.get()), (Opcode::LOGIN_RESPONSE, 64));
        assert_eq!((response.max_it_iu_len.get(), response.max_ti_iu_len.get()), (8260, 104));
        assert_eq!(response.rsp_flags & LoginResponse::CHANNEL_MASK, LoginResponse::CHANNELS_MAINTAINED);
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&[0xc2, 0, 0, 0, 0, 1, 0, 6]);
        bytes[25] = 6;
        let reject: LoginReject = decoded(&bytes);
        assert_eq!((reject.opcode, reject.reason), (Opcode::LOGIN_REJECT, RejectReason::CHANNEL_LIMIT));
        assert_eq!(reject.buf_fmt.get(), 6);
    }
}
