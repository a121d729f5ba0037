//! Operation codes and service actions, with the standards' names (SPC-4 table 123, SBC-4 table 32).

/// Constants for operation codes, and their names.
macro_rules! opcodes {
    ($( $name:ident = $code:literal, $text:literal; )*) => {
        $(
            #[doc = concat!($text, ".")]
            pub const $name: u8 = $code;
        )*

        const NAMES: &[(u8, &str)] = &[$( ($name, $text), )*];
    };
}

opcodes! {
    TEST_UNIT_READY = 0x00, "TEST UNIT READY";
    REZERO_UNIT = 0x01, "REZERO UNIT";
    REQUEST_SENSE = 0x03, "REQUEST SENSE";
    FORMAT_UNIT = 0x04, "FORMAT UNIT";
    REASSIGN_BLOCKS = 0x07, "REASSIGN BLOCKS";
    READ_6 = 0x08, "READ(6)";
    WRITE_6 = 0x0a, "WRITE(6)";
    SEEK_6 = 0x0b, "SEEK(6)";
    INQUIRY = 0x12, "INQUIRY";
    MODE_SELECT_6 = 0x15, "MODE SELECT(6)";
    RESERVE_6 = 0x16, "RESERVE(6)";
    RELEASE_6 = 0x17, "RELEASE(6)";
    MODE_SENSE_6 = 0x1a, "MODE SENSE(6)";
    START_STOP_UNIT = 0x1b, "START STOP UNIT";
    RECEIVE_DIAGNOSTIC_RESULTS = 0x1c, "RECEIVE DIAGNOSTIC RESULTS";
    SEND_DIAGNOSTIC = 0x1d, "SEND DIAGNOSTIC";
    PREVENT_ALLOW_MEDIUM_REMOVAL = 0x1e, "PREVENT ALLOW MEDIUM REMOVAL";
    READ_CAPACITY_10 = 0x25, "READ CAPACITY(10)";
    READ_10 = 0x28, "READ(10)";
    WRITE_10 = 0x2a, "WRITE(10)";
    SEEK_10 = 0x2b, "SEEK(10)";
    WRITE_AND_VERIFY_10 = 0x2e, "WRITE AND VERIFY(10)";
    VERIFY_10 = 0x2f, "VERIFY(10)";
    PRE_FETCH_10 = 0x34, "PRE-FETCH(10)";
    SYNCHRONIZE_CACHE_10 = 0x35, "SYNCHRONIZE CACHE(10)";
    READ_DEFECT_DATA_10 = 0x37, "READ DEFECT DATA(10)";
    WRITE_BUFFER = 0x3b, "WRITE BUFFER";
    READ_BUFFER = 0x3c, "READ BUFFER";
    READ_LONG_10 = 0x3e, "READ LONG(10)";
    WRITE_LONG_10 = 0x3f, "WRITE LONG(10)";
    WRITE_SAME_10 = 0x41, "WRITE SAME(10)";
    UNMAP = 0x42, "UNMAP";
    SANITIZE = 0x48, "SANITIZE";
    LOG_SELECT = 0x4c, "LOG SELECT";
    LOG_SENSE = 0x4d, "LOG SENSE";
    MODE_SELECT_10 = 0x55, "MODE SELECT(10)";
    RESERVE_10 = 0x56, "RESERVE(10)";
    RELEASE_10 = 0x57, "RELEASE(10)";
    MODE_SENSE_10 = 0x5a, "MODE SENSE(10)";
    PERSISTENT_RESERVE_IN = 0x5e, "PERSISTENT RESERVE IN";
    PERSISTENT_RESERVE_OUT = 0x5f, "PERSISTENT RESERVE OUT";
    VARIABLE_LENGTH = 0x7f, "(variable-length CDB)";
    EXTENDED_COPY = 0x83, "EXTENDED COPY";
    RECEIVE_COPY_RESULTS = 0x84, "RECEIVE COPY RESULTS";
    ATA_PASS_THROUGH_16 = 0x85, "ATA PASS-THROUGH(16)";
    READ_16 = 0x88, "READ(16)";
    COMPARE_AND_WRITE = 0x89, "COMPARE AND WRITE";
    WRITE_16 = 0x8a, "WRITE(16)";
    ORWRITE_16 = 0x8b, "ORWRITE(16)";
    WRITE_AND_VERIFY_16 = 0x8e, "WRITE AND VERIFY(16)";
    VERIFY_16 = 0x8f, "VERIFY(16)";
    PRE_FETCH_16 = 0x90, "PRE-FETCH(16)";
    SYNCHRONIZE_CACHE_16 = 0x91, "SYNCHRONIZE CACHE(16)";
    WRITE_SAME_16 = 0x93, "WRITE SAME(16)";
    WRITE_ATOMIC_16 = 0x9c, "WRITE ATOMIC(16)";
    SERVICE_ACTION_IN_16 = 0x9e, "SERVICE ACTION IN(16)";
    SERVICE_ACTION_OUT_16 = 0x9f, "SERVICE ACTION OUT(16)";
    REPORT_LUNS = 0xa0, "REPORT LUNS";
    ATA_PASS_THROUGH_12 = 0xa1, "ATA PASS-THROUGH(12)";
    MAINTENANCE_IN = 0xa3, "MAINTENANCE IN";
    MAINTENANCE_OUT = 0xa4, "MAINTENANCE OUT";
    READ_12 = 0xa8, "READ(12)";
    WRITE_12 = 0xaa, "WRITE(12)";
    WRITE_AND_VERIFY_12 = 0xae, "WRITE AND VERIFY(12)";
    VERIFY_12 = 0xaf, "VERIFY(12)";
    READ_DEFECT_DATA_12 = 0xb7, "READ DEFECT DATA(12)";
}

