//! What RDMA may still access when a task has ended: a posted transfer cannot be recalled.

mod quiesce;

use super::buffer::Purpose;
use proto::services::TaskId;
use proto::time::Time;
use wire::Places;

/// What the transport still uses of an ended task.
#[derive(Debug)]
pub(super) struct Quiescing {
    task: TaskId,
    unit: u32,
    /// The buffer that it used, if it is one of ours, and what for.
    buffer: Option<(Places, Purpose)>,
    /// Since when.
    pub(super) since: Time,
}

impl Quiescing {
    pub(super) fn is_of(&self, unit: u32) -> bool {
        self.unit == unit
    }
}
