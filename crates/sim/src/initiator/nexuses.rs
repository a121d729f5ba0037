//! The paths of an initiator to several gateways, and what it has left unsettled on each.

use crate::groups::Path;
use crate::register::{Range, WriteId};
use proto::time::Time;
use std::time::Duration;

/// Its paths: a nexus each.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) at: usize,
    pub(super) change: Change,
    /// What was left at each.
    pub(super) left: Vec<Left>,
    /// How many initiators there are.
    pub(super) initiators: usize,
    /// When it last lost a session with commands in flight.
    pub(super) left_at: Time,
    /// The host whose name it uses, if not its own, and its session's number there.
    pub(super) name: Option<usize>,
    pub(super) session: u8,
    /// It does not connect before.
    pub(super) connects_at: Time,
    /// It uses the medium no more before.
    pub(super) waits_until: Time,
    /// How long it pauses after what it has begun, at most.
    pub(super) thinks: Duration,
    /// What was reported of its own.
    pub(super) path: Path,
}

/// Whether it is to change over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    No,
    Wanted,
    /// As soon as it is logged out.
    Begun,
}

/// Writes and orders that may take effect there until its next login.
#[derive(Clone, Default, Debug)]
pub(super) struct Left {
    pub(super) unsettled: Vec<(Range, WriteId)>,
    pub(super) unsettled_orders: Vec<(usize, u64)>,
    pub(super) loses: Vec<(usize, u64)>,
}

impl Paths {
    /// So many.
    pub(super) fn new(count: usize) -> Paths {
        Paths {
            at: 0,
            change: Change::No,
            left: vec![Left::default(); count],
            initiators: 1,
            left_at: Time(0),
            name: None,
            session: 0,
            connects_at: Time(0),
            waits_until: Time(0),
            thinks: Duration::ZERO,
            path: Path::default(),
        }
    }

    /// Whether it is to change over.
    pub(super) fn is_left(&self) -> bool {
        self.change == Change::Wanted
    }
}
