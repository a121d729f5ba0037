//! How a command fails: a SCSI status, with sense data.

use wire::scsi::field::Field;
use wire::scsi::{code, status};
use wire::{Sense, SenseData, SenseKey, Specific};

/// How a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub status: u8,
    pub sense: Option<Sense>,
}

/// CHECK CONDITION with this sense key and code.
pub(super) fn check(key: SenseKey, code: u16) -> Failure {
    check_data(&SenseData::new(key, code))
}

/// CHECK CONDITION with this, in fixed format unless the LBA does not fit.
pub(super) fn check_data(data: &SenseData) -> Failure {
    let is_short = data.information.is_none_or(|lba| u32::try_from(lba).is_ok());
    let sense = if is_short { Sense::fixed(data) } else { Sense::descriptor(data) };
    Failure { status: status::CHECK_CONDITION, sense: Some(sense) }
}

/// INVALID FIELD IN CDB.
pub(super) fn invalid_field<T>(field: Field<T>) -> Failure {
    let specific = Some(Specific::Field { in_cdb: true, byte: field.byte(), bit: field.bit() });
    let data = SenseData { specific, ..SenseData::new(SenseKey::IllegalRequest, code::INVALID_FIELD_IN_CDB) };
    Failure { status: status::CHECK_CONDITION, sense: Some(Sense::fixed(&data)) }
}

/// The failure of a command whose answer was too short.
pub(super) fn truncated() -> Failure {
    check(SenseKey::HardwareError, code::INTERNAL_TARGET_FAILURE)
}
