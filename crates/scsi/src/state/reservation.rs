//! Reservations: RESERVE/RELEASE (SPC-2 section 5.5), PERSISTENT RESERVE (SPC-4 section 5.13), and the
//! reserve list of ATA over Ethernet. At most one of these is in force at a time.

mod apply;
pub mod holders;
mod list;
mod report;
mod reserve_out;
pub(crate) mod saved;

pub use apply::{Effects, Refusal};
pub use reserve_out::ReserveOut;

use crate::state::home::{Aborted, Draft, HomeReply, NexusIdentity};
use crate::state::nexus::NexusId;
use crate::state::unit::{PortNames, Unit};
use crate::vocabulary::command::ReservationClass;
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::aoe::Mac;
use wire::scsi::transport_id::TransportId;

/// The registrations and the reservation of a unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// PRGENERATION.
    generation: u32,
    /// In the order of registration.
    registrations: Vec<Registration>,
    reservation: Option<Reservation>,
    /// APTPL: registrations and reservation are saved across restarts.
    is_persistent: bool,
    /// The holder of a reservation by RESERVE.
    reserved: Option<NexusId>,
    /// The reserve list of ATA over Ethernet: initiators whose commands are accepted. Empty: there is no such
    /// reservation.
    list: Arc<[Mac]>,
}

/// An initiator port at a target port: an I_T nexus by names that outlive its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NexusName {
    initiator: TransportId,
    target_port: TargetPort,
}

/// The target port of a registration.
#[derive(Clone, PartialEq, Eq, Debug)]
enum TargetPort {
    /// By its relative identifier.
    Here(u16),
    /// By its saved name: the unit no longer has such a port, so no nexus uses it.
    Gone(Arc<str>),
}

impl NexusName {
    fn of(identity: &NexusIdentity) -> NexusName {
        NexusName::new(&identity.transport_id, identity.target_port)
    }

    fn new(transport_id: &[u8], target_port: u16) -> NexusName {
        NexusName { initiator: TransportId::of(transport_id), target_port: TargetPort::Here(target_port) }
    }

    /// Whether a registration under this name includes `other`.
    fn covers(&self, other: &NexusName) -> bool {
        self.target_port == other.target_port && self.initiator.covers(&other.initiator)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Registration {
    nexus: NexusName,
    /// Never zero.
    key: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Reservation {
    kind: Kind,
    /// The name in the holder's registration; `None`: every registered nexus is a holder.
    holder: Option<NexusName>,
}

impl Reservation {
    fn is_held_by(&self, registration: &Registration) -> bool {
        self.holder.as_ref().is_none_or(|holder| *holder == registration.nexus)
    }
}

/// Types of persistent reservations (SPC-4 table 175).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    WriteExclusive,
    ExclusiveAccess,
    WriteExclusiveRegistrantsOnly,
    ExclusiveAccessRegistrantsOnly,
    WriteExclusiveAllRegistrants,
    ExclusiveAccessAllRegistrants,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrantsOnly,
        Kind::ExclusiveAccessRegistrantsOnly,
        Kind::WriteExclusiveAllRegistrants,
        Kind::ExclusiveAccessAllRegistrants,
    ];

    /// The TYPE field's value.
    fn bits(self) -> u8 {
        match self {
            Kind::WriteExclusive => 1,
            Kind::ExclusiveAccess => 3,
            Kind::WriteExclusiveRegistrantsOnly => 5,
            Kind::ExclusiveAccessRegistrantsOnly => 6,
            Kind::WriteExclusiveAllRegistrants => 7,
            Kind::ExclusiveAccessAllRegistrants => 8,
        }
    }

    /// Its name in SPC-4 table 175.
    fn name(self) -> &'static str {
        match self {
            Kind::WriteExclusive => "write exclusive",
            Kind::ExclusiveAccess => "exclusive access",
            Kind::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
            Kind::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
            Kind::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
            Kind::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
        }
    }

