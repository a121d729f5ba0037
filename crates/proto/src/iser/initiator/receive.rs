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
            (Some(stag), Some(id)) => self.invalidated(id, stag).map_err(breach)?,
            (Some(_), None) => return Err(breach(Violation::WrongInvalidation)),
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

    /// The task that a response is about. RDMA Writes are not counted here, so what came is what was not left over.
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

    /// The target has invalidated an STag with the response.
    fn invalidated(&mut self, id: TaskId, stag: u32) -> Result<(), Violation> {
        let Some(own) = self.advertised.get_mut(usize::from(id.slot)) else {
            return Err(Violation::WrongInvalidation);
        };
        let is = |place: Option<crate::message::Advertised>| place.is_some_and(|place| place.stag == stag);
        if is(own.read) {
            own.read = None;
        } else if is(own.write) {
            own.write = None;
        } else {
            return Err(Violation::WrongInvalidation);
        }
        Ok(())
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
        if own.read.is_some() || own.write.is_some() {
            self.ended.push_back(id);
        } else {
            self.layer.pushed(id);
        }
    }

    /// The same for all tasks: some request ended them.
    pub(super) fn retire_all(&mut self) {
        for slot in 0..self.layer.tasks.slots() {
            if let Some((id, _)) = self.layer.tasks.at(slot) {
                self.retire(id);
            }
        }
    }

    /// Nobody may touch the buffers of tasks that have ended.
    pub(super) fn invalidate(&mut self, to: &mut dyn Post) {
        while let Some(id) = self.ended.pop_front() {
            if let Some(own) = self.advertised.get_mut(usize::from(id.slot)) {
                let Own { write, read, .. } = std::mem::take(own);
                for advertised in [write, read].into_iter().flatten() {
                    to.invalidate(advertised.stag);
                }
            }
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
