//! Why a command ends with CHECK CONDITION: one name for each condition that Lunette reports.

use crate::vocabulary::command::{Ending, Status};
use crate::vocabulary::modes::{EraseKind, Modes};
use crate::vocabulary::storage::StoreError;
use wire::scsi::{Field, code};
use wire::{Sense, SenseData, SenseKey, Specific};

/// A check condition, not yet encoded: only the command's nexus knows which format was requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code (high byte) and qualifier (low byte).
    pub code: u16,
    /// INFORMATION field.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION field.
    pub command_specific: Option<u64>,
    /// Sense-key-specific field.
    pub specific: Option<Specific>,
}

impl Check {
    /// NO SENSE: REQUEST SENSE without an error.
    pub const NO_SENSE: Check = Check::new(SenseKey::NoSense, code::NO_ADDITIONAL_SENSE);

    /// LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED (stopped by START STOP UNIT).
    pub const STOPPED: Check = Check::new(SenseKey::NotReady, code::INITIALIZING_COMMAND_REQUIRED);
    /// LOGICAL UNIT NOT READY, SANITIZE IN PROGRESS.
    pub const SANITIZING: Check = Check::new(SenseKey::NotReady, code::SANITIZE_IN_PROGRESS);
    /// LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE: the store is unavailable.
    pub const NOT_READY: Check = Check::new(SenseKey::NotReady, code::NOT_READY);
    /// LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION.
    pub const ACCESS_STATE_TRANSITION: Check = Check::new(SenseKey::NotReady, code::ACCESS_STATE_TRANSITION);
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE.
    pub const PORT_IN_STANDBY: Check = Check::new(SenseKey::NotReady, code::PORT_IN_STANDBY);
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE.
    pub const PORT_UNAVAILABLE: Check = Check::new(SenseKey::NotReady, code::PORT_UNAVAILABLE);
    /// MEDIUM NOT PRESENT (ejected).
    pub const NO_MEDIUM: Check = Check::new(SenseKey::NotReady, code::MEDIUM_NOT_PRESENT);

    /// LOGICAL UNIT NOT READY, FORMAT IN PROGRESS.
    pub const FORMATTING: Check = Check::new(SenseKey::NotReady, code::FORMAT_IN_PROGRESS);
    /// MEDIUM FORMAT CORRUPTED: a FORMAT UNIT failed, and only a new one makes the medium accessible.
    pub const FORMAT_CORRUPTED: Check = Check::new(SenseKey::MediumError, code::MEDIUM_FORMAT_CORRUPTED);
    /// FORMAT COMMAND FAILED.
    pub const FORMAT_FAILED: Check = Check::new(SenseKey::MediumError, code::FORMAT_COMMAND_FAILED);
    /// SANITIZE COMMAND FAILED: only a new SANITIZE makes the medium accessible.
    pub const SANITIZE_FAILED: Check = Check::new(SenseKey::MediumError, code::SANITIZE_COMMAND_FAILED);
    /// UNRECOVERED READ ERROR.
    pub const READ_FAILED: Check = Check::new(SenseKey::MediumError, code::UNRECOVERED_READ_ERROR);
    /// WRITE ERROR.
    pub const WRITE_FAILED: Check = Check::new(SenseKey::MediumError, code::WRITE_ERROR);
    /// WRITE ERROR, of earlier writes. Linux retries what fails with MEDIUM ERROR (scsi_check_sense), and
    /// would take the success of the second SYNCHRONIZE CACHE for that of the first; a HARDWARE ERROR is
    /// reported.
    pub const LOST: Check = Check::new(SenseKey::HardwareError, code::WRITE_ERROR);
    /// INTERNAL TARGET FAILURE.
    pub const INTERNAL: Check = Check::new(SenseKey::HardwareError, code::INTERNAL_TARGET_FAILURE);

    /// SET TARGET PORT GROUPS COMMAND FAILED.
    pub const SET_GROUPS_FAILED: Check =
        Check::new(SenseKey::HardwareError, code::SET_TARGET_PORT_GROUPS_FAILED);

