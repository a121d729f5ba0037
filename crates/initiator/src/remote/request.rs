//! Operations as SCSI commands (SBC-4), and SCSI's answers as a store's.

use proto::iscsi::initiator::Request;
use proto::verbs::Attribute;
use scsi::storage::{Found, StoreError};
use wire::{Cdb, Places, Sense, SenseKey};

/// Operation codes.
pub(super) mod opcode {
    pub(in crate::remote) const READ_16: u8 = 0x88;
    pub(in crate::remote) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(in crate::remote) const WRITE_16: u8 = 0x8a;
    pub(in crate::remote) const ORWRITE_16: u8 = 0x8b;
    pub(in crate::remote) const VERIFY_16: u8 = 0x8f;
    pub(in crate::remote) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(in crate::remote) const WRITE_SAME_16: u8 = 0x93;
    pub(in crate::remote) const WRITE_ATOMIC_16: u8 = 0x9c;
    pub(in crate::remote) const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub(in crate::remote) const UNMAP: u8 = 0x42;
}

/// FUA, in byte 1.
pub(super) const FUA: u8 = 0x08;
/// UNMAP of WRITE SAME, in byte 1.
pub(super) const UNMAP: u8 = 0x08;
/// BYTCHK 01b of VERIFY, in byte 1: compare with the data-out.
pub(super) const COMPARE: u8 = 0x02;
/// GET LBA STATUS, in byte 1.
pub(super) const GET_LBA_STATUS: u8 = 0x12;

/// Bytes of the answer to GET LBA STATUS that are of use: the header and one descriptor.
pub(super) const LBA_STATUS_BYTES: u32 = 24;
/// Bytes of UNMAP's parameter list with one descriptor.
pub(super) const UNMAP_BYTES: u32 = 24;

