//! INQUIRY (SPC-4 section 6.6).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::commands::vpd;
use crate::state::unit::{Port, Protocol};
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::Inquiry;
use wire::scsi::inquiry::{FORMAT, SPC_4, StandardData, device_type, lunette, padded, qualifier, standard};

/// T10 vendor identification.
pub(crate) const VENDOR: &str = lunette::VENDOR;

/// Product revision level.
pub(crate) const REVISION: &str = "0001";

/// INQUIRY.
pub(crate) fn begin<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, cdb.get(Inquiry::ALLOCATION).into(), build)))
}

fn build(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    if cdb.get(Inquiry::VITAL) {
        return vpd::build(env, cdb.get(Inquiry::PAGE), data);
    }
    check_page(cdb)?;
    let unit = &env.view.unit;
    let transport = unit.port(env.nexus.target_port).map_or(0, transport);
    let mut standard = StandardData {
        removable: unit.removable,
        target_port_groups: if unit.has_explicit_groups() { IMPLICIT | EXPLICIT } else { IMPLICIT },
        third_party_copy: true,
        multiple_ports: unit.ports.len() > 1 || unit.is_shared(),
        product: padded(&unit.product),
        ..common(transport)
    }
    .cut(StandardData::BYTES)
    .0;
    lunette::INCARNATION.set(&mut standard, unit.incarnation.now());
    // Our initiator relies on this.
    lunette::WITHHOLDS_LOGINS.set(&mut standard, true);
    data.extend_from_slice(&standard);
    Ok(())
}

