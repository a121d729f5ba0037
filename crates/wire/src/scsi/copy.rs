//! Parameter lists and data of third-party copies: EXTENDED COPY, RECEIVE COPY RESULTS and its service actions, and the
//! descriptors of VPD page 8Fh (SPC-4 sections 6.4 to 6.6, 6.17 to 6.24 and 7.8.17).

use super::designator::{code_set, kind};
use super::field::layout;

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
        /// DISK BLOCK LENGTH, of 24 bits: its high byte; the rest follows.
        block_bytes_high BLOCK_BYTES_HIGH: u8 = 29,
        /// The low bytes.
        block_bytes_low BLOCK_BYTES_LOW: u16 = 30,
    }
}

impl IdentificationCscd {
    /// The logical unit with this NAA designator, of any block length.
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

    /// DISK BLOCK LENGTH; zero: not specified.
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

    /// This many blocks, from one CSCD descriptor's unit to another's.
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

/// PARAMETER LIST FORMAT of EXTENDED COPY(LID4), and the field that goes with it.
pub mod copy_list_format {
    /// PARAMETER LIST FORMAT.
    pub const FORMAT: u8 = 0x01;
    /// HEADER CSCD DESCRIPTOR LIST LENGTH.
    pub const HEADER_CSCD_BYTES: u16 = 0x20;
    /// HEADER CSCD DESCRIPTOR TYPE CODE.
    pub const HEADER_CSCD_TYPE: u8 = 0xff;
}

impl CopyListLid4 {
    /// The parameter list with this header, whose lengths and formats are filled in.
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

layout! {
    /// RECEIVE COPY STATUS(LID1) data.
    CopyStatusLid1 [12] {
        /// AVAILABLE DATA: of what follows this field.
        following_bytes FOLLOWING_BYTES: u32 = 0,
        /// COPY MANAGER STATUS ([`copy_manager_status`]).
        status STATUS: u8 = 4 & 0x7f,
        /// SEGMENTS PROCESSED.
        segments SEGMENTS: u16 = 5,
        /// TRANSFER COUNT UNITS: the exponent of 1024 by which the count is scaled.
        units UNITS: u8 = 7,
        /// TRANSFER COUNT.
        count COUNT: u32 = 8,
    }
}

/// COPY MANAGER STATUS.
pub mod copy_manager_status {
    /// The operation is in progress.
    pub const IN_PROGRESS: u8 = 0x00;
    /// It has completed without errors.
    pub const GOOD: u8 = 0x01;
    /// It has completed with errors.
    pub const FAILED: u8 = 0x02;
}

impl CopyStatusLid1 {
    /// The data for an operation that has transferred this many bytes.
    pub fn new(status: u8, segments: u16, bytes: u64) -> CopyStatusLid1 {
        let (mut units, mut count) = (0u8, bytes);
        while u32::try_from(count).is_err() {
            (units, count) = (units.saturating_add(1), count >> 10);
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        CopyStatusLid1 { following_bytes: 8, status, segments, units, count }
    }
}

layout! {
    /// RECEIVE COPY STATUS(LID4) data, before the sense data.
    CopyStatusLid4 [32] {
        /// AVAILABLE DATA: of what follows this field.
        following_bytes FOLLOWING_BYTES: u32 = 0,
        /// RESPONSE TO SERVICE ACTION.
        service_action SERVICE_ACTION: u8 = 4 & 0x1f,
        /// COPY OPERATION STATUS ([`copy_operation_status`]).
        operation OPERATION: u8 = 5 & 0x7f,
        /// OPERATION COUNTER.
        counter COUNTER: u16 = 6,
        /// ESTIMATED STATUS UPDATE DELAY, in milliseconds; all ones: unknown.
        update_delay UPDATE_DELAY: u32 = 8,
        /// EXTENDED COPY COMPLETION STATUS.
        status STATUS: u8 = 12,
        /// LENGTH OF THE SENSE DATA FIELD.
        sense_field_bytes SENSE_FIELD_BYTES: u8 = 13,
        /// SENSE DATA LENGTH.
        sense_bytes SENSE_BYTES: u8 = 14,
        /// TRANSFER COUNT UNITS; 0: bytes.
        units UNITS: u8 = 15,
        /// TRANSFER COUNT.
        count COUNT: u64 = 16,
        /// SEGMENTS PROCESSED.
        segments SEGMENTS: u16 = 24,
    }
}

/// COPY OPERATION STATUS.
pub mod copy_operation_status {
    /// The operation has completed without errors.
    pub const GOOD: u8 = 0x01;
    /// It has completed with errors.
    pub const FAILED: u8 = 0x02;
    /// It is in progress, in the foreground or background.
    pub const IN_PROGRESS: u8 = 0x10;
    /// It was aborted.
    pub const ABORTED: u8 = 0x60;
}

impl CopyStatusLid4 {
    /// ESTIMATED STATUS UPDATE DELAY: unknown.
    pub const DELAY_NOT_KNOWN: u32 = u32::MAX;

