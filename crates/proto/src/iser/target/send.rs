//! What is sent: the iSCSI layer's queue becomes messages and RDMA operations.

use super::Target;
use super::receive::advertised_at;
use super::work::Work;
use crate::iscsi::target::queue::{Control, Out, SENSE_SEGMENT_MAX};
use crate::iscsi::target::task::Solicited;
use crate::iser::Violation;
use crate::message::{Full, Post, WorkId};
use crate::services::{TaskId, Up};
use wire::Places;
use wire::iscsi::{NopIn, Opcode, Pdu, TAG_NONE, pad};
use wire::iser::Header;
use zerocopy::IntoBytes;

/// A message that was offered and not accepted: it has its numbers already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsent {
    work: Work,
    invalidate: Option<u32>,
}

/// The next entry in the queue cannot be sent now.
pub(super) struct Wait;

impl From<Full> for Wait {
    fn from(Full: Full) -> Wait {
        Wait
    }
}

impl Target {
    /// Posts what is queued.
    pub(super) fn send(&mut self, to: &mut dyn Post) -> Result<(), Wait> {
        let has_sent = self.send_queue(to)?;
        // The queue was emptied by aborts: no PDU has announced that the window is open again.
        if !has_sent && self.layer.is_full_feature() && self.layer.session.is_closed_for_nothing() {
            self.layer.announce_window();
            self.send_queue(to)?;
        }
        Ok(())
    }

    /// The same; returns whether it sent a PDU.
    fn send_queue(&mut self, to: &mut dyn Post) -> Result<bool, Wait> {
        let mut has_sent = self.resend(to)?;
        while let Some(out) = self.layer.out.front().copied() {
            let next = match out {
                Out::Push(id) => self.send_push(id, to)?,
                Out::Response(id) => {
                    has_sent = true;
                    self.layer.out.pop_front();
                    self.send_response(id, to)?;
                    continue;
                }
                Out::Solicit(id) => self.send_reads(id, to)?,
                Out::Control => {
                    let control = self.next_control()?;
                    self.layer.out.pop_front();
                    if let Some(control) = control {
                        has_sent = true;
                        self.send_control(control, to)?;
                    }
                    continue;
                }
            };
            match (next, self.layer.out.front_mut()) {
                (Some(next), Some(front)) => *front = next,
                _ => {
                    self.layer.out.pop_front();
                }
            }
        }
        Ok(has_sent)
    }

    /// Data-In is an RDMA Write, followed by the response. Returns the entry that replaces it in the queue.
    fn send_push(&mut self, id: TaskId, to: &mut dyn Post) -> Result<Option<Out>, Wait> {
        let remote = self.remote(id).read;
        let Some(task) = self.layer.tasks.get(id) else { return Ok(None) };
        let is_last = task.ending.is_some();
        let is_answered = is_last && !task.owed_data();
        let Some(push) = task.push.as_mut() else { return Ok(None) };
        if push.len == 0 {
            task.push = None;
            if !is_last {
                self.layer.up.push_back(Up::Pushed(id));
            }
        } else {
            let Some(remote) = remote else {
                self.layer.over(&Violation::ReadStagMissing.to_string());
                return Err(Wait);
            };
            // The response posted right after it finishes later.
            let work = if is_answered { WorkId::UNSIGNALED } else { Work::Write { task: id }.id() };
            to.write(work, push.from, advertised_at(remote, push.at))?;
            push.sent = push.len;
            // With the response behind it, the task waits for nothing: messages follow RDMA Writes in order.
            if is_last {
                task.push = None;
            }
            if !is_answered {
                self.layer.tasks.posted(id);
            }
        }
        Ok(is_answered.then_some(Out::Response(id)))
    }

    fn send_response(&mut self, id: TaskId, to: &mut dyn Post) -> Result<(), Wait> {
        let remote = self.remote(id);
        let mut data = [0; SENSE_SEGMENT_MAX];
        self.layer.tasks.posted(id);
        let Some((pdu, sense)) = self.layer.response(id, &mut data) else { return Ok(()) };
        // The initiator invalidates the write STag itself where there are both (RFC 7145 section 7.3.2).
        let stag = remote.read.or(remote.write).map(|advertised| advertised.stag);
        self.message.clear();
        self.message.extend_from_slice(Header::control(None, None).as_bytes());
        self.message.extend_from_slice(pdu.as_bytes());
        self.message.extend_from_slice(sense);
        let padding = pad(u32::try_from(sense.len()).unwrap_or(0));
        self.message.resize(self.message.len().saturating_add(usize::try_from(padding).unwrap_or(0)), 0);
        let invalidate = stag.filter(|_| self.invalidates);
        self.offer(Unsent { work: Work::Response { task: id }, invalidate }, to)
    }

