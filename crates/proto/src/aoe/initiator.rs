//! The initiator machine of one AoE session, with SCSI/ATA translation: SCSI commands with their buffers go
//! in, and the [`Event`]s of iSCSI come out; on the wire are ATA commands, each in a frame.
//!
//! The caller
//!
//! 1. passes in every frame with a tag of its lane ([`InitiatorConfig::lane`]), and makes the requested copy
//!    at once ([`Initiator::receive`]), after which the frame is free;
//! 2. takes its events ([`Initiator::poll`]) and submits commands ([`Initiator::submit`]);
//! 3. provides the data-out that it has to interpret itself ([`Initiator::wants`], [`Initiator::bring`]);
//! 4. sends its frames ([`Initiator::transmit`]), copying each one's header and payload before the next call;
//!    a frame that was copied borrows nothing;
//! 5. calls [`Initiator::tick`] at the [`Initiator::deadline`], which is a few milliseconds ahead while
//!    anything is unanswered: what was lost is then retransmitted. Step 4 follows.
//!
//! A login is a config query, which finds the target and its limits, and IDENTIFY DEVICE. There is no logout.
//! A request is retransmitted with its tag until it is answered. A target that answers nothing, not even
//! config queries, is lost after [`InitiatorConfig::lost_after`] ([`Event::Gone`]), and the outcome of its
//! commands is unknown; a slow one is not lost. Unlike with SCSI's transports, a new session does not end
//! what the old one has sent: the target may execute unanswered writes until something proves that they have
//! ended. They are retransmitted as long as their commands wait, and not after [`Initiator::abandon`] or
//! [`Initiator::abandon_task`] ([`Initiator::keep`], [`Initiator::relogin`], [`Initiator::may_change`]).
//!
//! ATA PASS-THROUGH (16) is sent as it is, and so are commands that are not ATA: the CDBs of
//! [`wire::aoe::Order`] and [`wire::aoe::Query`]. A test of the config string that does not match gets no
//! answer: it ends with MISCOMPARE when it was sent [`TESTS`] times without an answer, over at least
//! [`TESTS`] times 50 ms, to a target that keeps answering other requests.
//!
//! A transfer is split into pieces that fit a frame, and ends when the last of them is answered, so its
//! buffers are no longer used then. READ and WRITE allocate nothing.

mod abandoned;
mod answer;
mod failure;
mod order;
mod pace;
mod piece;
mod plan;
mod receive;
mod send;
mod task;
#[cfg(test)]
mod tests;
mod translate;
mod trim;

use crate::aoe::Frame;
use crate::iscsi::initiator::{Completion, Event, Outcome, Request, Residual};
use crate::services::{Session, TaskId};
use crate::time::Time;
use abandoned::Abandoned;
use answer::Made;
use failure::{Failure, check};
use pace::Pace;
pub use piece::PIECES_MAX;
use piece::{Kind, Piece, Pieces};
use plan::{AtaTransfer, Plan, SECTOR_BYTES};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use task::TaskTable;
use translate::Room;
use wire::aoe::{Address, Mac};
use wire::ata::IdentifyData;
use wire::scsi::{code, status};
use wire::{Places, SenseKey, Span};

/// How often a request is sent without an answer before the target counts as lost, in case this side was
/// asleep.
const TRIES_MIN: u8 = 3;
/// How often a test is sent before no answer counts as one.
pub const TESTS: u8 = 8;

/// The configuration of an initiator machine.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorConfig {
    /// The target's address.
    pub target: Address,
    /// Our interface's address.
    pub ours: Mac,
    /// Our interface's MTU.
    pub mtu: u32,
    /// The highest byte of all tags: distinguishes the sessions of one interface with one target.
    pub lane: u8,
    /// Random: the first tag, so that those of an earlier session are not reused.
    pub first_tag: u16,
    /// Commands in flight.
    pub queue_depth: u16,
    /// How long the login may take.
    pub login_within: Duration,
    /// How long the target may be silent before it is sent a config query as a ping.
    pub idle: Duration,
    /// How long the target may be silent with requests unanswered before the session is lost.
    pub lost_after: Duration,
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its headers, and the places of its payload.
    pub frame: Frame,
    /// What else follows the headers, if there are no places.
    pub made: &'a [u8],
}

