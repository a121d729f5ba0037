//! PDUs that targets send.

use crate::iscsi::{
    AsyncEvent, FunctionResponse, LoginStatus, LogoutOutcome, Opcode, RejectReason, Stage, U24, pdu,
};
use zerocopy::byteorder::big_endian::{U16, U32, U64};

pdu! {
    /// SCSI Response (section 11.4).
    ScsiResponse, Opcode::SCSI_RESPONSE, {
        /// Opcode.
        opcode: u8,
        /// One, and the residual flags.
        flags: u8,
        /// Response: [`ScsiResponse::COMPLETED`] or [`ScsiResponse::TARGET_FAILURE`].
        response: u8,
        /// SCSI status.
        status: u8,
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of sense data, including the length field before it.
        data_segment_length: U24,
        /// Status qualifier (RFC 7144 section 5.2.1).
        status_qualifier: U16,
        /// Reserved.
        reserved10: [u8; 6],
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// SNACK tag.
        snack_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Number of Data-In PDUs sent (section 11.4.8).
        exp_data_sn: U32,
        /// Residual count of the data-in of a bidirectional command.
        bidirectional_read_residual_count: U32,
        /// Residual count.
        residual_count: U32,
    }
}

impl ScsiResponse {
    /// o: overflow of the data-in of a bidirectional command.
    pub const BIDIRECTIONAL_READ_OVERFLOW: u8 = 0x10;
    /// u: underflow of the data-in of a bidirectional command.
    pub const BIDIRECTIONAL_READ_UNDERFLOW: u8 = 0x08;
    /// O: overflow.
    pub const OVERFLOW: u8 = 0x04;
    /// U: underflow.
    pub const UNDERFLOW: u8 = 0x02;
    /// Response: command completed at target.
    pub const COMPLETED: u8 = 0;
    /// Response: target failure.
    pub const TARGET_FAILURE: u8 = 1;
}

pdu! {
    /// Task Management Function Response (section 11.6).
    TaskManagementResponse, Opcode::TASK_MANAGEMENT_RESPONSE, {
        /// Opcode.
        opcode: u8,
        /// One.
        flags: u8,
        /// Response.
        response: FunctionResponse,
        /// Reserved.
        reserved3: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Reserved.
        reserved8: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Additional response information of the query functions (RFC 7144 section 6.2).
        additional_response: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved36: [u8; 12],
    }
}

pdu! {
    /// SCSI Data-In (section 11.7).
    DataIn, Opcode::DATA_IN, {
        /// Opcode.
        opcode: u8,
        /// F, A, O, U, S.
        flags: u8,
        /// Reserved.
        reserved2: u8,
        /// SCSI status, when S is set.
        status: u8,
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of data.
        data_segment_length: U24,
        /// LUN, or reserved.
        lun: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Target transfer tag with A, else [`crate::iscsi::TAG_NONE`].
        target_transfer_tag: U32,
        /// StatSN, when S is set.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Counts the Data-In and R2T PDUs of a command from 0.
        data_sn: U32,
        /// Offset in the command's data-in.
        buffer_offset: U32,
        /// Residual count, when S is set.
        residual_count: U32,
    }
}

impl DataIn {
    /// A: the initiator is to acknowledge the data.
    pub const ACKNOWLEDGE: u8 = 0x40;
    /// O: overflow.
    pub const OVERFLOW: u8 = 0x04;
    /// U: underflow.
    pub const UNDERFLOW: u8 = 0x02;
    /// S: this PDU carries the status.
    pub const STATUS: u8 = 0x01;
}

pdu! {
    /// Ready To Transfer (section 11.8).
    ReadyToTransfer, Opcode::READY_TO_TRANSFER, {
        /// Opcode.
        opcode: u8,
        /// One.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// LUN.
        lun: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Target transfer tag.
        target_transfer_tag: U32,
        /// The next StatSN; not advanced.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Counts the R2Ts of a command from 0.
        r2t_sn: U32,
        /// Offset in the command's data-out.
        buffer_offset: U32,
        /// Bytes requested.
        desired_data_transfer_length: U32,
    }
}

pdu! {
    /// Asynchronous Message (section 11.9).
    AsyncMessage, Opcode::ASYNC_MESSAGE, {
        /// Opcode.
        opcode: u8,
        /// One.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of sense or event data.
        data_segment_length: U24,
        /// LUN of a SCSI event.
        lun: U64,
        /// [`crate::iscsi::TAG_NONE`].
        initiator_task_tag: U32,
        /// Reserved.
        reserved20: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// The event.
        event: AsyncEvent,
        /// Vendor's event code.
        vendor_code: u8,
        /// Parameter1.
        parameter1: U16,
        /// Parameter2.
        parameter2: U16,
        /// Parameter3.
        parameter3: U16,
        /// Reserved.
        reserved44: U32,
    }
}

