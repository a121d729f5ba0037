//! What is sent: one queue, in order.

use super::task::{DESCRIPTOR_BYTES, Stage};
use super::{Request, Target, Work};
use crate::message::{Advertised, Full, Post};
use crate::services::{Command, Ending, TaskId};
use wire::scsi::status::GOOD;
use wire::srp::{
    self, AsyncEventRequest, CreditRequest, Direct, Layout, LoginRequest, LogoutReason, Opcode, Response,
    ResponseCode, SOLICITED, TargetLogout,
};
use wire::{Places, Sense};
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// An entry of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Out {
    /// The rest of the task's descriptor tables.
    Table(TaskId),
    /// RDMA Reads for the task's fetch.
    Fetch(TaskId),
    /// RDMA Writes of the task's push, and its ending.
    Push(TaskId),
    /// The task's ending.
    Response(TaskId),
    /// The answer to a request that is not a task.
    Answer(Answered),
    /// More credits, or a ping.
    CreditRequest,
    /// The asynchronous event.
    Event,
    /// The last message.
    Logout(LogoutReason),
}

/// The answer to a task management request, or to a request that is not executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub tag: u64,
    pub sol_not: u8,
    pub code: ResponseCode,
}

/// What replaces the entry in the queue.
type Next = Result<Option<Out>, Full>;

impl Target {
    /// Posts what is owed. Receives come first: no message may announce one that is not posted.
    pub(super) fn send(&mut self, to: &mut dyn Post) {
        while let Some(place) = self.freed.pop() {
            to.release(place);
            self.held = self.held.saturating_sub(1);
        }
        while let Some(out) = self.next() {
            let next = match out {
                Out::Table(id) => self.post_table(id, to),
                Out::Fetch(id) => self.post_fetch(id, to),
                Out::Push(id) => self.post_push(id, to),
                Out::Response(id) => self.post_response(id, to),
                Out::Answer(answer) => self.post_answer(answer, to),
                Out::CreditRequest => self.post_credit_request(to),
                Out::Event => self.post_event(to),
                Out::Logout(reason) => self.post_logout(reason, to),
            };
            match (next, self.out.front_mut()) {
                (Err(Full), _) => return,
                (Ok(Some(next)), Some(front)) => *front = next,
                (Ok(_), _) => {
                    self.out.pop_front();
                }
            }
        }
    }

    /// The head of the queue; if it is empty, unsolicited messages that are owed.
    fn next(&mut self) -> Option<Out> {
        if self.out.is_empty() {
            if self.owes_event() {
                self.out.push_back(Out::Event);
            } else if self.owes_credits() {
                self.out.push_back(Out::CreditRequest);
            }
        }
        self.out.front().copied()
    }

