//! The home of a unit: one request at a time, published to every core, answered when all have applied it.

mod requests;

use super::gate::GateHome;
use super::leaving::RemovalState;
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
    /// How far the unit's removal has progressed at its home.
    pub(super) removal: RemovalState,
    queue: VecDeque<(Origin, HomeRequest)>,
    current: Option<Current>,
}

/// The request in progress.
struct Current {
    origin: Origin,
    reply: HomeReply,
    publish: Arc<Publish>,
    /// The nexus that requested it, if it is PERSISTENT RESERVE OUT or changes a reserve list.
    by: Option<NexusId>,
    /// How many cores have yet to apply it.
    awaited: usize,
}

/// A publication that this core has applied, except for tasks whose storage operation has not returned yet.
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
            removal: RemovalState::default(),
            queue: VecDeque::new(),
            current: None,
        }
    }

    /// Whether it has no requests.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.current.is_none() && self.gates.is_idle()
    }
}
