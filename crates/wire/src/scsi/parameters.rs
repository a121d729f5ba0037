//! Parameter lists and data of commands on reservations, target ports and the medium (SPC-4 clause 6, SBC-3
//! clause 5).

use super::field::layout;

layout! {
    /// The parameter list of PERSISTENT RESERVE OUT, except REGISTER AND MOVE (SPC-4 section 6.16.3).
    ReserveOutList [24] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// SERVICE ACTION RESERVATION KEY.
        action_key ACTION_KEY: u64 = 8,
        /// SPEC_I_PT: TransportIDs follow.
        names_initiators NAMES_INITIATORS: bool = 20 & 0x08,
        /// ALL_TG_PT.
        all_target_ports ALL_TARGET_PORTS: bool = 20 & 0x04,
        /// APTPL.
        persist PERSIST: bool = 20 & 0x01,
    }
}

layout! {
    /// The parameter list of REGISTER AND MOVE, before its TransportID (SPC-4 section 6.16.4).
    MoveList [24] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// SERVICE ACTION RESERVATION KEY.
        action_key ACTION_KEY: u64 = 8,
        /// UNREG.
        unregister UNREGISTER: bool = 17 & 0x02,
        /// APTPL.
        persist PERSIST: bool = 17 & 0x01,
        /// RELATIVE TARGET PORT IDENTIFIER.
        target_port TARGET_PORT: u16 = 18,
        /// TRANSPORTID PARAMETER DATA LENGTH.
        transport_id_bytes TRANSPORT_ID_BYTES: u32 = 20,
    }
}

layout! {
    /// The header of READ KEYS, READ RESERVATION and READ FULL STATUS data (SPC-4 section 6.15).
    ReserveInHeader [8] {
        /// PRGENERATION.
        generation GENERATION: u32 = 0,
        /// ADDITIONAL LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u32 = 4,
    }
}

layout! {
    /// The reservation in READ RESERVATION data (SPC-4 section 6.15.3).
    HeldReservation [16] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// SCOPE.
        scope SCOPE: u8 = 13 & 0xf0,
        /// TYPE.
        kind KIND: u8 = 13 & 0x0f,
    }
}

layout! {
    /// REPORT CAPABILITIES data (SPC-4 section 6.15.4).
    ReserveCapabilities [8] {
        /// LENGTH: of the whole data.
        length_bytes LENGTH_BYTES: u16 = 0,
        /// CRH: a registered nexus may use RESERVE.
        compatible_reserve COMPATIBLE_RESERVE: bool = 2 & 0x10,
        /// SIP_C: SPEC_I_PT is supported.
        can_name_initiators CAN_NAME_INITIATORS: bool = 2 & 0x08,
        /// ATP_C: ALL_TG_PT is supported.
        can_be_all_target_ports CAN_BE_ALL_TARGET_PORTS: bool = 2 & 0x04,
        /// PTPL_C: APTPL is supported.
        ptpl_capable PTPL_CAPABLE: bool = 2 & 0x01,
        /// TMV: the type mask is valid.
        mask_is_valid MASK_IS_VALID: bool = 3 & 0x80,
        /// ALLOW COMMANDS; 1: of the commands in question only TEST UNIT READY is allowed through every
        /// reservation.
        allowed_commands ALLOWED_COMMANDS: u8 = 3 & 0x70,
        /// PTPL_A: registrations currently persist through power loss.
        is_persistent IS_PERSISTENT: bool = 3 & 0x01,
        /// PERSISTENT RESERVATION TYPE MASK.
        type_mask TYPE_MASK: u16 = 4,
    }
}

layout! {
    /// A full status descriptor, before its TransportID (SPC-4 section 6.15.5).
    FullStatus [24] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// ALL_TG_PT.
        all_target_ports ALL_TARGET_PORTS: bool = 12 & 0x02,
        /// R_HOLDER.
        is_holder IS_HOLDER: bool = 12 & 0x01,
        /// SCOPE.
        scope SCOPE: u8 = 13 & 0xf0,
        /// TYPE.
        kind KIND: u8 = 13 & 0x0f,
        /// RELATIVE TARGET PORT IDENTIFIER.
        target_port TARGET_PORT: u16 = 18,
        /// ADDITIONAL DESCRIPTOR LENGTH: of the TransportID.
        transport_id_bytes TRANSPORT_ID_BYTES: u32 = 20,
    }
}

