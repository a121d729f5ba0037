//! Logical unit resets.

use crate::state::attention::UnitAttention;
use crate::state::home::{Aborted, Draft, HomeReply, Who};
use crate::state::nexus::NexusId;
use crate::state::unit::Unit;
use crate::vocabulary::modes::Modes;
use std::sync::Arc;

impl Draft {
    /// A logical unit reset (SAM-5 section 6.3.3): tasks, the reservation of RESERVE, prevention of removal
    /// and mode parameters are cleared; persistent reservations stay.
    pub(crate) fn reset(&mut self, from: Option<NexusId>, unit: &Unit) -> HomeReply {
        // With TAS as it is until then.
        self.end_tasks(from);
        self.policy.modes = Modes::initial(unit);
        self.policy.removal_prevented = false;
        self.policy.started = true;
        self.policy.reservations = Arc::new(self.policy.reservations.after_reset());
        self.attentions.push((Who::Everyone, UnitAttention::Reset));
        self.changed()
    }

    /// Ends all tasks: those of the requester silently.
    pub(crate) fn end_tasks(&mut self, from: Option<NexusId>) -> HomeReply {
        match from {
            Some(from) if self.policy.modes.task_aborted_status => {
                self.aborts.push((Who::Only(from), Aborted::Silently));
                self.aborts.push((Who::Others(from), Aborted::WithStatus));
            }
            Some(_) | None => self.aborts.push((Who::Everyone, Aborted::Silently)),
        }
        self.changed()
    }
}
