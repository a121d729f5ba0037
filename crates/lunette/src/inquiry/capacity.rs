//! READ CAPACITY(10) and (16) (SBC-4 sections 5.19 and 5.20).

use super::rows::{Rows, yes_no};
use config::format_size;
use serde::Serialize;
use wire::scsi::capacity::{Capacity10, Capacity16};

/// Size and shape of the medium.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Capacity {
    blocks: u64,
    pub(super) block_bytes: u32,
    size_bytes: u128,
    physical_block_bytes: Option<u64>,
    lowest_aligned_block: Option<u16>,
    /// LBPME.
    thin: Option<bool>,
    /// LBPRZ.
    unmapped_blocks_read_zeros: Option<bool>,
    /// 0 is none; otherwise types 1 to 3.
    protection_type: Option<u8>,
}

/// The long form.
pub(super) fn decode_16(data: &[u8]) -> Option<Capacity> {
    let last = Capacity16::LAST_LBA.get(data)?;
    let block_bytes = Capacity16::BLOCK_BYTES.get(data)?;
    let protected = Capacity16::PROTECTED.get(data)?;
    let exponent = Capacity16::PHYSICAL_EXPONENT.get(data);
    let protection = Capacity16::PROTECTION_TYPE.get(data);
    Some(Capacity {
        physical_block_bytes: exponent.map(|power| u64::from(block_bytes) << power),
        lowest_aligned_block: Capacity16::lowest_aligned(data),
        thin: Capacity16::THIN.get(data),
        unmapped_blocks_read_zeros: Capacity16::ZEROS.get(data),
        protection_type: protection.map(|kind| if protected { kind + 1 } else { 0 }),
        ..short(last, block_bytes)
    })
}

/// The short form, of a unit without the long one.
pub(super) fn decode_10(data: &[u8]) -> Option<Capacity> {
    Some(short(Capacity10::LAST_LBA.get(data)?.into(), Capacity10::BLOCK_BYTES.get(data)?))
}

fn short(last: u64, block_bytes: u32) -> Capacity {
    let blocks = last.saturating_add(1);
    Capacity {
        blocks,
        block_bytes,
        size_bytes: u128::from(blocks) * u128::from(block_bytes),
        physical_block_bytes: None,
        lowest_aligned_block: None,
        thin: None,
        unmapped_blocks_read_zeros: None,
        protection_type: None,
    }
}

impl Capacity {
    pub(super) fn write(&self, rows: &mut Rows) {
        let rounded = u64::try_from(self.size_bytes).map_or_else(|_| "over 16 EiB".into(), format_size);
        let exact = format!("{} bytes", self.size_bytes);
        let size = if rounded == exact { exact } else { format!("{rounded} ({exact})") };
        rows.add("capacity", size);
        rows.add("blocks", format!("{} of {} bytes", self.blocks, self.block_bytes));
        rows.maybe("physical blocks", self.physical_block_bytes, |bytes| format!("{bytes} bytes"));
        rows.maybe("first aligned block", self.lowest_aligned_block, |block| block.to_string());
        rows.maybe("thin", self.thin, yes_no);
        rows.maybe("unmapped blocks read as zeros", self.unmapped_blocks_read_zeros, yes_no);
        rows.maybe("protection", self.protection_type, |kind| match kind {
            0 => "none".into(),
            kind => format!("type {kind}"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let mut data = [0; 32];
        data[..8].copy_from_slice(&2_097_151u64.to_be_bytes());
        data[8..12].copy_from_slice(&512u32.to_be_bytes());
        data[12..16].copy_from_slice(&[0x03, 0x03, 0xc0, 0x01]);
        let shown = Rows::shown(|rows| decode_16(&data).expect("a capacity").write(rows));
        for expected in [
            "1 GiB (1073741824 bytes)",
            "2097152 of 512 bytes",
            "4096 bytes",
            "first aligned block            1",
            "type 2",
        ] {
            assert!(shown.contains(expected), "{expected}:\n{shown}");
        }
        let short = decode_10(&[0, 0, 7, 0xff, 0, 0, 16, 0]).expect("a capacity");
        assert_eq!((short.blocks, short.block_bytes, short.thin), (2048, 4096, None));
        assert_eq!(decode_16(&data[..12]), None);
        assert_eq!(decode_10(&data[..7]), None);
        let all = Rows::shown(|rows| decode_16(&[0xff; 32]).expect("a capacity").write(rows));
        assert!(all.contains("over 16 EiB"), "{all}");
    }
}
