//! Designation descriptors: the identifiers of units, ports and devices (SPC-4 section 7.8.6).

/// PROTOCOL IDENTIFIER (SPC-4 table 443), of designators and TransportIDs.
pub mod protocol {
    /// SRP.
    pub const SRP: u8 = 0x4;
    /// iSCSI.
    pub const ISCSI: u8 = 0x5;
    /// No specific protocol.
    pub const NONE: u8 = 0xf;
}

/// CODE SET.
pub mod code_set {
    /// Binary.
    pub const BINARY: u8 = 1;
    /// ASCII.
    pub const ASCII: u8 = 2;
    /// UTF-8.
    pub const UTF_8: u8 = 3;
}

/// ASSOCIATION.
pub mod association {
    /// The logical unit.
    pub const UNIT: u8 = 0;
    /// The target port.
    pub const PORT: u8 = 1;
    /// The target device.
    pub const DEVICE: u8 = 2;
}

/// DESIGNATOR TYPE.
pub mod kind {
    /// Vendor specific.
    pub const VENDOR_SPECIFIC: u8 = 0x0;
    /// T10 vendor ID based.
    pub const T10_VENDOR_ID: u8 = 0x1;
    /// EUI-64 based.
    pub const EUI_64: u8 = 0x2;
    /// NAA.
    pub const NAA: u8 = 0x3;
    /// Relative target port identifier.
    pub const RELATIVE_PORT: u8 = 0x4;
    /// Target port group.
    pub const PORT_GROUP: u8 = 0x5;
    /// Logical unit group.
    pub const UNIT_GROUP: u8 = 0x6;
    /// MD5 logical unit identifier.
    pub const MD5: u8 = 0x7;
    /// SCSI name string.
    pub const SCSI_NAME: u8 = 0x8;
    /// Protocol specific port identifier.
    pub const PROTOCOL_SPECIFIC: u8 = 0x9;
    /// UUID.
    pub const UUID: u8 = 0xa;
}

/// PIV: the protocol identifier is valid.
const PIV: u8 = 0x80;

/// The longest SCSI name string without its terminator: a designator's length is one byte.
const SCSI_NAME_BYTES_MAX: usize = 251;

/// A designation descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Designator<'a> {
    /// PROTOCOL IDENTIFIER, of ports and devices ([`protocol`]).
    pub protocol: Option<u8>,
    /// CODE SET ([`code_set`]).
    pub code_set: u8,
    /// ASSOCIATION ([`association`]).
    pub association: u8,
    /// DESIGNATOR TYPE ([`kind`]).
    pub kind: u8,
    /// DESIGNATOR, at most 255 bytes.
    pub bytes: &'a [u8],
}

impl<'a> Designator<'a> {
    /// A designator of the logical unit.
    pub fn of_unit(code_set: u8, kind: u8, bytes: &'a [u8]) -> Designator<'a> {
        Designator { protocol: None, code_set, association: association::UNIT, kind, bytes }
    }

    /// A designator of a port that speaks this protocol.
    pub fn of_port(protocol: u8, code_set: u8, kind: u8, bytes: &'a [u8]) -> Designator<'a> {
        Designator { protocol: Some(protocol), code_set, association: association::PORT, kind, bytes }
    }

    /// Adds it to a list.
    pub fn write(&self, list: &mut impl Extend<u8>) {
        let (protocol, piv) = self.protocol.map_or((0, 0), |protocol| (protocol << 4, PIV));
        let kind = piv | self.association << 4 | self.kind;
        let len = u8::try_from(self.bytes.len()).unwrap_or(0);
        list.extend([protocol | self.code_set, kind, 0, len]);
        list.extend(self.bytes.iter().copied());
    }
}

/// The descriptors in a list, up to the first incomplete one.
pub fn designators(list: &[u8]) -> impl Iterator<Item = Designator<'_>> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let &[set, kind, _, len, ref tail @ ..] = rest else { return None };
        let (bytes, next) = tail.split_at_checked(usize::from(len))?;
        rest = next;
        Some(Designator {
            protocol: (kind & PIV != 0).then_some(set >> 4),
            code_set: set & 0x0f,
            association: kind >> 4 & 0x03,
            kind: kind & 0x0f,
            bytes,
        })
    })
}

/// A SCSI name string: null-terminated and padded to a multiple of four (SPC-4 section 7.8.6.11).
pub fn scsi_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(SCSI_NAME_BYTES_MAX);
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_read_as_they_were_written() {
        let name = scsi_name("iqn.a:b");
        let mut list = Vec::new();
        let unit = Designator::of_unit(code_set::BINARY, kind::NAA, &[0x33, 1, 2, 3, 4, 5, 6, 7]);
        let port = Designator::of_port(protocol::ISCSI, code_set::UTF_8, kind::SCSI_NAME, &name);
        unit.write(&mut list);
        port.write(&mut list);
        assert_eq!(list[..4], [1, 3, 0, 8]);
        assert_eq!(list[12..], [&[0x53, 0x98, 0, 8][..], b"iqn.a:b\0"].concat());
        assert_eq!(designators(&list).collect::<Vec<_>>(), [unit, port]);
        for len in 0..list.len() {
            assert_eq!(designators(&list[..len]).count(), usize::from(len >= 12));
        }
    }
}