    /// INVALID COMMAND OPERATION CODE.
    pub const OPCODE: Check = Check::new(SenseKey::IllegalRequest, code::INVALID_OPERATION_CODE);
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    pub const LBA_OUT_OF_RANGE: Check = Check::new(SenseKey::IllegalRequest, code::LBA_OUT_OF_RANGE);
    /// INVALID FIELD IN CDB.
    pub const CDB: Check = Check::new(SenseKey::IllegalRequest, code::INVALID_FIELD_IN_CDB);
    /// LOGICAL UNIT NOT SUPPORTED.
    pub const NO_UNIT: Check = Check::new(SenseKey::IllegalRequest, code::LOGICAL_UNIT_NOT_SUPPORTED);
    /// INVALID FIELD IN PARAMETER LIST.
    pub const PARAMETER: Check = Check::new(SenseKey::IllegalRequest, code::INVALID_FIELD_IN_PARAMETER_LIST);
    /// INVALID FIELD IN COMMAND INFORMATION UNIT.
    pub const INFORMATION_UNIT: Check =
        Check::new(SenseKey::IllegalRequest, code::INVALID_FIELD_IN_INFORMATION_UNIT);
    /// PARAMETER LIST LENGTH ERROR.
    pub const PARAMETER_LENGTH: Check =
        Check::new(SenseKey::IllegalRequest, code::PARAMETER_LIST_LENGTH_ERROR);
    /// SAVING PARAMETERS NOT SUPPORTED.
    pub const NO_SAVING: Check = Check::new(SenseKey::IllegalRequest, code::SAVING_PARAMETERS_NOT_SUPPORTED);
    /// MEDIUM REMOVAL PREVENTED.
    pub const REMOVAL_PREVENTED: Check = Check::new(SenseKey::IllegalRequest, code::MEDIUM_REMOVAL_PREVENTED);
    /// INVALID RELEASE OF PERSISTENT RESERVATION.
    pub const INVALID_RELEASE: Check =
        Check::new(SenseKey::IllegalRequest, code::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
    /// INSUFFICIENT REGISTRATION RESOURCES.
    pub const NO_REGISTRATION_RESOURCES: Check =
        Check::new(SenseKey::IllegalRequest, code::INSUFFICIENT_REGISTRATION_RESOURCES);
    /// INSUFFICIENT RESERVATION RESOURCES.
    pub const NO_RESERVATION_RESOURCES: Check =
        Check::new(SenseKey::IllegalRequest, code::INSUFFICIENT_RESERVATION_RESOURCES);
    /// TOO MANY TARGET DESCRIPTORS.
    pub const TOO_MANY_TARGETS: Check =
        Check::new(SenseKey::IllegalRequest, code::TOO_MANY_TARGET_DESCRIPTORS);
    /// UNSUPPORTED TARGET DESCRIPTOR TYPE CODE.
    pub const TARGET_TYPE: Check = Check::new(SenseKey::IllegalRequest, code::UNSUPPORTED_TARGET_DESCRIPTOR);
    /// TOO MANY SEGMENT DESCRIPTORS.
    pub const TOO_MANY_SEGMENTS: Check =
        Check::new(SenseKey::IllegalRequest, code::TOO_MANY_SEGMENT_DESCRIPTORS);
    /// UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE.
    pub const SEGMENT_TYPE: Check =
        Check::new(SenseKey::IllegalRequest, code::UNSUPPORTED_SEGMENT_DESCRIPTOR);
    /// INLINE DATA LENGTH EXCEEDED.
    pub const INLINE_DATA: Check = Check::new(SenseKey::IllegalRequest, code::INLINE_DATA_LENGTH_EXCEEDED);
    /// INVALID MESSAGE ERROR: a task attribute that is not supported.
    pub const INVALID_MESSAGE: Check = Check::new(SenseKey::IllegalRequest, code::INVALID_MESSAGE_ERROR);
    /// OPERATION IN PROGRESS.
    pub const OPERATION_IN_PROGRESS: Check =
        Check::new(SenseKey::IllegalRequest, code::OPERATION_IN_PROGRESS);

    /// COPY TARGET DEVICE NOT REACHABLE.
    pub const COPY_UNREACHABLE: Check = Check::new(SenseKey::CopyAborted, code::COPY_TARGET_NOT_REACHABLE);
    /// INCORRECT COPY TARGET DEVICE TYPE.
    pub const COPY_DEVICE_TYPE: Check = Check::new(SenseKey::CopyAborted, code::INCORRECT_COPY_TARGET_TYPE);
    /// THIRD PARTY DEVICE FAILURE.
    pub const COPY_FAILED: Check = Check::new(SenseKey::CopyAborted, code::THIRD_PARTY_DEVICE_FAILURE);

    /// WRITE PROTECTED.
    pub const WRITE_PROTECTED: Check = Check::new(SenseKey::DataProtect, code::WRITE_PROTECTED);
    /// LOGICAL UNIT SOFTWARE WRITE PROTECTED.
    pub const SOFTWARE_WRITE_PROTECTED: Check =
        Check::new(SenseKey::DataProtect, code::SOFTWARE_WRITE_PROTECTED);
    /// SPACE ALLOCATION FAILED WRITE PROTECT.
    pub const NO_SPACE: Check = Check::new(SenseKey::DataProtect, code::SPACE_ALLOCATION_FAILED);

    /// Aborted before it began; to be retried.
    pub const ABORTED: Check = Check::new(SenseKey::AbortedCommand, code::NO_ADDITIONAL_SENSE);
    /// MISCOMPARE DURING VERIFY OPERATION.
    pub const MISCOMPARE: Check = Check::new(SenseKey::Miscompare, code::MISCOMPARE_DURING_VERIFY);

    /// The check condition of commands while such an operation runs.
    pub(crate) const fn erasing(kind: EraseKind) -> Check {
        match kind {
            EraseKind::Sanitize { .. } => Check::SANITIZING,
            EraseKind::Format => Check::FORMATTING,
        }
    }

    /// The check condition when such an operation fails.
    pub(crate) const fn erase_failed(kind: EraseKind) -> Check {
        match kind {
            EraseKind::Sanitize { .. } => Check::SANITIZE_FAILED,
            EraseKind::Format => Check::FORMAT_FAILED,
        }
    }

    /// A check condition without further information.
    pub const fn new(key: SenseKey, code: u16) -> Check {
        Check { key, code, information: None, command_specific: None, specific: None }
    }

    /// INVALID FIELD IN CDB, pointing at the field's first byte.
    pub const fn cdb_byte(byte: u16) -> Check {
        Check { specific: Some(Specific::Field { in_cdb: true, byte, bit: None }), ..Check::CDB }
    }

    /// INVALID FIELD IN CDB, pointing at a bit (the field's most significant).
    pub const fn cdb_bit(byte: u16, bit: u8) -> Check {
        Check { specific: Some(Specific::Field { in_cdb: true, byte, bit: Some(bit) }), ..Check::CDB }
    }

    /// INVALID FIELD IN CDB, pointing at a field.
    pub fn cdb_field<T>(field: Field<T>) -> Check {
        let specific = Specific::Field { in_cdb: true, byte: field.byte(), bit: field.bit() };
        Check { specific: Some(specific), ..Check::CDB }
    }

    /// INVALID FIELD IN PARAMETER LIST, pointing at the field's first byte.
    pub const fn parameter_byte(byte: u16) -> Check {
        Check { specific: Some(Specific::Field { in_cdb: false, byte, bit: None }), ..Check::PARAMETER }
    }

    /// INVALID FIELD IN PARAMETER LIST, pointing at a bit (the field's most significant).
    pub const fn parameter_bit(byte: u16, bit: u8) -> Check {
        Check { specific: Some(Specific::Field { in_cdb: false, byte, bit: Some(bit) }), ..Check::PARAMETER }
    }

    /// INVALID FIELD IN PARAMETER LIST, pointing at a field.
    pub fn parameter_field<T>(field: Field<T>) -> Check {
        let specific = Specific::Field { in_cdb: false, byte: field.byte(), bit: field.bit() };
        Check { specific: Some(specific), ..Check::PARAMETER }
    }

    /// With this INFORMATION field.
    pub const fn with_information(self, information: u64) -> Check {
        Check { information: Some(information), ..self }
    }

    /// With this progress out of 65536.
    pub const fn with_progress(self, done: u16) -> Check {
        Check { specific: Some(Specific::Progress(done)), ..self }
    }

    /// How a store's failure is reported. The only table of these; blocks of `block_bytes`.
    pub fn from_store(error: StoreError, block_bytes: u32) -> Failure {
        match error {
            StoreError::Miscompare { at } => {
                Failure::Check(Check::MISCOMPARE.with_information(u64::from(at)))
            }
            StoreError::OutOfRange => Failure::Check(Check::LBA_OUT_OF_RANGE),
            StoreError::NoSpace => Failure::Check(Check::NO_SPACE),
            StoreError::ReadFailed { at } => Failure::Check(
                Check::READ_FAILED
                    .with_information(at.checked_div(u64::from(block_bytes)).unwrap_or_default()),
            ),
            StoreError::WriteFailed => Failure::Check(Check::WRITE_FAILED),
            StoreError::Lost => Failure::Check(Check::LOST),
            StoreError::Unsupported => Failure::Check(Check::OPCODE),
            StoreError::ReadOnly => Failure::Check(Check::WRITE_PROTECTED),
            StoreError::Unavailable => Failure::Check(Check::NOT_READY),
            StoreError::Cancelled => Failure::Check(Check::ABORTED),
            StoreError::Busy => Failure::Status(Status::Busy),
            StoreError::Reserved => Failure::CONFLICT,
            StoreError::Deactivated => Failure::Check(Check::ACCESS_STATE_TRANSITION),
        }
    }

    /// Encodes it in the format that the control mode page selects.
    pub fn encode(&self, modes: &Modes) -> Sense {
        self.encode_as(modes.descriptor_sense)
    }

    /// Encodes it in descriptor or fixed format.
    pub fn encode_as(&self, descriptor: bool) -> Sense {
        let data = SenseData {
            key: self.key,
            code: self.code,
            information: self.information,
            command_specific: self.command_specific,
            specific: self.specific,
        };
        if descriptor { Sense::descriptor(&data) } else { Sense::fixed(&data) }
    }

    /// CHECK CONDITION with this sense data and no data transferred.
    pub fn ending(&self, modes: &Modes) -> Ending {
        Ending {
            status: Status::CheckCondition,
            sense: Some(self.encode(modes)),
            read_bytes: 0,
            write_bytes: 0,
        }
    }
}

/// Any way for a command to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// CHECK CONDITION.
    Check(Check),
    /// INVALID FIELD IN COMMAND INFORMATION UNIT: the data-out that the initiator offers ends inside a block,
    /// so nothing is transferred, as FCP-4 specifies for its FCP_DL field. The residual count still reports
    /// how much was missing.
    DataOut {
        /// Bytes that the command consumes.
        taken: u32,
    },
    /// Another status, without sense data.
    Status(Status),
}

impl Failure {
    /// RESERVATION CONFLICT.
    pub const CONFLICT: Failure = Failure::Status(Status::ReservationConflict);

    /// The ending, with no data transferred.
    pub fn ending(&self, modes: &Modes) -> Ending {
        match self {
            Failure::Check(check) => check.ending(modes),
            Failure::DataOut { taken } => {
                Ending { write_bytes: u64::from(*taken), ..Check::INFORMATION_UNIT.ending(modes) }
            }
            Failure::Status(status) => Ending::of(*status),
        }
    }
}

impl From<Check> for Failure {
    fn from(check: Check) -> Failure {
        Failure::Check(check)
    }
}
