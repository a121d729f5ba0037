//! The one owner of what a unit shares between nexuses.

mod request;
#[cfg(test)]
mod tests;

pub use request::{HomeRequest, NexusIdentity};

use crate::state::attention::UnitAttention;
use crate::state::nexus::{NexusId, NexusUnit};
use crate::state::policy::Policy;
use crate::state::port_groups::PortGroups;
use crate::state::unit::{Port, PortNames, Unit};
use crate::vocabulary::modes::{Modes, ModesChange};
use crate::vocabulary::sense::Check;
use crate::vocabulary::storage::{BlockSizes, Traits};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::aoe::Mac;
use wire::scsi::AccessState;
use wire::scsi::transport_id::{TransportId, aoe_mac};

/// The home's answer, valid once every core has applied what was published with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HomeReply {
    /// Done.
    Done,
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION with this sense data.
    Check(Check),
}

/// What every core must apply before the reply may be given.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The unit's new policy.
    pub policy: Arc<Policy>,
    /// The unit itself, if it has changed.
    pub unit: Option<Arc<Unit>>,
    /// Unit attentions to establish.
    pub attentions: Vec<(Who, UnitAttention)>,
    /// Tasks to abort on this unit. Each core answers only when none of them can touch the medium any more.
    pub aborts: Vec<(Who, Aborted)>,
    /// Ports through which the medium may no longer be accessed. Each core prevents what was begun there from
    /// doing anything more to the medium, and answers only when that is certain.
    pub deactivated: Vec<u16>,
    /// What must be durable before the reply is given (APTPL, an operation that erases), as bytes for the
    /// state directory; empty bytes: remove what was saved.
    pub persist: Option<Vec<u8>>,
}

/// Which nexuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// All.
    Everyone,
    /// All but this one.
    Others(NexusId),
    /// Only this one.
    Only(NexusId),
    /// Those with this initiator port, or any port of this initiator device, and target port.
    Port {
        /// TransportID.
        transport_id: Vec<u8>,
        /// Relative target port identifier.
        target_port: u16,
    },
    /// All but those.
    NotPort {
        /// TransportID.
        transport_id: Vec<u8>,
        /// Relative target port identifier.
        target_port: u16,
    },
    /// Those that use ATA from one of these addresses.
    Listed(Arc<[Mac]>),
    /// All but those that use ATA from one of these addresses.
    Unlisted(Arc<[Mac]>),
}

impl Who {
    /// Whether this nexus is one of them.
    pub fn includes(&self, nexus: &NexusUnit) -> bool {
        self.is(nexus.id, &nexus.transport_id, nexus.target_port)
    }

    /// The same for a nexus as identified in reservations.
    pub(crate) fn is_of(&self, nexus: &NexusIdentity) -> bool {
        self.is(nexus.nexus, &nexus.transport_id, nexus.target_port)
    }

    fn is(&self, nexus: NexusId, initiator: &[u8], port: u16) -> bool {
        match self {
            Who::Everyone => true,
            Who::Others(id) => nexus != *id,
            Who::Only(id) => nexus == *id,
            Who::Port { transport_id, target_port } => {
                port == *target_port && TransportId::of(transport_id).covers(&TransportId::of(initiator))
            }
            Who::NotPort { transport_id, target_port } => {
                port != *target_port || !TransportId::of(transport_id).covers(&TransportId::of(initiator))
            }
            Who::Listed(list) => aoe_mac(initiator).is_some_and(|mac| list.contains(&mac)),
            Who::Unlisted(list) => aoe_mac(initiator).is_none_or(|mac| !list.contains(&mac)),
        }
    }
}

/// How an aborted task ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aborted {
    /// Without a response (the nexus that caused it knows, or will see the unit attention).
    Silently,
    /// With TASK ABORTED status (control mode page, TAS = 1).
    WithStatus,
}

/// The bytes to restore are not what was saved: they are damaged, truncated, or were written by something
/// else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged;

/// The owner of what a unit's nexuses share. There is one per unit; requests come one at a time.
#[derive(Debug)]
pub struct Home {
    policy: Arc<Policy>,
    pub(crate) unit: Arc<Unit>,
    /// Nexuses that prevent medium removal.
    preventing: BTreeMap<NexusId, NexusIdentity>,
    /// Policy and preventing nexuses before the last request, if it can be rolled back.
    before: Option<(Arc<Policy>, BTreeMap<NexusId, NexusIdentity>)>,
}

