//! Requests that are not SCSI commands: login, NOP, text, task management, logout.

use super::layer::{Granted, Layer, Phase};
use super::violation::{Reaction, Violation};
use crate::iscsi::login::{self, LoginReply};
use crate::iscsi::target::session::Session;
use crate::services::{Function, FunctionId, FunctionResponse, TaskId, Up};
use crate::time::Time;
use std::time::Duration;
use wire::iscsi::{
    AsyncEvent, AsyncMessage, BHS_BYTES, BasicHeader, CONTINUE, FINAL, FunctionResponse as Response,
    LoginRequest, LoginResponse, LogoutOutcome, LogoutReason, LogoutRequest, LogoutResponse, NopOut, Opcode,
    Pdu, TAG_NONE, TaskFunction, TaskManagementRequest, TaskManagementResponse, TextRequest, TextResponse,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32};

/// The most text of one exchange, over all its requests.
const TEXT_MAX: usize = 64 * 1024;
/// The target transfer tag of the text exchange, of which there is one at a time.
const TEXT_TAG: u32 = 0x8000_0001;
/// The target transfer tag of NOP-Ins that request an answer.
const PING_TAG: u32 = 0x8000_0002;

/// A task management request that has not been answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFunction {
    id: FunctionId,
    pub tag: u32,
    /// The unit whose tasks it ends; `None` for every unit.
    lun: Option<u64>,
    /// Whether it ends more than one task.
    set: bool,
}

/// A text request, or an answer, that needs more than one PDU (section 11.10.4).
#[derive(Debug)]
pub(super) struct TextExchange {
    tag: u32,
    received: Vec<u8>,
    /// The rest of the answer.
    answer: Vec<u8>,
}

impl Layer {
    /// Executes a request whose text or ping data is complete.
    pub(crate) fn request(&mut self, header: &[u8], text: &[u8]) {
        match BasicHeader::view(header).map(BasicHeader::opcode) {
            Some(Opcode::LOGIN_REQUEST) => self.login(header, text),
            Some(Opcode::TEXT_REQUEST) => self.text(header, text),
            Some(Opcode::NOP_OUT) => self.pong(header, text),
            _ => {}
        }
    }

    fn login(&mut self, header: &[u8], text: &[u8]) {
        let Some(pdu) = LoginRequest::view(header) else { return };
        let Phase::Login { login, .. } = &mut self.phase else { return };
        if login.begun().is_none() {
            self.session = Session::new(pdu.cmd_sn.get(), u32::from(self.config.queue_depth));
            self.connection_id = pdu.cid.get();
        }
        let (reply, depth) = (login.request(pdu, text), login.queue_depth());
        if let Some(depth) = depth {
            self.limit_depth(depth);
        }
        let response = login_response(pdu, &reply);
        if let Some(negotiated) = reply.done {
            // It is answered when the session that it replaces can write no more (section 6.3.5).
            self.up.push_back(Up::Ready(Box::new(negotiated.session.clone())));
            let (text, negotiated) = (reply.text, Box::new(negotiated));
            self.granted = Some(Box::new(Granted { response, text, negotiated }));
            return;
        }
        self.queue(response.as_bytes(), reply.text, true);
        if let Some(reason) = reply.close {
            self.refusal = Some(reply.status);
            self.phase = Phase::Closing(reason);
        }
    }

    pub(super) fn nop_out(&mut self, pdu: &NopOut, header: &[u8], len: u32) -> Result<(), Violation> {
        let immediate = pdu.opcode & Opcode::IMMEDIATE != 0;
        if pdu.initiator_task_tag.get() == TAG_NONE {
            if !immediate {
                return Err(Violation::NopNotImmediate);
            }
            self.skip_data(header);
        } else if self.in_order(immediate, pdu.cmd_sn.get())? {
            self.gather(header, len);
        } else {
            self.skip_data(header);
        }
        Ok(())
    }

