//! Standard INQUIRY data (SPC-4 section 6.6.2).

use super::field::{Value, layout};

layout! {
    /// Standard INQUIRY data.
    StandardData [96] {
        /// PERIPHERAL QUALIFIER ([`qualifier`]).
        qualifier QUALIFIER: u8 = 0 & 0xe0,
        /// PERIPHERAL DEVICE TYPE ([`device_type`]).
        device_type DEVICE_TYPE: u8 = 0 & 0x1f,
        /// RMB.
        removable REMOVABLE: bool = 1 & 0x80,
        /// VERSION ([`SPC_4`]).
        version VERSION: u8 = 2,
        /// HISUP: LUNs are reported in the hierarchical addressing model.
        hierarchical HIERARCHICAL: bool = 3 & 0x10,
        /// RESPONSE DATA FORMAT, which is 2.
        format FORMAT: u8 = 3 & 0x0f,
        /// ADDITIONAL LENGTH: of what follows byte 4.
        additional_bytes ADDITIONAL_BYTES: u8 = 4,
        /// TPGS: bit 0 is implicit, bit 1 is explicit asymmetric access.
        target_port_groups TARGET_PORT_GROUPS: u8 = 5 & 0x30,
        /// 3PC.
        third_party_copy THIRD_PARTY_COPY: bool = 5 & 0x08,
        /// PROTECT.
        protection PROTECTION: bool = 5 & 0x01,
        /// MULTIP.
        multiple_ports MULTIPLE_PORTS: bool = 6 & 0x10,
        /// CMDQUE.
        command_queuing COMMAND_QUEUING: bool = 7 & 0x02,
        /// T10 VENDOR IDENTIFICATION.
        vendor VENDOR: [u8; 8] = 8,
        /// PRODUCT IDENTIFICATION.
        product PRODUCT: [u8; 16] = 16,
        /// PRODUCT REVISION LEVEL.
        revision REVISION: [u8; 4] = 32,
        /// Vendor specific bytes.
        vendor_specific VENDOR_SPECIFIC: [u8; 20] = 36,
        /// VERSION DESCRIPTORs ([`standard`]); zero: none.
        standards STANDARDS: [u16; 8] = 58,
    }
}

/// Bytes that every device server sends: without vendor specific bytes and version descriptors.
pub const SHORT_BYTES: usize = 36;

impl StandardData {
    /// The data truncated to this length, with ADDITIONAL LENGTH set to match.
    pub fn cut(self, bytes: usize) -> ([u8; StandardData::BYTES], usize) {
        let bytes = bytes.clamp(SHORT_BYTES, StandardData::BYTES);
        let additional_bytes = u8::try_from(bytes.saturating_sub(5)).unwrap_or(0);
        (StandardData { additional_bytes, ..self }.to_bytes(), bytes)
    }

    /// The bytes that belong to the data, according to ADDITIONAL LENGTH.
    pub fn part(data: &[u8]) -> &[u8] {
        let len = StandardData::ADDITIONAL_BYTES.get(data).map_or(0, usize::from).saturating_add(5);
        data.get(..len).unwrap_or(data)
    }
}

impl Value for [u16; 8] {
    const ZERO: [u16; 8] = [0; 8];

    fn get(bytes: &[u8], at: usize, _: u8) -> Option<[u16; 8]> {
        // Missing descriptors at the end read as zero.
        let fields = bytes.get(at..)?;
        Some(std::array::from_fn(|n| u16::get(fields, n.saturating_mul(2), 0xff).unwrap_or(0)))
    }

    fn set(self, bytes: &mut [u8], at: usize, _: u8) {
        let fields = self.into_iter().flat_map(u16::to_be_bytes);
        bytes.iter_mut().skip(at).zip(fields).for_each(|(slot, byte)| *slot = byte);
    }
}

/// Lunette's use of the vendor specific bytes; other devices' must not be read this way.
pub mod lunette {
    use crate::scsi::Field;

    /// T10 VENDOR IDENTIFICATION.
    pub const VENDOR: &str = "LUNETTE ";
    /// The incarnation of the unit's store; zeros: not reported.
    pub const INCARNATION: Field<[u8; 16]> = Field::at(36);
    /// A session that replaces another one gets no answer, not even to its login, until the commands of the
    /// replaced one have ended.
    pub const WITHHOLDS_LOGINS: Field<bool> = Field::bits(52, 0x01);
}

/// Left-aligned ASCII, padded with spaces, as in VENDOR, PRODUCT and REVISION.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [b' '; N];
    bytes.iter_mut().zip(text.bytes()).for_each(|(slot, byte)| *slot = byte);
    bytes
}

/// VERSION for conformance to SPC-4.
pub const SPC_4: u8 = 0x06;
/// RESPONSE DATA FORMAT.
pub const FORMAT: u8 = 2;

/// PERIPHERAL QUALIFIER.
pub mod qualifier {
    /// A unit is connected.
    pub const CONNECTED: u8 = 0;
    /// There is no unit at this LUN.
    pub const NO_UNIT: u8 = 3;
}

/// PERIPHERAL DEVICE TYPE.
pub mod device_type {
    /// Direct access block device.
    pub const DISK: u8 = 0x00;
    /// Write-once device.
    pub const WRITE_ONCE: u8 = 0x04;
    /// Optical memory.
    pub const OPTICAL: u8 = 0x07;
    /// Simplified direct access device.
    pub const SIMPLIFIED: u8 = 0x0e;
    /// Host managed zoned block device.
    pub const ZONED: u8 = 0x14;
    /// Unknown, or no device.
    pub const NONE: u8 = 0x1f;

