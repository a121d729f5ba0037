//! INQUIRY (SPC-4 section 6.6).

use crate::admit::Admission;
use crate::answer::Answer;
use crate::exec::{Env, Program};
use crate::sense::{Check, Failure};
use crate::vpd;
use wire::Cdb;

/// T10 vendor identification.
pub(crate) const VENDOR: &str = "LUNETTE ";

const REVISION: &str = "0001";

/// VERSION: SPC-4.
const VERSION: u8 = 0x06;

/// HISUP (REPORT LUNS has the hierarchical addressing model) and RESPONSE DATA FORMAT 2.
const FORMAT: u8 = 0x12;

/// SAM-5, SPC-4, SBC-3 and iSCSI, without claiming a version of each.
const VERSION_DESCRIPTORS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

/// Standard INQUIRY data, in bytes.
const STANDARD_BYTES: usize = 96;

/// Direct access block device, connected.
const DISK: u8 = 0x00;

/// Peripheral qualifier 3 and no device type: there is no unit at this LUN.
const NO_UNIT: u8 = 0x7f;

/// INQUIRY.
pub(crate) fn begin(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    Ok(Program::Answer(Answer::new(*cdb, u32::from(cdb.u16(3)), build)))
}

fn build(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    if cdb.u8(1) & 0x01 != 0 {
        return vpd::build(env, cdb.u8(2), data);
    }
    check_page(cdb)?;
    let unit = &env.view.unit;
    let removable = if unit.removable { 0x80 } else { 0 };
    let multiple_ports = if unit.ports.len() > 1 { 0x10 } else { 0 };
    // TPGS: implicit asymmetric access only; 3PC; CMDQUE.
    data.extend_from_slice(&[DISK, removable, VERSION, FORMAT, 0, 0x18, multiple_ports, 0x02]);
    identity(data, &unit.product);
    Ok(())
}

/// Standard data for a LUN where there is no unit.
pub(crate) fn build_no_unit(cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Check> {
    if cdb.u8(1) & 0x01 != 0 {
        return Err(Check::NO_UNIT);
    }
    check_page(cdb)?;
    data.extend_from_slice(&[NO_UNIT, 0, VERSION, FORMAT, 0, 0, 0, 0x02]);
    identity(data, "");
    Ok(())
}

/// PAGE CODE must be zero without EVPD.
fn check_page(cdb: &Cdb) -> Result<(), Check> {
    if cdb.u8(2) == 0 { Ok(()) } else { Err(Check::cdb_byte(2)) }
}

/// The bytes from VENDOR IDENTIFICATION on, and the length.
fn identity(data: &mut Vec<u8>, product: &str) {
    data.extend_from_slice(VENDOR.as_bytes());
    push_padded(data, product, 16);
    push_padded(data, REVISION, 4);
    data.resize(58, 0);
    for descriptor in VERSION_DESCRIPTORS {
        data.extend_from_slice(&descriptor.to_be_bytes());
    }
    data.resize(STANDARD_BYTES, 0);
    if let Some(length) = data.get_mut(4) {
        *length = u8::try_from(STANDARD_BYTES.saturating_sub(5)).unwrap_or(0);
    }
}

/// Left-aligned ASCII, filled with spaces to `width`.
pub(crate) fn push_padded(data: &mut Vec<u8>, text: &str, width: usize) {
    data.extend(text.bytes().chain(std::iter::repeat(b' ')).take(width));
}
