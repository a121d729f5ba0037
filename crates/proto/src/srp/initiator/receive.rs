//! Received responses and requests of the target.

use super::send::{Control, FUNCTION_TAGS, PING_TAG};
use super::task::Task;
use super::{Event, Initiator};
use crate::iscsi::initiator::{Completion, Outcome, Residual};
use crate::services::{FunctionId, TaskId};
use wire::Sense;
use wire::srp::{
    AsyncEventRequest, CreditRequest, Layout, Opcode, Response, ResponseCode, TargetLogout, TaskFunction,
};

/// An invalid information unit ends the connection.
type Checked = Result<(), String>;

fn breach(what: &str) -> String {
    format!("protocol violation by the target: {what}")
}

impl Initiator {
    /// Handles an information unit.
    pub(super) fn unit(&mut self, bytes: &[u8]) -> Checked {
        let short = || breach("an information unit shorter than its fields say (SRP r16a section 6.1)");
        match bytes.first().map(|code| Opcode(*code)).ok_or_else(short)? {
            Opcode::RESPONSE => {
                let (response, data, sense) = Response::split(bytes).ok_or_else(short)?;
                self.response(response, data, sense)
            }
            Opcode::CREDIT_REQUEST => {
                let request = CreditRequest::view(bytes).ok_or_else(short)?;
                self.control.push_back(Control::CreditResponse { tag: request.tag.get() });
                self.credit(request.req_lim_delta.get())
            }
            Opcode::ASYNC_EVENT_REQUEST => {
                let request = AsyncEventRequest::view(bytes).ok_or_else(short)?;
                let len = usize::try_from(request.sense_data_len.get()).map_err(|_| short())?;
                let rest = bytes.get(AsyncEventRequest::BYTES..).unwrap_or_default();
                let sense = Sense::from_bytes(rest.get(..len).ok_or_else(short)?);
                self.events.push_back(Event::Async { lun: request.lun.get(), sense });
                self.control.push_back(Control::AsyncEventResponse { tag: request.tag.get() });
                self.credit(request.req_lim_delta.get())
            }
            Opcode::TARGET_LOGOUT => {
                let logout = TargetLogout::view(bytes).ok_or_else(short)?;
                Err(format!("logged out by the target with reason {}", logout.reason.0.get()))
            }
            _ => Err(breach("an information unit that targets do not send (SRP r16a section 6.1)")),
        }
    }

    fn credit(&mut self, delta: u32) -> Checked {
        let limit = self.request_limit.checked_add(delta).filter(|limit| i32::try_from(*limit).is_ok());
        self.request_limit =
            limit.ok_or_else(|| breach("a request limit that overflows (SRP r16a section 6.9)"))?;
        Ok(())
    }

    fn response(&mut self, response: &Response, data: &[u8], sense: &[u8]) -> Checked {
        self.credit(response.req_lim_delta.get())?;
        let tag = response.tag.get();
        let code = Response::code(data);
        if tag == PING_TAG {
            // Whatever it contains, the target is alive.
            return Ok(());
        }
        if let Some(number) = tag.checked_sub(FUNCTION_TAGS) {
            let function =
                self.functions.iter().find(|function| u64::from(function.id.0) == number).map(|it| it.id);
            let id = function.ok_or_else(|| breach("the answer to no task management request"))?;
            let code = code.ok_or_else(|| breach("an answer without a code (SRP r16a section 6.9)"))?;
            self.function_done(id, code);
            return Ok(());
        }
        let task = Task::of_tag(tag).and_then(|id| self.tasks.get(id).map(|task| (id, task)));
        let unfinished = task.filter(|(_, task)| task.sent.is_some() && task.ended.is_none());
        let (id, task) = unfinished.ok_or_else(|| breach("a response to no task"))?;
        let outcome = match code.filter(|_| response.flags & Response::RESPONSE_VALID != 0) {
            Some(ResponseCode(code)) if code != ResponseCode::COMPLETE.0 => Outcome::TargetFailure(code),
            Some(_) | None => Outcome::Status {
                status: response.status,
                sense: (!sense.is_empty()).then(|| Sense::from_bytes(sense)),
            },
        };
        let (read, write) = (task.request.read.len(), task.request.write.len());
        let data_out = residual(
            response.flags,
            Response::OUT_OVERFLOW,
            Response::OUT_UNDERFLOW,
            response.data_out_residual.get(),
        )?;
        let data_in = residual(
            response.flags,
            Response::IN_OVERFLOW,
            Response::IN_UNDERFLOW,
            response.data_in_residual.get(),
        )?;
        let missing = |rest| if let Residual::Underflow(count) = rest { count } else { 0 };
        let is_both = read > 0 && write > 0;
        let main = if write > 0 || data_in == Residual::None { data_out } else { data_in };
        self.end(Completion {
            task: id,
            outcome,
            read_bytes: read.saturating_sub(missing(data_in)),
            write_bytes: write.saturating_sub(missing(data_out)),
            residual: main,
            read_residual: if is_both { data_in } else { Residual::None },
        });
        Ok(())
    }

    /// A command has ended: its buffers are taken from the target, and then it is reported.
    fn end(&mut self, completion: Completion) {
        if let Some(task) = self.tasks.get(completion.task) {
            task.ended = Some(completion);
            self.ended.push_back(completion.task);
        }
    }

    /// A function was answered: what it ended is reported before.
    pub(super) fn function_done(&mut self, id: FunctionId, response: ResponseCode) {
        let Some(at) = self.functions.iter().position(|function| function.id == id) else { return };
        let done = self.functions.swap_remove(at);
        if response == ResponseCode::COMPLETE {
            let is_set = matches!(
                done.function,
                TaskFunction::ABORT_TASK_SET
                    | TaskFunction::CLEAR_TASK_SET
                    | TaskFunction::LOGICAL_UNIT_RESET
            );
            let covered = |id: TaskId, task: &Task| {
                Some(id) == done.referenced
                    || (is_set
                        && task.request.lun == done.lun
                        && task.sent.is_some_and(|sent| sent < done.before))
            };
            let ended: Vec<TaskId> =
                self.tasks.unfinished().filter(|(id, task)| covered(*id, task)).map(|(id, _)| id).collect();
            for task in ended {
                self.end(Completion {
                    task,
                    outcome: Outcome::Aborted,
                    read_bytes: 0,
                    write_bytes: 0,
                    residual: Residual::None,
                    read_residual: Residual::None,
                });
            }
        }
        self.answered.push_back(Event::FunctionDone { id, response });
    }
}

/// A residual count of zero, which some targets report, means no residual.
fn residual(flags: u8, over: u8, under: u8, count: u32) -> Result<Residual, String> {
    match (flags & over != 0, flags & under != 0) {
        (false, false) => Ok(Residual::None),
        (true, false) | (false, true) if count == 0 => Ok(Residual::None),
        (true, false) => Ok(Residual::Overflow(count)),
        (false, true) => Ok(Residual::Underflow(count)),
        (true, true) => Err(breach("overflow and underflow (SRP r16a section 6.9)")),
    }
}