impl Home {
    /// A home in the state after power on.
    pub fn new(unit: Arc<Unit>, traits: Traits) -> Home {
        let (logical_bytes, physical_bytes) = (unit.block_bytes, unit.physical_block_bytes);
        let blocks = traits.blocks.unwrap_or(BlockSizes { logical_bytes, physical_bytes });
        let policy = Policy {
            epoch: 1,
            traits,
            block_bytes: blocks.logical_bytes,
            physical_block_bytes: blocks.physical_bytes,
            failed: None,
            modes: Modes::initial(&unit),
            threshold_reached: false,
            started: true,
            ejected: false,
            removal_prevented: false,
            reservations: Arc::default(),
            erasure: None,
            export: Arc::default(),
            groups: Arc::new(unit.port_groups()),
            others: Arc::default(),
            news: None,
        };
        Home { policy: Arc::new(policy), unit, preventing: BTreeMap::new(), before: None }
    }

    /// Restores what was saved across the power on ([`Publish::persist`]).
    ///
    /// # Errors
    /// When it is damaged. The unit must not be served: an initiator that was fenced off could write.
    pub fn restore(&mut self, saved: &[u8]) -> Result<(), Damaged> {
        self.policy = Arc::new(self.policy.restored(saved, &self.unit.ports).ok_or(Damaged)?);
        Ok(())
    }

