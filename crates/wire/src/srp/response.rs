//! SRP_RSP (SRP r16a section 6.9): the answer to a command or a task management request.

use crate::iwarp::{Layout, layout};
use crate::srp::{Opcode, ResponseCode};
use zerocopy::byteorder::big_endian::{U32, U64};

layout! {
    /// SRP_RSP; response data and then sense data follow.
    Response, 36, {
        /// [`Opcode::RESPONSE`].
        opcode: Opcode,
        /// [`crate::srp::SOLICITED`].
        sol_not: u8,
        /// Zero.
        reserved1: [u8; 2],
        /// How many more requests the initiator may send.
        req_lim_delta: U32,
        /// That of the request.
        tag: U64,
        /// Zero.
        reserved2: [u8; 2],
        /// What is valid, and the direction of residuals.
        flags: u8,
        /// SCSI status; zero when there is response data.
        status: u8,
        /// Residual count of the data-out.
        data_out_residual: U32,
        /// Residual count of the data-in.
        data_in_residual: U32,
        /// Length of the sense data.
        sense_data_len: U32,
        /// Length of the response data.
        resp_data_len: U32,
    }
}

impl Response {
    /// There is response data (RSPVALID).
    pub const RESPONSE_VALID: u8 = 0x01;
    /// There is sense data (SNSVALID).
    pub const SENSE_VALID: u8 = 0x02;
    /// Data-out overflow (DOOVER).
    pub const OUT_OVERFLOW: u8 = 0x04;
    /// Data-out underflow (DOUNDER).
    pub const OUT_UNDERFLOW: u8 = 0x08;
    /// Data-in overflow (DIOVER).
    pub const IN_OVERFLOW: u8 = 0x10;
    /// Data-in underflow (DIUNDER).
    pub const IN_UNDERFLOW: u8 = 0x20;
    /// Length of response data: three reserved bytes and the code.
    pub const RESPONSE_DATA_BYTES: u32 = 4;

    /// Response data and sense data of an information unit; `None` when it is shorter than its lengths say.
    pub fn split(iu: &[u8]) -> Option<(&Response, &[u8], &[u8])> {
        let response = Response::view(iu)?;
        let rest = iu.get(Response::BYTES..)?;
        let valid = |flag: u8, len: U32| {
            if response.flags & flag == 0 { Some(0) } else { usize::try_from(len.get()).ok() }
        };
        let data_len = valid(Response::RESPONSE_VALID, response.resp_data_len)?;
        let sense_len = valid(Response::SENSE_VALID, response.sense_data_len)?;
        let (data, rest) = rest.split_at_checked(data_len)?;
        Some((response, data, rest.get(..sense_len)?))
    }

    /// The code in response data.
    pub fn code(data: &[u8]) -> Option<ResponseCode> {
        data.get(3).map(|code| ResponseCode(*code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;

    fn check_condition() -> Vec<u8> {
        let mut bytes = vec![0xc1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0x2a, 2];
        bytes.extend([0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 0, 18, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn a_response_with_sense_and_residuals() {
        let mut bytes = check_condition();
        let response: Response = decoded(&bytes);
        assert_eq!((response.opcode, response.status, response.tag.get()), (Opcode::RESPONSE, 2, 5));
        let flags = Response::SENSE_VALID | Response::OUT_UNDERFLOW | Response::IN_UNDERFLOW;
        assert_eq!(response.flags, flags);
        assert_eq!((response.data_out_residual.get(), response.data_in_residual.get()), (512, 1024));
        bytes.extend([0x70; 18]);
        for len in 0..bytes.len() {
            assert!(Response::split(&bytes[..len]).is_none());
        }
        let (_, data, sense) = Response::split(&bytes).unwrap();
        assert!(data.is_empty() && sense == [0x70; 18]);
    }

    #[test]
    fn a_response_with_a_code_and_sense() {
        let mut bytes = check_condition();
        bytes[18] |= Response::RESPONSE_VALID;
        bytes[35] = 4;
        bytes.extend([0, 0, 0, 5]);
        bytes.extend([0x70; 18]);
        let (_, data, sense) = Response::split(&bytes).unwrap();
        assert_eq!((Response::code(data), sense.len()), (Some(ResponseCode::FAILED), 18));
        bytes[32..36].copy_from_slice(&[0xff; 4]);
        assert!(Response::split(&bytes).is_none());
        assert_eq!(Response::code(&[0; 3]), None);
    }
}
