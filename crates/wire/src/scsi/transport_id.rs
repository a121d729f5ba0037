//! TransportIDs (SPC-4 section 7.6.4): the identifiers of initiator ports.

use super::designator::protocol;
use crate::aoe::Mac;
use std::fmt;

/// A TransportID in canonical form: equal IDs are equal bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransportId(Vec<u8>);

/// First byte: iSCSI initiator device (format 00b).
const ISCSI_DEVICE: u8 = protocol::ISCSI;
/// First byte: iSCSI initiator port (format 01b).
const ISCSI_PORT: u8 = 0x40 | protocol::ISCSI;
/// First byte: SRP initiator port.
const SRP: u8 = protocol::SRP;
/// First byte: an ATA over Ethernet initiator. SPC has no protocol identifier for it, so it has that of no
/// protocol, and cannot be given in a parameter list.
const AOE: u8 = protocol::NONE;
/// Length of TransportIDs other than iSCSI's.
pub const FIXED_BYTES: usize = 24;
/// Separates an iSCSI name from the initiator session identifier.
const SEPARATOR: &str = ",i,0x";
/// The longest iSCSI name (RFC 7143 section 4.2.7.1).
const NAME_BYTES_MAX: usize = 223;

/// The TransportID of an iSCSI initiator port, from its name and the 48 bits of its ISID (SPC-4 section 7.6.4.6).
pub fn iscsi_port(name: &str, isid: u64) -> Vec<u8> {
    iscsi(name, Some(isid)).0
}

/// The TransportID of an SRP initiator port (SPC-4 section 7.6.4.5).
pub fn srp_port(identifier: &[u8; 16]) -> [u8; FIXED_BYTES] {
    let mut id = [0; FIXED_BYTES];
    id.iter_mut()
        .skip(FIXED_BYTES.saturating_sub(identifier.len()))
        .zip(identifier)
        .for_each(|(slot, byte)| *slot = *byte);
    let [first, ..] = &mut id;
    *first = SRP;
    id
}

/// The initiator port with this address.
pub fn aoe_port(mac: Mac) -> [u8; FIXED_BYTES] {
    let mut id = [0; FIXED_BYTES];
    id.iter_mut().skip(8).zip(mac.0).for_each(|(slot, byte)| *slot = byte);
    let [first, ..] = &mut id;
    *first = AOE;
    id
}

/// The address in the TransportID of an ATA over Ethernet initiator ([`aoe_port`]); `None`: it speaks SCSI.
pub fn aoe_mac(transport_id: &[u8]) -> Option<Mac> {
    match transport_id {
        [AOE, _, _, _, _, _, _, _, mac @ ..] => mac.first_chunk().copied().map(Mac),
        _ => None,
    }
}

/// The common beginning of the TransportIDs of an initiator device's ports: with iSCSI, up to the session
/// identifier.
pub fn device(transport_id: &[u8]) -> &[u8] {
    let separator = SEPARATOR.as_bytes();
    let name = transport_id.windows(separator.len()).position(|bytes| bytes == separator);
    name.and_then(|end| transport_id.get(..end)).unwrap_or(transport_id)
}

impl TransportId {
    /// Parses the first TransportID of a list, and returns the rest of the list with it.
    pub fn split(list: &[u8]) -> Result<(TransportId, &[u8]), Malformed> {
        let [first, _, high, low, ..] = *list else { return Err(Malformed::Truncated) };
        let len = match first {
            ISCSI_DEVICE | ISCSI_PORT => usize::from(u16::from_be_bytes([high, low])).saturating_add(4),
            SRP => FIXED_BYTES,
            _ => return Err(Malformed::Unknown),
        };
        let (id, rest) = list.split_at_checked(len).ok_or(Malformed::Truncated)?;
        if first == SRP {
            return Ok((TransportId(id.to_vec()), rest));
        }
        let parsed = parse_iscsi(id).ok_or(Malformed::Unknown)?;
        Ok((parsed, rest))
    }

