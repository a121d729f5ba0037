//! The target machine of one SRP channel: login from private data, then commands until a logout. Received
//! messages are validated in `receive`, the engine's calls about tasks are in `data`, and everything to be
//! posted waits in one queue for `send`. Where the data of a task is, and its slot, is in `task`.
//!
//! The request limit is the number of free slots: each response grants as many more requests as there is room
//! for, so that requests never exceed slots, nor the posted receives. A credit that no response will carry,
//! since its command was aborted, is sent by SRP_CRED_REQ.

mod data;
pub mod login;
mod receive;
mod send;
mod task;
pub mod violation;

use crate::message::{Answer, Message, MessageMachine, Post, Receives, WorkId};
use crate::services::{Down, FAULT, FunctionId, TaskId, Up};
use crate::time::Time;
use login::{Access, Granted};
use send::Out;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use task::{Stage, TaskTable};
use wire::srp::{AsyncEventRequest, Layout, LogoutReason, Opcode, RejectReason};
use wire::{Sense, Span};

/// Receives beyond the request limit: one for the answer to a request of ours, one for a logout.
const RECEIVES_EXTRA: u16 = 2;
/// The least that a receive holds, however short the information units are: tables are read into it.
const RECEIVE_BYTES_MIN: u32 = 1024;
/// The longest information unit that is sent.
const TI_IU_BYTES_MAX: u32 = 100;
const _: () = assert!(AsyncEventRequest::BYTES + Sense::MAX == 100);

/// The configuration of a target machine.
#[derive(Clone, Copy, Debug)]
pub struct TargetConfig {
    /// Requests that an initiator may have in flight.
    pub queue_depth: u16,
    /// The longest information unit that is accepted.
    pub max_it_iu_bytes: u32,
    /// Our target port identifier.
    pub target_port: [u8; 16],
    /// How long a login may wait for the channels that it replaces.
    pub login_within: Duration,
    /// How long a connection may be silent before it is sent a ping, and how long the answer may take.
    pub idle: Duration,
}

impl TargetConfig {
    /// How many slots there are: every [`TaskId::slot`] is below. There are more than requests, since a slot
    /// is in use until the RDMA of its task has finished, and its credit is sent before that.
    pub fn slots(&self) -> u16 {
        self.queue_depth.saturating_mul(2)
    }
}

/// The target's end of one SRP channel.
/// Its fields advance together, with each information unit: the login's grant, tasks in flight, and units to be sent.
pub struct Target {
    config: TargetConfig,
    access: Arc<dyn Access>,
    from: SocketAddr,
    portal: SocketAddr,
    phase: Phase,
    link: Link,
    /// Between the request and the connection.
    granted: Option<Box<Granted>>,
    /// When the login has waited too long.
    login_until: Option<Time>,
    /// The login was reported to the engine.
    is_notified: bool,
    /// The engine has admitted it.
    is_admitted: bool,
    /// The engine has refused it: the answer, until it is given.
    rejection: Option<Vec<u8>>,
    /// Why a login was rejected.
    refusal: Option<RejectReason>,
    tasks: TaskTable,
    /// Commands that were not yet passed to the engine, in order of arrival: the first one's descriptor
    /// tables are still being read.
    entering: VecDeque<TaskId>,
    functions: Vec<PendingFunction>,
    functions_seen: u32,
    /// Answers to functions that wait until no RDMA Reads of aborted tasks are in progress.
    answers: VecDeque<Out>,
    /// Requests that the initiator may send.
    limit: u16,
    /// Requests that were received and not answered.
    unanswered: u16,
    /// Receives that there is memory for.
    receives_max: u16,
    /// Receives that are not posted: those in `freed` and those that tasks keep.
    held: u16,
    freed: Vec<Span>,
    /// Our unanswered request: there is one at a time.
    request: Option<Request>,
    /// Counts the tags of our requests.
    requests_sent: u64,
    /// An asynchronous event to send.
    event: Option<(u64, Sense)>,
    up: VecDeque<Up>,
    out: VecDeque<Out>,
    last_heard: Time,
    /// When the initiator was sent a ping.
    pinged: Option<Time>,
    /// When it is logged out at the latest.
    logout_by: Option<Time>,
}

