//! What goes out: requests that are not commands first, then data, then commands as far as the window is open.

use super::{Initiator, Phase, Task};
use crate::iscsi::frame::{PDU_BYTES, PDU_SEGMENTS, push_header, push_payload};
use crate::stream::Transmit;
use crate::verbs::{Attribute, TaskId};
use wire::iscsi::{Ahs, BHS_BYTES, DIGEST_BYTES, DataOut as DataOutPdu, FINAL, ScsiCommand, TAG_NONE, U24};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

/// Where ExpStatSN is in every PDU of an initiator.
const EXP_STAT_SN: usize = 28;

/// A request that is not a command.
#[derive(Debug)]
pub(super) struct Control {
    header: [u8; BHS_BYTES],
    /// Data with padding and digest.
    data: Vec<u8>,
    /// No digest: a PDU of the login phase.
    plain: bool,
}

/// A sequence of Data-Out.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataOut {
    pub task: TaskId,
    /// Target transfer tag: of the R2T, or none when unsolicited.
    pub tag: u32,
    pub lun: u64,
    /// The next byte.
    pub at: u32,
    pub end: u32,
    pub data_sn: u32,
}

impl Initiator {
    /// Queues a request that is not a command; its length and ExpStatSN are filled in here and when it leaves.
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

    pub(super) fn send(&mut self, batch: &mut Transmit) {
        while let Some(control) = self.control.front() {
            let bytes = PDU_BYTES.saturating_add(control.data.len());
            if !batch.has_room(bytes, PDU_SEGMENTS) {
                return;
            }
            let Some(control) = self.control.pop_front() else { return };
            self.send_control(control, batch);
        }
        loop {
            if !batch.has_room(PDU_BYTES, PDU_SEGMENTS) {
                return;
            }
            if let Some(data) = self.data.front().copied() {
                match self.send_data(data, batch) {
                    Some(rest) => {
                        if let Some(front) = self.data.front_mut() {
                            *front = rest;
                        }
                    }
                    None => {
                        self.data.pop_front();
                    }
                }
            } else if self.window_open() {
                let Some(id) = self.commands.pop_front() else { return };
                self.send_command(id, batch);
            } else {
                return;
            }
        }
    }

    fn send_control(&mut self, mut control: Control, batch: &mut Transmit) {
        let number = self.exp_stat_sn.to_be_bytes();
        for (place, byte) in control.header.iter_mut().skip(EXP_STAT_SN).zip(number) {
            *place = byte;
        }
        let digest = (self.link.header_digest && !control.plain).then_some(self.config.crc32c);
        push_header(&control.header, digest, batch);
        batch.push_bytes(&control.data);
    }

    /// One Data-Out. Returns what is left of the sequence.
    fn send_data(&mut self, data: DataOut, batch: &mut Transmit) -> Option<DataOut> {
        let link = self.link;
        let exp_stat_sn = self.exp_stat_sn;
        let task = self.tasks.get(data.task).filter(|task| task.ended.is_none())?;
        let rest = data.end.saturating_sub(data.at);
        // All but the last of a sequence are whole words, so that padding stays at its end.
        let max = if rest > link.max_send { link.max_send & !3 } else { link.max_send };
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
        task.lent = task.lent.saturating_add(1);
        if last && data.tag != TAG_NONE {
            task.solicited = task.solicited.saturating_sub(1);
        }
        push_header(pdu.as_bytes(), link.header_digest.then_some(self.config.crc32c), batch);
        push_payload(from, len, link.data_digest, batch);
        batch.done.push(data.task);
        (!last).then_some(DataOut {
            at: data.at.saturating_add(len),
            data_sn: data.data_sn.wrapping_add(1),
            ..data
        })
    }

    /// A command, with its immediate data; unsolicited data follows it.
    fn send_command(&mut self, id: TaskId, batch: &mut Transmit) {
        let link = self.link;
        let (cmd_sn, exp_stat_sn) = (self.cmd_sn, self.exp_stat_sn);
        let Some(task) = self.tasks.get(id) else { return };
        let (read, write) = (task.request.read.len(), task.request.write.len());
        let unsolicited = write.min(link.first_burst);
        let immediate = if link.immediate_data { unsolicited.min(link.max_send & !3) } else { 0 };
        let last = link.initial_r2t || immediate >= unsolicited;
        task.sent = true;
        task.cmd_sn = cmd_sn;
        if immediate > 0 {
            task.lent = task.lent.saturating_add(1);
            batch.done.push(id);
        }
        self.cmd_sn = cmd_sn.wrapping_add(1);
        let request = &task.request;
        let mut cdb = [0; 16];
        for (place, byte) in cdb.iter_mut().zip(request.cdb.as_bytes()) {
            *place = *byte;
        }
        let segments = Ahs {
            cdb: (request.cdb.as_bytes().len() > cdb.len()).then_some(request.cdb),
            bidirectional_read_length: (read > 0 && write > 0).then_some(read),
        };
        let mut header = std::mem::take(&mut self.segments);
        header.resize(BHS_BYTES, 0);
        segments.encode(&mut header);
        let words = header.len().saturating_sub(BHS_BYTES) / 4;
        let pdu = ScsiCommand {
            flags: flags(request.attribute, read, write) | if last { FINAL } else { 0 },
            total_ahs_length: u8::try_from(words).unwrap_or(0),
            data_segment_length: U24::new(immediate),
            lun: U64::new(request.lun),
            initiator_task_tag: U32::new(Task::tag(id)),
            expected_data_transfer_length: U32::new(if write > 0 { write } else { read }),
            cmd_sn: U32::new(cmd_sn),
            exp_stat_sn: U32::new(exp_stat_sn),
            cdb,
            ..ScsiCommand::default()
        };
        for (place, byte) in header.iter_mut().zip(pdu.as_bytes()) {
            *place = *byte;
        }
        push_header(&header, link.header_digest.then_some(self.config.crc32c), batch);
        header.clear();
        self.segments = header;
        if immediate > 0 {
            push_payload(request.write.slice(0, immediate), immediate, link.data_digest, batch);
        }
        if !last {
            let lun = request.lun;
            self.data.push_back(DataOut {
                task: id,
                tag: TAG_NONE,
                lun,
                at: immediate,
                end: unsolicited,
                data_sn: 0,
            });
        }
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

/// A command with all its segments fits where other PDUs do.
const _: () = assert!(PDU_BYTES >= BHS_BYTES + 4 + 48 + 8 + 2 * DIGEST_BYTES + 3);
