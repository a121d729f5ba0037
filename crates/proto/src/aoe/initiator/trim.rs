//! UNMAP (SBC-3 section 5.28) as DATA SET MANAGEMENT with TRIM (ACS-3 section 7.5, SAT-3 section 9.23).

use super::failure::check;
use super::plan::Plan;
use wire::SenseKey;
use wire::ata::{IdentifyData, SECTOR_BYTES, SECTORS_48_BIT};
use wire::scsi::capacity::{UnmapDescriptor, UnmapHeader};
use wire::scsi::code;

/// Block descriptors of one UNMAP.
pub(super) const DESCRIPTORS_MAX: u32 = 64;
/// The most sectors of one UNMAP, in total: they go into a few frames.
pub(super) const SECTORS_MAX: u32 = 128 * RANGE_SECTORS_MAX;
/// The longest parameter list that is interpreted.
pub(super) const LIST_BYTES_MAX: u32 = HEADER_BYTES + DESCRIPTORS_MAX * DESCRIPTOR_BYTES;

const HEADER_BYTES: u32 = 8;
const DESCRIPTOR_BYTES: u32 = 16;
const _: () = assert!(UnmapHeader::BYTES == 8 && UnmapDescriptor::BYTES == 16);
/// Sectors of one range of a TRIM.
const RANGE_SECTORS_MAX: u32 = 0xffff;
/// Ranges in one of its sectors, of eight bytes each.
pub(super) const RANGES_PER_SECTOR: u16 = 64;
const _: () = assert!(SECTOR_BYTES == 64 * 8);

/// Blocks to unmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    lba: u64,
    sectors: u32,
}

