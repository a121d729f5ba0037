//! How PERSISTENT RESERVE OUT changes the table (SPC-4 sections 5.13.6 to 5.13.11).

use super::reserve_out::{Action, Register};
use super::{Kind, NexusName, Registration, Reservation, ReserveOut, Table, TargetPort};
use crate::state::attention::UnitAttention;
use crate::state::home::{NexusIdentity, Who};
use crate::vocabulary::sense::Check;
use wire::scsi::command::PersistentReserveOut;

/// The side effects of a change of the table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Unit attentions to establish.
    pub attentions: Vec<(Who, UnitAttention)>,
    /// The nexuses whose tasks are aborted.
    pub aborts: Vec<Who>,
    /// The saved state has changed.
    pub persist: bool,
}

/// Why an order is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Check),
}

impl From<Check> for Refusal {
    fn from(check: Check) -> Refusal {
        Refusal::Check(check)
    }
}

impl Table {
    /// The table after an order. `ports`: the relative identifiers of all target ports of the unit.
    pub fn apply(
        &self,
        from: &NexusIdentity,
        order: &ReserveOut,
        ports: &[u16],
    ) -> Result<(Table, Effects), Refusal> {
        if self.is_reserved() {
            return Err(Refusal::Conflict);
        }
        let mut change =
            Change { table: self.clone(), from: NexusName::of(from), effects: Effects::default() };
        match &order.action {
            Action::Register(register) => change.register(order, register, ports)?,
            Action::Reserve(_) if !self.list.is_empty() => return Err(Refusal::Conflict),
            Action::Reserve(kind) => change.reserve(&change.sender(order.key)?, *kind)?,
            Action::Release(kind) => change.release(&change.sender(order.key)?, *kind)?,
            Action::Clear => {
                change.clear(&change.sender(order.key)?);
                change.take_list(false);
            }
            Action::Preempt { kind, abort } => {
                change.preempt(&change.sender(order.key)?, order.action_key, *kind, *abort)?;
                change.take_list(*abort);
            }
            Action::Move { to, unregister, persist } => {
                let sender = change.sender(order.key)?;
                change.move_to(&sender, order.action_key, to, *unregister, ports)?;
                change.table.is_persistent = *persist;
            }
        }
        match &order.action {
            Action::Reserve(_) | Action::Release(_) => {}
            Action::Register(_) | Action::Clear | Action::Preempt { .. } | Action::Move { .. } => {
                change.table.generation = change.table.generation.wrapping_add(1);
            }
        }
        change.effects.persist = self.is_persistent || change.table.is_persistent;
        Ok((change.table, change.effects))
    }
}

/// A table while an order is carried out; discarded when it is refused.
pub(super) struct Change {
    pub(super) table: Table,
    from: NexusName,
    pub(super) effects: Effects,
}

impl Change {
    /// The registration of the sender, which must have this key.
    fn sender(&self, key: u64) -> Result<Registration, Refusal> {
        let own = self.table.registration(&self.from).filter(|own| own.key == key);
        own.cloned().ok_or(Refusal::Conflict)
    }

    fn register(&mut self, order: &ReserveOut, register: &Register, ports: &[u16]) -> Result<(), Refusal> {
        let own = self.table.registration(&self.from).map_or(0, |own| own.key);
        if !register.ignore_key && own != order.key {
            return Err(Refusal::Conflict);
        }
        if register.others.is_some() && (own != 0 || order.action_key == 0) {
            return Err(Check::CDB.into());
        }
        let at = |port: &u16| NexusName { target_port: TargetPort::Here(*port), ..self.from.clone() };
        let elsewhere = ports.iter().filter(|_| register.all_target_ports).map(at);
        let everywhere: Vec<NexusName> =
            std::iter::once(self.from.clone()).chain(elsewhere.filter(|name| *name != self.from)).collect();
        for name in &everywhere {
            let key = self.table.registration(name).map(|registration| registration.key);
            if !register.ignore_key && key.is_some_and(|key| key != order.key) {
                return Err(Refusal::Conflict);
            }
        }
        for name in &everywhere {
            if order.action_key == 0 {
                self.unregister(name);
            } else {
                self.set(name, order.action_key)?;
            }
            for initiator in register.others.iter().flatten() {
                let other = NexusName { initiator: initiator.clone(), target_port: name.target_port.clone() };
                if other != *name && self.table.registration(&other).is_some() {
                    return Err(Check::PARAMETER.into());
                }
                self.set(&other, order.action_key)?;
            }
        }
        self.table.is_persistent = register.persist;
        Ok(())
    }

    /// Registers a nexus with this key, or changes the key of its registration.
    fn set(&mut self, name: &NexusName, key: u64) -> Result<(), Refusal> {
        let known = self.table.registration(name).cloned();
        let registrations = &mut self.table.registrations;
        if let Some(registration) = registrations.iter_mut().find(|one| Some(&**one) == known.as_ref()) {
            registration.key = key;
        } else if registrations.len() < Table::REGISTRATIONS_MAX {
            registrations.push(Registration { nexus: name.clone(), key });
        } else {
            return Err(Check::NO_REGISTRATION_RESOURCES.into());
        }
        Ok(())
    }

