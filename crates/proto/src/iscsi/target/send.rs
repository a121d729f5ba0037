//! What is sent over a byte stream: PDUs are built from the queue while the batch has room.

use super::Target;
use super::layer::Layer;
use super::queue::{Out, Residual, SENSE_SEGMENT_MAX};
use super::task::Solicited;
use crate::iscsi::frame::{PDU_BYTES, PDU_SEGMENTS, push_bytes, push_header, push_payload};
use crate::services::TaskId;
use crate::stream::Transmit;
use wire::iscsi::{DataIn, FINAL, ReadyToTransfer, TAG_NONE, U24};
use wire::scsi::status::GOOD;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

impl Target {
    /// Fills the batch.
    pub(super) fn send(&mut self, batch: &mut Transmit) {
        while let Some(out) = self.layer.out.front().copied() {
            if !batch.has_room(PDU_BYTES, PDU_SEGMENTS) {
                return;
            }
            let next = match out {
                Out::Push(id) => self.send_push(id, batch),
                Out::Response(id) => {
                    self.send_response(id, batch);
                    None
                }
                Out::Solicit(id) => self.send_ready_to_transfer(id, batch),
                Out::Control => self.send_control(batch),
            };
            match (next, self.layer.out.front_mut()) {
                (Some(next), Some(front)) => *front = next,
                _ => {
                    self.layer.out.pop_front();
                }
            }
        }
        // The queue was emptied by aborts: no PDU has announced that the window is open again.
        if batch.segments.is_empty()
            && self.layer.is_full_feature()
            && self.layer.session.is_closed_for_nothing()
        {
            self.layer.announce_window();
            self.send(batch);
        }
    }

    /// Sends Data-In while the batch, which has room for one, has room. Returns what stays at the head of the
    /// queue.
    fn send_push(&mut self, id: TaskId, batch: &mut Transmit) -> Option<Out> {
        loop {
            let link = self.layer.link;
            let task = self.layer.tasks.get(id)?;
            let push = task.push.as_mut()?;
            let rest = push.len.saturating_sub(push.sent);
            if rest == 0 {
                task.push = None;
                batch.done.push(id);
                return (task.ending.is_some() && !task.owed_data()).then_some(Out::Response(id));
            }
            let len = rest.min(link.data_in_max()).min(link.max_burst.saturating_sub(push.burst));
            let (offset, from) = (push.at.saturating_add(push.sent), push.from.slice(push.sent, len));
            push.sent = push.sent.saturating_add(len);
            push.burst = push.burst.saturating_add(len);
            let last = rest == len;
            let sequence_ends = last || push.burst >= link.max_burst;
            if sequence_ends {
                push.burst = 0;
            }
            let flags = if sequence_ends { FINAL } else { 0 };
            let mut pdu = data_in(flags, task.initiator_task_tag, task.data_in_sn, offset, len);
            task.data_in_sn = task.data_in_sn.wrapping_add(1);
            task.data_in_count = task.data_in_count.wrapping_add(1);
            let status = task.ending.as_ref().filter(|ending| {
                last && ending.status == GOOD && ending.sense.is_none() && !task.bidirectional
            });
            let residual = status.map(|ending| Residual::new(task, ending));
            if let Some(residual) = &residual {
                self.layer.release(id);
                self.layer.end_with(&mut pdu, residual);
            }
            self.layer.number_data_in(&mut pdu);
            self.push_header(pdu.as_bytes(), batch);
            push_payload(from, len, link.data_digest, batch);
            if residual.is_some() {
                batch.done.push(id);
                return None;
            }
            if !last && !batch.has_room(PDU_BYTES, PDU_SEGMENTS) {
                return Some(Out::Push(id));
            }
        }
    }

    fn send_response(&mut self, id: TaskId, batch: &mut Transmit) {
        let mut data = [0; SENSE_SEGMENT_MAX];
        let Some((pdu, data)) = self.layer.response(id, &mut data) else { return };
        self.push_header(pdu.as_bytes(), batch);
        if !data.is_empty() {
            push_bytes(data, self.layer.link.data_digest, batch);
        }
    }

