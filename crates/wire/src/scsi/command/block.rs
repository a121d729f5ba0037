//! Commands of block devices (SBC-3 clause 5; WRITE ATOMIC(16): SBC-4 section 5.48).

use super::commands;
use crate::scsi::field::{Field, Value, layout};
use crate::scsi::{Cdb, Command, opcode};

layout! {
    /// The fields that all service actions of SANITIZE share.
    Sanitize [10] {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x80,
        /// ZNR, for zoned devices.
        no_zone_reset NO_ZONE_RESET: bool = 1 & 0x40,
        /// AUSE.
        unrestricted UNRESTRICTED: bool = 1 & 0x20,
        /// Reserved bytes.
        reserved RESERVED: [u8; 5] = 2,
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u16 = 7,
    }
}

commands! {
    /// READ(10).
    Read10 = READ_10 [10] new(lba: u32, blocks: u16) {
        /// RDPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// DPO.
        dpo DPO: bool = 1 & 0x10,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// GROUP NUMBER.
        group GROUP: u8 = 6 & 0x1f,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u16 = 7,
    }

    /// READ(12).
    Read12 = READ_12 [12] new(lba: u32, blocks: u32) {
        /// RDPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// DPO.
        dpo DPO: bool = 1 & 0x10,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u32 = 6,
    }

    /// READ(16).
    Read16 = READ_16 [16] new(lba: u64, blocks: u32) {
        /// RDPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// DPO.
        dpo DPO: bool = 1 & 0x10,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u32 = 10,
    }

    /// WRITE(10).
    Write10 = WRITE_10 [10] new(lba: u32, blocks: u16) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// DPO.
        dpo DPO: bool = 1 & 0x10,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u16 = 7,
    }

    /// WRITE(12).
    Write12 = WRITE_12 [12] new(lba: u32, blocks: u32) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u32 = 6,
    }

    /// WRITE(16).
    Write16 = WRITE_16 [16] new(lba: u64, blocks: u32) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// DPO.
        dpo DPO: bool = 1 & 0x10,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u32 = 10,
    }

    /// WRITE AND VERIFY(10).
    WriteAndVerify10 = WRITE_AND_VERIFY_10 [10] new(lba: u32, blocks: u16) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// BYTCHK.
        byte_check BYTE_CHECK: u8 = 1 & 0x06,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u16 = 7,
    }

    /// WRITE AND VERIFY(12).
    WriteAndVerify12 = WRITE_AND_VERIFY_12 [12] new(lba: u32, blocks: u32) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// BYTCHK.
        byte_check BYTE_CHECK: u8 = 1 & 0x06,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u32 = 6,
    }

    /// WRITE AND VERIFY(16).
    WriteAndVerify16 = WRITE_AND_VERIFY_16 [16] new(lba: u64, blocks: u32) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// BYTCHK.
        byte_check BYTE_CHECK: u8 = 1 & 0x06,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u32 = 10,
    }

    /// VERIFY(10).
    Verify10 = VERIFY_10 [10] new(lba: u32, blocks: u16) {
        /// VRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// BYTCHK.
        byte_check BYTE_CHECK: u8 = 1 & 0x06,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// VERIFICATION LENGTH.
        blocks BLOCKS: u16 = 7,
    }

    /// VERIFY(12).
    Verify12 = VERIFY_12 [12] new(lba: u32, blocks: u32) {
        /// VRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// BYTCHK.
        byte_check BYTE_CHECK: u8 = 1 & 0x06,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// VERIFICATION LENGTH.
        blocks BLOCKS: u32 = 6,
    }

    /// VERIFY(16).
    Verify16 = VERIFY_16 [16] new(lba: u64, blocks: u32) {
        /// VRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// BYTCHK.
        byte_check BYTE_CHECK: u8 = 1 & 0x06,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// VERIFICATION LENGTH.
        blocks BLOCKS: u32 = 10,
    }

    /// WRITE ATOMIC(16).
    WriteAtomic16 = WRITE_ATOMIC_16 [16] new(lba: u64, blocks: u16) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// ATOMIC BOUNDARY.
        boundary BOUNDARY: u16 = 10,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u16 = 12,
    }

    /// COMPARE AND WRITE.
    CompareAndWrite = COMPARE_AND_WRITE [16] new(lba: u64, blocks: u8) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// NUMBER OF LOGICAL BLOCKS.
        blocks BLOCKS: u8 = 13,
    }

    /// ORWRITE(16).
    OrWrite16 = ORWRITE_16 [16] new(lba: u64, blocks: u32) {
        /// ORPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// FUA.
        fua FUA: bool = 1 & 0x08,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// TRANSFER LENGTH.
        blocks BLOCKS: u32 = 10,
    }

    /// WRITE SAME(10).
    WriteSame10 = WRITE_SAME_10 [10] new(lba: u32, blocks: u16) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// ANCHOR.
        anchor ANCHOR: bool = 1 & 0x10,
        /// UNMAP.
        unmap UNMAP: bool = 1 & 0x08,
        /// PBDATA and LBDATA, which are obsolete.
        obsolete OBSOLETE: u8 = 1 & 0x06,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// NUMBER OF LOGICAL BLOCKS.
        blocks BLOCKS: u16 = 7,
    }

    /// WRITE SAME(16).
    WriteSame16 = WRITE_SAME_16 [16] new(lba: u64, blocks: u32) {
        /// WRPROTECT.
        protect PROTECT: u8 = 1 & 0xe0,
        /// ANCHOR.
        anchor ANCHOR: bool = 1 & 0x10,
        /// UNMAP.
        unmap UNMAP: bool = 1 & 0x08,
        /// PBDATA and LBDATA, which are obsolete.
        obsolete OBSOLETE: u8 = 1 & 0x06,
        /// NDOB: there is no data-out.
        no_data NO_DATA: bool = 1 & 0x01,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// NUMBER OF LOGICAL BLOCKS.
        blocks BLOCKS: u32 = 10,
    }

    /// UNMAP.
    Unmap = UNMAP [10] new(list_bytes: u16) {
        /// ANCHOR.
        anchor ANCHOR: bool = 1 & 0x01,
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u16 = 7,
    }

    /// SYNCHRONIZE CACHE(10).
    SynchronizeCache10 = SYNCHRONIZE_CACHE_10 [10] new(lba: u32, blocks: u16) {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x02,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// NUMBER OF LOGICAL BLOCKS; zero: all that follow.
        blocks BLOCKS: u16 = 7,
    }

    /// SYNCHRONIZE CACHE(16).
    SynchronizeCache16 = SYNCHRONIZE_CACHE_16 [16] new(lba: u64, blocks: u32) {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x02,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// NUMBER OF LOGICAL BLOCKS; zero: all that follow.
        blocks BLOCKS: u32 = 10,
    }

    /// PRE-FETCH(10).
    PreFetch10 = PRE_FETCH_10 [10] new(lba: u32, blocks: u16) {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x02,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u32 = 2,
        /// PREFETCH LENGTH; zero: all that follow.
        blocks BLOCKS: u16 = 7,
    }

    /// PRE-FETCH(16).
    PreFetch16 = PRE_FETCH_16 [16] new(lba: u64, blocks: u32) {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x02,
        /// LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// PREFETCH LENGTH; zero: all that follow.
        blocks BLOCKS: u32 = 10,
    }

    /// READ CAPACITY(10).
    ReadCapacity10 = READ_CAPACITY_10 [10] new() {
        /// LOGICAL BLOCK ADDRESS, which is obsolete.
        lba LBA: u32 = 2,
        /// PMI, which is obsolete.
        partial PARTIAL: bool = 8 & 0x01,
    }

    /// READ CAPACITY(16).
    ReadCapacity16 = SERVICE_ACTION_IN_16 / service_action_in_16::READ_CAPACITY_16 [16] new(allocation: u32) {
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 10,
    }

    /// GET LBA STATUS.
    GetLbaStatus = SERVICE_ACTION_IN_16 / service_action_in_16::GET_LBA_STATUS [16]
    new(lba: u64, allocation: u32) {
        /// STARTING LOGICAL BLOCK ADDRESS.
        lba LBA: u64 = 2,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 10,
    }

    /// FORMAT UNIT.
    FormatUnit = FORMAT_UNIT [6] {
        /// FMTPINFO.
        protection PROTECTION: u8 = 1 & 0xc0,
        /// LONGLIST.
        long_list LONG_LIST: bool = 1 & 0x20,
        /// FMTDATA: there is a parameter list.
        has_data HAS_DATA: bool = 1 & 0x10,
        /// CMPLST.
        complete_list COMPLETE_LIST: bool = 1 & 0x08,
        /// DEFECT LIST FORMAT.
        defect_format DEFECT_FORMAT: u8 = 1 & 0x07,
    }

    /// SANITIZE: OVERWRITE.
    SanitizeOverwrite = SANITIZE / sanitize::OVERWRITE [10] new(list_bytes: u16) {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x80,
        /// AUSE.
        unrestricted UNRESTRICTED: bool = 1 & 0x20,
        /// PARAMETER LIST LENGTH.
        list_bytes LIST_BYTES: u16 = 7,
    }

    /// SANITIZE: BLOCK ERASE.
    SanitizeBlockErase = SANITIZE / sanitize::BLOCK_ERASE [10] {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x80,
        /// AUSE.
        unrestricted UNRESTRICTED: bool = 1 & 0x20,
        /// PARAMETER LIST LENGTH, which is zero.
        list_bytes LIST_BYTES: u16 = 7,
    }

    /// SANITIZE: CRYPTOGRAPHIC ERASE.
    SanitizeCryptographicErase = SANITIZE / sanitize::CRYPTOGRAPHIC_ERASE [10] {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x80,
        /// AUSE.
        unrestricted UNRESTRICTED: bool = 1 & 0x20,
    }

    /// SANITIZE: EXIT FAILURE MODE.
    SanitizeExitFailureMode = SANITIZE / sanitize::EXIT_FAILURE_MODE [10] {}

    /// START STOP UNIT.
    StartStopUnit = START_STOP_UNIT [6] {
        /// IMMED.
        immediate IMMEDIATE: bool = 1 & 0x01,
        /// POWER CONDITION MODIFIER.
        modifier MODIFIER: u8 = 3 & 0x0f,
        /// POWER CONDITION.
        power POWER: u8 = 4 & 0xf0,
        /// NO_FLUSH.
        no_flush NO_FLUSH: bool = 4 & 0x04,
        /// LOEJ.
        load_eject LOAD_EJECT: bool = 4 & 0x02,
        /// START.
        start START: bool = 4 & 0x01,
    }

    /// READ DEFECT DATA(10).
    ReadDefectData10 = READ_DEFECT_DATA_10 [10] new(allocation: u16) {
        /// REQ_PLIST.
        primary PRIMARY: bool = 2 & 0x10,
        /// REQ_GLIST.
        grown GROWN: bool = 2 & 0x08,
        /// DEFECT LIST FORMAT.
        format FORMAT: u8 = 2 & 0x07,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u16 = 7,
    }

    /// READ DEFECT DATA(12).
    ReadDefectData12 = READ_DEFECT_DATA_12 [12] new(allocation: u32) {
        /// REQ_PLIST.
        primary PRIMARY: bool = 1 & 0x10,
        /// REQ_GLIST.
        grown GROWN: bool = 1 & 0x08,
        /// DEFECT LIST FORMAT.
        format FORMAT: u8 = 1 & 0x07,
        /// ALLOCATION LENGTH.
        allocation ALLOCATION: u32 = 6,
    }
}

