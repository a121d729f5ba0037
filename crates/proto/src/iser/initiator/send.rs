//! What is sent: the iSCSI layer's queues become messages.

use super::{AdvertisedBuffers, Initiator};
use crate::iscsi::initiator::queue::DataOut;
use crate::message::{Access, Full, Post, WorkId};
use crate::services::TaskId;
use wire::Places;
use wire::iser::Header;
use zerocopy::IntoBytes;

/// A message that was offered and not accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsent {
    work: WorkId,
    payload: Places,
}

/// Work whose completion reports nothing.
const CONTROL: WorkId = WorkId(0);
/// Marks work that borrows the payload of a task.
const PAYLOAD: u64 = 1 << 32;

fn payload_work(id: TaskId) -> WorkId {
    WorkId(PAYLOAD | (u64::from(id.generation) << 16) | u64::from(id.slot))
}

/// The task whose payload this work has borrowed.
pub(super) fn payload_task(work: WorkId) -> Option<TaskId> {
    let [.., a, b, c, d] = work.0.to_be_bytes();
    let task = TaskId { slot: u16::from_be_bytes([c, d]), generation: u16::from_be_bytes([a, b]) };
    (work.0 & PAYLOAD != 0).then_some(task)
}

impl Initiator {
    /// Posts what is queued.
    pub(super) fn send(&mut self, to: &mut dyn Post) -> Result<(), Full> {
        if let Some(unsent) = self.unsent.take() {
            self.offer(unsent, to)?;
        }
        while let Some(control) = self.layer.take_control() {
            self.begin(Header::control(None, None));
            self.message.extend_from_slice(&control.header);
            self.message.extend_from_slice(&control.data);
            self.offer(Unsent { work: CONTROL, payload: Places::EMPTY }, to)?;
        }
        loop {
            if let Some(data) = self.layer.data.pop_front() {
                self.send_data(data, to)?;
            } else if self.layer.window_open()
                && let Some(id) = self.layer.commands.front().copied()
            {
                self.send_command(id, to)?;
            } else {
                return Ok(());
            }
        }
    }

    /// One Data-Out, unsolicited: the target reads solicited data.
    fn send_data(&mut self, data: DataOut, to: &mut dyn Post) -> Result<(), Full> {
        let Some((pdu, payload, rest)) = self.layer.data_out(data) else { return Ok(()) };
        if let Some(rest) = rest {
            self.layer.data.push_front(rest);
        }
        self.begin(Header::control(None, None));
        self.message.extend_from_slice(pdu.as_bytes());
        self.offer(Unsent { work: payload_work(data.task), payload }, to)
    }

    /// A command, with its immediate data and the buffers that it advertises.
    fn send_command(&mut self, id: TaskId, to: &mut dyn Post) -> Result<(), Full> {
        let own = self.advertise(id, to)?;
        self.layer.commands.pop_front();
        let Some(own) = own else { return Ok(()) };
        let Some(payload) = self.layer.command(id) else { return Ok(()) };
        let pair = |place: Option<crate::message::Advertised>| place.map(|place| (place.stag, place.offset));
        self.begin(Header::control(pair(own.write), pair(own.read)));
        self.message.extend_from_slice(&self.layer.segments);
        let work = if payload.is_empty() { CONTROL } else { payload_work(id) };
        self.offer(Unsent { work, payload }, to)
    }

    /// Lets the target access the buffers of a command: all of its data-in, and the part of its data-out that
    /// is not sent unsolicited. `None`: the task has ended.
    fn advertise(&mut self, id: TaskId, to: &mut dyn Post) -> Result<Option<AdvertisedBuffers>, Full> {
        let Some(task) = self.layer.tasks.get(id).filter(|task| task.ended.is_none()) else {
            return Ok(None);
        };
        let (read, write) = (task.request.read, task.request.write);
        let unsolicited = self.layer.unsolicited_data(write.len()).unsolicited;
        let slot = usize::from(id.slot);
        if slot >= self.advertised.len() {
            // Once for each slot.
            self.advertised.resize(slot.saturating_add(1), AdvertisedBuffers::default());
        }
        let Some(own) = self.advertised.get_mut(slot) else { return Ok(None) };
        let (reads, writes) = (!read.is_empty(), write.len() > unsolicited);
        if (reads || writes) && !own.is_advertised {
            *own = AdvertisedBuffers { is_advertised: true, ..AdvertisedBuffers::default() };
            if let Some(task) = self.layer.tasks.get(id) {
                task.batches = task.batches.saturating_add(1);
            }
        }
        if reads && own.read.is_none() {
            own.read = Some(to.advertise(read, Access::Write)?);
        }
        if writes && own.write.is_none() {
            let solicited = write.slice(unsolicited, write.len().saturating_sub(unsolicited));
            own.write = Some(to.advertise(solicited, Access::Read)?);
        }
        Ok(Some(*own))
    }

    fn begin(&mut self, header: Header) {
        self.message.clear();
        self.message.extend_from_slice(header.as_bytes());
    }

    fn offer(&mut self, unsent: Unsent, to: &mut dyn Post) -> Result<(), Full> {
        let sent = to.send(unsent.work, &self.message, unsent.payload, true, None);
        if sent.is_err() {
            self.unsent = Some(unsent);
        }
        sent
    }
}
