//! PDUs that initiators send.

use crate::iscsi::{FINAL, LogoutReason, Opcode, SnackType, Stage, TaskFunction, U24, pdu};
use zerocopy::byteorder::big_endian::{U16, U32, U64};

pdu! {
    /// SCSI Command (section 11.3).
    ScsiCommand, Opcode::SCSI_COMMAND, {
        /// Opcode with the I bit.
        opcode: u8,
        /// F, R, W and the task attribute.
        flags: u8,
        /// Command priority in the low four bits (RFC 7144 section 5.1.1).
        priority: u8,
        /// Reserved.
        reserved: u8,
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of immediate data.
        data_segment_length: U24,
        /// LUN.
        lun: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Expected Data Transfer Length: of data-out when W is set, else of data-in.
        expected_data_transfer_length: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// The CDB, or its first 16 bytes.
        cdb: [u8; 16],
    }
}

impl ScsiCommand {
    /// R: the command is expected to read.
    pub const READ: u8 = 0x40;
    /// W: the command is expected to write.
    pub const WRITE: u8 = 0x20;
    /// Bits of the task attribute.
    pub const ATTRIBUTE_MASK: u8 = 0x07;
    /// Untagged.
    pub const UNTAGGED: u8 = 0;
    /// Simple.
    pub const SIMPLE: u8 = 1;
    /// Ordered.
    pub const ORDERED: u8 = 2;
    /// Head of queue.
    pub const HEAD_OF_QUEUE: u8 = 3;
    /// ACA.
    pub const ACA: u8 = 4;

    /// F: no unsolicited Data-Out follows.
    pub fn last(&self) -> bool {
        self.flags & FINAL != 0
    }

    /// Whether the command is expected to read.
    pub fn reads(&self) -> bool {
        self.flags & Self::READ != 0
    }

    /// Whether the command is expected to write.
    pub fn writes(&self) -> bool {
        self.flags & Self::WRITE != 0
    }
}

pdu! {
    /// Task Management Function Request (section 11.5).
    TaskManagementRequest, Opcode::TASK_MANAGEMENT_REQUEST, {
        /// Opcode with the I bit.
        opcode: u8,
        /// One, and the function.
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
        /// The task that ABORT TASK and TASK REASSIGN name.
        referenced_task_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// CmdSN of the task that ABORT TASK names.
        ref_cmd_sn: U32,
        /// With TASK REASSIGN: the next data expected.
        exp_data_sn: U32,
        /// Reserved.
        reserved40: [u8; 8],
    }
}

impl TaskManagementRequest {
    /// The function.
    pub fn function(&self) -> TaskFunction {
        TaskFunction(self.flags & !FINAL)
    }
}

pdu! {
    /// SCSI Data-Out (section 11.7).
    DataOut, Opcode::DATA_OUT, {
        /// Opcode.
        opcode: u8,
        /// F: the last of a sequence.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of data.
        data_segment_length: U24,
        /// LUN of the R2T, or reserved.
        lun: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// The R2T's tag, or [`crate::iscsi::TAG_NONE`] for unsolicited data.
        target_transfer_tag: U32,
        /// Reserved.
        reserved24: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved32: U32,
        /// Counts the PDUs of a sequence from 0.
        data_sn: U32,
        /// Offset in the command's data-out.
        buffer_offset: U32,
        /// Reserved.
        reserved44: U32,
    }
}

impl DataOut {
    /// F: the last of a sequence.
    pub fn last(&self) -> bool {
        self.flags & FINAL != 0
    }
}

pdu! {
    /// Text Request (section 11.10).
    TextRequest, Opcode::TEXT_REQUEST, {
        /// Opcode with the I bit.
        opcode: u8,
        /// F and C.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of text.
        data_segment_length: U24,
        /// LUN of the response that is continued, or reserved.
        lun: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Of the response that is continued, or [`crate::iscsi::TAG_NONE`].
        target_transfer_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved32: [u8; 16],
    }
}

pdu! {
    /// Login Request (section 11.12).
    LoginRequest, Opcode::LOGIN_REQUEST, {
        /// Opcode with the I bit, which is always set.
        opcode: u8,
        /// T, C, CSG and NSG.
        flags: u8,
        /// Highest version.
        version_max: u8,
        /// Lowest version.
        version_min: u8,
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of text.
        data_segment_length: U24,
        /// Initiator session id.
        isid: [u8; 6],
        /// Target session identifying handle; 0: a new session.
        tsih: U16,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// Connection id.
        cid: U16,
        /// Reserved.
        reserved22: U16,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved32: [u8; 16],
    }
}

