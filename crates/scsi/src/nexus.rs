//! What one I_T_L nexus holds: owned by the core of its session.

use crate::reservation::Access;
use std::collections::VecDeque;

/// Names an I_T nexus within the daemon for as long as its session lives; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NexusId(pub u64);

/// The state of one I_T_L nexus.
#[derive(Clone, Debug)]
pub struct NexusUnit {
    /// The I_T nexus.
    pub id: NexusId,
    /// The initiator port as a TransportID (SPC-4 section 7.6.4).
    pub transport_id: Vec<u8>,
    /// The target port's relative identifier.
    pub target_port: u16,
    /// This nexus may only read (access rule of its initiator group).
    pub read_only: bool,
    /// Pending unit attentions, oldest first, each once; at most [`NexusUnit::ATTENTIONS_MAX`].
    pub attentions: VecDeque<crate::attention::UnitAttention>,
    /// What reservations let this nexus do, computed from the policy of `access_epoch`.
    pub access: Access,
    /// Epoch of the policy that `access` was computed from; 0: none yet.
    pub access_epoch: u64,
    /// Results of this nexus's copy operations, for RECEIVE COPY RESULTS and STATUS.
    pub copies: crate::copy::Results,
}

impl NexusUnit {
    /// Pending unit attentions per nexus and unit.
    pub const ATTENTIONS_MAX: usize = 16;
}
