//! What goes out: one queue, in the order in which it was given.

use super::task::{Solicited, Task};
use super::{Phase, Target};
use crate::iscsi::frame::{PDU_BYTES, PDU_SEGMENTS, push_bytes, push_header, push_payload};
use crate::stream::Transmit;
use crate::verbs::{Ending, TaskId};
use wire::iscsi::{
    BHS_BYTES, DIGEST_BYTES, DataIn, FINAL, NopIn, ReadyToTransfer, Reject, RejectReason, ScsiResponse,
    TAG_NONE, U24,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

/// GOOD (SAM-5 section 5.3.1).
const GOOD: u8 = 0;
/// Where StatSN, ExpCmdSN and MaxCmdSN are in every PDU of a target.
const NUMBERS: std::ops::Range<usize> = 24..36;

/// One place in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Out {
    /// Data-In of the task's push, and its ending.
    Push(TaskId),
    /// The task's ending.
    Response(TaskId),
    /// R2Ts for the task's fetch.
    Solicit(TaskId),
    /// The oldest of the control PDUs.
    Control,
}

/// A PDU that is not about a SCSI task.
#[derive(Debug)]
pub(super) struct Control {
    header: [u8; BHS_BYTES],
    /// Data with padding and digest.
    data: Vec<u8>,
    /// Its StatSN is its own.
    status: bool,
    /// No digests: a PDU of the login phase.
    plain: bool,
    /// Bytes of `data` that are in a batch, once the header is.
    sent: Option<usize>,
}

impl Target {
    /// Fills the batch.
    pub(super) fn send(&mut self, batch: &mut Transmit) {
        while let Some(out) = self.out.front().copied() {
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
            match (next, self.out.front_mut()) {
                (Some(next), Some(front)) => *front = next,
                _ => {
                    self.out.pop_front();
                }
            }
        }
        // What stood in the queue was aborted: no PDU has told that the window is open again.
        if batch.segments.is_empty() && self.is_full_feature() && self.session.is_closed_for_nothing() {
            self.tell_window();
            self.send(batch);
        }
    }

    /// Sends Data-In as far as the batch has room. Returns what stays at the head of the queue.
    fn send_push(&mut self, id: TaskId, batch: &mut Transmit) -> Option<Out> {
        loop {
            let link = self.link;
            let task = self.tasks.get(id)?;
            let push = task.push.as_mut()?;
            let rest = push.len.saturating_sub(push.sent);
            if rest == 0 {
                task.push = None;
                batch.done.push(id);
                return (task.ending.is_some() && !task.owed_data()).then_some(Out::Response(id));
            }
            if !batch.has_room(PDU_BYTES, PDU_SEGMENTS) {
                return Some(Out::Push(id));
            }
            let len = rest.min(link.max_send & !3).min(link.max_burst.saturating_sub(push.burst));
            let (offset, from) = (push.at.saturating_add(push.sent), push.from.slice(push.sent, len));
            push.sent = push.sent.saturating_add(len);
            push.burst = push.burst.saturating_add(len);
            let last = rest == len;
            let sequence_ends = last || push.burst >= link.max_burst;
            if sequence_ends {
                push.burst = 0;
            }
            let mut pdu = DataIn {
                flags: if sequence_ends { FINAL } else { 0 },
                data_segment_length: U24::new(len),
                initiator_task_tag: U32::new(task.initiator_task_tag),
                target_transfer_tag: U32::new(TAG_NONE),
                data_sn: U32::new(task.data_in_sn),
                buffer_offset: U32::new(offset),
                ..DataIn::default()
            };
            task.data_in_sn = task.data_in_sn.wrapping_add(1);
            task.data_in_count = task.data_in_count.wrapping_add(1);
            let status = last
                .then_some(task.ending)
                .flatten()
                .filter(|ending| ending.status == GOOD && ending.sense.is_none() && !task.bidirectional);
            if let Some(ending) = status {
                let residual = Residual::new(task, &ending);
                pdu.flags |= DataIn::STATUS | residual.flags;
                pdu.residual_count = U32::new(residual.count);
                pdu.status = GOOD;
                self.release(id);
                pdu.stat_sn = U32::new(self.next_stat_sn());
            }
            pdu.exp_cmd_sn = U32::new(self.session.exp_cmd_sn);
            pdu.max_cmd_sn = U32::new(self.session.advertise());
            self.push_header(pdu.as_bytes(), batch);
            push_payload(from, len, link.data_digest, batch);
            if status.is_some() {
                batch.done.push(id);
                return None;
            }
        }
    }