    /// Continues reading descriptor tables, into the receive that the command arrived in: its content is
    /// decoded, except immediate data.
    fn post_table(&mut self, id: TaskId, to: &mut dyn Post) -> Next {
        let offset = self.link.immediate_offset;
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Tables) else {
            return Ok(None);
        };
        let Some(place) = task.message else { return Ok(None) };
        if let Some((len, true)) = task.table
            && let Some(buffer) = task.unread()
        {
            let list = <[Direct]>::ref_from_bytes(to.bytes(place.slice(0, len))).unwrap_or_default();
            buffer.extend(list);
            task.table = None;
        }
        let room = if task.data_out.immediate { offset.map_or(0, u32::from) } else { place.len };
        let most = room.checked_div(DESCRIPTOR_BYTES).unwrap_or(0);
        if most == 0 {
            self.fault("a receive without room for a descriptor");
            return Ok(None);
        }
        let Some(rest) = task.unread().and_then(|buffer| buffer.rest) else {
            if !task.data_out.immediate {
                task.message = None;
                self.free(place);
            }
            self.enter();
            return Ok(None);
        };
        let len = rest.count.min(most).saturating_mul(DESCRIPTOR_BYTES);
        let from = Advertised { stag: rest.key, offset: rest.address };
        to.read(Work::Table(id).id(), Places::one(place.slice(0, len)), from)?;
        task.table = Some((len, false));
        Ok(None)
    }

    fn post_fetch(&mut self, id: TaskId, to: &mut dyn Post) -> Next {
        let offset = self.link.immediate_offset.map_or(0, u32::from);
        let Some(task) = self.tasks.get(id) else { return Ok(None) };
        let Some(fetch) = &mut task.fetch else { return Ok(None) };
        if task.data_out.immediate {
            if let Some(place) = task.message {
                let from = place.slice(offset.saturating_add(task.fetched), fetch.len);
                to.copy(from, fetch.places);
            }
            fetch.posted = fetch.len;
            self.fetched(id);
            self.free_immediate(id);
            return Ok(None);
        }
        while !fetch.is_posted() {
            let Some((from, len)) = task.data_out.next(fetch.len.saturating_sub(fetch.posted)) else {
                return Ok(None);
            };
            to.read(Work::Fetch(id).id(), fetch.places.slice(fetch.posted, len), from)?;
            task.reading = task.reading.saturating_add(1);
            fetch.posted = fetch.posted.saturating_add(len);
            task.data_out.advance(len);
        }
        self.fetched(id);
        Ok(None)
    }

    /// The receive is free once all of its data was fetched.
    fn free_immediate(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.fetched >= task.data_out.len) else { return };
        if let Some(place) = task.message.take() {
            self.free(place);
        }
    }

    fn post_push(&mut self, id: TaskId, to: &mut dyn Post) -> Next {
        let Some(task) = self.tasks.get(id) else { return Ok(None) };
        let Some(push) = &mut task.push else { return Ok(None) };
        while !push.is_posted() {
            let Some((into, len)) = task.data_in.next(push.len.saturating_sub(push.posted)) else {
                return Ok(None);
            };
            to.write(Work::Push(id).id(), push.places.slice(push.posted, len), into)?;
            task.writing = task.writing.saturating_add(1);
            push.posted = push.posted.saturating_add(len);
            task.data_in.advance(len);
        }
        if task.ending.is_none() {
            self.pushed(id);
            return Ok(None);
        }
        task.stage = Stage::Ended;
        task.lends = true;
        task.push = None;
        Ok(Some(Out::Response(id)))
    }

    fn post_response(&mut self, id: TaskId, to: &mut dyn Post) -> Next {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Ended) else {
            return Ok(None);
        };
        let Some(ending) = task.ending else { return Ok(None) };
        if !task.borrowed
            && let Some(place) = task.message.take()
        {
            to.release(place);
            self.held = self.held.saturating_sub(1);
        }
        let (tag, sol_not, residual) =
            (task.tag, task.sol_not, Residual::new(task.command.as_ref(), &ending));
        let credits = self.credits(1);
        let sense = ending.sense.as_ref().map_or(&[][..], Sense::as_bytes);
        let is_solicited = wants_notification(sol_not, ending.status == GOOD);
        let response = Response {
            opcode: Opcode::RESPONSE,
            sol_not: if is_solicited { SOLICITED } else { 0 },
            req_lim_delta: U32::new(u32::from(credits)),
            tag: U64::new(tag),
            flags: residual.flags | if sense.is_empty() { 0 } else { Response::SENSE_VALID },
            status: ending.status,
            data_out_residual: U32::new(residual.data_out),
            data_in_residual: U32::new(residual.data_in),
            sense_data_len: U32::new(u32::try_from(sense.len()).unwrap_or(0)),
            ..Response::default()
        };
        let mut unit = [0; Response::BYTES + Sense::MAX];
        post(to, join(response.as_bytes(), sense, &mut unit), is_solicited)?;
        self.answered(credits);
        if let Some(task) = self.tasks.get(id) {
            task.stage = Stage::Over;
        }
        self.tasks.forget(id);
        self.settle(id);
        Ok(None)
    }

    fn post_answer(&mut self, answer: Answered, to: &mut dyn Post) -> Next {
        let credits = self.credits(1);
        let is_solicited = wants_notification(answer.sol_not, answer.code == ResponseCode::COMPLETE);
        let response = Response {
            opcode: Opcode::RESPONSE,
            sol_not: if is_solicited { SOLICITED } else { 0 },
            req_lim_delta: U32::new(u32::from(credits)),
            tag: U64::new(answer.tag),
            flags: Response::RESPONSE_VALID,
            resp_data_len: U32::new(Response::RESPONSE_DATA_BYTES),
            ..Response::default()
        };
        let ResponseCode(code) = answer.code;
        let mut unit = [0; Response::BYTES + 4];
        post(to, join(response.as_bytes(), &[0, 0, 0, code], &mut unit), is_solicited)?;
        self.answered(credits);
        Ok(None)
    }

    /// A response with this many credits was posted.
    fn answered(&mut self, credits: u16) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.limit = self.limit.saturating_add(credits);
    }

    fn post_credit_request(&mut self, to: &mut dyn Post) -> Next {
        let credits = self.credits(0);
        let is_solicited = self.link.flags & LoginRequest::CREDIT_SOLICITED != 0;
        let request = CreditRequest {
            opcode: Opcode::CREDIT_REQUEST,
            sol_not: if is_solicited { SOLICITED } else { 0 },
            req_lim_delta: U32::new(u32::from(credits)),
            tag: U64::new(self.requests_sent),
            ..CreditRequest::default()
        };
        post(to, request.as_bytes(), is_solicited)?;
        self.limit = self.limit.saturating_add(credits);
        self.requested(Opcode::CREDIT_RESPONSE);
        Ok(None)
    }

    fn post_event(&mut self, to: &mut dyn Post) -> Next {
        let Some((lun, sense)) = self.event else { return Ok(None) };
        let credits = self.credits(0);
        let is_solicited = self.link.flags & LoginRequest::EVENT_SOLICITED != 0;
        let request = AsyncEventRequest {
            opcode: Opcode::ASYNC_EVENT_REQUEST,
            sol_not: if is_solicited { SOLICITED } else { 0 },
            req_lim_delta: U32::new(u32::from(credits)),
            tag: U64::new(self.requests_sent),
            lun: U64::new(lun),
            sense_data_len: U32::new(u32::try_from(sense.as_bytes().len()).unwrap_or(0)),
            ..AsyncEventRequest::default()
        };
        let mut unit = [0; AsyncEventRequest::BYTES + Sense::MAX];
        post(to, join(request.as_bytes(), sense.as_bytes(), &mut unit), is_solicited)?;
        self.limit = self.limit.saturating_add(credits);
        self.event = None;
        self.requested(Opcode::ASYNC_EVENT_RESPONSE);
        Ok(None)
    }

    /// A request of ours was posted.
    fn requested(&mut self, answered_by: Opcode) {
        self.request = Some(Request { tag: self.requests_sent, answered_by });
        self.requests_sent = self.requests_sent.wrapping_add(1);
    }

    fn post_logout(&mut self, reason: LogoutReason, to: &mut dyn Post) -> Next {
        let is_solicited = self.link.flags & LoginRequest::LOGOUT_SOLICITED != 0;
        let logout = TargetLogout {
            opcode: Opcode::TARGET_LOGOUT,
            sol_not: if is_solicited { SOLICITED } else { 0 },
            reason,
            tag: U64::new(self.requests_sent),
            ..TargetLogout::default()
        };
        post(to, logout.as_bytes(), is_solicited)?;
        Ok(None)
    }
}

