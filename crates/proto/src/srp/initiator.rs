//! The initiator machine of one SRP channel.
//!
//! It mirrors the services of the target: commands with their buffers go in, [`Event`]s come out. Data-out
//! that fits is sent inside the command, where the target has granted that; all other data is moved by the
//! target, between buffers that are advertised for the duration of the command. Any violation of the standard
//! by the target ends the connection.

mod receive;
mod send;
mod task;

use crate::iscsi::initiator::{Completion, Request};
use crate::message::{Answer, Message, MessageMachine, Post, Receives, WorkId};
use crate::services::{FunctionId, Session, TaskId};
use crate::srp::target::login::port_name;
use crate::time::Time;
use send::Control;
use std::collections::VecDeque;
use std::time::Duration;
use task::TaskTable;
use wire::scsi::transport_id::srp_port;
use wire::srp::login::FORMAT_DIRECT;
use wire::srp::{
    Layout, LoginReject, LoginRequest, LoginRequestRdma, LoginResponse, Opcode, RejectReason, ResponseCode,
    TaskFunction,
};
use wire::{Sense, Span};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// The most unanswered task management requests.
pub const FUNCTIONS_MAX: usize = 4;
/// Where immediate data begins: after a command with 16 more bytes of CDB, and its descriptor; as in Linux.
pub const IMMEDIATE_OFFSET: u16 = 68;
/// Receives beyond those for responses: one request of the target at a time, and its logout.
const RECEIVES_EXTRA: u16 = 2;
/// Bytes of a receive: a response with the longest sense data.
const RECEIVE_BYTES: u32 = 1024;
/// The shortest information unit that the longest command needs.
pub const IU_BYTES_MIN: u32 = 128;
const _: () = assert!(send::HEADER_BYTES_MAX == 128);
/// Tag of the login.
const LOGIN_TAG: u64 = 0;

/// The configuration of an initiator machine.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorConfig {
    /// Our port identifier.
    pub initiator_port: [u8; 16],
    /// The target's port identifier: its id_ext and its ioc_guid.
    pub target_port: [u8; 16],
    /// Commands in flight.
    pub queue_depth: u16,
    /// The longest information unit that is sent: [`IMMEDIATE_OFFSET`] plus the most immediate data, at least
    /// [`IU_BYTES_MIN`].
    pub it_iu_bytes: u32,
    /// Data-out that fits may be sent inside the command, if the target grants it.
    pub immediate: bool,
    /// Other channels of the same two ports continue beside this one.
    pub keeps_others: bool,
    /// How long the login may take.
    pub login_within: Duration,
    /// How long the target may be silent before it is sent a ping, and how long the answer may take.
    pub idle: Duration,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Logged in.
    Ready(Box<Session>),
    /// A command has ended; its places may be used again.
    Completed(Completion),
    /// A task management function was answered. Commands that it ended were reported before.
    FunctionDone {
        /// Which.
        id: FunctionId,
        /// The answer.
        response: ResponseCode,
    },
    /// An asynchronous event of a unit (section 6.12).
    Async {
        /// The eight LUN bytes.
        lun: u64,
        /// What.
        sense: Sense,
    },
    /// The connection has ended, and with it every command and function.
    Gone {
        /// Why.
        reason: String,
    },
}

/// The initiator's end of one SRP channel.
pub struct Initiator {
    config: InitiatorConfig,
    phase: Phase,
    link: Link,
    /// Requests that may be sent.
    request_limit: u32,
    tasks: TaskTable,
    /// Commands that have not been sent.
    commands: VecDeque<TaskId>,
    /// Commands that have ended, and whose buffers are still advertised.
    ended: VecDeque<TaskId>,
    functions: Vec<PendingFunction>,
    functions_sent: u32,
    control: VecDeque<Control>,
    last_heard: Time,
    /// When the target was sent a ping.
    pinged: Option<Time>,
    freed: Vec<Span>,
    /// Answers to functions, reported after the commands that they ended.
    answered: VecDeque<Event>,
    events: VecDeque<Event>,
}

/// The state of the connection.
enum Phase {
    Login {
        deadline: Time,
    },
    Full,
    /// The last message is being sent; then the connection ends for this reason.
    Leaving(String),
    Over,
}

/// What was negotiated.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    max_it_iu_bytes: u32,
    immediate: bool,
    /// Requests reserved for task management.
    reserve: u32,
}

#[derive(Clone, Copy, Debug)]
struct PendingFunction {
    id: FunctionId,
    function: TaskFunction,
    lun: u64,
    referenced: Option<TaskId>,
    /// This many commands were posted before it: later ones are not affected.
    before: u64,
}

