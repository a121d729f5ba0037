//! Vital product data pages (SPC-4 section 7.8, SBC-3 section 6.6).

use crate::commands::ata::identify::identify_data;
use crate::commands::copy::third_party_page;
use crate::commands::inquiry::{REVISION, VENDOR, push_padded};
use crate::commands::step::Env;
use crate::state::limits::{
    SAME_BYTES_MAX, TRANSFER_BYTES_MAX, TRANSFER_BYTES_OPTIMAL, UNMAP_BYTES_MAX, UNMAP_DESCRIPTORS_MAX,
};
use crate::state::unit::{Port, Protocol, Unit};
use crate::vocabulary::sense::{Check, Failure};
use wire::ata;

/// Adds a page's body.
type Page = fn(&Env<'_>, &mut Vec<u8>);

/// The pages, in ascending order.
const PAGES: [(u8, Page); 12] = [
    (0x00, supported),
    (0x80, serial_number),
    (0x83, identification),
    (0x85, management_addresses),
    (0x86, extended_inquiry),
    (0x87, mode_page_policy),
    (0x88, ports),
    (ATA_INFORMATION, ata_information),
    (0x8f, third_party_page),
    (0xb0, block_limits),
    (0xb1, characteristics),
    (0xb2, provisioning),
];

/// ATA Information: a page of units that are exported by ATA over Ethernet.
const ATA_INFORMATION: u8 = 0x89;

/// Length of the pages 86h, B0h and B1h, with their header.
const LONG_PAGE_BYTES: usize = 64;

/// Protocol identifiers of iSCSI and SRP (SPC-4 table 443) in the first byte of a designation descriptor.
const ISCSI: u8 = 0x50;
const SRP: u8 = 0x40;

/// The pages of a unit.
fn pages(unit: &Unit) -> impl Iterator<Item = (u8, Page)> {
    PAGES.into_iter().filter(|(code, _)| *code != ATA_INFORMATION || unit.exported)
}

/// The whole page with this code.
pub(crate) fn build(env: &Env<'_>, code: u8, data: &mut Vec<u8>) -> Result<(), Failure> {
    let (_, page) = pages(&env.view.unit).find(|(known, _)| *known == code).ok_or(Check::cdb_byte(2))?;
    data.extend_from_slice(&[0x00, code]);
    with_length(data, |data| page(env, data));
    Ok(())
}

/// Puts a 16-bit length before what `body` adds.
fn with_length(data: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = data.len();
    data.extend_from_slice(&[0, 0]);
    let start = data.len();
    body(data);
    let len = u16::try_from(data.len().saturating_sub(start)).unwrap_or(u16::MAX);
    if let Some(slot) = data.get_mut(at..start) {
        slot.copy_from_slice(&len.to_be_bytes());
    }
}

/// 00h.
fn supported(env: &Env<'_>, data: &mut Vec<u8>) {
    data.extend(pages(&env.view.unit).map(|(code, _)| code));
}

/// 80h.
fn serial_number(env: &Env<'_>, data: &mut Vec<u8>) {
    data.extend_from_slice(env.view.unit.serial.as_bytes());
}

/// 83h: the unit's names, then those of the port that the command came through, then the device's.
fn identification(env: &Env<'_>, data: &mut Vec<u8>) {
    let unit = &env.view.unit;
    let naa = naa_bytes(unit);
    designator(data, 0x01, 0x03, naa);
    designator(data, 0x01, 0x02, &unit.eui);
    let mut vendor = VENDOR.as_bytes().to_vec();
    push_padded(&mut vendor, &unit.product, 16);
    vendor.extend_from_slice(unit.serial.as_bytes());
    designator(data, 0x02, 0x01, &vendor);
    let mut name = String::from("naa.");
    for byte in naa {
        name.push_str(&format!("{byte:02X}"));
    }
    designator(data, 0x03, 0x08, &scsi_name(&name));
    if let Some(port) = unit.port(env.nexus.target_port) {
        let protocol = match port.protocol {
            Protocol::Iscsi => ISCSI,
            Protocol::Srp { .. } => SRP,
        };
        let [high, low] = port.relative_id.to_be_bytes();
        designator(data, 0x01 | protocol, 0x94, &[0, 0, high, low]);
        let [high, low] = port.group.to_be_bytes();
        designator(data, 0x01 | protocol, 0x95, &[0, 0, high, low]);
        port_name(data, port);
        // SRP has no name of the device as a whole.
        if port.protocol == Protocol::Iscsi {
            designator(data, 0x03 | ISCSI, 0xa8, &scsi_name(&port.device));
        }
    }
}

/// The NAA designator: 8 bytes when locally assigned (3h), 16 when IEEE registered extended (6h).
pub(crate) fn naa_bytes(unit: &Unit) -> &[u8] {
    let long = unit.naa.first().is_some_and(|byte| byte >> 4 == 0x6);
    if long { &unit.naa } else { unit.naa.first_chunk::<8>().map_or(&unit.naa, |short| short) }
}

/// The name of a target port: a SCSI name string, or SRP's identifier, an EUI-64 based one of 16 bytes (SPC-4 sections
/// 7.8.6.11 and 7.8.6.5.4).
fn port_name(data: &mut Vec<u8>, port: &Port) {
    match port.protocol {
        Protocol::Iscsi => designator(data, 0x03 | ISCSI, 0x98, &scsi_name(&port.name)),
        Protocol::Srp { identifier } => designator(data, 0x01 | SRP, 0x92, &identifier),
    }
}

/// One designation descriptor; `kind` holds PIV, association and designator type.
fn designator(data: &mut Vec<u8>, code_set: u8, kind: u8, bytes: &[u8]) {
    data.extend_from_slice(&[code_set, kind, 0, u8::try_from(bytes.len()).unwrap_or(0)]);
    data.extend_from_slice(bytes);
}

/// A SCSI name string: null-terminated and padded to a multiple of four (SPC-4 section 7.8.6.11).
fn scsi_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(SCSI_NAME_BYTES_MAX);
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The longest SCSI name string without its terminator: a designator's length has one byte.
const SCSI_NAME_BYTES_MAX: usize = 251;

/// 85h: none; the administration interface is not for initiators.
fn management_addresses(_: &Env<'_>, _: &mut Vec<u8>) {}

/// 86h.
fn extended_inquiry(env: &Env<'_>, data: &mut Vec<u8>) {
    let volatile = if env.view.policy.traits.volatile_cache { 0x01 } else { 0 };
    // HEADSUP, ORDSUP and SIMPSUP; V_SUP.
    data.extend_from_slice(&[0x00, 0x07, volatile]);
    data.resize(LONG_PAGE_BYTES, 0);
}

/// 87h: one policy for all pages: shared by all nexuses.
fn mode_page_policy(_: &Env<'_>, data: &mut Vec<u8>) {
    data.extend_from_slice(&[0x3f, 0xff, 0x00, 0x00]);
}

/// 88h: the ports by which this initiator may reach the unit.
fn ports(env: &Env<'_>, data: &mut Vec<u8>) {
    for port in env.nexus.ports(&env.view.unit) {
        data.extend_from_slice(&[0, 0]);
        data.extend_from_slice(&port.relative_id.to_be_bytes());
        data.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
        with_length(data, |data| port_name(data, port));
    }
}

/// 89h (SAT-3 section 12.4.2): who translates, the signature of an ATA device as it comes after a reset, and IDENTIFY
/// DEVICE data.
fn ata_information(env: &Env<'_>, data: &mut Vec<u8>) {
    let unit = &env.view.unit;
    data.extend_from_slice(&[0; 4]);
    data.extend_from_slice(VENDOR.as_bytes());
    push_padded(data, &unit.product, 16);
    push_padded(data, REVISION, 4);
    // Register - Device to Host: STATUS, ERROR; LBA and COUNT are 1.
    data.extend_from_slice(&[0x34, 0, ata::status::DRDY, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    data.extend_from_slice(&[ata::Command::IdentifyDevice.code(), 0, 0, 0]);
    data.extend_from_slice(&identify_data(env.view));
}

/// B0h.
fn block_limits(env: &Env<'_>, data: &mut Vec<u8>) {
    let view = env.view;
    let policy = &view.policy;
    let granularity = policy.physical_block_bytes.checked_div(policy.block_bytes).unwrap_or(1);
    let thin = view.is_thin();
    let unmap_granularity = view.blocks_in(view.policy.traits.discard_granularity_bytes).max(granularity);
    data.extend_from_slice(&[0, view.compare_blocks_max()]);
    data.extend_from_slice(&u16::try_from(granularity).unwrap_or(0).to_be_bytes());
    for value in [
        view.blocks_in(TRANSFER_BYTES_MAX),
        view.blocks_in(TRANSFER_BYTES_OPTIMAL),
        0,
        if thin { view.blocks_in(UNMAP_BYTES_MAX) } else { 0 },
        if thin { UNMAP_DESCRIPTORS_MAX } else { 0 },
        if thin { unmap_granularity } else { 0 },
        if thin { UNMAP_ALIGNMENT_VALID } else { 0 },
        0,
        view.blocks_in(SAME_BYTES_MAX),
        view.atomic_blocks_max(),
    ] {
        data.extend_from_slice(&value.to_be_bytes());
    }
    data.resize(LONG_PAGE_BYTES, 0);
}

/// UGAVALID with an alignment of 0.
const UNMAP_ALIGNMENT_VALID: u32 = 0x8000_0000;

/// B1h. Blocks read as before or as zeros after SANITIZE: WABEREQ and WACEREQ 01b where it is offered.
fn characteristics(env: &Env<'_>, data: &mut Vec<u8>) {
    let traits = &env.view.policy.traits;
    let rotation: u16 = if traits.solid_state { 1 } else { 0 };
    data.extend_from_slice(&rotation.to_be_bytes());
    let block_erase = if env.view.is_thin() { 0x40 } else { 0 };
    let cryptographic = if traits.cryptographic_erase { 0x10 } else { 0 };
    data.extend_from_slice(&[0, block_erase | cryptographic]);
    data.resize(LONG_PAGE_BYTES, 0);
}

/// B2h: LBPU, LBPWS, LBPWS10 and LBPRZ of a thin unit.
fn provisioning(env: &Env<'_>, data: &mut Vec<u8>) {
    let (flags, kind) = if env.view.is_thin() { (0xe4, 0x02) } else { (0, 0) };
    data.extend_from_slice(&[0, flags, kind, 0]);
}
