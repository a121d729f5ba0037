//! The properties of a remote unit, queried once, when it is opened.

use super::continuity::Incarnation;
use super::identity::{UnitIdentity, incarnation};
use crate::client::Reply;
use scsi::storage::{BlockSizes, Traits};
use std::fmt;
use wire::scsi::capacity::Capacity16;
use wire::scsi::command::{Inquiry, ModeSense6, ReadCapacity16};
use wire::scsi::inquiry::{StandardData, device_type, qualifier};
use wire::scsi::mode::{self, Caching, Header6};
use wire::scsi::vpd::{self, BlockLimits, Characteristics, ExtendedInquiry, Provisioning, SOLID_STATE};
use wire::scsi::{Cdb, Command, status};
use wire::shown;

/// Block sizes that can be served.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=65536;
/// Bytes requested of a page.
pub(super) const PAGE_BYTES: u8 = 252;

/// The properties of a unit, and its limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Physical block size in bytes.
    pub physical_block_bytes: u32,
    /// Vendor, product and revision.
    pub name: String,
    /// Which unit it is.
    pub identity: UnitIdentity,
    /// The incarnation of its cache, if it reports one.
    pub(super) incarnation: Option<Incarnation>,
    /// Its abilities and size.
    pub traits: Traits,
    /// Thin provisioned (LBPME).
    pub thin: bool,
    /// UNMAP is supported, and unmapped blocks read as zeros.
    pub unmap_zeros: bool,
    /// WRITE SAME may unmap.
    pub write_same_unmaps: bool,
    /// FUA is supported.
    pub fua: bool,
    /// ORDERED commands are supported.
    pub ordered: bool,
    /// The longest transfer in blocks; `None`: not reported.
    pub transfer_blocks_max: Option<u32>,
    /// The longest UNMAP descriptor in blocks.
    pub unmap_blocks_max: u32,
    /// The longest WRITE SAME in blocks; `None`: not reported.
    pub same_blocks_max: Option<u64>,
}

impl Geometry {
    /// The same, found in this incarnation of its cache.
    pub fn in_run(self, incarnation: Incarnation) -> Geometry {
        Geometry { incarnation: Some(incarnation), ..self }
    }

    /// Queries a unit: `command` sends it a CDB that reads this many bytes.
    ///
    /// # Errors
    /// When it does not answer, or is not a disk that can be served.
    pub fn query<E: fmt::Display>(
        mut command: impl FnMut(Cdb, u32) -> Result<Reply, E>,
    ) -> Result<Geometry, String> {
        let command = &mut command;
        let inquiry = must(command, inquiry(), PAGE_BYTES.into(), "INQUIRY")?;
        is_disk(&inquiry)?;
        let capacity = must(command, read_capacity(), CAPACITY_BYTES, "READ CAPACITY(16)")?;
        let (blocks, block_bytes) = capacity_of(&capacity).ok_or("the capacity data is truncated")?;
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            return Err(format!("blocks of {block_bytes} bytes cannot be served"));
        }
        let pages = page(command, vpd::page::SUPPORTED);
        let known = |code: u8| vpd::body(&pages).contains(&code);
        let mut optional = |code: u8| if known(code) { page(command, code) } else { Vec::new() };
        let limits = BlockLimits::read(&optional(vpd::page::BLOCK_LIMITS));
        let shape = Characteristics::read(&optional(vpd::page::CHARACTERISTICS));
        let provisioning = Provisioning::read(&optional(vpd::page::PROVISIONING));
        // Without that page, CMDQUE reports it (SPC-4 sections 7.8.7 and 6.6.2).
        let ordered = if known(vpd::page::EXTENDED_INQUIRY) {
            ExtendedInquiry::read(&optional(vpd::page::EXTENDED_INQUIRY)).ordered
        } else {
            StandardData::read(&inquiry).command_queuing
        };
        let identity = UnitIdentity::query(&inquiry, vpd::body(&pages), |code| page(command, code));
        let modes = ModeSenseData::of(&ask(command, mode_sense(), PAGE_BYTES.into()).unwrap_or_default());
        let Capacity16 { thin, zeros, physical_exponent, .. } = Capacity16::read(&capacity);
        let zeros = zeros || provisioning.zeros == 1;
        let unmap_blocks_max = limits.unmap_blocks_max;
        let unmap_zeros = thin && provisioning.unmap && zeros && unmap_blocks_max > 0;
        let in_bytes = |blocks: u32| blocks.saturating_mul(block_bytes);
        let physical_block_bytes = in_bytes(1 << physical_exponent.min(7));
        Ok(Geometry {
            block_bytes,
            physical_block_bytes,
            name: name_of(&inquiry),
            identity,
            incarnation: incarnation(&inquiry),
            traits: Traits {
                size_bytes: blocks.saturating_mul(u64::from(block_bytes)),
                blocks: Some(BlockSizes { logical_bytes: block_bytes, physical_bytes: physical_block_bytes }),
                discards: unmap_zeros || (thin && provisioning.write_same_16),
                discard_granularity_bytes: in_bytes(limits.unmap_granularity.max(1)),
                atomic_write_bytes_max: in_bytes(limits.atomic_max),
                compare_write_bytes_max: in_bytes(limits.compare_and_write_max.into()),
                volatile_cache: modes.write_cache,
                read_only: modes.write_protected,
                solid_state: shape.rotation_rate == SOLID_STATE,
                cryptographic_erase: false,
                identity: None,
            },
            thin,
            unmap_zeros,
            write_same_unmaps: thin && provisioning.write_same_16,
            fua: modes.fua,
            ordered,
            transfer_blocks_max: Some(limits.transfer_max).filter(|blocks| *blocks > 0),
            unmap_blocks_max,
            same_blocks_max: Some(limits.write_same_max).filter(|blocks| *blocks > 0),
        })
    }
}

