//! The home of a unit: one request at a time, published to every core, answered when all have applied it.

mod requests;

use super::gate::GateHome;
use super::leaving::Farewell;
use crate::message::Origin;
use crate::slots::Key;
use scsi::{Home, HomeReply, HomeRequest, NexusId, Publish};
use std::collections::VecDeque;
use std::sync::Arc;

/// A unit's home with its queue.
pub(super) struct HomeUnit {
    home: Home,
    /// Its side of the unit's gates.
    pub(super) gates: GateHome,
    /// How far it is when the unit leaves.
    pub(super) farewell: Farewell,
    queue: VecDeque<(Origin, HomeRequest)>,
    current: Option<Current>,
}

/// The request that is being worked on.
struct Current {
    origin: Origin,
    reply: HomeReply,
    publish: Arc<Publish>,
    /// Whose PERSISTENT RESERVE OUT, or change of a reserve list, it is.
    by: Option<NexusId>,
    /// Cores that have not yet applied it.
    awaited: usize,
}

/// A publication that this core has applied but for tasks whose storage operation has not come back yet.
#[derive(Debug)]
pub(super) struct Publication {
    unit: u32,
    home: usize,
    tasks: Vec<Key>,
}

impl Publication {
    pub(super) fn is_of(&self, unit: u32) -> bool {
        self.unit == unit
    }
}

impl HomeUnit {
    pub(super) fn new(home: Home) -> Self {
        HomeUnit {
            home,
            gates: GateHome::default(),
            farewell: Farewell::default(),
            queue: VecDeque::new(),
            current: None,
        }
    }

    /// Whether nobody asks it for anything.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.current.is_none() && self.gates.is_idle()
    }
}
