//! Commands that are answered on arrival: they need no slot, and nothing of them is queued. A command that
//! cannot be answered like this is left where it is, and takes the usual path ([`StreamMachine::header`]).
//!
//! [`StreamMachine::header`]: crate::stream::StreamMachine::header

use super::Target;
use super::layer::Incoming;
use super::queue::Residual;
use super::send::data_in;
use super::validate::{attribute, lengths};
use crate::iscsi::frame::{PDU_BYTES, PDU_SEGMENTS, push_end};
use crate::services::Attribute;
use crate::stream::Transmit;
use crate::time::Time;
use wire::iscsi::{BHS_BYTES, BasicHeader, FINAL, Opcode, Pdu, ScsiCommand};
use wire::scsi::status::GOOD;
use wire::{Cdb, Span};
use zerocopy::IntoBytes;

/// A simple command that is complete: what it writes follows its header.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    /// The eight LUN bytes.
    pub lun: u64,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Bytes that the initiator is ready to receive.
    pub read_bytes: u32,
    /// Bytes that it sends.
    pub write_bytes: u32,
    initiator_task_tag: u32,
}

impl Target {
    /// Bytes of a plain command's header.
    #[expect(clippy::as_conversions, reason = "48")]
    pub const HEADER_BYTES: u32 = BHS_BYTES as u32;

    /// Whether commands may be answered on arrival: nothing before them is waiting, and there are no digests.
    pub fn answers_at_once(&self) -> bool {
        let layer = &self.layer;
        layer.is_full_feature()
            && !(layer.paused || layer.link.header_digest || layer.link.data_digest)
            && matches!(layer.incoming, Incoming::Nothing)
            && self.segments == 0
            && layer.up.is_empty()
            && layer.out.is_empty()
    }

    /// The command with this header, if it may be answered on arrival.
    #[inline]
    pub fn plain(&self, header: &[u8]) -> Option<Plain> {
        let basic = BasicHeader::view(header)?;
        if basic.opcode() != Opcode::SCSI_COMMAND || basic.total_ahs_length != 0 {
            return None;
        }
        let link = &self.layer.link;
        let pdu = ScsiCommand::view(header)?;
        let shape = || lengths(pdu, None).map(|(read_bytes, write_bytes)| ((), read_bytes, write_bytes));
        let ((), examined) = self.layer.examine(pdu, shape).ok()??;
        let is_whole = pdu.last() && !examined.unexpected && examined.unsolicited_end == examined.write_bytes;
        let is_short = examined.write_bytes <= link.max_recv
            && examined.read_bytes <= link.data_in_max().min(link.max_burst);
        let is_simple = !examined.immediate && attribute(pdu.flags) == Attribute::Simple;
        if !(is_whole && is_short && is_simple) {
            return None;
        }
        Some(Plain {
            lun: pdu.lun.get(),
            cdb: Cdb::from_bytes(&pdu.cdb)?,
            read_bytes: examined.read_bytes,
            write_bytes: examined.write_bytes,
            initiator_task_tag: pdu.initiator_task_tag.get(),
        })
    }

    /// Whether one more answer fits.
    pub fn has_room(batch: &Transmit) -> bool {
        batch.has_room(PDU_BYTES, PDU_SEGMENTS)
    }

    /// Answers a READ with all that it reads, and GOOD.
    #[inline]
    pub fn answer_read(&mut self, now: Time, plain: &Plain, from: Span, batch: &mut Transmit) {
        self.take(now);
        let mut pdu = data_in(FINAL, plain.initiator_task_tag, 0, 0, plain.read_bytes);
        self.layer.end_with(&mut pdu, &Residual::NONE);
        self.layer.number_data_in(&mut pdu);
        batch.push_bytes(pdu.as_bytes());
        batch.push_payload(from);
        push_end(plain.read_bytes, false, batch);
    }

    /// Answers a WRITE, whose data was written in full, with GOOD.
    #[inline]
    pub fn answer_write(&mut self, now: Time, plain: &Plain, batch: &mut Transmit) {
        self.take(now);
        let pdu = self.layer.response_to(plain.initiator_task_tag, GOOD, &Residual::NONE);
        batch.push_bytes(pdu.as_bytes());
    }

    /// The command was received, and has ended.
    #[inline]
    fn take(&mut self, now: Time) {
        self.layer.note_peer_activity(now);
        self.layer.session.receive(false);
    }
}
