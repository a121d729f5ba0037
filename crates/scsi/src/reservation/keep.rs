//! Registrations and reservation as bytes, to be kept across a restart (APTPL; SPC-4 section 5.13.5).

use super::{Kind, NexusName, Registration, Reservation, Table, TransportId};

/// First bytes: what it is, and the version of the format.
const MAGIC: [u8; 8] = *b"LunePR\x00\x01";

/// In place of the reservation's type: there is none.
const NO_RESERVATION: u8 = 0;
/// In place of the holder's number: all registrants.
const NO_HOLDER: u16 = 0xffff;

impl Table {
    /// The bytes to keep. What does not outlive a restart (PRGENERATION, RESERVE) is not among them.
    pub fn encode(&self) -> Vec<u8> {
        let holder = self.reservation.as_ref().and_then(|held| held.holder.as_ref());
        let holder = self.registrations.iter().position(|one| Some(&one.nexus) == holder);
        let mut bytes = MAGIC.to_vec();
        bytes.push(self.reservation.as_ref().map_or(NO_RESERVATION, |held| held.kind.bits()));
        push_u16(&mut bytes, holder.map_or(NO_HOLDER, |at| u16::try_from(at).unwrap_or(NO_HOLDER)));
        push_u16(&mut bytes, u16::try_from(self.registrations.len()).unwrap_or(u16::MAX));
        for registration in &self.registrations {
            let id = registration.nexus.initiator.as_bytes();
            bytes.extend_from_slice(&registration.key.to_be_bytes());
            push_u16(&mut bytes, registration.nexus.target_port);
            push_u16(&mut bytes, u16::try_from(id.len()).unwrap_or(u16::MAX));
            bytes.extend_from_slice(id);
        }
        let sum = crc32(&bytes);
        bytes.extend_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// The table that was kept as these bytes; `None` when they were not written whole, or by something else.
    pub fn decode(kept: &[u8]) -> Option<Table> {
        let (body, sum) = kept.split_last_chunk()?;
        if u32::from_be_bytes(*sum) != crc32(body) {
            return None;
        }
        let mut rest = body.strip_prefix(&MAGIC)?;
        let [kind] = take(&mut rest)?;
        let holder = u16::from_be_bytes(take(&mut rest)?);
        let count = usize::from(u16::from_be_bytes(take(&mut rest)?));
        let mut registrations = Vec::new();
        for _ in 0..count {
            registrations.push(decode_registration(&mut rest)?);
        }
        let holder = registrations.get(usize::from(holder)).map(|holder| holder.nexus.clone());
        let reservation = match kind {
            NO_RESERVATION => None,
            bits => Some(Reservation { kind: Kind::from_bits(bits)?, holder }),
        };
        let is_sound = rest.is_empty()
            && registrations.len() <= Table::REGISTRATIONS_MAX
            && reservation.as_ref().is_none_or(|held| held.kind.is_of_all() == held.holder.is_none());
        is_sound.then_some(Table { registrations, reservation, is_kept: true, ..Table::default() })
    }
}

fn decode_registration(rest: &mut &[u8]) -> Option<Registration> {
    let key = u64::from_be_bytes(take(rest)?);
    let target_port = u16::from_be_bytes(take(rest)?);
    let len = u16::from_be_bytes(take(rest)?);
    let (id, left) = rest.split_at_checked(usize::from(len))?;
    *rest = left;
    (key != 0).then(|| Registration { nexus: NexusName { initiator: TransportId::of(id), target_port }, key })
}

fn push_u16(bytes: &mut Vec<u8>, value: u16) {
    bytes.extend_from_slice(&value.to_be_bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*first)
}

/// CRC-32 (IEEE 802.3), bit by bit: a few kilobytes at most.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = sum & 1 != 0;
            sum = (sum >> 1) ^ if carry { 0xedb8_8320 } else { 0 };
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::super::iscsi_transport_id;
    use super::*;
    use proptest::prelude::*;

    fn table(count: usize, reservation: Option<(Kind, usize)>) -> Table {
        let registrations: Vec<Registration> = (0..count)
            .map(|at| Registration {
                nexus: NexusName::new(&iscsi_transport_id("iqn.2026-11.example:h", at as u64), 1),
                key: at as u64 + 1,
            })
            .collect();
        let reservation = reservation.map(|(kind, at)| Reservation {
            kind,
            holder: (!kind.is_of_all()).then(|| registrations[at].nexus.clone()),
        });
        Table { registrations, reservation, is_kept: true, ..Table::default() }
    }

    #[test]
    fn what_is_kept_comes_back() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        for kind in Kind::ALL {
            let table = table(3, Some((kind, 1)));
            let running = Table { generation: 7, ..table.clone() };
            assert_eq!(Table::decode(&running.encode()), Some(table));
        }
        let full = table(Table::REGISTRATIONS_MAX, None);
        assert_eq!(Table::decode(&full.encode()), Some(full));
        assert_eq!(Table::decode(&table(129, None).encode()), None);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let kept = table(2, Some((Kind::WriteExclusive, 0))).encode();
        for at in 0..kept.len() {
            assert_eq!(Table::decode(&kept[..at]), None);
            let mut damaged = kept.clone();
            damaged[at] ^= 0x10;
            assert_eq!(Table::decode(&damaged), None);
        }
        assert_eq!(Table::decode(b"garbage"), None);
    }

    proptest! {
        /// Bytes whose checksum is right but which mean anything.
        #[test]
        fn any_bytes_are_harmless(mut body in prop::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
            if magic {
                body.splice(0..0, MAGIC);
            }
            let sum = crc32(&body);
            body.extend_from_slice(&sum.to_be_bytes());
            if let Some(table) = Table::decode(&body) {
                prop_assert_eq!(Table::decode(&table.encode()), Some(table));
            }
        }
    }
}