/// LOGICAL BLOCK ADDRESS of READ(6) and WRITE(6): 21 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lba21(u32);

impl Value for Lba21 {
    const ZERO: Lba21 = Lba21(0);

    #[inline]
    fn get(bytes: &[u8], _: usize, _: u8) -> Option<Lba21> {
        bytes.first_chunk().map(|first| Lba21(u32::from_be_bytes(*first) & 0x001f_ffff))
    }

    fn set(self, bytes: &mut [u8], at: usize, _: u8) {
        let [_, address @ ..] = (self.0 & 0x001f_ffff).to_be_bytes();
        Field::<[u8; 3]>::at(1).set(bytes, address);
        let _ = at;
    }
}

macro_rules! short {
    ($(#[$doc:meta] $name:ident = $opcode:ident;)*) => { $(
        #[$doc]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            /// LOGICAL BLOCK ADDRESS, of 21 bits.
            pub lba: u32,
            /// TRANSFER LENGTH; zero: 256 blocks.
            pub blocks: u8,
        }

        impl $name {
            const LBA: Field<Lba21> = Field::at(1);
            /// TRANSFER LENGTH.
            pub const BLOCKS: Field<u8> = Field::at(4);

            /// The command with these fields.
            pub fn new(lba: u32, blocks: u8) -> $name {
                $name { lba, blocks }
            }

            /// The fields of a CDB with this layout.
            #[inline]
            pub fn of(cdb: &Cdb) -> $name {
                let Lba21(lba) = cdb.get($name::LBA);
                $name { lba, blocks: cdb.get($name::BLOCKS) }
            }
        }

        impl Command for $name {
            const OPCODE: u8 = opcode::$opcode;
            const SERVICE_ACTION: Option<u8> = None;

            fn to_cdb(self) -> Cdb {
                let mut bytes = [0; 6];
                $name::LBA.set(&mut bytes, Lba21(self.lba));
                $name::BLOCKS.set(&mut bytes, self.blocks);
                Cdb::of(Self::OPCODE, None, &bytes)
            }

            fn from_cdb(cdb: &Cdb) -> Option<$name> {
                (cdb.opcode() == Self::OPCODE).then(|| $name::of(cdb))
            }
        }
    )* };
}

short! {
    /// READ(6).
    Read6 = READ_6;
    /// WRITE(6).
    Write6 = WRITE_6;
}