impl Initiator {
    /// A machine for a connection that is being requested.
    pub fn new(config: InitiatorConfig, now: Time) -> Initiator {
        Initiator {
            phase: Phase::Login { deadline: now.after(config.login_within) },
            link: Link::default(),
            request_limit: 0,
            tasks: TaskTable::new(config.queue_depth),
            config,
            commands: VecDeque::new(),
            ended: VecDeque::new(),
            functions: Vec::new(),
            functions_sent: 0,
            control: VecDeque::new(),
            last_heard: now,
            pinged: None,
            freed: Vec::new(),
            answered: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Sends a command; `None` when the queue is full or the session is not logged in. Its buffers stay
    /// borrowed until [`Event::Completed`].
    pub fn submit(&mut self, request: Request) -> Option<TaskId> {
        if !matches!(self.phase, Phase::Full) {
            return None;
        }
        let id = self.tasks.take(request)?;
        self.commands.push_back(id);
        Some(id)
    }

    /// Sends a task management request; `referenced` is the task of an ABORT TASK. `None` when too many are
    /// unanswered, the session is not logged in, or the task has ended.
    pub fn function(
        &mut self,
        lun: u64,
        function: TaskFunction,
        referenced: Option<TaskId>,
    ) -> Option<FunctionId> {
        if !matches!(self.phase, Phase::Full) || self.functions.len() >= FUNCTIONS_MAX {
            return None;
        }
        let is_sent = match referenced {
            Some(id) => self.tasks.get(id)?.sent.is_some(),
            None => true,
        };
        let id = FunctionId(self.functions_sent);
        self.functions_sent = self.functions_sent.wrapping_add(1);
        self.functions.push(PendingFunction { id, function, lun, referenced, before: 0 });
        if is_sent {
            self.control.push_back(Control::Function { id, lun, function, referenced });
        } else {
            self.function_done(id, ResponseCode::COMPLETE);
        }
        Some(id)
    }

    /// Logs out, and [`Event::Gone`] follows.
    pub fn logout(&mut self) {
        if matches!(self.phase, Phase::Full) {
            self.control.clear();
            self.control.push_back(Control::Logout);
            self.phase = Phase::Leaving("logged out".to_string());
        }
    }

    /// Ends the connection without further messages.
    fn leave(&mut self, reason: &str) {
        self.control.clear();
        self.phase = Phase::Leaving(reason.to_string());
    }

    fn over(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.phase = Phase::Over;
        self.control.clear();
        self.freed.clear();
        self.commands.clear();
        self.ended.clear();
        self.answered.clear();
        self.events.push_back(Event::Gone { reason: reason.to_string() });
    }

    fn login_response(&mut self, private_data: &[u8]) -> Result<(), &'static str> {
        let response = LoginResponse::view(private_data).filter(|it| it.opcode == Opcode::LOGIN_RESPONSE);
        let response = response.ok_or("no login response (SRP r16a section 6.3)")?;
        let max_it_iu_bytes = self.config.it_iu_bytes.min(response.max_it_iu_len.get());
        self.request_limit = response.req_lim_delta.get();
        if response.tag.get() != LOGIN_TAG || self.request_limit == 0 || max_it_iu_bytes < IU_BYTES_MIN {
            return Err("a login response of another login, or too narrow (SRP r16a section 6.3)");
        }
        let immediate = response.rsp_flags & LoginResponse::IMMEDIATE != 0;
        self.link = Link { max_it_iu_bytes, immediate, reserve: u32::from(self.request_limit > 1) };
        Ok(())
    }

    fn session(&self) -> Session {
        Session {
            initiator: port_name(&self.config.initiator_port),
            alias: None,
            target: Some(port_name(&self.config.target_port)),
            isid: [0; 6],
            tsih: 0,
            cid: 0,
            keeps_others: self.config.keeps_others,
            negotiated: vec![
                ("RequestLimit", self.request_limit.to_string()),
                ("MaxInitiatorToTargetIU", self.link.max_it_iu_bytes.to_string()),
                ("ImmediateData", if self.link.immediate { "Yes" } else { "No" }.to_string()),
            ],
            transport_id: srp_port(&self.config.initiator_port).to_vec(),
        }
    }
}

impl MessageMachine for Initiator {
    type Event = Event;

    fn request(&mut self) -> Vec<u8> {
        let multiple = if self.config.keeps_others { LoginRequest::CHANNEL_MULTIPLE } else { 0 };
        let (immediate, offset) =
            if self.config.immediate { (LoginRequest::IMMEDIATE, IMMEDIATE_OFFSET) } else { (0, 0) };
        let login = LoginRequestRdma {
            tag: U64::new(LOGIN_TAG),
            req_buf_fmt: U16::new(FORMAT_DIRECT),
            req_flags: immediate | multiple,
            opcode: Opcode::LOGIN_REQUEST,
            req_it_iu_len: U32::new(self.config.it_iu_bytes),
            initiator_port_id: self.config.initiator_port,
            target_port_id: self.config.target_port,
            imm_data_offset: U16::new(offset),
            ..LoginRequestRdma::default()
        };
        login.as_bytes().to_vec()
    }

