//! Operations as SCSI commands (SBC-4), and SCSI's answers in the store's terms.

use proto::iscsi::initiator::Request;
use proto::services::Attribute;
use scsi::storage::{Found, StoreError};
use wire::scsi::capacity::{LbaStatus, LbaStatusHeader, UNMAP_LIST_BYTES, provisioning};
use wire::scsi::command::{
    CompareAndWrite, GetLbaStatus, OrWrite16, Read16, SynchronizeCache16, Unmap, Verify16, Write16,
    WriteAtomic16, WriteSame16,
};
use wire::scsi::status::{BUSY, CHECK_CONDITION, RESERVATION_CONFLICT, TASK_ABORTED, TASK_SET_FULL};
use wire::scsi::{Command, code};
use wire::{Cdb, Places, Sense, SenseKey};

/// The useful bytes of the answer to GET LBA STATUS: the header and one descriptor.
pub(super) const LBA_STATUS_BYTES: u32 = (LbaStatusHeader::BYTES + LbaStatus::BYTES) as u32;
/// Bytes of UNMAP's parameter list with one descriptor.
pub(super) const UNMAP_BYTES: u32 = UNMAP_LIST_BYTES as u32;
/// BYTCHK 01b of VERIFY: compare with the data-out.
const COMPARE: u8 = 1;

/// Builds the command that transfers this many blocks at an LBA, with FUA if supported and requested.
pub(super) type Transfer = fn(lba: u64, blocks: u32, fua: bool) -> Cdb;

pub(super) fn read(lba: u64, blocks: u32, _: bool) -> Cdb {
    Read16::new(lba, blocks).to_cdb()
}

pub(super) fn write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    Write16 { fua, ..Write16::new(lba, blocks) }.to_cdb()
}

/// For blocks within the unit's atomic write limit; the command counts them in 16 bits.
pub(super) fn write_atomic(lba: u64, blocks: u32, fua: bool) -> Cdb {
    WriteAtomic16 { fua, ..WriteAtomic16::new(lba, blocks as u16) }.to_cdb()
}

pub(super) fn or_write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    OrWrite16 { fua, ..OrWrite16::new(lba, blocks) }.to_cdb()
}

pub(super) fn compare(lba: u64, blocks: u32, _: bool) -> Cdb {
    Verify16 { byte_check: COMPARE, ..Verify16::new(lba, blocks) }.to_cdb()
}

/// For blocks within the unit's compare and write limit; the command counts them in 8 bits.
pub(super) fn compare_and_write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    CompareAndWrite { fua, ..CompareAndWrite::new(lba, blocks as u8) }.to_cdb()
}

pub(super) fn write_same(lba: u64, blocks: u32, unmap: bool) -> Cdb {
    WriteSame16 { unmap, ..WriteSame16::new(lba, blocks) }.to_cdb()
}

pub(super) fn synchronize_cache() -> Cdb {
    SynchronizeCache16::default().to_cdb()
}

pub(super) fn lba_status(lba: u64) -> Cdb {
    GetLbaStatus::new(lba, LBA_STATUS_BYTES).to_cdb()
}

/// With a parameter list of one descriptor.
pub(super) fn unmap() -> Cdb {
    Unmap::new(UNMAP_BYTES as u16).to_cdb()
}

/// A simple command.
pub(super) fn request(lun: u64, cdb: Cdb, read: Places, write: Places) -> Request {
    Request { lun, attribute: Attribute::Simple, cdb, read, write }
}

/// The answer to GET LBA STATUS for a byte of the medium, in the store's terms.
pub(super) fn extent(data: &[u8], offset: u64, block: u64) -> Result<Found, StoreError> {
    let failed = StoreError::ReadFailed { at: offset };
    let descriptor = data.get(LbaStatusHeader::BYTES..).filter(|rest| rest.len() >= LbaStatus::BYTES);
    let LbaStatus { lba, blocks, status } = LbaStatus::read(descriptor.ok_or(failed)?);
    let mapped = status == provisioning::MAPPED;
    let end = lba.checked_add(blocks.into()).and_then(|end| end.checked_mul(block)).ok_or(failed)?;
    match end.checked_sub(offset) {
        Some(len @ 1..) if lba <= offset / block => Ok(Found::Extent { mapped, len }),
        Some(_) | None => Err(failed),
    }
}

/// Both places, one after the other; `None` when there are too many pieces. Halves of one buffer that was
/// split within a piece need not have more pieces than it had: the split is undone. Pieces that are merely
/// adjacent are separate buffers.
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

/// How a command's failure is reported; `None`: it was none. The only table of these. `at`: where on the
/// medium the command began.
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
        (SenseKey::IllegalRequest, code::LBA_OUT_OF_RANGE) => StoreError::OutOfRange,
        (SenseKey::IllegalRequest, code::LOGICAL_UNIT_NOT_SUPPORTED) => StoreError::Unavailable,
        (SenseKey::IllegalRequest, _) => StoreError::Unsupported,
        (SenseKey::DataProtect, code::SPACE_ALLOCATION_FAILED) => StoreError::NoSpace,
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

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{BufferId, SenseData, Span};

    fn sense(key: SenseKey, code: u16, information: Option<u64>) -> Sense {
        Sense::fixed(&SenseData { information, ..SenseData::new(key, code) })
    }

    fn store_error(sense: &Sense, is_write: bool) -> Option<StoreError> {
        failure(CHECK_CONDITION, Some(sense), is_write, 4096, 512)
    }

    #[test]
    fn every_answer_maps_to_its_error() {
        let medium = sense(SenseKey::MediumError, code::UNRECOVERED_READ_ERROR, Some(9));
        assert_eq!(store_error(&medium, false), Some(StoreError::ReadFailed { at: 9 * 512 }));
        assert_eq!(store_error(&medium, true), Some(StoreError::WriteFailed));
        let unplaced = sense(SenseKey::MediumError, code::UNRECOVERED_READ_ERROR, None);
        assert_eq!(store_error(&unplaced, false), Some(StoreError::ReadFailed { at: 4096 }));
        let out = sense(SenseKey::IllegalRequest, code::LBA_OUT_OF_RANGE, None);
        assert_eq!(store_error(&out, true), Some(StoreError::OutOfRange));
        let full = sense(SenseKey::DataProtect, code::SPACE_ALLOCATION_FAILED, None);
        assert_eq!(store_error(&full, true), Some(StoreError::NoSpace));
        let protected = sense(SenseKey::DataProtect, code::WRITE_PROTECTED, None);
        assert_eq!(store_error(&protected, true), Some(StoreError::ReadOnly));
        let differs = sense(SenseKey::Miscompare, code::MISCOMPARE_DURING_VERIFY, Some(700));
        assert_eq!(store_error(&differs, false), Some(StoreError::Miscompare { at: 700 }));
        assert_eq!(store_error(&sense(SenseKey::RecoveredError, 0x1700, None), false), None);
        assert_eq!(failure(RESERVATION_CONFLICT, None, true, 0, 512), Some(StoreError::Reserved));
        assert_eq!(failure(CHECK_CONDITION, None, true, 0, 512), Some(StoreError::WriteFailed));
    }

    #[test]
    fn a_deferred_error_is_no_success() {
        assert_eq!(store_error(&Sense::from_bytes(&[0x71, 0, 3]), true), Some(StoreError::WriteFailed));
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
}