/// Vendor-specific operation codes start here.
pub const VENDOR_SPECIFIC: u8 = 0xc0;

/// The length of a CDB in bytes, as its operation code defines it; `None`: it does not (SPC-4 section
/// 4.2.5.1).
pub const fn cdb_bytes(opcode: u8) -> Option<usize> {
    match opcode >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ => None,
    }
}

/// Service actions: the low five bits of byte 1, by operation code.
pub mod service_action {
    /// Constants for service actions, and the names of the commands that use them.
    macro_rules! actions {
        ($( $(#[$doc:meta])* $module:ident: $opcode:ident { $( $name:ident = $code:literal, $text:literal; )* } )*) => {
            $(
                $(#[$doc])*
                pub mod $module {
                    $(
                        #[doc = concat!($text, ".")]
                        pub const $name: u8 = $code;
                    )*
                }
            )*

            pub(super) const NAMES: &[(u8, u8, &str)] =
                &[$( $( (super::$opcode, $module::$name, $text), )* )*];
        };
    }

    actions! {
        /// SANITIZE (SBC-4 section 5.28).
        sanitize: SANITIZE {
            OVERWRITE = 0x01, "SANITIZE: OVERWRITE";
            BLOCK_ERASE = 0x02, "SANITIZE: BLOCK ERASE";
            CRYPTOGRAPHIC_ERASE = 0x03, "SANITIZE: CRYPTOGRAPHIC ERASE";
            EXIT_FAILURE_MODE = 0x1f, "SANITIZE: EXIT FAILURE MODE";
        }
        /// PERSISTENT RESERVE IN (SPC-4 section 6.15).
        persistent_reserve_in: PERSISTENT_RESERVE_IN {
            READ_KEYS = 0x00, "PERSISTENT RESERVE IN: READ KEYS";
            READ_RESERVATION = 0x01, "PERSISTENT RESERVE IN: READ RESERVATION";
            REPORT_CAPABILITIES = 0x02, "PERSISTENT RESERVE IN: REPORT CAPABILITIES";
            READ_FULL_STATUS = 0x03, "PERSISTENT RESERVE IN: READ FULL STATUS";
        }
        /// PERSISTENT RESERVE OUT (SPC-4 section 6.16).
        persistent_reserve_out: PERSISTENT_RESERVE_OUT {
            REGISTER = 0x00, "PERSISTENT RESERVE OUT: REGISTER";
            RESERVE = 0x01, "PERSISTENT RESERVE OUT: RESERVE";
            RELEASE = 0x02, "PERSISTENT RESERVE OUT: RELEASE";
            CLEAR = 0x03, "PERSISTENT RESERVE OUT: CLEAR";
            PREEMPT = 0x04, "PERSISTENT RESERVE OUT: PREEMPT";
            PREEMPT_AND_ABORT = 0x05, "PERSISTENT RESERVE OUT: PREEMPT AND ABORT";
            REGISTER_AND_IGNORE_EXISTING_KEY = 0x06, "PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY";
            REGISTER_AND_MOVE = 0x07, "PERSISTENT RESERVE OUT: REGISTER AND MOVE";
        }
        /// Variable-length CDBs: the low byte of bytes 8 and 9.
        variable_length: VARIABLE_LENGTH {
            READ_32 = 0x09, "READ(32)";
            VERIFY_32 = 0x0a, "VERIFY(32)";
            WRITE_32 = 0x0b, "WRITE(32)";
            WRITE_AND_VERIFY_32 = 0x0c, "WRITE AND VERIFY(32)";
            WRITE_SAME_32 = 0x0d, "WRITE SAME(32)";
        }
        /// EXTENDED COPY and related commands (SPC-4 section 4.10).
        extended_copy: EXTENDED_COPY {
            LID1 = 0x00, "EXTENDED COPY(LID1)";
            LID4 = 0x01, "EXTENDED COPY(LID4)";
            POPULATE_TOKEN = 0x10, "POPULATE TOKEN";
            WRITE_USING_TOKEN = 0x11, "WRITE USING TOKEN";
            COPY_OPERATION_ABORT = 0x1c, "COPY OPERATION ABORT";
        }
        /// RECEIVE COPY RESULTS (SPC-4 section 4.10).
        receive_copy_results: RECEIVE_COPY_RESULTS {
            COPY_STATUS_LID1 = 0x00, "RECEIVE COPY STATUS(LID1)";
            COPY_DATA_LID1 = 0x01, "RECEIVE COPY DATA(LID1)";
            OPERATING_PARAMETERS = 0x03, "RECEIVE COPY OPERATING PARAMETERS";
            FAILURE_DETAILS_LID1 = 0x04, "RECEIVE COPY FAILURE DETAILS(LID1)";
            COPY_STATUS_LID4 = 0x05, "RECEIVE COPY STATUS(LID4)";
            COPY_DATA_LID4 = 0x06, "RECEIVE COPY DATA(LID4)";
            ROD_TOKEN_INFORMATION = 0x07, "RECEIVE ROD TOKEN INFORMATION";
            ALL_ROD_TOKENS = 0x08, "REPORT ALL ROD TOKENS";
        }
        /// SERVICE ACTION IN(16).
        service_action_in_16: SERVICE_ACTION_IN_16 {
            READ_CAPACITY_16 = 0x10, "READ CAPACITY(16)";
            READ_LONG_16 = 0x11, "READ LONG(16)";
            GET_LBA_STATUS = 0x12, "GET LBA STATUS";
            REPORT_REFERRALS = 0x13, "REPORT REFERRALS";
        }
        /// SERVICE ACTION OUT(16).
        service_action_out_16: SERVICE_ACTION_OUT_16 {
            WRITE_LONG_16 = 0x11, "WRITE LONG(16)";
        }
        /// MAINTENANCE IN.
        maintenance_in: MAINTENANCE_IN {
            REPORT_IDENTIFYING_INFORMATION = 0x05, "REPORT IDENTIFYING INFORMATION";
            REPORT_TARGET_PORT_GROUPS = 0x0a, "REPORT TARGET PORT GROUPS";
            REPORT_ALIASES = 0x0b, "REPORT ALIASES";
            REPORT_SUPPORTED_OPERATION_CODES = 0x0c, "REPORT SUPPORTED OPERATION CODES";
            REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS = 0x0d, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS";
            REPORT_PRIORITY = 0x0e, "REPORT PRIORITY";
            REPORT_TIMESTAMP = 0x0f, "REPORT TIMESTAMP";
        }
        /// MAINTENANCE OUT.
        maintenance_out: MAINTENANCE_OUT {
            SET_IDENTIFYING_INFORMATION = 0x06, "SET IDENTIFYING INFORMATION";
            SET_TARGET_PORT_GROUPS = 0x0a, "SET TARGET PORT GROUPS";
            SET_TIMESTAMP = 0x0f, "SET TIMESTAMP";
        }
    }
}

/// The name of a command; `None`: neither in the standards nor known here.
pub fn name(opcode: u8, service_action: Option<u16>) -> Option<&'static str> {
    let action = service_action.and_then(|action| {
        let is = |(code, known, _): &&(u8, u8, &str)| *code == opcode && u16::from(*known) == action;
        service_action::NAMES.iter().find(is).map(|(.., name)| *name)
    });
    action.or_else(|| NAMES.iter().find(|(code, _)| *code == opcode).map(|(_, name)| *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_there_once() {
        assert!(NAMES.is_sorted_by(|(one, _), (next, _)| one < next));
        assert!(service_action::NAMES.is_sorted_by(|one, next| (one.0, one.1) < (next.0, next.1)));
    }

    #[test]
    fn commands_have_names() {
        assert_eq!(name(READ_10, None), Some("READ(10)"));
        assert_eq!(name(SERVICE_ACTION_IN_16, Some(0x12)), Some("GET LBA STATUS"));
        assert_eq!(name(EXTENDED_COPY, Some(0x07)), Some("EXTENDED COPY"));
        assert_eq!(name(0xc1, None), None);
    }
}
