//! Calls from the engine about tasks.

use super::task::{Answer, Stage, Task};
use super::{Change, Target};
use crate::services::{Ending, TaskId, Up};
use crate::time::Time;
use wire::scsi::status::{CHECK_CONDITION, GOOD};
use wire::{Places, Span};

impl Target {
    /// What the task changes on the medium, if anything.
    pub fn change(&mut self, id: TaskId) -> Option<Change> {
        let task = self.tasks.get(id).filter(|task| task.stage == Stage::Given)?;
        Some(Change { blocks: task.changes()?, received_at: task.received_at })
    }

    /// Where the task's data-out is, if none of it was fetched: valid until the next call of this machine.
    pub fn immediate(&mut self, id: TaskId) -> Option<Span> {
        self.tasks.get(id)?.immediate()
    }

    /// The same, but it stays there until [`Target::end_borrow`]. It counts as fetched.
    pub fn borrow(&mut self, id: TaskId) -> Option<Span> {
        let data = self.immediate(id)?;
        let task = self.tasks.get(id)?;
        task.borrowed = true;
        task.fetched = data.len;
        Some(data)
    }

    /// Ends what [`Target::borrow`] began, before or after the end of the task, or of the session.
    pub fn end_borrow(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| task.borrowed) else { return };
        task.borrowed = false;
        self.free_frame(id);
        self.settle(id);
        self.leave_if_idle();
    }

    /// A copy requested by a fetch: this many bytes, from a frame to places. It has to be made before the
    /// next call of this machine.
    pub fn copy(&mut self) -> Option<(Span, Places)> {
        loop {
            let id = self.copies.pop_front()?;
            let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) else { continue };
            let Some(into) = task.fetch.take() else { continue };
            let from = task.data.slice(task.fetched, into.len());
            task.fetched = task.fetched.saturating_add(from.len);
            let is_whole = task.fetched >= task.data.len;
            self.up.push_back(Up::Fetched(id));
            if is_whole {
                self.free_frame(id);
            }
            return Some((from, into));
        }
    }

    /// A received frame that is no longer needed.
    pub fn freed(&mut self) -> Option<Span> {
        self.freed.pop()
    }

    pub(super) fn fetch(&mut self, id: TaskId, at: u32, into: Places) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) else { return };
        if task.fetch.is_some() || at != task.fetched {
            return self.fault("a fetch that does not continue where the last one ended");
        }
        if at.saturating_add(into.len()) > task.data.len {
            return self.fault("a fetch past the command's data-out");
        }
        task.fetch = Some(into);
        self.copies.push_back(id);
    }

    pub(super) fn push(&mut self, now: Time, id: TaskId, at: u32, from: Places, end: Option<Ending>) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) else { return };
        if from.len() > task.read_bytes {
            return self.fault("a push past the command's data-in");
        }
        if task.fetch.is_some() {
            return self.fault("an ending while data is still requested");
        }
        // Data-in is one frame at most, which the engine always sends in one piece.
        let Some(ending) = end.filter(|_| at == 0) else { return self.fault("an answer of several frames") };
        self.conclude(now, id, ending, from);
    }

    pub(super) fn end(&mut self, now: Time, id: TaskId, ending: Ending) {
        // The task was aborted before its data was sent: its places are free now, and the initiator
        // retransmits.
        if self.tasks.get(id).is_some_and(|task| task.stage == Stage::Ended && !task.payload.is_empty()) {
            return self.drop_task(id);
        }
        self.conclude(now, id, ending, Places::EMPTY);
    }

    /// Queues the answer of a task that has ended, if it gets one.
    fn conclude(&mut self, now: Time, id: TaskId, ending: Ending, payload: Places) {
        let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Given) else { return };
        task.fetch = None;
        let ending = if task.kind.is_flush() { reported(&mut self.unreported, task, ending) } else { ending };
        let Some(answer) = task.kind.answer(&self.config, &ending, payload.len()) else {
            if !payload.is_empty() {
                self.up.push_back(Up::Pushed(id));
            }
            return self.drop_task(id);
        };
        let answer = Answer { has_data: !payload.is_empty(), ..answer };
        task.stage = Stage::Ended;
        task.answer = answer;
        task.payload = payload;
        for write in task.writes() {
            self.written.remember(now, write, answer);
        }
        self.out.push_back(id);
        self.free_frame(id);
    }

    pub(super) fn abort(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| task.stage != Stage::Over) {
            self.drop_task(id);
        }
    }

    /// The task has ended without an answer, or has been answered.
    pub(super) fn drop_task(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        task.stage = Stage::Over;
        task.fetch = None;
        self.tasks.forget(id);
        self.free_frame(id);
        self.settle(id);
    }

    /// Releases the task's frame, unless it is borrowed.
    fn free_frame(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id).filter(|task| !task.borrowed) else { return };
        let frame = task.frame.take();
        self.held = self.held.saturating_sub(u16::from(frame.is_some()));
        self.freed.extend(frame);
    }

    /// Releases the slot of a task that has ended.
    fn settle(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| task.stage == Stage::Over && !task.borrowed) {
            self.tasks.release(id);
        }
    }
}

/// The answer to a flush that ended like this. The failure of one that may be a duplicate is `unreported`,
/// and the next flush reports it again: the store reports a loss once, and an initiator must have received
/// that.
fn reported(unreported: &mut Option<Ending>, task: &Task, ending: Ending) -> Ending {
    match ending.status {
        CHECK_CONDITION if task.is_possible_duplicate => _ = unreported.get_or_insert(ending),
        GOOD if !task.is_possible_duplicate => return unreported.take().unwrap_or(ending),
        _ => {}
    }
    ending
}
