//! GET LBA STATUS (SBC-3 section 5.4): blocks reported as not allocated read as zeros.

use super::others::Ready;
use super::{Initiator, Kind};
use crate::register::Range;
use proto::time::Time;
use wire::scsi::capacity::provisioning::{DEALLOCATED, MAPPED};
use wire::scsi::capacity::{LbaStatus, LbaStatusHeader};
use wire::scsi::command::GetLbaStatus;

/// Most descriptors requested.
const DESCRIPTORS_MAX: u32 = 32;

impl Initiator {
    /// Asks which blocks are allocated in this range, which extends to the end of the unit.
    pub(super) fn ask_allocation(&mut self, now: Time, range: Range) {
        let descriptors = self.net.borrow_mut().rng.u32(1..=DESCRIPTORS_MAX);
        let bytes = LbaStatusHeader::BYTES as u32 + descriptors * LbaStatus::BYTES as u32;
        let Some(place) = self.take(bytes) else { return };
        self.registers.borrow_mut().begin_read(now);
        let (kind, cdb) = (Kind::Allocation(range), GetLbaStatus::new(range.first.into(), bytes).into());
        self.send(now, Ready { what: "asks what is allocated of", range, kind, compares: None, cdb, place });
    }
}

/// The unallocated parts of a range, according to this much of an answer.
///
/// # Errors
/// When it does not list the blocks of the range, one after the other.
pub(super) fn holes(range: Range, answer: &[u8], moved: usize) -> Result<Vec<Range>, String> {
    let wrong = |what: &str| format!("GET LBA STATUS of {range:?} ends with {what}: {answer:02x?}");
    let answer = answer.get(..moved).ok_or_else(|| wrong("too much"))?;
    let body = answer.get(LbaStatusHeader::BYTES..).ok_or_else(|| wrong("no header"))?;
    let header = LbaStatusHeader::read(answer);
    let (descriptors, rest) = body.as_chunks::<{ LbaStatus::BYTES }>();
    if !rest.is_empty() || descriptors.is_empty() || header.following_bytes as usize + 4 != answer.len() {
        return Err(wrong("another length than it says"));
    }
    let (mut next, end) = (u64::from(range.first), u64::from(range.first + range.blocks));
    let mut holes = Vec::new();
    for descriptor in descriptors {
        let LbaStatus { lba, blocks, status } = LbaStatus::read(descriptor);
        if lba != next || blocks == 0 || lba + u64::from(blocks) > end {
            return Err(wrong("blocks that do not follow each other"));
        }
        next += u64::from(blocks);
        match status {
            MAPPED => {}
            DEALLOCATED => holes.push(Range { first: lba as u32, blocks, ..range }),
            _ => return Err(wrong("an unknown status")),
        }
    }
    Ok(holes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_leaves_blocks_out_or_goes_beyond_the_range_is_found() {
        let range = Range { unit: 0, first: 2, blocks: 10 };
        let answer = |descriptors: &[(u64, u32, u8)]| {
            let following_bytes = 4 + 16 * descriptors.len() as u32;
            let mut bytes = LbaStatusHeader { following_bytes }.to_bytes().to_vec();
            for (lba, blocks, status) in descriptors.iter().copied() {
                bytes.extend(LbaStatus { lba, blocks, status }.to_bytes());
            }
            holes(range, &bytes, bytes.len())
        };
        let hole = |first, blocks| Range { first, blocks, ..range };
        assert_eq!(answer(&[(2, 3, 1), (5, 1, 0), (6, 6, 1)]), Ok(vec![hole(2, 3), hole(6, 6)]));
        for wrong in
            [&[(3, 1, 1)][..], &[(2, 1, 1), (4, 1, 0)], &[(2, 11, 0)], &[(2, 0, 0)], &[(2, 1, 7)], &[]]
        {
            assert!(answer(wrong).is_err(), "{wrong:?}");
        }
    }
}
