//! The iSCSI layer of an initiator: whatever is the same whether PDUs and data move as bytes of a stream, or
//! as messages and by RDMA.
//!
//! A datamover passes in headers ([`Layer::header`]) and then PDUs with their data ([`Layer::pdu`]), sends
//! `control`, `data` and `commands` in this order, and reports when payload has been sent
//! ([`Layer::pushed`]).

use super::queue::{Control, DataOut};
use super::task::{Task, TaskTable};
use super::{
    Completion, Event, FUNCTIONS_MAX, InitiatorConfig, Outcome, PING_BYTES_MAX, QUEUE_DEPTH_MAX, Request,
    Residual,
};
use crate::iscsi::login::{InitiatorLogin, Negotiated, Rdma};
use crate::services::{FunctionId, TaskId};
use crate::time::Time;
use std::collections::VecDeque;
use wire::iscsi::{
    FINAL, FunctionResponse, LoginRequest, LogoutReason, LogoutRequest, NopOut, Opcode, TAG_NONE,
    TaskFunction, TaskManagementRequest, TextRequest,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Requests other than commands that wait to be sent; reading stops while there are this many.
pub(crate) const CONTROL_MAX: usize = 64;

/// Low halves of the task tags of requests other than commands; the high half is a counter.
const FUNCTION_SLOT: u16 = 0xff00;
const PING_SLOT: u16 = 0xff80;
const TEXT_SLOT: u16 = 0xff81;
const LOGOUT_SLOT: u16 = 0xff82;

/// The task tag of all login requests.
pub(super) const LOGIN_TAG: u32 = 0xff83;

/// The iSCSI layer of one connection, on the initiator's side.
/// Its fields are what all types of PDUs share: sequence numbers, negotiated keys, the queue.
pub(crate) struct Layer {
    pub(crate) config: InitiatorConfig,
    pub(crate) phase: Phase,
    pub(crate) negotiated: Option<Box<Negotiated>>,
    pub(crate) link: Link,
    /// What was negotiated over RDMA.
    pub(crate) rdma: Option<Rdma>,
    /// CmdSN of the next command.
    pub(crate) cmd_sn: u32,
    /// CmdSN of the next command that the target expects.
    pub(crate) exp_cmd_sn: u32,
    pub(crate) max_cmd_sn: u32,
    pub(crate) exp_stat_sn: u32,
    pub(crate) tasks: TaskTable,
    /// Commands that have not been sent.
    pub(crate) commands: VecDeque<TaskId>,
    /// Data-Out that has not been sent.
    pub(crate) data: VecDeque<DataOut>,
    pub(crate) control: VecDeque<Control>,
    /// Header segments of one command, kept to reuse the allocation.
    pub(crate) segments: Vec<u8>,
    pub(crate) functions: Vec<PendingFunction>,
    /// Counts the tags of requests other than commands.
    pub(crate) tags: u16,
    pub(crate) text: Option<TextExchange>,
    /// Tag of the outstanding ping, and whether it was requested from above.
    pub(crate) ping: Option<(u32, bool)>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) last_heard: Time,
    pub(crate) pinged: Option<Time>,
}

/// The state of the connection.
pub(crate) enum Phase {
    Login { login: Box<InitiatorLogin>, deadline: Time, begun: bool },
    Full,
    LoggingOut { deadline: Time },
    Over,
}

/// What was negotiated, as the datapath needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub header_digest: bool,
    pub data_digest: bool,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    pub max_send: u32,
    pub first_burst: u32,
    pub max_burst: u32,
    pub max_outstanding_r2t: u16,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFunction {
    pub(super) id: FunctionId,
    pub(super) tag: u32,
    pub(super) cmd_sn: u32,
    pub(super) lun: u64,
    pub(super) function: TaskFunction,
    pub(super) referenced: Option<TaskId>,
}

#[derive(Debug)]
pub(crate) struct TextExchange {
    pub(super) tag: u32,
    pub(super) received: Vec<u8>,
    /// Responses received.
    pub(super) parts: u32,
}