/// A copy to be made at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put<'a> {
    /// The source.
    pub from: Source<'a>,
    /// The destination, of the same length.
    pub to: Places,
}

/// Where the bytes of a copy are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source<'a> {
    /// In the frame.
    Frame(Span),
    /// Here.
    Made(&'a [u8]),
}

/// The initiator's end of an AoE session.
/// Its fields are what the session knows about its target; pace, pieces and abandoned writes are separate values.
pub struct Initiator {
    config: InitiatorConfig,
    phase: Phase,
    pace: Pace,
    pieces: Pieces,
    /// Unanswered writes that were abandoned, or are of earlier sessions, and whether the target is known to
    /// be the one that they were for.
    abandoned: Abandoned,
    is_resumed: bool,
    tasks: TaskTable,
    /// Commands that have more to send; some may have ended.
    work: VecDeque<TaskId>,
    /// Commands that wait until retransmitted writes to the same sectors are answered.
    parked: Vec<TaskId>,
    /// Commands whose data-out has to be interpreted.
    to_interpret: VecDeque<TaskId>,
    /// The machine's own next request.
    own_request: Option<Kind>,
    peer: Peer,
    identity: Option<IdentifyData>,
    made: Made,
    /// The data that the machine has built for the last frame.
    body: Vec<u8>,
    /// No answer is overdue before this.
    timer: Option<Time>,
    last_heard: Time,
    /// When it was last heard from, or sent a ping.
    quiet_since: Time,
    /// A config query is unanswered.
    is_asking: bool,
    events: VecDeque<Event>,
}

/// The state of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Login { deadline: Time },
    Full,
    Over,
}

/// What the target has reported about itself.
#[derive(Clone, Copy, Debug)]
struct Peer {
    mac: Mac,
    buffer_count: u16,
    firmware: u16,
    /// Sectors that fit into a frame in both directions.
    sectors: u8,
}

impl Initiator {
    /// A machine that logs in now.
    pub fn new(config: InitiatorConfig, now: Time) -> Initiator {
        let depth = usize::from(config.queue_depth);
        Initiator {
            phase: Phase::Login { deadline: now.after(config.login_within) },
            pace: Pace::new(),
            pieces: Pieces::new(config.lane, config.first_tag),
            abandoned: Abandoned::new(config.lane, config.first_tag),
            is_resumed: false,
            tasks: TaskTable::new(config.queue_depth),
            work: VecDeque::with_capacity(depth.saturating_mul(2)),
            parked: Vec::new(),
            to_interpret: VecDeque::new(),
            own_request: Some(Kind::Query),
            peer: Peer { mac: Mac::BROADCAST, buffer_count: 0, firmware: 0, sectors: 0 },
            identity: None,
            made: Made::default(),
            body: Vec::new(),
            timer: None,
            last_heard: now,
            quiet_since: now,
            is_asking: true,
            events: VecDeque::with_capacity(depth.saturating_add(2)),
            config,
        }
    }

    /// A machine that logs in now, replacing this one, which has ended and has kept its writes
    /// ([`Initiator::keep`]). The lane must be the same.
    pub fn relogin(self, config: InitiatorConfig, now: Time) -> Initiator {
        assert!(config.lane == self.config.lane, "answers come to the lane that asked");
        let Initiator { mut pieces, mut abandoned, identity, .. } = self;
        pieces.forget();
        abandoned.begin();
        let timer = abandoned.expire(now);
        Initiator { pieces, abandoned, identity, timer, ..Initiator::new(config, now) }
    }

    /// The session has ended, and the buffers of its commands are about to be freed: keeps a copy of the
    /// writes that the target may still execute. `gather` copies what is in places.
    pub fn keep(&mut self, gather: impl FnMut(&Places) -> Vec<u8>) {
        self.keep_unanswered(gather);
    }

    /// The target is the one of the earlier sessions: from now on their unanswered writes are retransmitted,
    /// except those that no longer fit into a frame of our interface.
    pub fn resume(&mut self, now: Time) {
        self.is_resumed = true;
        self.abandoned.abandon_longer(now, self.data_room());
        self.timer = self.timer.into_iter().chain(self.abandoned.expire(now)).min();
    }

