//! The LUNs of a session.

use super::throttle::Throttle;
use crate::access::QUEUE_DEPTH;
use scsi::NexusUnit;

/// The unit of a LUN or task that has none.
pub(super) const NO_UNIT: u32 = u32::MAX;

/// One LUN of a session.
#[derive(Debug)]
pub(crate) struct LunState {
    /// Its number.
    pub(super) number: u16,
    /// The former number of a LUN that is no longer shown to the session, while its unit exists.
    pub(super) hidden: Option<u16>,
    /// The unit.
    pub(super) unit: u32,
    /// The nexus's state on it.
    pub(super) nexus: NexusUnit,
    /// Losses of the store ([`store::lane::Lane::losses`]) that were reported to the nexus, or that occurred
    /// before it and all earlier sessions of its name.
    pub(super) losses: u64,
    /// Those of them whose report is known to have been received: the others are reported again to the next
    /// session of its name.
    pub(super) received: u64,
    /// How many commands had arrived on the connection when `losses` was reported; `None`: it was not.
    pub(super) reported_at: Option<u64>,
    /// Commands that wait for its limits, if it has any.
    pub(super) throttle: Option<Box<Throttle>>,
}

/// The number of a LUN that is no longer shown to the session: no real LUN has it.
pub(super) const NO_LUN: u16 = u16::MAX;

/// Index of the LUN named by eight bytes (SAM-5 section 4.7: peripheral device and flat space addressing).
#[inline]
pub(super) fn find_lun(luns: &[LunState], lun: u64) -> Option<usize> {
    let number = wire::scsi::lun::number(lun)?;
    luns.iter().position(|state| state.number == number)
}

impl LunState {
    /// Its unit has been released.
    pub(super) fn forget(&mut self) {
        (self.number, self.unit) = (NO_LUN, NO_UNIT);
    }

    /// Whether commands that named this number may be in progress on it.
    pub(super) fn is_or_was(&self, number: u16) -> bool {
        self.unit != NO_UNIT && (self.number == number || self.hidden == Some(number))
    }

    /// Whether a flush reports this many losses, given how many commands have arrived on the connection: it
    /// does if some are new, or were reported by a flush whose answer may not have been received.
    pub(super) fn report(&mut self, losses: u64, commands: u64) -> bool {
        if self.losses == losses && (self.reported_at.is_some() || self.losses == self.received) {
            return false;
        }
        self.received = self.received_by(commands);
        (self.losses, self.reported_at) = (losses, None);
        true
    }

    /// The answer that reports this many losses is sent, after this many commands arrived on the connection.
    /// Losses found since are reported by another answer.
    pub(super) fn has_reported(&mut self, losses: u64, commands: u64) {
        if losses == self.losses {
            self.reported_at = Some(commands);
        }
    }

    /// The last report will not be sent: the next flush reports all losses that are not known to have been
    /// received.
    pub(super) fn unreport(&mut self) {
        self.losses = self.received;
    }

    /// The losses whose report is known to have been received once this many commands have arrived on the
    /// connection. Commands may have been sent before the report arrived, but no more than fit into the
    /// window: whatever came after these was sent after the report was seen, since answers arrive in order.
    pub(super) fn received_by(&self, commands: u64) -> u64 {
        let is_received = self.reported_at.is_some_and(|at| commands > at + u64::from(QUEUE_DEPTH));
        if is_received { self.losses } else { self.received }
    }
}
