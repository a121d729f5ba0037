//! What RDMA may still access when a task has ended: a posted transfer cannot be recalled.

mod quiesce;

use super::buffer::Purpose;
use proto::services::TaskId;
use proto::time::Time;
use wire::Places;

/// What an ended task has left with its transport.
#[derive(Debug)]
pub(super) struct Quiescing {
    task: TaskId,
    unit: u32,
    /// Where it used one of ours: the buffer, and what it had that for.
    buffer: Option<(Places, Purpose)>,
    /// Since when.
    pub(super) since: Time,
}

impl Quiescing {
    pub(super) fn is_of(&self, unit: u32) -> bool {
        self.unit == unit
    }
}
