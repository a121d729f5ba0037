//! The reserve list of ATA over Ethernet (AoEr11, reserve/release command), and what it means for SCSI.
//!
//! While it is not empty, commands of every nexus that is not on it conflict as with a persistent reservation of type
//! Exclusive Access. It is set without force only by whom no reservation stops; with force it takes the place of any
//! reservation, and ends the commands of those whom it shuts out, as PREEMPT AND ABORT does.

use super::apply::{Change, who};
use super::{Access, Table, aoe_mac};
use crate::attention::UnitAttention;
use crate::home::{Draft, HomeReply, Identity, Who};
use std::sync::Arc;
use wire::aoe::Mac;

impl Table {
    /// Whose commands are let in; empty: no such list is set.
    pub fn list(&self) -> &[Mac] {
        &self.list
    }

    /// Whether the initiator is on the list.
    pub(super) fn is_listed(&self, transport_id: &[u8]) -> bool {
        aoe_mac(transport_id).is_some_and(|mac| self.list.contains(&mac))
    }

    /// Who loses a SCSI reservation if it is taken away: its holder, and with it all who shared it.
    fn losers(&self) -> Vec<Who> {
        let mut losers: Vec<Who> = self.reserved.map(Who::Only).into_iter().collect();
        if let Some(held) = &self.reservation {
            let had_it =
                self.registrations.iter().filter(|one| held.kind.is_shared() || held.is_held_by(one));
            losers.extend(had_it.filter_map(who));
        }
        losers
    }
}

impl Draft {
    /// Sets the list. An empty one releases.
    pub(crate) fn set_reserve_list(&mut self, from: &Identity, list: Arc<[Mac]>, force: bool) -> HomeReply {
        let table = Arc::clone(&self.policy.reservations);
        if !force && table.access(from.nexus, &from.transport_id, from.target_port) != Access::Full {
            return HomeReply::Conflict;
        }
        let lost = table.losers().into_iter().map(|who| (who, UnitAttention::ReservationsPreempted));
        self.attentions.extend(lost);
        if force && !list.is_empty() {
            self.abort_of(Who::Unlisted(Arc::clone(&list)));
        }
        let table = Table::clone(&table);
        self.policy.reservations = Arc::new(Table { list, reservation: None, reserved: None, ..table });
        self.changed()
    }
}

impl Change {
    /// A registered nexus takes the list away: PREEMPT (AND ABORT) and CLEAR are how SCSI gets the unit back.
    pub(super) fn take_list(&mut self, abort: bool) {
        let list = std::mem::take(&mut self.table.list);
        if abort && !list.is_empty() {
            self.effects.aborts.push(Who::Listed(list));
        }
    }
}