/// A command without data, whose CDB has a LBA in bytes 2 to 9 and a 32-bit count in bytes 10 to 13.
pub(super) fn long(opcode: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// A command with data.
pub(super) fn request(lun: u64, cdb: &[u8], read: Places, write: Places) -> Request {
    let cdb = Cdb::from_bytes(cdb).expect("CDBs of 10 and 16 bytes fit");
    Request { lun, attribute: Attribute::Simple, cdb, read, write }
}

/// UNMAP's CDB and its parameter list with one descriptor.
pub(super) fn unmap(lba: u64, blocks: u32) -> ([u8; 10], [u8; UNMAP_BYTES as usize]) {
    let mut cdb = [0; 10];
    (cdb[0], cdb[8]) = (opcode::UNMAP, UNMAP_BYTES as u8);
    let mut list = [0; UNMAP_BYTES as usize];
    (list[1], list[3]) = (UNMAP_BYTES as u8 - 2, UNMAP_BYTES as u8 - 8);
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    list[16..20].copy_from_slice(&blocks.to_be_bytes());
    (cdb, list)
}

/// The first descriptor of an answer to GET LBA STATUS: LBA, blocks and whether they are mapped.
fn lba_status(data: &[u8]) -> Option<(u64, u32, bool)> {
    let descriptor: &[u8; 16] = data.get(8..)?.first_chunk()?;
    let (lba, rest) = descriptor.split_first_chunk::<8>()?;
    let blocks = u32::from_be_bytes(*rest.first_chunk()?);
    Some((u64::from_be_bytes(*lba), blocks, rest.get(4)? & 0x0f == 0))
}

/// The answer to GET LBA STATUS for a byte of the medium, as a store has it.
pub(super) fn extent(data: &[u8], offset: u64, block: u64) -> Result<Found, StoreError> {
    let failed = StoreError::ReadFailed { at: offset };
    let (lba, blocks, mapped) = lba_status(data).ok_or(failed)?;
    let end = lba.checked_add(blocks.into()).and_then(|end| end.checked_mul(block)).ok_or(failed)?;
    match end.checked_sub(offset) {
        Some(len @ 1..) if lba <= offset / block => Ok(Found::Extent { mapped, len }),
        Some(_) | None => Err(failed),
    }
}

/// Both places, one after the other; `None` when there are too many pieces. Halves of one buffer that was cut within a
/// piece need not be more than it had: the cut is undone. Pieces that only lie side by side are buffers of their own.
pub(super) fn join(first: &Places, second: &Places) -> Option<Places> {
    let mut both = *first;
    let mut rest = second.iter();
    if first.iter().count() + second.iter().count() > Places::MAX {
        let (last, next) = (first.iter().last()?, rest.next()?);
        if last.buffer != next.buffer || last.offset + u64::from(last.len) != next.offset {
            return None;
        }
        both = first.slice(0, first.len() - last.len);
        both.push(wire::Span { len: last.len + next.len, ..last });
    }
    rest.all(|span| both.push(span)).then_some(both)
}

/// Status codes that are distinguished here (SAM-5 section 5.3).
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const RESERVATION_CONFLICT: u8 = 0x18;
const TASK_SET_FULL: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;

/// How a command's failure is reported; `None`: it was none. The one table of them. `at`: where on the medium the command
/// began.
pub(super) fn failure(
    status: u8,
    sense: Option<&Sense>,
    is_write: bool,
    at: u64,
    block_bytes: u32,
) -> Option<StoreError> {
    let medium = |at| if is_write { StoreError::WriteFailed } else { StoreError::ReadFailed { at } };
    let sense = match (status, sense) {
        (CHECK_CONDITION, Some(sense)) => sense,
        (RESERVATION_CONFLICT, _) => return Some(StoreError::Reserved),
        (BUSY | TASK_SET_FULL, _) => return Some(StoreError::Busy),
        (TASK_ABORTED, _) => return Some(StoreError::Cancelled),
        _ => return Some(medium(at)),
    };
    let Some(key) = sense.key() else { return Some(medium(at)) };
    let error = match (key, sense.code()) {
        (SenseKey::RecoveredError, _) => return None,
        (SenseKey::Miscompare, _) => {
            let at = sense.information().and_then(|at| u32::try_from(at).ok());
            StoreError::Miscompare { at: at.unwrap_or(0) }
        }
        (SenseKey::MediumError | SenseKey::HardwareError, _) => {
            let failed = sense.information().and_then(|lba| lba.checked_mul(u64::from(block_bytes)));
            medium(failed.filter(|failed| *failed >= at).unwrap_or(at))
        }
        // LOGICAL BLOCK ADDRESS OUT OF RANGE, LOGICAL UNIT NOT SUPPORTED.
        (SenseKey::IllegalRequest, 0x2100) => StoreError::OutOfRange,
        (SenseKey::IllegalRequest, 0x2500) => StoreError::Unavailable,
        (SenseKey::IllegalRequest, _) => StoreError::Unsupported,
        // SPACE ALLOCATION FAILED WRITE PROTECT.
        (SenseKey::DataProtect, 0x2707) => StoreError::NoSpace,
        (SenseKey::DataProtect, _) => StoreError::ReadOnly,
        (SenseKey::NotReady | SenseKey::UnitAttention, _) => StoreError::Unavailable,
        (SenseKey::AbortedCommand, _) => StoreError::Cancelled,
        (SenseKey::VolumeOverflow, _) => StoreError::OutOfRange,
        (SenseKey::NoSense | SenseKey::BlankCheck | SenseKey::CopyAborted | SenseKey::Completed, _) => {
            medium(at)
        }
    };
    Some(error)
}

/// Whether sense data are of a deferred error (SPC-4 section 4.5.5): some earlier write failed after it had been
/// acknowledged, and this command was not executed.
pub(super) fn is_deferred(sense: Option<&Sense>) -> bool {
    sense.is_some_and(|sense| matches!(sense.as_bytes().first().map(|byte| byte & 0x7f), Some(0x71 | 0x73)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{BufferId, SenseData, Span};

    fn sense(key: SenseKey, code: u16, information: Option<u64>) -> Sense {
        Sense::fixed(&SenseData { key, code, information, command_specific: None, specific: None })
    }

    fn told(sense: &Sense, is_write: bool) -> Option<StoreError> {
        failure(CHECK_CONDITION, Some(sense), is_write, 4096, 512)
    }

    #[test]
    fn every_answer_is_told_as_what_it_is() {
        let medium = sense(SenseKey::MediumError, 0x1100, Some(9));
        assert_eq!(told(&medium, false), Some(StoreError::ReadFailed { at: 9 * 512 }));
        assert_eq!(told(&medium, true), Some(StoreError::WriteFailed));
        let unplaced = sense(SenseKey::MediumError, 0x1100, None);
        assert_eq!(told(&unplaced, false), Some(StoreError::ReadFailed { at: 4096 }));
        let out = sense(SenseKey::IllegalRequest, 0x2100, None);
        assert_eq!(told(&out, true), Some(StoreError::OutOfRange));
        let full = sense(SenseKey::DataProtect, 0x2707, None);
        assert_eq!(told(&full, true), Some(StoreError::NoSpace));
        let protected = sense(SenseKey::DataProtect, 0x2700, None);
        assert_eq!(told(&protected, true), Some(StoreError::ReadOnly));
        let differs = sense(SenseKey::Miscompare, 0x1d00, Some(700));
        assert_eq!(told(&differs, false), Some(StoreError::Miscompare { at: 700 }));
        assert_eq!(told(&sense(SenseKey::RecoveredError, 0x1700, None), false), None);
        assert_eq!(failure(RESERVATION_CONFLICT, None, true, 0, 512), Some(StoreError::Reserved));
        assert_eq!(failure(CHECK_CONDITION, None, true, 0, 512), Some(StoreError::WriteFailed));
    }

    #[test]
    fn a_deferred_error_is_no_success() {
        assert!(is_deferred(Some(&Sense::from_bytes(&[0x71, 0, 3]))));
        assert!(!is_deferred(Some(&sense(SenseKey::MediumError, 0x0c00, None))) && !is_deferred(None));
        assert_eq!(told(&Sense::from_bytes(&[0x71, 0, 3]), true), Some(StoreError::WriteFailed));
    }

    #[test]
    fn halves_of_a_buffer_are_joined_and_neighbouring_buffers_are_not() {
        let places = |spans: &[(u64, u32)]| {
            let mut places = Places::EMPTY;
            let span = |(offset, len)| Span { buffer: BufferId(3), len, offset };
            assert!(spans.iter().all(|piece| places.push(span(*piece))));
            places
        };
        const LARGE: u32 = 65536;
        let side_by_side = places(&[(0, LARGE), (LARGE.into(), LARGE)]);
        let (first, second) = (side_by_side.slice(0, LARGE), side_by_side.slice(LARGE, LARGE));
        assert_eq!(join(&first, &second), Some(side_by_side));
        // The longest COMPARE AND WRITE of blocks of 512 bytes.
        let half = 255 * 512;
        let whole = places(&[(0, LARGE), (65536, LARGE), (131_072, LARGE), (196_608, 2 * half - 3 * LARGE)]);
        assert_eq!(join(&whole.slice(0, half), &whole.slice(half, half)), Some(whole));
        let apart = places(&[(1 << 20, 512), (1 << 21, 512)]);
        assert_eq!(join(&apart, &places(&[(0, 512), (4096, 512)])).map(|both| both.len()), Some(2048));
        assert_eq!(join(&whole, &apart), None);
    }

    #[test]
    fn commands_are_laid_out_as_the_standard_has_them() {
        let cdb = long(opcode::WRITE_16, FUA, 0x0102_0304_0506_0708, 0x090a_0b0c);
        assert_eq!(cdb, [0x8a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0]);
        let (cdb, list) = unmap(5, 6);
        assert_eq!(cdb, [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!(list, [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0]);
    }
}