    fn from_bits(bits: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.bits() == bits)
    }

    /// Others may read.
    fn lets_read(self) -> bool {
        match self {
            Kind::WriteExclusive
            | Kind::WriteExclusiveRegistrantsOnly
            | Kind::WriteExclusiveAllRegistrants => true,
            Kind::ExclusiveAccess
            | Kind::ExclusiveAccessRegistrantsOnly
            | Kind::ExclusiveAccessAllRegistrants => false,
        }
    }

    /// Registered nexuses may do what the holder may.
    fn is_shared(self) -> bool {
        match self {
            Kind::WriteExclusive | Kind::ExclusiveAccess => false,
            Kind::WriteExclusiveRegistrantsOnly
            | Kind::ExclusiveAccessRegistrantsOnly
            | Kind::WriteExclusiveAllRegistrants
            | Kind::ExclusiveAccessAllRegistrants => true,
        }
    }

    /// Registered nexuses are all holders.
    fn is_of_all(self) -> bool {
        match self {
            Kind::WriteExclusiveAllRegistrants | Kind::ExclusiveAccessAllRegistrants => true,
            Kind::WriteExclusive
            | Kind::ExclusiveAccess
            | Kind::WriteExclusiveRegistrantsOnly
            | Kind::ExclusiveAccessRegistrantsOnly => false,
        }
    }
}

impl Table {
    /// The most registrations of a unit.
    pub const REGISTRATIONS_MAX: usize = 128;

    /// What a nexus may do.
    pub fn access(&self, nexus: NexusId, transport_id: &[u8], target_port: u16) -> Access {
        if !self.list.is_empty() {
            return if self.is_listed(transport_id) { Access::Full } else { Access::Control };
        }
        if self.reserved.is_some_and(|holder| holder != nexus) {
            return Access::Nothing;
        }
        let Some(reservation) = &self.reservation else { return Access::Full };
        let registration = self.registration(&NexusName::new(transport_id, target_port));
        let is_let_in =
            registration.is_some_and(|own| reservation.kind.is_shared() || reservation.is_held_by(own));
        if is_let_in {
            Access::Full
        } else if reservation.kind.lets_read() {
            Access::Read
        } else {
            Access::Control
        }
    }

    /// The bytes to save across restarts; empty if nothing is saved.
    pub(crate) fn saved(&self, ports: PortNames<'_>) -> Vec<u8> {
        if self.is_persistent { self.encode(ports) } else { Vec::new() }
    }

    /// Whether APTPL is in force: it survives a loss of power.
    pub(crate) fn survives_power(&self) -> bool {
        self.is_persistent
    }

    /// PRGENERATION.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// A table that another gateway has saved, for use there.
    pub(crate) fn continued(table: Table, generation: u32, is_persistent: bool) -> Table {
        Table { generation, is_persistent, ..table }
    }

    /// The same with the unit's new ports: registrations through a port that no longer exists stay, and
    /// belong to it again when it is back.
    pub(crate) fn with_ports(&self, before: PortNames<'_>, after: PortNames<'_>) -> Table {
        let mut table = self.clone();
        let named = table.registrations.iter_mut().map(|registration| &mut registration.nexus);
        let holder = table.reservation.as_mut().and_then(|held| held.holder.as_mut());
        for nexus in named.chain(holder) {
            nexus.target_port = nexus.target_port.among(before, after);
        }
        table
    }

    /// Target ports that have registrations but no longer exist.
    pub fn gone_ports(&self) -> BTreeSet<Arc<str>> {
        let gone = |registration: &Registration| match &registration.nexus.target_port {
            TargetPort::Gone(name) => Some(Arc::clone(name)),
            TargetPort::Here(_) => None,
        };
        self.registrations.iter().filter_map(gone).collect()
    }