/// The state of the connection.
enum Phase {
    /// No login was requested, or it was granted.
    Login,
    Full,
    /// Its tasks have ended. When the engine knows that none of them can take effect any more, the initiator
    /// is logged out unless it has logged out itself, and then the connection ends for this reason.
    Ending(Option<LogoutReason>, String),
    /// The last message is being sent; then the connection ends for this reason.
    Leaving(String),
    Over,
}

/// What was negotiated.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    max_it_iu_bytes: u32,
    immediate_offset: Option<u16>,
    /// The login's flags, with the requested solicited notifications.
    flags: u8,
}

/// A task management request that has not been answered.
#[derive(Clone, Copy, Debug)]
struct PendingFunction {
    id: FunctionId,
    tag: u64,
    sol_not: u8,
}

/// A request of ours that has not been answered.
#[derive(Clone, Copy, Debug)]
struct Request {
    tag: u64,
    answered_by: Opcode,
}

impl Target {
    /// A machine for a connection that is being requested, from `from` at this `portal`.
    pub fn new(
        config: TargetConfig,
        access: Arc<dyn Access>,
        from: SocketAddr,
        portal: SocketAddr,
        now: Time,
    ) -> Target {
        Target {
            config,
            access,
            from,
            portal,
            phase: Phase::Login,
            link: Link::default(),
            granted: None,
            login_until: None,
            is_notified: false,
            is_admitted: false,
            rejection: None,
            refusal: None,
            tasks: TaskTable::default(),
            entering: VecDeque::new(),
            functions: Vec::new(),
            functions_seen: 0,
            answers: VecDeque::new(),
            limit: 0,
            unanswered: 0,
            receives_max: u16::MAX,
            held: 0,
            freed: Vec::new(),
            request: None,
            requests_sent: 0,
            event: None,
            up: VecDeque::new(),
            out: VecDeque::new(),
            last_heard: now,
            pinged: None,
            logout_by: None,
        }
    }

    /// Whether the initiator has requested a login that was not rejected.
    pub fn has_begun(&self) -> bool {
        match self.phase {
            Phase::Login => self.granted.is_some(),
            Phase::Full | Phase::Ending(..) | Phase::Leaving(_) => true,
            Phase::Over => false,
        }
    }

    /// Why a login was rejected.
    pub fn refusal(&self) -> Option<RejectReason> {
        self.refusal
    }

    /// Handles a call from the engine. One about a task that has ended is ignored.
    pub fn down(&mut self, now: Time, down: Down) {
        match (&self.phase, down) {
            (Phase::Ending(..), Down::Close) => self.say_last(),
            (Phase::Ending(..), Down::Abort { task } | Down::End { task, .. }) => self.abort(task),
            (Phase::Ending(..), Down::Fetch { task, .. } | Down::Push { task, .. }) => self.keep(task),
            (Phase::Ending(..) | Phase::Leaving(_) | Phase::Over, _) => {}
            (Phase::Login, Down::Admit) => self.is_admitted = true,
            (Phase::Login, Down::Refuse(why)) => self.withdraw(why),
            (Phase::Login, Down::Close | Down::RequestLogout { .. }) => {
                self.phase = Phase::Leaving("closed before login by this side".to_string());
            }
            (Phase::Login, _) => {}
            (Phase::Full, Down::Admit | Down::Refuse(_)) => {}
            (Phase::Full, Down::Close) => {
                self.end_all(Some(LogoutReason::UNSPECIFIED), "closed by this side");
                self.say_last();
            }
            (Phase::Full, Down::Fetch { task, at, into }) => self.fetch(task, at, into),
            (Phase::Full, Down::Push { task, at, from, end }) => self.push(task, at, from, end),
            (Phase::Full, Down::End { task, ending }) => self.end(task, ending),
            (Phase::Full, Down::Abort { task }) => self.abort(task),
            (Phase::Full, Down::FunctionDone { id, response }) => self.function_done(id, response),
            (Phase::Full, Down::RequestLogout { within_seconds }) => {
                self.logout_by = Some(now.after(Duration::from_secs(u64::from(within_seconds))));
            }
        }
        self.leave_if_idle(now);
    }

