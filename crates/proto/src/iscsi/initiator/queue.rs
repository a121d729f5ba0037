//! What is sent: requests other than commands first, then data, then commands as far as the window is open.

use super::layer::{Layer, Phase};
use super::task::Task;
use crate::services::{Attribute, TaskId};
use wire::Places;
use wire::iscsi::{Ahs, BHS_BYTES, DataOut as DataOutPdu, FINAL, ScsiCommand, TAG_NONE, U24};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Where ExpStatSN is in every PDU of an initiator.
const EXP_STAT_SN: usize = 28;

/// A request other than a command.
#[derive(Debug)]
pub(crate) struct Control {
    pub header: [u8; BHS_BYTES],
    /// Data with padding and digest.
    pub data: Vec<u8>,
    /// No digest: a PDU of the login phase.
    pub plain: bool,
}

/// A sequence of Data-Out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataOut {
    pub task: TaskId,
    /// Target transfer tag: that of the R2T, or none if unsolicited.
    pub tag: u32,
    pub lun: u64,
    /// The next byte.
    pub at: u32,
    pub end: u32,
    pub data_sn: u32,
}

/// How much of a command's data-out is unsolicited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnsolicitedData {
    /// With the command.
    pub immediate: u32,
    /// With it, and in the Data-Out that follows.
    pub unsolicited: u32,
}

impl UnsolicitedData {
    /// No Data-Out follows.
    pub(crate) fn is_last(self) -> bool {
        self.immediate >= self.unsolicited
    }
}

impl Layer {
    /// Queues a request other than a command; its length is filled in here, and its ExpStatSN when it is
    /// sent.
    pub(super) fn queue(&mut self, header: &[u8], data: &[u8]) {
        let plain = matches!(self.phase, Phase::Login { .. });
        let mut bhs = [0; BHS_BYTES];
        for (place, byte) in bhs.iter_mut().zip(header) {
            *place = *byte;
        }
        let len = U24::new(u32::try_from(data.len()).unwrap_or(0));
        for (place, byte) in bhs.iter_mut().skip(5).zip(len.as_bytes()) {
            *place = *byte;
        }
        let mut data = data.to_vec();
        if !data.is_empty() {
            data.resize(data.len().next_multiple_of(4), 0);
            if self.link.data_digest && !plain {
                let digest = (self.config.crc32c)(&data);
                data.extend_from_slice(&digest.to_le_bytes());
            }
        }
        self.control.push_back(Control { header: bhs, data, plain });
    }

    /// Takes the oldest request other than a command, complete with ExpStatSN.
    pub(crate) fn take_control(&mut self) -> Option<Control> {
        let mut control = self.control.pop_front()?;
        let number = self.exp_stat_sn.to_be_bytes();
        for (place, byte) in control.header.iter_mut().skip(EXP_STAT_SN).zip(number) {
            *place = byte;
        }
        Some(control)
    }

    /// One Data-Out, with its payload, which is borrowed, and the rest of the sequence.
    pub(crate) fn data_out(&mut self, data: DataOut) -> Option<(DataOutPdu, Places, Option<DataOut>)> {
        let max_send = self.link.max_send;
        let exp_stat_sn = self.exp_stat_sn;
        let task = self.tasks.get(data.task).filter(|task| task.ended.is_none())?;
        let rest = data.end.saturating_sub(data.at);
        // All but the last of a sequence are whole words, so that padding stays at its end.
        let max = if rest > max_send { max_send & !3 } else { max_send };
        let len = rest.min(max);
        let last = len == rest;
        let pdu = DataOutPdu {
            flags: if last { FINAL } else { 0 },
            data_segment_length: U24::new(len),
            lun: U64::new(data.lun),
            initiator_task_tag: U32::new(Task::tag(data.task)),
            target_transfer_tag: U32::new(data.tag),
            exp_stat_sn: U32::new(exp_stat_sn),
            data_sn: U32::new(data.data_sn),
            buffer_offset: U32::new(data.at),
            ..DataOutPdu::default()
        };
        let from = task.request.write.slice(data.at, len);
        task.batches = task.batches.saturating_add(1);
        if data.at <= task.taken {
            task.taken = task.taken.max(data.at.saturating_add(len));
        }
        if last && data.tag != TAG_NONE {
            task.solicited = task.solicited.saturating_sub(1);
        }
        let rest = (!last).then_some(DataOut {
            at: data.at.saturating_add(len),
            data_sn: data.data_sn.wrapping_add(1),
            ..data
        });
        Some((pdu, from, rest))
    }

