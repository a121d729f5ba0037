//! What is sent: one queue, in order.

use super::layer::{Layer, Phase};
use super::task::Task;
use crate::services::{Ending, TaskId};
use wire::iscsi::{BHS_BYTES, DIGEST_BYTES, FINAL, NopIn, Reject, RejectReason, ScsiResponse, TAG_NONE, U24};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

/// Sense data after its length, with padding and digest.
pub(crate) const SENSE_SEGMENT_MAX: usize = 2 + wire::Sense::MAX + 2 + DIGEST_BYTES;
/// Where StatSN, ExpCmdSN and MaxCmdSN are in every PDU of a target.
const NUMBERS: std::ops::Range<usize> = 24..36;

/// An entry of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Out {
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
pub(crate) struct Control {
    pub header: [u8; BHS_BYTES],
    /// Data with padding and digest.
    pub data: Vec<u8>,
    /// It has a StatSN of its own.
    pub status: bool,
    /// No digests: a PDU of the login phase.
    pub plain: bool,
    /// Bytes of `data` that are in a batch, once the header is.
    pub sent: Option<usize>,
}

impl Layer {
    /// The response of a task that has ended, numbered, with its sense data in `data`. Its slot is released.
    pub(crate) fn response<'a>(
        &mut self,
        id: TaskId,
        data: &'a mut [u8; SENSE_SEGMENT_MAX],
    ) -> Option<(ScsiResponse, &'a [u8])> {
        let task = self.tasks.get(id).copied()?;
        let ending = task.ending?;
        let residual = Residual::new(&task, &ending);
        let data = ending.sense.map_or(&[][..], |sense| sense_segment(sense.as_bytes(), data));
        let len = u32::try_from(data.len()).unwrap_or(0);
        self.release(id);
        let mut pdu = self.response_to(task.initiator_task_tag, ending.status, &residual);
        pdu.data_segment_length = U24::new(len);
        pdu.exp_data_sn = U32::new(task.data_in_count);
        Some((pdu, data))
    }

    /// A response without data, numbered.
    #[inline]
    pub(super) fn response_to(&mut self, tag: u32, status: u8, residual: &Residual) -> ScsiResponse {
        ScsiResponse {
            flags: FINAL | residual.flags,
            status,
            initiator_task_tag: U32::new(tag),
            stat_sn: U32::new(self.next_stat_sn()),
            exp_cmd_sn: U32::new(self.session.exp_cmd_sn),
            max_cmd_sn: U32::new(self.session.advertise()),
            bidirectional_read_residual_count: U32::new(residual.read_count),
            residual_count: U32::new(residual.count),
            ..ScsiResponse::default()
        }
    }

    /// Takes the oldest PDU that is not about a SCSI task.
    pub(crate) fn take_control(&mut self) -> Option<Control> {
        let control = self.control.pop_front()?;
        self.control_bytes = self.control_bytes.saturating_sub(control.data.len());
        Some(control)
    }

    /// Fills in StatSN, ExpCmdSN and MaxCmdSN.
    pub(crate) fn number(&mut self, control: &mut Control) {
        let stat_sn = if control.status { self.next_stat_sn() } else { self.stat_sn };
        let numbers = [stat_sn, self.session.exp_cmd_sn, self.session.advertise()];
        let bytes = numbers.iter().flat_map(|number| number.to_be_bytes());
        for (place, byte) in control.header.iter_mut().skip(NUMBERS.start).zip(bytes) {
            *place = byte;
        }
    }

    pub(super) fn next_stat_sn(&mut self) -> u32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        stat_sn
    }

    /// Queues a PDU that is not about a SCSI task; its length and numbers are filled in here. `status`: it
    /// has a StatSN of its own.
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
    pub(crate) fn announce_window(&mut self) {
        self.queue_nop_in(TAG_NONE, TAG_NONE, Vec::new());
    }

    /// Queues a NOP-In; it has a StatSN of its own when it answers a NOP-Out.
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
pub(super) struct Residual {
    pub flags: u8,
    pub count: u32,
    read_count: u32,
}

impl Residual {
    /// Everything expected was transferred.
    pub(super) const NONE: Residual = Residual { flags: 0, count: 0, read_count: 0 };

    pub(super) fn new(task: &Task, ending: &Ending) -> Residual {
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
        // What the command would have transferred in the other direction does not count.
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

/// The flag and the residual count for `expected` bytes of which `presented` were there.
fn difference(expected: u32, presented: u64, over: u8, under: u8) -> (u8, u32) {
    let expected = u64::from(expected);
    let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    match presented.cmp(&expected) {
        std::cmp::Ordering::Equal => (0, 0),
        std::cmp::Ordering::Greater => (over, count(presented.saturating_sub(expected))),
        std::cmp::Ordering::Less => (under, count(expected.saturating_sub(presented))),
    }
}

/// Sense data after its length (section 11.4.7).
fn sense_segment<'a>(sense: &[u8], data: &'a mut [u8]) -> &'a [u8] {
    let len = u16::try_from(sense.len()).unwrap_or(0).to_be_bytes();
    let end = sense.len().saturating_add(len.len());
    for (place, byte) in data.iter_mut().zip(len.iter().chain(sense)) {
        *place = *byte;
    }
    data.get(..end).unwrap_or_default()
}
