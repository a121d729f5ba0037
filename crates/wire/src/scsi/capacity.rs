//! The size of a medium, and which of its blocks are allocated: data of READ CAPACITY, GET LBA STATUS and
//! UNMAP (SBC-3 sections 5.15, 5.16, 5.4 and 5.28).

use super::field::layout;

layout! {
    /// READ CAPACITY(10) data.
    Capacity10 [8] {
        /// RETURNED LOGICAL BLOCK ADDRESS: of the last block; all ones when it does not fit.
        last_lba LAST_LBA: u32 = 0,
        /// LOGICAL BLOCK LENGTH IN BYTES.
        block_bytes BLOCK_BYTES: u32 = 4,
    }
}

layout! {
    /// READ CAPACITY(16) data.
    Capacity16 [32] {
        /// RETURNED LOGICAL BLOCK ADDRESS: of the last block.
        last_lba LAST_LBA: u64 = 0,
        /// LOGICAL BLOCK LENGTH IN BYTES.
        block_bytes BLOCK_BYTES: u32 = 8,
        /// P_TYPE: the protection type minus one.
        protection_type PROTECTION_TYPE: u8 = 12 & 0x0e,
        /// PROT_EN.
        protected PROTECTED: bool = 12 & 0x01,
        /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
        physical_exponent PHYSICAL_EXPONENT: u8 = 13 & 0x0f,
        /// LBPME: thin provisioned.
        thin THIN: bool = 14 & 0x80,
        /// LBPRZ: unmapped blocks read as zeros.
        zeros ZEROS: bool = 14 & 0x40,
    }
}

impl Capacity10 {
    /// The data for a unit of this many blocks.
    pub fn new(blocks: u64, block_bytes: u32) -> Capacity10 {
        let last_lba = u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX);
        Capacity10 { last_lba, block_bytes }
    }
}

impl Capacity16 {
    /// The data for a thick-provisioned unit of this many blocks.
    pub fn new(blocks: u64, block_bytes: u32) -> Capacity16 {
        Capacity16 { last_lba: blocks.saturating_sub(1), block_bytes, ..Capacity16::default() }
    }

    /// LOWEST ALIGNED LOGICAL BLOCK ADDRESS, of 14 bits.
    pub fn lowest_aligned(data: &[u8]) -> Option<u16> {
        super::Field::<u16>::at(14).get(data).map(|word| word & 0x3fff)
    }
}

layout! {
    /// The header of GET LBA STATUS data.
    LbaStatusHeader [8] {
        /// PARAMETER DATA LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u32 = 0,
    }
}

layout! {
    /// An LBA status descriptor.
    LbaStatus [16] {
        /// LBA STATUS LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 0,
        /// NUMBER OF LOGICAL BLOCKS.
        blocks BLOCKS: u32 = 8,
        /// PROVISIONING STATUS ([`provisioning`]).
        status STATUS: u8 = 12 & 0x0f,
    }
}

/// PROVISIONING STATUS.
pub mod provisioning {
    /// Mapped, or unknown.
    pub const MAPPED: u8 = 0;
    /// Deallocated.
    pub const DEALLOCATED: u8 = 1;
    /// Anchored.
    pub const ANCHORED: u8 = 2;
}

layout! {
    /// The header of UNMAP's parameter list.
    UnmapHeader [8] {
        /// UNMAP DATA LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u16 = 0,
        /// UNMAP BLOCK DESCRIPTOR DATA LENGTH.
        descriptor_bytes DESCRIPTOR_BYTES: u16 = 2,
    }
}

layout! {
    /// An UNMAP block descriptor.
    UnmapDescriptor [16] {
        /// UNMAP LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 0,
        /// NUMBER OF LOGICAL BLOCKS.
        blocks BLOCKS: u32 = 8,
    }
}

/// Bytes of UNMAP's parameter list with one descriptor.
pub const UNMAP_LIST_BYTES: usize = UnmapHeader::BYTES.saturating_add(UnmapDescriptor::BYTES);

/// UNMAP's parameter list with one descriptor.
pub fn unmap_list(lba: u64, blocks: u32) -> [u8; UNMAP_LIST_BYTES] {
    let mut list = [0; UNMAP_LIST_BYTES];
    let (header, descriptor) = list.split_at_mut(UnmapHeader::BYTES);
    UnmapHeader { following_bytes: 22, descriptor_bytes: 16 }.write(header);
    UnmapDescriptor { lba, blocks }.write(descriptor);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_laid_out_as_the_standard_has_them() {
        let thin = Capacity16 { physical_exponent: 3, thin: true, zeros: true, ..Capacity16::new(2048, 512) };
        let data = thin.to_bytes();
        assert_eq!(data[..16], [0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!((data.len(), Capacity16::read(&data)), (32, thin));
        assert_eq!(Capacity10::new(2048, 512).to_bytes(), [0, 0, 7, 0xff, 0, 0, 2, 0]);
        assert_eq!(Capacity10::new(1 << 40, 512).last_lba, u32::MAX);
        assert_eq!(Capacity16::lowest_aligned(&[0xff; 16]), Some(0x3fff));
    }

    #[test]
    fn lists_of_blocks_are_laid_out_as_the_standard_has_them() {
        let list = unmap_list(5, 6);
        assert_eq!(list, [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0]);
        let status = LbaStatus { lba: 1, blocks: 2, status: provisioning::DEALLOCATED };
        assert_eq!(status.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0]);
    }
}
