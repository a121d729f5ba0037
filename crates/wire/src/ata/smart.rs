//! SMART (ACS-3 section 7.48, and the layouts that all disks have kept since the standard dropped them).

use super::{Command, Registers, Transfer};
use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// LBA bits 8 to 23 of every SMART command, and of SMART RETURN STATUS when no threshold was exceeded.
pub const SIGNATURE: u16 = 0xc24f;
/// The same when a threshold was exceeded.
pub const SIGNATURE_FAILING: u16 = 0x2cf4;

/// SMART commands, in FEATURE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// SMART READ DATA.
    ReadData,
    /// SMART READ THRESHOLDS, obsolete but used by every tool.
    ReadThresholds,
    /// SMART ENABLE/DISABLE ATTRIBUTE AUTOSAVE.
    Autosave,
    /// SMART EXECUTE OFF-LINE IMMEDIATE.
    ExecuteOffline,
    /// SMART READ LOG.
    ReadLog,
    /// SMART WRITE LOG.
    WriteLog,
    /// SMART ENABLE OPERATIONS.
    Enable,
    /// SMART DISABLE OPERATIONS.
    Disable,
    /// SMART RETURN STATUS.
    ReturnStatus,
    /// SMART ENABLE/DISABLE AUTOMATIC OFF-LINE, obsolete.
    AutomaticOffline,
}

impl Function {
    const ALL: [Function; 10] = [
        Function::ReadData,
        Function::ReadThresholds,
        Function::Autosave,
        Function::ExecuteOffline,
        Function::ReadLog,
        Function::WriteLog,
        Function::Enable,
        Function::Disable,
        Function::ReturnStatus,
        Function::AutomaticOffline,
    ];

    /// The SMART command in these registers; `None` when unknown or without the signature.
    pub fn of(registers: &Registers) -> Option<Function> {
        if registers.lba >> 8 & 0xffff != u64::from(SIGNATURE) {
            return None;
        }
        Function::ALL.into_iter().find(|function| function.feature() == registers.feature & 0xff)
    }

    /// The command's registers, with this COUNT.
    pub fn registers(self, count: u16) -> Registers {
        let feature = self.feature();
        Registers { feature, ..Registers::new(Command::Smart, u64::from(SIGNATURE) << 8, count) }
    }

    const fn feature(self) -> u16 {
        match self {
            Function::ReadData => 0xd0,
            Function::ReadThresholds => 0xd1,
            Function::Autosave => 0xd2,
            Function::ExecuteOffline => 0xd4,
            Function::ReadLog => 0xd5,
            Function::WriteLog => 0xd6,
            Function::Enable => 0xd8,
            Function::Disable => 0xd9,
            Function::ReturnStatus => 0xda,
            Function::AutomaticOffline => 0xdb,
        }
    }
}

/// What a SMART command transfers.
pub(super) fn transfer(registers: &Registers) -> Transfer {
    match Function::of(registers) {
        Some(Function::ReadData | Function::ReadThresholds) => Transfer::In(1),
        Some(Function::ReadLog) => Transfer::In(u32::from(registers.count & 0xff)),
        Some(Function::WriteLog) => Transfer::Out(u32::from(registers.count & 0xff)),
        Some(
            Function::Autosave
            | Function::ExecuteOffline
            | Function::Enable
            | Function::Disable
            | Function::ReturnStatus
            | Function::AutomaticOffline,
        )
        | None => Transfer::Nothing,
    }
}

/// The LBA that SMART RETURN STATUS returns.
pub fn status_lba(lba: u64, failing: bool) -> u64 {
    let signature = if failing { SIGNATURE_FAILING } else { SIGNATURE };
    lba & !0x00ff_ff00 | u64::from(signature) << 8
}

/// An attribute in SMART data.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Attribute {
    /// The attribute's ID; zero: none.
    pub id: u8,
    /// Bit 0: pre-failure; bit 1: collected online.
    pub flags: U16,
    /// Normalized value, the higher the better.
    pub current: u8,
    /// The lowest value so far.
    pub worst: u8,
    /// Raw value, little-endian.
    pub raw: [u8; 6],
    /// Reserved.
    pub reserved: u8,
}

