//! Data-Out, and the engine's calls about tasks.

use super::layer::{Data, Incoming, Layer};
use super::queue::Out;
use super::task::{Fetch, Push, Task};
use super::violation::{Reaction, Violation};
use crate::services::{Ending, TaskId, Up};
use wire::iscsi::{DataOut, Pdu, RejectReason, TAG_NONE};
use wire::scsi::status::CHECK_CONDITION;
use wire::{Places, Sense};

impl Layer {
    pub(super) fn data_out(&mut self, header: &[u8]) -> Result<(), Violation> {
        let Some(pdu) = DataOut::view(header) else { return Ok(()) };
        if self.link.discovery {
            return Err(Violation::NotInDiscovery);
        }
        let tag = pdu.initiator_task_tag.get();
        let Some((id, limit)) = self.transfer(tag, pdu.target_transfer_tag.get()) else {
            if self.forgotten.contains(&tag) {
                self.skip_data(header);
                return Ok(());
            }
            return Err(Violation::UnknownTransfer);
        };
        let len = pdu.data_segment_length.get();
        let Some(task) = self.tasks.get(id) else { return Ok(()) };
        let fault = if task.ending.is_some() { None } else { fault(task, pdu, limit) };
        task.data_out_sn = task.data_out_sn.wrapping_add(1);
        if self.link.data_digest {
            // A Reject quotes it.
            self.data_head.clear();
            self.data_head.extend_from_slice(header);
        }
        if let Some(violation) = fault {
            self.fail(id, violation);
        }
        self.place(Data { task: id, len, last: pdu.last(), immediate: false });
        Ok(())
    }

    /// The task that this Data-Out is for, and where its sequence ends.
    fn transfer(&mut self, tag: u32, transfer_tag: u32) -> Option<(TaskId, u32)> {
        let id = self.tasks.find(tag)?;
        let task = self.tasks.get(id)?;
        if transfer_tag == TAG_NONE {
            return task.unsolicited_open.then_some((id, task.unsolicited_end));
        }
        let solicited = task.oldest_solicited().filter(|solicited| solicited.tag == transfer_tag)?;
        Some((id, solicited.end))
    }

    /// Determines where a data segment goes.
    fn place(&mut self, data: Data) {
        let Some(task) = self.tasks.get(data.task) else { return };
        let (received, fetch, over) = (task.received, task.fetch, task.ending.is_some());
        self.incoming = match fetch {
            _ if data.len == 0 => {
                return self.data_done(data, true);
            }
            _ if over => Incoming::Skip { len: data.len, data: Some(data) },
            Some(fetch) => {
                Incoming::Body { data, place: fetch.into.slice(received.saturating_sub(fetch.at), data.len) }
            }
            None => Incoming::Unplaced(data),
        };
    }

    /// A data segment has been received, or was discarded.
    pub(crate) fn data_done(&mut self, data: Data, digest_ok: bool) {
        let Some(task) = self.tasks.get(data.task) else { return };
        if task.ending.is_none() && !digest_ok {
            if data.immediate {
                return self.drop_for(Violation::DataDigest);
            }
            let header = std::mem::take(&mut self.data_head);
            self.reject(RejectReason::DATA_DIGEST, &header);
            self.data_head = header;
            self.fail(data.task, Violation::DataOutDigest);
        }
        let Some(task) = self.tasks.get(data.task) else { return };
        task.received = task.received.saturating_add(data.len);
        if data.last && !close_sequence(task) {
            self.fail(data.task, Violation::IncorrectAmount);
        }
        self.progress(data.task);
    }

    /// Data requested without an R2T, by RDMA Read, is in its place.
    pub(crate) fn solicited_done(&mut self, id: TaskId, len: u32) {
        let Some(task) = self.tasks.get(id) else { return };
        task.received = task.received.saturating_add(len);
        task.pop_solicited();
        self.progress(id);
    }

    /// Does what a task's state allows now: report that a fetch is complete, request more, or answer.
    pub(crate) fn progress(&mut self, id: TaskId) {
        let outstanding = self.link.max_outstanding_r2t;
        let Some(task) = self.tasks.get(id) else { return };
        if task.ending.is_some() {
            if !task.owed_data() && task.push.is_none() {
                self.out.push_back(Out::Response(id));
            }
            return;
        }
        let Some(fetch) = task.fetch else { return };
        if task.received >= fetch.end && !task.owed_data() {
            task.fetch = None;
            self.up.push_back(Up::Fetched(id));
        } else if !task.unsolicited_open
            && !task.solicit_queued
            && task.solicited_count < outstanding
            && task.solicited_end.max(task.unsolicited_end) < fetch.end
        {
            task.solicit_queued = true;
            self.out.push_back(Out::Solicit(id));
        }
    }

    /// The initiator violated the standard in this task's data: it ends with CHECK CONDITION once all its
    /// data was received.
    pub(super) fn fail(&mut self, id: TaskId, violation: Violation) {
        let Reaction::EndTask(asc, ascq) = violation.reaction() else { return };
        let Some(task) = self.tasks.get(id) else { return };
        if task.ending.is_some() {
            return;
        }
        // Fixed format, ABORTED COMMAND.
        let sense = Sense::from_bytes(&[0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0]);
        task.ending =
            Some(Ending { status: CHECK_CONDITION, sense: Some(sense), read_bytes: 0, write_bytes: 0 });
        // Over RDMA none of the fetch was requested yet: its places are free at once.
        task.fetch = None;
        task.lends = task.push.is_some();
        task.push.take_if(|push| push.is_unsent());
        if task.given {
            self.up.push_back(Up::FetchFailed { task: id, sense: Box::new(sense) });
        }
        self.report_refusal(violation);
        self.progress(id);
    }

