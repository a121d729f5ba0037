//! Vital product data (VPD) pages (SPC-4 section 7.8, SBC-4 section 6.6).

use super::Field;
use super::field::layout;

/// PAGE CODE.
pub mod page {
    /// Supported VPD pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Unit serial number.
    pub const SERIAL_NUMBER: u8 = 0x80;
    /// Device identification.
    pub const IDENTIFICATION: u8 = 0x83;
    /// Management network addresses.
    pub const MANAGEMENT_ADDRESSES: u8 = 0x85;
    /// Extended INQUIRY data.
    pub const EXTENDED_INQUIRY: u8 = 0x86;
    /// Mode page policy.
    pub const MODE_PAGE_POLICY: u8 = 0x87;
    /// SCSI ports.
    pub const PORTS: u8 = 0x88;
    /// ATA information.
    pub const ATA_INFORMATION: u8 = 0x89;
    /// Third-party copy.
    pub const THIRD_PARTY_COPY: u8 = 0x8f;
    /// Block limits.
    pub const BLOCK_LIMITS: u8 = 0xb0;
    /// Block device characteristics.
    pub const CHARACTERISTICS: u8 = 0xb1;
    /// Logical block provisioning.
    pub const PROVISIONING: u8 = 0xb2;

    /// What a page is about.
    pub fn name(code: u8) -> &'static str {
        match code {
            SUPPORTED => "supported pages",
            SERIAL_NUMBER => "unit serial number",
            IDENTIFICATION => "device identification",
            0x84 => "software interface identification",
            MANAGEMENT_ADDRESSES => "management network addresses",
            EXTENDED_INQUIRY => "extended INQUIRY data",
            MODE_PAGE_POLICY => "mode page policy",
            PORTS => "SCSI ports",
            ATA_INFORMATION => "ATA information",
            0x8a => "power condition",
            0x8b => "device constituents",
            0x8c => "CFA profile",
            0x8d => "power consumption",
            THIRD_PARTY_COPY => "third-party copy",
            BLOCK_LIMITS => "block limits",
            CHARACTERISTICS => "block device characteristics",
            PROVISIONING => "logical block provisioning",
            0xb3 => "referrals",
            0xb4 => "supported block lengths and protection types",
            0xb5 => "block device characteristics extension",
            0xb6 => "zoned block device characteristics",
            0xb7 => "block limits extension",
            0xc0.. => "vendor-specific",
            _ => "unknown",
        }
    }
}

/// Bytes of a page's header.
pub const HEADER_BYTES: usize = 4;

/// PAGE CODE.
pub const PAGE_CODE: Field<u8> = Field::at(1);
/// PAGE LENGTH: of what follows the header.
pub const PAGE_LENGTH: Field<u16> = Field::at(2);

/// The header of a page with a body of this many bytes, after PERIPHERAL QUALIFIER and PERIPHERAL DEVICE
/// TYPE.
pub fn header(peripheral: u8, code: u8, body_bytes: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = u16::try_from(body_bytes).unwrap_or(u16::MAX).to_be_bytes();
    [peripheral, code, high, low]
}

/// The bytes of a page, according to its length, if it is the requested one.
pub fn part(data: &[u8], code: u8) -> Option<&[u8]> {
    let len = usize::from(PAGE_LENGTH.get(data)?).saturating_add(HEADER_BYTES);
    (PAGE_CODE.get(data)? == code).then(|| data.get(..len).unwrap_or(data))
}

/// The body of a page.
pub fn body(page: &[u8]) -> &[u8] {
    page.get(HEADER_BYTES..).unwrap_or_default()
}

