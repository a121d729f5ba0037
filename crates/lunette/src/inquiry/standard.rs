//! Standard INQUIRY data (SPC-4 section 6.6.2).

use super::data::{bit, part, printable, u8_at, u16_at};
use super::rows::{Rows, list};
use serde::Serialize;

/// Who the unit is.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Identity {
    pub(super) vendor: String,
    pub(super) product: String,
    pub(super) revision: String,
    /// 0 is connected, 1 is not, 3 is no unit at all.
    pub(super) peripheral_qualifier: u8,
    pub(super) device_type: u8,
    device_type_name: &'static str,
    version: u8,
    removable: bool,
    multiple_ports: bool,
    third_party_copy: bool,
    protection: bool,
    command_queuing: bool,
    /// Asymmetric access: bit 0 is implicit, bit 1 is explicit.
    target_port_groups: u8,
    standards: Vec<Standard>,
}

/// A version descriptor.
#[derive(Serialize, Debug, PartialEq)]
pub(super) struct Standard {
    code: u16,
    name: String,
}

/// `None`: not even a device type.
pub(crate) fn decode(data: &[u8]) -> Option<Identity> {
    let data = part(data, 0, usize::from(u8_at(data, 4).unwrap_or(0)) + 5);
    let first = u8_at(data, 0)?;
    let flag = |at, mask| bit(data, at, mask).unwrap_or(false);
    let codes = (58..74).step_by(2).filter_map(|at| u16_at(data, at)).filter(|code| *code != 0);
    Some(Identity {
        vendor: printable(part(data, 8, 8)),
        product: printable(part(data, 16, 16)),
        revision: printable(part(data, 32, 4)),
        peripheral_qualifier: first >> 5,
        device_type: first & 0x1f,
        device_type_name: device_type(first & 0x1f),
        version: u8_at(data, 2).unwrap_or(0),
        removable: flag(1, 0x80),
        multiple_ports: flag(6, 0x10),
        third_party_copy: flag(5, 0x08),
        protection: flag(5, 0x01),
        command_queuing: flag(7, 0x02),
        target_port_groups: u8_at(data, 5).unwrap_or(0) >> 4 & 0x03,
        standards: codes.map(|code| Standard { code, name: standard(code) }).collect(),
    })
}

impl Identity {
    /// Whether there is a disk: what has blocks.
    pub(super) fn is_disk(&self) -> bool {
        self.peripheral_qualifier == 0 && matches!(self.device_type, 0x00 | 0x04 | 0x07 | 0x0e | 0x14)
    }

    pub(super) fn write(&self, rows: &mut Rows) {
        rows.text("vendor", &self.vendor);
        rows.text("product", &self.product);
        rows.text("revision", &self.revision);
        let state = match self.peripheral_qualifier {
            0 => "",
            1 => ", not connected",
            3 => ": there is no unit at this LUN",
            _ => ", vendor-specific peripheral qualifier",
        };
        rows.add("device type", format!("{:02x}h, {}{state}", self.device_type, self.device_type_name));
        let groups = match self.target_port_groups {
            0 => "",
            1 => "implicit asymmetric access",
            2 => "explicit asymmetric access",
            _ => "implicit and explicit asymmetric access",
        };
        let can = [
            (self.removable, "removable medium"),
            (self.multiple_ports, "several ports"),
            (self.command_queuing, "command queuing"),
            (self.third_party_copy, "third-party copy"),
            (self.protection, "protection information"),
            (self.target_port_groups != 0, groups),
        ];
        rows.add("features", list(can));
        rows.add("conforms to", conforms_to(self.version));
        let names: Vec<&str> = self.standards.iter().map(|standard| standard.name.as_str()).collect();
        rows.add("standards", if names.is_empty() { "none claimed".into() } else { names.join(", ") });
    }
}

/// The VERSION field.
fn conforms_to(version: u8) -> String {
    match version {
        0x00 => "no standard".into(),
        0x03 => "SPC".into(),
        0x04 => "SPC-2".into(),
        0x05 => "SPC-3".into(),
        0x06 => "SPC-4".into(),
        0x07 => "SPC-5".into(),
        0x0d => "SPC-6".into(),
        other => format!("version {other:02x}h"),
    }
}

fn device_type(code: u8) -> &'static str {
    match code {
        0x00 => "direct access block device (disk)",
        0x01 => "sequential access device (tape)",
        0x02 => "printer",
        0x03 => "processor",
        0x04 => "write-once device",
        0x05 => "CD/DVD",
        0x07 => "optical memory",
        0x08 => "medium changer",
        0x0c => "storage array controller",
        0x0d => "enclosure services",
        0x0e => "simplified direct access device",
        0x11 => "object storage",
        0x12 => "automation/drive interface",
        0x14 => "host managed zoned block device",
        0x1e => "well-known logical unit",
        0x1f => "unknown or no device",
        _ => "reserved device type",
    }
}

/// Version descriptors come in groups of 32 for each standard; the first claims no version (SPC-4 table 142).
fn standard(code: u16) -> String {
    let family = STANDARDS.iter().find(|(base, _)| *base == code & 0xffe0);
    match (family, code & 0x1f) {
        (Some((_, name)), 0) => (*name).to_owned(),
        (Some((_, name)), _) => format!("{name} (version {code:04x}h)"),
        (None, _) => format!("{code:04x}h"),
    }
}

const STANDARDS: &[(u16, &str)] = &[
    (0x0020, "SAM"),
    (0x0040, "SAM-2"),
    (0x0060, "SAM-3"),
    (0x0080, "SAM-4"),
    (0x00a0, "SAM-5"),
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
    (0x0460, "SPC-4"),
    (0x0480, "SMC-3"),
    (0x04c0, "SBC-3"),
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
    (0x0940, "SRP"),
    (0x0960, "iSCSI"),
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
    (0x1ee0, "SAT-3"),
    (0x20a0, "SPL"),
    (0x20c0, "SPL-2"),
    (0x20e0, "SPL-3"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn inquiry() -> Vec<u8> {
        let mut data = vec![0, 0x80, 6, 0x12, 91, 0x18, 0x10, 2];
        data.extend_from_slice(b"LUNETTE RAM             0001");
        data.resize(58, 0);
        data.extend_from_slice(&[0x00, 0xa0, 0x04, 0x63, 0x09, 0x60, 0xff, 0x01]);
        data.resize(96, 0);
        data
    }

    #[test]
    fn a_disk_is_recognized() {
        let identity = decode(&inquiry()).expect("an identity");
        assert_eq!(
            (identity.vendor.as_str(), identity.product.as_str(), identity.revision.as_str()),
            ("LUNETTE", "RAM", "0001")
        );
        assert!(identity.is_disk() && identity.removable && identity.third_party_copy);
        let shown = Rows::shown(|rows| identity.write(rows));
        for expected in [
            "disk",
            "SAM-5, SPC-4 (version 0463h), iSCSI, ff01h",
            "implicit asymmetric access",
            "conforms to  SPC-4",
        ] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
    }

    #[test]
    fn nothing_is_read_beyond_the_length_that_the_data_reports() {
        let mut data = inquiry();
        data[4] = 31;
        assert_eq!(decode(&data).expect("an identity").standards, []);
        data[4] = 5;
        let identity = decode(&data).expect("an identity");
        assert_eq!((identity.vendor.as_str(), identity.product.as_str()), ("LU", ""));
        assert_eq!(decode(&[]), None);
        let none = decode(&[0x7f]).expect("an identity");
        assert!(!none.is_disk() && Rows::shown(|rows| none.write(rows)).contains("no unit"));
    }
}