impl Layer {
    pub(crate) fn new(config: InitiatorConfig, now: Time) -> Layer {
        let login = Box::new(InitiatorLogin::new(config.plan.clone()));
        let mut layer = Layer {
            phase: Phase::Login { login, deadline: now.after(config.login_within), begun: false },
            config,
            negotiated: None,
            link: Link::default(),
            rdma: None,
            cmd_sn: 1,
            exp_cmd_sn: 1,
            max_cmd_sn: 0,
            exp_stat_sn: 0,
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
        layer.queue_login();
        layer
    }

    pub(crate) fn submit(&mut self, request: Request) -> Option<TaskId> {
        if !matches!(self.phase, Phase::Full) {
            return None;
        }
        let id = self.tasks.take(request)?;
        self.commands.push_back(id);
        Some(id)
    }

    /// Payload that this task has borrowed is free again.
    pub(crate) fn pushed(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(id) {
            task.batches = task.batches.saturating_sub(1);
            self.complete(id);
        }
    }

    /// Whether the target has acknowledged a command that has not ended (section 4.2.2.1).
    pub(crate) fn has_arrived(&mut self, id: TaskId) -> bool {
        let exp = self.exp_cmd_sn;
        self.tasks.get(id).is_some_and(|task| task.sent && task.cmd_sn.wrapping_sub(exp) >= 0x8000_0000)
    }

    pub(crate) fn function(
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

    pub(crate) fn text(&mut self, text: &[u8]) -> bool {
        let fits = u32::try_from(text.len()).is_ok_and(|len| len <= self.link.max_send);
        if !matches!(self.phase, Phase::Full) || self.text.is_some() || !fits || text.len() > PING_BYTES_MAX {
            return false;
        }
        let tag = self.next_tag(TEXT_SLOT);
        self.text = Some(TextExchange { tag, received: Vec::new(), parts: 0 });
        self.queue_text(tag, TAG_NONE, 0, text);
        true
    }

    pub(crate) fn ping(&mut self, data: &[u8]) -> bool {
        if !matches!(self.phase, Phase::Full) || self.ping.is_some() || data.len() > PING_BYTES_MAX {
            return false;
        }
        self.queue_ping(data, true);
        true
    }

    pub(crate) fn logout(&mut self, now: Time) {
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

    /// The peer was heard from.
    pub(crate) fn note_peer_activity(&mut self, now: Time) {
        self.last_heard = now;
        self.pinged = None;
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    pub(crate) fn owes(&self) -> bool {
        !self.control.is_empty() || !self.data.is_empty() || (!self.commands.is_empty() && self.window_open())
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Login { deadline, .. } | Phase::LoggingOut { deadline } => Some(*deadline),
            Phase::Full => Some(self.pinged.unwrap_or(self.last_heard).after(self.config.idle)),
            Phase::Over => None,
        }
    }

    pub(crate) fn tick(&mut self, now: Time) {
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

    /// The connection has ended.
    pub(crate) fn over(&mut self, reason: &str) {
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
    pub(super) fn begin(&mut self, negotiated: Negotiated) {
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
        self.rdma = negotiated.rdma;
        self.phase = Phase::Full;
        self.events.push_back(Event::Ready(Box::new(negotiated.session.clone())));
        self.negotiated = Some(Box::new(negotiated));
    }

    fn next_tag(&mut self, slot: u16) -> u32 {
        self.tags = self.tags.wrapping_add(1);
        (u32::from(self.tags) << 16) | u32::from(slot)
    }

    /// Whether the target takes another command (section 4.2.2.1).
    pub(crate) fn window_open(&self) -> bool {
        let room = self.max_cmd_sn.wrapping_sub(self.cmd_sn);
        room < 0x8000_0000
    }

    /// Reports a task that has ended once all of its payload has been sent.
    fn complete(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.batches > 0 {
            return;
        }
        let Some(completion) = task.ended else { return };
        self.tasks.release(id);
        self.events.push_back(Event::Completed(completion));
    }

    /// Ends a task.
    pub(crate) fn end(&mut self, id: TaskId, outcome: Outcome, residual: Residual, read_residual: Residual) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.ended.is_none() {
            let (read_bytes, write_bytes) = (task.received, task.taken);
            task.ended =
                Some(Completion { task: id, outcome, read_bytes, write_bytes, residual, read_residual });
        }
        self.complete(id);
    }

    /// A task management function was answered: the tasks that it ended are reported first.
    pub(super) fn function_done(&mut self, tag: u32, response: FunctionResponse) {
        let Some(at) = self.functions.iter().position(|function| function.tag == tag) else { return };
        let function = self.functions.swap_remove(at);
        let done = response == FunctionResponse::COMPLETE;
        if let Some(id) = function.referenced {
            // A task that the target does not know, and that has no response either, was lost in transit.
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

    pub(super) fn queue_login(&mut self) {
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
            initiator_task_tag: U32::new(LOGIN_TAG),
            cmd_sn: U32::new(self.cmd_sn),
            ..LoginRequest::default()
        };
        self.queue(pdu.as_bytes(), &send.text);
    }

    pub(super) fn queue_text(&mut self, tag: u32, transfer_tag: u32, lun: u64, text: &[u8]) {
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

    pub(super) fn queue_nop(&mut self, tag: u32, transfer_tag: u32, lun: u64, data: &[u8]) {
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
