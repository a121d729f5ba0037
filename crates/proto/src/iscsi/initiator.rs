//! The initiator machine of one connection: login, then the full feature phase at error recovery level 0.
//!
//! It mirrors the verbs of the target: commands go in with their places, [`Event`]s come out. For each task that the
//! driver names because a batch has left, [`Initiator::pushed`] is to be called. Any breach of the standard by the
//! target ends the connection (section 7.1.4: session recovery is all there is at this level). Nothing is allocated
//! per command once logged in.

mod receive;
mod send;
mod task;

use crate::iscsi::login::{InitiatorLogin, Negotiated, Plan};
use crate::stream::{HEADER_BYTES_MAX, StreamMachine, Transmit, Want};
use crate::time::Time;
use crate::verbs::{Attribute, FunctionId, Session, TaskId};
use send::{Control, DataOut};
use std::collections::VecDeque;
use std::time::Duration;
use task::{Task, TaskTable};
use wire::iscsi::{
    AsyncEvent, BHS_BYTES, DIGEST_BYTES, FINAL, FunctionResponse, LoginRequest, LogoutReason, LogoutRequest,
    NopOut, Opcode, RejectReason, TAG_NONE, TaskFunction, TaskManagementRequest, TextRequest, pad,
};
use wire::{Cdb, Places, Sense};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Task management requests without an answer yet.
pub const FUNCTIONS_MAX: usize = 16;
/// Bytes of ping data.
pub const PING_BYTES_MAX: usize = 4096;
/// Bytes of all the responses to one text request.
pub const TEXT_RESPONSE_MAX: usize = 1024 * 1024;
/// The deepest queue: slots are below the tags of everything else.
pub const QUEUE_DEPTH_MAX: u16 = 0x7fff;
/// Requests that are not commands, waiting to be sent; reading stops while there are so many.
const CONTROL_MAX: usize = 64;

/// Low halves of task tags that are not of commands; the high half counts.
const FUNCTION_SLOT: u16 = 0xff00;
const PING_SLOT: u16 = 0xff80;
const TEXT_SLOT: u16 = 0xff81;
const LOGOUT_SLOT: u16 = 0xff82;
const LOGIN_SLOT: u16 = 0xff83;

/// What is given to an initiator machine.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// How to log in.
    pub plan: Plan,
    /// Commands in flight, at most [`QUEUE_DEPTH_MAX`].
    pub queue_depth: u16,
    /// How long the login may take.
    pub login_within: Duration,
    /// How long the target may be silent before it is asked for a sign of life, and how long the answer may take.
    pub idle: Duration,
    /// CRC32C.
    pub crc32c: fn(&[u8]) -> u32,
}

/// A SCSI command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The eight LUN bytes.
    pub lun: u64,
    /// Task attribute.
    pub attribute: Attribute,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Where data-in goes.
    pub read: Places,
    /// Where data-out comes from.
    pub write: Places,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Which.
    pub task: TaskId,
    /// How.
    pub outcome: Outcome,
    /// Bytes of data-in that came.
    pub read_bytes: u32,
    /// What was left of the expected length: of the data-out, when the command has both directions.
    pub residual: Residual,
    /// The same of the data-in of a command with both directions.
    pub read_residual: Residual,
}

/// Ways for a command to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// With a SCSI status.
    Status {
        /// Status (SAM-5 section 5.3).
        status: u8,
        /// Sense data.
        sense: Option<Sense>,
    },
    /// The target could not execute it: the response code (section 11.4.3).
    TargetFailure(u8),
    /// It was rejected.
    Rejected(RejectReason),
    /// A task management function ended it.
    Aborted,
}

