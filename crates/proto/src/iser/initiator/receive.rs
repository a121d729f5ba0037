//! Messages that came in, and what becomes of the buffers that were advertised.

use super::{Initiator, Own};
use crate::iscsi::initiator::layer::Phase;
use crate::iser::{Parts, Violation};
use crate::message::{Message, Post};
use crate::verbs::TaskId;
use wire::iscsi::{BHS_BYTES, BasicHeader, Opcode, Pdu, ScsiResponse};

impl Initiator {
    /// Takes a message; an error is the end of the connection.
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

    /// The task that a response is about. RDMA is not counted here, so what came or was taken is what was not left over.
    fn answered(&mut self, pdu: &ScsiResponse) -> Option<TaskId> {
        let (id, task) = self.layer.tasks.find(pdu.initiator_task_tag.get())?;
        let (read, write) = (task.request.read.len(), task.request.write.len());
        let of_read = if write == 0 {
            (ScsiResponse::UNDERFLOW, pdu.residual_count.get())
        } else {
            (ScsiResponse::BIDIRECTIONAL_READ_UNDERFLOW, pdu.bidirectional_read_residual_count.get())
        };
        let moved = |expected: u32, (flag, count): (u8, u32)| match pdu.response {
            ScsiResponse::COMPLETED if pdu.flags & flag != 0 => expected.saturating_sub(count),
            ScsiResponse::COMPLETED => expected,
            _ => 0,
        };
        task.received = moved(read, of_read);
        task.taken = moved(write, (ScsiResponse::UNDERFLOW, pdu.residual_count.get()));
        Some(id)
    }

    /// Whether it is the STag of a buffer of this task.
    fn has_advertised(&mut self, id: TaskId, stag: u32) -> bool {
        let own = self.advertised.get_mut(usize::from(id.slot));
        own.is_some_and(|own| own.both().iter().any(|buffer| buffer.is_some_and(|it| it.stag == stag)))
    }

    /// Sees to the buffers of a task that may have ended.
    fn retire(&mut self, id: TaskId) {
        if self.layer.tasks.get(id).is_none_or(|task| task.ended.is_none()) {
            return;
        }
        let Some(own) = self.advertised.get_mut(usize::from(id.slot)).filter(|own| own.is_lent) else {
            return;
        };
        own.is_lent = false;
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

    /// Nobody may touch the buffers of tasks that have ended; what of them is still on its way is waited for.
    pub(super) fn take_back(&mut self, to: &mut dyn Post) {
        while let Some(id) = self.ended.pop_front() {
            let Some(own) = self.advertised.get_mut(usize::from(id.slot)) else { continue };
            for buffer in own.both() {
                buffer.take_if(|buffer| to.invalidate(buffer.stag));
            }
            if own.both().iter().all(|buffer| buffer.is_none()) {
                self.layer.pushed(id);
            }
        }
    }

    /// What was read of a buffer that was invalidated has left.
    pub(super) fn has_left(&mut self, stag: u32) {
        let is_it =
            |own: &mut Own| own.both().into_iter().any(|it| it.take_if(|it| it.stag == stag).is_some());
        let Some(slot) = self.advertised.iter_mut().position(is_it) else { return };
        let is_free =
            self.advertised.get_mut(slot).is_some_and(|own| own.both().iter().all(|it| it.is_none()));
        let task = u16::try_from(slot).ok().and_then(|slot| self.layer.tasks.at(slot)).map(|(id, _)| id);
        // One that has ended just now is seen to with the others.
        if let Some(id) = task.filter(|id| is_free && !self.ended.contains(id)) {
            self.layer.pushed(id);
        }
    }

    /// A session over messages is one over RDMA (RFC 7145 section 3.3).
    fn check_rdma(&self) -> Result<(), String> {
        let normal = self.layer.config.plan.target.is_some();
        if normal && matches!(self.layer.phase, Phase::Full) && self.layer.rdma.is_none() {
            return Err("the target does not agree to iSER (RDMAExtensions=No)".to_string());
        }
        Ok(())
    }
}

fn breach(violation: Violation) -> String {
    format!("breach by the target: {violation}")
}