pdu! {
    /// Text Response (section 11.11).
    TextResponse, Opcode::TEXT_RESPONSE, {
        /// Opcode.
        opcode: u8,
        /// F and C.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of text.
        data_segment_length: U24,
        /// To be copied by the request that continues, or reserved.
        lun: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// To be copied by the request that continues, or [`crate::iscsi::TAG_NONE`].
        target_transfer_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved36: [u8; 12],
    }
}

pdu! {
    /// Login Response (section 11.13).
    LoginResponse, Opcode::LOGIN_RESPONSE, {
        /// Opcode.
        opcode: u8,
        /// T, C, CSG and NSG.
        flags: u8,
        /// Highest version.
        version_max: u8,
        /// The version in use.
        version_active: u8,
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of text.
        data_segment_length: U24,
        /// Initiator session id.
        isid: [u8; 6],
        /// Target session identifying handle.
        tsih: U16,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Reserved.
        reserved20: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Status-Class and Status-Detail.
        status: LoginStatus,
        /// Reserved.
        reserved38: [u8; 10],
    }
}

impl LoginResponse {
    /// T: transition to the next stage.
    pub const TRANSIT: u8 = 0x80;

    /// CSG and NSG as bits of the flags.
    pub fn stages(csg: Stage, nsg: Stage) -> u8 {
        ((csg.0 & 3) << 2) | (nsg.0 & 3)
    }

    /// Current stage.
    pub fn csg(&self) -> Stage {
        Stage((self.flags >> 2) & 3)
    }

    /// Next stage.
    pub fn nsg(&self) -> Stage {
        Stage(self.flags & 3)
    }
}

pdu! {
    /// Logout Response (section 11.15).
    LogoutResponse, Opcode::LOGOUT_RESPONSE, {
        /// Opcode.
        opcode: u8,
        /// One.
        flags: u8,
        /// Response.
        response: LogoutOutcome,
        /// Reserved.
        reserved3: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Reserved.
        reserved8: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Reserved.
        reserved20: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved36: U32,
        /// Minimum seconds before a reassignment may be attempted.
        time2_wait: U16,
        /// Maximum seconds after which it may be attempted.
        time2_retain: U16,
        /// Reserved.
        reserved44: U32,
    }
}

pdu! {
    /// Reject (section 11.17).
    Reject, Opcode::REJECT, {
        /// Opcode.
        opcode: u8,
        /// One.
        flags: u8,
        /// Reason.
        reason: RejectReason,
        /// Reserved.
        reserved3: u8,
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of the rejected header.
        data_segment_length: U24,
        /// Reserved.
        reserved8: U64,
        /// [`crate::iscsi::TAG_NONE`].
        initiator_task_tag: U32,
        /// Reserved.
        reserved20: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// DataSN or R2TSN of a rejected SNACK.
        data_sn: U32,
        /// Reserved.
        reserved40: [u8; 8],
    }
}

