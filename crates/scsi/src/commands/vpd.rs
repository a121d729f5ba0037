//! Vital product data pages (SPC-4 section 7.8, SBC-3 section 6.6).

use crate::commands::ata::identify::identify_data;
use crate::commands::copy::third_party_page;
use crate::commands::inquiry::{REVISION, VENDOR};
use crate::commands::step::Env;
use crate::state::limits::{
    SAME_BYTES_MAX, TRANSFER_BYTES_MAX, TRANSFER_BYTES_OPTIMAL, UNMAP_BYTES_MAX, UNMAP_DESCRIPTORS_MAX,
};
use crate::state::unit::{Port, Protocol, Unit};
use crate::vocabulary::sense::{Check, Failure};
use wire::ata;
use wire::scsi::command::Inquiry;
use wire::scsi::designator::{Designator, association, code_set, kind, protocol, scsi_name};
use wire::scsi::inquiry::padded;
use wire::scsi::vpd::{
    self, AtaInformation, BlockLimits, Characteristics, DeviceToHost, ExtendedInquiry, ModePagePolicy,
    PortHeader, Provisioning, page,
};

/// Adds a page's body.
type Page = fn(&Env<'_>, &mut Vec<u8>);

/// The pages, in ascending order.
const PAGES: [(u8, Page); 12] = [
    (page::SUPPORTED, supported),
    (page::SERIAL_NUMBER, serial_number),
    (page::IDENTIFICATION, identification),
    (page::MANAGEMENT_ADDRESSES, management_addresses),
    (page::EXTENDED_INQUIRY, extended_inquiry),
    (page::MODE_PAGE_POLICY, mode_page_policy),
    (page::PORTS, ports),
    // For units that are exported by ATA over Ethernet.
    (page::ATA_INFORMATION, ata_information),
    (page::THIRD_PARTY_COPY, third_party_page),
    (page::BLOCK_LIMITS, block_limits),
    (page::CHARACTERISTICS, characteristics),
    (page::PROVISIONING, provisioning),
];

/// The pages of a unit.
fn pages(unit: &Unit) -> impl Iterator<Item = (u8, Page)> {
    PAGES.into_iter().filter(|(code, _)| *code != page::ATA_INFORMATION || unit.exported)
}

/// The whole page with this code.
pub(crate) fn build(env: &Env<'_>, code: u8, data: &mut Vec<u8>) -> Result<(), Failure> {
    let (_, build) = pages(&env.view.unit)
        .find(|(known, _)| *known == code)
        .ok_or_else(|| Check::cdb_field(Inquiry::PAGE))?;
    let start = data.len();
    data.extend_from_slice(&vpd::header(0, code, 0));
    build(env, data);
    let len = data.len().saturating_sub(start).saturating_sub(vpd::HEADER_BYTES);
    if let Some(page) = data.get_mut(start..) {
        vpd::PAGE_LENGTH.set(page, u16::try_from(len).unwrap_or(u16::MAX));
    }
    Ok(())
}

/// 00h.
fn supported(env: &Env<'_>, data: &mut Vec<u8>) {
    data.extend(pages(&env.view.unit).map(|(code, _)| code));
}

/// 80h.
fn serial_number(env: &Env<'_>, data: &mut Vec<u8>) {
    data.extend_from_slice(env.view.serial().as_bytes());
}

/// 83h: the unit's names, then those of the port that the command came through, then the device's.
fn identification(env: &Env<'_>, data: &mut Vec<u8>) {
    let unit = &env.view.unit;
    let naa = env.view.naa();
    Designator::of_unit(code_set::BINARY, kind::NAA, naa).write(data);
    Designator::of_unit(code_set::BINARY, kind::EUI_64, env.view.eui()).write(data);
    let product: [u8; 16] = padded(&unit.product);
    let vendor = [VENDOR.as_bytes(), &product, env.view.serial().as_bytes()].concat();
    Designator::of_unit(code_set::ASCII, kind::T10_VENDOR_ID, &vendor).write(data);
    let mut name = String::from("naa.");
    for byte in naa {
        name.push_str(&format!("{byte:02X}"));
    }
    Designator::of_unit(code_set::UTF_8, kind::SCSI_NAME, &scsi_name(&name)).write(data);
    if let Some(port) = unit.port(env.nexus.target_port) {
        let protocol = match port.protocol {
            Protocol::Iscsi => protocol::ISCSI,
            Protocol::Srp { .. } => protocol::SRP,
        };
        for (kind, number) in [(kind::RELATIVE_PORT, port.relative_id), (kind::PORT_GROUP, port.group)] {
            let [high, low] = number.to_be_bytes();
            Designator::of_port(protocol, code_set::BINARY, kind, &[0, 0, high, low]).write(data);
        }
        port_name(data, port);
        // SRP has no name for the device as a whole.
        if port.protocol == Protocol::Iscsi {
            let name = scsi_name(&port.device);
            let name = Designator::of_port(protocol, code_set::UTF_8, kind::SCSI_NAME, &name);
            Designator { association: association::DEVICE, ..name }.write(data);
        }
    }
}

/// The name of a target port: a SCSI name string, or SRP's identifier, an EUI-64 based one of 16 bytes (SPC-4 sections
/// 7.8.6.11 and 7.8.6.5.4).
fn port_name(data: &mut Vec<u8>, port: &Port) {
    match port.protocol {
        Protocol::Iscsi => {
            let name = scsi_name(&port.name);
            Designator::of_port(protocol::ISCSI, code_set::UTF_8, kind::SCSI_NAME, &name).write(data);
        }
        Protocol::Srp { identifier } => {
            Designator::of_port(protocol::SRP, code_set::BINARY, kind::EUI_64, &identifier).write(data);
        }
    }
}

/// 85h: none; the administration interface is not for initiators.
fn management_addresses(_: &Env<'_>, _: &mut Vec<u8>) {}

/// 86h.
fn extended_inquiry(env: &Env<'_>, data: &mut Vec<u8>) {
    let page = ExtendedInquiry {
        head_of_queue: true,
        ordered: true,
        simple: true,
        volatile_cache: env.view.policy.traits.volatile_cache,
        ..ExtendedInquiry::default()
    };
    data.extend_from_slice(vpd::body(&page.to_page()));
}

/// 87h.
fn mode_page_policy(_: &Env<'_>, data: &mut Vec<u8>) {
    data.extend_from_slice(&ModePagePolicy::SHARED.to_bytes());
}

/// 88h: the ports through which this initiator may reach the unit.
fn ports(env: &Env<'_>, data: &mut Vec<u8>) {
    for port in env.nexus.ports(&env.view.unit) {
        let mut name = Vec::new();
        port_name(&mut name, port);
        let names_bytes = u16::try_from(name.len()).unwrap_or(u16::MAX);
        let header = PortHeader { relative_id: port.relative_id, initiator_bytes: 0, names_bytes };
        data.extend_from_slice(&header.to_bytes());
        data.extend_from_slice(&name);
    }
}

/// 89h (SAT-3 section 12.4.2): the translation layer, the device's signature, and IDENTIFY DEVICE data.
fn ata_information(env: &Env<'_>, data: &mut Vec<u8>) {
    let page = AtaInformation {
        vendor: padded(VENDOR),
        product: padded(&env.view.unit.product),
        revision: padded(REVISION),
        signature: DeviceToHost::signature(ata::status::DRDY).to_bytes(),
        command: ata::Command::IdentifyDevice.code(),
    };
    data.extend_from_slice(vpd::body(&page.to_bytes()));
    data.extend_from_slice(&identify_data(env.view));
}

/// B0h.
fn block_limits(env: &Env<'_>, data: &mut Vec<u8>) {
    let view = env.view;
    let policy = &view.policy;
    let granularity = policy.physical_block_bytes.checked_div(policy.block_bytes).unwrap_or(1);
    let unmap_granularity = view.blocks_in(view.policy.traits.discard_granularity_bytes).max(granularity);
    let limits = BlockLimits {
        compare_and_write_max: view.compare_blocks_max(),
        transfer_granularity: u16::try_from(granularity).unwrap_or(0),
        transfer_max: view.blocks_in(TRANSFER_BYTES_MAX),
        transfer_optimal: view.blocks_in(TRANSFER_BYTES_OPTIMAL),
        write_same_max: view.blocks_in(SAME_BYTES_MAX).into(),
        atomic_max: view.atomic_blocks_max(),
        ..BlockLimits::default()
    };
    let limits = match view.is_thin() {
        true => BlockLimits {
            unmap_blocks_max: view.blocks_in(UNMAP_BYTES_MAX),
            unmap_descriptors_max: UNMAP_DESCRIPTORS_MAX,
            unmap_granularity,
            // An alignment of 0.
            unmap_alignment: vpd::UNMAP_ALIGNMENT_VALID,
            ..limits
        },
        false => limits,
    };
    data.extend_from_slice(vpd::body(&limits.to_page()));
}

/// B1h. Blocks read as before or as zeros after SANITIZE: WABEREQ and WACEREQ are 01b where it is offered.
fn characteristics(env: &Env<'_>, data: &mut Vec<u8>) {
    let view = env.view;
    let page = Characteristics {
        rotation_rate: if view.policy.traits.solid_state { vpd::SOLID_STATE } else { 0 },
        block_erase: u8::from(view.erases_blocks()),
        cryptographic_erase: u8::from(view.erases_cryptographically()),
        ..Characteristics::default()
    };
    data.extend_from_slice(vpd::body(&page.to_page()));
}

/// B2h: LBPU, LBPWS, LBPWS10 and LBPRZ of a thin unit.
fn provisioning(env: &Env<'_>, data: &mut Vec<u8>) {
    let page = match env.view.is_thin() {
        true => Provisioning {
            unmap: true,
            write_same_16: true,
            write_same_10: true,
            zeros: 1,
            threshold_exponent: env.view.threshold_exponent(),
            kind: vpd::THIN,
            ..Provisioning::default()
        },
        false => Provisioning::default(),
    };
    data.extend_from_slice(vpd::body(&page.to_page()));
}
