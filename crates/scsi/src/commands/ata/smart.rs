//! SMART (ACS-3 section 7.48): enough for hosts that query a disk's health. It is good: there are no
//! attributes, no error log entries and no self-tests, and SMART cannot be switched off.

use super::{COUNT_BYTE, returned};
use crate::commands::admission::Admission;
use crate::commands::answer::{Answer, Build};
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::{Check, Failure};
use wire::ata::smart::{Data, Function, Thresholds, empty_log, log, log_directory, status_lba};
use wire::ata::{Registers, SECTOR_BYTES, StatusReturn};
use zerocopy::byteorder::little_endian::U16;

/// SMART capability: everything is saved, at power-off and otherwise.
const SAVED: u16 = 0x0003;
/// Error logging capability: there is a log.
const LOGS_ERRORS: u8 = 0x01;

pub(crate) fn begin<P: From<Answer> + From<Ending>>(
    admission: &Admission<'_>,
    registers: &Registers,
) -> Result<P, Failure> {
    match Function::of(registers).ok_or(Check::CDB)? {
        Function::ReadData => page(admission, |_, _, data| {
            let mut page = Data::new();
            (page.capability, page.error_logging) = (U16::new(SAVED), LOGS_ERRORS);
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
            Ok(P::from(returned(&StatusReturn { lba, ..StatusReturn::good(registers) })))
        }
        Function::Enable | Function::Autosave => Ok(P::from(Ending::GOOD)),
        Function::Disable | Function::ExecuteOffline | Function::AutomaticOffline | Function::WriteLog => {
            Err(Check::CDB.into())
        }
    }
}

/// READ LOG EXT: a log's only page. Bits 0 to 7 of LBA are the log's address, 8 to 15 and 32 to 39 the first page.
pub(crate) fn read_log_ext<P: From<Answer>>(
    admission: &Admission<'_>,
    registers: &Registers,
) -> Result<P, Failure> {
    let [address, first_low, _, _, first_high, ..] = registers.lba.to_le_bytes();
    match (address, [first_low, first_high], registers.count) {
        (log::DIRECTORY, [0, 0], 1) => page(admission, |_, _, data| {
            data.extend_from_slice(&log_directory(&[log::ERRORS_EXT, log::SELF_TESTS_EXT]));
            Ok(())
        }),
        (log::ERRORS_EXT | log::SELF_TESTS_EXT, [0, 0], 1) => empty(admission),
        _ => Err(Check::CDB.into()),
    }
}

/// A log of one page, which must be requested as a whole.
fn read_log<P: From<Answer>>(admission: &Admission<'_>, registers: &Registers) -> Result<P, Failure> {
    let [address, ..] = registers.lba.to_le_bytes();
    match (address, registers.count) {
        (log::DIRECTORY, 1) => page(admission, |_, _, data| {
            data.extend_from_slice(&log_directory(&[log::SUMMARY_ERRORS, log::SELF_TESTS]));
            Ok(())
        }),
        (log::SUMMARY_ERRORS | log::SELF_TESTS, 1) => empty(admission),
        _ => Err(Check::CDB.into()),
    }
}

fn empty<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    page(admission, |_, _, data| {
        data.extend_from_slice(&empty_log());
        Ok(())
    })
}

fn page<P: From<Answer>>(admission: &Admission<'_>, build: Build) -> Result<P, Failure> {
    if admission.request.read_bytes < SECTOR_BYTES {
        return Err(Check::cdb_byte(COUNT_BYTE).into());
    }
    Ok(P::from(Answer::new(*admission.cdb(), SECTOR_BYTES, build)))
}