fn post(to: &mut dyn Post, unit: &[u8], is_solicited: bool) -> Result<(), Full> {
    to.send(Work::Message.id(), unit, Places::EMPTY, is_solicited, None)
}

/// `head` and `tail`, concatenated.
fn join<'a>(head: &[u8], tail: &[u8], unit: &'a mut [u8]) -> &'a [u8] {
    for (place, byte) in unit.iter_mut().zip(head.iter().chain(tail)) {
        *place = *byte;
    }
    unit.get(..head.len().saturating_add(tail.len())).unwrap_or_default()
}

/// Whether the initiator requested solicited notification for such an end.
fn wants_notification(sol_not: u8, is_success: bool) -> bool {
    let asked = if is_success { srp::Command::SUCCESS_SOLICITED } else { srp::Command::FAILURE_SOLICITED };
    sol_not & asked != 0
}

/// Residual counts of a command (section 6.9).
struct Residual {
    flags: u8,
    data_out: u32,
    data_in: u32,
}

impl Residual {
    fn new(command: Option<&Command>, ending: &Ending) -> Residual {
        let (write, read) = command.map_or((0, 0), |command| (command.write_bytes, command.read_bytes));
        let (out_flag, data_out) =
            difference(write, ending.write_bytes, Response::OUT_OVERFLOW, Response::OUT_UNDERFLOW);
        let (in_flag, data_in) =
            difference(read, ending.read_bytes, Response::IN_OVERFLOW, Response::IN_UNDERFLOW);
        Residual { flags: out_flag | in_flag, data_out, data_in }
    }
}

/// The flag and the residual count for `expected` bytes of which `presented` were there.
fn difference(expected: u32, presented: u64, over: u8, under: u8) -> (u8, u32) {
    let expected = u64::from(expected);
    let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    match presented.cmp(&expected) {
        std::cmp::Ordering::Equal => (0, 0),
        std::cmp::Ordering::Greater => (over, count(presented.saturating_sub(expected))),
        std::cmp::Ordering::Less => (under, count(expected.saturating_sub(presented))),
    }
}
