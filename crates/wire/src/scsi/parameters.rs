//! Parameter lists and data of commands on reservations, copies and target ports (SPC-4 clause 6).

use super::designator::{code_set, kind};
use super::field::layout;

layout! {
    /// The parameter list of PERSISTENT RESERVE OUT, but for REGISTER AND MOVE (SPC-4 section 6.16.3).
    ReserveOutList [24] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// SERVICE ACTION RESERVATION KEY.
        action_key ACTION_KEY: u64 = 8,
        /// SPEC_I_PT: TransportIDs follow.
        names_initiators NAMES_INITIATORS: bool = 20 & 0x08,
        /// ALL_TG_PT.
        all_target_ports ALL_TARGET_PORTS: bool = 20 & 0x04,
        /// APTPL.
        keep KEEP: bool = 20 & 0x01,
    }
}

layout! {
    /// The parameter list of REGISTER AND MOVE, before its TransportID (SPC-4 section 6.16.4).
    MoveList [24] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// SERVICE ACTION RESERVATION KEY.
        action_key ACTION_KEY: u64 = 8,
        /// UNREG.
        unregister UNREGISTER: bool = 17 & 0x02,
        /// APTPL.
        keep KEEP: bool = 17 & 0x01,
        /// RELATIVE TARGET PORT IDENTIFIER.
        target_port TARGET_PORT: u16 = 18,
        /// TRANSPORTID PARAMETER DATA LENGTH.
        transport_id_bytes TRANSPORT_ID_BYTES: u32 = 20,
    }
}

layout! {
    /// The header of READ KEYS, READ RESERVATION and READ FULL STATUS data (SPC-4 section 6.15).
    ReserveInHeader [8] {
        /// PRGENERATION.
        generation GENERATION: u32 = 0,
        /// ADDITIONAL LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u32 = 4,
    }
}

layout! {
    /// The reservation in READ RESERVATION data (SPC-4 section 6.15.3).
    HeldReservation [16] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// SCOPE.
        scope SCOPE: u8 = 13 & 0xf0,
        /// TYPE.
        kind KIND: u8 = 13 & 0x0f,
    }
}

layout! {
    /// REPORT CAPABILITIES data (SPC-4 section 6.15.4).
    ReserveCapabilities [8] {
        /// LENGTH: of all of it.
        length_bytes LENGTH_BYTES: u16 = 0,
        /// CRH: a registered nexus may use RESERVE.
        compatible_reserve COMPATIBLE_RESERVE: bool = 2 & 0x10,
        /// SIP_C: SPEC_I_PT is supported.
        can_name_initiators CAN_NAME_INITIATORS: bool = 2 & 0x08,
        /// ATP_C: ALL_TG_PT is supported.
        can_be_all_target_ports CAN_BE_ALL_TARGET_PORTS: bool = 2 & 0x04,
        /// PTPL_C: APTPL is supported.
        can_keep CAN_KEEP: bool = 2 & 0x01,
        /// TMV: the type mask is valid.
        mask_is_valid MASK_IS_VALID: bool = 3 & 0x80,
        /// ALLOW COMMANDS; 1: of those in question only TEST UNIT READY is allowed through every reservation.
        allowed_commands ALLOWED_COMMANDS: u8 = 3 & 0x70,
        /// PTPL_A: registrations persist now.
        is_kept IS_KEPT: bool = 3 & 0x01,
        /// PERSISTENT RESERVATION TYPE MASK.
        type_mask TYPE_MASK: u16 = 4,
    }
}

layout! {
    /// A full status descriptor, before its TransportID (SPC-4 section 6.15.5).
    FullStatus [24] {
        /// RESERVATION KEY.
        key KEY: u64 = 0,
        /// ALL_TG_PT.
        all_target_ports ALL_TARGET_PORTS: bool = 12 & 0x02,
        /// R_HOLDER.
        is_holder IS_HOLDER: bool = 12 & 0x01,
        /// SCOPE.
        scope SCOPE: u8 = 13 & 0xf0,
        /// TYPE.
        kind KIND: u8 = 13 & 0x0f,
        /// RELATIVE TARGET PORT IDENTIFIER.
        target_port TARGET_PORT: u16 = 18,
        /// ADDITIONAL DESCRIPTOR LENGTH: of the TransportID.
        transport_id_bytes TRANSPORT_ID_BYTES: u32 = 20,
    }
}

layout! {
    /// The header of READ DEFECT DATA(10) data (SBC-3 section 5.17.2).
    DefectList10 [4] {
        /// PLISTV.
        primary PRIMARY: bool = 1 & 0x10,
        /// GLISTV.
        grown GROWN: bool = 1 & 0x08,
        /// DEFECT LIST FORMAT.
        format FORMAT: u8 = 1 & 0x07,
        /// DEFECT LIST LENGTH.
        list_bytes LIST_BYTES: u16 = 2,
    }
}

layout! {
    /// The header of READ DEFECT DATA(12) data (SBC-3 section 5.18.2).
    DefectList12 [8] {
        /// PLISTV.
        primary PRIMARY: bool = 1 & 0x10,
        /// GLISTV.
        grown GROWN: bool = 1 & 0x08,
        /// DEFECT LIST FORMAT.
        format FORMAT: u8 = 1 & 0x07,
        /// DEFECT LIST LENGTH.
        list_bytes LIST_BYTES: u32 = 4,
    }
}

