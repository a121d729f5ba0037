//! The engine's calls about tasks, and the RDMA that was posted for them.
//!
//! RDMA that was posted cannot be recalled. So an aborted task keeps its slot until its last transfer has
//! finished, and only then are its places released ([`Up::Pushed`]). The initiator reuses its buffers when it
//! gets the response that a command has ended; a response, or the answer to the function that aborted it,
//! therefore waits for RDMA Reads. It need not wait for RDMA Writes: they arrive before what is posted after
//! them.

use super::send::{Answered, Out};
use super::task::{Stage, Transfer};
use super::{Phase, Target, Work};
use crate::message::WorkId;
use crate::services::{Ending, FunctionId, FunctionResponse, TaskId, Termination, Up};
use wire::srp::ResponseCode;
use wire::{Places, Span};

impl Target {
    /// Where the task's data-out is, if all of it came with the command and none was fetched: valid until the
    /// next call of this machine.
    pub fn immediate(&mut self, id: TaskId) -> Option<Span> {
        let offset = self.link.immediate_offset?;
        self.tasks.get(id)?.immediate(offset)
    }

    /// The same, but it stays there until [`Target::end_borrow`]. It counts as fetched.
    pub fn borrow(&mut self, id: TaskId) -> Option<Span> {
        let data = self.immediate(id)?;
        let task = self.tasks.get(id)?;
        task.borrowed = true;
        task.fetched = task.data_out.len;
        Some(data)
    }

