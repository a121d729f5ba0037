//! The LUNs of a session.

use super::lines::Line;
use crate::access::QUEUE_DEPTH;
use scsi::NexusUnit;

/// Of a LUN or a task that has no unit.
pub(super) const NO_UNIT: u32 = u32::MAX;

/// One LUN of a session.
#[derive(Debug)]
pub(crate) struct LunState {
    /// Its number.
    pub(super) number: u16,
    /// The same once the session is not shown it any more, as long as its unit is there.
    pub(super) hidden: Option<u16>,
    /// The unit.
    pub(super) unit: u32,
    /// The nexus's state on it.
    pub(super) nexus: NexusUnit,
    /// Losses of the store ([`store::lane::Lane::losses`]) that were reported to the nexus, or that were before it and before
    /// all earlier sessions with its name.
    pub(super) losses: u64,
    /// Those of them whose report is known to have been received: to a session with its name that comes back the others are
    /// reported again.
    pub(super) received: u64,
    /// How many commands had come to the connection when the report of `losses` was sent; `None`: it has not been.
    pub(super) reported_at: Option<u64>,
    /// What waits for its limits, if it has any.
    pub(super) line: Option<Box<Line>>,
}

/// The number of a LUN that the session is not shown any more: no other has it.
pub(super) const NO_LUN: u16 = u16::MAX;

/// Index of the LUN named by eight bytes (SAM-5 section 4.7: peripheral device and flat space addressing).
#[inline]
pub(super) fn find_lun(luns: &[LunState], lun: u64) -> Option<usize> {
    let number = wire::scsi::lun::number(lun)?;
    luns.iter().position(|state| state.number == number)
}

impl LunState {
    /// Its unit has gone.
    pub(super) fn forget(&mut self) {
        (self.number, self.unit) = (NO_LUN, NO_UNIT);
    }

    /// Whether commands that named this number may be under way on it.
    pub(super) fn is_or_was(&self, number: u16) -> bool {
        self.unit != NO_UNIT && (self.number == number || self.hidden == Some(number))
    }

    /// What a flush answers after so many losses, when so many commands have come to the connection: whether some are new,
    /// or were reported by a flush that has not been answered.
    pub(super) fn report(&mut self, losses: u64, commands: u64) -> bool {
        if self.losses == losses && (self.reported_at.is_some() || self.losses == self.received) {
            return false;
        }
        self.received = self.received_by(commands);
        (self.losses, self.reported_at) = (losses, None);
        true
    }

    /// The answer that reports so many losses is sent, when so many commands have come to the connection. More of them may
    /// have been found since, which another answer reports.
    pub(super) fn has_reported(&mut self, losses: u64, commands: u64) {
        if losses == self.losses {
            self.reported_at = Some(commands);
        }
    }

    /// What was reported last will not be sent: the next flush reports all that is not known to have been received.
    pub(super) fn unreport(&mut self) {
        self.losses = self.received;
    }

    /// The losses whose report is known to have been received when so many commands have come to the connection. A command
    /// may have been sent before the report came, but no more of them than the window had room for: what came after these was
    /// sent by who had seen the report, since answers arrive in order.
    pub(super) fn received_by(&self, commands: u64) -> u64 {
        let is_received = self.reported_at.is_some_and(|at| commands > at + u64::from(QUEUE_DEPTH));
        if is_received { self.losses } else { self.received }
    }
}