    /// Notifies the initiator of an asynchronous event (section 6.12); `false`: another is in flight.
    pub fn notify_event(&mut self, lun: u64, sense: Sense) -> bool {
        if !matches!(self.phase, Phase::Full) || self.event.is_some() {
            return false;
        }
        self.event = Some((lun, sense));
        true
    }

    /// Logs out if that was announced and nothing is left to be done before it.
    fn leave_if_idle(&mut self, now: Time) {
        if self.logout_by.is_some() && self.unanswered == 0 && matches!(self.phase, Phase::Full) {
            self.last_heard = now;
            self.leave(Some(LogoutReason::UNSPECIFIED), "logged out by this side");
        }
    }

    /// The session ends; with a reason, the initiator is logged out (section 6.6) once its tasks can take effect no more.
    fn leave(&mut self, reason: Option<LogoutReason>, text: &str) {
        self.end_all(reason, text);
        self.up.push_back(Up::Leaving);
    }

    /// A bug that is private to the connection ends it.
    fn fault(&mut self, what: &'static str) {
        self.up.push_back(Up::Fault { what });
        self.leave(Some(LogoutReason::UNSPECIFIED), FAULT);
    }

    /// Nothing else is sent any more.
    fn end_all(&mut self, reason: Option<LogoutReason>, text: &str) {
        self.out.clear();
        self.answers.clear();
        self.phase = Phase::Ending(reason, text.to_string());
        self.end_unanswered();
    }

    /// None of the tasks can take effect any more.
    fn say_last(&mut self) {
        let Phase::Ending(reason, text) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        self.out.extend(reason.map(Out::Logout));
        self.phase = Phase::Leaving(text);
    }

    /// The connection has ended.
    fn over(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.phase = Phase::Over;
        self.abort_all_in(Stage::Tables);
        self.out.clear();
        self.answers.clear();
        self.freed.clear();
        self.up.push_back(Up::Gone { reason: reason.to_string() });
    }

    /// Requests that the initiator may have in flight at most.
    fn depth(&self) -> u16 {
        self.config.queue_depth.min(self.receives_max.saturating_sub(RECEIVES_EXTRA))
    }

    /// How many more requests there is room for, while this many are being answered: never more than free
    /// slots, nor than posted receives.
    fn credits(&self, answering: u16) -> u16 {
        let depth = self.depth();
        let unanswered = self.unanswered.saturating_sub(answering);
        let room = depth.saturating_sub(unanswered.max(self.held)).min(self.tasks.free());
        room.saturating_sub(self.limit)
    }

    /// Whether there are credits that no answer will carry, or that the initiator cannot do without.
    fn owes_credits(&self) -> bool {
        let is_stuck = self.unanswered == 0 || self.limit == 0;
        matches!(self.phase, Phase::Full) && self.request.is_none() && is_stuck && self.credits(0) > 0
    }

    fn owes_event(&self) -> bool {
        matches!(self.phase, Phase::Full) && self.request.is_none() && self.event.is_some()
    }
}

impl MessageMachine for Target {
    type Event = Up;

