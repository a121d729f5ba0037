//! Parses PDUs as they arrive over a byte stream; Data-In and R2T, which do not exist over RDMA. An error is
//! the target's violation of the standard, and ends the connection.

use super::answer::{Checked, breach, residual};
use super::queue::DataOut;
use super::{Initiator, Outcome, Receiving, Residual};
use crate::services::TaskId;
use wire::iscsi::{
    BHS_BYTES, BasicHeader, DIGEST_BYTES, DataIn, FINAL, Opcode, Pdu, ReadyToTransfer, TAG_NONE, pad,
};

impl Initiator {
    /// Handles bytes that were requested as a header.
    pub(super) fn received(&mut self, bytes: &[u8]) -> Checked {
        match self.receiving {
            Receiving::Header => self.basic_header(bytes),
            Receiving::Gather { total } => {
                self.gathered.extend_from_slice(bytes);
                let have = u32::try_from(self.gathered.len()).unwrap_or(u32::MAX);
                if have >= total { self.gathered_all() } else { Ok(()) }
            }
            Receiving::Body { .. } => Ok(()),
        }
    }

    fn basic_header(&mut self, bytes: &[u8]) -> Checked {
        let Some((header, digest)) = bytes.split_first_chunk::<BHS_BYTES>() else { return Ok(()) };
        if self.layer.link.header_digest && digest != (self.layer.config.crc32c)(header).to_le_bytes() {
            return breach("header digest mismatch (RFC 7143 section 7.8)");
        }
        let Some(basic) = BasicHeader::view(header) else { return Ok(()) };
        let (opcode, len) = (basic.opcode(), basic.data_segment_length.get());
        self.layer.header(header)?;
        self.head = *header;
        if opcode == Opcode::DATA_IN {
            return self.data_in();
        }
        self.gathered.clear();
        if len == 0 {
            return self.pdu();
        }
        let digest = if self.layer.link.data_digest { 4 } else { 0 };
        self.receiving = Receiving::Gather { total: len.saturating_add(pad(len)).saturating_add(digest) };
        Ok(())
    }

    fn gathered_all(&mut self) -> Checked {
        self.receiving = Receiving::Header;
        let len = BasicHeader::view(&self.head).map_or(0, |basic| basic.data_segment_length.get());
        if self.layer.link.data_digest {
            let end = self.gathered.len().saturating_sub(DIGEST_BYTES);
            let (padded, digest) = self.gathered.split_at_checked(end).unwrap_or((&[], &[]));
            if digest != (self.layer.config.crc32c)(padded).to_le_bytes() {
                return breach("data digest mismatch (RFC 7143 section 7.8)");
            }
        }
        self.gathered.truncate(usize::try_from(len).unwrap_or(0));
        self.pdu()
    }

    /// A PDU with all its data in `gathered`.
    fn pdu(&mut self) -> Checked {
        let head = self.head;
        if let Some(pdu) = ReadyToTransfer::view(&head)
            && Opcode(pdu.opcode & Opcode::MASK) == Opcode::READY_TO_TRANSFER
        {
            return self.ready_to_transfer(pdu);
        }
        let data = std::mem::take(&mut self.gathered);
        let checked = self.layer.pdu(&head, &data);
        self.gathered = data;
        checked
    }

    fn data_in(&mut self) -> Checked {
        let head = self.head;
        let Some(pdu) = DataIn::view(&head) else { return Ok(()) };
        let (offset, len) = (pdu.buffer_offset.get(), pdu.data_segment_length.get());
        let Some((task, state)) = self.layer.tasks.find(pdu.initiator_task_tag.get()) else {
            return breach("Data-In for no task");
        };
        if pdu.data_sn.get() != state.input_sn {
            return breach("DataSN out of order (RFC 7143 section 11.7.5)");
        }
        let fits = offset.checked_add(len).is_some_and(|end| end <= state.request.read.len());
        if offset != state.received || !fits {
            return breach("Data-In at a wrong offset (RFC 7143 sections 11.7.5, 13.18)");
        }
        if pdu.flags & DataIn::STATUS != 0 && pdu.flags & FINAL == 0 {
            return breach("status before the last Data-In (RFC 7143 section 11.7.3)");
        }
        state.input_sn = state.input_sn.wrapping_add(1);
        let place = state.request.read.slice(offset, len);
        if len == 0 {
            return self.data_in_done(task, 0);
        }
        self.receiving = Receiving::Body { task, place };
        Ok(())
    }

    /// A Data-In is in its place; it may carry the status.
    pub(super) fn data_in_done(&mut self, id: TaskId, len: u32) -> Checked {
        let head = self.head;
        let Some(pdu) = DataIn::view(&head) else { return Ok(()) };
        if let Some(task) = self.layer.tasks.get(id) {
            task.received = task.received.saturating_add(len);
        }
        if pdu.flags & DataIn::STATUS != 0 {
            let residual =
                residual(pdu.flags, DataIn::OVERFLOW, DataIn::UNDERFLOW, pdu.residual_count.get())?;
            let outcome = Outcome::Status { status: pdu.status, sense: None };
            self.layer.end(id, outcome, residual, Residual::None);
        }
        Ok(())
    }

    fn ready_to_transfer(&mut self, pdu: &ReadyToTransfer) -> Checked {
        let (max_burst, max_outstanding) = (self.layer.link.max_burst, self.layer.link.max_outstanding_r2t);
        let (at, len) = (pdu.buffer_offset.get(), pdu.desired_data_transfer_length.get());
        let Some((id, task)) = self.layer.tasks.find(pdu.initiator_task_tag.get()) else {
            return breach("R2T for no task");
        };
        let end = at.checked_add(len).filter(|end| *end <= task.request.write.len());
        let (Some(end), 1..) = (end, len) else {
            return breach("R2T for data that the command does not have (RFC 7143 section 11.8.4)");
        };
        if len > max_burst || task.solicited >= max_outstanding || pdu.r2t_sn.get() != task.input_sn {
            return breach("R2T against what was negotiated, or out of order (RFC 7143 section 11.8)");
        }
        if pdu.target_transfer_tag.get() == TAG_NONE {
            return breach("R2T without a tag (RFC 7143 section 11.8.5)");
        }
        task.solicited = task.solicited.saturating_add(1);
        task.input_sn = task.input_sn.wrapping_add(1);
        self.layer.data.push_back(DataOut {
            task: id,
            tag: pdu.target_transfer_tag.get(),
            lun: pdu.lun.get(),
            at,
            end,
            data_sn: 0,
        });
        Ok(())
    }
}