    /// How much of this much data-out is unsolicited.
    pub(crate) fn unsolicited_data(&self, write: u32) -> UnsolicitedData {
        let link = &self.link;
        let burst = write.min(link.first_burst);
        let immediate = if link.immediate_data { burst.min(link.max_send & !3) } else { 0 };
        UnsolicitedData { immediate, unsolicited: if link.initial_r2t { immediate } else { burst } }
    }

    /// Numbers a command, with its header in `segments`. Returns its immediate data, which is borrowed; the
    /// Data-Out that follows is queued.
    pub(crate) fn command(&mut self, id: TaskId) -> Option<Places> {
        let (cmd_sn, exp_stat_sn) = (self.cmd_sn, self.exp_stat_sn);
        let write = self.tasks.get(id)?.request.write.len();
        let unsolicited_data = self.unsolicited_data(write);
        let task = self.tasks.get(id)?;
        let read = task.request.read.len();
        task.sent = true;
        task.cmd_sn = cmd_sn;
        task.taken = unsolicited_data.immediate;
        if unsolicited_data.immediate > 0 {
            task.batches = task.batches.saturating_add(1);
        }
        self.cmd_sn = cmd_sn.wrapping_add(1);
        let request = &task.request;
        let cdb = *request.cdb.basic();
        let segments = Ahs {
            cdb: (request.cdb.as_bytes().len() > cdb.len()).then_some(request.cdb),
            bidirectional_read_length: (read > 0 && write > 0).then_some(read),
        };
        self.segments.clear();
        self.segments.resize(BHS_BYTES, 0);
        segments.encode(&mut self.segments);
        let words = self.segments.len().saturating_sub(BHS_BYTES) / 4;
        let last = if unsolicited_data.is_last() { FINAL } else { 0 };
        let pdu = ScsiCommand {
            flags: flags(request.attribute, read, write) | last,
            total_ahs_length: u8::try_from(words).unwrap_or(0),
            data_segment_length: U24::new(unsolicited_data.immediate),
            lun: U64::new(request.lun),
            initiator_task_tag: U32::new(Task::tag(id)),
            expected_data_transfer_length: U32::new(if write > 0 { write } else { read }),
            cmd_sn: U32::new(cmd_sn),
            exp_stat_sn: U32::new(exp_stat_sn),
            cdb,
            ..ScsiCommand::default()
        };
        if let Some(place) = self.segments.get_mut(..BHS_BYTES) {
            place.copy_from_slice(pdu.as_bytes());
        }
        let immediate = request.write.slice(0, unsolicited_data.immediate);
        if !unsolicited_data.is_last() {
            let (at, end, lun) = (unsolicited_data.immediate, unsolicited_data.unsolicited, request.lun);
            self.data.push_back(DataOut { task: id, tag: TAG_NONE, lun, at, end, data_sn: 0 });
        }
        Some(immediate)
    }
}

fn flags(attribute: Attribute, read: u32, write: u32) -> u8 {
    let attribute = match attribute {
        Attribute::Simple => ScsiCommand::SIMPLE,
        Attribute::Ordered => ScsiCommand::ORDERED,
        Attribute::HeadOfQueue => ScsiCommand::HEAD_OF_QUEUE,
        Attribute::Aca => ScsiCommand::ACA,
        Attribute::Unknown(value) => value & ScsiCommand::ATTRIBUTE_MASK,
    };
    let read = if read > 0 { ScsiCommand::READ } else { 0 };
    let write = if write > 0 { ScsiCommand::WRITE } else { 0 };
    attribute | read | write
}