    pub(super) fn fetch(&mut self, id: TaskId, at: u32, into: Places) {
        let Some(task) = self.tasks.get(id).filter(|task| task.ending.is_none()) else { return };
        let end = at.saturating_add(into.len());
        // Data received in messages is ahead of its places.
        if at != task.received && task.held == 0 {
            return self.fault("a fetch that does not continue where the last one ended");
        }
        if end > task.write_bytes {
            return self.fault("a fetch past the command's data-out");
        }
        if end < task.unsolicited_end {
            return self.fault("a fetch without a buffer for unsolicited data");
        }
        task.fetch = Some(Fetch { at, into, end });
        if let Incoming::Unplaced(data) = self.incoming
            && data.task == id
        {
            self.place(data);
        }
        self.progress(id);
    }

    pub(super) fn push(&mut self, id: TaskId, at: u32, from: Places, end: Option<Ending>) {
        let Some(task) = self.tasks.get(id).filter(|task| task.ending.is_none()) else { return };
        let len = from.len();
        if task.push.is_some() {
            return self.fault("a push before the last one has left");
        }
        if at.saturating_add(len) > task.read_bytes {
            return self.fault("a push past the command's data-in");
        }
        task.push = Some(Push { at, from, len, sent: 0, burst: 0 });
        task.ending = end;
        self.out.push_back(Out::Push(id));
        if end.is_some() {
            // Data that still arrives for it is discarded.
            task.fetch = None;
            task.lends = true;
            self.skip_rest(id);
        }
    }

    pub(super) fn end(&mut self, id: TaskId, ending: Ending) {
        // A task aborted by others may have data that has not been sent, with a status behind it: its places
        // are free now.
        let is_open =
            |task: &&mut Task| task.ending.is_none() || task.push.is_some_and(|push| push.is_unsent());
        let Some(task) = self.tasks.get(id).filter(is_open) else { return };
        task.ending = Some(ending);
        task.lends = task.fetch.take().is_some() | task.push.is_some();
        task.push.take_if(|push| push.is_unsent());
        self.skip_rest(id);
        self.progress(id);
    }

    pub(super) fn abort(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        task.lends |= task.fetch.take().is_some() | task.push.take().is_some();
        let tag = task.initiator_task_tag;
        if task.owed_data() {
            self.forget(tag);
        }
        self.skip_rest(id);
        self.release(id);
        // A closed window opens by a PDU that nothing else may trigger (section 11.4.11).
        if self.session.is_closed_for_nothing() && self.out.is_empty() {
            self.announce_window();
        }
    }

    /// Where work is posted: the places of a task that has ended for the engine are free as soon as nothing
    /// moves between them and the initiator any more.
    pub(crate) fn settle(&mut self, id: TaskId) {
        if self.tasks.take_released(id) {
            self.up.push_back(Up::Pushed(id));
        }
    }

    /// Data that arrives for this task is discarded from now on.
    fn skip_rest(&mut self, id: TaskId) {
        if let Incoming::Unplaced(data) | Incoming::Body { data, .. } = self.incoming
            && data.task == id
        {
            // An initiator that owes nothing after it need not be notified any more.
            let owes = self.tasks.get(id).is_some_and(|task| task.owed_data());
            self.incoming = Incoming::Skip { len: data.len, data: owes.then_some(data) };
        }
    }

    /// The task has ended.
    pub(super) fn release(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.immediate {
            self.immediate_in_flight = self.immediate_in_flight.saturating_sub(1);
        } else {
            self.session.release();
        }
        self.tasks.release(id);
    }

    /// Data that still arrives for this tag is silently discarded.
    pub(super) fn forget(&mut self, tag: u32) {
        if self.forgotten.len() >= usize::from(self.config.slots()) {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back(tag);
    }
}

/// The violation of a Data-Out in a sequence that ends at `limit`, if any.
fn fault(task: &Task, pdu: &DataOut, limit: u32) -> Option<Violation> {
    let len = pdu.data_segment_length.get();
    if pdu.data_sn.get() != task.data_out_sn {
        return Some(Violation::DataSequence);
    }
    if pdu.buffer_offset.get() != task.received {
        return Some(Violation::BufferOffset);
    }
    match task.received.checked_add(len) {
        Some(end) if end <= limit => None,
        _ if task.unsolicited_open => Some(Violation::UnexpectedUnsolicited),
        _ => Some(Violation::IncorrectAmount),
    }
}

/// The F bit ended the current sequence; `false`: it was too short.
fn close_sequence(task: &mut Task) -> bool {
    task.data_out_sn = 0;
    if !task.unsolicited_open {
        let end = task.oldest_solicited().map_or(0, |solicited| solicited.end);
        task.pop_solicited();
        return task.received >= end;
    }
    task.unsolicited_open = false;
    // Less than all is only wrong when it is also less than FirstBurstLength (section 11.4.7.2): an R2T
    // requests the rest.
    let whole = task.received >= task.unsolicited_end || task.unsolicited_end == task.write_bytes;
    task.unsolicited_end = task.received;
    whole
}