    /// Commands that write these sectors have ended: what earlier sessions have sent for them is not
    /// retransmitted.
    pub fn abandon(&mut self, now: Time, sectors: &Range<u64>) {
        self.abandoned.abandon(now, sectors);
        self.timer = self.timer.into_iter().chain(self.abandoned.expire(now)).min();
        self.unpark();
    }

    /// Abandons a command: no frame is sent for it from now on. It ends without an event, but the target may
    /// still execute what was sent of it ([`Initiator::may_change`]). `false`: it has already ended, or only
    /// the target knows what it changes, and it continues.
    pub fn abandon_task(&mut self, now: Time, id: TaskId) -> bool {
        let Some(plan) = self.tasks.get(id).map(|task| task.plan) else { return false };
        match plan {
            Plan::Ata(_) | Plan::Feature(_) | Plan::Order(_) => return false,
            Plan::Move { .. } | Plan::Flush | Plan::Trim { .. } | Plan::Ask | Plan::Interpret { .. } => {}
            Plan::Made | Plan::Fail(_) => {}
        }
        let changed = self.target_of(id, plan);
        self.abandon_sent(now, id);
        self.tasks.release(id);
        for queue in [&mut self.work, &mut self.to_interpret] {
            queue.retain(|other| *other != id);
        }
        self.parked.retain(|other| *other != id);
        if let Some(sectors) = changed {
            self.abandon(now, &sectors);
        }
        true
    }

    /// Whether the target may still execute any write that was abandoned, or is of an earlier session.
    pub fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    /// Whether such a write may change one of these sectors.
    pub fn may_change(&self, sectors: &Range<u64>) -> bool {
        self.abandoned.meets(sectors)
    }

    /// Whether any such write was proven to have ended since the last call.
    pub fn take_proven(&mut self) -> bool {
        self.abandoned.take_ended()
    }

    /// Whether, as far as is known, the target can prove that the abandoned writes to these sectors have
    /// ended, even if it never received them.
    pub fn can_be_proven(&self, sectors: &Range<u64>) -> bool {
        let theirs = Some(self.peer.mac).filter(|mac| *mac != Mac::BROADCAST);
        self.orders_nop() && self.abandoned.can_be_asked(sectors, (self.config.ours, theirs))
    }

    fn orders_nop(&self) -> bool {
        self.identity.as_ref().is_some_and(IdentifyData::proves_by_nop)
    }

    /// Submits a command; `None` when the queue is full, the session is not logged in, or there are events to
    /// take: the slot of the last command that ended, and the data built for it, are reused for this one. Its
    /// buffers stay borrowed until [`Event::Completed`]. ATA has no task attributes: all are simple.
    pub fn submit(&mut self, request: Request) -> Option<TaskId> {
        if !self.events.is_empty() {
            return None;
        }
        let (identity, room) = (self.identity.as_ref().filter(|_| self.phase == Phase::Full)?, self.room());
        let plan = translate::plan(&request, identity, room, false, &mut self.made);
        let id = self.tasks.take(request, plan)?;
        self.begin(id, plan);
        Some(id)
    }

