//! Received messages, and what happens to the buffers that were advertised.

use super::{AdvertisedBuffers, Initiator};
use crate::iscsi::initiator::layer::Phase;
use crate::iser::{Parts, Violation};
use crate::message::{Advertised, Message, Post};
use crate::services::TaskId;
use wire::iscsi::{BHS_BYTES, BasicHeader, Opcode, Pdu, ScsiResponse};

impl Initiator {
    /// Handles a message; an error ends the connection.
    pub(super) fn take(&mut self, message: Message<'_>) -> Result<(), String> {
        let parts = Parts::of(message.bytes).map_err(breach)?;
        let header = parts.pdu.first_chunk::<BHS_BYTES>().ok_or_else(|| breach(Violation::Short))?;
        self.layer.header(header)?;
        let opcode = BasicHeader::view(header).map_or(Opcode::NOP_IN, BasicHeader::opcode);
        let answered = match opcode {
            Opcode::DATA_IN | Opcode::READY_TO_TRANSFER => return Err(breach(Violation::DataPdu)),
            Opcode::SCSI_RESPONSE => ScsiResponse::view(header).and_then(|pdu| self.answered(pdu)),
            _ => None,
        };
        match (message.invalidated, answered) {
            (Some(stag), Some(id)) if self.has_advertised(id, stag) => {}
            (Some(_), _) => return Err(breach(Violation::WrongInvalidation)),
            (None, _) => {}
        }
        self.layer.pdu(header, parts.data)?;
        match (opcode, answered) {
            (Opcode::SCSI_RESPONSE, Some(id)) => self.retire(id),
            (Opcode::TASK_MANAGEMENT_RESPONSE | Opcode::REJECT, _) => self.retire_all(),
            (Opcode::LOGIN_RESPONSE, _) => return self.check_rdma(),
            _ => {}
        }
        Ok(())
    }

    /// The task that a response is about. The data received is all except the residual, if any was
    /// ([`Initiator::reclaim`]).
    fn answered(&mut self, pdu: &ScsiResponse) -> Option<TaskId> {
        let (id, task) = self.layer.tasks.find(pdu.initiator_task_tag.get())?;
        let expected = task.request.read.len();
        let (flag, count) = if task.request.write.is_empty() {
            (ScsiResponse::UNDERFLOW, pdu.residual_count.get())
        } else {
            (ScsiResponse::BIDIRECTIONAL_READ_UNDERFLOW, pdu.bidirectional_read_residual_count.get())
        };
        task.received = match pdu.response {
            ScsiResponse::COMPLETED if pdu.flags & flag != 0 => expected.saturating_sub(count),
            ScsiResponse::COMPLETED => expected,
            _ => 0,
        };
        Some(id)
    }

    /// Whether it is the STag of a buffer of this task.
    fn has_advertised(&mut self, id: TaskId, stag: u32) -> bool {
        let own = self.advertised.get_mut(usize::from(id.slot));
        own.is_some_and(|own| own.both().iter().any(|buffer| buffer.is_some_and(|it| it.stag == stag)))
    }

    /// Handles the buffers of a task that may have ended.
    fn retire(&mut self, id: TaskId) {
        if self.layer.tasks.get(id).is_none_or(|task| task.ended.is_none()) {
            return;
        }
        let Some(own) = self.advertised.get_mut(usize::from(id.slot)).filter(|own| own.is_advertised) else {
            return;
        };
        own.is_advertised = false;
        self.ended.push_back(id);
    }

    /// The same for all tasks: some request ended them.
    pub(super) fn retire_all(&mut self) {
        for slot in 0..self.layer.tasks.slots() {
            if let Some((id, _)) = self.layer.tasks.at(slot) {
                self.retire(id);
            }
        }
    }

    /// Nothing may access the buffers of tasks that have ended; transfers still in progress are waited for.
    pub(super) fn reclaim(&mut self, to: &mut dyn Post) {
        while let Some(id) = self.ended.pop_front() {
            let Some(own) = self.advertised.get_mut(usize::from(id.slot)) else { continue };
            if let Some(ended) = self.layer.tasks.get(id).and_then(|task| task.ended.as_mut()) {
                let moved = |buffer: Advertised| to.moved(buffer.stag);
                ended.read_bytes = ended.read_bytes.min(own.read.map_or(u32::MAX, moved));
                // What was not sent unsolicited was advertised.
                ended.write_bytes = ended.write_bytes.saturating_add(own.write.map_or(0, moved));
            }
            for buffer in own.both() {
                buffer.take_if(|buffer| to.invalidate(buffer.stag));
            }
            if own.both().iter().all(|buffer| buffer.is_none()) {
                self.layer.pushed(id);
            }
        }
    }

    /// Data read from a buffer that was invalidated has been sent.
    pub(super) fn has_left(&mut self, stag: u32) {
        let is_it =
            |own: &mut AdvertisedBuffers| own.both().iter().any(|it| it.is_some_and(|it| it.stag == stag));
        let Some(slot) = self.advertised.iter_mut().position(is_it) else { return };
        let task = u16::try_from(slot).ok().and_then(|slot| self.layer.tasks.at(slot)).map(|(id, _)| id);
        // One that has just ended is handled with the others.
        let Some(id) = task.filter(|id| !self.ended.contains(id)) else { return };
        let Some(own) = self.advertised.get_mut(slot) else { return };
        for buffer in own.both() {
            buffer.take_if(|buffer| buffer.stag == stag);
        }
        if own.both().iter().all(|buffer| buffer.is_none()) {
            self.layer.pushed(id);
        }
    }

    /// A session over messages must use RDMA (RFC 7145 section 3.3).
    fn check_rdma(&self) -> Result<(), String> {
        let normal = self.layer.config.plan.target.is_some();
        if normal && matches!(self.layer.phase, Phase::Full) && self.layer.rdma.is_none() {
            return Err("the target does not agree to iSER (RDMAExtensions=No)".to_string());
        }
        Ok(())
    }
}

fn breach(violation: Violation) -> String {
    format!("protocol violation by the target: {violation}")
}
