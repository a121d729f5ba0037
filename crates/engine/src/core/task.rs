//! Commands on this core: from `Up::Command` through the steps of their programs to their status.

mod run;
mod storage;

use super::aoe::Claim;
use super::buffer::Purpose;
use super::stall::Moving;
use crate::slots::Key;
use proto::services::{self, Command, TaskId};
use proto::time::Time;
use scsi::nexus::Reach;
use scsi::{Attribute, Ending, Exec, NexusUnit};
use wire::Places;

/// One command in flight on this core: where it came from, its program and buffer, and what it holds or owes
/// until it ends.
/// Its fields belong to modules (admission, data-out, storage, functions) that each need the
/// whole task, in its slot.
#[derive(Debug)]
pub(super) struct Task {
    /// The connection it came on.
    pub(super) origin: Key,
    /// The same, until nothing may be sent for it any more.
    pub(super) connection: Option<Key>,
    /// The transport's handle.
    pub(super) wire: TaskId,
    /// The unit it is for.
    pub(super) unit: u32,
    /// Index into the connection's LUNs.
    pub(super) lun: usize,
    /// Task attribute.
    pub(super) attribute: Attribute,
    /// The command.
    pub(super) command: Command,
    /// Its program, once admitted.
    pub(super) exec: Option<Exec>,
    /// Its buffer.
    pub(super) buffer: Places,
    /// What it uses the buffer for.
    pub(super) purpose: Purpose,
    /// The buffer is where its data was received, and belongs to the transport.
    pub(super) borrowed: bool,
    /// What it waits for.
    pub(super) state: State,
    /// The unit whose store it flushes.
    flushes: Option<u32>,
    /// The unit whose losses it reports when it ends, and how many.
    reports: Option<(u32, u64)>,
    /// When it arrived.
    pub(super) begun: Time,
    /// How much of the data-in has been sent.
    pub(super) pushed_bytes: u64,
    /// How much of the data-out has been requested.
    pub(super) asked_bytes: u32,
    /// Requested data that has not all arrived, with its deadline: the transport has the buffer.
    missing: Option<Moving>,
    /// What is left of the time that its initiator may take beyond [`super::stall`]'s rate.
    pub(super) patience_nanos: u64,
    /// It is counted in its unit's gate.
    gated: bool,
    /// Its claim on the blocks that it changes, if it is a task of AoE.
    pub(super) claim: Option<Claim>,
    /// It was aborted, and lingers until its storage operation or its home has ended.
    pub(super) aborted: bool,
    /// It may do nothing more to the medium: its target port group is no longer active.
    deactivated: bool,
    /// Its response, until the home has ended what QERR ends with it; or, for the log, until its data has
    /// been sent.
    held: Option<Box<Ending>>,
    /// It outlives its command (SANITIZE, FORMAT UNIT, a copy with IMMED), and then has its own copy of the
    /// nexus state.
    detached: Option<Box<Detached>>,
}

/// What a task keeps of its session, which it may outlive.
#[derive(Debug)]
struct Detached {
    nexus: NexusUnit,
    reach: Vec<(u32, Reach)>,
    /// A home has begun its request.
    is_begun: bool,
    /// Losses of its unit's store when it was detached.
    losses: u64,
}

/// What a task waits for.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum State {
    /// A limit of its LUN or group.
    Throttled,
    /// Its unit's gate.
    Waiting,
    /// Other tasks that change the same blocks.
    Overlapping,
    /// A buffer.
    Starved,
    /// Unsolicited data, before its program begins.
    Unsolicited,
    /// Data-out up to offset `upto`; the buffer starts with offset `at`.
    Fetching {
        /// Data-out offset at the start of the buffer.
        at: u32,
        /// Data-out offset after the last byte that is wanted.
        upto: u32,
    },
    /// A storage operation.
    Storing,
    /// A storage read, to be pushed.
    Reading {
        /// Bytes to push.
        len: u32,
        /// Offset in the data-in.
        at: u32,
        /// The status that follows it.
        end: Option<Ending>,
    },
    /// Data on its way to the initiator; `last`: the status goes with it.
    Pushing {
        /// Nothing follows.
        last: bool,
        /// How much, and its deadline.
        moving: Moving,
    },
    /// The unit's home.
    AtHome,
    /// Nothing: it is being run.
    Running,
}

impl Task {
    fn new(connection: Key, command: &Command, attribute: Attribute, unit: u32) -> Self {
        Task {
            origin: connection,
            connection: Some(connection),
            wire: command.task,
            unit,
            lun: 0,
            attribute,
            command: *command,
            exec: None,
            buffer: Places::EMPTY,
            purpose: Purpose::default(),
            borrowed: false,
            state: State::Running,
            flushes: None,
            reports: None,
            begun: Time(0),
            pushed_bytes: 0,
            asked_bytes: 0,
            missing: None,
            patience_nanos: 0,
            gated: false,
            claim: None,
            aborted: false,
            deactivated: false,
            held: None,
            detached: None,
        }
    }

