//! Registrations and reservation as bytes, saved across restarts (APTPL; SPC-4 section 5.13.5).

use super::{Kind, NexusName, Registration, Reservation, Table, TargetPort, TransportId};
use crate::state::encoding::{push_sized, push_u16, seal, take, take_sized, unseal};
use crate::state::unit::PortNames;

/// The first bytes: the kind of data, and the version of the format. Target ports are identified by name,
/// since their relative identifiers may differ after a restart.
const MAGIC: [u8; 8] = *b"LunePR\x00\x02";
/// The same in the first version, which had the relative identifiers.
const MAGIC_NUMBERED: [u8; 8] = *b"LunePR\x00\x01";

/// Instead of the reservation's type: none.
const NO_RESERVATION: u8 = 0;
/// Instead of the holder's number: all registrants.
const NO_HOLDER: u16 = 0xffff;

impl Table {
    /// The bytes to save. State that does not survive a restart (PRGENERATION, RESERVE) is not included.
    pub fn encode(&self, ports: PortNames<'_>) -> Vec<u8> {
        let holder = self.reservation.as_ref().and_then(|held| held.holder.as_ref());
        let holder = self.registrations.iter().position(|one| Some(&one.nexus) == holder);
        let mut bytes = MAGIC.to_vec();
        bytes.push(self.reservation.as_ref().map_or(NO_RESERVATION, |held| held.kind.bits()));
        push_u16(&mut bytes, holder.map_or(NO_HOLDER, |at| u16::try_from(at).unwrap_or(NO_HOLDER)));
        push_u16(&mut bytes, u16::try_from(self.registrations.len()).unwrap_or(u16::MAX));
        for registration in &self.registrations {
            bytes.extend_from_slice(&registration.key.to_be_bytes());
            push_sized(&mut bytes, registration.nexus.target_port.name(ports).as_bytes());
            push_sized(&mut bytes, registration.nexus.initiator.as_bytes());
        }
        seal(bytes)
    }

    /// The table saved as these bytes; `None` if they are truncated, damaged, or something else.
    pub fn decode(saved: &[u8], ports: PortNames<'_>) -> Option<Table> {
        let body = unseal(saved)?;
        let (mut rest, target_port): (_, TakePort) = match body.strip_prefix(&MAGIC) {
            Some(rest) => (rest, take_named),
            None => (body.strip_prefix(&MAGIC_NUMBERED)?, take_numbered),
        };
        let [kind] = take(&mut rest)?;
        let holder = u16::from_be_bytes(take(&mut rest)?);
        let count = usize::from(u16::from_be_bytes(take(&mut rest)?));
        let mut registrations = Vec::new();
        for _ in 0..count {
            let key = u64::from_be_bytes(take(&mut rest)?);
            let target_port = target_port(&mut rest, ports)?;
            let nexus = NexusName { initiator: TransportId::of(take_sized(&mut rest)?), target_port };
            registrations.push(Registration { nexus, key });
        }
        let holder = registrations.get(usize::from(holder)).map(|holder| holder.nexus.clone());
        let reservation = match kind {
            NO_RESERVATION => None,
            bits => Some(Reservation { kind: Kind::from_bits(bits)?, holder }),
        };
        let is_sound = rest.is_empty()
            && registrations.iter().all(|registration| registration.key != 0)
            && registrations.len() <= Table::REGISTRATIONS_MAX
            && reservation.as_ref().is_none_or(|held| held.kind.is_of_all() == held.holder.is_none());
        is_sound.then_some(Table { registrations, reservation, is_persistent: true, ..Table::default() })
    }
}

impl TargetPort {
    fn name<'a>(&'a self, ports: PortNames<'a>) -> &'a str {
        match self {
            TargetPort::Here(id) => ports.name(*id).unwrap_or_default(),
            TargetPort::Gone(name) => name,
        }
    }

    /// The one of these ports that has this name.
    pub(super) fn named(name: &str, ports: PortNames<'_>) -> TargetPort {
        ports.id(name).map_or_else(|| TargetPort::Gone(name.into()), TargetPort::Here)
    }

    /// The same port after the unit's ports have changed from `before` to `after`.
    pub(super) fn among(&self, before: PortNames<'_>, after: PortNames<'_>) -> TargetPort {
        let name = self.name(before);
        if name.is_empty() {
            return self.clone();
        }
        TargetPort::named(name, after)
    }
}