    /// Takes a whole frame, its bytes and where they are, and returns the copy to be made from it. Frames
    /// that answer nothing are ignored.
    pub fn receive(&mut self, now: Time, frame: &[u8], place: Span) -> Option<Put<'_>> {
        if self.phase == Phase::Over {
            return None;
        }
        self.answered(now, frame, place)
    }

    /// Data-out that the machine has to interpret; pass it to [`Initiator::bring`].
    pub fn wants(&mut self) -> Option<Places> {
        let task = self.tasks.get(*self.to_interpret.front()?)?;
        let Plan::Interpret { bytes, .. } = task.plan else { return None };
        Some(task.request.write.slice(0, bytes))
    }

    /// Takes the data-out requested by [`Initiator::wants`].
    pub fn bring(&mut self, list: &[u8]) {
        let Some(id) = self.to_interpret.pop_front() else { return };
        let (Some(task), Some(identity)) = (self.tasks.get(id).copied(), &self.identity) else { return };
        let Plan::Interpret { is_fresh, .. } = task.plan else { return };
        let Some(extents) = self.tasks.extents(id) else { return };
        let plan = translate::with_parameters(&task.request.cdb, list, identity, is_fresh, extents);
        self.made.clear();
        if let Some(task) = self.tasks.get(id) {
            task.replan(plan);
        }
        match plan {
            // The list was accepted, and requires nothing.
            Plan::Made => self.complete(id, None, task.request.write.len(), 0),
            plan => self.begin(id, plan),
        }
    }

    /// The next frame to send.
    pub fn transmit(&mut self, now: Time) -> Option<Outgoing<'_>> {
        self.next_frame(now)
    }

    /// Takes the oldest event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there may be something to send.
    pub fn owes(&self) -> bool {
        let may_send = self.own_request.is_some()
            || self.may_send_abandoned()
            || self.may_retransmit()
            || self.may_send_more();
        self.phase != Phase::Over && (may_send || !self.to_interpret.is_empty())
    }

    /// Ends the session: [`Event::Gone`] follows.
    pub fn logout(&mut self) {
        self.over("logged out");
    }

    /// Nothing can be sent or received any more, for this reason.
    pub fn closed(&mut self, reason: &str) {
        self.over(reason);
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// When [`Initiator::tick`] has to be called next, if nothing else happens.
    pub fn deadline(&self) -> Option<Time> {
        let phase = match self.phase {
            Phase::Login { deadline } => deadline,
            Phase::Full => self.quiet_since.after(self.config.idle),
            Phase::Over => return None,
        };
        Some(self.timer.map_or(phase, |timer| timer.min(phase)))
    }

    /// The deadline has been reached, and everything that arrived until then was received.
    pub fn tick(&mut self, now: Time) {
        match self.phase {
            Phase::Login { deadline } if now >= deadline => {
                let what = if self.peer.mac == Mac::BROADCAST { "from" } else { "to IDENTIFY DEVICE from" };
                return self.over(&format!("no answer {what} the AoE target {}", self.config.target));
            }
            Phase::Full if now >= self.quiet_since.after(self.config.idle) => {
                self.quiet_since = now;
                self.query_target();
            }
            Phase::Login { .. } | Phase::Full => {}
            Phase::Over => return,
        }
        if self.timer.is_some_and(|timer| now >= timer) {
            self.expire(now);
        }
    }

    fn query_target(&mut self) {
        if !self.is_asking {
            (self.is_asking, self.own_request) = (true, Some(Kind::Query));
        }
    }

    /// What fits into a frame.
    fn room(&self) -> Room {
        Room { mtu: self.config.mtu, sectors: self.peer.sectors }
    }

    /// Stops waiting for what is overdue.
    fn expire(&mut self, now: Time) {
        let (pace, within) = (&self.pace, self.config.lost_after);
        let is_silent = now.since(self.last_heard) >= within;
        let (mut is_lost, mut late) = (false, None);
        let deadline = |piece: &Piece| pace.waited_since(piece.sent_at).after(piece.timeout);
        let (last_heard, mut is_tested, mut unmatched) = (self.last_heard, false, Vec::new());
        self.timer = self.pieces.expire(now, deadline, |piece| {
            let was_tried = piece.retries >= TRIES_MIN && now.since(piece.first_at) >= within;
            is_lost |= is_silent && was_tried;
            // How long slow commands take says nothing about the network.
            if piece.kind.is_prompt() {
                late = late.max(Some(piece.sent_at));
            }
            let Kind::Order { task, is_test: true } = piece.kind else { return true };
            is_tested = true;
            let is_over = piece.retries.saturating_add(1) >= TESTS && last_heard >= piece.sent_at;
            if is_over {
                unmatched.push(task);
            }
            !is_over
        });
        self.timer = self.timer.into_iter().chain(self.abandoned.expire(now)).min();
        for task in unmatched {
            self.end(task, Some(order::no_match()));
        }
        if is_tested {
            self.query_target();
        }
        if let Some(sent_at) = late {
            self.pace.lost(sent_at, now);
        }
        if is_lost {
            let millis = within.as_millis();
            self.over(&format!("no answer from the AoE target {} within {millis} ms", self.config.target));
        }
    }

    fn over(&mut self, reason: &str) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.work.clear();
            self.parked.clear();
            self.to_interpret.clear();
            self.events.push_back(Event::Gone { reason: reason.to_string() });
        }
    }

    /// Carries out the plan for a command.
    fn begin(&mut self, id: TaskId, plan: Plan) {
        if self.has_abandoned()
            && let Some(sectors) = self.target_of(id, plan)
        {
            if self.abandoned.is_full() {
                return self.end(id, Some(check(SenseKey::NotReady, code::NOT_READY)));
            }
            if self.abandoned.repeats(&sectors) {
                return self.parked.push(id);
            }
        }
        match plan {
            Plan::Ask
            | Plan::Move { .. }
            | Plan::Flush
            | Plan::Trim { .. }
            | Plan::Feature(_)
            | Plan::Ata(_)
            | Plan::Order(_) => self.work.push_back(id),
            Plan::Interpret { .. } => self.to_interpret.push_back(id),
            Plan::Made => self.end(id, None),
            Plan::Fail(failure) => self.end(id, Some(failure)),
        }
    }

    /// Continues with commands that no longer have to wait.
    fn unpark(&mut self) {
        for id in std::mem::take(&mut self.parked) {
            if let Some(plan) = self.tasks.get(id).map(|task| task.plan) {
                self.begin(id, plan);
            }
        }
    }

    /// A command has ended, with all data transferred unless it has failed.
    fn end(&mut self, id: TaskId, failure: Option<Failure>) {
        let Some(task) = self.tasks.get(id) else { return };
        let made = u32::try_from(self.made.bytes().len()).unwrap_or(u32::MAX);
        let (written, read) = match (failure, task.plan) {
            (None, Plan::Made) => (0, made),
            (None, Plan::Move { way: AtaTransfer::Read, sectors, .. }) => {
                (0, sectors.saturating_mul(SECTOR_BYTES))
            }
            (None, Plan::Move { way: AtaTransfer::Write, sectors, .. }) => {
                (sectors.saturating_mul(SECTOR_BYTES), 0)
            }
            (None, Plan::Trim { .. } | Plan::Feature(_)) => (task.request.write.len(), 0),
            (
                None,
                Plan::Move { way: AtaTransfer::Verify, .. }
                | Plan::Ask
                | Plan::Interpret { .. }
                | Plan::Flush,
            )
            | (None, Plan::Ata(_) | Plan::Order(_) | Plan::Fail(_))
            | (Some(_), _) => (0, 0),
        };
        self.complete(id, failure, written, read);
    }

    /// A command has ended, having transferred this many bytes in each direction.
    fn complete(&mut self, id: TaskId, failure: Option<Failure>, written: u32, read: u32) {
        let Some(task) = self.tasks.get(id) else { return };
        let (places, data) = (task.request.read.len(), task.request.write.len());
        let good = Failure { status: status::GOOD, sense: None };
        let Failure { status, sense } = failure.unwrap_or(good);
        let of_read = residual(places, read);
        self.tasks.release(id);
        self.events.push_back(Event::Completed(Completion {
            task: id,
            outcome: Outcome::Status { status, sense },
            read_bytes: read.min(places),
            write_bytes: written.min(data),
            residual: if data > 0 { residual(data, written) } else { of_read },
            read_residual: if data > 0 && places > 0 { of_read } else { Residual::None },
        }));
    }

    fn session(&self) -> Session {
        Session {
            initiator: self.config.ours.to_string(),
            alias: None,
            target: Some(self.config.target.to_string()),
            isid: [0; 6],
            tsih: 0,
            cid: 0,
            keeps_others: true,
            negotiated: vec![
                ("Target", self.peer.mac.to_string()),
                ("BufferCount", self.peer.buffer_count.to_string()),
                ("SectorsPerFrame", self.peer.sectors.to_string()),
                ("Firmware", format!("{:#06x}", self.peer.firmware)),
            ],
            transport_id: wire::scsi::transport_id::aoe_port(self.config.ours).to_vec(),
        }
    }
}

fn residual(expected: u32, moved: u32) -> Residual {
    match expected.abs_diff(moved) {
        0 => Residual::None,
        less if moved < expected => Residual::Underflow(less),
        more => Residual::Overflow(more),
    }
}