    /// The newest policy.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy)
    }

    pub(crate) fn ports(&self) -> &[Port] {
        &self.unit.ports
    }

    /// Decides a request. What is published must be applied by every core before the reply is given.
    pub fn handle(&mut self, request: HomeRequest) -> (HomeReply, Option<Publish>) {
        if let Some(refusal) = self.refusal(&request) {
            return (refusal, None);
        }
        if !self.policy.decides() && request.changes_all_gateways() {
            return (HomeReply::Check(Check::PORT_IN_STANDBY), None);
        }
        // The operation has changed the medium, and ports exist or not, whether or not that can be saved.
        let can_undo = !matches!(request, HomeRequest::EraseEnd { .. } | HomeRequest::Configure(_));
        self.before = can_undo.then(|| (self.policy(), self.preventing.clone()));
        let mut draft = Draft::of(&self.policy);
        let from = request.subject_to_access_state().map(|(from, _)| from);
        let sender = from.filter(|from| from.nexus == NexusId::ELSEWHERE).cloned();
        let is_for_all = self.unit.is_shared() && request.changes_all_gateways();
        let reply = self.decide(&mut draft, request);
        if is_for_all && reply == HomeReply::Done {
            // Even if it changes nothing: another gateway may have taken over, and have another state.
            draft.persist = true;
            draft.changed();
        }
        draft.report_to_gateways(sender.as_ref(), &self.unit);
        (reply, self.publish(draft))
    }

    /// Why the sender may not make this request now, if so.
    pub(crate) fn refusal(&self, request: &HomeRequest) -> Option<HomeReply> {
        if let Some((from, accepted)) = request.subject_to_access_state()
            && let Some(check) = self.policy.groups.refusal(from.target_port, accepted)
        {
            return Some(HomeReply::Check(check));
        }
        if let Some(check) = self.untimely(request) {
            return Some(HomeReply::Check(check));
        }
        if let Some((from, class)) = request.subject_to_reservations() {
            let access = self.policy.reservations.access(from.nexus, &from.transport_id, from.target_port);
            if access.conflicts(class) {
                return Some(HomeReply::Conflict);
            }
        }
        let may_only_read = request.changer(&self.policy).is_some_and(|from| from.read_only);
        may_only_read.then_some(HomeReply::Check(Check::WRITE_PROTECTED))
    }

    fn decide(&mut self, draft: &mut Draft, request: HomeRequest) -> HomeReply {
        match request {
            HomeRequest::SetModes { from, change } => {
                draft.set_modes(from.nexus, change);
                draft.update_threshold(&self.unit)
            }
            HomeRequest::SetAccessStates { states, .. } if self.unit.is_shared() => {
                draft.policy.confirm(&states, self.unit.is_shared_by_all())
            }
            HomeRequest::SetAccessStates { from, states } => draft.set_access_states(from.nexus, &states),
            HomeRequest::SpaceChanged => draft.update_threshold(&self.unit),
            HomeRequest::StartStop { from, start, load_eject } => {
                draft.start_stop(from.nexus, start, load_eject)
            }
            HomeRequest::PreventRemoval { from, prevent } => {
                if prevent {
                    self.preventing.insert(from.nexus, from);
                } else {
                    self.preventing.remove(&from.nexus);
                }
                draft.set_prevented(!self.preventing.is_empty())
            }
            HomeRequest::PersistentReserveOut { from, order } => {
                let reply = draft.persistent_reserve_out(&from, &order, &self.unit);
                self.let_go(draft);
                reply
            }
            HomeRequest::Export { from, change } => {
                let reply = draft.change_export(&from, change);
                self.let_go(draft);
                reply
            }
            HomeRequest::Reserve(from) => draft.reserve(&from),
            HomeRequest::Release(from) => draft.release(&from),
            HomeRequest::EraseBegin { from, kind } => draft.erase_begin(from.nexus, kind),
            HomeRequest::EraseEnd { ok, kind } => draft.erase_end(ok, kind),
            HomeRequest::SanitizeExitFailure { from: _ } => draft.sanitize_exit_failure(),
            HomeRequest::QueueError { from, read_only } => draft.queue_error(from, read_only),
            HomeRequest::AbortTaskSet { from } => draft.abort_task_set(from),
            HomeRequest::ClearTaskSet { from } => draft.clear_task_set(from),
            HomeRequest::Reset { from } => {
                self.preventing.clear();
                draft.reset(from, &self.unit)
            }
            HomeRequest::EndTasks { from } => draft.end_tasks(Some(from)),
            HomeRequest::StoreChanged(traits) => draft.store_changed(traits),
            HomeRequest::StoreReset => {
                draft.attentions.push((Who::Everyone, UnitAttention::PowerOn));
                draft.changed()
            }
            HomeRequest::StoreFailed(reason) => {
                draft.policy.failed = Some(reason);
                draft.changed()
            }
            HomeRequest::NexusLost(nexus) => {
                self.preventing.remove(&nexus);
                draft.nexus_lost(nexus, !self.preventing.is_empty())
            }
            HomeRequest::SetRole { role, saved } => draft.set_role(role, saved.as_deref(), &self.unit),
            HomeRequest::SetOthers(others) => draft.set_others(others, &self.unit),
            HomeRequest::Configure(unit) => {
                let before = std::mem::replace(&mut self.unit, unit);
                draft.configure(&before, &self.unit);
                draft.update_threshold(&self.unit)
            }
        }
    }

    fn publish(&mut self, draft: Draft) -> Option<Publish> {
        let (persist, is_adopted) = (draft.persist, draft.is_adopted);
        let mut publish = draft.publish()?;
        let saved = self.saved(&publish.policy);
        let keeps = self.unit.ptpl_capable && !is_adopted && publish.policy.decides();
        if keeps && (persist || saved != self.saved(&self.policy)) {
            publish.persist = Some(saved);
        }
        self.policy = Arc::clone(&publish.policy);
        Some(publish)
    }

    fn saved(&self, policy: &Policy) -> Vec<u8> {
        if self.unit.is_shared() {
            policy.saved_for_gateways(&self.unit)
        } else {
            policy.saved(&self.unit.ports)
        }
    }

    /// PREEMPT AND ABORT ends the prevention of medium removal by those that it preempts (SPC-4 section
    /// 5.13.11.2.7).
    fn let_go(&mut self, draft: &mut Draft) {
        self.preventing.retain(|_, nexus| !draft.aborts.iter().any(|(who, _)| who.is_of(nexus)));
        draft.policy.removal_prevented = !self.preventing.is_empty();
    }

    /// Whether [`Home::undo`] can undo the last request.
    pub fn can_undo(&self) -> bool {
        self.before.is_some()
    }

    /// What the last request published could not be saved: everything is as if it had not been made, and
    /// nothing may be published. False when that is impossible, as what it reports has happened.
    pub fn undo(&mut self) -> bool {
        let Some((policy, preventing)) = self.before.take() else { return false };
        (self.policy, self.preventing) = (policy, preventing);
        true
    }
}

