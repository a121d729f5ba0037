//! What a unit's home decides, and who may request it.

use crate::state::export;
use crate::state::nexus::NexusId;
use crate::state::policy::Policy;
use crate::state::port_groups::{Accepted, Role};
use crate::state::reservation::ReserveOut;
use crate::state::unit::{OtherPort, Unit};
use crate::vocabulary::command::ReservationClass;
use crate::vocabulary::modes::{EraseKind, ModesChange};
use crate::vocabulary::storage::Traits;
use std::sync::Arc;
use wire::scsi::AccessState;

/// Something for a unit's home to decide.
#[derive(Clone, Debug)]
pub enum HomeRequest {
    /// PERSISTENT RESERVE OUT with its parameter list.
    PersistentReserveOut {
        /// The requester.
        from: NexusIdentity,
        /// The CDB's service action, scope and type, and the parameter list.
        order: ReserveOut,
    },
    /// RESERVE(6) or RESERVE(10).
    Reserve(NexusIdentity),
    /// RELEASE(6) or RELEASE(10).
    Release(NexusIdentity),
    /// A change to what exports by ATA over Ethernet share, or to their reserve list.
    Export {
        /// The requester.
        from: NexusIdentity,
        /// What is to change.
        change: export::Change,
    },
    /// MODE SELECT changed these fields.
    SetModes {
        /// The requester.
        from: NexusIdentity,
        /// What its pages set.
        change: ModesChange,
    },
    /// SET TARGET PORT GROUPS: sets the states of these groups.
    SetAccessStates {
        /// The requester.
        from: NexusIdentity,
        /// Tags and states.
        states: Vec<(u16, AccessState)>,
    },
    /// START STOP UNIT.
    StartStop {
        /// The requester.
        from: NexusIdentity,
        /// Start (true) or stop.
        start: bool,
        /// Load or eject the medium as well.
        load_eject: bool,
    },
    /// PREVENT ALLOW MEDIUM REMOVAL.
    PreventRemoval {
        /// The requester.
        from: NexusIdentity,
        /// Prevent (true) or allow.
        prevent: bool,
    },
    /// SANITIZE or FORMAT UNIT is about to run.
    EraseBegin {
        /// The requester.
        from: NexusIdentity,
        /// Which.
        kind: EraseKind,
    },
    /// It has ended.
    EraseEnd {
        /// Whether it succeeded.
        ok: bool,
        /// Which.
        kind: EraseKind,
    },
    /// SANITIZE, EXIT FAILURE MODE.
    SanitizeExitFailure {
        /// The requester.
        from: NexusIdentity,
    },
    /// A command of this nexus ended with CHECK CONDITION while QERR is not zero.
    QueueError {
        /// The nexus.
        from: NexusId,
        /// It is read-only, and so ends no commands of others.
        read_only: bool,
    },
    /// ABORT TASK SET.
    AbortTaskSet {
        /// The requester.
        from: NexusId,
    },
    /// CLEAR TASK SET.
    ClearTaskSet {
        /// The requester.
        from: NexusId,
    },
    /// LOGICAL UNIT RESET, or a target reset that reached this unit.
    Reset {
        /// The requester, if it was an initiator.
        from: Option<NexusId>,
    },
    /// The active gateway has reset the unit for this nexus: end the tasks that are here.
    EndTasks {
        /// The requester.
        from: NexusId,
    },
    /// The store's size or abilities changed, or it came back.
    StoreChanged(Traits),
    /// The space that its store takes was found to have changed ([`Unit::space`]).
    SpaceChanged,
    /// The store's device was reset: powered on, or restarted.
    StoreReset,
    /// The store failed permanently.
    StoreFailed(Arc<str>),
    /// The role of the unit's gateway, or its state as another one has changed it.
    SetRole {
        /// Its role.
        role: Role,
        /// The state that the gateways have saved of the unit until then; `None`: the state here is current.
        saved: Option<Arc<[u8]>>,
    },
    /// The ports of other gateways that serve the unit, from now on.
    SetOthers(Arc<[OtherPort]>),
    /// A nexus has ended: its SPC-2 reservation and its prevention of removal end.
    NexusLost(NexusId),
    /// The configuration of the unit, or the ports that lead to it, have changed: this is the new one.
    Configure(Arc<Unit>),
}