/// Residual count (section 11.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residual {
    /// Just what was expected.
    None,
    /// The target had so many bytes more.
    Overflow(u32),
    /// The target had so many bytes less.
    Underflow(u32),
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Logged in.
    Ready(Box<Session>),
    /// A command is over; its places may be used again.
    Completed(Completion),
    /// A task management function was answered. Commands that it ended were reported before.
    FunctionDone {
        /// Which.
        id: FunctionId,
        /// The answer.
        response: FunctionResponse,
    },
    /// The whole answer to a text request.
    Text(Vec<u8>),
    /// The answer to a ping.
    Pong(Vec<u8>),
    /// An asynchronous message (section 11.9): with [`AsyncEvent::LOGOUT_REQUEST`], log out.
    Async {
        /// What.
        event: AsyncEvent,
        /// Its three parameters.
        parameters: [u16; 3],
    },
    /// The target rejected a PDU.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The opcode of the PDU.
        opcode: Opcode,
    },
    /// The connection is no more, and with it every command, function and text request.
    Gone {
        /// Why.
        reason: String,
    },
}

/// The initiator's end of one iSCSI connection.
pub struct Initiator {
    config: InitiatorConfig,
    phase: Phase,
    negotiated: Option<Box<Negotiated>>,
    link: Link,
    /// CmdSN of the next command.
    cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
    receiving: Receiving,
    /// The header whose data is still to come.
    head: [u8; BHS_BYTES],
    /// Data that is not for a place, with padding and digest, as far as it came.
    gathered: Vec<u8>,
    tasks: TaskTable,
    /// Commands not sent yet.
    commands: VecDeque<TaskId>,
    /// Data-Out not sent yet.
    data: VecDeque<DataOut>,
    control: VecDeque<Control>,
    /// Header segments of one command, kept for its allocation.
    segments: Vec<u8>,
    functions: Vec<PendingFunction>,
    /// Counts the tags that are not of commands.
    tags: u16,
    text: Option<TextExchange>,
    /// Tag of the ping under way, and whether it was asked for from above.
    ping: Option<(u32, bool)>,
    events: VecDeque<Event>,
    last_heard: Time,
    pinged: Option<Time>,
}

/// Where the connection stands.
enum Phase {
    Login { login: Box<InitiatorLogin>, deadline: Time, begun: bool },
    Full,
    LoggingOut { deadline: Time },
    Over,
}

/// What was negotiated, as the datapath needs it.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    header_digest: bool,
    data_digest: bool,
    initial_r2t: bool,
    immediate_data: bool,
    max_send: u32,
    first_burst: u32,
    max_burst: u32,
    max_outstanding_r2t: u16,
}

/// What is being received.
#[derive(Clone, Copy, Debug)]
enum Receiving {
    Header,
    /// Data that is not for a place: `total` bytes with padding and digest.
    Gather {
        total: u32,
    },
    /// Data-In.
    Body {
        task: TaskId,
        place: Places,
    },
}

#[derive(Clone, Copy, Debug)]
struct PendingFunction {
    id: FunctionId,
    tag: u32,
    cmd_sn: u32,
    lun: u64,
    function: TaskFunction,
    referenced: Option<TaskId>,
}

#[derive(Debug)]
struct TextExchange {
    tag: u32,
    received: Vec<u8>,
}

impl Initiator {
    /// A machine for a connection that was made now.
    pub fn new(config: InitiatorConfig, now: Time) -> Initiator {
        let login = Box::new(InitiatorLogin::new(config.plan.clone()));
        let mut machine = Initiator {
            phase: Phase::Login { login, deadline: now.after(config.login_within), begun: false },
            config,
            negotiated: None,
            link: Link::default(),
            cmd_sn: 1,
            max_cmd_sn: 0,
            exp_stat_sn: 0,
            receiving: Receiving::Header,
            head: [0; BHS_BYTES],
            gathered: Vec::new(),
            tasks: TaskTable::new(0),
            commands: VecDeque::new(),
            data: VecDeque::new(),
            control: VecDeque::new(),
            segments: Vec::new(),
            functions: Vec::new(),
            tags: 0,
            text: None,
            ping: None,
            events: VecDeque::new(),
            last_heard: now,
            pinged: None,
        };
        machine.queue_login();
        machine
    }