    /// The TransportID of a nexus; bytes of unknown form are kept as they are.
    pub fn of(bytes: &[u8]) -> TransportId {
        match TransportId::split(bytes) {
            Ok((id, [])) => id,
            Ok(_) | Err(_) => TransportId(bytes.to_vec()),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it identifies `other`, or the iSCSI initiator device that `other` is a port of.
    pub fn covers(&self, other: &TransportId) -> bool {
        *self == *other
            || match (self.iscsi_text(ISCSI_DEVICE), other.iscsi_text(ISCSI_PORT)) {
                (Some(device), Some(port)) => {
                    port.strip_prefix(device).is_some_and(|rest| rest.starts_with(SEPARATOR))
                }
                (_, _) => false,
            }
    }

    /// Whether it identifies an iSCSI initiator device with all its ports.
    pub fn is_device(&self) -> bool {
        self.0.first() == Some(&ISCSI_DEVICE)
    }

    fn iscsi_text(&self, first: u8) -> Option<&str> {
        (self.0.first() == Some(&first)).then(|| text(&self.0)).flatten()
    }
}

/// The iSCSI name, or the bytes that others have instead.
impl fmt::Display for TransportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.iscsi_text(ISCSI_DEVICE).or_else(|| self.iscsi_text(ISCSI_PORT)) {
            return crate::shown(name).fmt(f);
        }
        if let Some(mac) = aoe_mac(&self.0) {
            return mac.fmt(f);
        }
        // The 16-byte identifier of an SRP port comes last.
        self.0.iter().skip(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a TransportID in a list is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The list ends in the middle of it.
    Truncated,
    /// Its protocol, format or content is invalid.
    Unknown,
}

fn parse_iscsi(id: &[u8]) -> Option<TransportId> {
    let text = text(id)?;
    let is_port = id.first() == Some(&ISCSI_PORT);
    let (name, isid) = match text.split_once(SEPARATOR) {
        Some((name, isid)) if is_port => {
            let is_hex = isid.len() <= 12 && isid.bytes().all(|byte| byte.is_ascii_hexdigit());
            (name, Some(u64::from_str_radix(isid, 16).ok().filter(|_| is_hex)?))
        }
        None if !is_port => (text, None),
        Some(_) | None => return None,
    };
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    (is_name && id.len() >= FIXED_BYTES && id.len().is_multiple_of(4)).then(|| iscsi(name, isid))
}

/// The text of an iSCSI TransportID, up to its terminator.
fn text(id: &[u8]) -> Option<&str> {
    let text = id.get(4..)?;
    let end = text.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(text.get(..end)?).ok()
}

fn iscsi(name: &str, isid: Option<u64>) -> TransportId {
    let mut text = name.to_lowercase();
    if let Some(isid) = isid {
        text.push_str(&format!("{SEPARATOR}{isid:012x}"));
    }
    text.push('\0');
    let len = text.len().next_multiple_of(4).max(FIXED_BYTES.saturating_sub(4));
    let mut bytes = vec![if isid.is_some() { ISCSI_PORT } else { ISCSI_DEVICE }, 0];
    bytes.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(len.saturating_add(4), 0);
    TransportId(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "iqn.2026-11.example:host";

    #[test]
    fn equal_ports_are_equal_bytes() {
        let port = iscsi_port(NAME, 0x8012_3456_789a);
        let mut written = vec![ISCSI_PORT, 0, 0, 60];
        written.extend_from_slice(b"IQN.2026-11.Example:Host,i,0x80123456789A\0");
        written.resize(64, 0xff);
        assert_eq!(TransportId::of(&written).as_bytes(), port);
        assert_eq!(port.len() % 4, 0);
    }

    #[test]
    fn a_port_is_terminated_and_padded() {
        let id = iscsi_port("iqn.2026-11.io.lunette:a", 0x8001_0203_04ff);
        assert_eq!(&id[..4], [0x45, 0, 0, 44]);
        assert_eq!(&id[4..45], b"iqn.2026-11.io.lunette:a,i,0x8001020304ff");
        assert_eq!(&id[45..], [0, 0, 0]);
        assert_eq!(iscsi_port("a", 0)[3], 20);
        let srp = srp_port(&[7; 16]);
        assert_eq!((srp[..8].to_vec(), srp[8..].to_vec()), (vec![4, 0, 0, 0, 0, 0, 0, 0], vec![7; 16]));
    }

    #[test]
    fn a_device_covers_its_ports_only() {
        let device = iscsi(NAME, None);
        let port = TransportId::of(&iscsi_port(NAME, 1));
        let other = TransportId::of(&iscsi_port("iqn.2026-11.example:host2", 1));
        assert!(device.covers(&port) && device.covers(&device));
        assert!(!device.covers(&other) && !port.covers(&device));
    }

    #[test]
    fn lists_are_split_at_every_length_without_harm() {
        let mut list = iscsi_port(NAME, 7);
        let first = list.len();
        list.extend([SRP; FIXED_BYTES]);
        let (id, rest) = TransportId::split(&list).unwrap();
        assert_eq!(id.as_bytes(), &list[..first]);
        let (id, rest) = TransportId::split(rest).unwrap();
        assert_eq!((id.as_bytes().len(), rest.len()), (24, 0));
        for len in 0..first {
            assert_eq!(TransportId::split(&list[..len]), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn an_ata_initiator_is_identified_by_its_address_and_cannot_be_specified() {
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let id = aoe_port(mac);
        assert_eq!((id.len(), aoe_mac(&id)), (24, Some(mac)));
        assert_eq!(TransportId::of(&id).as_bytes(), id);
        assert_eq!(TransportId::split(&id), Err(Malformed::Unknown));
        for other in [&iscsi_port(NAME, 7)[..], &[SRP; FIXED_BYTES], &[AOE; 13], &[]] {
            assert_eq!(aoe_mac(other), None);
        }
    }

    #[test]
    fn malformed_input_is_refused() {
        let long = format!("{NAME},i,0x1234567890123");
        for (first, text) in [
            (ISCSI_DEVICE, "\0"),
            (ISCSI_PORT, NAME),
            (ISCSI_PORT, &long),
            (ISCSI_PORT, "iqn.2026-11.example:host,i,0x"),
            (ISCSI_PORT, "iqn.2026-11.example:host,i,0x+1"),
            (ISCSI_DEVICE, "iqn.2026-11.example:host,i,0x1"),
            (0x85, NAME),
            (0x06, NAME),
        ] {
            let mut bytes = vec![first, 0, 0, 60];
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(64, 0);
            assert_eq!(TransportId::split(&bytes), Err(Malformed::Unknown), "{text}");
        }
        let unterminated = [&[ISCSI_DEVICE, 0, 0, 20][..], &[b'a'; 20]].concat();
        assert_eq!(TransportId::split(&unterminated), Err(Malformed::Unknown));
    }
}
