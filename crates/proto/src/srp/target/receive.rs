//! Received requests and responses of the initiator.

use super::send::{Answered, Out};
use super::task::Stage;
use super::violation::{Reaction, Violation};
use super::{PendingFunction, Phase, Target};
use crate::message::Message;
use crate::services::{self, Attribute, Ending, Function, FunctionId, TaskId, Termination, Up};
use wire::Span;
use wire::scsi::status::TASK_SET_FULL;
use wire::srp::{
    Command, CommandUnit, CreditResponse, Descriptor, InitiatorLogout, Layout, Opcode, ResponseCode,
    TaskAttribute, TaskFunction, TaskManagement,
};

impl Target {
    /// Executes one information unit.
    pub(super) fn unit(&mut self, message: &Message<'_>) {
        if !matches!(self.phase, Phase::Full) {
            return self.free(message.place);
        }
        match self.validate_unit(message) {
            Ok(true) => {}
            Ok(false) => self.free(message.place),
            Err(violation) => {
                self.free(message.place);
                self.react(violation, message.bytes);
            }
        }
    }

    /// Its buffer is to be posted as a receive again.
    pub(super) fn free(&mut self, place: Span) {
        self.freed.push(place);
    }

    /// `true` when a task keeps its buffer.
    fn validate_unit(&mut self, message: &Message<'_>) -> Result<bool, Violation> {
        let bytes = message.bytes;
        if u32::try_from(bytes.len()).is_ok_and(|len| len > self.link.max_it_iu_bytes) {
            return Err(Violation::TooLong);
        }
        match bytes.first().map(|code| Opcode(*code)).ok_or(Violation::Length)? {
            Opcode::COMMAND => {
                self.count_request()?;
                self.command(message)
            }
            Opcode::TASK_MANAGEMENT => {
                let request = TaskManagement::view(bytes).ok_or(Violation::Length)?;
                self.count_request()?;
                self.task_management(request).map(|()| false)
            }
            Opcode::INITIATOR_LOGOUT => {
                InitiatorLogout::view(bytes).ok_or(Violation::Length)?;
                self.leave(None, "logged out");
                Ok(false)
            }
            code @ (Opcode::CREDIT_RESPONSE | Opcode::ASYNC_EVENT_RESPONSE) => {
                let response = CreditResponse::view(bytes).ok_or(Violation::Length)?;
                let tag = response.tag.get();
                let asked = |request: &super::Request| request.tag == tag && request.answered_by == code;
                if !self.request.as_ref().is_some_and(asked) {
                    return Err(Violation::SpuriousResponse);
                }
                self.request = None;
                Ok(false)
            }
            _ => Err(Violation::UnknownType),
        }
    }

    fn react(&mut self, violation: Violation, bytes: &[u8]) {
        match violation.reaction() {
            Reaction::Logout(reason) => self.leave(Some(reason), &violation.to_string()),
            Reaction::Refuse => {
                if let Some(head) = Command::view(bytes) {
                    self.refuse(head.tag.get(), head.sol_not, violation);
                }
            }
        }
    }

    /// Answers a request that is not executed.
    pub(super) fn refuse(&mut self, tag: u64, sol_not: u8, violation: Violation) {
        self.out.push_back(Out::Answer(Answered { tag, sol_not, code: ResponseCode::FIELDS_INVALID }));
        self.up.push_back(Up::Refused { reason: violation.to_string() });
    }

    /// A request uses up a credit.
    fn count_request(&mut self) -> Result<(), Violation> {
        self.limit = self.limit.checked_sub(1).ok_or(Violation::RequestLimit)?;
        self.unanswered = self.unanswered.saturating_add(1);
        Ok(())
    }

    fn command(&mut self, message: &Message<'_>) -> Result<bool, Violation> {
        let unit = CommandUnit::split(message.bytes)?;
        let (tag, sol_not) = (unit.head.tag.get(), unit.head.sol_not);
        self.validate_tag(tag)?;
        let immediate = self.validate_immediate(&unit, message.bytes.len())?;
        let command = services::Command {
            task: TaskId::default(),
            lun: unit.head.lun.get(),
            attribute: attribute(unit.head.attribute()),
            cdb: unit.cdb,
            read_bytes: unit.data_in.data_bytes(),
            write_bytes: unit.data_out.data_bytes(),
            // The data is in a receive that nothing else waits for.
            unsolicited_bytes: 0,
        };
        let (id, task) = self.tasks.take(tag, sol_not).ok_or(Violation::RequestLimit)?;
        task.command = Some(services::Command { task: id, ..command });
        if let Err(violation) = task.describe(&unit.data_out, &unit.data_in) {
            task.stage = Stage::Over;
            self.tasks.forget(id);
            self.tasks.release(id);
            return Err(violation);
        }
        if !self.tasks.count_descriptors(id) {
            self.turn_away(id);
            return Ok(false);
        }
        let Some(task) = self.tasks.get(id) else { return Ok(false) };
        let has_tables = task.unread().is_some();
        let keeps = has_tables || immediate > 0;
        task.message = keeps.then_some(message.place);
        if has_tables {
            self.out.push_back(Out::Table(id));
        }
        if has_tables || !self.entering.is_empty() {
            self.entering.push_back(id);
        } else {
            self.give(id);
        }
        Ok(keeps)
    }

    /// Passes up commands whose descriptors are complete, in order of arrival: an ORDERED command must not
    /// enter the task set before one that arrived earlier (SAM-5 section 8.9.3).
    pub(super) fn enter(&mut self) {
        while matches!(self.phase, Phase::Full)
            && let Some(id) = self.entering.front().copied()
        {
            if self.tasks.get(id).is_some_and(|task| task.table.is_some() || task.unread().is_some()) {
                return;
            }
            self.entering.pop_front();
            self.give(id);
        }
    }