    /// Sends ping data back, as much of it as the initiator accepts (section 11.18.3).
    fn pong(&mut self, header: &[u8], data: &[u8]) {
        let Some(pdu) = NopOut::view(header) else { return };
        if pdu.opcode & Opcode::IMMEDIATE == 0 {
            self.session.receive(false);
        }
        let max = usize::try_from(self.link.max_send).unwrap_or(usize::MAX);
        let data = data.get(..max).unwrap_or(data).to_vec();
        self.queue_nop_in(pdu.initiator_task_tag.get(), TAG_NONE, data);
    }

    /// Sends a ping.
    pub(super) fn ping(&mut self, now: Time) {
        self.pinged = Some(now);
        self.queue_nop_in(TAG_NONE, PING_TAG, Vec::new());
    }

    pub(super) fn text_request(
        &mut self,
        pdu: &TextRequest,
        header: &[u8],
        len: u32,
    ) -> Result<(), Violation> {
        if !self.in_order(pdu.opcode & Opcode::IMMEDIATE != 0, pdu.cmd_sn.get())? {
            self.skip_data(header);
            return Ok(());
        }
        let tag = pdu.initiator_task_tag.get();
        if tag == TAG_NONE {
            return Err(Violation::ReservedTag);
        }
        if pdu.flags & FINAL != 0 && pdu.flags & CONTINUE != 0 {
            return Err(Violation::ContinueAndFinal);
        }
        match pdu.target_transfer_tag.get() {
            // A new exchange: the old one is abandoned (section 11.10.4).
            TAG_NONE => self.text = Some(TextExchange { tag, received: Vec::new(), answer: Vec::new() }),
            TEXT_TAG if self.text.as_ref().is_some_and(|text| text.tag == tag) => {}
            _ => return Err(Violation::UnknownText),
        }
        self.gather(header, len);
        Ok(())
    }

    /// One text request with all its text: answers it, or requests more.
    fn text(&mut self, header: &[u8], text: &[u8]) {
        let Some(pdu) = TextRequest::view(header) else { return };
        match self.text_answer(pdu, text) {
            Ok(()) => {
                if pdu.opcode & Opcode::IMMEDIATE == 0 {
                    self.session.receive(false);
                }
                self.queue_text_response(pdu);
            }
            Err((violation, why)) => {
                self.text = None;
                match violation.reaction() {
                    Reaction::Reject(reason) => {
                        self.up.push_back(Up::Refused { reason: why });
                        self.note_gap(header);
                        self.reject(reason, header);
                    }
                    Reaction::EndTask(..) | Reaction::Drop => self.drop_for(violation),
                }
            }
        }
    }

    /// Takes the text, and prepares the answer when it is complete. A violation comes with its description
    /// for the log.
    fn text_answer(&mut self, pdu: &TextRequest, text: &[u8]) -> Result<(), (Violation, String)> {
        let plain = |violation: Violation| Err((violation, violation.to_string()));
        let Some(exchange) = self.text.as_mut() else { return plain(Violation::UnknownText) };
        let Some(negotiated) = self.negotiated.as_deref_mut() else { return plain(Violation::NotLogin) };
        if exchange.received.len().saturating_add(text.len()) > TEXT_MAX {
            return plain(Violation::TextTooLong);
        }
        exchange.received.extend_from_slice(text);
        if pdu.flags & CONTINUE != 0 || !exchange.answer.is_empty() {
            return Ok(());
        }
        let request = std::mem::take(&mut exchange.received);
        exchange.answer =
            login::text_request(negotiated, self.access.as_ref(), self.from, self.portal, &request)
                .map_err(|why| (Violation::Negotiation, format!("{}: {why}", Violation::Negotiation)))?;
        // Over messages nothing is longer than at login (RFC 7145 section 6.2).
        if !self.config.offers.rdma {
            self.link.max_send = negotiated.max_recv_initiator;
        }
        Ok(())
    }

