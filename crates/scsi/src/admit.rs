//! Admission: every check that can be made before data moves, in the standard's order.

use crate::command::{Attribute, Ending, Request};
use crate::exec::{Exec, Program};
use crate::limits::{Range, TRANSFER_BYTES_MAX};
use crate::nexus::NexusUnit;
use crate::policy::Sanitize;
use crate::sense::{Check, Failure};
use crate::table::{self, Command, Gate};
use crate::unit::View;
use std::sync::atomic::Ordering;
use wire::Cdb;

impl View {
    /// Decides whether a command may run, and makes its program. The checks are in the order of SAM-5 section 5.3.3
    /// and SPC-4 section 4.2.5: the command itself, unit attention, reservation, readiness, write protection, and
    /// only then the CDB's fields.
    pub fn admit(&self, nexus: &mut NexusUnit, request: &Request<'_>) -> Result<Exec, Ending> {
        nexus.sync(&self.policy);
        self.program(nexus, request).map(Exec::new).map_err(|failure| failure.ending(&self.policy.modes))
    }

    fn program(&self, nexus: &mut NexusUnit, request: &Request<'_>) -> Result<Program, Failure> {
        let command = table::lookup(self, request.cdb)?;
        check_aca(request, command)?;
        if command.gate != Gate::Open
            && let Some(attention) = nexus.take_attention()
        {
            return Err(attention.check().into());
        }
        if nexus.access.conflicts(command.reservation) {
            return Err(Failure::CONFLICT);
        }
        self.check_gate(nexus, command.gate)?;
        (command.begin)(&Admission { view: self, nexus, request })
    }

    fn check_gate(&self, nexus: &NexusUnit, gate: Gate) -> Result<(), Check> {
        match gate {
            Gate::Open => Ok(()),
            Gate::Control => self.check_sanitize(),
            Gate::Ready => self.check_sanitize().and_then(|()| self.check_ready()),
            Gate::Write => {
                self.check_sanitize()?;
                self.check_ready()?;
                self.check_writable(nexus)
            }
            Gate::Sanitize => {
                self.check_sanitizing()?;
                self.check_ready()?;
                self.check_writable(nexus)
            }
        }
    }

    /// Why the unit is not ready, if it is not: what TEST UNIT READY and REQUEST SENSE tell.
    pub(crate) fn not_ready(&self) -> Option<Check> {
        self.check_sanitize().and_then(|()| self.check_ready()).err()
    }

    fn check_sanitize(&self) -> Result<(), Check> {
        self.check_sanitizing()?;
        match self.policy.sanitize {
            Some(Sanitize::Failed { .. }) => Err(Check::SANITIZE_FAILED),
            Some(Sanitize::Running(_)) | None => Ok(()),
        }
    }

    fn check_sanitizing(&self) -> Result<(), Check> {
        match &self.policy.sanitize {
            Some(Sanitize::Running(progress)) => {
                let done = u16::try_from(progress.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
                Err(Check::SANITIZING.with_progress(done))
            }
            Some(Sanitize::Failed { .. }) | None => Ok(()),
        }
    }

    fn check_ready(&self) -> Result<(), Check> {
        if self.policy.ejected {
            Err(Check::NO_MEDIUM)
        } else if self.policy.failed.is_some() {
            Err(Check::NOT_READY)
        } else if !self.policy.started {
            Err(Check::STOPPED)
        } else {
            Ok(())
        }
    }

    /// Whether nobody, or this nexus, may not write.
    pub(crate) fn is_write_protected(&self, nexus: &NexusUnit) -> bool {
        self.check_writable(nexus).is_err()
    }

    fn check_writable(&self, nexus: &NexusUnit) -> Result<(), Check> {
        if self.unit.read_only || self.policy.traits.read_only || nexus.read_only {
            Err(Check::WRITE_PROTECTED)
        } else if self.policy.modes.software_write_protect {
            Err(Check::SOFTWARE_WRITE_PROTECTED)
        } else {
            Ok(())
        }
    }
}

/// NormACA is zero: the NACA bit and the ACA attribute are refused (SAM-5 section 5.2.3).
fn check_aca(request: &Request<'_>, command: &Command) -> Result<(), Check> {
    let control = command.usage.len().saturating_sub(1);
    if request.cdb.u8(control) & 0x04 != 0 {
        return Err(Check::cdb_bit(u16::try_from(control).unwrap_or(0), 2));
    }
    if request.attribute == Attribute::Aca {
        return Err(Check::INVALID_MESSAGE);
    }
    Ok(())
}

/// What a command may look at while its program is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'a> {
    /// The unit.
    pub(crate) view: &'a View,
    /// The nexus.
    pub(crate) nexus: &'a NexusUnit,
    /// The command.
    pub(crate) request: &'a Request<'a>,
}

impl Admission<'_> {
    /// The CDB.
    pub(crate) fn cdb(&self) -> &Cdb {
        self.request.cdb
    }

    /// The unit's block size.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.view.unit.block_bytes
    }

    /// RDPROTECT, WRPROTECT, VRPROTECT and ORPROTECT must be zero: the medium is not formatted with protection
    /// information (SBC-3 section 4.22).
    pub(crate) fn check_protect(&self) -> Result<(), Check> {
        if self.cdb().u8(1) & 0xe0 == 0 { Ok(()) } else { Err(Check::cdb_bit(1, 7)) }
    }

    /// The range of a transfer and its length in bytes; `length_byte` is where the CDB has the length.
    pub(crate) fn transfer(&self, lba: u64, blocks: u32, length_byte: u16) -> Result<(Range, u32), Failure> {
        let range = self.view.range(lba, u64::from(blocks))?;
        match u32::try_from(range.len) {
            Ok(len) if len <= TRANSFER_BYTES_MAX => Ok((range, len)),
            _ => Err(Check::cdb_byte(length_byte).into()),
        }
    }

    /// Whether a write must be durable before it ends.
    pub(crate) fn is_durable(&self, force_unit_access: bool) -> bool {
        force_unit_access || !self.view.policy.modes.write_cache
    }
}
