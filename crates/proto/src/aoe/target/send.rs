//! Answers that are sent.

use super::task::{Answer, Kind, Stage};
use super::{Frame, Target};
use crate::services::{TaskId, Up};
use wire::Places;
use wire::aoe::Header;
use zerocopy::IntoBytes;

impl Target {
    /// The next frame to send. Its places are free after it was copied ([`Up::Pushed`]).
    pub fn transmit(&mut self) -> Option<Frame> {
        let frame = self.replies.pop_front().or_else(|| self.task_answer());
        self.leave_if_idle();
        frame
    }

    fn task_answer(&mut self) -> Option<Frame> {
        loop {
            let id = *self.out.front()?;
            let Some(task) = self.tasks.get(id).filter(|task| task.stage == Stage::Ended) else {
                self.out.pop_front();
                continue;
            };
            let tag = task.tags.next();
            let (kind, answer, payload) = (task.kind, task.answer, task.payload);
            if task.tags.is_done() {
                self.out.pop_front();
                if !payload.is_empty() {
                    self.up.push_back(Up::Pushed(id));
                }
                self.drop_task(id);
            }
            // Its tag has been reused by another request.
            let Some(tag) = tag else { continue };
            let task = (!payload.is_empty()).then_some(id);
            return Some(self.frame(tag, kind, &answer, payload, task));
        }
    }

    /// An answer to a request with this tag.
    pub(super) fn frame(
        &self,
        tag: u32,
        kind: Kind,
        answer: &Answer,
        payload: Places,
        task: Option<TaskId>,
    ) -> Frame {
        let config = &self.config;
        let (command, argument_bytes) = kind.shape();
        let request = Header::request(config.peer, config.ours, config.address, command, tag);
        let header = request.answer(config.ours, config.address, answer.error);
        let argument = answer.argument.get(..argument_bytes).unwrap_or_default();
        Frame::new([header.as_bytes(), argument], payload, task)
    }
}