/// Bytes of the answer to READ CAPACITY(16).
pub(super) const CAPACITY_BYTES: u32 = Capacity16::BYTES as u32;

pub(super) fn read_capacity() -> Cdb {
    ReadCapacity16::new(CAPACITY_BYTES).to_cdb()
}

/// Blocks and block size in an answer to READ CAPACITY(16).
pub(super) fn capacity_of(data: &[u8]) -> Option<(u64, u32)> {
    Some((Capacity16::LAST_LBA.get(data)?.checked_add(1)?, Capacity16::BLOCK_BYTES.get(data)?))
}

pub(super) fn inquiry() -> Cdb {
    Inquiry::new(PAGE_BYTES.into()).to_cdb()
}

/// INQUIRY for a page of vital product data.
pub(super) fn inquiry_page(code: u8) -> Cdb {
    Inquiry::page(code, PAGE_BYTES.into()).to_cdb()
}

/// MODE SENSE(6) for the caching page, without block descriptors.
pub(super) fn mode_sense() -> Cdb {
    ModeSense6::page_only(mode::page::CACHING, PAGE_BYTES).to_cdb()
}

/// Whether INQUIRY data is that of a disk.
pub(super) fn is_disk(inquiry: &[u8]) -> Result<(), String> {
    match (StandardData::QUALIFIER.get(inquiry), StandardData::DEVICE_TYPE.get(inquiry)) {
        (Some(qualifier::CONNECTED), Some(device_type::DISK)) => Ok(()),
        (Some(qualifier::CONNECTED), Some(kind)) => {
            Err(format!("the unit is not a disk (device type {kind:02x}h)"))
        }
        (_, _) => Err("there is no such unit".into()),
    }
}

/// The content of mode pages.
pub(super) struct ModeSenseData {
    pub(super) write_cache: bool,
    pub(super) write_protected: bool,
    fua: bool,
}

impl ModeSenseData {
    /// From an answer to MODE SENSE. A unit that does not report it is assumed to have a volatile cache, and
    /// no FUA: that costs time, but no data.
    pub(super) fn of(data: &[u8]) -> ModeSenseData {
        let header = Header6::read(data);
        let at = Header6::BYTES + usize::from(header.descriptor_bytes);
        let page = mode::pages(data.get(at..).unwrap_or_default()).next();
        let caching = page.filter(|page| (page.code, page.subpage) == (mode::page::CACHING, 0));
        ModeSenseData {
            write_cache: caching.is_none_or(|page| Caching::read(page.bytes).write_cache),
            write_protected: header.write_protected,
            fua: header.dpo_and_fua,
        }
    }
}

fn must<E: fmt::Display>(
    command: &mut impl FnMut(Cdb, u32) -> Result<Reply, E>,
    cdb: Cdb,
    bytes: u32,
    name: &str,
) -> Result<Vec<u8>, String> {
    match command(cdb, bytes) {
        Ok(Reply { status: status::GOOD, data, .. }) => Ok(data),
        Ok(Reply { status, sense: None, .. }) => Err(format!("{name} ended with status {status:02x}h")),
        Ok(Reply { sense: Some(sense), .. }) => Err(format!("{name} failed: {sense}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

fn ask<E: fmt::Display>(
    command: &mut impl FnMut(Cdb, u32) -> Result<Reply, E>,
    cdb: Cdb,
    bytes: u32,
) -> Option<Vec<u8>> {
    must(command, cdb, bytes, "").ok()
}

/// A page of vital product data; empty if there is none.
fn page<E: fmt::Display>(command: &mut impl FnMut(Cdb, u32) -> Result<Reply, E>, code: u8) -> Vec<u8> {
    let data = ask(command, inquiry_page(code), PAGE_BYTES.into()).unwrap_or_default();
    if vpd::PAGE_CODE.get(&data) == Some(code) { data } else { Vec::new() }
}

fn name_of(inquiry: &[u8]) -> String {
    let fields = inquiry.get(8..36).unwrap_or_default();
    let words = fields.split(|byte| matches!(byte, b' ' | 0)).filter(|word| !word.is_empty());
    words.map(|word| shown(word).to_string()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_unit_controls_no_terminal() {
        let inquiry = b"\0\0\x06\x12\x5b\0\0\x02AC\nE    Di\x1bk 1\0\0        1.00";
        assert_eq!(name_of(inquiry), "AC\\x0aE Di\\x1bk 1 1.00");
    }
}