    /// What was negotiated, once logged in.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_deref()
    }

    /// Sends a command; `None` when the queue is full or nobody is logged in. Its places stay lent until
    /// [`Event::Completed`].
    pub fn submit(&mut self, request: Request) -> Option<TaskId> {
        if !matches!(self.phase, Phase::Full) {
            return None;
        }
        let id = self.tasks.take(request)?;
        self.commands.push_back(id);
        Some(id)
    }

    /// Payload of this task that was in [`Transmit::done`] has left.
    pub fn pushed(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(id) {
            task.lent = task.lent.saturating_sub(1);
            self.complete(id);
        }
    }

    /// Sends a task management request; `referenced` is the task that an ABORT TASK is about. `None` when too many
    /// wait for an answer, nobody is logged in, or the task is no more.
    pub fn function(
        &mut self,
        lun: u64,
        function: TaskFunction,
        referenced: Option<TaskId>,
    ) -> Option<FunctionId> {
        if !matches!(self.phase, Phase::Full) || self.functions.len() >= FUNCTIONS_MAX {
            return None;
        }
        let (tag_of, ref_cmd_sn) = match referenced {
            Some(id) => {
                let task = self.tasks.get(id)?;
                (Task::tag(id), task.cmd_sn)
            }
            None => (TAG_NONE, 0),
        };
        let index = u16::try_from(self.functions.len()).unwrap_or(0);
        let tag = self.next_tag(FUNCTION_SLOT.saturating_add(index));
        let pending =
            PendingFunction { id: FunctionId(tag), tag, cmd_sn: self.cmd_sn, lun, function, referenced };
        self.functions.push(pending);
        if referenced.and_then(|id| self.tasks.get(id)).is_some_and(|task| !task.sent) {
            self.function_done(tag, FunctionResponse::COMPLETE);
            return Some(pending.id);
        }
        let pdu = TaskManagementRequest {
            opcode: Opcode::TASK_MANAGEMENT_REQUEST.0 | Opcode::IMMEDIATE,
            flags: FINAL | function.0,
            lun: U64::new(lun),
            initiator_task_tag: U32::new(tag),
            referenced_task_tag: U32::new(tag_of),
            cmd_sn: U32::new(self.cmd_sn),
            ref_cmd_sn: U32::new(ref_cmd_sn),
            ..TaskManagementRequest::default()
        };
        self.queue(pdu.as_bytes(), &[]);
        Some(pending.id)
    }

    /// Sends a text request, of at most what the target takes in one PDU; `false` when one is under way.
    pub fn text(&mut self, text: &[u8]) -> bool {
        let fits = u32::try_from(text.len()).is_ok_and(|len| len <= self.link.max_send);
        if !matches!(self.phase, Phase::Full) || self.text.is_some() || !fits || text.len() > PING_BYTES_MAX {
            return false;
        }
        let tag = self.next_tag(TEXT_SLOT);
        self.text = Some(TextExchange { tag, received: Vec::new() });
        self.queue_text(tag, TAG_NONE, 0, text);
        true
    }

    /// Sends a ping with up to [`PING_BYTES_MAX`] bytes of data; `false` when one is under way.
    pub fn ping(&mut self, data: &[u8]) -> bool {
        if !matches!(self.phase, Phase::Full) || self.ping.is_some() || data.len() > PING_BYTES_MAX {
            return false;
        }
        self.queue_ping(data, true);
        true
    }

    /// Logs out: the session is closed, and [`Event::Gone`] follows, whatever the target sends instead of an answer.
    pub fn logout(&mut self, now: Time) {
        if !matches!(self.phase, Phase::Full) {
            return;
        }
        self.phase = Phase::LoggingOut { deadline: now.after(self.config.idle) };
        let tag = self.next_tag(LOGOUT_SLOT);
        let pdu = LogoutRequest {
            opcode: Opcode::LOGOUT_REQUEST.0 | Opcode::IMMEDIATE,
            flags: FINAL | LogoutReason::CLOSE_SESSION.0,
            initiator_task_tag: U32::new(tag),
            cmd_sn: U32::new(self.cmd_sn),
            ..LogoutRequest::default()
        };
        self.queue(pdu.as_bytes(), &[]);
    }
}

impl StreamMachine for Initiator {
    type Event = Event;

