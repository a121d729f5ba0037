//! SMART (ACS-3 section 7.48): enough for those who ask how a disk is. It is well: it has no attribute, no error log entry
//! and no self-test, and SMART cannot be switched off.

use super::{COUNT_BYTE, returned};
use crate::admit::Admission;
use crate::answer::{Answer, Build};
use crate::command::Ending;
use crate::exec::Program;
use crate::sense::{Check, Failure};
use wire::ata::smart::{Data, Function, Thresholds, empty_log, log, log_directory, status_lba};
use wire::ata::{Registers, SECTOR_BYTES, StatusReturn};
use zerocopy::byteorder::little_endian::U16;

/// SMART capability: attributes are saved by themselves.
const AUTOSAVE: u16 = 0x0002;
/// Error logging capability: there is a log.
const LOGS_ERRORS: u8 = 0x01;

pub(super) fn begin(admission: &Admission<'_>, registers: &Registers) -> Result<Program, Failure> {
    match Function::of(registers).ok_or(Check::CDB)? {
        Function::ReadData => page(admission, |_, _, data| {
            let mut page = Data::new();
            (page.capability, page.error_logging) = (U16::new(AUTOSAVE), LOGS_ERRORS);
            data.extend_from_slice(&page.encode());
            Ok(())
        }),
        Function::ReadThresholds => page(admission, |_, _, data| {
            data.extend_from_slice(&Thresholds::new().encode());
            Ok(())
        }),
        Function::ReadLog => read_log(admission, registers),
        Function::ReturnStatus => {
            let lba = status_lba(registers.lba, false);
            Ok(Program::End(returned(&StatusReturn { lba, ..StatusReturn::good(registers) })))
        }
        Function::Enable | Function::Autosave | Function::AutomaticOffline => Ok(Program::End(Ending::GOOD)),
        Function::Disable | Function::ExecuteOffline | Function::WriteLog => Err(Check::CDB.into()),
    }
}

/// A log of one page, all of which is asked for.
fn read_log(admission: &Admission<'_>, registers: &Registers) -> Result<Program, Failure> {
    let [address, ..] = registers.lba.to_le_bytes();
    match (address, registers.count) {
        (log::DIRECTORY, 1) => page(admission, |_, _, data| {
            data.extend_from_slice(&log_directory(&[log::SUMMARY_ERRORS, log::SELF_TESTS]));
            Ok(())
        }),
        (log::SUMMARY_ERRORS | log::SELF_TESTS, 1) => page(admission, |_, _, data| {
            data.extend_from_slice(&empty_log());
            Ok(())
        }),
        _ => Err(Check::CDB.into()),
    }
}

fn page(admission: &Admission<'_>, build: Build) -> Result<Program, Failure> {
    if admission.request.read_bytes < SECTOR_BYTES {
        return Err(Check::cdb_byte(COUNT_BYTE).into());
    }
    Ok(Program::Answer(Answer::new(*admission.cdb(), SECTOR_BYTES, build)))
}