    /// The data followed by this sense data; fills in the lengths.
    pub fn with_sense(mut self, sense: &[u8]) -> Vec<u8> {
        self.sense_bytes = u8::try_from(sense.len()).unwrap_or(u8::MAX);
        self.sense_field_bytes = self.sense_bytes;
        self.following_bytes = following(CopyStatusLid4::BYTES, sense);
        [&self.to_bytes()[..], sense].concat()
    }
}

layout! {
    /// RECEIVE COPY FAILURE DETAILS(LID1) data, before the sense data; [`NO_DATA`] when nothing failed.
    CopyFailure [60] {
        /// AVAILABLE DATA: of what follows this field.
        following_bytes FOLLOWING_BYTES: u32 = 0,
        /// EXTENDED COPY COMMAND STATUS.
        status STATUS: u8 = 56,
        /// SENSE DATA LENGTH.
        sense_bytes SENSE_BYTES: u16 = 58,
    }
}

impl CopyFailure {
    /// The data for an operation that failed with this status and sense data.
    pub fn with_sense(status: u8, sense: &[u8]) -> Vec<u8> {
        let sense_bytes = u16::try_from(sense.len()).unwrap_or(u16::MAX);
        let failure =
            CopyFailure { following_bytes: following(CopyFailure::BYTES, sense), status, sense_bytes };
        [&failure.to_bytes()[..], sense].concat()
    }
}

/// AVAILABLE DATA alone, zero.
pub const NO_DATA: [u8; 4] = [0; 4];

/// AVAILABLE DATA, like all lengths of what follows their field, for data followed by this.
fn following(bytes: usize, behind: &[u8]) -> u32 {
    let following = bytes.saturating_add(behind.len()).saturating_sub(4);
    u32::try_from(following).unwrap_or(u32::MAX)
}

layout! {
    /// RECEIVE COPY OPERATING PARAMETERS data, before the list of descriptor types.
    CopyParameters [44] {
        /// AVAILABLE DATA: of what follows this field.
        following_bytes FOLLOWING_BYTES: u32 = 0,
        /// SNLID: an operation need not have a list identifier.
        can_omit_list_id CAN_OMIT_LIST_ID: bool = 4 & 0x01,
        /// MAXIMUM CSCD DESCRIPTOR COUNT.
        cscds_max CSCDS_MAX: u16 = 8,
        /// MAXIMUM SEGMENT DESCRIPTOR COUNT.
        segments_max SEGMENTS_MAX: u16 = 10,
        /// MAXIMUM DESCRIPTOR LIST LENGTH.
        descriptor_bytes_max DESCRIPTOR_BYTES_MAX: u32 = 12,
        /// MAXIMUM SEGMENT LENGTH; 0: any.
        segment_bytes_max SEGMENT_BYTES_MAX: u32 = 16,
        /// MAXIMUM INLINE DATA LENGTH.
        inline_bytes_max INLINE_BYTES_MAX: u32 = 20,
        /// HELD DATA LIMIT.
        held_bytes_max HELD_BYTES_MAX: u32 = 24,
        /// MAXIMUM STREAM DEVICE TRANSFER SIZE.
        stream_bytes_max STREAM_BYTES_MAX: u32 = 28,
        /// TOTAL CONCURRENT COPIES.
        copies_max COPIES_MAX: u16 = 34,
        /// MAXIMUM CONCURRENT COPIES: of those that have a list identifier.
        identified_copies_max IDENTIFIED_COPIES_MAX: u8 = 36,
        /// IMPLEMENTED DESCRIPTOR LIST LENGTH.
        types TYPES: u8 = 43,
    }
}

impl CopyParameters {
    /// The data followed by these descriptor types; fills in the lengths.
    pub fn with_types(mut self, types: &[u8]) -> Vec<u8> {
        self.types = u8::try_from(types.len()).unwrap_or(u8::MAX);
        self.following_bytes = following(CopyParameters::BYTES, types);
        [&self.to_bytes()[..], types].concat()
    }
}

/// DESCRIPTOR TYPE of third-party copy descriptors, those of VPD page 8Fh (SPC-4 section 7.8.17).
pub mod third_party {
    /// Supported commands.
    pub const COMMANDS: u16 = 0x0001;
    /// Parameter data ([`super::ThirdPartyLimits`]).
    pub const LIMITS: u16 = 0x0004;
    /// Supported descriptors.
    pub const DESCRIPTORS: u16 = 0x0008;
    /// Supported CSCD descriptor IDs.
    pub const CSCD_IDS: u16 = 0x000c;
    /// General copy operations ([`super::ThirdPartyGeneral`]).
    pub const GENERAL: u16 = 0x8001;
}

layout! {
    /// The header of a third-party copy descriptor.
    ThirdPartyHeader [4] {
        /// DESCRIPTOR TYPE ([`third_party`]).
        kind KIND: u16 = 0,
        /// DESCRIPTOR LENGTH: of what follows this field, a multiple of four.
        following_bytes FOLLOWING_BYTES: u16 = 2,
    }
}

impl ThirdPartyHeader {
    /// A descriptor with this body, padded to a multiple of four.
    pub fn with_body(kind: u16, body: &[u8]) -> Vec<u8> {
        let bytes = body.len().next_multiple_of(4);
        let header = ThirdPartyHeader { kind, following_bytes: u16::try_from(bytes).unwrap_or(u16::MAX) };
        let mut descriptor = [&header.to_bytes()[..], body].concat();
        descriptor.resize(ThirdPartyHeader::BYTES.saturating_add(bytes), 0);
        descriptor
    }
}

layout! {
    /// The body of the descriptor with limits on parameter lists.
    ThirdPartyLimits [28] {
        /// MAXIMUM CSCD DESCRIPTOR COUNT.
        cscds_max CSCDS_MAX: u16 = 4,
        /// MAXIMUM SEGMENT DESCRIPTOR COUNT.
        segments_max SEGMENTS_MAX: u16 = 6,
        /// MAXIMUM DESCRIPTOR LIST LENGTH.
        descriptor_bytes_max DESCRIPTOR_BYTES_MAX: u32 = 8,
        /// MAXIMUM INLINE DATA LENGTH.
        inline_bytes_max INLINE_BYTES_MAX: u32 = 12,
    }
}

layout! {
    /// The body of the descriptor of general copy operations.
    ThirdPartyGeneral [32] {
        /// TOTAL CONCURRENT COPIES.
        copies_max COPIES_MAX: u32 = 0,
        /// MAXIMUM IDENTIFIED CONCURRENT COPIES.
        identified_copies_max IDENTIFIED_COPIES_MAX: u32 = 4,
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
    fn what_is_known_of_copies_is_laid_out_as_the_standard_has_it() {
        let status = CopyStatusLid1::new(copy_manager_status::GOOD, 3, 5 << 32);
        assert_eq!(status.to_bytes(), [0, 0, 0, 8, 1, 0, 3, 1, 1, 0x40, 0, 0]);
        let failure = CopyFailure::with_sense(2, b"sense");
        assert_eq!(
            (failure.len(), &failure[..4], &failure[56..60]),
            (65, &[0, 0, 0, 61][..], &[2, 0, 0, 5][..])
        );
        let status = CopyStatusLid4 {
            operation: copy_operation_status::ABORTED,
            count: 7,
            segments: 1,
            ..CopyStatusLid4::ZERO
        };
        let data = status.with_sense(b"sense");
        assert_eq!((data.len(), &data[..6]), (37, &[0, 0, 0, 33, 0, 0x60][..]));
        assert_eq!(
            (&data[12..16], data[23], data[25], &data[32..]),
            (&[0, 5, 5, 0][..], 7, 1, &b"sense"[..])
        );
        let parameters = CopyParameters { can_omit_list_id: true, copies_max: 64, ..CopyParameters::ZERO };
        let data = parameters.with_types(&[2, 0xe4]);
        assert_eq!((&data[..5], data[35], &data[43..]), (&[0, 0, 0, 42, 1][..], 64, &[2, 2, 0xe4][..]));
        assert_eq!(ThirdPartyHeader::with_body(third_party::DESCRIPTORS, &[1]), [0, 8, 0, 4, 1, 0, 0, 0]);
    }
}