    /// There is no memory for the descriptors of a command while others are in flight: the initiator may
    /// retry.
    fn turn_away(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(id) {
            task.stage = Stage::Ended;
            task.ending = Some(Ending { status: TASK_SET_FULL, sense: None, read_bytes: 0, write_bytes: 0 });
            self.out.push_back(Out::Response(id));
            if let Some(command) = task.command.map(Box::new) {
                self.up.push_back(Up::Terminated { command, how: Termination::TaskSetFull });
            }
        }
    }

    /// The descriptors are complete: passes the command up, unless they are invalid.
    fn give(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        let (tag, sol_not) = (task.tag, task.sol_not);
        if let Err(violation) = task.data_out.validate().and_then(|()| task.data_in.validate()) {
            task.stage = Stage::Over;
            self.tasks.forget(id);
            self.settle(id);
            return self.refuse(tag, sol_not, violation);
        }
        task.stage = Stage::Given;
        if let Some(command) = task.command {
            self.up.push_back(Up::Command(command));
        }
    }

    fn validate_tag(&self, tag: u64) -> Result<(), Violation> {
        let is_used = self.tasks.find(tag).is_some() || self.functions.iter().any(|other| other.tag == tag);
        if is_used { Err(Violation::TagInUse) } else { Ok(()) }
    }

    /// How many bytes of data are in the command, between its descriptors and its end.
    fn validate_immediate(&self, unit: &CommandUnit<'_>, len: usize) -> Result<u32, Violation> {
        let Descriptor::Immediate { len: data } = unit.data_out else { return Ok(0) };
        let from = usize::from(self.link.immediate_offset.ok_or(Violation::DataOutFormat)?);
        let data_len = usize::try_from(data).map_err(|_| Violation::ImmediateBounds)?;
        let end = from.checked_add(data_len).ok_or(Violation::ImmediateBounds)?;
        if unit.end > from || end > len {
            return Err(Violation::ImmediateBounds);
        }
        Ok(data)
    }

    fn task_management(&mut self, request: &TaskManagement) -> Result<(), Violation> {
        let (tag, sol_not, lun) = (request.tag.get(), request.sol_not, request.lun.get());
        self.validate_tag(tag)?;
        let function = match request.function {
            TaskFunction::ABORT_TASK => return self.abort_task(request),
            TaskFunction::ABORT_TASK_SET => Function::AbortTaskSet,
            TaskFunction::CLEAR_TASK_SET => Function::ClearTaskSet,
            TaskFunction::LOGICAL_UNIT_RESET => Function::LogicalUnitReset,
            TaskFunction::CLEAR_ACA => Function::ClearAca,
            _ => {
                self.answer(Answered { tag, sol_not, code: ResponseCode::NOT_SUPPORTED });
                return Ok(());
            }
        };
        self.ask(tag, sol_not, lun, function);
        Ok(())
    }

    /// Aborts the tasks of matching LUNs that the engine does not know of, since their descriptor tables, or
    /// those of one before them, are still being read: the engine decides whether a function is executed, and
    /// when. Returns those with a read in progress; its end is reported by [`Up::Pushed`].
    pub fn forget_unread(&mut self, of: impl Fn(u64) -> bool) -> Vec<TaskId> {
        let unread = self.tasks.iter().filter(|(_, task)| task.stage == Stage::Tables && of(task.lun()));
        let unread: Vec<TaskId> = unread.map(|(id, _)| id).collect();
        // None of them is passed up when one before it is removed.
        self.entering.retain(|id| !unread.contains(id));
        let is_read = |target: &mut Target, id| {
            let task = target.tasks.get(id)?;
            task.lends = task.is_busy();
            Some(task.lends)
        };
        unread
            .into_iter()
            .filter(|id| {
                let is_read = is_read(self, *id) == Some(true);
                self.abort(*id);
                is_read
            })
            .collect()
    }

    fn abort_task(&mut self, request: &TaskManagement) -> Result<(), Violation> {
        let (tag, sol_not, lun) = (request.tag.get(), request.sol_not, request.lun.get());
        let found = self.tasks.find(request.task_tag.get());
        let complete = Answered { tag, sol_not, code: ResponseCode::COMPLETE };
        match found.and_then(|id| self.tasks.get(id).map(|task| (id, task.stage, task.ending.is_some()))) {
            None => self.ask(tag, sol_not, lun, Function::AbortTask(None)),
            Some((id, Stage::Tables, _)) => {
                self.abort(id);
                self.answer(complete);
            }
            Some((id, Stage::Given, false)) => {
                self.ask(tag, sol_not, lun, Function::AbortTask(Some(id)));
            }
            // Its response is sent first.
            Some((_, Stage::Given | Stage::Ended | Stage::Over, _)) => self.answer(complete),
        }
        Ok(())
    }

    /// Passes the function up.
    fn ask(&mut self, tag: u64, sol_not: u8, lun: u64, function: Function) {
        let id = FunctionId(self.functions_seen);
        self.functions_seen = self.functions_seen.wrapping_add(1);
        self.functions.push(PendingFunction { id, tag, sol_not });
        self.up.push_back(Up::Function { id, lun, function });
    }
}

fn attribute(attribute: TaskAttribute) -> Attribute {
    match attribute {
        TaskAttribute::SIMPLE => Attribute::Simple,
        TaskAttribute::HEAD_OF_QUEUE => Attribute::HeadOfQueue,
        TaskAttribute::ORDERED => Attribute::Ordered,
        TaskAttribute::ACA => Attribute::Aca,
        TaskAttribute(other) => Attribute::Unknown(other),
    }
}
