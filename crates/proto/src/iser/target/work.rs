//! The purpose of a work request, encoded in its id.

use crate::message::WorkId;
use crate::services::TaskId;

/// The purpose of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A PDU that is not about a SCSI task.
    Control,
    /// The response to a task.
    Response { task: TaskId },
    /// The data of a push.
    Write { task: TaskId },
    /// This many bytes for a fetch.
    Read { task: TaskId, len: u32 },
}

/// Two bits are the kind, 30 the length, then come generation and slot.
const KIND_SHIFT: u32 = 62;
const LEN_SHIFT: u32 = 32;
const LEN_MASK: u64 = 0x3fff_ffff;

impl Work {
    pub(super) fn id(self) -> WorkId {
        let (kind, len, task) = match self {
            Work::Control => (0, 0, TaskId::default()),
            Work::Response { task } => (1, 0, task),
            Work::Write { task } => (2, 0, task),
            Work::Read { task, len } => (3, len, task),
        };
        let task = (u64::from(task.generation) << 16) | u64::from(task.slot);
        WorkId((kind << KIND_SHIFT) | ((u64::from(len) & LEN_MASK) << LEN_SHIFT) | task)
    }

    pub(super) fn of(id: WorkId) -> Option<Work> {
        if id == WorkId::UNSIGNALED {
            return None;
        }
        let [.., a, b, c, d] = id.0.to_be_bytes();
        let task = TaskId { slot: u16::from_be_bytes([c, d]), generation: u16::from_be_bytes([a, b]) };
        let len = u32::try_from((id.0 >> LEN_SHIFT) & LEN_MASK).ok()?;
        match id.0 >> KIND_SHIFT {
            0 => Some(Work::Control),
            1 => Some(Work::Response { task }),
            2 => Some(Work::Write { task }),
            _ => Some(Work::Read { task, len }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_work() {
        let task = TaskId { slot: 0xfffe, generation: 0x1234 };
        let all = [
            Work::Control,
            Work::Response { task },
            Work::Write { task },
            Work::Read { task, len: 0x00ff_ffff },
        ];
        for work in all {
            assert_eq!(Work::of(work.id()), Some(work));
        }
    }
}
