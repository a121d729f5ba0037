//! Connections on this core: accepted, logged in, moved to their core, served, closed.

pub(super) mod ending;

use super::agenda::Agenda;
use super::answers::Answers;
use super::buffer::{Buffers, Share};
use super::disconnections::Disconnections;
use super::lun::{LunState, find_lun};
use super::quiescing::Quiescing;
use super::stall::{Moving, Pace};
use super::task::Task;
use crate::message::{Facts, Requester};
use crate::served::Named;
use crate::slots::{Key, Slots};
use crate::transport::Transport;
use proto::services::TaskId;
use proto::time::Time;
use reactor::io::Io;
use reactor::stream::{InFlight, Stream};
use scsi::NexusId;
use scsi::nexus::Reach;
use std::collections::BTreeMap;
use wire::Span;

/// One connection on its core.
/// Its fields are one for each part of the core that keeps something per
/// connection, and what several of them need: the machine and the session's LUNs.
pub(super) struct Connection {
    pub(super) machine: Transport,
    /// `None`: an RDMA device carries it.
    pub(super) stream: Option<Stream>,
    pub(super) facts: Facts,
    /// The I_T nexus.
    pub(super) nexus: NexusId,
    /// LUNs that the session sees, by number.
    pub(super) luns: Vec<LunState>,
    /// Their eight-byte forms, for REPORT LUNS.
    pub(super) lun_list: Vec<u64>,
    /// The version of the snapshot that they come from, once the session has its LUNs.
    pub(super) served: Option<u64>,
    /// How it reaches units, by their numbers, for EXTENDED COPY.
    pub(super) reach: Vec<(u32, Reach)>,
    /// Tasks by the transport's slots.
    tasks: Vec<Option<(u16, Occupant)>>,
    /// Commands that need neither task nor slot.
    pub(super) answers: Answers,
    pub(super) phase: Phase,
    pub(super) login: Login,
    pub(super) listed: Listed,
    pub(super) closing: Closing,
    pub(super) load: Load,
    /// The core's buffers that its tasks hold.
    pub(super) share: Share,
    /// What the transport still does for tasks that have ended.
    pub(super) quiescing: Vec<Quiescing>,
    /// How much data of its commands is in transit, and how fast it moves.
    pub(super) pace: Pace,
    pub(super) activity: Activity,
    /// When a frame of AoE last arrived.
    pub(super) framed_at: Time,
}

/// What is needed only until the connection serves, or has answered a discovery.
#[derive(Debug, Default)]
pub(super) struct Login {
    /// The initiator has begun to log in, and that was recorded.
    pub(super) has_begun: bool,
    /// Sessions that this one replaces and that have not ended yet.
    pub(super) predecessors: usize,
    /// When a discovery session is ended.
    pub(super) expires: Option<Time>,
}

/// Which of its core's lists a connection is in.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) to_serve: bool,
    pub(super) to_flush: bool,
    /// Its window is closed until there are buffers for unsolicited data.
    pub(super) is_narrow: bool,
}

/// What the end of a connection waits for.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// When a closing connection is reset, even if the peer has not received what was being sent.
    cut_at: Option<Time>,
    /// Aborted tasks whose storage operation or home request has not returned: of a connection that ends, or
    /// of AoE.
    pub(super) lingering: Vec<Key>,
    /// Outstanding answers of homes, which have to release what its lost nexus held, or to carry out its task
    /// management functions.
    homes: usize,
    /// The portal where a new connection waits for this one's descriptor.
    pub(super) makes_room_at: Option<usize>,
    /// Why it ends, if its machine does not know.
    why: Option<&'static str>,
}

/// What [`super::active`] keeps of a connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    pub(super) is_busy: bool,
    /// Its earliest timer.
    pub(super) timer: Option<Time>,
}

/// What load a connection is on its core.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// The core whose load includes it.
    pub(super) core: Option<usize>,
    /// Its work in the current window of time, and in the one before.
    pub(super) work: u64,
    pub(super) past_work: u64,
    /// It has moved, or could not: it stays until then.
    pub(super) rests_until: Time,
}

/// What is left on this core of a target's sessions after TARGET COLD RESET.
#[derive(Debug)]
struct ClosingTarget {
    requester: Requester,
    /// Their connections.
    connections: Vec<Key>,
}

/// Ends of sessions that others wait for.
#[derive(Debug, Default)]
pub(super) struct Endings {
    /// How many times all sessions of each target, by its number, were ended here.
    pub(super) closings: BTreeMap<usize, u64>,
    /// Targets whose sessions were ended and are not all gone from this core.
    closing_targets: Vec<ClosingTarget>,
    /// Connections that end because their session is reinstated: its serial number, and the core and
    /// connection that wait for that.
    pub(super) reinstatements: Vec<(u64, usize, Key)>,
    /// Connections that an administrator has ended.
    pub(super) disconnections: Disconnections,
}

impl Endings {
    /// How many times all sessions of a target were ended here.
    pub(super) fn closings(&self, target: &Named) -> u64 {
        self.closings.get(&target.number).copied().unwrap_or(0)
    }
}

