//! Received messages, and their data.

use super::{Held, Remote, Target};
use crate::iscsi::target::layer::{Data, Incoming};
use crate::iser::{Parts, Violation};
use crate::message::{Advertised, Message, Post};
use crate::services::{TaskId, Up};
use wire::Span;
use wire::iscsi::{BasicHeader, Opcode};
use wire::iser::Header;

impl Target {
    /// Handles a message; an error ends the connection.
    pub(super) fn take(&mut self, message: Message<'_>) -> Result<(), Violation> {
        let parts = Parts::of(message.bytes)?;
        let Some(basic) = BasicHeader::view(parts.pdu) else { return Err(Violation::Short) };
        let tag = basic.initiator_task_tag.get();
        let is_new = basic.opcode() == Opcode::SCSI_COMMAND && self.layer.tasks.find(tag).is_none();
        let number = self.layer.session.exp_cmd_sn;
        self.acknowledge(parts.pdu);
        self.layer.header(parts.pdu);
        if is_new && let Some(task) = self.layer.tasks.find(tag) {
            self.note_remote(task, parts.header)?;
        }
        match std::mem::replace(&mut self.layer.incoming, Incoming::Nothing) {
            Incoming::Nothing | Incoming::Skip { data: None, .. } => {}
            Incoming::Text { .. } => self.layer.request(parts.pdu, parts.data),
            Incoming::Skip { data: Some(data), .. } => self.layer.data_done(data, true),
            Incoming::Unplaced(data) | Incoming::Body { data, .. } => {
                self.hold(data, message.place.slice(parts.data_at, data.len), message.place);
                return Ok(());
            }
        }
        if self.layer.session.exp_cmd_sn == number {
            self.unnumbered.push(message.place)
        } else {
            self.free.push(message.place)
        }
        Ok(())
    }

    /// Forgets what the initiator has acknowledged by ExpStatSN, which is at the same place in all of its
    /// PDUs.
    fn acknowledge(&mut self, pdu: &[u8]) {
        let Some(number) = pdu.get(28..).and_then(|rest| rest.first_chunk::<4>()) else { return };
        let expected = u32::from_be_bytes(*number);
        self.unexpected.retain(|stat_sn| stat_sn.wrapping_sub(expected) < 0x8000_0000);
    }

    /// Keeps what was advertised with a command, which must cover all of its data.
    fn note_remote(&mut self, id: TaskId, header: &Header) -> Result<(), Violation> {
        let solicited_only = self.layer.rdma.is_none_or(|rdma| rdma.solicited_only);
        let Some(task) = self.layer.tasks.peek(id) else { return Ok(()) };
        let unsolicited = u64::from(task.unsolicited_end);
        let skipped = if solicited_only { unsolicited } else { 0 };
        let advertised = |(stag, offset): (u32, u64), skipped: u64| Advertised {
            stag,
            // It may be below 0: the data that is read begins after what was skipped.
            offset: offset.wrapping_sub(skipped),
        };
        let remote = Remote {
            write: header.write().map(|write| advertised(write, skipped)),
            read: header.read().map(|read| advertised(read, 0)),
        };
        let missing = match task.ending {
            Some(_) => None,
            None if task.read_bytes > 0 && remote.read.is_none() => Some(Violation::ReadStagMissing),
            None if task.write_bytes > task.unsolicited_end && remote.write.is_none() => {
                Some(Violation::WriteStagMissing)
            }
            None => None,
        };
        let slot = usize::from(id.slot);
        if slot >= self.remote.len() {
            // Grows like the table of tasks, once to what is needed.
            self.remote.resize(slot.saturating_add(1), Remote::default());
        }
        if let Some(place) = self.remote.get_mut(slot) {
            *place = remote;
        }
        missing.map_or(Ok(()), Err)
    }

    /// Keeps a data segment in its message until it has a place. For the iSCSI layer it has been received;
    /// the task continues once it was copied.
    fn hold(&mut self, data: Data, segment: Span, message: Span) {
        let Some(task) = self.layer.tasks.get(data.task) else { return self.free.push(message) };
        task.held = task.held.saturating_add(1);
        self.held.push_back(Held { task: data.task, at: task.received, data: segment, message });
        self.layer.data_done(data, true);
    }

    /// Whether it is known where it goes.
    pub(super) fn is_placeable(&self, held: &Held) -> bool {
        if self.layer.is_over() {
            return true;
        }
        self.layer.tasks.peek(held.task).is_none_or(|task| task.fetch.is_some() || task.ending.is_some())
    }

    /// Copies data segments to their places, and drops those whose task has ended.
    ///
    /// The copy is at most 8 KiB. A receive begins so that the data after the headers is page-aligned
    /// ([`crate::message::Receives::aligned_at`]): a command whose data all came with it could be written to
    /// the store from the message, if a `Fetch` could be answered by places of the transport's instead of
    /// filling the engine's; the message would then be released when the command ends.
    pub(super) fn place(&mut self, to: &mut dyn Post) {
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { return };
            if !self.is_placeable(&held) {
                self.held.push_back(held);
                continue;
            }
            // Once the connection has ended, no place is valid.
            if !self.layer.is_over()
                && let Some(task) = self.layer.tasks.get(held.task)
            {
                task.held = task.held.saturating_sub(1);
                if let Some(fetch) = task.fetch {
                    to.copy(held.data, fetch.into.slice(held.at.saturating_sub(fetch.at), held.data.len));
                }
                self.layer.progress(held.task);
            }
            self.free.push(held.message);
        }
    }

    /// Releases messages, before anything is sent that may bring new ones.
    pub(super) fn release_free(&mut self, to: &mut dyn Post) {
        if !self.layer.paused {
            self.free.append(&mut self.unnumbered);
        }
        for place in self.free.drain(..) {
            to.release(place);
        }
    }

    /// The data of a push that had no ending has been sent.
    pub(super) fn written(&mut self, id: TaskId) {
        let Some(task) = self.layer.tasks.get(id).filter(|task| task.push.is_some()) else { return };
        task.push = None;
        if task.ending.is_none() {
            self.layer.up.push_back(Up::Pushed(id));
        }
        self.layer.progress(id);
    }

    /// Work for a task has finished.
    pub(super) fn work_done(&mut self, id: TaskId, read: bool) {
        self.layer.tasks.finished(id, read);
        self.layer.settle(id);
    }

    /// Where a task's data is at the initiator.
    pub(super) fn remote(&self, id: TaskId) -> Remote {
        self.remote.get(usize::from(id.slot)).copied().unwrap_or_default()
    }
}

/// The part of a buffer that begins `at` bytes in.
pub(super) fn advertised_at(base: Advertised, at: u32) -> Advertised {
    Advertised { offset: base.offset.wrapping_add(u64::from(at)), ..base }
}