    /// Its name.
    pub fn name(code: u8) -> &'static str {
        match code {
            DISK => "direct access block device (disk)",
            0x01 => "sequential access device (tape)",
            0x02 => "printer",
            0x03 => "processor",
            WRITE_ONCE => "write-once device",
            0x05 => "CD/DVD",
            OPTICAL => "optical memory",
            0x08 => "medium changer",
            0x0c => "storage array controller",
            0x0d => "enclosure services",
            SIMPLIFIED => "simplified direct access device",
            0x11 => "object storage",
            0x12 => "automation/drive interface",
            ZONED => "host managed zoned block device",
            0x1e => "well-known logical unit",
            NONE => "unknown or no device",
            _ => "reserved device type",
        }
    }
}

/// The standard that VERSION claims; `None`: unknown.
pub fn version_name(version: u8) -> Option<&'static str> {
    match version {
        0x00 => Some("no standard"),
        0x03 => Some("SPC"),
        0x04 => Some("SPC-2"),
        0x05 => Some("SPC-3"),
        SPC_4 => Some("SPC-4"),
        0x07 => Some("SPC-5"),
        0x0d => Some("SPC-6"),
        _ => None,
    }
}

/// Version descriptors that claim no version of their standard (SPC-4 table 142).
pub mod standard {
    /// SAM-5.
    pub const SAM_5: u16 = 0x00a0;
    /// SPC-4.
    pub const SPC_4: u16 = 0x0460;
    /// SBC-3.
    pub const SBC_3: u16 = 0x04c0;
    /// SRP.
    pub const SRP: u16 = 0x0940;
    /// iSCSI.
    pub const ISCSI: u16 = 0x0960;
    /// SAT-3.
    pub const SAT_3: u16 = 0x1ee0;

    /// The name of a standard, and whether the descriptor claims a version of it: they come in groups of 32,
    /// the first of which claims none.
    pub fn name(descriptor: u16) -> Option<(&'static str, bool)> {
        let family = NAMES.iter().find(|(base, _)| *base == descriptor & 0xffe0);
        family.map(|(_, name)| (*name, descriptor & 0x1f != 0))
    }

    const NAMES: &[(u16, &str)] = &[
        (0x0020, "SAM"),
        (0x0040, "SAM-2"),
        (0x0060, "SAM-3"),
        (0x0080, "SAM-4"),
        (SAM_5, "SAM-5"),
        (0x00c0, "SAM-6"),
        (0x0120, "SPC"),
        (0x0140, "MMC"),
        (0x0160, "SCC"),
        (0x0180, "SBC"),
        (0x01a0, "SMC"),
        (0x01c0, "SES"),
        (0x01e0, "SCC-2"),
        (0x0200, "SSC"),
        (0x0220, "RBC"),
        (0x0240, "MMC-2"),
        (0x0260, "SPC-2"),
        (0x02a0, "MMC-3"),
        (0x02e0, "SMC-2"),
        (0x0300, "SPC-3"),
        (0x0320, "SBC-2"),
        (0x0360, "SSC-2"),
        (0x03a0, "MMC-4"),
        (0x03e0, "SES-2"),
        (0x0400, "SSC-3"),
        (0x0420, "MMC-5"),
        (SPC_4, "SPC-4"),
        (0x0480, "SMC-3"),
        (SBC_3, "SBC-3"),
        (0x04e0, "MMC-6"),
        (0x0520, "SSC-4"),
        (0x0580, "SES-3"),
        (0x05a0, "SSC-5"),
        (0x05c0, "SPC-5"),
        (0x0600, "SBC-4"),
        (0x0620, "ZBC"),
        (0x0660, "ZBC-2"),
        (0x0680, "SES-4"),
        (0x08c0, "FCP"),
        (0x0900, "FCP-2"),
        (SRP, "SRP"),
        (ISCSI, "iSCSI"),
        (0x0a00, "FCP-3"),
        (0x0a40, "FCP-4"),
        (0x0be0, "SAS"),
        (0x0c00, "SAS-1.1"),
        (0x0c20, "SAS-2"),
        (0x0c40, "SAS-2.1"),
        (0x0c60, "SAS-3"),
        (0x1740, "UAS"),
        (0x1ea0, "SAT"),
        (0x1ec0, "SAT-2"),
        (SAT_3, "SAT-3"),
        (0x20a0, "SPL"),
        (0x20c0, "SPL-2"),
        (0x20e0, "SPL-3"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_read_as_it_was_written() {
        let unit = StandardData {
            removable: true,
            version: SPC_4,
            format: FORMAT,
            vendor: padded("LUNETTE"),
            product: padded("RAM"),
            revision: padded("0001"),
            standards: [standard::SAM_5, standard::SPC_4, 0, 0, 0, 0, 0, 0],
            ..StandardData::default()
        };
        let (data, len) = unit.cut(StandardData::BYTES);
        assert_eq!((len, data[..8].to_vec()), (96, vec![0, 0x80, 6, 2, 91, 0, 0, 0]));
        assert_eq!(&data[8..36], b"LUNETTE RAM             0001");
        assert_eq!(StandardData::read(&data), StandardData { additional_bytes: 91, ..unit });
        let (data, len) = unit.cut(SHORT_BYTES);
        assert_eq!((len, data[4]), (36, 31));
        assert_eq!(StandardData::read(StandardData::part(&data)).standards, [0; 8]);
        for len in 0..data.len() {
            StandardData::read(StandardData::part(&data[..len]));
        }
    }

    #[test]
    fn standards_have_names() {
        assert_eq!(standard::name(0x0463), Some(("SPC-4", true)));
        assert_eq!(standard::name(standard::ISCSI), Some(("iSCSI", false)));
        assert_eq!((standard::name(0xff01), version_name(6)), (None, Some("SPC-4")));
    }
}
