//! The ATA device server (ACS-3): commands that arrive as ATA PASS-THROUGH (16) from nexuses that use ATA,
//! and from SCSI initiators that pass them through.
//!
//! A command that reads or writes the medium becomes the program of its SCSI counterpart, so reservations,
//! write protection, order and durability are the unit's own, whichever way a command arrives. Its end is
//! reported in registers ([`StatusReturn`]), unless GOOD says it all.

pub(crate) mod pass_through;

use crate::commands::admission::Admission;
use crate::commands::ata::{
    COUNT_BYTE, TRIM_SECTORS_MAX, features, identify, returned, smart, with_registers,
};
use crate::commands::export;
use crate::commands::media::{compare, sync, transfer, unmap};
use crate::server::exec::{Exec, Program};
use crate::state::limits::Range;
use crate::state::nexus::NexusUnit;
use crate::state::readiness::Precondition;
use crate::state::unit::View;
use crate::vocabulary::command::ReservationClass as Class;
use crate::vocabulary::command::{Ending, Request, Status};
use crate::vocabulary::sense::{Check, Failure};
use wire::aoe::Order;
use wire::ata::{
    Command, POWER_ACTIVE_OR_IDLE, PassThrough, Registers, SECTOR_BYTES, SECTORS_28_BIT, StatusReturn, TRIM,
};

impl View {
    /// Admits a command of a nexus that uses ATA.
    pub(crate) fn admit_ata(&self, nexus: &NexusUnit, request: &Request<'_>) -> Result<Exec, Ending> {
        if nexus.is_masked {
            return Err(Ending::of(Status::Busy));
        }
        let admission = Admission { view: self, nexus, request };
        if request.cdb.opcode() == Order::OPCODE {
            return export::begin(&admission).map(Exec::new);
        }
        let failed = |failure: Failure, registers: &Registers| {
            with_registers(failure.ending(&self.policy.modes), registers)
        };
        let Some(PassThrough { registers, .. }) = PassThrough::from_cdb(request.cdb) else {
            return Err(failed(Check::OPCODE.into(), &Registers::default()));
        };
        begin(&admission, &registers).map(Exec::new).map_err(|failure| failed(failure, &registers))
    }

    /// Reservations and the state of the unit that admit a command.
    fn check_ata(&self, nexus: &NexusUnit, class: Class, gate: Precondition) -> Result<(), Failure> {
        if nexus.access.conflicts(class) {
            return Err(Failure::CONFLICT);
        }
        Ok(self.check_precondition(nexus, gate)?)
    }
}

/// Creates the program of a command. Only IDENTIFY DEVICE passes all reservations, as INQUIRY does.
fn begin(admission: &Admission<'_>, registers: &Registers) -> Result<Program, Failure> {
    let check = |class, gate| admission.view.check_ata(admission.nexus, class, gate);
    match registers.command().ok_or(Check::OPCODE)? {
        Command::ReadSectors
        | Command::ReadSectorsExt
        | Command::ReadDma
        | Command::ReadDmaExt
        | Command::ReadMultiple
        | Command::ReadMultipleExt => read(admission, registers),
        Command::WriteSectors
        | Command::WriteSectorsExt
        | Command::WriteDma
        | Command::WriteDmaExt
        | Command::WriteMultiple
        | Command::WriteMultipleExt => write(admission, registers, false),
        Command::WriteDmaFuaExt | Command::WriteMultipleFuaExt => write(admission, registers, true),
        Command::ReadVerifySectors | Command::ReadVerifySectorsExt => verify(admission, registers),
        // After STANDBY the power may be switched off.
        Command::FlushCache | Command::FlushCacheExt | Command::Standby | Command::StandbyImmediate => {
            check(Class::Write, Precondition::Ready)?;
            Ok(Program::Flush(sync::Flush { taken: 0 }))
        }
        Command::IdentifyDevice => {
            check(Class::Always, Precondition::Open)?;
            identify::begin(admission)
        }
        Command::SetFeatures => {
            check(Class::Write, Precondition::Control)?;
            features::begin(admission, registers)
        }
        Command::SetMultipleMode => {
            check(Class::Read, Precondition::Control)?;
            features::set_multiple_mode(registers)
        }
        Command::CheckPowerMode => {
            check(Class::Read, Precondition::Control)?;
            let end = StatusReturn { count: POWER_ACTIVE_OR_IDLE, ..StatusReturn::good(registers) };
            Ok(Program::End(returned(&end)))
        }
        Command::Idle | Command::IdleImmediate => {
            check(Class::Read, Precondition::Control)?;
            Ok(Program::End(Ending::GOOD))
        }
        Command::DataSetManagement => trim(admission, registers),
        Command::ReadNativeMaxAddress | Command::ReadNativeMaxAddressExt => native_max(admission, registers),
        Command::Smart => {
            check(Class::Read, Precondition::Control)?;
            smart::begin(admission, registers)
        }
        Command::ReadLogExt => {
            check(Class::Read, Precondition::Control)?;
            smart::read_log_ext(admission, registers)
        }
    }
}