    fn send_response(&mut self, id: TaskId, batch: &mut Transmit) {
        let Some(task) = self.tasks.get(id).copied() else { return };
        let Some(ending) = task.ending else { return };
        let residual = Residual::new(&task, &ending);
        let mut data = [0; 2 + wire::Sense::MAX + 2 + DIGEST_BYTES];
        let data = ending.sense.map_or(&[][..], |sense| sense_segment(sense.as_bytes(), &mut data));
        let len = u32::try_from(data.len()).unwrap_or(0);
        self.release(id);
        let pdu = ScsiResponse {
            flags: FINAL | residual.flags,
            status: ending.status,
            data_segment_length: U24::new(len),
            initiator_task_tag: U32::new(task.initiator_task_tag),
            stat_sn: U32::new(self.next_stat_sn()),
            exp_cmd_sn: U32::new(self.session.exp_cmd_sn),
            max_cmd_sn: U32::new(self.session.advertise()),
            exp_data_sn: U32::new(task.data_in_count),
            bidirectional_read_residual_count: U32::new(residual.read_count),
            residual_count: U32::new(residual.count),
            ..ScsiResponse::default()
        };
        self.push_header(pdu.as_bytes(), batch);
        if len > 0 {
            push_bytes(data, self.link.data_digest, batch);
        }
    }

    /// Sends R2Ts as far as allowed. Returns what stays at the head of the queue.
    fn send_ready_to_transfer(&mut self, id: TaskId, batch: &mut Transmit) -> Option<Out> {
        loop {
            let link = self.link;
            let task = self.tasks.get(id)?;
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
            self.transfers = self.transfers.wrapping_add(1) & 0x7fff;
            let tag = (self.transfers << 16) | u32::from(id.slot);
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
            pdu.stat_sn = U32::new(self.stat_sn);
            pdu.exp_cmd_sn = U32::new(self.session.exp_cmd_sn);
            pdu.max_cmd_sn = U32::new(self.session.advertise());
            self.push_header(pdu.as_bytes(), batch);
        }
    }

    /// Sends the oldest control PDU as far as the batch has room. Returns what stays at the head of the queue.
    fn send_control(&mut self, batch: &mut Transmit) -> Option<Out> {
        let mut control = self.control.pop_front()?;
        let sent = match control.sent {
            Some(sent) => sent,
            None => {
                self.number(&mut control);
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
            self.control.push_front(control);
            return Some(Out::Control);
        }
        self.control_bytes = self.control_bytes.saturating_sub(control.data.len());
        None
    }

    /// Fills in StatSN, ExpCmdSN and MaxCmdSN.
    fn number(&mut self, control: &mut Control) {
        let stat_sn = if control.status { self.next_stat_sn() } else { self.stat_sn };
        let numbers = [stat_sn, self.session.exp_cmd_sn, self.session.advertise()];
        let bytes = numbers.iter().flat_map(|number| number.to_be_bytes());
        for (place, byte) in control.header.iter_mut().skip(NUMBERS.start).zip(bytes) {
            *place = byte;
        }
    }

    fn next_stat_sn(&mut self) -> u32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        stat_sn
    }

    /// Appends a header, with its digest where agreed.
    fn push_header(&self, header: &[u8], batch: &mut Transmit) {
        push_header(header, self.link.header_digest.then_some(self.config.crc32c), batch);
    }