    /// Sends the next piece of the answer (sections 11.11.1, 11.11.2).
    fn queue_text_response(&mut self, pdu: &TextRequest) {
        let Some(exchange) = self.text.as_mut() else { return };
        let max = usize::try_from(self.link.max_send).unwrap_or(usize::MAX);
        let rest = exchange.answer.split_off(exchange.answer.len().min(max));
        let piece = std::mem::replace(&mut exchange.answer, rest);
        let more = !exchange.answer.is_empty();
        let over = !more && pdu.flags & FINAL != 0;
        let response = TextResponse {
            flags: if over { FINAL } else { 0 } | if more { CONTINUE } else { 0 },
            initiator_task_tag: pdu.initiator_task_tag,
            target_transfer_tag: U32::new(if over { TAG_NONE } else { TEXT_TAG }),
            ..TextResponse::default()
        };
        if over {
            self.text = None;
        }
        self.queue(response.as_bytes(), piece, true);
    }

    pub(super) fn task_management(&mut self, pdu: &TaskManagementRequest) -> Result<(), Violation> {
        let immediate = pdu.opcode & Opcode::IMMEDIATE != 0;
        let tag = pdu.initiator_task_tag.get();
        if self.link.discovery {
            return Err(Violation::NotInDiscovery);
        }
        if !self.in_order(immediate, pdu.cmd_sn.get())? {
            return Ok(());
        }
        if tag == TAG_NONE {
            return Err(Violation::ReservedTag);
        }
        if self.tasks.find(tag).is_some() || self.functions.iter().any(|function| function.tag == tag) {
            return Err(Violation::TaskInProgress);
        }
        if !immediate {
            self.session.receive(false);
        }
        let (function, set, every_unit) = match pdu.function() {
            TaskFunction::ABORT_TASK => {
                self.abort_task(pdu);
                return Ok(());
            }
            TaskFunction::ABORT_TASK_SET => (Function::AbortTaskSet, true, false),
            TaskFunction::CLEAR_ACA => (Function::ClearAca, false, false),
            TaskFunction::CLEAR_TASK_SET => (Function::ClearTaskSet, true, false),
            TaskFunction::LOGICAL_UNIT_RESET => (Function::LogicalUnitReset, true, false),
            TaskFunction::TARGET_WARM_RESET => (Function::TargetWarmReset, true, true),
            TaskFunction::TARGET_COLD_RESET => (Function::TargetColdReset, true, true),
            TaskFunction::TASK_REASSIGN => {
                self.queue_function_response(tag, Response::REASSIGN_NOT_SUPPORTED);
                return Ok(());
            }
            _ => {
                self.queue_function_response(tag, Response::NOT_SUPPORTED);
                return Ok(());
            }
        };
        self.ask(pdu, function, set, every_unit);
        Ok(())
    }

    /// ABORT TASK (sections 11.5.1, 11.6.1, 7.11).
    fn abort_task(&mut self, pdu: &TaskManagementRequest) {
        let tag = pdu.initiator_task_tag.get();
        let referenced = pdu.referenced_task_tag.get();
        if self.functions.iter().any(|function| function.tag == referenced) {
            return self.queue_function_response(tag, Response::REJECTED);
        }
        let Some(id) = self.tasks.find(referenced) else {
            return self.abort_missing(pdu);
        };
        match self.standing(id) {
            TaskState::Running => self.ask(pdu, Function::AbortTask(Some(id)), false, false),
            TaskState::AwaitsData => {
                self.abort(id);
                self.queue_function_response(tag, Response::COMPLETE);
            }
            TaskState::Answered => self.queue_function_response(tag, Response::NO_TASK),
        }
    }