layout! {
    /// A target port group descriptor of REPORT TARGET PORT GROUPS, before its ports (SPC-4 section 6.37).
    PortGroup [8] {
        /// PREF.
        preferred PREFERRED: bool = 0 & 0x80,
        /// ASYMMETRIC ACCESS STATE: 0 is active/optimized.
        state STATE: u8 = 0 & 0x0f,
        /// AO_SUP: active/optimized is supported.
        can_be_optimized CAN_BE_OPTIMIZED: bool = 1 & 0x01,
        /// TARGET PORT GROUP.
        group GROUP: u16 = 2,
        /// TARGET PORT COUNT.
        ports PORTS: u8 = 7,
    }
}

layout! {
    /// A target port descriptor of it.
    GroupPort [4] {
        /// RELATIVE TARGET PORT IDENTIFIER.
        relative_id RELATIVE_ID: u16 = 2,
    }
}

layout! {
    /// The header of EXTENDED COPY(LID1)'s parameter list (SPC-4 section 6.5).
    CopyListLid1 [16] {
        /// LIST IDENTIFIER.
        list_id LIST_ID: u8 = 0,
        /// LIST ID USAGE.
        usage USAGE: u8 = 1 & 0x18,
        /// CSCD DESCRIPTOR LIST LENGTH.
        cscd_bytes CSCD_BYTES: u16 = 2,
        /// SEGMENT DESCRIPTOR LIST LENGTH.
        segment_bytes SEGMENT_BYTES: u32 = 8,
        /// INLINE DATA LENGTH.
        inline_bytes INLINE_BYTES: u32 = 12,
    }
}

layout! {
    /// The header of EXTENDED COPY(LID4)'s parameter list (SPC-4 section 6.4).
    CopyListLid4 [48] {
        /// PARAMETER LIST FORMAT.
        format FORMAT: u8 = 0,
        /// LIST ID USAGE.
        usage USAGE: u8 = 1 & 0x18,
        /// HEADER CSCD DESCRIPTOR LIST LENGTH.
        header_cscd_bytes HEADER_CSCD_BYTES: u16 = 2,
        /// IMMED.
        immediate IMMEDIATE: bool = 15 & 0x01,
        /// HEADER CSCD DESCRIPTOR TYPE CODE.
        header_cscd_type HEADER_CSCD_TYPE: u8 = 16,
        /// LIST IDENTIFIER.
        list_id LIST_ID: u32 = 20,
        /// CSCD DESCRIPTOR LIST LENGTH.
        cscd_bytes CSCD_BYTES: u16 = 42,
        /// SEGMENT DESCRIPTOR LIST LENGTH.
        segment_bytes SEGMENT_BYTES: u16 = 44,
        /// INLINE DATA LENGTH.
        inline_bytes INLINE_BYTES: u16 = 46,
    }
}

/// DESCRIPTOR TYPE CODE of CSCD and segment descriptors of EXTENDED COPY (SPC-4 table 128).
pub mod copy_descriptor {
    /// A block device to block device segment.
    pub const BLOCK_TO_BLOCK: u8 = 0x02;
    /// An identification descriptor CSCD.
    pub const IDENTIFICATION: u8 = 0xe4;
}

layout! {
    /// An identification descriptor CSCD descriptor of a block device (SPC-4 section 6.4.5.2).
    IdentificationCscd [32] {
        /// DESCRIPTOR TYPE CODE ([`copy_descriptor`]).
        kind KIND: u8 = 0,
        /// PERIPHERAL DEVICE TYPE.
        device_type DEVICE_TYPE: u8 = 1 & 0x1f,
        /// CODE SET ([`super::designator::code_set`]).
        code_set CODE_SET: u8 = 4 & 0x0f,
        /// ASSOCIATION ([`super::designator::association`]).
        association ASSOCIATION: u8 = 5 & 0x30,
        /// DESIGNATOR TYPE ([`super::designator::kind`]).
        designator_type DESIGNATOR_TYPE: u8 = 5 & 0x0f,
        /// DESIGNATOR LENGTH.
        designator_bytes DESIGNATOR_BYTES: u8 = 7,
        /// DESIGNATOR.
        designator DESIGNATOR: [u8; 20] = 8,
        /// PAD.
        pad PAD: bool = 28 & 0x04,
        /// DISK BLOCK LENGTH, of 24 bits: its high byte and the others.
        block_bytes_high BLOCK_BYTES_HIGH: u8 = 29,
        /// The low bytes.
        block_bytes_low BLOCK_BYTES_LOW: u16 = 30,
    }
}

impl IdentificationCscd {
    /// The logical unit with this NAA designator, and blocks of any length.
    pub fn of_naa(naa: &[u8]) -> IdentificationCscd {
        let mut designator = [0; 20];
        designator.iter_mut().zip(naa).for_each(|(slot, byte)| *slot = *byte);
        IdentificationCscd {
            kind: copy_descriptor::IDENTIFICATION,
            code_set: code_set::BINARY,
            designator_type: kind::NAA,
            designator_bytes: u8::try_from(naa.len()).unwrap_or(u8::MAX),
            designator,
            ..IdentificationCscd::ZERO
        }
    }