    /// R2Ts are RDMA Reads. Returns what stays at the head of the queue.
    fn send_reads(&mut self, id: TaskId, to: &mut dyn Post) -> Result<Option<Out>, Wait> {
        let link = self.layer.link;
        let remote = self.remote(id).write;
        loop {
            let Some(task) = self.layer.tasks.get(id) else { return Ok(None) };
            task.solicit_queued = false;
            let Some(fetch) = task.fetch else { return Ok(None) };
            let at = task.solicited_end.max(task.unsolicited_end);
            let len = fetch.end.saturating_sub(at).min(link.max_burst);
            if len == 0 || task.solicited_count >= link.max_outstanding_r2t {
                return Ok(None);
            }
            task.solicit_queued = true;
            let Some(remote) = remote else {
                self.layer.over(&Violation::WriteStagMissing.to_string());
                return Err(Wait);
            };
            let into = fetch.into.slice(at.saturating_sub(fetch.at), len);
            to.read(Work::Read { task: id, len }.id(), into, advertised_at(remote, at))?;
            // Data-Out may not be sent for it: it has the tag that names no transfer.
            task.push_solicited(Solicited { tag: TAG_NONE, end: at.saturating_add(len) });
            self.layer.tasks.posted(id);
        }
    }

    /// The oldest control PDU, if it may be sent now; `Ok(None)`: it is dropped, since the initiator has no
    /// room for unexpected PDUs (RFC 7145 section 8.1.2).
    fn next_control(&mut self) -> Result<Option<Control>, Wait> {
        if self.layer.tasks.stray_reads > 0 {
            return Err(Wait);
        }
        let Some(control) = self.layer.take_control() else { return Ok(None) };
        let limit = self.layer.rdma.map_or(0, |rdma| rdma.unexpected_max);
        let outstanding = u32::try_from(self.unexpected.len()).unwrap_or(u32::MAX);
        // The last one is reserved for a ping, whose answer acknowledges the others.
        let is_too_much = limit > 0 && outstanding >= limit.saturating_sub(1);
        if is_too_much && is_unexpected(&control) { Ok(None) } else { Ok(Some(control)) }
    }

    fn send_control(&mut self, mut control: Control, to: &mut dyn Post) -> Result<(), Wait> {
        self.layer.number(&mut control);
        if is_unexpected(&control)
            && self.layer.rdma.is_some_and(|rdma| rdma.unexpected_max > 0)
            && let Some(pdu) = NopIn::view(&control.header)
        {
            self.unexpected.push_back(pdu.stat_sn.get());
        }
        self.message.clear();
        self.message.extend_from_slice(Header::control(None, None).as_bytes());
        self.message.extend_from_slice(&control.header);
        self.message.extend_from_slice(&control.data);
        self.offer(Unsent { work: Work::Control, invalidate: None }, to)
    }

    /// Offers the message again that was not accepted; returns whether there was one.
    fn resend(&mut self, to: &mut dyn Post) -> Result<bool, Wait> {
        match self.unsent.take() {
            Some(unsent) => self.offer(unsent, to).map(|()| true),
            None => Ok(false),
        }
    }

    fn offer(&mut self, unsent: Unsent, to: &mut dyn Post) -> Result<(), Wait> {
        let sent = to.send(unsent.work.id(), &self.message, Places::EMPTY, true, unsent.invalidate);
        if sent.is_err() {
            self.unsent = Some(unsent);
        }
        Ok(sent?)
    }
}

/// Whether it is not an answer to a request of the initiator. A ping does not count: there is one at a time,
/// and it ends with its answer.
fn is_unexpected(control: &Control) -> bool {
    let Some(pdu) = NopIn::view(&control.header) else { return false };
    match Opcode(pdu.opcode & Opcode::MASK) {
        Opcode::ASYNC_MESSAGE | Opcode::REJECT => true,
        Opcode::NOP_IN => {
            pdu.initiator_task_tag.get() == TAG_NONE && pdu.target_transfer_tag.get() == TAG_NONE
        }
        _ => false,
    }
}