    /// The task does not exist: it may have been lost in transit, which RefCmdSN shows.
    fn abort_missing(&mut self, pdu: &TaskManagementRequest) {
        // A numbered request is in order: everything before it was received.
        let immediate = pdu.opcode & Opcode::IMMEDIATE != 0;
        let ahead = pdu.ref_cmd_sn.get().wrapping_sub(self.session.exp_cmd_sn);
        let own = pdu.cmd_sn.get().wrapping_sub(self.session.exp_cmd_sn);
        if immediate && ahead < own && own <= self.session.window() {
            self.session.plug(pdu.ref_cmd_sn.get());
            return self.queue_function_response(pdu.initiator_task_tag.get(), Response::COMPLETE);
        }
        self.ask(pdu, Function::AbortTask(None), false, false);
    }

    fn standing(&mut self, id: TaskId) -> TaskState {
        match self.tasks.get(id) {
            Some(task) if task.ending.is_none() => TaskState::Running,
            Some(task) if task.owed_data() && task.push.is_none() => TaskState::AwaitsData,
            _ => TaskState::Answered,
        }
    }

    /// Passes the function up.
    fn ask(&mut self, pdu: &TaskManagementRequest, function: Function, set: bool, every_unit: bool) {
        let id = FunctionId(self.functions_seen);
        self.functions_seen = self.functions_seen.wrapping_add(1);
        let lun = pdu.lun.get();
        self.functions.push(PendingFunction {
            id,
            tag: pdu.initiator_task_tag.get(),
            lun: (!every_unit).then_some(lun),
            set,
        });
        self.up.push_back(Up::Function { id, lun, function });
    }

    /// The engine has executed it. Tasks that had ended before, and only wait for their data, are released as
    /// well: no response may follow this one (section 11.5.1).
    pub(super) fn answer_function(&mut self, id: FunctionId, response: FunctionResponse) {
        let Some(at) = self.functions.iter().position(|function| function.id == id) else { return };
        let function = self.functions.swap_remove(at);
        if function.set && response == FunctionResponse::Complete {
            let waiting: Vec<TaskId> = self.tasks.ids().collect();
            for task in waiting {
                let covered =
                    self.tasks.get(task).is_some_and(|task| function.lun.is_none_or(|lun| lun == task.lun));
                if covered && matches!(self.standing(task), TaskState::AwaitsData) {
                    self.abort(task);
                }
            }
        }
        let response = match response {
            FunctionResponse::Complete => Response::COMPLETE,
            FunctionResponse::NoTask => Response::NO_TASK,
            FunctionResponse::NoUnit => Response::NO_LUN,
            FunctionResponse::NotSupported => Response::NOT_SUPPORTED,
            FunctionResponse::NotAuthorized => Response::AUTHORIZATION_FAILED,
            FunctionResponse::Failed => Response::REJECTED,
        };
        self.queue_function_response(function.tag, response);
    }

    fn queue_function_response(&mut self, tag: u32, response: Response) {
        let pdu = TaskManagementResponse {
            flags: FINAL,
            response,
            initiator_task_tag: U32::new(tag),
            ..TaskManagementResponse::default()
        };
        self.queue(pdu.as_bytes(), Vec::new(), true);
    }

    pub(super) fn logout(&mut self, pdu: &LogoutRequest) -> Result<(), Violation> {
        let immediate = pdu.opcode & Opcode::IMMEDIATE != 0;
        if !self.in_order(immediate, pdu.cmd_sn.get())? {
            return Ok(());
        }
        let other = pdu.cid.get() != self.connection_id;
        let outcome = match pdu.reason() {
            LogoutReason::CLOSE_SESSION => LogoutOutcome::CLOSED,
            LogoutReason::CLOSE_CONNECTION if other => LogoutOutcome::CID_NOT_FOUND,
            LogoutReason::CLOSE_CONNECTION => LogoutOutcome::CLOSED,
            LogoutReason::RECOVERY => LogoutOutcome::RECOVERY_NOT_SUPPORTED,
            _ => return Err(Violation::LogoutReason),
        };
        if !immediate {
            self.session.receive(false);
        }
        let response = LogoutResponse {
            flags: FINAL,
            response: outcome,
            initiator_task_tag: pdu.initiator_task_tag,
            ..LogoutResponse::default()
        };
        if outcome == LogoutOutcome::CLOSED {
            // All pending commands are terminated before it is answered (sections 4.6.3.3 and 11.14).
            self.leave(response.as_bytes(), "logged out");
        } else {
            self.queue(response.as_bytes(), Vec::new(), true);
        }
        Ok(())
    }

