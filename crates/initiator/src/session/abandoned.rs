//! Writes over AoE that are unanswered when their session is lost: no login ends them.

use super::{Ending, Finished, Session, State};
use proto::aoe::initiator::Initiator as AoeInitiator;
use proto::time::Time;
use std::ops::Range;

impl Session {
    /// Over AoE, whether the target may still execute what earlier connections have sent for these bytes of
    /// the medium.
    pub fn may_change(&self, range: (u64, u64)) -> bool {
        self.aoe_machine().is_some_and(|machine| machine.may_change(&sectors(range)))
    }

    /// Commands that write these bytes have ended without an answer: over AoE nothing is retransmitted for
    /// them.
    pub fn abandon(&mut self, now: Time, range: (u64, u64)) {
        let machine = match &mut self.state {
            State::Connected(link) => link.machine.aoe_machine_mut(),
            State::Idle | State::Resting(_) | State::Resolving(_) | State::Connecting(_) | State::Closed => {
                self.left.as_mut().map(|left| &mut *left.machine)
            }
        };
        if let Some(machine) = machine {
            machine.abandon(now, &sectors(range));
        }
    }

    /// Over AoE, whether the target can prove that abandoned writes to these bytes have ended, even if it
    /// never received them.
    pub fn can_be_proven(&self, range: (u64, u64)) -> bool {
        self.aoe_machine().is_some_and(|machine| machine.can_be_proven(&sectors(range)))
    }

    /// Whether any of what earlier connections have sent was proven to have ended since the last call.
    pub fn take_proven(&mut self) -> bool {
        let State::Connected(link) = &mut self.state else { return false };
        link.machine.aoe_machine_mut().is_some_and(AoeInitiator::take_proven)
    }

    fn aoe_machine(&self) -> Option<&AoeInitiator> {
        match &self.state {
            State::Connected(link) => link.machine.aoe_machine(),
            State::Idle | State::Resting(_) | State::Resolving(_) | State::Connecting(_) | State::Closed => {
                self.left.as_ref().map(|left| &*left.machine)
            }
        }
    }

    /// Opens an unguarded session, as soon as nothing that it has sent before can be executed after what
    /// follows.
    pub(super) fn open_unguarded(&mut self, now: Time) {
        let State::Connected(link) = &mut self.state else { return };
        if !link.is_ready || link.is_open || link.gone.is_some() {
            return;
        }
        let may_change = link.machine.aoe_machine_mut().is_some_and(|machine| {
            machine.resume(now);
            machine.has_abandoned()
        });
        if !may_change {
            self.open(now);
        }
    }

    /// Nothing is retransmitted for commands that have ended.
    pub(super) fn abandon_unguarded(&mut self, now: Time, finished: &[Finished]) {
        let is_lost = |one: &Finished| matches!(one.ending, Ending::Lost { may_land: true });
        if !self.is_guarded && finished.iter().any(is_lost) {
            self.abandon(now, (0, u64::MAX));
        }
    }
}

/// The sectors of a range of bytes.
fn sectors((offset, len): (u64, u64)) -> Range<u64> {
    let sector = u64::from(wire::ata::SECTOR_BYTES);
    offset / sector..offset.saturating_add(len).div_ceil(sector)
}
