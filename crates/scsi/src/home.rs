//! The one owner of what a unit shares between nexuses.

use crate::attention::UnitAttention;
use crate::nexus::NexusId;
use crate::policy::{Modes, Policy};
use crate::sense::Check;
use crate::storage::Traits;
use std::sync::Arc;

/// Something for a unit's home to decide.
#[derive(Clone, Debug)]
pub enum HomeRequest {
    /// PERSISTENT RESERVE OUT with its parameter list.
    PersistentReserveOut {
        /// Who.
        from: Identity,
        /// The CDB's service action, scope and type, and the parameter list.
        order: crate::reservation::Order,
    },
    /// RESERVE(6) or RESERVE(10).
    Reserve(Identity),
    /// RELEASE(6) or RELEASE(10).
    Release(Identity),
    /// MODE SELECT changed these fields.
    SetModes {
        /// Who.
        from: NexusId,
        /// The new values.
        modes: Modes,
    },
    /// START STOP UNIT.
    StartStop {
        /// Who.
        from: NexusId,
        /// Start (true) or stop.
        start: bool,
        /// Load or eject the medium as well.
        load_eject: bool,
    },
    /// PREVENT ALLOW MEDIUM REMOVAL.
    PreventRemoval {
        /// Who.
        from: NexusId,
        /// Prevent (true) or allow.
        prevent: bool,
    },
    /// SANITIZE is about to run.
    SanitizeBegin {
        /// Who.
        from: NexusId,
        /// AUSE bit.
        unrestricted: bool,
    },
    /// SANITIZE came to its end.
    SanitizeEnd {
        /// Whether all went well.
        ok: bool,
    },
    /// SANITIZE, EXIT FAILURE MODE.
    SanitizeExitFailure {
        /// Who.
        from: NexusId,
    },
    /// A command of this nexus ended with CHECK CONDITION while QERR is not zero.
    QueueError {
        /// Who.
        from: NexusId,
    },
    /// CLEAR TASK SET.
    ClearTaskSet {
        /// Who.
        from: NexusId,
    },
    /// LOGICAL UNIT RESET, or a target reset that reached this unit.
    Reset {
        /// Who, when an initiator asked for it.
        from: Option<NexusId>,
    },
    /// The store's size or abilities changed, or it came back.
    StoreChanged(Traits),
    /// The store failed for good.
    StoreFailed(Arc<str>),
    /// A nexus is no more: its SPC-2 reservation and its prevention of removal end.
    NexusLost(NexusId),
}

/// A nexus as reservations know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The I_T nexus.
    pub nexus: NexusId,
    /// The initiator port as a TransportID.
    pub transport_id: Vec<u8>,
    /// The target port's relative identifier.
    pub target_port: u16,
}

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
    /// Unit attentions to establish.
    pub attentions: Vec<(Who, UnitAttention)>,
    /// Tasks to abort on this unit. Each core answers only when none of them can touch the medium any more.
    pub aborts: Vec<(Who, Aborted)>,
    /// Reservation state that must be durable before the reply is given (APTPL), as bytes for the state directory;
    /// empty bytes: remove what was kept.
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
    /// Those with this initiator port and target port.
    Port {
        /// TransportID.
        transport_id: Vec<u8>,
        /// Relative target port identifier.
        target_port: u16,
    },
}

/// How an aborted task ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aborted {
    /// Without a response (the nexus that caused it knows, or will see the unit attention).
    Silently,
    /// With TASK ABORTED status (control mode page, TAS = 1).
    WithStatus,
}