    /// Queues a PDU that is not about a SCSI task; its length and numbers are filled in here. `status`: its StatSN is
    /// its own.
    pub(super) fn queue(&mut self, header: &[u8], mut data: Vec<u8>, status: bool) {
        let plain = matches!(self.phase, Phase::Login { .. });
        let len = u32::try_from(data.len()).unwrap_or(0);
        let mut bhs = [0; BHS_BYTES];
        for (place, byte) in bhs.iter_mut().zip(header) {
            *place = *byte;
        }
        let length = U24::new(len);
        for (place, byte) in bhs.iter_mut().skip(5).zip(length.as_bytes()) {
            *place = *byte;
        }
        if len > 0 {
            data.resize(data.len().next_multiple_of(4), 0);
            if self.link.data_digest && !plain {
                let digest = (self.config.crc32c)(&data);
                data.extend_from_slice(&digest.to_le_bytes());
            }
        }
        self.control_bytes = self.control_bytes.saturating_add(data.len());
        self.control.push_back(Control { header: bhs, data, status, plain, sent: None });
        self.out.push_back(Out::Control);
    }

    /// Rejects the PDU with this header (section 11.17).
    pub(super) fn reject(&mut self, reason: RejectReason, header: &[u8]) {
        let pdu =
            Reject { flags: FINAL, reason, initiator_task_tag: U32::new(TAG_NONE), ..Reject::default() };
        self.queue(pdu.as_bytes(), header.to_vec(), true);
    }

    /// A NOP-In that only carries a new MaxCmdSN.
    pub(super) fn tell_window(&mut self) {
        self.queue_nop_in(TAG_NONE, TAG_NONE, Vec::new());
    }

    /// Queues a NOP-In; its StatSN is its own when it answers a NOP-Out.
    pub(super) fn queue_nop_in(&mut self, tag: u32, transfer_tag: u32, data: Vec<u8>) {
        let pdu = NopIn {
            flags: FINAL,
            initiator_task_tag: U32::new(tag),
            target_transfer_tag: U32::new(transfer_tag),
            ..NopIn::default()
        };
        self.queue(pdu.as_bytes(), data, tag != TAG_NONE);
    }
}

/// Residual counts of a task (section 11.4.5).
struct Residual {
    flags: u8,
    count: u32,
    read_count: u32,
}

impl Residual {
    fn new(task: &Task, ending: &Ending) -> Residual {
        if task.bidirectional {
            let (over, under) =
                (ScsiResponse::BIDIRECTIONAL_READ_OVERFLOW, ScsiResponse::BIDIRECTIONAL_READ_UNDERFLOW);
            let (read_flags, read_count) = difference(task.read_bytes, ending.read_bytes, over, under);
            let (flags, count) = difference(
                task.write_bytes,
                ending.write_bytes,
                ScsiResponse::OVERFLOW,
                ScsiResponse::UNDERFLOW,
            );
            return Residual { flags: flags | read_flags, count, read_count };
        }
        // What the command would have moved the other way is none of what was expected.
        let moved = match (task.read_bytes, task.write_bytes) {
            (0, 0) => ending.read_bytes.max(ending.write_bytes),
            (0, _) => ending.write_bytes,
            (_, _) => ending.read_bytes,
        };
        let (flags, count) =
            difference(task.expected, moved, ScsiResponse::OVERFLOW, ScsiResponse::UNDERFLOW);
        Residual { flags, count, read_count: 0 }
    }
}

/// The flag and the residual count for `expected` bytes of which there were `presented`.
fn difference(expected: u32, presented: u64, over: u8, under: u8) -> (u8, u32) {
    let expected = u64::from(expected);
    let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    match presented.cmp(&expected) {
        std::cmp::Ordering::Equal => (0, 0),
        std::cmp::Ordering::Greater => (over, count(presented.saturating_sub(expected))),
        std::cmp::Ordering::Less => (under, count(expected.saturating_sub(presented))),
    }
}

/// Sense data behind its length (section 11.4.7).
fn sense_segment<'a>(sense: &[u8], data: &'a mut [u8]) -> &'a [u8] {
    let len = u16::try_from(sense.len()).unwrap_or(0).to_be_bytes();
    let end = sense.len().saturating_add(len.len());
    for (place, byte) in data.iter_mut().zip(len.iter().chain(sense)) {
        *place = *byte;
    }
    data.get(..end).unwrap_or_default()
}
