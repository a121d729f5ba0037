//! A unit's own answers: a disk of 512-byte blocks. Everything except its size is fixed.

use super::BLOCK_BYTES;
use wire::scsi::capacity::{Capacity10, Capacity16};
use wire::scsi::command::{Inquiry, ModeSense6, ModeSense10, ReadCapacity10, ReadCapacity16, ReportLuns};
use wire::scsi::inquiry::{FORMAT, SHORT_BYTES, SPC_4, StandardData, padded};
use wire::scsi::mode::{Caching, Header6, Header10};
use wire::scsi::vpd::{self, BlockLimits, Characteristics, Provisioning, SOLID_STATE, page};
use wire::scsi::{Cdb, Command, lun};

/// Bytes of the longest answer: the block limits page.
const ANSWER_BYTES: usize = 64;

/// The answer to a command with which a unit is opened.
pub(super) struct Answer {
    data: [u8; ANSWER_BYTES],
    len: usize,
}

impl Answer {
    fn of(parts: &[&[u8]]) -> Answer {
        let mut answer = Answer { data: [0; ANSWER_BYTES], len: 0 };
        for part in parts {
            answer.data[answer.len..][..part.len()].copy_from_slice(part);
            answer.len += part.len();
        }
        answer
    }

    /// Its first bytes, at most this many.
    pub(super) fn data(&self, max: usize) -> &[u8] {
        &self.data[..self.len.min(max)]
    }
}

/// The answer and how much of it the CDB allows, for a unit of this many blocks; `None`: any other command.
pub(super) fn answer(cdb: &[u8; 16], blocks: u64) -> Option<(Answer, usize)> {
    let cdb = &Cdb::from_bytes(cdb)?;
    let (answer, allocation) = if let Some(asked) = Inquiry::from_cdb(cdb) {
        (inquiry(asked), asked.allocation.into())
    } else if let Some(ModeSense6 { allocation, .. }) = ModeSense6::from_cdb(cdb) {
        let header = Header6 { following_bytes: 23, dpo_and_fua: true, ..Header6::default() };
        (Answer::of(&[&header.to_bytes(), &CACHING.to_page()]), allocation.into())
    } else if let Some(ModeSense10 { allocation, .. }) = ModeSense10::from_cdb(cdb) {
        let header = Header10 { following_bytes: 26, dpo_and_fua: true, ..Header10::default() };
        (Answer::of(&[&header.to_bytes(), &CACHING.to_page()]), allocation.into())
    } else if ReadCapacity10::from_cdb(cdb).is_some() {
        (Answer::of(&[&Capacity10::new(blocks, BLOCK_BYTES).to_bytes()]), ANSWER_BYTES)
    } else if let Some(ReadCapacity16 { allocation }) = ReadCapacity16::from_cdb(cdb) {
        let thin = Capacity16 {
            physical_exponent: 3,
            thin: true,
            zeros: true,
            ..Capacity16::new(blocks, BLOCK_BYTES)
        };
        (Answer::of(&[&thin.to_bytes()]), allocation as usize)
    } else if let Some(ReportLuns { allocation, .. }) = ReportLuns::from_cdb(cdb) {
        // Every LUN exists; LUN 0 is reported.
        (Answer::of(&[&lun::list_header(1), &lun::of_number(0).to_be_bytes()]), allocation as usize)
    } else {
        return None;
    };
    Some((answer, allocation))
}

const CACHING: Caching = Caching { write_cache: true, no_read_cache: false, no_read_ahead: false };

fn inquiry(asked: Inquiry) -> Answer {
    if !asked.vital {
        let standard = StandardData {
            version: SPC_4,
            format: FORMAT,
            command_queuing: true,
            vendor: padded("LUNETTE"),
            product: padded("Ceiling"),
            revision: padded("0"),
            ..StandardData::default()
        };
        let (data, len) = standard.cut(SHORT_BYTES);
        return Answer::of(&[&data[..len]]);
    }
    match asked.page {
        page::SUPPORTED => listed(
            page::SUPPORTED,
            &[
                page::SUPPORTED,
                page::SERIAL_NUMBER,
                page::BLOCK_LIMITS,
                page::CHARACTERISTICS,
                page::PROVISIONING,
            ],
        ),
        page::SERIAL_NUMBER => listed(page::SERIAL_NUMBER, b"CEILING"),
        page::BLOCK_LIMITS => {
            // UNMAP of any length, in up to 256 descriptors.
            let limits = BlockLimits {
                unmap_blocks_max: u32::MAX,
                unmap_descriptors_max: 256,
                ..BlockLimits::default()
            };
            Answer::of(&[&limits.to_page()])
        }
        page::CHARACTERISTICS => {
            let page = Characteristics { rotation_rate: SOLID_STATE, ..Characteristics::default() };
            Answer::of(&[&page.to_page()])
        }
        page::PROVISIONING => {
            let page = Provisioning { unmap: true, zeros: 1, kind: vpd::THIN, ..Provisioning::default() };
            Answer::of(&[&page.to_page()])
        }
        other => listed(other, &[]),
    }
}

fn listed(code: u8, body: &[u8]) -> Answer {
    Answer::of(&[&vpd::header(0, code, body.len()), body])
}