impl HomeRequest {
    /// The nexus whose command reservations may prevent, and the command's class: it was admitted before it
    /// arrived here, and another nexus may have reserved the unit since.
    pub(super) fn subject_to_reservations(&self) -> Option<(&NexusIdentity, ReservationClass)> {
        match self {
            HomeRequest::SetModes { from, .. }
            | HomeRequest::SetAccessStates { from, .. }
            | HomeRequest::EraseBegin { from, .. }
            | HomeRequest::SanitizeExitFailure { from } => Some((from, ReservationClass::Write)),
            HomeRequest::StartStop { from, start, load_eject } => {
                let harmless = *start && !load_eject;
                Some((from, if harmless { ReservationClass::Ready } else { ReservationClass::Write }))
            }
            HomeRequest::PreventRemoval { from, prevent } => {
                Some((from, if *prevent { ReservationClass::Write } else { ReservationClass::Ready }))
            }
            HomeRequest::Export { from, change } => {
                (!change.decides_reservations()).then_some((from, ReservationClass::Write))
            }
            HomeRequest::PersistentReserveOut { .. }
            | HomeRequest::Reserve(_)
            | HomeRequest::Release(_)
            | HomeRequest::EraseEnd { .. }
            | HomeRequest::QueueError { .. }
            | HomeRequest::AbortTaskSet { .. }
            | HomeRequest::ClearTaskSet { .. }
            | HomeRequest::Reset { .. }
            | HomeRequest::EndTasks { .. }
            | HomeRequest::StoreChanged(_)
            | HomeRequest::SpaceChanged
            | HomeRequest::StoreReset
            | HomeRequest::StoreFailed(_)
            | HomeRequest::SetRole { .. }
            | HomeRequest::SetOthers(_)
            | HomeRequest::NexusLost(_)
            | HomeRequest::Configure(_) => None,
        }
    }

    /// The nexus whose port's group must be in one of these states: it may have left them since the command
    /// was admitted.
    pub(crate) fn subject_to_access_state(&self) -> Option<(&NexusIdentity, Accepted)> {
        match self {
            HomeRequest::PersistentReserveOut { from, .. } | HomeRequest::SetModes { from, .. } => {
                Some((from, Accepted::InStandby))
            }
            HomeRequest::SetAccessStates { from, .. } => Some((from, Accepted::Settled)),
            HomeRequest::Reserve(from)
            | HomeRequest::Release(from)
            | HomeRequest::StartStop { from, .. }
            | HomeRequest::PreventRemoval { from, .. }
            | HomeRequest::EraseBegin { from, .. }
            | HomeRequest::SanitizeExitFailure { from } => Some((from, Accepted::WhileActive)),
            HomeRequest::Export { .. }
            | HomeRequest::EraseEnd { .. }
            | HomeRequest::QueueError { .. }
            | HomeRequest::AbortTaskSet { .. }
            | HomeRequest::ClearTaskSet { .. }
            | HomeRequest::Reset { .. }
            | HomeRequest::EndTasks { .. }
            | HomeRequest::StoreChanged(_)
            | HomeRequest::SpaceChanged
            | HomeRequest::StoreReset
            | HomeRequest::StoreFailed(_)
            | HomeRequest::SetRole { .. }
            | HomeRequest::SetOthers(_)
            | HomeRequest::NexusLost(_)
            | HomeRequest::Configure(_) => None,
        }
    }

    /// Whether it changes the unit at all gateways: only the active one executes it.
    pub(crate) fn changes_all_gateways(&self) -> bool {
        matches!(
            self,
            HomeRequest::Reset { from: Some(_) }
                | HomeRequest::PersistentReserveOut { .. }
                | HomeRequest::SetModes { .. }
                | HomeRequest::StartStop { .. }
        )
    }

    /// The sender of a request that would change the unit for others as well. Task management was checked
    /// before.
    pub(crate) fn changer(&self, policy: &Policy) -> Option<&NexusIdentity> {
        let (from, changes) = match self {
            HomeRequest::PersistentReserveOut { from, .. }
            | HomeRequest::Reserve(from)
            | HomeRequest::Export { from, .. }
            | HomeRequest::SetAccessStates { from, .. }
            | HomeRequest::EraseBegin { from, .. }
            | HomeRequest::SanitizeExitFailure { from } => (from, true),
            HomeRequest::SetModes { from, change } => (from, policy.is_changed_by(*change)),
            HomeRequest::StartStop { from, start, load_eject } => {
                (from, policy.after_start_stop(*start, *load_eject) != (policy.started, policy.ejected))
            }
            HomeRequest::PreventRemoval { from, prevent } => (from, *prevent),
            HomeRequest::Release(_)
            | HomeRequest::EraseEnd { .. }
            | HomeRequest::QueueError { .. }
            | HomeRequest::AbortTaskSet { .. }
            | HomeRequest::ClearTaskSet { .. }
            | HomeRequest::Reset { .. }
            | HomeRequest::EndTasks { .. }
            | HomeRequest::StoreChanged(_)
            | HomeRequest::SpaceChanged
            | HomeRequest::StoreReset
            | HomeRequest::StoreFailed(_)
            | HomeRequest::SetRole { .. }
            | HomeRequest::SetOthers(_)
            | HomeRequest::NexusLost(_)
            | HomeRequest::Configure(_) => return None,
        };
        changes.then_some(from)
    }
}

/// A nexus as reservations identify it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NexusIdentity {
    /// The I_T nexus.
    pub nexus: NexusId,
    /// The initiator port as a TransportID.
    pub transport_id: Arc<[u8]>,
    /// The target port's relative identifier.
    pub target_port: u16,
    /// It is read-only, and so changes nothing for others.
    pub read_only: bool,
    /// How many reports its gateway had of what other gateways did, when its command came in, if it had any state.
    pub(crate) known_news: Option<u64>,
}