/// The threshold of an attribute.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Threshold {
    /// The attribute's ID.
    pub id: u8,
    /// Its threshold.
    pub threshold: u8,
    /// Reserved.
    pub reserved: [u8; 10],
}

/// Attribute slots.
pub const ATTRIBUTES_MAX: usize = 30;

/// SMART data (ACS-3 table 130).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Data {
    /// Revision of this layout.
    pub revision: U16,
    /// Attributes.
    pub attributes: [Attribute; ATTRIBUTES_MAX],
    /// Off-line data collection status.
    pub offline_status: u8,
    /// Self-test execution status; zero: the last one succeeded.
    pub self_test_status: u8,
    /// Seconds that off-line data collection takes.
    pub offline_seconds: U16,
    vendor: u8,
    /// Off-line data collection capability.
    pub offline_capability: u8,
    /// SMART capability.
    pub capability: U16,
    /// Error logging capability.
    pub error_logging: u8,
    vendor_2: u8,
    /// Minutes that a short self-test takes.
    pub short_test_minutes: u8,
    /// Minutes that an extended self-test takes.
    pub extended_test_minutes: u8,
    reserved: [u8; 137],
    /// See [`seal`].
    pub checksum: u8,
}

/// What SMART READ THRESHOLDS returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Thresholds {
    /// Revision of this layout.
    pub revision: U16,
    /// Thresholds, in attribute order.
    pub thresholds: [Threshold; ATTRIBUTES_MAX],
    reserved: [u8; 149],
    /// See [`seal`].
    pub checksum: u8,
}

/// Bytes in each structure here, and in each page of a log.
pub const PAGE_BYTES: usize = 512;

/// Logs that SMART READ LOG and READ LOG EXT can address, in LBA bits 0 to 7.
pub mod log {
    /// Log directory; each of the two commands lists the logs that it can read.
    pub const DIRECTORY: u8 = 0x00;
    /// Summary SMART error log.
    pub const SUMMARY_ERRORS: u8 = 0x01;
    /// Extended comprehensive SMART error log, by READ LOG EXT.
    pub const ERRORS_EXT: u8 = 0x03;
    /// SMART self-test log.
    pub const SELF_TESTS: u8 = 0x06;
    /// Extended SMART self-test log, by READ LOG EXT.
    pub const SELF_TESTS_EXT: u8 = 0x07;
}

impl Data {
    /// With no attributes, errors or tests.
    pub fn new() -> Data {
        Data { revision: U16::new(REVISION), ..zerocopy::FromZeros::new_zeroed() }
    }

    /// Its bytes, with the checksum.
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        sealed(self.as_bytes())
    }

    /// Parses a page; `None` when it is too short, or its checksum is wrong.
    pub fn decode(page: &[u8]) -> Option<Data> {
        Data::read_from_bytes(page.first_chunk().filter(|page| is_whole(page))?).ok()
    }
}

impl Default for Data {
    fn default() -> Data {
        Data::new()
    }
}

impl Thresholds {
    /// With no thresholds.
    pub fn new() -> Thresholds {
        Thresholds { revision: U16::new(REVISION), ..zerocopy::FromZeros::new_zeroed() }
    }

    /// Its bytes, with the checksum.
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        sealed(self.as_bytes())
    }

    /// Parses a page; `None` when it is too short, or its checksum is wrong.
    pub fn decode(page: &[u8]) -> Option<Thresholds> {
        Thresholds::read_from_bytes(page.first_chunk().filter(|page| is_whole(page))?).ok()
    }
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds::new()
    }
}

/// The log directory of a device that has one page of each of these logs (ACS-3 section A.2).
pub fn log_directory(logs: &[u8]) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    let mut words = page.chunks_exact_mut(2);
    if let Some([version, _]) = words.next() {
        *version = 1;
    }
    for (at, word) in (1u16..).zip(words) {
        if let [pages, _] = word
            && logs.iter().any(|log| u16::from(*log) == at)
        {
            *pages = 1;
        }
    }
    page
}

