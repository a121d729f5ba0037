//! A SCSI side that executes the CDB.

use super::DISK;
use proto::services::{Command, Down, Ending, Function, FunctionResponse, Session, TaskId, Termination, Up};
use proto::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use wire::scsi::command::Read12;
use wire::{Places, Sense, Span};

pub(crate) use wire::scsi::opcode::{READ_16 as READ, TEST_UNIT_READY, WRITE_16 as WRITE};

/// Ends with CHECK CONDITION.
pub(crate) const BROKEN: u8 = 0xc0;
/// Never ends.
pub(crate) const HANG: u8 = 0xc1;

/// Ends with GOOD and no residual, but moves nothing.
pub(crate) const INCONSISTENT: u8 = 0xc2;

/// Bytes of one fetch or push.
const PIECE: u32 = 256 << 10;

/// The transport of the commands.
pub(crate) trait Transport {
    /// Data moves by RDMA: places of aborted tasks are released by `Up::Pushed`.
    const RDMA: bool;

    fn down(&mut self, now: Time, down: Down);
}

impl Transport for proto::iscsi::target::Target {
    const RDMA: bool = false;

    fn down(&mut self, now: Time, down: Down) {
        proto::iscsi::target::Target::down(self, now, down);
    }
}

#[derive(Default)]
pub(crate) struct Device {
    /// Ended by the transport without sense data, as TASK SET FULL.
    pub(crate) terminated: Vec<Command>,
    pub session: Option<Session>,
    running: BTreeMap<TaskId, Running>,
    /// Tasks that have ended, and whose places have to be released, where data moves by RDMA.
    in_flight: BTreeSet<TaskId>,
    /// Tasks that were aborted.
    pub aborted: usize,
}

struct Running {
    command: Command,
    /// The progress of its data.
    at: u32,
    /// A fetch or a push is in progress.
    lends: bool,
}

impl Device {
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether nothing is lent to tasks that have ended.
    pub(crate) fn ended_tasks_hold_nothing(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn up<T: Transport>(&mut self, up: Up, target: &mut T, now: Time) {
        match up {
            Up::Ready(session) => {
                self.session = Some(*session);
                target.down(now, Down::Admit);
            }
            Up::Command(command) => {
                let is_in_use = self.in_flight.iter().any(|task| task.slot == command.task.slot);
                assert!(!is_in_use, "a slot is kept as long as its places");
                self.running.insert(command.task, Running { command, at: 0, lends: false });
                self.go_on(command.task, target, now);
            }
            Up::Fetched(task) => self.pushed(task, target, now),
            Up::FetchFailed { task, .. } => {
                self.running.remove(&task);
            }
            Up::Pushed(task) => self.pushed(task, target, now),
            Up::Function { id, lun, function } => {
                let response = self.function(lun, function, target, now);
                target.down(now, Down::FunctionDone { id, response });
            }
            Up::Leaving => target.down(now, Down::Close),
            Up::Terminated { command, how: Termination::TaskSetFull } => self.terminated.push(*command),
            Up::Refused { .. } | Up::Terminated { .. } => {}
            Up::Fault { what } => panic!("{what}"),
            Up::Gone { .. } => unreachable!("kept by the pair"),
        }
    }

    /// What the task has lent is free.
    pub(crate) fn pushed<T: Transport>(&mut self, task: TaskId, target: &mut T, now: Time) {
        match self.running.get_mut(&task) {
            Some(running) => {
                assert!(std::mem::take(&mut running.lends), "nothing is lent");
                self.go_on(task, target, now);
            }
            None => assert!(self.in_flight.remove(&task) || !T::RDMA, "places come back once"),
        }
    }

    /// A task has ended. What it had lent is free at once, except that RDMA reports it later.
    fn over<T: Transport>(&mut self, task: TaskId) -> bool {
        let Some(running) = self.running.remove(&task) else { return false };
        if running.lends && T::RDMA {
            self.in_flight.insert(task);
        }
        true
    }

    fn go_on<T: Transport>(&mut self, task: TaskId, target: &mut T, now: Time) {
        let Some(Running { command, at, lends }) = self.running.get_mut(&task) else { return };
        let (disk, len) = (command.cdb.get(Read12::LBA), command.cdb.get(Read12::BLOCKS));
        let place = |at: u32, len: u32| {
            Places::one(Span { buffer: DISK, offset: u64::from(disk) + u64::from(at), len })
        };
        let (read, write) = match command.cdb.opcode() {
            READ => (len.min(command.read_bytes), 0),
            WRITE => (0, len.min(command.write_bytes).max(command.unsolicited_bytes)),
            _ => (0, command.unsolicited_bytes),
        };
        let ending = match command.cdb.opcode() {
            BROKEN => Ending { status: 2, sense: Some(sense()), read_bytes: 0, write_bytes: 0 },
            READ => Ending { status: 0, sense: None, read_bytes: len.into(), write_bytes: 0 },
            WRITE => Ending { status: 0, sense: None, read_bytes: 0, write_bytes: len.into() },
            INCONSISTENT => Ending {
                status: 0,
                sense: None,
                read_bytes: command.read_bytes.into(),
                write_bytes: command.write_bytes.into(),
            },
            _ => Ending { status: 0, sense: None, read_bytes: 0, write_bytes: 0 },
        };
        let from = *at;
        if from < write {
            let piece = (write - from).min(PIECE);
            *at += piece;
            *lends = true;
            return target.down(now, Down::Fetch { task, at: from, into: place(from, piece) });
        }
        if from < read {
            let piece = (read - from).min(PIECE);
            *at += piece;
            *lends = true;
            let end = (*at == read).then_some(ending);
            if end.is_some() {
                self.over::<T>(task);
            }
            return target.down(now, Down::Push { task, at: from, from: place(from, piece), end });
        }
        if command.cdb.opcode() != HANG {
            self.over::<T>(task);
            target.down(now, Down::End { task, ending });
        }
    }

    fn function<T: Transport>(
        &mut self,
        lun: u64,
        function: Function,
        target: &mut T,
        now: Time,
    ) -> FunctionResponse {
        let covered: Vec<TaskId> = match function {
            Function::AbortTask(Some(task)) => vec![task],
            Function::AbortTask(None) => return FunctionResponse::NoTask,
            Function::AbortTaskSet | Function::ClearTaskSet | Function::LogicalUnitReset => {
                let of_lun = self.running.iter().filter(|(_, running)| running.command.lun == lun);
                of_lun.map(|(task, _)| *task).collect()
            }
            Function::TargetWarmReset | Function::TargetColdReset => self.running.keys().copied().collect(),
            Function::ClearAca => return FunctionResponse::NotSupported,
        };
        for task in covered {
            self.aborted += usize::from(self.over::<T>(task));
            target.down(now, Down::Abort { task });
        }
        FunctionResponse::Complete
    }
}

/// ILLEGAL REQUEST, fixed format.
pub(crate) fn sense() -> Sense {
    Sense::from_bytes(&[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0])
}