fn read(admission: &Admission<'_>, registers: &Registers) -> Result<Program, Failure> {
    admission.view.check_ata(admission.nexus, Class::Read, Precondition::Ready)?;
    let sectors = sectors(admission, registers, admission.request.read_bytes)?;
    transfer::read(admission, registers.lba, sectors, COUNT_BYTE)
}

fn write(admission: &Admission<'_>, registers: &Registers, fua: bool) -> Result<Program, Failure> {
    admission.view.check_ata(admission.nexus, Class::Write, Precondition::Write)?;
    let sectors = sectors(admission, registers, admission.request.write_bytes)?;
    transfer::write_blocks(admission, registers.lba, sectors, COUNT_BYTE, fua)
}

fn verify(admission: &Admission<'_>, registers: &Registers) -> Result<Program, Failure> {
    admission.view.check_ata(admission.nexus, Class::Read, Precondition::Ready)?;
    let sectors = sectors(admission, registers, u32::MAX)?;
    let (Range { offset, .. }, len) = admission.transfer(registers.lba, sectors, COUNT_BYTE)?;
    Ok(Program::Verify(compare::Verify::readable(offset, len, admission.block_bytes())))
}

fn native_max(admission: &Admission<'_>, registers: &Registers) -> Result<Program, Failure> {
    admission.view.check_ata(admission.nexus, Class::Read, Precondition::Ready)?;
    let last = admission.view.blocks().saturating_sub(1);
    let lba = if registers.extend { last } else { last.min(SECTORS_28_BIT.saturating_sub(1)) };
    Ok(Program::End(returned(&StatusReturn { lba, ..StatusReturn::good(registers) })))
}

/// DATA SET MANAGEMENT: TRIM, on units that support UNMAP.
fn trim(admission: &Admission<'_>, registers: &Registers) -> Result<Program, Failure> {
    admission.view.check_ata(admission.nexus, Class::Write, Precondition::Write)?;
    let sectors = sectors(admission, registers, admission.request.write_bytes)?;
    if !admission.view.is_thin() || registers.feature != TRIM || sectors > u32::from(TRIM_SECTORS_MAX) {
        return Err(Check::CDB.into());
    }
    Ok(Program::Unmap(unmap::Unmap::trim(sectors.saturating_mul(SECTOR_BYTES))))
}

/// Sectors that a command transfers, all of which must be requested: `ready` is the number of bytes that the
/// initiator transfers. LBA and COUNT are in sectors of 512 bytes, so other units are not served.
fn sectors(admission: &Admission<'_>, registers: &Registers, ready: u32) -> Result<u32, Failure> {
    let sectors = registers.sectors();
    let is_moved = sectors.checked_mul(SECTOR_BYTES).is_some_and(|bytes| bytes <= ready);
    if is_moved && admission.block_bytes() == SECTOR_BYTES {
        Ok(sectors)
    } else {
        Err(Check::cdb_byte(COUNT_BYTE).into())
    }
}

#[cfg(test)]
mod tests;
