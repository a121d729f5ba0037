//! The true limits behind VPD B0h, and the ranges that commands name.

use crate::state::unit::View;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::CHUNK_BYTES;

/// The longest transfer of one command, in bytes.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1024 * 1024 * 1024;

/// The longest WRITE SAME, in bytes: what a store that has to write it completes quickly.
pub(crate) const SAME_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// The most that one UNMAP unmaps, in bytes: what a store that deallocates space completes quickly.
pub(crate) const UNMAP_BYTES_MAX: u32 = 512 * 1024 * 1024;

/// Block descriptors in one UNMAP parameter list.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Bytes that are best transferred at once.
pub(crate) const TRANSFER_BYTES_OPTIMAL: u32 = CHUNK_BYTES;

/// Blocks on the medium, as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl View {
    /// Logical blocks on the medium.
    pub(crate) fn blocks(&self) -> u64 {
        self.policy.traits.size_bytes.checked_div(u64::from(self.policy.block_bytes)).unwrap_or(0)
    }

    /// How many whole blocks fit into this many bytes.
    pub(crate) fn blocks_in(&self, bytes: u32) -> u32 {
        bytes.checked_div(self.policy.block_bytes).unwrap_or(0)
    }

    /// Whether the unit is thin provisioned (LBPME): it is configured so, and its store can deallocate space.
    pub(crate) fn is_thin(&self) -> bool {
        self.unit.thin && self.policy.traits.discards
    }

    /// Whether all commands to the medium come through this gateway.
    pub(crate) fn sees_all(&self) -> bool {
        !self.unit.is_shared_by_all()
    }

    /// Whether SANITIZE may deallocate the medium.
    pub(crate) fn erases_blocks(&self) -> bool {
        self.is_thin() && self.sees_all()
    }

    /// Whether SANITIZE may discard a key.
    pub(crate) fn erases_cryptographically(&self) -> bool {
        self.policy.traits.cryptographic_erase && self.sees_all()
    }

    /// The longest WRITE ATOMIC, in blocks; 0: none.
    pub(crate) fn atomic_blocks_max(&self) -> u32 {
        if !self.sees_all() {
            return 0;
        }
        self.blocks_in(self.policy.traits.atomic_write_bytes_max.min(CHUNK_BYTES))
    }

    /// The longest COMPARE AND WRITE, in blocks: limited by the store, by the buffer, which holds compared
    /// and written blocks together, and by the CDB, which has one byte for the count. 0: none.
    pub(crate) fn compare_blocks_max(&self) -> u8 {
        let most = self.policy.traits.compare_write_bytes_max.min(CHUNK_BYTES.div_euclid(2));
        u8::try_from(self.blocks_in(most)).unwrap_or(u8::MAX)
    }

    /// The range of `blocks` blocks at `lba`. An empty range may begin just past the last block (SBC-3
    /// section 4.5).
    pub(crate) fn range(&self, lba: u64, blocks: u64) -> Result<Range, Failure> {
        let block_bytes = u64::from(self.policy.block_bytes);
        let (offset, len) = (lba.checked_mul(block_bytes), blocks.checked_mul(block_bytes));
        match (offset, len, offset.zip(len).and_then(|(offset, len)| offset.checked_add(len))) {
            (Some(offset), Some(len), Some(end)) if end <= self.policy.traits.size_bytes => {
                Ok(Range { offset, len })
            }
            _ => Err(Check::LBA_OUT_OF_RANGE.into()),
        }
    }

    /// As [`View::range`], where no blocks means all that follow (WRITE SAME, SYNCHRONIZE CACHE, PRE-FETCH, VERIFY
    /// does not).
    pub(crate) fn range_to_end(&self, lba: u64, blocks: u64) -> Result<Range, Failure> {
        let rest = self.blocks().checked_sub(lba).ok_or(Check::LBA_OUT_OF_RANGE)?;
        self.range(lba, if blocks == 0 { rest } else { blocks })
    }
}

#[cfg(test)]
mod tests {
    use crate::state::attention::UnitAttention;
    use crate::state::home::HomeRequest;
    use crate::testing::Bench;
    use crate::vocabulary::storage::Traits;
    use wire::scsi::command::{Inquiry, ReadCapacity16, Unmap, WriteSame10};

    #[test]
    fn a_unit_whose_store_frees_no_space_is_not_thin() {
        let mut bench = Bench::new();
        let traits = Traits { discards: false, ..bench.view.policy.traits };
        bench.ask(HomeRequest::StoreChanged(traits));
        let attentions = std::mem::take(&mut bench.nexuses[0].attentions);
        assert_eq!(attentions, [UnitAttention::CapacityChanged, UnitAttention::InquiryChanged]);
        let capacity = bench.read(ReadCapacity16::new(32)).data;
        assert_eq!(capacity[14], 0, "LBPME, LBPRZ");
        let limits = bench.read(Inquiry::page(0xb0, 255)).data;
        assert_eq!(limits[20..36], [0; 16]);
        assert_eq!(bench.read(Inquiry::page(0xb2, 255)).data[4..], [0; 4]);
        bench.write(Unmap::new(8), &[0; 8]).assert_check(0x5, 0x2000);
        bench.write(WriteSame10 { unmap: true, ..WriteSame10::new(0, 1) }, &[0; 512]).assert_invalid_field(1);
    }
}
