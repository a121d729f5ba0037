//! What waits for a reply from a unit's home.

use crate::slots::Key;
use proto::services::FunctionId;
use scsi::NexusId;

/// What waits for a home's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    /// The core.
    pub(crate) core: usize,
    /// What waits on that core.
    pub(crate) who: Waiter,
}

/// What waits on a core for a home's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// Nobody.
    Nobody,
    /// A task.
    Task(Key),
    /// A task management function.
    Function(Requester),
    /// A connection whose nexus is lost.
    Connection(Key),
    /// A new configuration of the unit, in this change of its core.
    Configuration(u64),
    /// The thread of this unit, which gateways share.
    Gateway(u32),
    /// The same, on behalf of another gateway, whose request it is.
    OtherGateway(u32),
}

/// An outstanding task management function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Requester {
    /// Its core.
    pub(crate) core: usize,
    /// The connection that it arrived on.
    pub(crate) connection: Key,
    /// The transport's handle.
    pub(crate) id: FunctionId,
    /// The nexus of that connection.
    pub(crate) nexus: NexusId,
}