    /// Sends R2Ts as far as allowed. Returns what stays at the head of the queue.
    fn send_ready_to_transfer(&mut self, id: TaskId, batch: &mut Transmit) -> Option<Out> {
        loop {
            let link = self.layer.link;
            let task = self.layer.tasks.get(id)?;
            task.solicit_queued = false;
            let fetch = task.fetch?;
            let at = task.solicited_end.max(task.unsolicited_end);
            let len = fetch.end.saturating_sub(at).min(link.max_burst);
            if len == 0 || task.solicited_count >= link.max_outstanding_r2t {
                return None;
            }
            if !batch.has_room(PDU_BYTES, PDU_SEGMENTS) {
                task.solicit_queued = true;
                return Some(Out::Solicit(id));
            }
            // The high bit stays clear: no R2T has the reserved tag, or the tag of a text exchange or a ping.
            self.layer.transfers = self.layer.transfers.wrapping_add(1) & 0x7fff;
            let tag = (self.layer.transfers << 16) | u32::from(id.slot);
            task.push_solicited(Solicited { tag, end: at.saturating_add(len) });
            let mut pdu = ReadyToTransfer {
                flags: FINAL,
                lun: U64::new(task.lun),
                initiator_task_tag: U32::new(task.initiator_task_tag),
                target_transfer_tag: U32::new(tag),
                r2t_sn: U32::new(task.data_in_sn),
                buffer_offset: U32::new(at),
                desired_data_transfer_length: U32::new(len),
                ..ReadyToTransfer::default()
            };
            task.data_in_sn = task.data_in_sn.wrapping_add(1);
            pdu.stat_sn = U32::new(self.layer.stat_sn);
            pdu.exp_cmd_sn = U32::new(self.layer.session.exp_cmd_sn);
            pdu.max_cmd_sn = U32::new(self.layer.session.advertise());
            self.push_header(pdu.as_bytes(), batch);
        }
    }

    /// Sends the oldest control PDU while the batch has room. Returns what stays at the head of the queue.
    fn send_control(&mut self, batch: &mut Transmit) -> Option<Out> {
        let mut control = self.layer.control.pop_front()?;
        let sent = match control.sent {
            Some(sent) => sent,
            None => {
                self.layer.number(&mut control);
                if control.plain {
                    batch.push_bytes(&control.header);
                } else {
                    self.push_header(&control.header, batch);
                }
                0
            }
        };
        let rest = control.data.get(sent..).unwrap_or_default();
        let room = Transmit::BYTES_MAX.saturating_sub(batch.bytes.len());
        let piece = rest.get(..room).unwrap_or(rest);
        batch.push_bytes(piece);
        if piece.len() < rest.len() {
            control.sent = Some(sent.saturating_add(piece.len()));
            self.layer.control.push_front(control);
            return Some(Out::Control);
        }
        self.layer.control_bytes = self.layer.control_bytes.saturating_sub(control.data.len());
        None
    }

    /// Appends a header, with its digest where agreed.
    fn push_header(&self, header: &[u8], batch: &mut Transmit) {
        push_header(header, self.layer.link.header_digest.then_some(self.layer.config.crc32c), batch);
    }
}

impl Layer {
    /// Adds GOOD to the last Data-In (section 11.7.3).
    #[inline]
    pub(super) fn end_with(&mut self, pdu: &mut DataIn, residual: &Residual) {
        pdu.flags |= DataIn::STATUS | residual.flags;
        pdu.residual_count = U32::new(residual.count);
        pdu.status = GOOD;
        pdu.stat_sn = U32::new(self.next_stat_sn());
    }

    #[inline]
    pub(super) fn number_data_in(&mut self, pdu: &mut DataIn) {
        pdu.exp_cmd_sn = U32::new(self.session.exp_cmd_sn);
        pdu.max_cmd_sn = U32::new(self.session.advertise());
    }
}

/// A Data-In without status.
#[inline]
pub(super) fn data_in(flags: u8, tag: u32, data_sn: u32, offset: u32, len: u32) -> DataIn {
    DataIn {
        flags,
        data_segment_length: U24::new(len),
        initiator_task_tag: U32::new(tag),
        target_transfer_tag: U32::new(TAG_NONE),
        data_sn: U32::new(data_sn),
        buffer_offset: U32::new(offset),
        ..DataIn::default()
    }
}
