//! A SCSI side that executes the CDB, with a disk in shared memory.

use crate::rig::Above;
use proto::message::MessageMachine;
use proto::services::{Command, Down, Ending, TaskId, Up};
use proto::time::Time;
use reactor::memory::Region;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::Places;
use wire::scsi::command::Read12;

pub(crate) use wire::scsi::opcode::{READ_16 as READ, WRITE_16 as WRITE};

/// Bytes of one fetch or push.
const PIECE: u32 = 96 << 10;

/// A target's machine.
pub(crate) trait Target: MessageMachine<Event = Up> {
    fn down(&mut self, now: Time, down: Down);
}

pub(crate) struct Disk {
    pub region: Arc<Region>,
    /// Commands, and how much of their data was requested.
    running: BTreeMap<TaskId, (Command, u32)>,
    /// Logins.
    pub sessions: usize,
    /// Commands that it has completed.
    pub ended: usize,
    pub gone: Option<String>,
}

impl Disk {
    pub(crate) fn new(region: Arc<Region>) -> Disk {
        Disk { region, running: BTreeMap::new(), sessions: 0, ended: 0, gone: None }
    }

    fn go_on(&mut self, target: &mut impl Target, now: Time, task: TaskId) {
        let Some((command, at)) = self.running.get_mut(&task) else { return };
        let (disk, len, is_read) =
            (command.cdb.get(Read12::LBA), command.cdb.get(Read12::BLOCKS), command.cdb.opcode() == READ);
        let (read_bytes, write_bytes) = if is_read { (len.into(), 0) } else { (0, len.into()) };
        let ending = Ending { status: 0, sense: None, read_bytes, write_bytes };
        let piece = (len - *at).min(PIECE);
        if piece == 0 {
            self.running.remove(&task);
            self.ended += 1;
            return target.down(now, Down::End { task, ending });
        }
        let place = Places::one(self.region.span(u64::from(disk + *at), piece).unwrap());
        let from = std::mem::replace(at, *at + piece);
        if !is_read {
            return target.down(now, Down::Fetch { task, at: from, into: place });
        }
        let end = (from + piece == len).then_some(ending);
        if end.is_some() {
            self.running.remove(&task);
            self.ended += 1;
        }
        target.down(now, Down::Push { task, at: from, from: place, end });
    }
}

impl<T: Target> Above<T> for Disk {
    fn event(&mut self, target: &mut T, now: Time, up: Up) {
        assert!(self.gone.is_none(), "the end is the last event: {up:?}");
        match up {
            Up::Ready(_) => {
                self.sessions += 1;
                target.down(now, Down::Admit);
            }
            Up::Leaving => target.down(now, Down::Close),
            Up::Command(command) => {
                self.running.insert(command.task, (command, 0));
                self.go_on(target, now, command.task);
            }
            Up::Fetched(task) | Up::Pushed(task) => self.go_on(target, now, task),
            Up::Gone { reason } => self.gone = Some(reason),
            Up::FetchFailed { .. }
            | Up::Terminated { .. }
            | Up::Function { .. }
            | Up::Refused { .. }
            | Up::Fault { .. } => {
                panic!("{up:?}")
            }
        }
    }
}
