//! What ATA's own commands answer, and registers as they come back in sense data (ACS-3, SAT-3).

pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod smart;

use crate::vocabulary::command::{Ending, Status};
use wire::ata::{Registers, StatusReturn, error, status};
use wire::{SenseData, SenseKey};

/// Sectors of ranges in one TRIM: as many ranges as one UNMAP may have.
pub(crate) const TRIM_SECTORS_MAX: u16 = 4;

/// Where ATA PASS-THROUGH (16) has COUNT.
pub(crate) const COUNT_BYTE: u16 = 5;

/// The end of a command that went well, and returns registers.
pub(crate) fn returned(end: &StatusReturn) -> Ending {
    Ending { sense: Some(end.available()), ..Ending::of(Status::CheckCondition) }
}

/// An ending as ATA reports it: what failed has the registers in its sense data, in descriptor format. Of a
/// medium error INFORMATION tells the LBA; otherwise it is the command's. What the device does not do it
/// aborts (SAT-3 clause 11).
pub(crate) fn with_registers(ending: Ending, registers: &Registers) -> Ending {
    let Some(sense) = ending.sense.filter(|sense| StatusReturn::from_sense(sense).is_none()) else {
        return ending;
    };
    let (key, code) = match (sense.key(), sense.code()) {
        (Some(SenseKey::IllegalRequest), code) if code >> 8 != LBA_OUT_OF_RANGE => {
            (SenseKey::AbortedCommand, 0)
        }
        (key, code) => (key.unwrap_or(SenseKey::HardwareError), code),
    };
    let data =
        SenseData { key, code, information: sense.information(), command_specific: None, specific: None };
    let (error, fault) = match data.code >> 8 {
        LBA_OUT_OF_RANGE => (error::IDNF, 0),
        UNRECOVERED_READ_ERROR => (error::UNC, 0),
        WRITE_ERROR | INTERNAL_TARGET_FAILURE => (error::ABRT, status::DF),
        _ => (error::ABRT, 0),
    };
    let end = StatusReturn::failed(registers, error);
    let lba = data.information.unwrap_or(end.lba);
    let end = StatusReturn { lba, status: end.status | fault, ..end };
    Ending { sense: Some(end.sense(&data)), ..ending }
}

// Additional sense codes.
const LBA_OUT_OF_RANGE: u16 = 0x21;
const UNRECOVERED_READ_ERROR: u16 = 0x11;
const WRITE_ERROR: u16 = 0x0c;
const INTERNAL_TARGET_FAILURE: u16 = 0x44;