/// Declares pages of fixed length.
macro_rules! pages {
    ($( $(#[$doc:meta])* $name:ident = $code:ident [$len:literal] { $($fields:tt)* } )*) => { $(
        layout! {
            $(#[$doc])*
            $name [$len] { $($fields)* }
        }

        impl $name {
            /// The page with its header, for a connected unit.
            pub fn to_page(self) -> [u8; $len] {
                let mut page = self.to_bytes();
                let header = header(0, page::$code, $name::BYTES.saturating_sub(HEADER_BYTES));
                page.iter_mut().zip(header).for_each(|(slot, byte)| *slot = byte);
                page
            }
        }
    )* };
}

pages! {
    /// Extended INQUIRY data.
    ExtendedInquiry = EXTENDED_INQUIRY [64] {
        /// GRD_CHK.
        checks_guard CHECKS_GUARD: bool = 4 & 0x04,
        /// HEADSUP.
        head_of_queue HEAD_OF_QUEUE: bool = 5 & 0x04,
        /// ORDSUP.
        ordered ORDERED: bool = 5 & 0x02,
        /// SIMPSUP.
        simple SIMPLE: bool = 5 & 0x01,
        /// NV_SUP.
        nonvolatile_cache NONVOLATILE_CACHE: bool = 6 & 0x02,
        /// V_SUP.
        volatile_cache VOLATILE_CACHE: bool = 6 & 0x01,
    }

    /// Block limits, in blocks; zero: no limit is reported or, for UNMAP and others, it is not supported.
    BlockLimits = BLOCK_LIMITS [64] {
        /// WSNZ: WRITE SAME of zero blocks is refused.
        write_same_nonzero WRITE_SAME_NONZERO: bool = 4 & 0x01,
        /// MAXIMUM COMPARE AND WRITE LENGTH.
        compare_and_write_max COMPARE_AND_WRITE_MAX: u8 = 5,
        /// OPTIMAL TRANSFER LENGTH GRANULARITY.
        transfer_granularity TRANSFER_GRANULARITY: u16 = 6,
        /// MAXIMUM TRANSFER LENGTH.
        transfer_max TRANSFER_MAX: u32 = 8,
        /// OPTIMAL TRANSFER LENGTH.
        transfer_optimal TRANSFER_OPTIMAL: u32 = 12,
        /// MAXIMUM PREFETCH LENGTH.
        prefetch_max PREFETCH_MAX: u32 = 16,
        /// MAXIMUM UNMAP LBA COUNT.
        unmap_blocks_max UNMAP_BLOCKS_MAX: u32 = 20,
        /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
        unmap_descriptors_max UNMAP_DESCRIPTORS_MAX: u32 = 24,
        /// OPTIMAL UNMAP GRANULARITY.
        unmap_granularity UNMAP_GRANULARITY: u32 = 28,
        /// UGAVALID and UNMAP GRANULARITY ALIGNMENT.
        unmap_alignment UNMAP_ALIGNMENT: u32 = 32,
        /// MAXIMUM WRITE SAME LENGTH.
        write_same_max WRITE_SAME_MAX: u64 = 36,
        /// MAXIMUM ATOMIC TRANSFER LENGTH.
        atomic_max ATOMIC_MAX: u32 = 44,
        /// ATOMIC ALIGNMENT.
        atomic_alignment ATOMIC_ALIGNMENT: u32 = 48,
        /// ATOMIC TRANSFER LENGTH GRANULARITY.
        atomic_granularity ATOMIC_GRANULARITY: u32 = 52,
    }

    /// Block device characteristics.
    Characteristics = CHARACTERISTICS [64] {
        /// MEDIUM ROTATION RATE; 1: non-rotating.
        rotation_rate ROTATION_RATE: u16 = 4,
        /// WABEREQ: what reads return after a block erase.
        block_erase BLOCK_ERASE: u8 = 7 & 0xc0,
        /// WACEREQ: what reads return after a cryptographic erase.
        cryptographic_erase CRYPTOGRAPHIC_ERASE: u8 = 7 & 0x30,
        /// NOMINAL FORM FACTOR.
        form_factor FORM_FACTOR: u8 = 7 & 0x0f,
        /// ZONED.
        zoned ZONED: u8 = 8 & 0x30,
    }

    /// Logical block provisioning.
    Provisioning = PROVISIONING [8] {
        /// THRESHOLD EXPONENT.
        threshold_exponent THRESHOLD_EXPONENT: u8 = 4,
        /// LBPU: UNMAP.
        unmap UNMAP: bool = 5 & 0x80,
        /// LBPWS: WRITE SAME(16) unmaps.
        write_same_16 WRITE_SAME_16: bool = 5 & 0x40,
        /// LBPWS10: WRITE SAME(10) unmaps.
        write_same_10 WRITE_SAME_10: bool = 5 & 0x20,
        /// LBPRZ: what unmapped blocks read as; 1 and any other odd value: zeros.
        zeros ZEROS: u8 = 5 & 0x1c,
        /// ANC_SUP: blocks can be anchored.
        anchors ANCHORS: bool = 5 & 0x02,
        /// PROVISIONING TYPE ([`THIN`]).
        kind KIND: u8 = 6 & 0x07,
    }
}

/// UGAVALID of [`BlockLimits::UNMAP_ALIGNMENT`].
pub const UNMAP_ALIGNMENT_VALID: u32 = 0x8000_0000;
/// PROVISIONING TYPE: thin.
pub const THIN: u8 = 2;
/// MEDIUM ROTATION RATE: non-rotating.
pub const SOLID_STATE: u16 = 1;

layout! {
    /// A mode page policy descriptor.
    ModePagePolicy [4] {
        /// POLICY PAGE CODE; 3Fh: all pages.
        page PAGE: u8 = 0 & 0x3f,
        /// POLICY SUBPAGE CODE; FFh: all subpages.
        subpage SUBPAGE: u8 = 1,
        /// MLUS: pages are shared by logical units.
        multiple_units MULTIPLE_UNITS: bool = 2 & 0x80,
        /// MODE PAGE POLICY; 0: shared by all nexuses.
        policy POLICY: u8 = 2 & 0x03,
    }
}

impl ModePagePolicy {
    /// All nexuses share all pages.
    pub const SHARED: ModePagePolicy =
        ModePagePolicy { page: 0x3f, subpage: 0xff, multiple_units: false, policy: 0 };
}

layout! {
    /// The page of ATA information, before the IDENTIFY DEVICE data (SAT-3 section 12.4.2).
    AtaInformation [60] {
        /// SAT VENDOR IDENTIFICATION.
        vendor VENDOR: [u8; 8] = 8,
        /// SAT PRODUCT IDENTIFICATION.
        product PRODUCT: [u8; 16] = 16,
        /// SAT PRODUCT REVISION LEVEL.
        revision REVISION: [u8; 4] = 32,
        /// ATA DEVICE SIGNATURE ([`DeviceToHost`]).
        signature SIGNATURE: [u8; 20] = 36,
        /// COMMAND CODE: the command that returned the data.
        command COMMAND: u8 = 56,
    }
}

layout! {
    /// A Register - Device to Host FIS, in which a device reports its signature.
    DeviceToHost [20] {
        /// FIS TYPE ([`DeviceToHost::FIS`]).
        fis_type FIS_TYPE: u8 = 0,
        /// STATUS.
        status STATUS: u8 = 2,
        /// ERROR; in a signature 1: no fault.
        error ERROR: u8 = 3,
        /// LBA (7:0); in a signature 1.
        lba LBA: u8 = 4,
        /// COUNT (7:0); in a signature 1.
        count COUNT: u8 = 12,
    }
}

impl DeviceToHost {
    /// FIS TYPE.
    pub const FIS: u8 = 0x34;

    /// The signature of an ATA device with this status, as after a reset.
    pub fn signature(status: u8) -> DeviceToHost {
        DeviceToHost { fis_type: DeviceToHost::FIS, status, error: 1, lba: 1, count: 1 }
    }
}

layout! {
    /// What precedes the names of a port in the SCSI ports page, for a target without initiator ports.
    PortHeader [12] {
        /// RELATIVE PORT IDENTIFIER.
        relative_id RELATIVE_ID: u16 = 2,
        /// INITIATOR PORT TRANSPORTID LENGTH.
        initiator_bytes INITIATOR_BYTES: u16 = 6,
        /// TARGET PORT DESCRIPTORS LENGTH.
        names_bytes NAMES_BYTES: u16 = 10,
    }
}

/// The ports in that page: relative identifiers, and the designators of each, up to the first incomplete one.
pub fn ports(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let relative_id = PortHeader::RELATIVE_ID.get(rest)?;
        // The TransportID of an initiator port precedes the length of the names.
        let initiator_bytes = usize::from(PortHeader::INITIATOR_BYTES.get(rest)?);
        let rest_of_port = rest.get(initiator_bytes.saturating_add(8)..)?;
        let names_bytes = usize::from(Field::<u16>::at(2).get(rest_of_port)?);
        let names = rest_of_port.get(4..)?;
        rest = names.get(names_bytes..).unwrap_or_default();
        Some((relative_id, names.get(..names_bytes).unwrap_or(names)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_laid_out_as_the_standard_has_them() {
        let limits =
            BlockLimits { unmap_blocks_max: u32::MAX, unmap_descriptors_max: 256, ..BlockLimits::default() };
        let page = limits.to_page();
        assert_eq!((page.len(), page[..4].to_vec()), (64, vec![0, 0xb0, 0, 60]));
        assert_eq!(page[20..28], [0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0]);
        assert_eq!(BlockLimits::read(&page), limits);
        let thin = Provisioning { unmap: true, zeros: 1, kind: THIN, ..Provisioning::default() };
        assert_eq!(thin.to_page(), [0, 0xb2, 0, 4, 0, 0x84, 2, 0]);
        assert_eq!(
            Characteristics { rotation_rate: 1, ..Characteristics::default() }.to_page()[..6],
            [0, 0xb1, 0, 60, 0, 1]
        );
    }

    #[test]
    fn a_page_is_as_long_as_it_says_and_the_one_that_was_requested() {
        assert_eq!(part(&[0, 0x80, 0, 2, b'a', b'b', b'c'], 0x80).map(body), Some(&b"ab"[..]));
        assert_eq!(part(&[0, 0x80, 0xff, 0xff, b'a'], 0x80).map(body), Some(&b"a"[..]));
        assert_eq!(part(&[0, 0x00, 0, 1, 0x80], 0x80), None);
        assert_eq!(part(&[0, 0x80, 0], 0x80), None);
    }

    #[test]
    fn ports_are_read_as_they_were_written() {
        let port = PortHeader { relative_id: 7, initiator_bytes: 0, names_bytes: 2 }.to_bytes();
        let body = [&port[..], b"ab", &port[..10]].concat();
        assert_eq!(ports(&body).collect::<Vec<_>>(), [(7, &b"ab"[..])]);
    }
}