    fn want(&self) -> Want {
        if matches!(self.phase, Phase::Over) {
            return Want::Nothing;
        }
        match self.receiving {
            Receiving::Header if self.control.len() >= CONTROL_MAX => Want::Nothing,
            Receiving::Header => Want::Header { len: self.header_bytes() },
            Receiving::Gather { total } => {
                let have = u32::try_from(self.gathered.len()).unwrap_or(u32::MAX);
                Want::Header { len: total.saturating_sub(have).min(HEADER_BYTES_MAX) }
            }
            Receiving::Body { place, .. } => {
                Want::Body { place, pad: pad(place.len()), digest: self.link.data_digest.then_some(0) }
            }
        }
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        self.last_heard = now;
        self.pinged = None;
        if let Err(reason) = self.received(bytes) {
            self.over(&reason);
        }
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        self.last_heard = now;
        self.pinged = None;
        let Receiving::Body { task, place } = self.receiving else { return };
        self.receiving = Receiving::Header;
        if !digest_ok {
            return self.over("data digest mismatch (RFC 7143 section 7.8)");
        }
        if let Err(reason) = self.data_in_done(task, place.len()) {
            self.over(&reason);
        }
    }

    fn closed(&mut self, _now: Time, error: Option<&str>) {
        self.over(error.unwrap_or("closed by the target"));
    }

    fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn owes(&self) -> bool {
        !self.control.is_empty() || !self.data.is_empty() || (!self.commands.is_empty() && self.window_open())
    }

    fn transmit(&mut self, _now: Time, batch: &mut Transmit) {
        self.send(batch);
    }

    fn finished(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Login { deadline, .. } | Phase::LoggingOut { deadline } => Some(*deadline),
            Phase::Full => Some(self.pinged.unwrap_or(self.last_heard).after(self.config.idle)),
            Phase::Over => None,
        }
    }

    fn tick(&mut self, now: Time) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            Phase::Login { .. } => self.over("login took too long"),
            Phase::Full if self.pinged.is_none() => {
                self.pinged = Some(now);
                if self.ping.is_none() {
                    self.queue_ping(&[], false);
                }
            }
            Phase::Full => self.over("no answer to keep-alive"),
            Phase::LoggingOut { .. } => self.over("no answer to the logout request"),
            Phase::Over => {}
        }
    }
}

impl Initiator {
    fn header_bytes(&self) -> u32 {
        let len = if self.link.header_digest { BHS_BYTES.saturating_add(DIGEST_BYTES) } else { BHS_BYTES };
        u32::try_from(len).unwrap_or(HEADER_BYTES_MAX)
    }

    /// The connection is no more.
    fn over(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.phase = Phase::Over;
        self.control.clear();
        self.data.clear();
        self.commands.clear();
        self.events.push_back(Event::Gone { reason: reason.to_string() });
    }

    /// The full feature phase begins.
    fn begin(&mut self, negotiated: Negotiated) {
        let depth = self.config.queue_depth.clamp(1, QUEUE_DEPTH_MAX);
        self.link = Link {
            header_digest: negotiated.header_digest,
            data_digest: negotiated.data_digest,
            initial_r2t: negotiated.initial_r2t,
            immediate_data: negotiated.immediate_data,
            max_send: negotiated.max_recv_target,
            first_burst: negotiated.first_burst,
            max_burst: negotiated.max_burst,
            max_outstanding_r2t: negotiated.max_outstanding_r2t,
        };
        let slots = usize::from(depth);
        let bursts = usize::from(negotiated.max_outstanding_r2t).saturating_add(1);
        self.tasks = TaskTable::new(depth);
        self.commands.reserve(slots);
        self.data.reserve(slots.saturating_mul(bursts));
        self.events.reserve(slots.saturating_add(CONTROL_MAX));
        self.phase = Phase::Full;
        self.events.push_back(Event::Ready(Box::new(negotiated.session.clone())));
        self.negotiated = Some(Box::new(negotiated));
    }

    fn next_tag(&mut self, slot: u16) -> u32 {
        self.tags = self.tags.wrapping_add(1);
        (u32::from(self.tags) << 16) | u32::from(slot)
    }

    /// Whether the target takes another command (section 4.2.2.1).
    fn window_open(&self) -> bool {
        let room = self.max_cmd_sn.wrapping_sub(self.cmd_sn);
        room < 0x8000_0000
    }