/// An error log without errors, or a self-test log without tests: the version, and the checksum.
pub fn empty_log() -> [u8; PAGE_BYTES] {
    sealed(&[1])
}

/// A page that begins with these bytes and ends with the checksum: all bytes sum to zero (ACS-3 table 130).
fn sealed(bytes: &[u8]) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    for (slot, byte) in page.iter_mut().zip(bytes) {
        *slot = *byte;
    }
    if let Some((checksum, rest)) = page.split_last_mut() {
        *checksum = sum(rest).wrapping_neg();
    }
    page
}

/// Whether the checksum of a page is right.
pub fn is_whole(page: &[u8; PAGE_BYTES]) -> bool {
    sum(page) == 0
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// The revision that disks report.
const REVISION: u16 = 0x0010;

const _: () = assert!(size_of::<Data>() == PAGE_BYTES && size_of::<Thresholds>() == PAGE_BYTES);
const _: () = assert!(std::mem::offset_of!(Data, offline_status) == 362);
const _: () = assert!(std::mem::offset_of!(Data, capability) == 368);

#[cfg(test)]
mod tests {
    use super::*;

    fn smart(feature: u16, count: u16) -> Registers {
        Registers { feature, ..Registers::new(Command::Smart, u64::from(SIGNATURE) << 8, count) }
    }

    #[test]
    fn a_command_is_recognized_by_feature_and_signature() {
        assert_eq!(Function::of(&smart(0xd0, 0)), Some(Function::ReadData));
        assert_eq!(Function::of(&Registers { lba: 0, ..smart(0xd0, 0) }), None);
        assert_eq!(Function::of(&smart(0x00, 0)), None);
        assert!(Function::ALL.into_iter().all(|one| Function::of(&one.registers(1)) == Some(one)));
    }

    #[test]
    fn a_command_moves_what_it_is_for() {
        assert_eq!(smart(0xd0, 0).transfer(), Transfer::In(1));
        assert_eq!(smart(0xd5, 2).transfer(), Transfer::In(2));
        assert_eq!(smart(0xd6, 1).transfer(), Transfer::Out(1));
        assert_eq!(smart(0xda, 1).transfer(), Transfer::Nothing);
    }

    #[test]
    fn all_bytes_of_a_page_make_zero() {
        let mut data = Data { self_test_status: 3, ..Data::new() };
        data.attributes[0] = Attribute { id: 9, current: 100, worst: 100, ..Attribute::default() };
        for page in [data.encode(), Thresholds::new().encode(), empty_log()] {
            assert!(is_whole(&page));
            assert_ne!(page[511], 0);
        }
        assert_eq!(data.encode()[2], 9);
        let decoded = Data::decode(&data.encode()).unwrap();
        assert_eq!(decoded.attributes, data.attributes);
        assert_eq!(Data::decode(&data.encode()[..511]), None);
        assert_eq!(Thresholds::decode(&[&[1; 511][..], &[2]].concat()), None, "its checksum is wrong");
        assert_eq!(
            Thresholds::decode(&Thresholds::new().encode()).map(|read| read.thresholds[0].id),
            Some(0)
        );
        assert_eq!(data.encode()[363], 3);
    }

    #[test]
    fn a_status_is_in_the_middle_of_the_lba() {
        assert_eq!(status_lba(0x0012_3456, false), 0x00c2_4f56);
        assert_eq!(status_lba(0x0012_3456, true), 0x002c_f456);
    }

    #[test]
    fn the_directory_lists_what_there_is() {
        let page = log_directory(&[log::SUMMARY_ERRORS, log::SELF_TESTS]);
        let words: Vec<u16> = page.chunks(2).map(|word| u16::from_le_bytes([word[0], word[1]])).collect();
        assert_eq!(words[..8], [1, 1, 0, 0, 0, 0, 1, 0]);
        assert!(words[8..].iter().all(|word| *word == 0));
    }
}