impl LoginRequest {
    /// T: the initiator is ready for the next stage.
    pub const TRANSIT: u8 = 0x80;

    /// Whether the T bit is set.
    pub fn transit(&self) -> bool {
        self.flags & Self::TRANSIT != 0
    }

    /// Whether the C bit is set.
    pub fn cont(&self) -> bool {
        self.flags & crate::iscsi::CONTINUE != 0
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
    /// Logout Request (section 11.14).
    LogoutRequest, Opcode::LOGOUT_REQUEST, {
        /// Opcode with the I bit.
        opcode: u8,
        /// One, and the reason.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Reserved.
        reserved8: U64,
        /// Initiator task tag.
        initiator_task_tag: U32,
        /// The connection to close.
        cid: U16,
        /// Reserved.
        reserved22: U16,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved32: [u8; 16],
    }
}

impl LogoutRequest {
    /// The reason.
    pub fn reason(&self) -> LogoutReason {
        LogoutReason(self.flags & !FINAL)
    }
}

pdu! {
    /// SNACK Request (section 11.16).
    Snack, Opcode::SNACK, {
        /// Opcode.
        opcode: u8,
        /// One, and the type.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// LUN, or reserved.
        lun: U64,
        /// Initiator task tag, or [`crate::iscsi::TAG_NONE`].
        initiator_task_tag: U32,
        /// Target transfer tag, SNACK tag, or [`crate::iscsi::TAG_NONE`].
        target_transfer_tag: U32,
        /// Reserved.
        reserved24: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved32: U64,
        /// First number requested.
        beg_run: U32,
        /// How many.
        run_length: U32,
    }
}

impl Snack {
    /// The type.
    pub fn kind(&self) -> SnackType {
        SnackType(self.flags & 0x0f)
    }
}

pdu! {
    /// NOP-Out (section 11.18).
    NopOut, Opcode::NOP_OUT, {
        /// Opcode with the I bit.
        opcode: u8,
        /// One.
        flags: u8,
        /// Reserved.
        reserved2: [u8; 2],
        /// Words of additional header segments.
        total_ahs_length: u8,
        /// Bytes of ping data.
        data_segment_length: U24,
        /// LUN of the NOP-In that is answered, or reserved.
        lun: U64,
        /// Initiator task tag, or [`crate::iscsi::TAG_NONE`] when no answer is wanted.
        initiator_task_tag: U32,
        /// Of the NOP-In that is answered, or [`crate::iscsi::TAG_NONE`].
        target_transfer_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved32: [u8; 16],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::{BHS_BYTES, CONTINUE, Pdu, TAG_NONE};

    /// 48 bytes with these parts at these offsets.
    fn vector(parts: &[(usize, &[u8])]) -> [u8; BHS_BYTES] {
        let mut bytes = [0; BHS_BYTES];
        for (at, part) in parts {
            bytes[*at..*at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    /// Decodes to the PDU, encodes to the bytes; anything shorter does not decode.
    fn same<P: Pdu + PartialEq + core::fmt::Debug>(bytes: [u8; BHS_BYTES], pdu: P) {
        assert_eq!(pdu.as_bytes(), bytes);
        assert_eq!(P::view(&bytes), Some(&pdu));
        assert_eq!(bytes[0] & Opcode::MASK, P::OPCODE.0);
        for len in 0..BHS_BYTES {
            assert_eq!(P::view(&bytes[..len]), None);
        }
    }

    #[test]
    fn scsi_command() {
        let read10 = [0x28, 0, 0, 0, 0, 8, 0, 0, 16, 0];
        let bytes = vector(&[
            (0, &[0x01, 0xc1]),
            (8, &[0, 1]),
            (16, &[0, 0, 0, 7]),
            (20, &[0, 0, 0x20, 0]),
            (24, &[0, 0, 0, 5]),
            (28, &[0, 0, 0, 9]),
            (32, &read10),
        ]);
        let mut cdb = [0; 16];
        cdb[..10].copy_from_slice(&read10);
        let pdu = ScsiCommand {
            flags: FINAL | ScsiCommand::READ | ScsiCommand::SIMPLE,
            lun: U64::new(0x0001_0000_0000_0000),
            initiator_task_tag: U32::new(7),
            expected_data_transfer_length: U32::new(8192),
            cmd_sn: U32::new(5),
            exp_stat_sn: U32::new(9),
            cdb,
            ..ScsiCommand::default()
        };
        same(bytes, pdu);
        assert!(pdu.last() && pdu.reads() && !pdu.writes());
    }

    #[test]
    fn task_management_request() {
        let bytes = vector(&[
            (0, &[0x42, 0x81]),
            (16, &[0, 0, 0, 7, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0, 3]),
        ]);
        let pdu = TaskManagementRequest {
            opcode: 0x42,
            flags: FINAL | TaskFunction::ABORT_TASK.0,
            initiator_task_tag: U32::new(7),
            referenced_task_tag: U32::new(6),
            cmd_sn: U32::new(5),
            exp_stat_sn: U32::new(9),
            ref_cmd_sn: U32::new(4),
            exp_data_sn: U32::new(3),
            ..TaskManagementRequest::default()
        };
        same(bytes, pdu);
        assert_eq!(pdu.function(), TaskFunction::ABORT_TASK);
    }

    #[test]
    fn data_out() {
        let bytes = vector(&[
            (0, &[0x05, 0x80, 0, 0, 0, 0, 2, 0]),
            (16, &[0, 0, 0, 7, 0, 0, 0, 6]),
            (28, &[0, 0, 0, 9]),
            (36, &[0, 0, 0, 1, 0, 0, 4, 0]),
        ]);
        let pdu = DataOut {
            flags: FINAL,
            data_segment_length: U24::new(512),
            initiator_task_tag: U32::new(7),
            target_transfer_tag: U32::new(6),
            exp_stat_sn: U32::new(9),
            data_sn: U32::new(1),
            buffer_offset: U32::new(1024),
            ..DataOut::default()
        };
        same(bytes, pdu);
        assert!(pdu.last());
    }

    #[test]
    fn text_and_nop() {
        let common: (usize, &[u8]) = (16, &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 5, 0, 0, 0, 9]);
        same(
            vector(&[(0, &[0x44, 0x40, 0, 0, 0, 0, 0, 16]), common]),
            TextRequest {
                opcode: 0x44,
                flags: CONTINUE,
                data_segment_length: U24::new(16),
                initiator_task_tag: U32::new(7),
                target_transfer_tag: U32::new(TAG_NONE),
                cmd_sn: U32::new(5),
                exp_stat_sn: U32::new(9),
                ..TextRequest::default()
            },
        );
        same(
            vector(&[(0, &[0x40, 0x80]), common]),
            NopOut {
                opcode: 0x40,
                flags: FINAL,
                initiator_task_tag: U32::new(7),
                target_transfer_tag: U32::new(TAG_NONE),
                cmd_sn: U32::new(5),
                exp_stat_sn: U32::new(9),
                ..NopOut::default()
            },
        );
    }

    #[test]
    fn login_request() {
        let bytes = vector(&[
            (0, &[0x43, 0x87, 0, 0, 0, 0, 1, 2, 0x80, 1, 2, 3, 4, 5, 0, 9]),
            (16, &[0, 0, 0, 7, 0, 1, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9]),
        ]);
        let pdu = LoginRequest {
            opcode: 0x43,
            flags: 0x87,
            data_segment_length: U24::new(0x102),
            isid: [0x80, 1, 2, 3, 4, 5],
            tsih: U16::new(9),
            initiator_task_tag: U32::new(7),
            cid: U16::new(1),
            cmd_sn: U32::new(5),
            exp_stat_sn: U32::new(9),
            ..LoginRequest::default()
        };
        same(bytes, pdu);
        assert!(pdu.transit() && !pdu.cont());
        assert_eq!((pdu.csg(), pdu.nsg()), (Stage::OPERATIONAL, Stage::FULL_FEATURE));
    }

    #[test]
    fn logout_and_snack() {
        let logout = LogoutRequest {
            opcode: 0x46,
            flags: FINAL | LogoutReason::RECOVERY.0,
            initiator_task_tag: U32::new(7),
            cid: U16::new(1),
            cmd_sn: U32::new(5),
            exp_stat_sn: U32::new(9),
            ..LogoutRequest::default()
        };
        same(vector(&[(0, &[0x46, 0x82]), (16, &[0, 0, 0, 7, 0, 1, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9])]), logout);
        assert_eq!(logout.reason(), LogoutReason::RECOVERY);
        let snack = Snack {
            flags: FINAL | SnackType::STATUS.0,
            initiator_task_tag: U32::new(TAG_NONE),
            target_transfer_tag: U32::new(TAG_NONE),
            exp_stat_sn: U32::new(9),
            beg_run: U32::new(3),
            run_length: U32::new(2),
            ..Snack::default()
        };
        same(
            vector(&[
                (0, &[0x10, 0x81]),
                (16, &[0xff; 8]),
                (28, &[0, 0, 0, 9]),
                (40, &[0, 0, 0, 3, 0, 0, 0, 2]),
            ]),
            snack,
        );
        assert_eq!(snack.kind(), SnackType::STATUS);
    }
}