/// Standard data for a LUN where there is no unit.
pub(crate) fn build_no_unit(cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Check> {
    if cdb.get(Inquiry::VITAL) {
        return Err(Check::NO_UNIT);
    }
    check_page(cdb)?;
    let (qualifier, device_type) = (qualifier::NO_UNIT, device_type::NONE);
    let standard = StandardData { qualifier, device_type, product: padded(""), ..common(0) };
    data.extend_from_slice(&standard.cut(StandardData::BYTES).0);
    Ok(())
}

/// PAGE CODE must be zero without EVPD.
fn check_page(cdb: &Cdb) -> Result<(), Check> {
    if cdb.get(Inquiry::PAGE) == 0 { Ok(()) } else { Err(Check::cdb_field(Inquiry::PAGE)) }
}

/// The version descriptor of a port's protocol, likewise without a version (SPC-4 table 142).
fn transport(port: &Port) -> u16 {
    match port.protocol {
        Protocol::Iscsi => standard::ISCSI,
        Protocol::Srp { .. } => standard::SRP,
    }
}

/// What all standard INQUIRY data has in common: SAM-5, SPC-4 and SBC-3, without claiming a version of each.
fn common(transport: u16) -> StandardData {
    StandardData {
        version: SPC_4,
        hierarchical: true,
        format: FORMAT,
        command_queuing: true,
        vendor: padded(VENDOR),
        revision: padded(REVISION),
        standards: [standard::SAM_5, standard::SPC_4, standard::SBC_3, transport, 0, 0, 0, 0],
        ..StandardData::default()
    }
}

/// TPGS: states change implicitly, or by SET TARGET PORT GROUPS.
const IMPLICIT: u8 = 1;
const EXPLICIT: u8 = 2;

#[cfg(test)]
mod tests {
    use crate::state::unit::{Protocol, Unit};
    use crate::testing::Bench;
    use wire::scsi::command::Inquiry;

    #[test]
    fn standard_data_names_the_unit() {
        let mut bench = Bench::new();
        let data = bench.read(Inquiry::new(260)).assert_good().data.clone();
        assert_eq!(data.len(), 96);
        assert_eq!(data[..8], [0, 0, 6, 0x12, 91, 0x18, 0x10, 2]);
        assert_eq!(&data[8..36], b"LUNETTE RAM             0001");
        assert_eq!(data[36..58], [[9; 16].as_slice(), &[1], &[0; 5]].concat());
        assert_eq!(data[58..68], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60, 0, 0]);
        assert_eq!(bench.read(Inquiry::new(5)).assert_good().data, data[..5]);
        bench.read(Inquiry { page: 1, ..Inquiry::new(255) }).assert_invalid_field(2);
    }

    #[test]
    fn the_version_descriptors_name_the_protocol_of_the_port() {
        let mut bench = Bench::new();
        let mut unit = Unit::clone(&bench.view.unit);
        unit.ports[1].protocol = Protocol::Srp { identifier: [0xa5; 16] };
        bench.view.unit = unit.into();
        // iSCSI, SRP, and AoE, which has no port.
        for (port, descriptor) in [(1, [0x09, 0x60]), (2, [0x09, 0x40]), (0, [0, 0])] {
            bench.nexuses[0].target_port = port;
            let data = bench.read(Inquiry::new(96)).assert_good().data.clone();
            assert_eq!(data[58..64], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0]);
            assert_eq!((data.len(), &data[64..68]), (96, &[descriptor[0], descriptor[1], 0, 0][..]));
        }
    }

    #[test]
    fn every_page_that_is_listed_is_there_and_as_long_as_it_says() {
        let mut bench = Bench::new();
        let list = bench.read(Inquiry { vital: true, ..Inquiry::new(255) }).data;
        assert_eq!(list[4..], [0x00, 0x80, 0x83, 0x85, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2]);
        for page in &list[4..] {
            let data = bench.read(Inquiry::page(*page, 1024)).assert_good().data.clone();
            assert_eq!(data[1], *page);
            assert_eq!(data.len(), 4 + usize::from(u16::from_be_bytes([data[2], data[3]])));
        }
        bench.read(Inquiry::page(0x89, 255)).assert_invalid_field(2);
    }

    #[test]
    fn identification_holds_every_designator() {
        let mut bench = Bench::new();
        let data = bench.read(Inquiry::page(0x83, 1024)).data;
        let mut kinds = Vec::new();
        let mut rest = &data[4..];
        while let [_, kind, _, len, ..] = rest {
            kinds.push(*kind);
            rest = &rest[4 + usize::from(*len)..];
        }
        assert_eq!(kinds, [0x03, 0x02, 0x01, 0x08, 0x94, 0x95, 0x98, 0xa8]);
        assert_eq!(data[4..16], [1, 3, 0, 8, 0x33, 1, 2, 3, 4, 5, 6, 7]);
    }

    /// Protocol, association, type and designator of those that are not the unit's own.
    fn of_ports(data: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
        let mut found = Vec::new();
        let mut rest = data;
        while let [code_set, kind, _, len, ..] = rest {
            let (one, others) = rest.split_at(4 + usize::from(*len));
            if *kind & 0x30 != 0 {
                found.push((code_set >> 4, *kind, one[4..].to_vec()));
            }
            rest = others;
        }
        found
    }

    #[test]
    fn a_port_is_named_in_the_words_of_its_protocol() {
        let mut bench = Bench::new();
        let identifier = [0xa5; 16];
        let mut unit = Unit::clone(&bench.view.unit);
        unit.ports[0].protocol = Protocol::Srp { identifier };
        bench.view.unit = unit.into();
        let own = |bench: &mut Bench| of_ports(&bench.read(Inquiry::page(0x83, 1024)).data[4..]);
        let srp = [(4, 0x94, vec![0, 0, 0, 1]), (4, 0x95, vec![0, 0, 0, 1]), (4, 0x92, identifier.to_vec())];
        assert_eq!(own(&mut bench), srp);
        bench.nexuses[0].target_port = 2;
        let iscsi: Vec<_> = own(&mut bench).into_iter().map(|(protocol, kind, _)| (protocol, kind)).collect();
        assert_eq!(iscsi, [(5, 0x94), (5, 0x95), (5, 0x98), (5, 0xa8)]);
        bench.nexuses[0].target_port = 0;
        assert_eq!(own(&mut bench), [], "AoE has no port");
        let all = bench.read(Inquiry::page(0x88, 1024)).data;
        assert_eq!(all[4 + 12..][..4], [0x41, 0x92, 0, 16]);
        assert_eq!(all[4 + 12 + 20 + 12..][..2], [0x53, 0x98]);
    }

    #[test]
    fn block_limits_are_the_true_ones() {
        let mut bench = Bench::new();
        let data = bench.read(Inquiry::page(0xb0, 255)).data;
        assert_eq!(data.len(), 64);
        assert_eq!(data[4..8], [0, 255, 0, 8]);
        let word = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
        assert_eq!([word(8), word(12)], [2_097_152, 512]);
        assert_eq!([word(20), word(24), word(28), word(32)], [1_048_576, 256, 8, 0x8000_0000]);
        assert_eq!([word(36), word(40), word(44)], [0, 131_072, 256]);
    }
}