/// The work that a command is apart from its data, in bytes of data.
const COMMAND_WORK: u64 = 16 << 10;

/// Why a session ends.
pub(super) const REINSTATED: &str = "its session was reinstated by a new login";
pub(super) const OVERTAKEN: &str = "a newer login of the same session replaced it";
pub(super) const NO_ROOM: &str = "the target has no free slot for another session (sessions_max)";
pub(super) const MADE_ROOM: &str = "its slot was needed for other logins (logins_max)";
pub(super) const PARTED: &str = "it had ended, and its connection was needed for others";
pub(super) const STOPS: &str = "the daemon is stopping";
pub(super) const COLD_RESET: &str = "an initiator sent TARGET COLD RESET";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Logging in, or a discovery session.
    Login,
    /// Its login is granted, and answered when none of the sessions that it replaces can write any more.
    AwaitingReinstatement,
    /// Moves to that core as soon as nothing is in flight.
    Leaving(usize),
    /// Has moved here from another core that had applied what this one has not yet.
    Arriving,
    /// Serving.
    Serving,
    /// Is to move: what is in flight ends, and only what that requires is accepted.
    Draining,
    /// The session ends: waits until none of its tasks can take effect any more.
    Ending,
    /// Its machine's last output is being sent.
    Parting,
    /// Has ended; waits until nothing is in flight.
    Closing,
}

/// What the core keeps of a task of the transport.
#[derive(Clone, Copy, Debug)]
pub(super) enum Occupant {
    /// A task of this core.
    Task(Key),
    /// A READ whose data, borrowed from the store or read at once, is being sent with its status behind it.
    ImmediateRead {
        /// Of this unit.
        unit: u32,
        /// When it arrived.
        begun: Time,
        /// How much data it is, and until when the initiator has time to receive it.
        moving: Moving,
        /// Where it was read to; `None`: it lies in the store's own memory.
        buffer: Option<Span>,
    },
}

impl Occupant {
    /// The task, if it is one of this core.
    pub(super) fn task(&self) -> Option<Key> {
        match self {
            Occupant::Task(key) => Some(*key),
            Occupant::ImmediateRead { .. } => None,
        }
    }
}

impl Connection {
    pub(super) fn new(machine: Transport, facts: Facts, phase: Phase, stream: Option<Stream>) -> Self {
        Connection {
            machine,
            stream,
            nexus: NexusId(facts.serial),
            facts,
            luns: Vec::new(),
            lun_list: Vec::new(),
            served: None,
            reach: Vec::new(),
            tasks: Vec::new(),
            answers: Answers::default(),
            phase,
            login: Login::default(),
            listed: Listed::default(),
            closing: Closing::default(),
            load: Load::default(),
            share: Share::default(),
            quiescing: Vec::new(),
            pace: Pace::default(),
            activity: Activity::default(),
            framed_at: Time(0),
        }
    }

    /// Something happened to it: it is to be fed, then flushed.
    pub(super) fn mark_dirty(&mut self, key: Key, agenda: &mut Agenda) {
        if !std::mem::replace(&mut self.listed.to_serve, true) {
            agenda.to_serve.push(key);
        }
        if !std::mem::replace(&mut self.listed.to_flush, true) {
            agenda.to_flush.push(key);
        }
    }

    /// Limits its initiator's window to the room that is left.
    #[inline(always)]
    pub(super) fn limit_window(&mut self, key: Key, whole_bytes: u64, buffers: &mut Buffers) {
        if self.machine.limit_window(self.share.window(whole_bytes))
            && !std::mem::replace(&mut self.listed.is_narrow, true)
        {
            buffers.narrow.push(key);
            buffers.room_seen = buffers.room_seen.min(whole_bytes);
        }
    }

    /// The unit of a LUN.
    pub(super) fn unit_of(&self, lun: u64) -> Option<u32> {
        find_lun(&self.luns, lun).and_then(|lun| self.luns.get(lun)).map(|lun| lun.unit)
    }

    /// What occupies a slot of the transport.
    pub(super) fn occupant(&self, wire: TaskId) -> Option<Occupant> {
        let (generation, occupant) = self.tasks.get(usize::from(wire.slot)).copied().flatten()?;
        (generation == wire.generation).then_some(occupant)
    }

    /// The task in a slot of the transport.
    pub(super) fn task(&self, wire: TaskId) -> Option<Key> {
        self.occupant(wire)?.task()
    }

    pub(super) fn occupy(&mut self, wire: TaskId, occupant: Occupant) {
        let slot = usize::from(wire.slot);
        if self.tasks.len() <= slot {
            self.tasks.resize(slot + 1, None);
        }
        self.tasks[slot] = Some((wire.generation, occupant));
    }

    /// A task's data has been sent; a READ without a task ends with that.
    pub(super) fn pushed(&mut self, wire: TaskId) -> Option<Occupant> {
        let occupant = self.occupant(wire)?;
        if let Occupant::ImmediateRead { moving, .. } = occupant {
            self.tasks[usize::from(wire.slot)] = None;
            self.pace.end(moving);
        }
        Some(occupant)
    }

