//! Commands of all device types (SPC-4 clause 6; RESERVE and RELEASE: SPC-2).

use super::commands;

commands! {
    /// TEST UNIT READY.
    TestUnitReady = TEST_UNIT_READY [6] {}

    /// INQUIRY.
    Inquiry = INQUIRY [6] new(allocation: u16) {
        /// EVPD.
        vital VITAL: bool = 1 & 0x01,
        /// PAGE CODE.
        page PAGE: u8 = 2,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u16 = 3,
    }

    /// REQUEST SENSE.
    RequestSense = REQUEST_SENSE [6] new(allocation: u8) {
        /// DESC.
        descriptor DESCRIPTOR: bool = 1 & 0x01,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u8 = 4,
    }

    /// REPORT LUNS.
    ReportLuns = REPORT_LUNS [12] new(allocation: u32) {
        /// SELECT REPORT.
        select SELECT: u8 = 2,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 6,
    }

    /// MODE SENSE(6).
    ModeSense6 = MODE_SENSE_6 [6] new(page: u8, allocation: u8) {
        /// DBD: without block descriptors.
        no_descriptors NO_DESCRIPTORS: bool = 1 & 0x08,
        /// PC.
        control CONTROL: u8 = 2 & 0xc0,
        /// PAGE CODE.
        page PAGE: u8 = 2 & 0x3f,
        /// SUBPAGE CODE.
        subpage SUBPAGE: u8 = 3,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u8 = 4,
    }

    /// MODE SENSE(10).
    ModeSense10 = MODE_SENSE_10 [10] new(page: u8, allocation: u16) {
        /// LLBAA: long LBA block descriptors are accepted.
        long_lba LONG_LBA: bool = 1 & 0x10,
        /// DBD: without block descriptors.
        no_descriptors NO_DESCRIPTORS: bool = 1 & 0x08,
        /// PC.
        control CONTROL: u8 = 2 & 0xc0,
        /// PAGE CODE.
        page PAGE: u8 = 2 & 0x3f,
        /// SUBPAGE CODE.
        subpage SUBPAGE: u8 = 3,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u16 = 7,
    }

    /// MODE SELECT(6).
    ModeSelect6 = MODE_SELECT_6 [6] {
        /// PF: pages are as the standard defines them.
        page_format PAGE_FORMAT: bool = 1 & 0x10,
        /// SP.
        save SAVE: bool = 1 & 0x01,
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u8 = 4,
    }

    /// MODE SELECT(10).
    ModeSelect10 = MODE_SELECT_10 [10] {
        /// PF: pages are as the standard defines them.
        page_format PAGE_FORMAT: bool = 1 & 0x10,
        /// SP.
        save SAVE: bool = 1 & 0x01,
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u16 = 7,
    }

    /// LOG SENSE.
    LogSense = LOG_SENSE [10] {
        /// SP.
        save SAVE: bool = 1 & 0x01,
        /// PC.
        control CONTROL: u8 = 2 & 0xc0,
        /// PAGE CODE.
        page PAGE: u8 = 2 & 0x3f,
        /// SUBPAGE CODE.
        subpage SUBPAGE: u8 = 3,
        /// PARAMETER POINTER.
        pointer POINTER: u16 = 5,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u16 = 7,
    }

    /// PREVENT ALLOW MEDIUM REMOVAL (SBC-3 section 5.8).
    PreventAllowMediumRemoval = PREVENT_ALLOW_MEDIUM_REMOVAL [6] {
        /// PREVENT.
        prevent PREVENT: u8 = 4 & 0x03,
    }

    /// SEND DIAGNOSTIC.
    SendDiagnostic = SEND_DIAGNOSTIC [6] {
        /// SELF-TEST CODE.
        code CODE: u8 = 1 & 0xe0,
        /// PF.
        page_format PAGE_FORMAT: bool = 1 & 0x10,
        /// SELFTEST.
        self_test SELF_TEST: bool = 1 & 0x04,
        /// DEVOFFL.
        device_offline DEVICE_OFFLINE: bool = 1 & 0x02,
        /// UNITOFFL.
        unit_offline UNIT_OFFLINE: bool = 1 & 0x01,
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u16 = 3,
    }

    /// RECEIVE DIAGNOSTIC RESULTS.
    ReceiveDiagnosticResults = RECEIVE_DIAGNOSTIC_RESULTS [6] {
        /// PCV: PAGE CODE is valid.
        valid VALID: bool = 1 & 0x01,
        /// PAGE CODE.
        page PAGE: u8 = 2,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u16 = 3,
    }

    /// REPORT TARGET PORT GROUPS.
    ReportTargetPortGroups = MAINTENANCE_IN / maintenance_in::REPORT_TARGET_PORT_GROUPS [12]
    new(allocation: u32) {
        /// PARAMETER DATA FORMAT.
        format FORMAT: u8 = 1 & 0xe0,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 6,
    }

    /// SET TARGET PORT GROUPS.
    SetTargetPortGroups = MAINTENANCE_OUT / maintenance_out::SET_TARGET_PORT_GROUPS [12]
    new(list_bytes: u32) {
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u32 = 6,
    }

    /// REPORT SUPPORTED OPERATION CODES.
    ReportSupportedOperationCodes = MAINTENANCE_IN / maintenance_in::REPORT_SUPPORTED_OPERATION_CODES [12]
    new(allocation: u32) {
        /// RCTD: return timeouts.
        timeouts TIMEOUTS: bool = 2 & 0x80,
        /// REPORTING OPTIONS.
        options OPTIONS: u8 = 2 & 0x07,
        /// REQUESTED OPERATION CODE.
        opcode REQUESTED_OPCODE: u8 = 3,
        /// REQUESTED SERVICE ACTION.
        action REQUESTED_ACTION: u16 = 4,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 6,
    }

    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    ReportSupportedFunctions = MAINTENANCE_IN / maintenance_in::REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS [12]
    new(allocation: u32) {
        /// REPD: return extended parameter data.
        extended EXTENDED: bool = 2 & 0x80,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 6,
    }

    /// RESERVE(6) (SPC-2 section 7.21).
    Reserve6 = RESERVE_6 [6] {
        /// 3RDPTY.
        third_party THIRD_PARTY: bool = 1 & 0x10,
        /// EXTENT, which is obsolete.
        extent EXTENT: bool = 1 & 0x01,
    }

    /// RELEASE(6) (SPC-2 section 7.16).
    Release6 = RELEASE_6 [6] {
        /// 3RDPTY.
        third_party THIRD_PARTY: bool = 1 & 0x10,
        /// EXTENT, which is obsolete.
        extent EXTENT: bool = 1 & 0x01,
    }

    /// RESERVE(10) (SPC-2 section 7.22).
    Reserve10 = RESERVE_10 [10] {
        /// 3RDPTY.
        third_party THIRD_PARTY: bool = 1 & 0x10,
        /// LONGID.
        long_id LONG_ID: bool = 1 & 0x02,
        /// EXTENT, which is obsolete.
        extent EXTENT: bool = 1 & 0x01,
    }

    /// RELEASE(10) (SPC-2 section 7.17).
    Release10 = RELEASE_10 [10] {
        /// 3RDPTY.
        third_party THIRD_PARTY: bool = 1 & 0x10,
        /// LONGID.
        long_id LONG_ID: bool = 1 & 0x02,
        /// EXTENT, which is obsolete.
        extent EXTENT: bool = 1 & 0x01,
    }

    /// PERSISTENT RESERVE IN.
    PersistentReserveIn = PERSISTENT_RESERVE_IN [10] new(action: u8, allocation: u16) {
        /// SERVICE ACTION.
        action ACTION: u8 = 1 & 0x1f,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u16 = 7,
    }

    /// PERSISTENT RESERVE OUT.
    PersistentReserveOut = PERSISTENT_RESERVE_OUT [10] new(action: u8, kind: u8, list_bytes: u32) {
        /// SERVICE ACTION.
        action ACTION: u8 = 1 & 0x1f,
        /// SCOPE.
        scope SCOPE: u8 = 2 & 0xf0,
        /// TYPE.
        kind KIND: u8 = 2 & 0x0f,
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u32 = 5,
    }

    /// EXTENDED COPY(LID1).
    ExtendedCopyLid1 = EXTENDED_COPY / extended_copy::LID1 [16] new(list_bytes: u32) {
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u32 = 10,
    }

    /// EXTENDED COPY(LID4).
    ExtendedCopyLid4 = EXTENDED_COPY / extended_copy::LID4 [16] new(list_bytes: u32) {
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u32 = 10,
    }

    /// COPY OPERATION ABORT.
    CopyOperationAbort = EXTENDED_COPY / extended_copy::COPY_OPERATION_ABORT [16] new(list_id: u32) {
        /// LIST IDENTIFIER.
        list_id LIST_ID: u32 = 2,
    }

    /// RECEIVE COPY RESULTS with a one-byte list identifier, or none.
    ReceiveCopyResults = RECEIVE_COPY_RESULTS [16] new(action: u8, list_id: u8, allocation: u32) {
        /// SERVICE ACTION.
        action ACTION: u8 = 1 & 0x1f,
        /// LIST IDENTIFIER.
        list_id LIST_ID: u8 = 2,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 10,
    }

    /// RECEIVE COPY STATUS(LID4).
    ReceiveCopyStatusLid4 = RECEIVE_COPY_RESULTS / receive_copy_results::COPY_STATUS_LID4 [16]
    new(list_id: u32, allocation: u32) {
        /// LIST IDENTIFIER.
        list_id LIST_ID: u32 = 2,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 10,
    }
}

impl Inquiry {
    /// For a page of vital product data.
    pub const fn page(page: u8, allocation: u16) -> Inquiry {
        Inquiry { vital: true, page, allocation }
    }
}

impl ModeSense6 {
    /// For a page, without block descriptors.
    pub const fn page_only(page: u8, allocation: u8) -> ModeSense6 {
        ModeSense6 { no_descriptors: true, ..ModeSense6::new(page, allocation) }
    }
}

impl ModeSelect6 {
    /// With a list of this many bytes, of pages as the standard defines them.
    pub const fn new(list_bytes: u8) -> ModeSelect6 {
        ModeSelect6 { page_format: true, list_bytes, ..ModeSelect6::ZERO }
    }
}