/// Takes a target port, given the present ports.
type TakePort = fn(&mut &[u8], PortNames<'_>) -> Option<TargetPort>;

fn take_named(rest: &mut &[u8], ports: PortNames<'_>) -> Option<TargetPort> {
    let name = std::str::from_utf8(take_sized(rest)?).ok()?;
    Some(TargetPort::named(name, ports))
}

fn take_numbered(rest: &mut &[u8], ports: PortNames<'_>) -> Option<TargetPort> {
    let id = u16::from_be_bytes(take(rest)?);
    let is_here = ports.name(id).is_some();
    let gone = || TargetPort::Gone(format!("relative target port {id}").into());
    Some(if is_here { TargetPort::Here(id) } else { gone() })
}

#[cfg(test)]
mod tests {
    use super::super::Access;
    use super::*;
    use crate::state::nexus::NexusId;
    use crate::state::unit::Port;
    use proptest::prelude::*;
    use wire::scsi::transport_id::iscsi_port;

    fn table(count: usize, reservation: Option<(Kind, usize)>) -> Table {
        let registrations: Vec<Registration> = (0..count)
            .map(|at| Registration {
                nexus: NexusName::new(&iscsi_port("iqn.2026-11.example:h", at as u64), 1),
                key: at as u64 + 1,
            })
            .collect();
        let reservation = reservation.map(|(kind, at)| Reservation {
            kind,
            holder: (!kind.is_of_all()).then(|| registrations[at].nexus.clone()),
        });
        Table { registrations, reservation, is_persistent: true, ..Table::default() }
    }

    #[test]
    fn saved_state_is_restored() {
        for kind in Kind::ALL {
            let table = table(3, Some((kind, 1)));
            let running = Table { generation: 7, ..table.clone() };
            assert_eq!(
                Table::decode(&running.encode(PortNames::of(&ports(), &[])), PortNames::of(&ports(), &[])),
                Some(table)
            );
        }
        let full = table(Table::REGISTRATIONS_MAX, None);
        assert_eq!(
            Table::decode(&full.encode(PortNames::of(&ports(), &[])), PortNames::of(&ports(), &[])),
            Some(full)
        );
        assert_eq!(
            Table::decode(
                &table(129, None).encode(PortNames::of(&ports(), &[])),
                PortNames::of(&ports(), &[])
            ),
            None
        );
    }

    fn ports() -> Vec<Port> {
        crate::testing::unit().ports
    }

    #[test]
    fn a_port_is_known_by_its_name_when_it_has_another_number() {
        let reserved = table(2, Some((Kind::ExclusiveAccess, 0)));
        let saved = reserved.encode(PortNames::of(&ports(), &[]));
        let [first, second] = &ports()[..] else { panic!("two ports") };
        let shifted = [Port { relative_id: 7, ..first.clone() }, Port { relative_id: 1, ..second.clone() }];
        let restored = Table::decode(&saved, PortNames::of(&shifted, &[])).expect("sound");
        let host = iscsi_port("iqn.2026-11.example:h", 0);
        assert_eq!(restored.access(NexusId(1), &host, 7), Access::Full);
        assert_eq!(restored.access(NexusId(1), &host, 1), Access::Control, "another port by now");
        assert_eq!(restored.gone_ports().len(), 0);
        let gone = Table::decode(&saved, PortNames::of(&shifted[1..], &[])).expect("sound");
        assert_eq!(gone.access(NexusId(1), &host, 1), Access::Control, "what was reserved stays so");
        assert_eq!(gone.gone_ports().into_iter().collect::<Vec<_>>(), [first.name.as_str().into()]);
        let again =
            Table::decode(&gone.encode(PortNames::of(&shifted[1..], &[])), PortNames::of(&ports(), &[]));
        assert_eq!(again, Some(reserved), "the port is back");
    }

    #[test]
    fn the_first_version_of_the_format_is_still_read() {
        let id = iscsi_port("iqn.2026-11.example:h", 0);
        let mut body = MAGIC_NUMBERED.to_vec();
        body.extend([3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, id.len() as u8]);
        body.extend(&id);
        let expected = table(1, Some((Kind::ExclusiveAccess, 0)));
        assert_eq!(Table::decode(&seal(body.clone()), PortNames::of(&ports(), &[])), Some(expected));
        body[22] = 9;
        let gone = Table::decode(&seal(body), PortNames::of(&ports(), &[])).expect("sound");
        assert_eq!(gone.gone_ports().into_iter().collect::<Vec<_>>(), ["relative target port 9".into()]);
        assert_eq!(gone.access(NexusId(1), &id, 1), Access::Control);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let saved = table(2, Some((Kind::WriteExclusive, 0))).encode(PortNames::of(&ports(), &[]));
        for at in 0..saved.len() {
            assert_eq!(Table::decode(&saved[..at], PortNames::of(&ports(), &[])), None);
            let mut damaged = saved.clone();
            damaged[at] ^= 0x10;
            assert_eq!(Table::decode(&damaged, PortNames::of(&ports(), &[])), None);
        }
        assert_eq!(Table::decode(b"garbage", PortNames::of(&ports(), &[])), None);
    }

    proptest! {
        /// Bytes with a correct checksum but arbitrary content.
        #[test]
        fn any_bytes_are_harmless(mut body in prop::collection::vec(any::<u8>(), 0..200), magic in 0..3) {
            match magic {
                0 => {}
                1 => drop(body.splice(0..0, MAGIC)),
                _ => drop(body.splice(0..0, MAGIC_NUMBERED)),
            }
            if let Some(table) = Table::decode(&seal(body), PortNames::of(&ports(), &[])) {
                prop_assert_eq!(Table::decode(&table.encode(PortNames::of(&ports(), &[])), PortNames::of(&ports(), &[])), Some(table));
            }
        }
    }
}