layout! {
    /// The header of READ DEFECT DATA(10) data (SBC-3 section 5.17.2).
    DefectList10 [4] {
        /// PLISTV.
        primary PRIMARY: bool = 1 & 0x10,
        /// GLISTV.
        grown GROWN: bool = 1 & 0x08,
        /// DEFECT LIST FORMAT.
        format FORMAT: u8 = 1 & 0x07,
        /// DEFECT LIST LENGTH.
        list_bytes LIST_BYTES: u16 = 2,
    }
}

layout! {
    /// The header of READ DEFECT DATA(12) data (SBC-3 section 5.18.2).
    DefectList12 [8] {
        /// PLISTV.
        primary PRIMARY: bool = 1 & 0x10,
        /// GLISTV.
        grown GROWN: bool = 1 & 0x08,
        /// DEFECT LIST FORMAT.
        format FORMAT: u8 = 1 & 0x07,
        /// DEFECT LIST LENGTH.
        list_bytes LIST_BYTES: u32 = 4,
    }
}

layout! {
    /// The start of FORMAT UNIT's parameter list, before its short or long header (SBC-3 section 5.3.2).
    FormatOptions [2] {
        /// PROTECTION FIELD USAGE.
        protection_usage PROTECTION_USAGE: u8 = 0 & 0x07,
        /// FOV: DPRY, DCRT, STPF and IP are valid.
        valid VALID: bool = 1 & 0x80,
        /// DPRY.
        disable_primary DISABLE_PRIMARY: bool = 1 & 0x40,
        /// DCRT.
        disable_certification DISABLE_CERTIFICATION: bool = 1 & 0x20,
        /// STPF.
        stop STOP: bool = 1 & 0x10,
        /// IP: an initialization pattern descriptor follows the header.
        has_pattern HAS_PATTERN: bool = 1 & 0x08,
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x02,
    }
}

layout! {
    /// The rest of the short header, after the options.
    FormatShortHeader [4] {
        /// DEFECT LIST LENGTH.
        defect_bytes DEFECT_BYTES: u16 = 2,
    }
}

layout! {
    /// The rest of the long header, after the options.
    FormatLongHeader [8] {
        /// P_I_INFORMATION and PROTECTION INTERVAL EXPONENT.
        protection PROTECTION: u8 = 3,
        /// DEFECT LIST LENGTH.
        defect_bytes DEFECT_BYTES: u32 = 4,
    }
}

layout! {
    /// An initialization pattern descriptor of FORMAT UNIT, before its pattern.
    InitializationPattern [4] {
        /// SI: reassigned blocks are initialized, too; and obsolete bits.
        options OPTIONS: u8 = 0,
        /// INITIALIZATION PATTERN TYPE; 0: the device's default, without a pattern.
        kind KIND: u8 = 1,
        /// INITIALIZATION PATTERN LENGTH.
        pattern_bytes PATTERN_BYTES: u16 = 2,
    }
}

layout! {
    /// The parameter list of SANITIZE with OVERWRITE, before its pattern (SBC-4 section 5.30).
    OverwriteList [4] {
        /// INVERT: the pattern is inverted between passes.
        invert INVERT: bool = 0 & 0x80,
        /// TEST.
        test TEST: u8 = 0 & 0x60,
        /// OVERWRITE COUNT.
        passes PASSES: u8 = 0 & 0x1f,
        /// INITIALIZATION PATTERN LENGTH.
        pattern_bytes PATTERN_BYTES: u16 = 2,
    }
}

layout! {
    /// What precedes the descriptors of REPORT TARGET PORT GROUPS when the extended header is requested,
    /// after the length (SPC-4 section 6.37).
    PortGroupsHeader [4] {
        /// FORMAT TYPE; 1: this header.
        format FORMAT: u8 = 0 & 0x70,
        /// IMPLICIT TRANSITION TIME, in seconds; 0: unknown.
        transition_seconds TRANSITION_SECONDS: u8 = 1,
    }
}

layout! {
    /// What REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS returns without timeouts (SPC-4 section 6.36).
    TaskFunctions [4] {
        /// ATS: ABORT TASK.
        abort_task ABORT_TASK: bool = 0 & 0x80,
        /// ATSS: ABORT TASK SET.
        abort_task_set ABORT_TASK_SET: bool = 0 & 0x40,
        /// CACAS: CLEAR ACA.
        clear_aca CLEAR_ACA: bool = 0 & 0x20,
        /// CTSS: CLEAR TASK SET.
        clear_task_set CLEAR_TASK_SET: bool = 0 & 0x10,
        /// LURS: LOGICAL UNIT RESET.
        unit_reset UNIT_RESET: bool = 0 & 0x08,
        /// QTS: QUERY TASK.
        query_task QUERY_TASK: bool = 0 & 0x04,
        /// TRS: target resets.
        target_reset TARGET_RESET: bool = 0 & 0x02,
        /// ADDITIONAL LENGTH of the extended data: of what follows this field.
        following_bytes FOLLOWING_BYTES: u8 = 3,
    }
}

