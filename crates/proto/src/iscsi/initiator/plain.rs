//! The common ends of a command: a Data-In with all its data and GOOD status, or a GOOD response without
//! data. These are handled where they are received, without a state between header and data and without an
//! event. Everything else is left to `receive` and `answer`, including violations of the standard.

use super::layer::{Layer, Phase};
use super::{Initiator, Receiving};
use crate::services::TaskId;
use crate::time::Time;
use wire::Places;
use wire::iscsi::{BHS_BYTES, DataIn, FINAL, Opcode, Pdu, ScsiResponse, pad};
use wire::scsi::status::GOOD;

/// A command that has ended with GOOD status, and without a residual.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Which.
    pub task: TaskId,
    /// Where the bytes after the header go.
    pub place: Places,
    /// Padding to discard after these.
    pub padding: u32,
    /// Bytes of data-in received, including these.
    pub read_bytes: u32,
    /// As in [`super::Completion::write_bytes`].
    pub write_bytes: u32,
}

impl Initiator {
    /// Handles the header of a PDU with `behind` bytes after it, if it ends a command in this way and all its
    /// data is here. The caller moves the data to its place. [`super::StreamMachine::poll`] has nothing to
    /// report.
    pub fn ended(&mut self, now: Time, header: &[u8; BHS_BYTES], behind: u32) -> Option<Ended> {
        let layer = &mut self.layer;
        let link = &layer.link;
        let is_plain =
            matches!(self.receiving, Receiving::Header) && !link.header_digest && !link.data_digest;
        if !is_plain || !matches!(layer.phase, Phase::Full) || !layer.events.is_empty() {
            return None;
        }
        let ended = match Opcode(*header.first()?) {
            Opcode::DATA_IN => layer.data_in_ends(DataIn::view(header)?, behind),
            Opcode::SCSI_RESPONSE => layer.response_ends(ScsiResponse::view(header)?),
            _ => None,
        }?;
        layer.numbers(header).ok()?;
        layer.note_peer_activity(now);
        layer.tasks.release(ended.task);
        Some(ended)
    }
}

impl Layer {
    fn data_in_ends(&mut self, pdu: &DataIn, behind: u32) -> Option<Ended> {
        const ENDS: u8 = FINAL | DataIn::STATUS;
        let len = pdu.data_segment_length.get();
        let is_good = pdu.flags == ENDS && pdu.status == GOOD && pdu.total_ahs_length == 0;
        let padding = pad(len);
        if !is_good
            || len > self.config.plan.offers.max_recv
            || behind < len.saturating_add(padding)
            || pdu.stat_sn.get() != self.exp_stat_sn
        {
            return None;
        }
        let (task, state) = self.tasks.find(pdu.initiator_task_tag.get())?;
        let is_whole = state.received == 0 && pdu.buffer_offset.get() == 0 && state.request.read.len() == len;
        if !is_whole || pdu.data_sn.get() != state.input_sn || state.batches > 0 {
            return None;
        }
        let (place, write_bytes) = (state.request.read, state.taken);
        Some(Ended { task, place, padding, read_bytes: len, write_bytes })
    }

    fn response_ends(&mut self, pdu: &ScsiResponse) -> Option<Ended> {
        let is_good = pdu.flags == FINAL && pdu.response == ScsiResponse::COMPLETED && pdu.status == GOOD;
        let is_bare = pdu.total_ahs_length == 0 && pdu.data_segment_length.get() == 0;
        if !is_good || !is_bare || pdu.stat_sn.get() != self.exp_stat_sn {
            return None;
        }
        let (task, state) = self.tasks.find(pdu.initiator_task_tag.get())?;
        if pdu.exp_data_sn.get() > state.input_sn || state.batches > 0 {
            return None;
        }
        let (read_bytes, write_bytes) = (state.received, state.taken);
        Some(Ended { task, place: Places::EMPTY, padding: 0, read_bytes, write_bytes })
    }
}
