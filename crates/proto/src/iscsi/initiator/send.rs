//! What is sent over a byte stream.

use super::Initiator;
use super::queue::{Control, DataOut};
use crate::iscsi::frame::{PDU_BYTES, PDU_SEGMENTS, push_header, push_payload};
use crate::services::TaskId;
use crate::stream::Transmit;
use wire::iscsi::{BHS_BYTES, DIGEST_BYTES};
use zerocopy::IntoBytes;

impl Initiator {
    pub(super) fn send(&mut self, batch: &mut Transmit) {
        while let Some(control) = self.layer.control.front() {
            let bytes = PDU_BYTES.saturating_add(control.data.len());
            if !batch.has_room(bytes, PDU_SEGMENTS) {
                return;
            }
            let Some(control) = self.layer.take_control() else { return };
            self.send_control(&control, batch);
        }
        loop {
            if !batch.has_room(PDU_BYTES, PDU_SEGMENTS) {
                return;
            }
            if let Some(data) = self.layer.data.front().copied() {
                match self.send_data(data, batch) {
                    Some(rest) => {
                        if let Some(front) = self.layer.data.front_mut() {
                            *front = rest;
                        }
                    }
                    None => {
                        self.layer.data.pop_front();
                    }
                }
            } else if self.layer.window_open() {
                let Some(id) = self.layer.commands.pop_front() else { return };
                self.send_command(id, batch);
            } else {
                return;
            }
        }
    }

    fn send_control(&mut self, control: &Control, batch: &mut Transmit) {
        let digest = if control.plain { None } else { self.header_digest() };
        push_header(&control.header, digest, batch);
        batch.push_bytes(&control.data);
    }

    /// One Data-Out. Returns what is left of the sequence.
    fn send_data(&mut self, data: DataOut, batch: &mut Transmit) -> Option<DataOut> {
        let (pdu, from, rest) = self.layer.data_out(data)?;
        push_header(pdu.as_bytes(), self.header_digest(), batch);
        push_payload(from, from.len(), self.layer.link.data_digest, batch);
        batch.done.push(data.task);
        rest
    }

    /// A command, with its immediate data; unsolicited data follows it.
    fn send_command(&mut self, id: TaskId, batch: &mut Transmit) {
        let Some(immediate) = self.layer.command(id) else { return };
        push_header(&self.layer.segments, self.header_digest(), batch);
        if !immediate.is_empty() {
            push_payload(immediate, immediate.len(), self.layer.link.data_digest, batch);
            batch.done.push(id);
        }
    }

    fn header_digest(&self) -> Option<fn(&[u8]) -> u32> {
        self.layer.link.header_digest.then_some(self.layer.config.crc32c)
    }
}

/// A command with all its segments is no longer than other PDUs may be.
const _: () = assert!(PDU_BYTES >= BHS_BYTES + 4 + 48 + 8 + 2 * DIGEST_BYTES + 3);