/// The next policy while it is being decided, with everything that goes with it.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The next policy.
    pub(crate) policy: Policy,
    /// Unit attentions to establish.
    pub(crate) attentions: Vec<(Who, UnitAttention)>,
    /// Tasks to abort.
    pub(crate) aborts: Vec<(Who, Aborted)>,
    /// Ports through which the medium may no longer be accessed.
    deactivated: Vec<u16>,
    /// Reservations have to be saved again.
    pub(crate) persist: bool,
    /// Its state is saved already.
    pub(crate) is_adopted: bool,
    /// The unit itself changes.
    unit: Option<Arc<Unit>>,
    is_changed: bool,
}

impl Draft {
    fn of(policy: &Policy) -> Draft {
        Draft {
            policy: policy.clone(),
            attentions: Vec::new(),
            aborts: Vec::new(),
            deactivated: Vec::new(),
            persist: false,
            is_adopted: false,
            unit: None,
            is_changed: false,
        }
    }

    /// The draft is to be published, and the request succeeds.
    pub(crate) fn changed(&mut self) -> HomeReply {
        self.is_changed = true;
        HomeReply::Done
    }

    fn publish(mut self) -> Option<Publish> {
        if !self.is_changed {
            return None;
        }
        self.policy.epoch = self.policy.epoch.saturating_add(1);
        Some(Publish {
            policy: Arc::new(self.policy),
            unit: self.unit,
            attentions: self.attentions,
            aborts: self.aborts,
            deactivated: self.deactivated,
            persist: None,
        })
    }

    fn set_modes(&mut self, from: NexusId, change: ModesChange) -> HomeReply {
        let modes = change.of(self.policy.modes);
        if self.policy.modes == modes {
            return HomeReply::Done;
        }
        self.policy.modes = modes;
        self.attentions.push((Who::Others(from), UnitAttention::ModeChanged));
        self.changed()
    }

    fn set_access_states(&mut self, from: NexusId, states: &[(u16, AccessState)]) -> HomeReply {
        match self.policy.groups.set(states) {
            Ok(after) => self.change_groups(after, Who::Others(from)),
            Err(check) => HomeReply::Check(check),
        }
    }

    /// SPC-4 section 5.15.2.8 notifies each nexus except the one that requested the change.
    pub(crate) fn change_groups(&mut self, after: PortGroups, notified: Who) -> HomeReply {
        let before = &self.policy.groups;
        if **before == after {
            return HomeReply::Done;
        }
        if before.differ(&after) {
            self.attentions.push((notified, UnitAttention::AccessStateChanged));
        }
        self.deactivated = before.deactivated(&after);
        self.policy.groups = Arc::new(after);
        self.changed()
    }

    fn start_stop(&mut self, from: NexusId, start: bool, load_eject: bool) -> HomeReply {
        if load_eject && self.policy.removal_prevented {
            return HomeReply::Check(Check::REMOVAL_PREVENTED);
        }
        let after = self.policy.after_start_stop(start, load_eject);
        if after == (self.policy.started, self.policy.ejected) {
            return HomeReply::Done;
        }
        if load_eject && start && self.policy.ejected {
            self.attentions.push((Who::Others(from), UnitAttention::MediumChanged));
        }
        (self.policy.started, self.policy.ejected) = after;
        self.changed()
    }

    fn set_prevented(&mut self, prevented: bool) -> HomeReply {
        if self.policy.removal_prevented == prevented {
            return HomeReply::Done;
        }
        self.policy.removal_prevented = prevented;
        self.changed()
    }

    /// QERR (SPC-4 section 7.5.8): 1 ends the whole task set, 3 the commands of the nexus that had the error.
    /// A read-only initiator could otherwise end the commands of others with any command that is refused.
    fn queue_error(&mut self, from: NexusId, read_only: bool) -> HomeReply {
        match self.policy.modes.queue_error {
            1 if !read_only => self.clear_task_set(from),
            1 | 3 => self.abort_task_set(from),
            _ => HomeReply::Done,
        }
    }