    /// Ends what [`Target::borrow`] began, before or after the end of the task.
    pub fn end_borrow(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.borrowed) else { return };
        task.borrowed = false;
        self.settle(id);
    }

    pub(super) fn fetch(&mut self, id: TaskId, at: u32, into: Places) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) else { return };
        let transfer = Transfer::new(into);
        let end = at.saturating_add(transfer.len);
        if task.fetch.is_some() || at != task.fetched {
            return self.transfer_fault(id, "a fetch that does not continue where the last one ended");
        }
        if end > task.data_out.len {
            return self.transfer_fault(id, "a fetch past the command's data-out");
        }
        task.fetch = Some(transfer);
        self.out.push_back(Out::Fetch(id));
    }

    pub(super) fn push(&mut self, id: TaskId, at: u32, from: Places, end: Option<Ending>) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) else { return };
        let transfer = Transfer::new(from);
        if task.push.is_some() {
            return self.transfer_fault(id, "a push before the last one has left");
        }
        if at.saturating_add(transfer.len) > task.data_in.len {
            return self.transfer_fault(id, "a push past the command's data-in");
        }
        if end.is_some() && task.fetch.is_some() {
            return self.transfer_fault(id, "an ending while data is still requested");
        }
        task.push = Some(transfer);
        task.ending = end;
        self.out.push_back(Out::Push(id));
    }

    /// An impossible transfer ends the connection; its places are released like those of others.
    fn transfer_fault(&mut self, id: TaskId, what: &'static str) {
        self.keep(id);
        self.fault(what);
    }

    /// No more data is moved for the task: its places are released when it is aborted.
    pub(super) fn keep(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) {
            task.lends = true;
        }
    }

    pub(super) fn end(&mut self, id: TaskId, ending: Ending) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) else { return };
        if task.ending.is_some() {
            return;
        }
        task.ending = Some(ending);
        task.stage = Stage::Ended;
        task.lends = task.fetch.take().is_some() | task.push.take().is_some();
        self.respond(id);
    }

    /// Forgets a task: there is no response.
    pub(super) fn abort(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.is_awaited()) else { return };
        let was_entering = task.stage == Stage::Tables;
        let command = task.command.map(Box::new);
        task.stage = Stage::Over;
        task.lends |= task.fetch.take().is_some() | task.push.take().is_some();
        self.unanswered = self.unanswered.saturating_sub(1);
        self.tasks.forget(id);
        self.settle(id);
        if was_entering {
            self.up.extend(command.map(|command| Up::Terminated { command, how: Termination::Aborted }));
            self.entering.retain(|other| *other != id);
            self.enter();
        }
    }

    /// Responses that are owed are not sent any more, and commands that were not passed up never are. What
    /// the engine has not ended, it aborts.
    pub(super) fn end_unanswered(&mut self) {
        self.abort_all_in(Stage::Ended);
        self.abort_all_in(Stage::Tables);
    }

    pub(super) fn abort_all_in(&mut self, stage: Stage) {
        let tasks = self.tasks.iter().filter(|(_, task)| task.stage == stage).map(|(id, _)| id);
        for id in tasks.collect::<Vec<TaskId>>() {
            self.abort(id);
        }
    }

    /// Queues the response of a task that has ended, unless RDMA Reads of it are in progress.
    fn respond(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| task.stage == Stage::Ended && task.reading == 0) {
            self.out.push_back(Out::Response(id));
        }
    }

    /// Releases the slot and the places of a task that has ended, once none of its RDMA is in progress.
    pub(super) fn settle(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Over) else { return };
        if task.is_busy() || task.borrowed {
            return;
        }
        let (lends, message) = (task.lends, task.message.take());
        self.tasks.release(id);
        if let Some(place) = message {
            self.free(place);
        }
        if lends {
            self.up.push_back(Up::Pushed(id));
        }
    }

    /// Posted work has finished.
    pub(super) fn work_done(&mut self, work: WorkId) {
        match Work::of(work) {
            Work::Message => return,
            Work::Fetch(id) => self.read_done(id),
            Work::Push(id) => self.write_done(id),
            Work::Table(id) => {
                let Some(task) = self.tasks.get(id) else { return };
                task.table = task.table.map(|(len, _)| (len, true));
                match task.stage {
                    Stage::Tables if matches!(self.phase, Phase::Full) => self.out.push_back(Out::Table(id)),
                    Stage::Tables => {}
                    Stage::Given | Stage::Ended | Stage::Over => self.settle(id),
                }
            }
        }
        self.answer_when_quiet();
    }

    fn read_done(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        task.reading = task.reading.saturating_sub(1);
        if task.reading > 0 {
            return;
        }
        match task.stage {
            Stage::Tables => {}
            Stage::Given => self.fetched(id),
            Stage::Ended => self.respond(id),
            Stage::Over => self.settle(id),
        }
    }

    /// Reports a fetch that was posted in full and has finished.
    pub(super) fn fetched(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        if let Some(fetch) = task.fetch
            && fetch.is_posted()
            && task.reading == 0
        {
            task.fetch = None;
            task.fetched = task.fetched.saturating_add(fetch.len);
            self.up.push_back(Up::Fetched(id));
        }
    }

    fn write_done(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        task.writing = task.writing.saturating_sub(1);
        match task.stage {
            Stage::Given => self.pushed(id),
            Stage::Tables | Stage::Ended | Stage::Over => self.settle(id),
        }
    }

    /// Reports a push without an ending that was posted in full and has finished.
    pub(super) fn pushed(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.ending.is_none() && task.writing == 0 && task.push.is_some_and(|push| push.is_posted()) {
            task.push = None;
            self.up.push_back(Up::Pushed(id));
        }
    }

    /// The engine has executed it.
    pub(super) fn function_done(&mut self, id: FunctionId, response: FunctionResponse) {
        let Some(at) = self.functions.iter().position(|function| function.id == id) else { return };
        let function = self.functions.swap_remove(at);
        let code = match response {
            // A task that no longer exists needs no abort (SAM-5 section 7.2).
            FunctionResponse::Complete | FunctionResponse::NoTask => ResponseCode::COMPLETE,
            FunctionResponse::NotSupported => ResponseCode::NOT_SUPPORTED,
            FunctionResponse::NoUnit | FunctionResponse::NotAuthorized | FunctionResponse::Failed => {
                ResponseCode::FAILED
            }
        };
        self.answer(Answered { tag: function.tag, sol_not: function.sol_not, code });
    }

    /// Answers a task management request, once nothing that it aborted reads from the initiator any more.
    pub(super) fn answer(&mut self, answer: Answered) {
        self.answers.push_back(Out::Answer(answer));
        self.answer_when_quiet();
    }

    fn answer_when_quiet(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let reads = |stage, reading| matches!(stage, Stage::Ended | Stage::Over) && reading > 0;
        let is_quiet = !self.tasks.iter().any(|(_, task)| {
            let table = matches!(task.table, Some((_, false)));
            reads(task.stage, task.reading) || (task.stage == Stage::Over && table)
        });
        if is_quiet {
            self.out.append(&mut self.answers);
        }
    }
}
