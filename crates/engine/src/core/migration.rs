//! What moves from this core to others.

mod run;

use crate::balance::Meter;
use crate::slots::Key;
use proto::services::{self, TaskId};
use proto::time::Time;

/// A session that is being drained in order to move.
struct Drain {
    /// Its connection.
    key: Key,
    /// When the move is abandoned.
    until: Time,
    to: usize,
    /// Responses that were held back, in order.
    endings: Vec<(TaskId, services::Ending)>,
}

/// What moves from this core to others.
#[derive(Default)]
pub(super) struct Migration {
    /// The session that is being drained.
    drain: Option<Drain>,
    /// How busy the core is.
    meter: Meter,
}

impl Migration {
    /// When the move of a draining session is abandoned.
    pub(super) fn until(&self) -> Option<Time> {
        self.drain.as_ref().map(|drain| drain.until)
    }

    /// Whether that time has come.
    pub(super) fn is_late(&self, now: Time) -> bool {
        self.until().is_some_and(|until| until <= now)
    }
}