    fn abort_task_set(&mut self, from: NexusId) -> HomeReply {
        self.aborts.push((Who::Only(from), Aborted::Silently));
        self.changed()
    }

    fn clear_task_set(&mut self, from: NexusId) -> HomeReply {
        self.aborts.push((Who::Only(from), Aborted::Silently));
        if !self.policy.modes.task_set_per_nexus {
            self.abort_others(from);
        }
        self.changed()
    }

    /// Ends the commands of other nexuses: with TAS, each with TASK ABORTED status; otherwise the nexus gets
    /// one unit attention (SAM-5 section 5.6).
    pub(crate) fn abort_others(&mut self, from: NexusId) {
        self.abort_of(Who::Others(from));
    }

    /// The same for these nexuses.
    pub(crate) fn abort_of(&mut self, who: Who) {
        if self.policy.modes.task_aborted_status {
            self.aborts.push((who, Aborted::WithStatus));
        } else {
            self.aborts.push((who.clone(), Aborted::Silently));
            self.attentions.push((who, UnitAttention::CommandsCleared));
        }
    }

    fn store_changed(&mut self, traits: Traits) -> HomeReply {
        let before = self.policy.traits;
        if self.policy.failed.take().is_some() {
            self.attentions.push((Who::Everyone, UnitAttention::MediumChanged));
        } else if before == traits {
            return HomeReply::Done;
        }
        // All of these are in READ CAPACITY(16) data (SBC-3 section 4.10).
        if (before.size_bytes, before.discards, before.blocks)
            != (traits.size_bytes, traits.discards, traits.blocks)
        {
            self.attentions.push((Who::Everyone, UnitAttention::CapacityChanged));
        }
        if (Traits { size_bytes: before.size_bytes, ..traits }) != before {
            self.attentions.push((Who::Everyone, UnitAttention::InquiryChanged));
        }
        self.policy.traits = traits;
        if let Some(blocks) = traits.blocks {
            (self.policy.block_bytes, self.policy.physical_block_bytes) =
                (blocks.logical_bytes, blocks.physical_bytes);
        }
        self.changed()
    }

    /// Reports differences to all: in INQUIRY data, in READ CAPACITY(16) data, and in mode parameters.
    fn configure(&mut self, before: &Unit, after: &Arc<Unit>) -> HomeReply {
        let inquiry = |unit: &Unit| {
            let shown = (unit.product.clone(), unit.removable, unit.thin, unit.exported);
            (shown, unit.ports.len() > 1, unit.has_explicit_groups())
        };
        if inquiry(before) != inquiry(after) {
            self.attentions.push((Who::Everyone, UnitAttention::InquiryChanged));
        }
        if before.thin != after.thin {
            self.attentions.push((Who::Everyone, UnitAttention::CapacityChanged));
        }
        if before.write_cache != after.write_cache {
            self.policy.modes.write_cache = after.write_cache;
        }
        if before.warn_at != after.warn_at {
            let Modes { provisioning_errors, threshold, threshold_sets, .. } = Modes::initial(after);
            self.policy.modes = Modes { provisioning_errors, threshold, threshold_sets, ..self.policy.modes };
        }
        let modes = |unit: &Unit| (unit.read_only, unit.write_cache, unit.warn_at);
        if modes(before) != modes(after) {
            self.attentions.push((Who::Everyone, UnitAttention::ModeChanged));
        }
        if before.ports != after.ports {
            let others = &self.policy.others;
            let (before, after) = (PortNames::of(&before.ports, others), PortNames::of(&after.ports, others));
            let table = self.policy.reservations.with_ports(before, after);
            self.policy.reservations = Arc::new(table);
        }
        self.change_groups(self.policy.groups.configured(after.port_groups()), Who::Everyone);
        self.unit = Some(Arc::clone(after));
        self.changed()
    }

    fn nexus_lost(&mut self, nexus: NexusId, prevented: bool) -> HomeReply {
        if let Some(reservations) = self.policy.reservations.without(nexus) {
            self.policy.reservations = Arc::new(reservations);
            self.changed();
        }
        self.set_prevented(prevented)
    }
}