    /// Reports a task that has ended once all of its payload has left.
    fn complete(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.lent > 0 {
            return;
        }
        let Some(completion) = task.ended else { return };
        self.tasks.release(id);
        self.events.push_back(Event::Completed(completion));
    }

    /// Ends a task.
    fn end(&mut self, id: TaskId, outcome: Outcome, residual: Residual, read_residual: Residual) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.ended.is_none() {
            let read_bytes = task.received;
            task.ended = Some(Completion { task: id, outcome, read_bytes, residual, read_residual });
        }
        self.complete(id);
    }

    /// A task management function was answered: the tasks that it ended go first.
    fn function_done(&mut self, tag: u32, response: FunctionResponse) {
        let Some(at) = self.functions.iter().position(|function| function.tag == tag) else { return };
        let function = self.functions.swap_remove(at);
        let done = response == FunctionResponse::COMPLETE;
        if let Some(id) = function.referenced {
            // A task that the target does not know, and that has no response either, was lost on the way.
            if done || response == FunctionResponse::NO_TASK {
                self.end(id, Outcome::Aborted, Residual::None, Residual::None);
            }
        } else if done {
            self.end_covered(function);
        }
        self.events.push_back(Event::FunctionDone { id: function.id, response });
    }

    fn end_covered(&mut self, function: PendingFunction) {
        let every_unit = match function.function {
            TaskFunction::ABORT_TASK_SET
            | TaskFunction::CLEAR_TASK_SET
            | TaskFunction::LOGICAL_UNIT_RESET => false,
            TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET => true,
            _ => return,
        };
        for slot in 0..self.tasks.slots() {
            let Some((id, task)) = self.tasks.at(slot) else { continue };
            let before = task.cmd_sn.wrapping_sub(function.cmd_sn) >= 0x8000_0000;
            if task.sent && before && (every_unit || task.request.lun == function.lun) {
                self.end(id, Outcome::Aborted, Residual::None, Residual::None);
            }
        }
    }

    fn queue_login(&mut self) {
        let Phase::Login { login, .. } = &mut self.phase else { return };
        let isid = login.plan().isid;
        let send = login.request();
        let mut flags = (send.csg.0 << 2) | send.nsg.0;
        if send.transit {
            flags |= LoginRequest::TRANSIT;
        }
        if send.cont {
            flags |= wire::iscsi::CONTINUE;
        }
        let pdu = LoginRequest {
            opcode: Opcode::LOGIN_REQUEST.0 | Opcode::IMMEDIATE,
            flags,
            isid,
            initiator_task_tag: U32::new(u32::from(LOGIN_SLOT)),
            cmd_sn: U32::new(self.cmd_sn),
            ..LoginRequest::default()
        };
        self.queue(pdu.as_bytes(), &send.text);
    }

    fn queue_text(&mut self, tag: u32, transfer_tag: u32, lun: u64, text: &[u8]) {
        let pdu = TextRequest {
            opcode: Opcode::TEXT_REQUEST.0 | Opcode::IMMEDIATE,
            flags: FINAL,
            lun: U64::new(lun),
            initiator_task_tag: U32::new(tag),
            target_transfer_tag: U32::new(transfer_tag),
            cmd_sn: U32::new(self.cmd_sn),
            ..TextRequest::default()
        };
        self.queue(pdu.as_bytes(), text);
    }

    fn queue_ping(&mut self, data: &[u8], asked: bool) {
        let tag = self.next_tag(PING_SLOT);
        self.ping = Some((tag, asked));
        self.queue_nop(tag, TAG_NONE, 0, data);
    }

    fn queue_nop(&mut self, tag: u32, transfer_tag: u32, lun: u64, data: &[u8]) {
        let pdu = NopOut {
            opcode: Opcode::NOP_OUT.0 | Opcode::IMMEDIATE,
            flags: FINAL,
            lun: U64::new(lun),
            initiator_task_tag: U32::new(tag),
            target_transfer_tag: U32::new(transfer_tag),
            cmd_sn: U32::new(self.cmd_sn),
            ..NopOut::default()
        };
        self.queue(pdu.as_bytes(), data);
    }
}