    /// READs without a task for this unit, or for any: what they have borrowed from it, or the buffer they
    /// were read to.
    pub(super) fn immediate_reads(
        &self,
        unit: Option<u32>,
    ) -> impl Iterator<Item = (TaskId, u32, Option<Span>)> {
        (0..).zip(&self.tasks).filter_map(move |(slot, occupant)| match occupant {
            Some((generation, Occupant::ImmediateRead { unit: of, buffer, .. }))
                if unit.is_none_or(|unit| unit == *of) =>
            {
                Some((TaskId { slot, generation: *generation }, *of, *buffer))
            }
            Some(_) | None => None,
        })
    }

    pub(super) fn vacate(&mut self, wire: TaskId) {
        // Borrowed data counts as sent.
        if let Some(Occupant::Task(_)) = self.pushed(wire) {
            self.tasks[usize::from(wire.slot)] = None;
        }
    }

    /// Whether the initiator should have received borrowed data by now.
    pub(super) fn is_immediate_read_stalled(&self, now: Time) -> bool {
        let send = self.in_flight();
        let reads = self.tasks.iter().flatten().filter_map(|(_, occupant)| match occupant {
            Occupant::ImmediateRead { moving, .. } => Some(*moving),
            Occupant::Task(_) => None,
        });
        reads.chain(self.answers.moving()).any(|moving| self.pace.is_late(moving, send, now))
    }

    /// Whether data must be copied before it is sent: with a data digest, the bytes summed must be the bytes
    /// sent, even while another initiator overwrites the block; and RDMA devices have not registered the
    /// stores' memory.
    pub(super) fn copies_reads(&self) -> bool {
        self.machine.sums_payload() || self.machine.is_device()
    }

    /// Whether the initiator still owes data that it has begun to send, or that was requested.
    pub(super) fn awaits_data(&self, tasks: &Slots<Task>) -> bool {
        let awaits = |key: Key| tasks.get(key).is_some_and(Task::awaits_data);
        let mut own = self.tasks.iter().flatten().filter_map(|(_, occupant)| occupant.task());
        self.is_in_payload() || own.any(awaits)
    }

    /// Whether a payload has been received in part.
    pub(super) fn is_in_payload(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_in_payload)
    }

    /// Whether everything it owed has been sent.
    pub(super) fn has_sent(&self) -> bool {
        !self.machine.owes() && self.stream.as_ref().is_none_or(Stream::has_sent)
    }

    /// Whether it serves, and has nothing to do until something arrives.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_stream_at_rest = self.stream.as_ref().is_some_and(Stream::is_at_rest);
        self.phase == Phase::Serving && is_stream_at_rest && self.machine.is_at_rest()
    }

    /// Whether nothing is in flight: it may be closed.
    fn is_quiet(&mut self) -> bool {
        let is_over = self.machine.device_mut().is_none_or(|channel| channel.is_over())
            && self.machine.aoe_mut().is_none_or(|target| target.is_idle());
        is_over && self.stream.as_ref().is_none_or(Stream::quiet)
    }

    pub(super) fn in_flight(&self) -> Option<InFlight> {
        self.stream.as_ref().and_then(Stream::in_flight)
    }

    /// Ends it: what is in flight ends soon.
    pub(super) fn shut_down<I: Io>(&mut self, io: &mut I) {
        self.machine.shut_down(self.stream.as_mut(), io);
    }

    /// Whether nothing of its session, which has ended, can take effect any more.
    pub(super) fn is_settled(&self) -> bool {
        self.closing.lingering.is_empty() && self.closing.homes == 0
    }

    /// Whether its session has ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::Parting | Phase::Closing)
    }

    /// Whether it has neither a task nor borrowed data.
    pub(super) fn is_vacant(&self) -> bool {
        self.tasks.iter().all(Option::is_none) && self.answers.have_left()
    }

    /// Commands that have arrived and not ended, including READs answered on arrival whose data has not been
    /// sent yet.
    pub(super) fn in_flight_commands(&self) -> usize {
        self.tasks.iter().flatten().count() + self.answers.unsent()
    }

    /// Whether nothing of it is under way that could stall or has to be counted as work: all that can happen
    /// without the peer is that its deadline passes.
    pub(super) fn can_only_time_out(&self) -> bool {
        let is_idle = self.is_at_rest() && self.is_vacant() && self.in_flight().is_none();
        let is_counted = self.load.work == 0 && self.load.past_work == 0;
        is_idle && is_counted && self.quiescing.is_empty() && self.login.expires.is_none()
    }

    /// When it has to act on its own.
    pub(super) fn deadline(&self) -> Option<Time> {
        if self.phase == Phase::Closing { self.closing.cut_at } else { self.machine.deadline() }
    }

    /// Whether that time has come.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
}

/// Counts a command that has arrived, for the log and as work of its connection.
pub(super) fn note_command(facts: &mut Facts, work: &mut u64, read_bytes: u32, write_bytes: u32) {
    facts.tally.add(read_bytes, write_bytes);
    *work += COMMAND_WORK + u64::from(read_bytes) + u64::from(write_bytes);
}
