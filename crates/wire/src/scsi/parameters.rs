//! Parameter lists and data of commands on reservations, copies and target ports (SPC-4 clause 6).

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
