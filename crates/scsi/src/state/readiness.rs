//! Whether a unit may be accessed, and why not.

use crate::state::nexus::NexusUnit;
use crate::state::policy::Erasure;
use crate::state::unit::View;
use crate::vocabulary::modes::EraseKind;
use crate::vocabulary::sense::Check;
use std::sync::atomic::Ordering;

/// The state of the unit that a command requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Precondition {
    /// Nothing, and no unit attention is reported to it (SAM-5 section 5.14.3, SPC-4 table 62).
    Open,
    /// The unit may be not ready, but not during a SANITIZE or FORMAT UNIT, nor after a SANITIZE that failed.
    Control,
    /// The medium is accessible.
    Ready,
    /// The medium is accessible and may be written.
    Write,
    /// SANITIZE: the medium may be written; a failed SANITIZE or FORMAT UNIT does not prevent it.
    Sanitize,
    /// FORMAT UNIT: the same, except after a failed SANITIZE.
    Format,
}

impl View {
    pub(crate) fn check_precondition(&self, nexus: &NexusUnit, gate: Precondition) -> Result<(), Check> {
        match gate {
            Precondition::Open => Ok(()),
            Precondition::Control => self.check_erased(),
            Precondition::Ready => self.check_accessible(),
            Precondition::Write => {
                self.check_accessible()?;
                self.check_writable(nexus)
            }
            Precondition::Sanitize => {
                self.check_erasing()?;
                self.check_ready()?;
                self.check_writable(nexus)
            }
            Precondition::Format => {
                self.check_erased()?;
                self.check_ready()?;
                self.check_writable(nexus)
            }
        }
    }

    /// Why the unit is not ready, if it is not: what TEST UNIT READY and REQUEST SENSE report.
    pub(crate) fn not_ready(&self) -> Option<Check> {
        self.check_accessible().err()
    }

    /// MEDIUM FORMAT CORRUPTED is for commands that access the medium (SBC-3 section 4.10): format tools send
    /// the others before the FORMAT UNIT that repairs it.
    fn check_accessible(&self) -> Result<(), Check> {
        self.check_erased()?;
        match self.policy.erasure {
            Some(Erasure::Failed { kind: EraseKind::Format }) => Err(Check::FORMAT_CORRUPTED),
            Some(Erasure::Running { .. } | Erasure::Failed { kind: EraseKind::Sanitize { .. } }) | None => {
                self.check_ready()
            }
        }
    }

    fn check_erased(&self) -> Result<(), Check> {
        self.check_erasing()?;
        match self.policy.erasure {
            Some(Erasure::Failed { kind: EraseKind::Sanitize { .. } }) => Err(Check::SANITIZE_FAILED),
            Some(Erasure::Running { .. } | Erasure::Failed { kind: EraseKind::Format }) | None => Ok(()),
        }
    }

    fn check_erasing(&self) -> Result<(), Check> {
        match &self.policy.erasure {
            Some(Erasure::Running { progress, kind }) => {
                let done = u16::try_from(progress.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
                Err(Check::erasing(*kind).with_progress(done))
            }
            Some(Erasure::Failed { .. }) | None => Ok(()),
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

    /// Whether all nexuses, or this one, may not write.
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
