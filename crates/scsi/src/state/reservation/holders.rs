//! The holders of a unit in readable form.

use super::{NexusName, Table, TargetPort};
use crate::state::nexus::NexusId;
use std::sync::Arc;
use wire::aoe::Mac;

/// The nexuses that have reserved a unit, or are registered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holders {
    /// The type of the persistent reservation (SPC-4 table 175), if there is one.
    pub persistent: Option<&'static str>,
    /// The registrations, in order.
    pub registered: Vec<Registered>,
    /// The nexus that has reserved it by RESERVE.
    pub reserved: Option<NexusId>,
    /// The reserve list of ATA over Ethernet.
    pub list: Arc<[Mac]>,
}

/// A registration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    /// The initiator port.
    pub initiator: String,
    /// The relative identifier of the target port; `None`: the unit no longer has it.
    pub target_port: Option<u16>,
    /// The reservation key.
    pub key: u64,
    /// It holds the persistent reservation.
    pub holds: bool,
}

impl Table {
    /// The nexuses that have reserved the unit, or are registered.
    pub fn holders(&self) -> Holders {
        let registered = self.registrations.iter().map(|registration| {
            let NexusName { initiator, target_port } = &registration.nexus;
            Registered {
                initiator: initiator.to_string(),
                target_port: match target_port {
                    TargetPort::Here(port) => Some(*port),
                    TargetPort::Gone(_) => None,
                },
                key: registration.key,
                holds: self.reservation.as_ref().is_some_and(|held| held.is_held_by(registration)),
            }
        });
        Holders {
            persistent: self.reservation.as_ref().map(|held| held.kind.name()),
            registered: registered.collect(),
            reserved: self.reserved,
            list: self.list.clone(),
        }
    }
}