    /// All tasks end without a response (section 11.14).
    fn end_tasks(&mut self) {
        let all: Vec<TaskId> = self.tasks.ids().collect();
        for id in all {
            self.release(id);
        }
    }

    /// Asks the initiator to log out. A discovery session is just closed (section 7.4.3).
    pub(super) fn request_logout(&mut self, now: Time, within_seconds: u16) {
        if self.link.discovery {
            return self.over("discovery session closed by this side");
        }
        self.logout_by = Some(now.after(Duration::from_secs(u64::from(within_seconds))));
        let message = async_message(AsyncEvent::LOGOUT_REQUEST, [0, 0, within_seconds]);
        self.queue(message.as_bytes(), Vec::new(), true);
    }

    /// The session ends: this is its last PDU, once none of its tasks can take effect any more.
    pub(super) fn leave(&mut self, last: &[u8], reason: &str) {
        self.end_tasks();
        let mut bytes = [0; BHS_BYTES];
        for (place, byte) in bytes.iter_mut().zip(last) {
            *place = *byte;
        }
        self.phase = Phase::Ending { last: bytes, reason: reason.to_string() };
        self.up.push_back(Up::Leaving);
    }

    /// None of them can: the last PDU is sent.
    pub(super) fn say_last(&mut self) {
        let Phase::Ending { last, reason } = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        self.queue(&last, Vec::new(), true);
        self.phase = Phase::Closing(reason);
    }

    /// Notifies the initiator that this side closes, and closes. A discovery session is closed without that.
    pub(super) fn close_session(&mut self) {
        if self.link.discovery {
            return self.over("closed by this side");
        }
        self.end_tasks();
        let last = self.dropping(AsyncEvent::SESSION_DROP);
        self.queue(&last, Vec::new(), true);
        self.phase = Phase::Closing("closed by this side".to_string());
    }

    /// The Asynchronous Message about what this side drops: the session, or the connection.
    pub(super) fn dropping(&self, event: AsyncEvent) -> Vec<u8> {
        // Time2Wait and Time2Retain are 0: the initiator may reconnect at once, and at error recovery level 0
        // no task waits for it.
        let connection = if event == AsyncEvent::CONNECTION_DROP { self.connection_id } else { 0 };
        async_message(event, [connection, 0, 0]).as_bytes().to_vec()
    }
}

fn login_response(request: &LoginRequest, reply: &LoginReply) -> LoginResponse {
    let mut flags = LoginResponse::stages(reply.csg, reply.nsg);
    if reply.transit {
        flags |= LoginResponse::TRANSIT;
    }
    if reply.cont {
        flags |= CONTINUE;
    }
    LoginResponse {
        flags,
        isid: request.isid,
        tsih: U16::new(reply.tsih),
        initiator_task_tag: request.initiator_task_tag,
        status: reply.status,
        ..LoginResponse::default()
    }
}

/// An Asynchronous Message (section 11.9).
fn async_message(event: AsyncEvent, parameters: [u16; 3]) -> AsyncMessage {
    let [parameter1, parameter2, parameter3] = parameters.map(U16::new);
    AsyncMessage {
        flags: FINAL,
        initiator_task_tag: U32::new(TAG_NONE),
        event,
        parameter1,
        parameter2,
        parameter3,
        ..AsyncMessage::default()
    }
}

/// The state of a task that is to be aborted.
enum TaskState {
    /// The engine has it.
    Running,
    /// Ended, but the initiator still owes data.
    AwaitsData,
    /// Its answer is queued.
    Answered,
}