impl TaskFunctions {
    /// Length of the extended data, with timeouts.
    pub const EXTENDED_BYTES: usize = 16;
}

layout! {
    /// The header of a diagnostic page (SPC-4 section 7.3.1).
    DiagnosticHeader [4] {
        /// PAGE CODE; 00h: supported diagnostic pages.
        code CODE: u8 = 0,
        /// PAGE LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u16 = 2,
    }
}

layout! {
    /// A command descriptor of REPORT SUPPORTED OPERATION CODES (SPC-4 section 6.35.2).
    CommandDescriptor [8] {
        /// OPERATION CODE.
        opcode OPCODE: u8 = 0,
        /// SERVICE ACTION.
        service_action SERVICE_ACTION: u16 = 2,
        /// CTDP: a command timeouts descriptor follows.
        has_timeouts HAS_TIMEOUTS: bool = 5 & 0x02,
        /// SERVACTV: the service action is valid.
        has_action HAS_ACTION: bool = 5 & 0x01,
        /// CDB LENGTH.
        cdb_bytes CDB_BYTES: u16 = 6,
    }
}

layout! {
    /// The data for one command, before its CDB usage data (SPC-4 section 6.35.3).
    OneCommand [4] {
        /// CTDP: a command timeouts descriptor follows.
        has_timeouts HAS_TIMEOUTS: bool = 1 & 0x80,
        /// SUPPORT ([`command_support`]).
        support SUPPORT: u8 = 1 & 0x07,
        /// CDB SIZE.
        usage_bytes USAGE_BYTES: u16 = 2,
    }
}

/// SUPPORT of a command.
pub mod command_support {
    /// It is not supported.
    pub const NONE: u8 = 1;
    /// It is supported as the standard defines it.
    pub const STANDARD: u8 = 3;
}

layout! {
    /// A command timeouts descriptor (SPC-4 section 6.35.4).
    CommandTimeouts [12] {
        /// DESCRIPTOR LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u16 = 0,
        /// NOMINAL COMMAND PROCESSING TIMEOUT, in seconds.
        nominal_seconds NOMINAL_SECONDS: u32 = 4,
        /// RECOMMENDED COMMAND TIMEOUT, in seconds.
        recommended_seconds RECOMMENDED_SECONDS: u32 = 8,
    }
}

impl CommandTimeouts {
    /// Without a nominal timeout.
    pub fn recommended(seconds: u32) -> CommandTimeouts {
        CommandTimeouts { following_bytes: 10, nominal_seconds: 0, recommended_seconds: seconds }
    }
}

layout! {
    /// A target port group descriptor of REPORT TARGET PORT GROUPS, before its ports (SPC-4 section 6.37).
    PortGroup [8] {
        /// PREF.
        preferred PREFERRED: bool = 0 & 0x80,
        /// ASYMMETRIC ACCESS STATE.
        state STATE: u8 = 0 & 0x0f,
        /// A bit for each supported state.
        supported SUPPORTED: u8 = 1,
        /// TARGET PORT GROUP.
        group GROUP: u16 = 2,
        /// STATUS CODE.
        status STATUS: u8 = 5,
        /// TARGET PORT COUNT.
        ports PORTS: u8 = 7,
    }
}

layout! {
    /// A target port descriptor within it.
    GroupPort [4] {
        /// RELATIVE TARGET PORT IDENTIFIER.
        relative_id RELATIVE_ID: u16 = 2,
    }
}

layout! {
    /// A set target port group descriptor of SET TARGET PORT GROUPS (SPC-4 section 6.45).
    SetPortGroup [4] {
        /// ASYMMETRIC ACCESS STATE.
        state STATE: u8 = 0 & 0x0f,
        /// TARGET PORT GROUP; for a secondary state, the relative target port identifier.
        group GROUP: u16 = 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_are_laid_out_as_the_standard_has_them() {
        let status = FullStatus {
            key: 1,
            is_holder: true,
            kind: 5,
            target_port: 2,
            transport_id_bytes: 24,
            ..FullStatus::ZERO
        };
        let expected = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 2, 0, 0, 0, 24];
        assert_eq!(status.to_bytes(), expected);
    }
}