pdu! {
    /// NOP-In (section 11.19).
    NopIn, Opcode::NOP_IN, {
        /// Opcode.
        opcode: u8,
        /// One.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of ping data returned.
        data_segment_length: U24,
        /// LUN, or reserved.
        lun: U64,
        /// Of the NOP-Out that is answered, or [`crate::iscsi::TAG_NONE`].
        initiator_task_tag: U32,
        /// To be copied by the answer, or [`crate::iscsi::TAG_NONE`] when none is wanted.
        target_transfer_tag: U32,
        /// StatSN; the next one, not advanced, when this answers nothing.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved36: [u8; 12],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::{BHS_BYTES, FINAL, Pdu, TAG_NONE};

    /// ITT 7, tag 6, StatSN 5, ExpCmdSN 4, MaxCmdSN 3 at bytes 16..36.
    const NUMBERS: [u8; 20] = [0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 3];

    fn vector(head: &[u8], tail: &[u8]) -> [u8; BHS_BYTES] {
        let mut bytes = [0; BHS_BYTES];
        bytes[..head.len()].copy_from_slice(head);
        bytes[16..36].copy_from_slice(&NUMBERS);
        bytes[36..36 + tail.len()].copy_from_slice(tail);
        bytes
    }

    /// Decodes, encodes to the same bytes; anything shorter does not decode.
    fn decoded<P: Pdu>(bytes: [u8; BHS_BYTES]) -> P {
        for len in 0..BHS_BYTES {
            assert!(P::view(&bytes[..len]).is_none());
        }
        assert_eq!(bytes[0], P::OPCODE.0);
        let pdu = *P::view(&bytes).unwrap();
        assert_eq!(P::read_from_bytes(pdu.as_bytes()).unwrap().as_bytes(), bytes);
        pdu
    }

    #[test]
    fn scsi_response() {
        let pdu: ScsiResponse =
            decoded(vector(&[0x21, 0x8a, 0, 2, 0, 0, 0, 20], &[0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 1, 0]));
        assert_eq!(pdu.flags, FINAL | ScsiResponse::BIDIRECTIONAL_READ_UNDERFLOW | ScsiResponse::UNDERFLOW);
        assert_eq!((pdu.response, pdu.status), (ScsiResponse::COMPLETED, 2));
        assert_eq!((pdu.initiator_task_tag.get(), pdu.snack_tag.get(), pdu.stat_sn.get()), (7, 6, 5));
        assert_eq!((pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get(), pdu.exp_data_sn.get()), (4, 3, 2));
        assert_eq!((pdu.bidirectional_read_residual_count.get(), pdu.residual_count.get()), (8, 256));
    }

    #[test]
    fn data_in() {
        let pdu: DataIn =
            decoded(vector(&[0x25, 0x83, 0, 0, 0, 0, 16, 0], &[0, 0, 0, 2, 0, 0, 32, 0, 0, 0, 1, 0]));
        assert_eq!(pdu.flags, FINAL | DataIn::STATUS | DataIn::UNDERFLOW);
        assert_eq!((pdu.data_segment_length.get(), pdu.target_transfer_tag.get()), (4096, 6));
        assert_eq!((pdu.data_sn.get(), pdu.buffer_offset.get(), pdu.residual_count.get()), (2, 8192, 256));
    }

    #[test]
    fn ready_to_transfer() {
        let pdu: ReadyToTransfer = decoded(vector(&[0x31, 0x80], &[0, 0, 0, 2, 0, 0, 32, 0, 0, 0, 1, 0]));
        assert_eq!((pdu.target_transfer_tag.get(), pdu.r2t_sn.get(), pdu.buffer_offset.get()), (6, 2, 8192));
        assert_eq!(pdu.desired_data_transfer_length.get(), 256);
    }

    #[test]
    fn async_message() {
        let pdu: AsyncMessage = decoded(vector(&[0x32, 0x80], &[1, 0, 0, 2, 0, 3, 0, 4]));
        assert_eq!(pdu.event, AsyncEvent::LOGOUT_REQUEST);
        assert_eq!((pdu.parameter1.get(), pdu.parameter2.get(), pdu.parameter3.get()), (2, 3, 4));
    }

    #[test]
    fn login_response() {
        let pdu: LoginResponse =
            decoded(vector(&[0x23, 0x87, 0, 0, 0, 0, 0, 9, 0x80, 1, 2, 3, 4, 5, 0, 1], &[2, 1]));
        assert_eq!((pdu.csg(), pdu.nsg()), (Stage::OPERATIONAL, Stage::FULL_FEATURE));
        assert_eq!(LoginResponse::stages(pdu.csg(), pdu.nsg()) | LoginResponse::TRANSIT, pdu.flags);
        assert_eq!((pdu.isid, pdu.tsih.get()), ([0x80, 1, 2, 3, 4, 5], 1));
        assert_eq!(pdu.status, LoginStatus::AUTHENTICATION_FAILURE);
    }

    #[test]
    fn logout_reject_and_task_management() {
        let logout: LogoutResponse = decoded(vector(&[0x26, 0x80, 2], &[0, 0, 0, 0, 0, 2, 0, 20]));
        assert_eq!(logout.response, LogoutOutcome::RECOVERY_NOT_SUPPORTED);
        assert_eq!((logout.time2_wait.get(), logout.time2_retain.get()), (2, 20));
        let reject: Reject = decoded(vector(&[0x3f, 0x80, 4, 0, 0, 0, 0, 48], &[0, 0, 0, 1]));
        assert_eq!((reject.reason, reject.data_sn.get()), (RejectReason::PROTOCOL_ERROR, 1));
        let done: TaskManagementResponse = decoded(vector(&[0x22, 0x80, 1], &[]));
        assert_eq!(done.response, FunctionResponse::NO_TASK);
    }

    #[test]
    fn text_and_nop() {
        let text: TextResponse = decoded(vector(&[0x24, 0x40, 0, 0, 0, 0, 1, 0], &[]));
        assert_eq!((text.data_segment_length.get(), text.target_transfer_tag.get()), (256, 6));
        let nop: NopIn = decoded(vector(&[0x20, 0x80], &[]));
        assert_eq!((nop.initiator_task_tag.get(), nop.stat_sn.get()), (7, 5));
        assert_ne!(nop.target_transfer_tag.get(), TAG_NONE);
    }
}