    /// Initiators do not get connection requests.
    fn asked(&mut self, _now: Time, _private_data: &[u8]) -> Answer {
        Answer::Reject(Vec::new())
    }

    fn established(&mut self, now: Time, private_data: &[u8]) {
        if !matches!(self.phase, Phase::Login { .. }) {
            return;
        }
        self.last_heard = now;
        match self.login_response(private_data) {
            Ok(()) => {
                self.phase = Phase::Full;
                self.events.push_back(Event::Ready(Box::new(self.session())));
            }
            Err(reason) => self.leave(reason),
        }
    }

    fn rejected(&mut self, _now: Time, private_data: &[u8]) {
        let reject = LoginReject::view(private_data).filter(|it| it.opcode == Opcode::LOGIN_REJECT);
        match reject {
            Some(reject) => {
                let (reason, text) = (reject.reason.0.get(), reject_text(reject.reason));
                self.over(&format!(
                    "login rejected with reason {reason:#010x}, {text} (SRP r16a section 6.4)"
                ));
            }
            None => self.over("login rejected without a reason"),
        }
    }

    fn receives(&self) -> Receives {
        let functions = u16::try_from(FUNCTIONS_MAX).unwrap_or(0);
        let freed = u16::try_from(self.freed.len()).unwrap_or(0);
        let count = self.config.queue_depth.saturating_add(functions).saturating_add(RECEIVES_EXTRA);
        Receives { count: count.saturating_sub(freed), bytes: RECEIVE_BYTES, aligned_at: 0 }
    }

    fn received(&mut self, now: Time, message: Message<'_>) {
        (self.last_heard, self.pinged) = (now, None);
        self.freed.push(message.place);
        if matches!(self.phase, Phase::Full)
            && let Err(reason) = self.unit(message.bytes)
        {
            self.leave(&reason);
        }
    }

    fn finished(&mut self, _now: Time, work: WorkId) {
        if !matches!(self.phase, Phase::Over) {
            self.sent(work);
        }
    }

    fn freed(&mut self, _now: Time, stag: u32) {
        if !matches!(self.phase, Phase::Over)
            && let Some(id) = self.tasks.freed(stag)
        {
            self.complete(id);
            self.report_answers();
        }
    }

    fn closed(&mut self, _now: Time, reason: &str) {
        match std::mem::replace(&mut self.phase, Phase::Full) {
            Phase::Over => self.phase = Phase::Over,
            Phase::Leaving(text) => self.over(&text),
            Phase::Login { .. } | Phase::Full => self.over(reason),
        }
    }

    fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn owes(&self) -> bool {
        let commands = !self.commands.is_empty() && self.may_send_command();
        let reports = !self.ended.is_empty() || (!self.answered.is_empty() && !self.tasks.has_unreported());
        commands || reports || !self.freed.is_empty() || self.owes_control()
    }

    fn post(&mut self, _now: Time, to: &mut dyn Post) {
        self.send(to);
    }

    fn is_over(&self) -> bool {
        match &self.phase {
            Phase::Login { .. } | Phase::Full => false,
            Phase::Leaving(_) => self.control.is_empty(),
            Phase::Over => true,
        }
    }

    fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Login { deadline } => Some(*deadline),
            Phase::Full => Some(self.pinged.unwrap_or(self.last_heard).after(self.config.idle)),
            Phase::Leaving(_) | Phase::Over => None,
        }
    }

    fn tick(&mut self, now: Time) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match &self.phase {
            Phase::Login { .. } => self.leave("login took too long"),
            Phase::Full if self.pinged.is_some() => self.over("no answer to keep-alive"),
            // A target that gave no credit cannot be sent a ping.
            Phase::Full if self.request_limit == 0 => self.last_heard = now,
            Phase::Full => {
                self.pinged = Some(now);
                self.control.push_back(Control::Ping);
            }
            Phase::Leaving(_) | Phase::Over => {}
        }
    }
}

/// The text of a reason to reject a login (section 6.4).
fn reject_text(reason: RejectReason) -> &'static str {
    match reason {
        RejectReason::UNABLE_TO_ESTABLISH => "the target does not admit this initiator",
        RejectReason::INSUFFICIENT_RESOURCES => "the target has no free slot for another session",
        RejectReason::LENGTH_TOO_LARGE => {
            "the target accepts only shorter commands: do not send data inside them"
        }
        RejectReason::UNABLE_TO_ASSOCIATE => "no such target port there",
        RejectReason::DESCRIPTOR_FORMAT => "the target lacks a data buffer descriptor format",
        RejectReason::MULTI_CHANNEL => "the target has no sessions of several channels",
        RejectReason::CHANNEL_LIMIT => "the session has the maximum number of channels",
        _ => "for an unknown reason",
    }
}
