//! Standard INQUIRY data (SPC-4 section 6.6.2).

use super::data::{part, printable};
use super::rows::{Rows, list};
use serde::Serialize;
use wire::scsi::inquiry::{self, StandardData, device_type, qualifier};

/// The unit's identification.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct InquiryData {
    pub(super) vendor: String,
    pub(super) product: String,
    pub(super) revision: String,
    /// 0 is connected, 1 is not, 3 means that no unit is possible.
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

/// `None`: too short even for a device type.
pub(crate) fn decode(data: &[u8]) -> Option<InquiryData> {
    let device_type = StandardData::DEVICE_TYPE.get(data)?;
    let unit = StandardData::read(StandardData::part(data));
    let part = |at, len| printable(part(StandardData::part(data), usize::from(at), len));
    Some(InquiryData {
        vendor: part(StandardData::VENDOR.byte(), unit.vendor.len()),
        product: part(StandardData::PRODUCT.byte(), unit.product.len()),
        revision: part(StandardData::REVISION.byte(), unit.revision.len()),
        peripheral_qualifier: unit.qualifier,
        device_type,
        device_type_name: device_type::name(device_type),
        version: unit.version,
        removable: unit.removable,
        multiple_ports: unit.multiple_ports,
        third_party_copy: unit.third_party_copy,
        protection: unit.protection,
        command_queuing: unit.command_queuing,
        target_port_groups: unit.target_port_groups,
        standards: unit
            .standards
            .into_iter()
            .filter(|code| *code != 0)
            .map(|code| Standard { code, name: standard(code) })
            .collect(),
    })
}

impl InquiryData {
    /// Whether it is a disk: a device with blocks.
    pub(super) fn is_disk(&self) -> bool {
        self.peripheral_qualifier == qualifier::CONNECTED
            && [
                device_type::DISK,
                device_type::WRITE_ONCE,
                device_type::OPTICAL,
                device_type::SIMPLIFIED,
                device_type::ZONED,
            ]
            .contains(&self.device_type)
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
    inquiry::version_name(version).map_or_else(|| format!("version {version:02x}h"), str::to_owned)
}

/// A version descriptor.
fn standard(code: u16) -> String {
    match inquiry::standard::name(code) {
        Some((name, false)) => name.to_owned(),
        Some((name, true)) => format!("{name} (version {code:04x}h)"),
        None => format!("{code:04x}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Vec<u8> {
        let mut data = vec![0, 0x80, 6, 0x12, 91, 0x18, 0x10, 2];
        data.extend_from_slice(b"LUNETTE RAM             0001");
        data.resize(58, 0);
        data.extend_from_slice(&[0x00, 0xa0, 0x04, 0x63, 0x09, 0x60, 0xff, 0x01]);
        data.resize(96, 0);
        data
    }

    #[test]
    fn a_disk_is_recognized() {
        let identity = decode(&answer()).expect("an identity");
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
        let mut data = answer();
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