    /// DISK BLOCK LENGTH; zero: not given.
    pub fn block_bytes(&self) -> u32 {
        u32::from(self.block_bytes_high) << 16 | u32::from(self.block_bytes_low)
    }

    /// With this DISK BLOCK LENGTH.
    pub fn with_block_bytes(self, block_bytes: u32) -> IdentificationCscd {
        let [_, high, low @ ..] = block_bytes.to_be_bytes();
        IdentificationCscd { block_bytes_high: high, block_bytes_low: u16::from_be_bytes(low), ..self }
    }
}

layout! {
    /// A block device to block device segment descriptor (SPC-4 section 6.4.6).
    BlockSegment [28] {
        /// DESCRIPTOR TYPE CODE.
        kind KIND: u8 = 0,
        /// DC: the length is in blocks of the destination.
        in_destination_blocks IN_DESTINATION_BLOCKS: bool = 1 & 0x02,
        /// DESCRIPTOR LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u16 = 2,
        /// SOURCE CSCD DESCRIPTOR ID.
        source SOURCE: u16 = 4,
        /// DESTINATION CSCD DESCRIPTOR ID.
        destination DESTINATION: u16 = 6,
        /// BLOCK DEVICE NUMBER OF BLOCKS.
        blocks BLOCKS: u16 = 10,
        /// SOURCE BLOCK DEVICE LOGICAL BLOCK ADDRESS.
        source_lba SOURCE_LBA: u64 = 12,
        /// DESTINATION BLOCK DEVICE LOGICAL BLOCK ADDRESS.
        destination_lba DESTINATION_LBA: u64 = 20,
    }
}

impl BlockSegment {
    /// DESCRIPTOR LENGTH.
    pub const FOLLOWING: u16 = 0x18;

    /// So many blocks of the source, from one CSCD descriptor's unit to another's.
    pub fn new(source: (u16, u64), destination: (u16, u64), blocks: u16) -> BlockSegment {
        BlockSegment {
            kind: copy_descriptor::BLOCK_TO_BLOCK,
            following_bytes: BlockSegment::FOLLOWING,
            source: source.0,
            source_lba: source.1,
            destination: destination.0,
            destination_lba: destination.1,
            blocks,
            ..BlockSegment::ZERO
        }
    }
}

/// PARAMETER LIST FORMAT of EXTENDED COPY(LID4), and what goes with it.
pub mod copy_list_format {
    /// PARAMETER LIST FORMAT.
    pub const FORMAT: u8 = 0x01;
    /// HEADER CSCD DESCRIPTOR LIST LENGTH.
    pub const HEADER_CSCD_BYTES: u16 = 0x20;
    /// HEADER CSCD DESCRIPTOR TYPE CODE.
    pub const HEADER_CSCD_TYPE: u8 = 0xff;
}

impl CopyListLid4 {
    /// The parameter list with this header, whose lengths and formats it fills in.
    pub fn with(mut self, cscds: &[IdentificationCscd], segments: &[BlockSegment]) -> Vec<u8> {
        let cscds: Vec<u8> = cscds.iter().flat_map(|cscd| cscd.to_bytes()).collect();
        let segments: Vec<u8> = segments.iter().flat_map(|segment| segment.to_bytes()).collect();
        self.format = copy_list_format::FORMAT;
        self.header_cscd_bytes = copy_list_format::HEADER_CSCD_BYTES;
        self.header_cscd_type = copy_list_format::HEADER_CSCD_TYPE;
        self.cscd_bytes = u16::try_from(cscds.len()).unwrap_or(u16::MAX);
        self.segment_bytes = u16::try_from(segments.len()).unwrap_or(u16::MAX);
        [&self.to_bytes()[..], &cscds, &segments].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_copies_are_laid_out_as_the_standard_has_them() {
        let cscd = IdentificationCscd::of_naa(&[0x31, 1, 2, 3, 4, 5, 6, 7]).with_block_bytes(0x01_0200);
        let bytes = cscd.to_bytes();
        assert_eq!(bytes[..16], [0xe4, 0, 0, 0, 1, 3, 0, 8, 0x31, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((&bytes[28..], cscd.block_bytes()), (&[0, 1, 2, 0][..], 0x01_0200));
        assert_eq!(IdentificationCscd::read(&bytes), cscd);
        let segment = BlockSegment::new((0, 5), (1, 6), 7).to_bytes();
        assert_eq!(segment[..12], [0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!((segment[19], segment[27]), (5, 6));
    }

    #[test]
    fn registrations_are_laid_out_as_the_standard_has_them() {
        let status = FullStatus {
            key: 1,
            is_holder: true,
            kind: 5,
            target_port: 2,
            transport_id_bytes: 24,
            ..FullStatus::ZERO
        };
        let expected = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 2, 0, 0, 0, 24];
        assert_eq!(status.to_bytes(), expected);
    }
}