    /// Whether RESERVE holds the unit: PERSISTENT RESERVE then conflicts for every nexus (SPC-2 section
    /// 5.5.1).
    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved.is_some()
    }

    /// What remains after a logical unit reset: everything except the reservation by RESERVE.
    pub(crate) fn after_reset(&self) -> Table {
        Table { reserved: None, ..self.clone() }
    }

    /// The nexus that has reserved the unit by RESERVE.
    pub(crate) fn reserver(&self) -> Option<NexusId> {
        self.reserved
    }

    /// Whether the nexus has reserved the unit by RESERVE.
    pub(crate) fn is_reserved_by(&self, nexus: NexusId) -> bool {
        self.reserved == Some(nexus)
    }

    /// The table without the RESERVE of a lost nexus, if it had one.
    pub(crate) fn without(&self, nexus: NexusId) -> Option<Table> {
        self.is_reserved_by(nexus).then(|| self.after_reset())
    }

    /// The registration of a nexus: its own, or that of its initiator's name.
    fn registration(&self, nexus: &NexusName) -> Option<&Registration> {
        let own = self.registrations.iter().find(|registration| registration.nexus == *nexus);
        own.or_else(|| self.registrations.iter().find(|registration| registration.nexus.covers(nexus)))
    }

    /// Whether RESERVE and RELEASE succeed without effect: the nexus holds the persistent reservation, or
    /// shares it as a registrant (SPC-4 section 5.13.3; CRH).
    fn is_compatible(&self, nexus: &NexusName) -> bool {
        self.registration(nexus).is_some_and(|registration| {
            self.reservation
                .as_ref()
                .is_some_and(|held| held.kind.is_shared() || held.is_held_by(registration))
        })
    }
}

/// What reservations, and the state of its target port group, permit a nexus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Everything.
    #[default]
    Full,
    /// Another nexus has a write exclusive reservation.
    Read,
    /// Another nexus has an exclusive access reservation.
    Control,
    /// Another nexus has a reservation by RESERVE.
    Nothing,
    /// The target port group is not active. Its state, then reservations, decide about each command.
    Inactive,
}

impl Access {
    /// Whether a command of this class is not permitted outright: with reservations alone it ends with
    /// RESERVATION CONFLICT.
    pub fn conflicts(&self, class: ReservationClass) -> bool {
        match class {
            ReservationClass::Always => *self == Access::Inactive,
            ReservationClass::Ready => matches!(self, Access::Nothing | Access::Inactive),
            ReservationClass::Read => matches!(self, Access::Control | Access::Nothing | Access::Inactive),
            ReservationClass::Write => *self != Access::Full,
        }
    }
}

impl Draft {
    pub(crate) fn persistent_reserve_out(
        &mut self,
        from: &NexusIdentity,
        order: &ReserveOut,
        unit: &Unit,
    ) -> HomeReply {
        if let Some(check) = order.requests_persistence().filter(|_| !unit.ptpl_capable) {
            return HomeReply::Check(check);
        }
        let ports: Vec<u16> = PortNames::of(&unit.ports, &self.policy.others).ids().collect();
        let (table, effects) = match self.policy.reservations.apply(from, order, &ports) {
            Ok(done) => done,
            Err(Refusal::Conflict) => return HomeReply::Conflict,
            Err(Refusal::Check(check)) => return HomeReply::Check(check),
        };
        let aborted = Aborted::by(self.policy.modes);
        self.policy.reservations = Arc::new(table);
        self.attentions.extend(effects.attentions);
        self.aborts.extend(effects.aborts.into_iter().map(|who| (who, aborted)));
        self.persist = effects.persist;
        self.changed()
    }

    pub(crate) fn reserve(&mut self, from: &NexusIdentity) -> HomeReply {
        let table = &self.policy.reservations;
        if !table.registrations.is_empty() {
            return registered(table.is_compatible(&NexusName::of(from)));
        }
        if !table.list.is_empty() || table.reserved.is_some_and(|holder| holder != from.nexus) {
            return HomeReply::Conflict;
        }
        self.policy.reservations = Arc::new(Table { reserved: Some(from.nexus), ..Table::clone(table) });
        self.changed()
    }

    pub(crate) fn release(&mut self, from: &NexusIdentity) -> HomeReply {
        let table = &self.policy.reservations;
        if !table.registrations.is_empty() {
            return registered(table.is_compatible(&NexusName::of(from)));
        }
        match table.without(from.nexus) {
            Some(table) => {
                self.policy.reservations = Arc::new(table);
                self.changed()
            }
            None => HomeReply::Done,
        }
    }
}

/// RESERVE or RELEASE while there are registrations.
fn registered(is_compatible: bool) -> HomeReply {
    if is_compatible { HomeReply::Done } else { HomeReply::Conflict }
}

#[cfg(test)]
mod tests;