    /// Whether a storage operation of it must return before this core may end. What cannot be aborted
    /// (SANITIZE, FORMAT UNIT) is cut off when the daemon stops, as by a loss of power.
    pub(super) fn holds_up_the_end(&self) -> bool {
        self.detached.is_none() && matches!(self.state, State::Storing | State::Reading { .. })
    }

    /// Whether it was admitted to its unit.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Throttled | State::Waiting)
    }

    /// Whether it was aborted, but its storage operation has not returned: it may still touch the medium.
    pub(super) fn may_still_write(&self) -> bool {
        self.aborted && matches!(self.state, State::Storing | State::Reading { .. })
    }

    /// It may do nothing more to the medium, unless nothing can stop it, or it has yet to be admitted.
    /// Returns whether it still may, by a storage operation that has not returned.
    pub(super) fn deactivate(&mut self) -> bool {
        self.deactivated = self.exec.is_some() && !self.is_unstoppable();
        self.deactivated && matches!(self.state, State::Storing | State::Reading { .. })
    }

    /// Whether it accesses this unit: it is addressed to it, or copies from or to it.
    pub(super) fn touches(&self, unit: u32) -> bool {
        self.unit == unit || self.exec.as_ref().is_some_and(|exec| exec.touches(unit))
    }

    /// The units that it accesses.
    pub(super) fn units(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.unit).chain(self.exec.iter().flat_map(Exec::copied_units))
    }

    /// If it has outlived its command, sets how it reaches these units from now on.
    pub(super) fn reach_as(&mut self, reach: &[(u32, Reach)]) {
        if let Some(detached) = self.detached.as_mut().filter(|detached| detached.reach != reach) {
            detached.reach = reach.to_vec();
        }
    }

    /// Whether it may change the medium of one of these units.
    pub(super) fn writes(&self, is_one: &dyn Fn(u32) -> bool) -> bool {
        self.exec.as_ref().is_some_and(|exec| exec.writes(self.unit, is_one))
    }

    /// Whether it may change the medium, or the state that others see, of one of these units.
    pub(super) fn changes(&self, is_one: &dyn Fn(u32) -> bool) -> bool {
        self.exec.as_ref().is_some_and(|exec| exec.changes(self.unit, is_one))
    }

    /// The nexus of a task that outlives its command, unless nothing can abort it.
    pub(super) fn detached_nexus(&self) -> Option<&NexusUnit> {
        self.detached.as_ref().filter(|_| !self.is_unstoppable()).map(|detached| &detached.nexus)
    }

    /// Whether nothing can abort it: a SANITIZE or FORMAT UNIT that has begun.
    fn is_unstoppable(&self) -> bool {
        let is_begun = self.detached.as_ref().is_some_and(|detached| detached.is_begun);
        is_begun && self.exec.as_ref().is_some_and(Exec::erases)
    }

    /// Of a SANITIZE or FORMAT UNIT that has begun: the losses of the store when it did.
    fn losses_before_erasing(&self) -> Option<u64> {
        self.detached.as_ref().filter(|_| self.is_unstoppable()).map(|detached| detached.losses)
    }

    /// Its data in transit, in either direction.
    pub(super) fn moving(&self) -> Option<Moving> {
        match self.state {
            State::Pushing { moving, .. } => Some(moving),
            State::Throttled
            | State::Waiting
            | State::Overlapping
            | State::Starved
            | State::Unsolicited
            | State::Fetching { .. }
            | State::Storing
            | State::Reading { .. }
            | State::AtHome
            | State::Running => self.missing,
        }
    }

    /// Whether data of it is in transit from the initiator.
    pub(super) fn awaits_data(&self) -> bool {
        self.missing.is_some()
    }

    /// Whether data of it is in transit, in either direction.
    pub(super) fn is_transferring(&self) -> bool {
        self.moving().is_some()
    }

    /// Whether its session cannot move to another core: it may take long, or this core cannot end what it
    /// does.
    pub(super) fn blocks_move(&self) -> bool {
        self.aborted
            || self.detached.is_some()
            || matches!(self.state, State::AtHome | State::Throttled)
            || self.exec.as_ref().is_some_and(Exec::is_lengthy)
    }

    /// Whether it waits at its unit's gate.
    pub(super) fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }
}

pub(super) fn to_wire(ending: Ending) -> services::Ending {
    services::Ending {
        status: ending.status as u8,
        sense: ending.sense,
        read_bytes: ending.read_bytes,
        write_bytes: ending.write_bytes,
    }
}
