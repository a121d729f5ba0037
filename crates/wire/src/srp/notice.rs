//! Logout, credit requests and asynchronous events (SRP r16a sections 6.5, 6.6, 6.10 to 6.13).

use crate::iwarp::layout;
use crate::srp::{LogoutReason, Opcode};
use zerocopy::byteorder::big_endian::{U32, U64};

layout! {
    /// SRP_I_LOGOUT (section 6.5).
    InitiatorLogout, 16, {
        /// [`Opcode::INITIATOR_LOGOUT`].
        opcode: Opcode,
        /// Zero.
        reserved: [u8; 7],
        /// The initiator's tag.
        tag: U64,
    }
}

layout! {
    /// SRP_T_LOGOUT (section 6.6).
    TargetLogout, 16, {
        /// [`Opcode::TARGET_LOGOUT`].
        opcode: Opcode,
        /// [`crate::srp::SOLICITED`].
        sol_not: u8,
        /// Zero.
        reserved: [u8; 2],
        /// The reason.
        reason: LogoutReason,
        /// The target's tag.
        tag: U64,
    }
}

layout! {
    /// SRP_CRED_REQ (section 6.10).
    CreditRequest, 16, {
        /// [`Opcode::CREDIT_REQUEST`].
        opcode: Opcode,
        /// [`crate::srp::SOLICITED`].
        sol_not: u8,
        /// Zero.
        reserved: [u8; 2],
        /// How many more requests the initiator may send.
        req_lim_delta: U32,
        /// The target's tag.
        tag: U64,
    }
}

layout! {
    /// SRP_CRED_RSP (section 6.11).
    CreditResponse, 16, {
        /// [`Opcode::CREDIT_RESPONSE`].
        opcode: Opcode,
        /// Zero.
        reserved: [u8; 7],
        /// That of the request.
        tag: U64,
    }
}

layout! {
    /// SRP_AER_REQ (section 6.12); sense data follows.
    AsyncEventRequest, 36, {
        /// [`Opcode::ASYNC_EVENT_REQUEST`].
        opcode: Opcode,
        /// [`crate::srp::SOLICITED`].
        sol_not: u8,
        /// Zero.
        reserved1: [u8; 2],
        /// How many more requests the initiator may send.
        req_lim_delta: U32,
        /// The target's tag.
        tag: U64,
        /// Zero.
        reserved2: [u8; 4],
        /// The eight LUN bytes.
        lun: U64,
        /// Length of the sense data.
        sense_data_len: U32,
        /// Zero.
        reserved3: [u8; 4],
    }
}

layout! {
    /// SRP_AER_RSP (section 6.13).
    AsyncEventResponse, 16, {
        /// [`Opcode::ASYNC_EVENT_RESPONSE`].
        opcode: Opcode,
        /// Zero.
        reserved: [u8; 7],
        /// That of the request.
        tag: U64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;

    #[test]
    fn logouts() {
        let logout: InitiatorLogout = decoded(&[3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!((logout.opcode, logout.tag.get()), (Opcode::INITIATOR_LOGOUT, (1 << 56) + 2));
        let logout: TargetLogout = decoded(&[0x80, 1, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!((logout.opcode, logout.sol_not), (Opcode::TARGET_LOGOUT, crate::srp::SOLICITED));
        assert_eq!((logout.reason, logout.tag.get()), (LogoutReason::INVALID_LENGTH, 7));
    }

    #[test]
    fn credits() {
        let request: CreditRequest = decoded(&[0x81, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!((request.opcode, request.req_lim_delta.get()), (Opcode::CREDIT_REQUEST, 258));
        let response: CreditResponse = decoded(&[0x41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!((response.opcode, response.tag), (Opcode::CREDIT_RESPONSE, request.tag));
    }

    #[test]
    fn asynchronous_events() {
        let mut bytes = [0; 36];
        bytes[..8].copy_from_slice(&[0x82, 1, 0, 0, 0, 0, 0, 1]);
        bytes[15] = 7;
        bytes[21] = 3;
        bytes[31] = 18;
        let request: AsyncEventRequest = decoded(&bytes);
        assert_eq!((request.opcode, request.req_lim_delta.get()), (Opcode::ASYNC_EVENT_REQUEST, 1));
        assert_eq!((request.lun.get(), request.sense_data_len.get()), (0x0003_0000_0000_0000, 18));
        let response: AsyncEventResponse = decoded(&[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!((response.opcode, response.tag), (Opcode::ASYNC_EVENT_RESPONSE, request.tag));
    }
}