    /// Removes a registration, and the reservation with its last holder (SPC-4 section 5.13.11.2.3).
    fn unregister(&mut self, name: &NexusName) {
        let Some(gone) = self.table.registration(name).cloned() else { return };
        self.table.registrations.retain(|registration| *registration != gone);
        let ends = self.table.reservation.as_ref().is_some_and(|held| match &held.holder {
            Some(holder) => *holder == gone.nexus,
            None => self.table.registrations.is_empty(),
        });
        if !ends {
            return;
        }
        if self.table.reservation.take().is_some_and(|held| held.kind.is_shared()) {
            self.notify_registered(UnitAttention::ReservationsReleased);
        }
    }

    fn reserve(&mut self, sender: &Registration, kind: Kind) -> Result<(), Refusal> {
        match &self.table.reservation {
            None => self.hold(sender, kind),
            Some(held) if held.is_held_by(sender) && held.kind == kind => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(())
    }

    fn hold(&mut self, sender: &Registration, kind: Kind) {
        let holder = (!kind.is_of_all()).then(|| sender.nexus.clone());
        self.table.reservation = Some(Reservation { kind, holder });
    }

    fn release(&mut self, sender: &Registration, kind: Option<Kind>) -> Result<(), Refusal> {
        let Some(held) = self.table.reservation.as_ref().filter(|held| held.is_held_by(sender)) else {
            return Ok(());
        };
        if Some(held.kind) != kind {
            return Err(Check::INVALID_RELEASE.into());
        }
        let is_shared = held.kind.is_shared();
        self.table.reservation = None;
        if is_shared {
            self.notify_registered(UnitAttention::ReservationsReleased);
        }
        Ok(())
    }

    fn clear(&mut self, sender: &Registration) {
        self.table.reservation = None;
        for gone in std::mem::take(&mut self.table.registrations) {
            if gone != *sender {
                self.notify(&gone, UnitAttention::ReservationsPreempted);
            }
        }
    }

    /// Removes registrations and, when they are those of the reservation's holders, takes over the
    /// reservation (SPC-4 section 5.13.11.2.6).
    fn preempt(
        &mut self,
        sender: &Registration,
        victims: u64,
        kind: Option<Kind>,
        abort: bool,
    ) -> Result<(), Refusal> {
        let takes_over = self.table.reservation.as_ref().is_some_and(|held| match &held.holder {
            Some(holder) => {
                let key = self.table.registration(holder).map(|registration| registration.key);
                key == Some(victims)
            }
            None => victims == 0,
        });
        if victims == 0 && !takes_over {
            return Err(Check::parameter_byte(8).into());
        }
        let is_victim = |registration: &Registration| victims == 0 || registration.key == victims;
        if !self.table.registrations.iter().any(is_victim) {
            return Err(Refusal::Conflict);
        }
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.table.registrations)
            .into_iter()
            .partition(|registration| is_victim(registration) && !(takes_over && registration == sender));
        self.table.registrations = left;
        if takes_over {
            let kind = kind.ok_or(Check::cdb_byte(PersistentReserveOut::KIND.byte()))?;
            if self.table.reservation.as_ref().is_some_and(|held| held.kind != kind) {
                self.notify_registered(UnitAttention::ReservationsReleased);
            }
            self.hold(sender, kind);
        } else if self.table.registrations.is_empty() {
            self.table.reservation = None;
        }
        for registration in gone.iter().filter(|gone| *gone != sender) {
            self.notify(registration, UnitAttention::RegistrationsPreempted);
            if abort {
                self.effects.aborts.extend(who(registration));
            }
        }
        Ok(())
    }

    /// REGISTER AND MOVE (SPC-4 section 5.13.8).
    fn move_to(
        &mut self,
        sender: &Registration,
        key: u64,
        to: &NexusName,
        unregister: bool,
        ports: &[u16],
    ) -> Result<(), Refusal> {
        let Some(held) = self.table.reservation.clone() else { return Err(Check::CDB.into()) };
        if held.holder.as_ref() != Some(&sender.nexus) {
            return Err(Refusal::Conflict);
        }
        if key == 0 {
            return Err(Check::parameter_byte(8).into());
        }
        if !ports.iter().any(|port| to.target_port == TargetPort::Here(*port)) {
            return Err(Check::parameter_byte(18).into());
        }
        if *to == self.from {
            return Err(Check::parameter_byte(24).into());
        }
        if unregister {
            self.table.registrations.retain(|registration| registration != sender);
        }
        self.set(to, key)?;
        let holder = self.table.registration(to).map(|registration| registration.nexus.clone());
        self.table.reservation = Some(Reservation { holder, ..held });
        Ok(())
    }

    /// Notifies every registered nexus except the sender.
    fn notify_registered(&mut self, attention: UnitAttention) {
        for registration in self.table.registrations.clone() {
            if !registration.nexus.covers(&self.from) {
                self.notify(&registration, attention);
            }
        }
    }

    fn notify(&mut self, registration: &Registration, attention: UnitAttention) {
        self.effects.attentions.extend(who(registration).map(|who| (who, attention)));
    }
}

/// The nexuses of a registration, if it can have any.
pub(super) fn who(registration: &Registration) -> Option<Who> {
    match registration.nexus.target_port {
        TargetPort::Here(target_port) => {
            let transport_id = registration.nexus.initiator.as_bytes().to_vec();
            Some(Who::Port { transport_id, target_port })
        }
        TargetPort::Gone(_) => None,
    }
}
