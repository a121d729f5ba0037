//! The answers of ATA's own commands, and the registers returned in sense data (ACS-3, SAT-3).

pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod smart;

use crate::vocabulary::command::{Ending, Status};
use wire::ata::{PassThrough, Registers, StatusReturn, error, status};
use wire::scsi::code;
use wire::{SenseData, SenseKey};

/// Sectors of ranges in one TRIM: as many ranges as one UNMAP may have.
pub(crate) const TRIM_SECTORS_MAX: u16 = 4;

/// The byte of ATA PASS-THROUGH (16) that has COUNT.
pub(crate) const COUNT_BYTE: u16 = PassThrough::COUNT.byte();

/// The end of a successful command that returns registers.
pub(crate) fn returned(end: &StatusReturn) -> Ending {
    Ending { sense: Some(end.available()), ..Ending::of(Status::CheckCondition) }
}

/// An ending as ATA reports it: after a failure, the registers are in the sense data, in descriptor format.
/// For a medium error INFORMATION is the LBA; otherwise it is the command's. The device aborts what it does
/// not support (SAT-3 clause 11).
pub(crate) fn with_registers(ending: Ending, registers: &Registers) -> Ending {
    let Some(sense) = ending.sense.filter(|sense| StatusReturn::from_sense(sense).is_none()) else {
        return ending;
    };
    let (key, additional) = match (sense.key(), sense.code()) {
        (Some(SenseKey::IllegalRequest), additional) if family(additional) != code::LBA_OUT_OF_RANGE => {
            (SenseKey::AbortedCommand, code::NO_ADDITIONAL_SENSE)
        }
        (key, additional) => (key.unwrap_or(SenseKey::HardwareError), additional),
    };
    let data = SenseData { information: sense.information(), ..SenseData::new(key, additional) };
    let (error, fault) = match family(data.code) {
        code::LBA_OUT_OF_RANGE => (error::IDNF, 0),
        code::UNRECOVERED_READ_ERROR => (error::UNC, 0),
        code::WRITE_ERROR | code::INTERNAL_TARGET_FAILURE => (error::ABRT, status::DF),
        _ => (error::ABRT, 0),
    };
    let end = StatusReturn::failed(registers, error);
    let lba = data.information.unwrap_or(end.lba);
    let end = StatusReturn { lba, status: end.status | fault, ..end };
    Ending { sense: Some(end.sense(&data)), ..ending }
}

/// An additional sense code without its qualifier.
fn family(code: u16) -> u16 {
    code & 0xff00
}