/// The plan for an UNMAP with this parameter list, on a device with this identity; and its extents.
pub(super) fn plan(list: &[u8], identity: &IdentifyData, is_fresh: bool, extents: &mut Vec<Extent>) -> Plan {
    extents.clear();
    let wrong = |code| Plan::Fail(check(SenseKey::IllegalRequest, code));
    if identity.trim_sectors == 0 {
        // It supported TRIM when the command arrived.
        return wrong(code::INVALID_OPERATION_CODE);
    }
    let sectors = identity.sectors.min(SECTORS_48_BIT);
    if list.is_empty() {
        return Plan::Made;
    }
    let Some((header, rest)) = list.split_at_checked(UnmapHeader::BYTES) else {
        return wrong(code::PARAMETER_LIST_LENGTH_ERROR);
    };
    // What was truncated is not unmapped.
    let len = UnmapHeader::read(header).descriptor_bytes;
    if u32::from(len) > DESCRIPTORS_MAX.saturating_mul(DESCRIPTOR_BYTES) {
        return wrong(code::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    let (descriptors, _) =
        rest.get(..usize::from(len)).unwrap_or(rest).as_chunks::<{ UnmapDescriptor::BYTES }>();
    let mut total = 0u32;
    for descriptor in descriptors {
        let UnmapDescriptor { lba, blocks } = UnmapDescriptor::read(descriptor);
        let extent = Extent { lba, sectors: blocks };
        if extent.lba.checked_add(u64::from(extent.sectors)).is_none_or(|end| end > sectors) {
            // It may have grown.
            return if is_fresh { wrong(code::LBA_OUT_OF_RANGE) } else { Plan::Ask };
        }
        total = total.saturating_add(extent.sectors);
        extents.push(extent);
    }
    if total > SECTORS_MAX {
        return wrong(code::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    match u32::try_from(ranges(extents).count()) {
        Ok(0) | Err(_) => Plan::Made,
        Ok(ranges) => {
            let most = u32::from(identity.trim_sectors).saturating_mul(u32::from(RANGES_PER_SECTOR));
            Plan::Trim { ranges, most }
        }
    }
}

/// Writes `count` ranges of a TRIM from `at` on, filled up to whole sectors.
pub(super) fn write(extents: &[Extent], at: u32, count: u32, body: &mut Vec<u8>) {
    body.clear();
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    for range in ranges(extents).skip(size(at)).take(size(count)) {
        body.extend_from_slice(&range.to_le_bytes());
    }
    body.resize(body.len().next_multiple_of(size(SECTOR_BYTES)), 0);
}

/// The sectors from the first to the last of them.
pub(super) fn hull(extents: &[Extent]) -> std::ops::Range<u64> {
    let end = |extent: &Extent| extent.lba.saturating_add(u64::from(extent.sectors));
    let first = extents.iter().map(|extent| extent.lba).min().unwrap_or(0);
    first..extents.iter().map(end).max().unwrap_or(0)
}

/// Ranges in TRIM's format: the LBA, and above it in 16 bits the number of sectors.
fn ranges(extents: &[Extent]) -> impl Iterator<Item = u64> + '_ {
    extents.iter().flat_map(|Extent { lba, sectors }| {
        (0..sectors.div_ceil(RANGE_SECTORS_MAX)).map(move |number| {
            let done = number.saturating_mul(RANGE_SECTORS_MAX);
            let count = sectors.saturating_sub(done).min(RANGE_SECTORS_MAX);
            u64::from(count) << 48 | lba.saturating_add(u64::from(done))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::failure::Failure;
    use super::*;
    use crate::aoe::initiator::answer::tests::DISK;

    const THIN: IdentifyData = IdentifyData { trim_sectors: 2, ..DISK };

    fn list(extents: &[(u64, u32)]) -> Vec<u8> {
        let len = u16::try_from(extents.len() * 16).unwrap();
        let mut list = (len + 6).to_be_bytes().to_vec();
        list.extend(len.to_be_bytes());
        list.extend([0; 4]);
        for (lba, sectors) in extents {
            list.extend(lba.to_be_bytes());
            list.extend(sectors.to_be_bytes());
            list.extend([0; 4]);
        }
        list
    }

    fn planned(list: &[u8], is_fresh: bool) -> Plan {
        plan(list, &THIN, is_fresh, &mut Vec::new())
    }

    fn code_of(plan: Plan) -> u16 {
        let Plan::Fail(Failure { sense: Some(sense), .. }) = plan else { panic!("{plan:?}") };
        sense.code()
    }

    #[test]
    fn a_long_extent_is_cut_into_ranges() {
        let mut extents = Vec::new();
        let list = list(&[(7, 2 * 65535 + 1), (9, 0), (0x0012_3456_789a, 3)]);
        assert_eq!(plan(&list, &THIN, false, &mut extents), Plan::Trim { ranges: 4, most: 128 });
        let mut body = vec![1; 3];
        write(&extents, 0, 4, &mut body);
        let words: Vec<u64> = body.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words.len(), 64);
        assert_eq!(words[..3], [0xffff << 48 | 7, 0xffff << 48 | 65542, 1 << 48 | 131_077]);
        assert_eq!(words[3], 3 << 48 | 0x0012_3456_789a);
        assert!(words[4..].iter().all(|word| *word == 0));
        write(&extents, 3, 1, &mut body);
        assert_eq!((body.len(), &body[..8]), (512, &words[3].to_le_bytes()[..]));
    }

    #[test]
    fn a_list_that_wants_nothing_is_done() {
        assert_eq!(planned(&[], false), Plan::Made);
        assert_eq!(planned(&list(&[]), false), Plan::Made);
        assert_eq!(planned(&list(&[(5, 0)]), false), Plan::Made);
        assert_eq!(planned(&list(&[(5, 1)])[..20], false), Plan::Made, "its descriptor is cut off");
    }

    #[test]
    fn wrong_lists_are_refused() {
        assert_eq!(code_of(planned(&[0; 7], true)), 0x1a00);
        assert_eq!(code_of(planned(&list(&[(0, 1); 65]), true)), 0x2600);
        assert_eq!(code_of(planned(&list(&[(0, SECTORS_MAX), (0, 1)]), true)), 0x2600);
        let past = list(&[((1 << 40) - 1, 2)]);
        assert_eq!(planned(&past, false), Plan::Ask);
        assert_eq!(code_of(planned(&past, true)), 0x2100);
        assert_eq!(code_of(planned(&list(&[(u64::MAX, 2)]), true)), 0x2100);
    }

    #[test]
    fn no_range_is_past_what_its_lba_has_room_for() {
        let huge = IdentifyData { sectors: u64::MAX, ..THIN };
        let planned = |lba| plan(&list(&[(lba, 2)]), &huge, true, &mut Vec::new());
        assert_eq!(planned(SECTORS_48_BIT - 2), Plan::Trim { ranges: 1, most: 128 });
        assert_eq!(code_of(planned(SECTORS_48_BIT - 1)), 0x2100);
        let thick = IdentifyData { trim_sectors: 0, ..huge };
        assert_eq!(code_of(plan(&list(&[(0, 2)]), &thick, true, &mut Vec::new())), 0x2000);
    }
}