    /// Targets do not request connections.
    fn request(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn asked(&mut self, now: Time, private_data: &[u8]) -> Answer {
        self.last_heard = now;
        self.login_until = Some(now.after(self.config.login_within));
        self.login(private_data)
    }

    /// The channels that it replaces must have ended before it is answered.
    fn may_accept(&mut self) -> bool {
        if !std::mem::replace(&mut self.is_notified, true) {
            self.report_ready();
        }
        self.is_admitted
    }

    fn rejection(&mut self) -> Option<Vec<u8>> {
        self.rejection.take()
    }

    fn established(&mut self, now: Time, _private_data: &[u8]) {
        self.last_heard = now;
        self.begin();
    }

    /// As many as the limit and what does not count towards it, less those whose messages are still in use.
    fn receives(&self) -> Receives {
        Receives {
            count: self.config.queue_depth.saturating_add(RECEIVES_EXTRA).saturating_sub(self.held),
            bytes: self.link.max_it_iu_bytes.max(RECEIVE_BYTES_MIN),
            aligned_at: u32::from(self.link.immediate_offset.unwrap_or(0)),
        }
    }

    fn accept_fewer_receives(&mut self, receives: u16) -> Answer {
        self.receives_max = receives;
        self.grant()
    }

    fn received(&mut self, now: Time, message: Message<'_>) {
        self.last_heard = now;
        self.pinged = None;
        // A message may overtake the notification that the connection is established.
        self.begin();
        self.held = self.held.saturating_add(1);
        self.unit(&message);
    }

    fn finished(&mut self, now: Time, work: WorkId) {
        match self.phase {
            // Nothing more is sent, but borrowed places are returned.
            Phase::Full | Phase::Ending(..) | Phase::Leaving(_) => {
                self.last_heard = now;
                self.work_done(work);
            }
            Phase::Login | Phase::Over => {}
        }
    }

    fn closed(&mut self, _now: Time, reason: &str) {
        match std::mem::replace(&mut self.phase, Phase::Login) {
            Phase::Over => self.phase = Phase::Over,
            Phase::Ending(_, text) | Phase::Leaving(text) => self.over(&text),
            Phase::Login | Phase::Full => self.over(reason),
        }
    }

    fn poll(&mut self) -> Option<Up> {
        self.up.pop_front()
    }

    fn owes(&self) -> bool {
        !self.freed.is_empty() || !self.out.is_empty() || self.owes_credits() || self.owes_event()
    }

    fn post(&mut self, now: Time, to: &mut dyn Post) {
        self.send(to);
        self.leave_if_idle(now);
    }

    fn is_over(&self) -> bool {
        match &self.phase {
            Phase::Login | Phase::Full | Phase::Ending(..) => false,
            Phase::Leaving(_) => self.out.is_empty(),
            Phase::Over => true,
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Login => self.login_until.filter(|_| self.granted.is_some()),
            Phase::Over => None,
            Phase::Full => {
                let silent = self.pinged.unwrap_or(self.last_heard).after(self.config.idle);
                Some(self.logout_by.map_or(silent, |by| by.min(silent)))
            }
            Phase::Ending(..) => Some(self.last_heard.after(self.config.idle)),
            Phase::Leaving(_) => (!self.out.is_empty()).then(|| self.last_heard.after(self.config.idle)),
        }
    }

    fn tick(&mut self, now: Time) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match &self.phase {
            Phase::Login => self.over("login took too long"),
            Phase::Over => {}
            Phase::Ending(_, text) => {
                let text = text.clone();
                self.over(&text);
            }
            Phase::Leaving(_) => self.out.clear(),
            Phase::Full if self.logout_by.is_some_and(|by| now >= by) => {
                self.last_heard = now;
                self.leave(Some(LogoutReason::UNSPECIFIED), "logged out by this side");
            }
            Phase::Full if self.pinged.is_some() => {
                self.last_heard = now;
                self.leave(Some(LogoutReason::INACTIVE), "no answer to keep-alive");
            }
            Phase::Full => {
                self.pinged = Some(now);
                if self.request.is_none() {
                    self.out.push_back(Out::CreditRequest);
                }
            }
        }
    }
}

/// The purpose of a work request, encoded in its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// A message, which nothing waits for.
    Message,
    Fetch(TaskId),
    Push(TaskId),
    Table(TaskId),
}

impl Work {
    fn id(self) -> WorkId {
        let (kind, task) = match self {
            Work::Message => (0u64, TaskId::default()),
            Work::Fetch(task) => (1, task),
            Work::Push(task) => (2, task),
            Work::Table(task) => (3, task),
        };
        WorkId((kind << 32) | (u64::from(task.slot) << 16) | u64::from(task.generation))
    }

    fn of(id: WorkId) -> Work {
        let [_, _, _, kind, slot_high, slot_low, high, low] = id.0.to_be_bytes();
        let (slot, generation) = (u16::from_be_bytes([slot_high, slot_low]), u16::from_be_bytes([high, low]));
        let task = TaskId { slot, generation };
        match kind {
            1 => Work::Fetch(task),
            2 => Work::Push(task),
            3 => Work::Table(task),
            _ => Work::Message,
        }
    }
}
