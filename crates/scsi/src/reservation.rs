//! Reservations: RESERVE/RELEASE (SPC-2) and PERSISTENT RESERVE (SPC-4 section 5.13).

use crate::home::{Draft, HomeReply, Identity};
use crate::nexus::NexusId;
use crate::table::ReservationClass;

/// The registrations and the reservation of a unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {}

impl Table {
    /// The table that was kept as these bytes; empty when they make no sense.
    pub fn restore(_kept: &[u8]) -> Table {
        Table::default()
    }

    /// What a nexus may do.
    pub fn access(&self, _nexus: NexusId, _transport_id: &[u8], _target_port: u16) -> Access {
        Access::default()
    }

    /// What stays after a logical unit reset.
    pub(crate) fn after_reset(&self) -> Table {
        self.clone()
    }

    /// The table without the RESERVE of a lost nexus, if it had one.
    pub(crate) fn without(&self, _nexus: NexusId) -> Option<Table> {
        None
    }
}

/// PERSISTENT RESERVE OUT with its parameter list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Order {}

/// What reservations let a nexus do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {}

impl Access {
    /// Whether a command of this class ends with RESERVATION CONFLICT.
    pub fn conflicts(&self, _class: ReservationClass) -> bool {
        false
    }
}

impl Draft {
    pub(crate) fn persistent_reserve_out(&mut self, _from: &Identity, _order: &Order) -> HomeReply {
        HomeReply::Conflict
    }

    pub(crate) fn reserve(&mut self, _from: &Identity) -> HomeReply {
        HomeReply::Conflict
    }

    pub(crate) fn release(&mut self, _from: &Identity) -> HomeReply {
        HomeReply::Conflict
    }
}
