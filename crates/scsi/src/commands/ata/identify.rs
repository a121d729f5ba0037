//! IDENTIFY DEVICE (ACS-3 section 7.12): the unit as in INQUIRY data, in ATA's terms.

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::inquiry::{REVISION, VENDOR};
use crate::commands::step::Env;
use crate::state::unit::View;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::ata::identify::text;
use wire::ata::{Feature, IdentifyData, SECTOR_BYTES};

pub(crate) fn begin<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    if admission.request.read_bytes < SECTOR_BYTES {
        return Err(Check::cdb_byte(super::COUNT_BYTE).into());
    }
    Ok(P::from(Answer::new(*admission.cdb(), SECTOR_BYTES, build)))
}

fn build(env: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    data.extend_from_slice(&identify_data(env.view));
    Ok(())
}

/// IDENTIFY DEVICE data.
pub(crate) fn identify_data(view: &View) -> [u8; IdentifyData::BYTES] {
    let (unit, policy) = (&view.unit, &view.policy);
    let per_physical = policy.physical_block_bytes.checked_div(policy.block_bytes).unwrap_or(1).max(1);
    let identity = IdentifyData {
        serial: text(view.serial()),
        firmware: text(REVISION),
        model: text(&format!("{} {}", VENDOR.trim_end(), unit.product)),
        sectors: view.blocks(),
        lba48: true,
        flush_cache: true,
        flush_cache_ext: true,
        fua: true,
        write_cache: Feature { supported: true, enabled: policy.modes.write_cache },
        look_ahead: Feature::default(),
        smart: Feature::ON,
        smart_logs: true,
        sector_bytes: policy.block_bytes,
        physical_exponent: u8::try_from(per_physical.trailing_zeros()).unwrap_or(0),
        rotation_rate: u16::from(policy.traits.solid_state),
        trim_sectors: if view.is_thin() { super::TRIM_SECTORS_MAX } else { 0 },
        trim_zeros: view.is_thin(),
        // A longer name does not fit.
        world_wide_name: view.naa().try_into().ok().map(u64::from_be_bytes),
        // Commands of a process that was killed may still be waiting at the store.
        nop_waits: !unit.remote,
    };
    identity.encode()
}
